package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"rnic/internal/perf"
)

// PerfCmd is `rnic perf`.
type PerfCmd struct {
	Operation string   `arg:"" help:"write-bw, write-lat, read-bw, read-lat, send-bw, send-lat, atomic-bw or atomic-lat."`
	Server    []string `arg:"" optional:"" help:"Host to connect to; with --multicast several. Without it: be the server."`

	Transport  string        `short:"c" default:"RC" help:"Transport: RC, UC (write and send), UD (send), or XRC (not write-lat and send-lat)."`
	Loopback   bool          `help:"Measure between two NICs in this process, over UDP on loopback."`
	Size       int           `short:"s" default:"-1" placeholder:"BYTES" help:"Message size in bytes (default 65536, latency 8, send-bw over UD 1024)."`
	All        bool          `short:"a" help:"All sizes from 2 bytes to 8 MiB (UD: to the MTU)."`
	Iterations int           `short:"n" default:"-1" placeholder:"N" help:"Messages of each queue pair (default 5000, fewer with many queue pairs; latency 20000)."`
	Duration   time.Duration `short:"D" placeholder:"TIME" help:"Run for so long instead, for example 10s."`
	Depth      int           `short:"t" default:"-1" placeholder:"N" help:"Work requests in flight of each queue pair, to 8192, with -bw (default 32, fewer with many queue pairs)."`
	PostList   int           `short:"l" default:"1" placeholder:"N" help:"Post up to so many work requests with one call, with -bw (default 1)."`
	QueuePairs int           `short:"q" name:"qps" default:"1" help:"Queue pairs, to 10000, with -bw."`
	MTU        int           `short:"m" placeholder:"BYTES" help:"Path MTU: 256, 512, 1024, 2048 or 4096 (default: what the interface carries)."`
	IPv4       bool          `short:"4" name:"ipv4" help:"Use IPv4 (default: as the connection to the server, if the NIC has its address, else IPv4)."`
	IPv6       bool          `short:"6" name:"ipv6" help:"Use IPv6."`
	GIDIndex   int           `short:"x" default:"-1" placeholder:"N" help:"Index of the own GID (default: that of the connection to the server, else the first of the family)."`
	Inline     int           `short:"I" default:"-1" placeholder:"BYTES" help:"Send up to so many bytes inline, to 512 (default: latency 220, bandwidth 0)."`
	Addr       []netip.Addr  `help:"Own address of the NIC (default: all; loopback: 127.0.0.1 and 127.0.0.2). Repeatable."`
	Interface  string        `placeholder:"NAME" help:"Use the addresses of this interface."`
	Port       int           `short:"p" default:"18515" help:"TCP port of the exchange between client and server."`
	Check      bool          `help:"Verify the contents of every message (without: of the last ones)."`
	Memory     string        `enum:"own,process" default:"own" help:"Where the target buffer lives: own, or process (a child process; with write-bw --loopback)."`
	Fault      []string      `sep:"none" placeholder:"SPEC" help:"Faults to inject, for example drop=1%,seed=7; send: or recv: before it chooses the direction (default send). Repeatable."`
	Capture    string        `type:"path" placeholder:"FILE" help:"Write all packets to this pcapng file."`
	JSON       bool          `help:"Print one JSON object a measurement."`
	Rate       string        `placeholder:"RATE" help:"With -bw: limit of what each side sends, of all queue pairs together: messages (10000/s) or bytes (100MB/s, 1GiB/s) a second."`
	Both       bool          `name:"bidirectional" help:"Both sides send; the figure is the sum (write-bw, read-bw, send-bw)."`
	SRQ        bool          `name:"srq" help:"All queue pairs of a side take their receives from one shared receive queue (send-bw and send-lat)."`
	Multicast  netip.Addr    `placeholder:"GROUP" help:"Send to this multicast group, IPv4 or IPv6 (send-bw and send-lat with -c UD). The result counts what each member lost."`
	Members    int           `short:"g" default:"1" help:"With --multicast: queue pairs of each receiving NIC that are members of the group."`
	OwnMembers int           `placeholder:"N" help:"With --multicast: queue pairs of the sending NIC that are members, too."`
	Histogram  bool          `help:"With -lat: print the distribution of the latency; with --json its buckets."`
	Progress   bool          `help:"Write a line a second on standard error (default: if it is a terminal)."`
	Counters   bool          `help:"Print the counters of the NICs on standard error at the end."`
	Stages     bool          `help:"Say where the latency lies, from posting to seeing the completion (write-lat and send-lat, with --loopback)."`
	Congestion string        `enum:"window,dcqcn" default:"window" help:"How connections react to congestion: window, or dcqcn (the network must mark packets, ECN)."`
	CM         bool          `name:"cm" help:"The RDMA connection manager connects the queue pairs (RC, client and server); say so at the client."`
	Resend     string        `enum:"auto,go-back-n,selective" default:"auto" help:"What RC sends again after a loss: auto (selective repeat if both sides are able to), go-back-n or selective."`
	Units      int           `default:"1" help:"Processing units of the NIC: threads with sockets of their own, which share the queue pairs."`
	Plain      bool          `name:"plain-sockets" help:"Use the network as on other systems than Linux: a socket for each address, a system call for each packet."`
	NoResend   bool          `name:"no-early-resend" help:"Leave lost packets to NAKs and the local ACK timer."`
	CPUProfile string        `name:"cpuprofile" hidden:"" type:"path" help:"Write a profile of the processor's time, for go tool pprof."`
	Buffer     int           `name:"socket-buffer" placeholder:"BYTES" help:"Receive socket buffer in bytes (default: as much as allowed)."`
}

