package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"rnic/internal/control"
	"rnic/internal/perf"
	"rnic/internal/roce"
)

// CaptureCmd is rnic capture.
type CaptureCmd struct {
	nicOption
	Write    string        `short:"w" placeholder:"FILE" help:"Write pcapng to this file; - for standard output, as for wireshark -k -i -. Without: a line for each packet."`
	Ring     int           `placeholder:"N" help:"With -w: a ring of N files of --size each; the oldest is removed. It goes on behind the files of this name that are there."`
	Size     string        `placeholder:"SIZE" help:"Size of each file of the ring, as 64M (default 64M)."`
	Memory   string        `placeholder:"SIZE" help:"With -w: keep the last SIZE in memory only; written to FILE at the end, and to numbered files at each SIGUSR1."`
	QP       []string      `name:"qp" placeholder:"N" help:"Only this queue pair of the NIC, and what is sent to a queue pair of that number. Repeatable."`
	Peer     []string      `placeholder:"ADDRESS" help:"Only packets from and to this address, or network as 10.0.0.0/24. Repeatable."`
	Opcode   []string      `placeholder:"NAME" help:"Only these operations: a name, or part of it, as ack, write_first, ud_; or a number. Repeatable."`
	Count    uint64        `short:"c" placeholder:"N" help:"End after N packets."`
	Duration time.Duration `short:"D" placeholder:"TIME" help:"End after this time, as 10s."`
}

// Help is what kong prints below the options' short form.
func (*CaptureCmd) Help() string {
	return `Examples:
  rnic capture                                      a line for each packet of the NIC that runs
  rnic capture -w f.pcapng -D 10s                   a file for Wireshark and rnic explain
  rnic capture -w - | wireshark -k -i -             live
  rnic capture -w f.pcapng --ring 10 --size 100M    the last gigabyte, for a fault that comes once a week
  rnic capture --qp 0x11 --opcode ack --nic rxe1    only acknowledgements of one queue pair`
}

// Run captures until the NIC ends, the user interrupts, or enough has come.
func (c *CaptureCmd) Run(ctx context.Context) error {
	args, err := c.args()
	if err != nil {
		return fmt.Errorf("%w: %w", perf.ErrUsage, err)
	}
	sink, err := c.sink()
	if err != nil {
		return err
	}
	n, device, err := c.find()
	if err != nil {
		return err
	}
	args.Device = device
	if c.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Duration)
		defer cancel()
	}
	conn, err := control.Dial(ctx, n)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Call(ctx, opCapture, args, nil); err != nil {
		return err
	}
	if err := sink.open(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "Capturing on %s of process %d; Ctrl-C ends it.\n", device, n.PID)
	undo := context.AfterFunc(ctx, func() {
		_ = conn.CloseWrite()                               // what is under way still comes
		time.AfterFunc(captureEnd, func() { conn.Close() }) // unless the NIC's process is stopped
	})
	defer undo()
	t, err := c.copy(conn, sink)
	if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
		err = fmt.Errorf("process %d does not answer: what it had under way is missing from the capture", n.PID)
	}
	if e := sink.close(); err == nil {
		err = e
	}
	fmt.Fprintf(os.Stderr, "%d packets captured", t.packets)
	if t.missing > 0 {
		fmt.Fprintf(os.Stderr, ", %d left out, because this command did not read them in time", t.missing)
	}
	fmt.Fprintln(os.Stderr, ".")
	return err
}

// captureEnd is how long the end of a capture waits for what is under way.
const captureEnd = 5 * time.Second

// args are what the options choose.
func (c *CaptureCmd) args() (a captureArgs, err error) {
	for _, s := range c.QP {
		n, err := strconv.ParseUint(s, 0, 24)
		if err != nil {
			return a, fmt.Errorf("--qp %s: a number below 2^24 is needed, as 17 or 0x11", s)
		}
		a.QPNs = append(a.QPNs, uint32(n))
	}
	for _, s := range c.Peer {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			var addr netip.Addr
			if addr, err = netip.ParseAddr(s); err != nil {
				return a, fmt.Errorf("--peer %s: no address, and no network as 10.0.0.0/24", s)
			}
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		a.Peers = append(a.Peers, p)
	}
	for _, s := range c.Opcode {
		codes := opcodesNamed(s)
		if len(codes) == 0 {
			return a, fmt.Errorf("--opcode %s: no operation has that in its name; RC_SEND_ONLY, RC_ACKNOWLEDGE, UD_SEND_ONLY and CNP are examples", s)
		}
		a.Codes = append(a.Codes, codes...)
	}
	if len(a.QPNs) > maxChosen || len(a.Peers) > maxChosen || len(a.Codes) > maxChosen {
		return a, fmt.Errorf("--qp, --peer, --opcode: %d of each at most", maxChosen)
	}
	return a, nil
}

// opcodesNamed are the opcodes of a number, a name or a part of one.
func opcodesNamed(s string) (codes []uint16) {
	if n, err := strconv.ParseUint(s, 0, 8); err == nil {
		return []uint16{uint16(n)}
	}
	if op, ok := roce.ParseOpcode(s); ok {
		return []uint16{uint16(op)}
	}
	part := strings.ToUpper(strings.ReplaceAll(s, "-", "_"))
	for op := range 256 {
		if i := roce.Opcode(op).Info(); i != nil && part != "" && strings.Contains(i.Name, part) {
			codes = append(codes, uint16(op))
		}
	}
	return codes
}

// The blocks of pcapng that this command looks into.
const (
	blockPacket = 6
	blockStats  = 5
	blockHead   = 8 // type and length

	maxBlock = 1 << 20
)

// taken counts what has come.
type taken struct{ packets, missing uint64 }

// copy moves blocks from the NIC's process to the sink.
func (c *CaptureCmd) copy(conn *control.Conn, sink captureSink) (t taken, err error) {
	for {
		block, err := readBlock(conn)
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return t, fmt.Errorf("capture: from the NIC's process: %w", err)
		}
		kind := binary.LittleEndian.Uint32(block)
		if kind == blockStats {
			t.missing += missingIn(block)
		}
		if kind == blockPacket && c.Count > 0 && t.packets == c.Count {
			continue // what was under way
		}
		if err := sink.block(kind, block); err != nil {
			return t, err
		}
		if kind == blockPacket {
			if t.packets++; t.packets == c.Count {
				_ = conn.CloseWrite()
			}
		}
	}
}

// readBlock reads one block, which is little-endian. io.EOF: there is none.
func readBlock(r io.Reader) ([]byte, error) {
	var head [blockHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[4:])
	if n < blockHead+4 || n > maxBlock || n%4 != 0 {
		return nil, fmt.Errorf("a block of %d bytes", n)
	}
	block := make([]byte, n)
	copy(block, head[:])
	if _, err := io.ReadFull(r, block[blockHead:]); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return block, nil
}

// missingIn is the number of packets that a statistics block says were left out (isb_ifdrop).
func missingIn(block []byte) uint64 {
	const fixed, ifdrop = blockHead + 12, 5
	for opts := block[min(fixed, len(block)):]; len(opts) >= 4; {
		code, n := binary.LittleEndian.Uint16(opts), int(binary.LittleEndian.Uint16(opts[2:]))
		if code == ifdrop && n == 8 && len(opts) >= 12 {
			return binary.LittleEndian.Uint64(opts[4:])
		}
		n = 4 + (n+3)&^3
		if code == 0 || n > len(opts) {
			break
		}
		opts = opts[n:]
	}
	return 0
}
