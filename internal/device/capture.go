package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"rnic/internal/engine"
	"rnic/internal/link"
	"rnic/internal/link/capture"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// CaptureFilter chooses packets. What is empty chooses all.
type CaptureFilter struct {
	QPNs    []uint32       // queue pairs of this NIC; of what is sent, the destination's number counts too
	Peers   []netip.Prefix // the other side's address
	Opcodes []roce.Opcode
}

// Capture is a capture of a NIC that runs. It shows what the NIC sends and gets, with faults planted on the way
// outside of it, and says in comments what the NIC decided.
type Capture struct {
	taps      *taps
	file      *capture.File
	filter    CaptureFilter
	net, loop uint32
	close     bool // the file, with the device
	done      chan struct{}
}

// Done is closed when the device is, after its last packet.
func (c *Capture) Done() <-chan struct{} { return c.done }

// ErrManyCaptures: a NIC has so many captures at the same time.
var ErrManyCaptures = errors.New("the NIC has as many captures as it can have at the same time")

// maxCaptures bounds the captures of a NIC, each of which costs every packet something.
const maxCaptures = 8

// StartCapture records packets to the file until Stop, or until the device is closed.
func (d *Device) StartCapture(file *capture.File, filter CaptureFilter) (*Capture, error) {
	return d.taps.add(d.cfg.Name, file, filter, false)
}

// captureToFile starts the capture of the configuration.
func (d *Device) captureToFile() error {
	if d.cfg.Capture == "" {
		return nil
	}
	f, err := capture.Create(d.cfg.Capture)
	if err == nil {
		_, err = d.taps.add(d.cfg.Name, f, CaptureFilter{}, true)
	}
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// Stop ends the capture: nothing is recorded after it returns. The file is the caller's to close.
func (c *Capture) Stop() { c.taps.remove(c) }

// taps are the captures of a device. They see the packets of its units (engine.Tap).
type taps struct {
	list atomic.Pointer[[]*Capture] // nil: none

	mu     sync.Mutex
	engine *engine.Engine // nil: before the start, and after the end
	closed bool
}

func (t *taps) add(name string, file *capture.File, filter CaptureFilter, closeFile bool) (*Capture, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.captures()
	if len(list) >= maxCaptures {
		return nil, ErrManyCaptures
	}
	if t.closed {
		return nil, errClosed
	}
	c := &Capture{taps: t, file: file, filter: filter, close: closeFile, done: make(chan struct{})}
	c.net, c.loop = file.Interface(name+" net"), file.Interface(name+" loop")
	t.set(append(slices.Clip(list), c))
	return c, nil
}

func (t *taps) remove(c *Capture) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(slices.DeleteFunc(slices.Clone(t.captures()), func(o *Capture) bool { return o == c }))
}

func (t *taps) captures() []*Capture {
	if l := t.list.Load(); l != nil {
		return *l
	}
	return nil
}

// set changes the captures. When it returns, those that are gone are not called any more. The caller holds mu.
func (t *taps) set(list []*Capture) {
	if len(list) == 0 {
		t.list.Store(nil)
	} else {
		t.list.Store(&list)
	}
	t.connect()
}

func (t *taps) connect() {
	switch {
	case t.engine == nil:
	case t.list.Load() == nil:
		t.engine.SetTap(nil)
	default:
		t.engine.SetTap(t)
	}
}

// start lets the captures see the packets of the engine.
func (t *taps) start(e *engine.Engine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.engine = e
	if t.list.Load() != nil {
		t.connect()
	}
}

// close ends all captures. The engine is closed.
func (t *taps) close() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.engine, t.closed = nil, true
	for _, c := range t.captures() {
		close(c.done)
		if c.close {
			if e := c.file.Close(); e != nil {
				err = errors.Join(err, fmt.Errorf("capture: %w", e))
			}
		}
	}
	t.list.Store(nil)
	return err
}

