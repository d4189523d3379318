// Package perf measures the NIC with its own verbs, as perftest does: bandwidth and latency of
// WRITE, READ, SEND and atomics, between two processes over the network, or between two NICs in
// this process over UDP on loopback.
package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/internal/nic"
)

// ErrUsage is wrapped by errors about bad options: exit code 2.
var ErrUsage = errors.New("bad option")

func usage(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, a...))
}

// Kind is what is measured.
type Kind struct {
	Verb    string // write, read, send, atomic
	Latency bool
}

// ParseKind reads "write-bw" and the like.
func ParseKind(s string) (Kind, error) {
	verb, what, _ := strings.Cut(s, "-")
	switch verb {
	case "write", "read", "send", "atomic":
		if what == "bw" || what == "lat" {
			return Kind{verb, what == "lat"}, nil
		}
	}
	return Kind{}, usage("operation %q: one of write, read, send, atomic with -bw or -lat is needed", s)
}

func (k Kind) String() string {
	if k.Latency {
		return k.Verb + "-lat"
	}
	return k.Verb + "-bw"
}

// Options are those of `rnic perf`.
type Options struct {
	Kind       Kind
	Transport  string   // RC (or empty), UC or UD
	Servers    []string // hosts to connect to, several only with Group; none: be the server, unless Loopback
	Loopback   bool
	TCPPort    int
	Size       int
	AllSizes   bool
	Iterations int
	Duration   time.Duration // instead of Iterations
	Depth      int           // work requests in flight of each queue pair
	PostList   int           // and at most so many posted with one call; 0: 1
	QueuePairs int
	MTU        int
	Addrs      []netip.Addr
	Interface  string
	IPv4, IPv6 bool // neither: the client as its connection to the server, the server as the client
	GIDIndex   int  // -1: chosen
	Inline     int  // -1: chosen
	Check      bool
	Faults     []string
	Capture    string
	JSON       bool
	Process    bool // the target buffer lives in a child process
	NoEarly    bool // early resend off
	DCQCN      bool // send at a rate that follows the network's marks
	Resend     Resend
	Buffer     int        // receive socket bytes
	Units      int        // processing units of the NIC
	Counters   bool       // print the NICs' counters at the end
	Stages     bool       // say where the latency lies
	Rate       Rate       // bandwidth: limit of what each side sends
	Both       bool       // bandwidth: both sides send
	SRQ        bool       // send: receives are taken from a shared receive queue
	Histogram  bool       // latency: with the distribution
	Group      netip.Addr // multicast group to send to, if valid
	Members    int        // of it, at each receiving NIC
	OwnMembers int        // of it, at the sending NIC
	CM         bool       // the RDMA connection manager connects the queue pairs
	Progress   *Progress
	Opened     func(*device.Device) // is told of each device
	// PlainSockets: see device.Config.
	PlainSockets bool

	near netip.Addr // own address of the connection between client and server

	ctx context.Context // of the run: ends it early
}

// interrupted is the reason why the run should end, if it should.
func (o *Options) interrupted() error {
	if o.ctx == nil || o.ctx.Err() == nil {
		return nil
	}
	return errInterrupted
}

var errInterrupted = errors.New("interrupted")

const maxSize = 1 << 30

// minProcessSize is the size from which a message covers a page wherever it begins.
const minProcessSize = 8192