// Help is what kong prints below the list of the options' short form.
func (*PerfCmd) Help() string {
	return `Without --loopback, the server is started first, then the client, with the server's address; the client's options hold for both.

Examples:
  rnic perf write-bw --loopback                     two NICs in this process
  rnic perf write-bw                                the server
  rnic perf write-bw 192.0.2.1 -q 100 -D 10s        its client: 100 queue pairs, 10 seconds
  rnic perf write-bw 192.0.2.1 --cm                 its client, connected by the RDMA connection manager
  rnic perf send-lat 192.0.2.1 -c ud --histogram    latency of datagrams
  rnic perf send-bw 192.0.2.1 192.0.2.2 -c ud --multicast 239.1.2.3 --check
                                                    two servers, members of a group`
}

// Run is called by kong.
func (c *PerfCmd) Run(ctx context.Context) error {
	kind, err := perf.ParseKind(c.Operation)
	if err != nil {
		return err
	}
	rate, err := perf.ParseRate(c.Rate)
	if err != nil {
		return err
	}
	o := &perf.Options{Kind: kind, Transport: strings.ToUpper(c.Transport), Servers: c.Server, Loopback: c.Loopback, TCPPort: c.Port, Size: c.Size, AllSizes: c.All,
		Iterations: max(c.Iterations, 0), Duration: c.Duration, Depth: max(c.Depth, 0), PostList: c.PostList, QueuePairs: c.QueuePairs, MTU: c.MTU, Addrs: c.Addr,
		Interface: c.Interface, IPv4: c.IPv4, IPv6: c.IPv6, GIDIndex: c.GIDIndex, Inline: c.Inline, Check: c.Check, Faults: c.Fault,
		Capture: c.Capture, JSON: c.JSON, Process: c.Memory == "process", NoEarly: c.NoResend, DCQCN: c.Congestion == "dcqcn", Buffer: c.Buffer, Counters: c.Counters,
		Stages: c.Stages, Units: c.Units, PlainSockets: c.Plain, Resend: perf.Resend(c.Resend), CM: c.CM, Rate: rate, Both: c.Both, SRQ: c.SRQ, Histogram: c.Histogram, Group: c.Multicast, Members: c.Members, OwnMembers: c.OwnMembers}
	if err := c.conflict(); err != nil {
		return fmt.Errorf("%w: %w", perf.ErrUsage, err)
	}
	if err := o.Validate(); err != nil {
		return err
	}
	if o.Progress, err = c.progress(os.Stdout, os.Stderr); err != nil {
		return err
	}
	if c.CPUProfile != "" {
		f, err := os.Create(c.CPUProfile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	r := reach(append([]string{"rnic", "perf"}, os.Args[min(2, len(os.Args)):]...))
	defer r.close()
	o.Opened = r.add
	return perf.Run(ctx, o, &perf.Printer{W: os.Stdout, JSON: c.JSON})
}

// progress is where the progress of a measurement is written, nil for nowhere: standard error, if it is a terminal
// or that was asked for, and never between the JSON objects of one stream for both.
func (c *PerfCmd) progress(stdout, stderr *os.File) (*perf.Progress, error) {
	out, err1 := stdout.Stat()
	diag, err2 := stderr.Stat()
	null, err3 := os.Stat(os.DevNull)
	if err := errors.Join(err1, err2, err3); err != nil {
		if c.Progress {
			return nil, fmt.Errorf("--progress: %w", err)
		}
		return nil, nil
	}
	nowhere := os.SameFile(diag, null)
	terminal := diag.Mode()&os.ModeCharDevice != 0 && !nowhere
	mixed := c.JSON && os.SameFile(out, diag) && !nowhere
	switch {
	case mixed && c.Progress:
		return nil, fmt.Errorf("%w: --progress: standard error and the JSON objects go to the same place: redirect one of them", perf.ErrUsage)
	case mixed || !c.Progress && !terminal:
		return nil, nil
	}
	return &perf.Progress{W: stderr, Terminal: terminal}, nil
}

// conflict refuses options of which one would be ignored.
func (c *PerfCmd) conflict() error {
	switch {
	case c.IPv4 && c.IPv6:
		return errors.New("-4 and -6 exclude each other")
	case c.Iterations == 0 || c.Iterations < -1:
		return fmt.Errorf("%d iterations: at least 1 is needed", c.Iterations)
	case c.Iterations > 0 && c.Duration != 0:
		return errors.New("-n and -D exclude each other")
	case c.All && c.Size != -1:
		return errors.New("-a and -s exclude each other")
	case c.Depth > 1 && strings.HasSuffix(c.Operation, "-lat"):
		return fmt.Errorf("-t %d goes with -bw: %s has one message in flight", c.Depth, c.Operation)
	case c.Port < 1:
		return fmt.Errorf("port %d: 1 to 65535 are possible", c.Port)
	case c.Units < 1:
		return fmt.Errorf("%d units: 1 at least is needed", c.Units)
	case c.Inline < -1:
		return fmt.Errorf("inline %d: 0 to 512 bytes are possible", c.Inline)
	case c.GIDIndex < -1:
		return fmt.Errorf("GID index %d: they begin with 0", c.GIDIndex)
	case c.Members != 1 && !c.Multicast.IsValid():
		return fmt.Errorf("-g %d goes with --multicast", c.Members)
	case c.PostList < 1:
		return fmt.Errorf("%d work requests in one call: 1 to 8192 are possible", c.PostList)
	case c.PostList > 1 && (strings.HasSuffix(c.Operation, "-lat") || c.Rate != "" || c.Multicast.IsValid()):
		return fmt.Errorf("-l %d goes with -bw, without --rate and --multicast: there messages are posted one by one", c.PostList)
	case c.Depth == 0 || c.Depth < -1:
		return fmt.Errorf("depth %d: 1 to 8192 are possible", c.Depth)
	}
	return nil
}