// Sent implements engine.Tap.
func (t *taps) Sent(pkts []nic.TxPacket) {
	list, now := t.captures(), time.Now().UnixNano()
	for i := range pkts {
		p := &pkts[i]
		if p.Dead {
			continue
		}
		r := capture.Record{Path: p.Path, Data: p.Data[:len(p.Data)-roce.ICRCSize], Sent: true}
		for _, c := range list {
			if !c.filter.matches(p.QPN, true, r.Path, r.Data) {
				continue
			}
			r.Comment = sentComment(p.Note, r.Data)
			if p.Local {
				r.SrcPort = 0
				c.file.Append(c.loop, now, &r)
			}
			if !p.Local || p.Multicast {
				r.SrcPort = roce.Port // link/udp sends from its own port
				c.file.Append(c.net, now, &r)
			}
		}
	}
}

// Received implements engine.Tap.
func (t *taps) Received(pkts []nic.RxPacket) {
	list, now := t.captures(), time.Now().UnixNano()
	for i := range pkts {
		p := &pkts[i]
		r := capture.Record{Path: &p.Path, Data: p.Data, Comment: receivedComment(p.Note, p.Data)}
		for _, c := range list {
			if !c.filter.matches(0, false, r.Path, r.Data) {
				continue
			}
			if p.Local {
				c.file.Append(c.loop, now, &r)
			} else {
				c.file.Append(c.net, now, &r)
			}
		}
	}
}

// refused records what a link did not hand up.
func (p *port) refused(r *link.Refused) {
	n := len(r.Data) - roce.ICRCSize
	list := p.taps.captures()
	if len(list) == 0 || n < link.MinPacketSize {
		return
	}
	rec := capture.Record{Path: &r.Path, Data: r.Data[:n], ICRC: r.Data[n:], Comment: "dropped: malformed"}
	if r.BadICRC {
		rec.Comment = "dropped: bad ICRC"
	}
	for _, c := range list {
		if c.filter.matches(0, false, rec.Path, rec.Data) {
			c.file.Append(c.net, time.Now().UnixNano(), &rec)
		}
	}
}

// matches tells whether a packet is chosen. qpn is the queue pair that sends it.
func (f *CaptureFilter) matches(qpn uint32, sent bool, path *roce.Path, data []byte) bool {
	b := roce.BTH(data)
	if len(f.QPNs) > 0 && !slices.Contains(f.QPNs, b.DestQP()) && !(sent && slices.Contains(f.QPNs, qpn)) {
		return false
	}
	if len(f.Opcodes) > 0 && !slices.Contains(f.Opcodes, b.Opcode()) {
		return false
	}
	if len(f.Peers) == 0 {
		return true
	}
	peer := path.Src
	if sent {
		peer = path.Dst
	}
	return slices.ContainsFunc(f.Peers, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// receivedComment says what became of a packet. Nobody hears of what is refused where nothing is acknowledged.
func receivedComment(note nic.Note, data []byte) string {
	text := note.String()
	if why, ok := strings.CutPrefix(text, "refused: "); ok {
		if t := roce.Transport(roce.BTH(data).Opcode() >> 5); t == roce.TransportUC || t == roce.TransportUD {
			return "dropped: " + why
		}
	}
	return text
}

// sentComment says of a packet why it is sent again, or what a NAK means.
func sentComment(note nic.Note, data []byte) string {
	if note != nic.NoteNAK {
		return note.String()
	}
	var p roce.Packet
	if roce.Decode(data, &p) != nil || p.AETH() == nil {
		return ""
	}
	s := p.AETH().Syndrome()
	if s.Kind() == roce.SyndromeRNRNAK {
		return fmt.Sprintf("RNR NAK sent: no receive is posted, the peer waits %v", time.Duration(roce.RNRTimerNanos(s.Value())))
	}
	text := "NAK sent: " + s.String()
	if s == roce.NAKSequence {
		text += fmt.Sprintf(", PSN %d is missing", binary.BigEndian.Uint32(data[8:])&0xffffff)
	}
	return text
}
