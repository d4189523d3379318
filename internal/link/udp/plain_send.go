package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"rnic/internal/link"
	"rnic/internal/roce"
)

// writeTime is how long a write may wait for room in the socket, at least half of it: a Link does not block, but net.UDPConn has
// no other way to say that it would.
const writeTime = 20 * time.Millisecond

// Send implements link.Link.
func (l *Plain) Send(pkts []link.Packet) (int, error) {
	if err := l.usable("send"); err != nil {
		return 0, err
	}
	now := time.Since(plainEpoch)
	for i := range pkts {
		p := &pkts[i]
		s := l.socketFor(p)
		if s == nil {
			l.counters.sendErrors.Add(1)
			continue
		}
		s.allow(now)
		err := l.write(s, p)
		switch {
		case err == nil:
			l.counters.sent.Add(1)
			l.counters.sentBytes.Add(uint64(len(p.Data)))
		case errors.Is(err, os.ErrDeadlineExceeded):
			return i, nil
		case errors.Is(err, net.ErrClosed):
			return i, l.fail("send", err)
		default:
			l.counters.sendErrors.Add(1)
		}
	}
	return len(pkts), nil
}

// write sends one packet. The identification of its ICRC is 0: see Plain.
func (l *Plain) write(s *plainSocket, p *link.Packet) error {
	path := p.Path
	path.SrcPort = l.shared.port
	roce.PutICRC(&path, 0, p.Data)
	if p.Corrupt != 0 {
		invert(p)
		defer invert(p)
	}
	_, err := s.conn.WriteToUDPAddrPort(p.Data, netip.AddrPortFrom(path.Dst, roce.Port))
	return err
}

// socketFor returns the socket for p, nil if it cannot be sent.
func (l *Plain) socketFor(p *link.Packet) *plainSocket {
	if len(p.Data) < minPacket || len(p.Data) > roce.MaxPacketSize || !p.Path.Valid() {
		return nil
	}
	for _, s := range l.shared.sockets {
		if s.addr == p.Path.Src {
			return s
		}
	}
	return nil
}

// allow moves the deadline on when it comes near. The links of a group may do so at once: it only moves on.
func (s *plainSocket) allow(now time.Duration) {
	if at := time.Duration(s.deadline.Load()); at-now < writeTime/2 {
		s.deadline.Store(int64(now + writeTime))
		_ = s.conn.SetWriteDeadline(plainEpoch.Add(now + writeTime))
	}
}
