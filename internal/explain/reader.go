package explain

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// ErrFormat: the file is no capture, or broken.
var ErrFormat = errors.New("no pcap or pcapng capture")

// LinkType is what a frame begins with (the registry of tcpdump.org).
type LinkType uint32

// The link types that are understood.
const (
	LinkNull     LinkType = 0 // BSD loopback
	LinkEthernet LinkType = 1
	linkRaw12    LinkType = 12  // raw IP, as some systems number it
	linkRaw14    LinkType = 14  // likewise
	LinkRaw      LinkType = 101 // raw IP
	LinkLoop     LinkType = 108 // OpenBSD loopback
	LinkSLL      LinkType = 113 // Linux cooked
	LinkIPv4     LinkType = 228
	LinkIPv6     LinkType = 229
	LinkSLL2     LinkType = 276 // Linux cooked, version 2
)

// Direction is which way a frame went, at the interface that captured it.
type Direction uint8

// The directions.
const (
	Unknown Direction = iota
	In
	Out
)

// Frame is one packet of a capture.
type Frame struct {
	Number    int   // from 1, as Wireshark counts
	Nanos     int64 // since 1970
	Link      LinkType
	Interface int // from 0
	Direction Direction
	Data      []byte // valid until the next call of Next
	Length    int    // on the wire: Data may be cut
	Comment   string // pcapng
}

const (
	maxFrame      = 256 << 10 // bytes of a frame that is looked at
	maxBlock      = 16 << 20  // of a pcapng block
	maxInterfaces = 1024
	maxComment    = 4096
)

// Reader reads the frames of a capture: pcap with microseconds or nanoseconds, pcapng, each in either byte order.
type Reader struct {
	r     io.Reader
	order binary.ByteOrder
	n     int
	buf   []byte

	ng    bool
	nanos bool     // pcap
	link  LinkType // pcap
	ifs   []iface  // pcapng: of the section
}

type iface struct {
	link   LinkType
	perSec uint64 // units of its time stamps
	offset int64  // seconds
	base   int    // of the numbers of this section's interfaces
}

const (
	magicMicro = 0xa1b2c3d4
	magicNano  = 0xa1b23c4d
	magicNG    = 0x0a0d0d0a
	magicOrder = 0x1a2b3c4d
)

// NewReader reads the head of a capture.
func NewReader(r io.Reader) (*Reader, error) {
	rd := &Reader{r: r}
	var b [4]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, fmt.Errorf("%w: the file has less than four bytes", ErrFormat)
	}
	switch le, bg := binary.LittleEndian.Uint32(b[:]), binary.BigEndian.Uint32(b[:]); {
	case le == magicNG:
		rd.ng = true
		return rd, rd.section()
	case le == magicMicro || le == magicNano:
		rd.order, rd.nanos = binary.LittleEndian, le == magicNano
	case bg == magicMicro || bg == magicNano:
		rd.order, rd.nanos = binary.BigEndian, bg == magicNano
	case b[0] == 0x1f && b[1] == 0x8b:
		return nil, fmt.Errorf("%w: it is compressed: gunzip it first", ErrFormat)
	default:
		return nil, fmt.Errorf("%w: it begins with %x", ErrFormat, b)
	}
	var head [20]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("%w: the header is cut", ErrFormat)
	}
	rd.link = LinkType(rd.order.Uint32(head[16:]) & 0x0fffffff) // above: FCS length
	return rd, nil
}