// Validate checks the options and fills in what was not chosen.
func (o *Options) Validate() error {
	if o.Size == -1 {
		o.Size = 65536
		switch {
		case o.Kind.Latency || o.Kind.Verb == "atomic":
			o.Size = 8
		case o.Transport == "UD":
			o.Size = min(1024, cmp.Or(o.MTU, 1024)) // which every interface carries
		}
	}
	if o.Kind.Verb == "write" && o.Kind.Latency && o.Size == 0 {
		o.Size = 2 // the last byte is what is polled
	}
	switch {
	case o.Size < 0 || o.Size > maxSize:
		return usage("size %d: 0 to %d bytes are possible", o.Size, maxSize)
	case o.Kind.Verb == "atomic" && o.Size != 0 && o.Size != 8:
		return usage("size %d: atomics have 8 bytes", o.Size)
	case o.Iterations < 0 || o.Duration < 0:
		return usage("iterations and duration must be positive")
	case o.Depth < 0 || o.Depth > 8192:
		return usage("depth %d: 1 to 8192 are possible", o.Depth)
	case o.PostList < 0 || o.PostList > 8192:
		return usage("%d work requests in one call: 1 to 8192 are possible", o.PostList)
	case o.QueuePairs < 1 || o.QueuePairs > 10000:
		return usage("%d queue pairs: 1 to 10000 are possible", o.QueuePairs)
	case o.Inline > 0 && (o.Kind.Verb == "read" || o.Kind.Verb == "atomic"):
		return usage("inline %d goes with write and send: what a request of %s carries lies in memory", o.Inline, o.Kind)
	case o.QueuePairs > 1 && o.Kind.Latency:
		return usage("%d queue pairs go with -bw: %s has one message in flight", o.QueuePairs, o.Kind)
	case o.Inline > 512:
		return usage("inline %d: at most 512 bytes are possible", o.Inline)
	case o.TCPPort < 0 || o.TCPPort > 65535:
		return usage("port %d: 1 to 65535 are possible", o.TCPPort)
	case o.Units < 0 || o.Units > nic.MaxUnits:
		return usage("%d units: 1 to %d are possible", o.Units, nic.MaxUnits)
	case o.Resend == ResendSelective && o.Transport != "" && o.Transport != "RC":
		return usage("--resend=selective goes with RC")
	case o.Buffer < 0:
		return usage("socket buffer %d: it must be positive", o.Buffer)
	case o.Loopback && len(o.Addrs) != 0 && len(o.Addrs) != 2:
		return usage("--loopback takes two --addr, or none")
	case o.Loopback && o.Interface != "":
		return usage("--interface and --loopback exclude each other: give two --addr")
	case o.Interface != "" && len(o.Addrs) > 0:
		return usage("--interface and --addr exclude each other")
	case o.Process && !(o.Loopback && o.Kind == Kind{Verb: "write"}):
		return usage("--memory=process goes with write-bw --loopback")
	case o.Process && o.Size < minProcessSize:
		return usage("--memory=process: a page is unmapped inside of a message: use -s %d or more", minProcessSize)
	case o.Process && o.AllSizes:
		return usage("-a and --memory=process exclude each other")
	case o.Process && o.Capture != "":
		return usage("--capture and --memory=process exclude each other: it has new NICs for each figure")
	case o.Stages && !(o.Loopback && o.Kind.Latency && (o.Kind.Verb == "write" || o.Kind.Verb == "send")):
		return usage("--stages goes with write-lat and send-lat --loopback: both ends need one clock")
	case len(o.Servers) > 0 && o.Loopback:
		return usage("a server address and --loopback exclude each other")
	case o.AllSizes && o.Kind.Verb == "atomic":
		return usage("-a: atomics have 8 bytes")
	}
	switch o.MTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		return usage("MTU %d: 256, 512, 1024, 2048 or 4096 are possible", o.MTU)
	}
	if o.Kind.Verb == "atomic" {
		o.Size = 8
	}
	if o.Iterations == 0 && o.Duration == 0 {
		o.Iterations = min(5000, max(50, 500_000/o.QueuePairs))
		if o.Kind.Latency {
			o.Iterations = 20000
		}
	}
	if o.Depth == 0 {
		o.Depth = max(1, min(32, mostSlots(o.QueuePairs), defaultBuffers/(o.QueuePairs*o.stride())))
	}
	if o.slots() > mostSlots(o.QueuePairs) {
		return usage("depth %d of %d queue pairs: they share a completion queue of %d, so that at most %d are possible",
			o.Depth, o.QueuePairs, maxCompletions, mostSlots(o.QueuePairs))
	}
	if o.Inline < 0 {
		o.Inline = 0
		if o.Kind.Latency && o.Kind.Verb != "read" && o.Kind.Verb != "atomic" {
			o.Inline = 220
		}
	}
	if err := o.checkTransport(); err != nil {
		return err
	}
	if err := o.checkMode(); err != nil {
		return err
	}
	if err := o.checkFamily(); err != nil {
		return err
	}
	if err := o.checkMulticast(); err != nil {
		return err
	}
	if err := o.checkCM(); err != nil {
		return err
	}
	_, err := o.faults()
	return err
}

