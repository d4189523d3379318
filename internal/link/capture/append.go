package capture

import (
	"rnic/internal/link"
	"rnic/internal/roce"
)

// Record is one packet with what was decided about it.
type Record struct {
	Path    *roce.Path
	SrcPort uint16 // in the place of the path's, if not 0
	Data    []byte // BTH to pad
	ICRC    []byte // nil: the right one
	Sent    bool   // else received
	Comment string // shown by Wireshark; may be empty
}

// Interface describes one more interface and returns its number.
func (f *File) Interface(name string) uint32 { return f.addInterface(name) }

// Append writes a packet of an interface, with unix time nanos.
func (f *File) Append(iface uint32, nanos int64, r *Record) {
	n := len(r.Data)
	if n < link.MinPacketSize || n > roce.MaxPacketSize || !r.Path.Valid() {
		return
	}
	path := *r.Path
	if r.SrcPort != 0 {
		path.SrcPort = r.SrcPort
	}
	if path.TTL == 0 {
		path.TTL = usualTTL
	}
	direction := uint32(inbound)
	if r.Sent {
		direction = outbound
	}
	size := frameSize(&path, n)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.err != nil || !f.hasRoom(size+len(r.Comment)) {
		return
	}
	start := f.beginPacket(iface, nanos, size)
	f.buf = appendFrame(f.buf, &path, r.Data)
	if len(r.ICRC) == roce.ICRCSize {
		copy(f.buf[len(f.buf)-roce.ICRCSize:], r.ICRC)
	}
	f.endPacket(start, direction, r.Comment)
}