// Next is the next frame; io.EOF: there is none. A file that ends within a frame, as one whose writer was killed,
// ends before it.
func (r *Reader) Next() (Frame, error) {
	if r.ng {
		return r.nextNG()
	}
	var h [16]byte
	if _, err := io.ReadFull(r.r, h[:]); err != nil {
		return Frame{}, io.EOF
	}
	sec, sub, n, wire := r.order.Uint32(h[:]), r.order.Uint32(h[4:]), r.order.Uint32(h[8:]), r.order.Uint32(h[12:])
	if n > maxBlock {
		return Frame{}, fmt.Errorf("%w: frame %d would have %d bytes", ErrFormat, r.n+1, n)
	}
	if err := r.read(int(n)); err != nil {
		return Frame{}, io.EOF
	}
	r.n++
	if !r.nanos {
		sub = min(sub, 999_999) * 1000
	}
	return Frame{Number: r.n, Nanos: int64(sec)*1e9 + int64(min(sub, 999_999_999)), Link: r.link, Data: r.buf[:min(len(r.buf), maxFrame)], Length: int(min(wire, maxBlock))}, nil
}

// read reads n bytes into buf, which grows with what really comes.
func (r *Reader) read(n int) error {
	r.buf = r.buf[:0]
	for len(r.buf) < n {
		part := min(n-len(r.buf), 64<<10)
		at := len(r.buf)
		if cap(r.buf)-at < part {
			r.buf = append(r.buf, make([]byte, part)...)
		} else {
			r.buf = r.buf[:at+part]
		}
		if _, err := io.ReadFull(r.r, r.buf[at:]); err != nil {
			return err
		}
	}
	return nil
}

// The blocks of draft-ietf-opsawg-pcapng.
const (
	blockInterface = 1
	blockOldPacket = 2
	blockSimple    = 3
	blockPacket    = 6

	optEnd     = 0
	optComment = 1
	optFlags   = 2  // of a packet
	optUnits   = 9  // if_tsresol
	optOffset  = 14 // if_tsoffset
)

// section reads a section header behind its type.
func (r *Reader) section() error {
	var b [8]byte
	if _, err := io.ReadFull(r.r, b[:]); err != nil {
		return fmt.Errorf("%w: the section header is cut", ErrFormat)
	}
	switch {
	case binary.LittleEndian.Uint32(b[4:]) == magicOrder:
		r.order = binary.LittleEndian
	case binary.BigEndian.Uint32(b[4:]) == magicOrder:
		r.order = binary.BigEndian
	default:
		return fmt.Errorf("%w: a section of unknown byte order", ErrFormat)
	}
	n := r.order.Uint32(b[:])
	if n < 28 || n > maxBlock || n%4 != 0 {
		return fmt.Errorf("%w: a section header of %d bytes", ErrFormat, n)
	}
	if err := r.read(int(n) - 12); err != nil {
		return fmt.Errorf("%w: the section header is cut", ErrFormat)
	}
	base := r.base() + len(r.ifs)
	r.ifs = append(r.ifs[:0], iface{base: min(base, 1<<20)})[:0]
	return nil
}

func (r *Reader) nextNG() (Frame, error) {
	for {
		var h [8]byte
		if _, err := io.ReadFull(r.r, h[:4]); err != nil {
			return Frame{}, io.EOF
		}
		kind := r.order.Uint32(h[:])
		if kind == magicNG {
			if err := r.section(); err != nil {
				return Frame{}, err
			}
			continue
		}
		if _, err := io.ReadFull(r.r, h[4:]); err != nil {
			return Frame{}, io.EOF
		}
		n := r.order.Uint32(h[4:])
		if n < 12 || n > maxBlock || n%4 != 0 {
			return Frame{}, fmt.Errorf("%w: a block of %d bytes behind frame %d", ErrFormat, n, r.n)
		}
		if err := r.read(int(n) - 8); err != nil {
			return Frame{}, io.EOF
		}
		body := r.buf[:len(r.buf)-4]
		switch kind {
		case blockInterface:
			r.addInterface(body)
		case blockPacket, blockOldPacket, blockSimple:
			r.n++
			if f, ok := r.packet(kind, body); ok {
				return f, nil
			}
		}
	}
}