// checkFamily is the part of Validate that is about the IP version. Of two NICs in one process it is that of their addresses.
func (o *Options) checkFamily() error {
	if !o.Loopback || len(o.Addrs) == 0 {
		return nil
	}
	for _, a := range o.Addrs {
		switch is4 := a.Unmap().Is4(); {
		case is4 != o.Addrs[0].Unmap().Is4():
			return usage("--addr %v and --addr %v: the two NICs need addresses of one IP version", o.Addrs[0], a)
		case o.IPv4 && !is4, o.IPv6 && is4:
			return usage("--addr %v: it is of the other IP version than was asked for", a)
		}
	}
	o.IPv6 = o.Addrs[0].Unmap().Is6()
	return nil
}

// checkMode is the part of Validate that is about who sends, how fast, and into which receives.
func (o *Options) checkMode() error {
	switch {
	case o.Rate.PerSecond != 0 && o.Kind.Latency:
		return usage("--rate goes with -bw: a latency measurement has one message in flight")
	case o.Rate.PerSecond != 0 && o.Process:
		return usage("--rate and --memory=process exclude each other")
	case o.Rate.Bytes && o.Size == 0:
		return usage("--rate in bytes a second: messages of 0 bytes have none: give messages a second")
	case o.Rate.PerSecond != 0 && (o.Rate.PerSecond < 0 || !(o.Rate.PerSecond <= maxRate)):
		return usage("--rate %v: up to 10^15 a second are possible", o.Rate.PerSecond)
	case o.Both && (o.Kind.Latency || o.Kind.Verb == "atomic"):
		return usage("--bidirectional goes with write-bw, read-bw and send-bw")
	case o.Both && o.Process:
		return usage("--bidirectional and --memory=process exclude each other")
	case o.Both && o.Transport == "XRC":
		return usage("--bidirectional: XRC has requests one way")
	case o.SRQ && o.Transport == "XRC":
		return usage("--srq: XRC has shared receive queues of its own")
	case o.SRQ && o.Kind.Verb != "send":
		return usage("--srq goes with send-bw and send-lat: %s takes no receives", o.Kind)
	case o.Histogram && !o.Kind.Latency:
		return usage("--histogram goes with -lat: %s has no latencies", o.Kind)
	}
	return nil
}

// directions is how many sides send.
func (o *Options) directions() int {
	if o.Both {
		return 2
	}
	return 1
}

// maxCompletions is what a completion queue holds (nic.DefaultLimits). All queue pairs share one.
const maxCompletions = 1<<19 - 1

// defaultBuffers bounds each side's buffers where the depth is not chosen, bytes.
const defaultBuffers = 256 << 20

// mostSlots is how many work requests each of so many queue pairs may have in flight.
func mostSlots(qps int) int { return (maxCompletions-64)/qps - 1 }

// faults reads --fault: each "[send:|recv:]SPEC"; without a direction it holds for what is sent.
func (o *Options) faults() ([]fault.Spec, error) {
	specs, err := fault.ParseRules(o.Faults)
	if err != nil {
		return nil, fmt.Errorf("%w: --fault: %v", ErrUsage, err)
	}
	return specs, nil
}

// deviceConfig is the configuration of one NIC. side is 0 for the server's, 1 for the client's.
func (o *Options) deviceConfig(addrs []netip.Addr, side int) (device.Config, error) {
	specs, err := o.faults()
	if err != nil {
		return device.Config{}, err
	}
	cfg := device.Config{Name: fmt.Sprintf("rnic%d", side), Units: o.Units, PlainSockets: o.PlainSockets, Addrs: addrs, Interface: o.Interface, Faults: offset(specs, side),
		SocketBuffer: o.Buffer, Capture: o.Capture,
		Policy: nic.Policy{NoEarlyResend: o.NoEarly},
		Report: func(what string) { fmt.Fprintf(os.Stderr, "rnic%d: self-check: %s\n", side, what) }}
	if o.DCQCN {
		cfg.Policy.Congestion = nic.CongestionDCQCN
	}
	if side == 1 && o.Loopback {
		cfg.Capture = "" // one capture shows everything
	}
	return cfg, nil
}

// offset gives the two NICs of one process different faults.
func offset(specs []fault.Spec, side int) []fault.Spec {
	for i := range specs {
		specs[i].Seed += uint64(side) * 0x9e3779b97f4a7c15
	}
	return specs
}