func (r *Reader) addInterface(b []byte) {
	if len(b) < 8 || len(r.ifs) >= maxInterfaces {
		return
	}
	i := iface{link: LinkType(r.order.Uint16(b)), perSec: 1e6, base: r.base()}
	r.options(b[8:], func(code uint16, v []byte) {
		switch {
		case code == optUnits && len(v) == 1:
			i.perSec = unitsPerSecond(v[0])
		case code == optOffset && len(v) == 8:
			i.offset = int64(r.order.Uint64(v))
		}
	})
	r.ifs = append(r.ifs, i)
}

func (r *Reader) base() int {
	if cap(r.ifs) > 0 {
		return r.ifs[:1][0].base
	}
	return 0
}

// unitsPerSecond is what if_tsresol says.
func unitsPerSecond(v byte) uint64 {
	if v&0x80 != 0 {
		return 1 << min(v&0x7f, 63)
	}
	n := uint64(1)
	for range min(v, 18) {
		n *= 10
	}
	return n
}

// options calls f for each.
func (r *Reader) options(b []byte, f func(code uint16, v []byte)) {
	for len(b) >= 4 {
		code, n := r.order.Uint16(b), int(r.order.Uint16(b[2:]))
		if code == optEnd || n > len(b)-4 {
			return
		}
		f(code, b[4:4+n])
		b = b[min(len(b), 4+(n+3)&^3):]
	}
}

// packet is what a packet block holds. False: nothing that can be used.
func (r *Reader) packet(kind uint32, b []byte) (f Frame, ok bool) {
	at, n, number := 20, uint32(0), uint32(0)
	var stamp uint64
	switch {
	case kind == blockSimple && len(b) >= 4:
		f.Length = int(min(r.order.Uint32(b), maxBlock))
		at, n = 4, uint32(min(f.Length, len(b)-4))
	case kind != blockSimple && len(b) >= at:
		number = r.order.Uint32(b)
		if kind == blockOldPacket {
			number = uint32(r.order.Uint16(b))
		}
		stamp = uint64(r.order.Uint32(b[4:]))<<32 | uint64(r.order.Uint32(b[8:]))
		n, f.Length = r.order.Uint32(b[12:]), int(min(r.order.Uint32(b[16:]), maxBlock))
	default:
		return f, false
	}
	if uint64(n) > uint64(len(b)-at) || uint64(number) >= uint64(len(r.ifs)) {
		return f, false
	}
	i := &r.ifs[number]
	f.Number, f.Link, f.Interface = r.n, i.link, i.base+int(number)
	f.Nanos = nanosOf(stamp, i.perSec) + min(max(i.offset, -1<<32), 1<<32)*1e9
	f.Data = b[at : at+int(n)]
	if len(f.Data) > maxFrame {
		f.Data = f.Data[:maxFrame]
	}
	if kind == blockPacket {
		r.options(b[min(len(b), at+(int(n)+3)&^3):], func(code uint16, v []byte) {
			switch {
			case code == optComment && len(f.Comment) < maxComment:
				if f.Comment != "" {
					f.Comment += "; "
				}
				f.Comment += printable(v[:min(len(v), maxComment)])
			case code == optFlags && len(v) == 4:
				f.Direction = Direction(r.order.Uint32(v) & 3 % 3)
			}
		})
	}
	return f, true
}

// nanosOf converts units without overflow.
func nanosOf(stamp, perSec uint64) int64 {
	sec, rest := stamp/perSec, stamp%perSec
	hi, lo := bits.Mul64(rest, 1e9)
	sub, _ := bits.Div64(hi, lo, perSec) // rest < perSec, so the quotient is less than 1e9
	return int64(min(sec, 1<<33))*1e9 + int64(sub)
}

// printable makes text of a file fit for a terminal.
func printable(b []byte) string {
	out := make([]byte, 0, len(b))
	for _, c := range b {
		if c < ' ' || c > '~' {
			c = '?'
		}
		out = append(out, c)
	}
	return string(out)
}
