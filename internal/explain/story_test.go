package explain

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"rnic/internal/roce"
)

// story makes a capture of packets between two hosts: 1, which asks queue pair 0x22 of host 2, and is queue pair 0x11.
type story struct {
	list  []Frame
	now   int64 // nanoseconds
	count bool  // the senders count their IPv4 identifications, as the kernel's; else they are 0
	ids   [3]uint16
}

func newStory(count bool) *story {
	return &story{now: 1e18, count: count, ids: [3]uint16{0, 1000, 65500}}
}

const microsecond = 1000

// frame is a packet from host 1 or 2. ident is what it was given when it was sent.
func (s *story) frame(from byte, op roce.Opcode, psn roce.PSN, payload int, ident uint16, set func(*roce.OpInfo, []byte)) {
	info := op.Info()
	pkt := make([]byte, info.HeaderLen+payload+roce.ICRCSize)
	qpn := uint32(0x22)
	if from == 2 {
		qpn = 0x11
	}
	roce.BTH(pkt).Encode(&roce.BTHFields{Opcode: op, PKey: 0xffff, DestQP: qpn, PSN: psn & roce.PSNMask, AckReq: info.Request && info.Ends()})
	if set != nil {
		set(info, pkt)
	}
	path := roce.Path{Src: netip.AddrFrom4([4]byte{10, 0, 0, from}), Dst: netip.AddrFrom4([4]byte{10, 0, 0, 3 - from}), SrcPort: 50000, TTL: 64}
	roce.PutICRC(&path, ident, pkt)
	b := append(make([]byte, 12), 8, 0)
	b = append(roce.AppendHeaders(b, &path, ident, len(pkt)-roce.ICRCSize), pkt...)
	s.now += 5 * microsecond
	s.list = append(s.list, Frame{Nanos: s.now, Data: b, Length: len(b)})
}

// id is the next identification of a host.
func (s *story) id(from byte) uint16 {
	if !s.count {
		return 0
	}
	s.ids[from]++
	return s.ids[from]
}

// write is one packet of a WRITE, of those of which every fourth ends a message.
func (s *story) write(psn roce.PSN) { s.writeID(psn, s.id(1)) }

func (s *story) writeID(psn roce.PSN, ident uint16) {
	op := []roce.Opcode{roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteMiddle, roce.RCWriteLast}[psn%4]
	s.frame(1, op, psn, 256, ident, func(i *roce.OpInfo, b []byte) {
		binary.BigEndian.PutUint32(b[i.HeaderLen:], uint32(psn)*2654435761) // contents differ
		if i.HasRETH {
			i.RETH(b).Encode(&roce.RETHFields{VA: 4096, RKey: 7, Length: 1024})
		}
	})
}

func (s *story) writes(from, to roce.PSN) {
	for psn := from; psn < to; psn++ {
		s.write(psn)
	}
}

// answer is an ACK or NAK of host 2.
func (s *story) answer(psn roce.PSN, syndrome roce.Syndrome) {
	s.frame(2, roce.RCAck, psn, 0, s.id(2), func(i *roce.OpInfo, b []byte) { i.AETH(b).Encode(&roce.AETHFields{Syndrome: syndrome}) })
}

func (s *story) ack(psn roce.PSN) { s.answer(psn, 0) }
func (s *story) nak(psn roce.PSN) { s.answer(psn, roce.NAKSequence) }

// only drops what comes from the other host.
func (s *story) only(from byte) *story {
	s.list = slices.DeleteFunc(s.list, func(f Frame) bool { return f.Data[14+15] != from })
	return s
}

func (s *story) explain(t *testing.T) *Report {
	t.Helper()
	return explainBytes(t, pcap(binary.LittleEndian, true, LinkEthernet, s.list))
}

// says checks that a report has a finding with these words, and no other that is not mere information.
func says(t *testing.T, r *Report, code string, severity Severity, words ...string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Code != code && f.Severity != Info {
			t.Errorf("a false finding:\n%s", text(r))
			return
		}
	}
	if code == "" {
		return
	}
	f := find(r, code)
	if f == nil || f.Severity != severity {
		t.Errorf("no %s, %s:\n%s", code, severity, text(r))
		return
	}
	for _, w := range words {
		if !strings.Contains(f.Text, w) {
			t.Errorf("%s does not say %q:\n%s", code, w, f.Text)
		}
	}
}

func both(t *testing.T, f func(t *testing.T, s *story)) {
	t.Run("identifications count", func(t *testing.T) { f(t, newStory(true)) })
	t.Run("identifications are 0", func(t *testing.T) { f(t, newStory(false)) })
}

// Packets that were overtaken are not lost, though the responder asks for them and all is sent again: their NAK may be seen behind them, or before.
func TestOvertakenIsNotLost(t *testing.T) {
	late := func(t *testing.T, s *story, nakFirst bool) {
		s.writes(100, 108)
		s.ack(107)
		id := s.id(1) // that of 108, which was sent first
		s.writes(109, 111)
		if nakFirst {
			s.nak(108)
		}
		s.writeID(108, id)
		if !nakFirst {
			s.nak(108)
		}
		s.write(111)
		s.now += 30 * microsecond
		s.writes(108, 116)
		s.ack(115)
		says(t, s.explain(t), CodeReordered, Warning, "1 packet overtaken", "PSN 108 came in packet", "NAK")
	}
	both(t, func(t *testing.T, s *story) { late(t, s, false) })
	both(t, func(t *testing.T, s *story) { late(t, s, true) })
	// Without a consequence: nobody asked for it.
	both(t, func(t *testing.T, s *story) {
		s.writes(100, 108)
		id := s.id(1)
		s.write(109)
		s.writeID(108, id)
		s.writes(110, 120)
		s.ack(119)
		says(t, s.explain(t), CodeReordered, Info, "PSN 108")
	})
}

// What was overtaken within what was sent again is no new reason to send again.
func TestOvertakenAmongWhatIsSentAgain(t *testing.T) {
	both(t, func(t *testing.T, s *story) {
		s.writes(100, 108)
		s.ack(107)
		s.id(1) // 108 is lost
		s.writes(109, 120)
		s.nak(108)
		s.now += 30 * microsecond
		s.writes(108, 112)
		id := s.id(1)
		s.writes(113, 115)
		s.writeID(112, id)
		s.writes(115, 120)
		s.ack(119)
		r := s.explain(t)
		if f := find(r, CodeLost); f == nil || !strings.Contains(f.Text, "PSN 108 (not in this capture") || f.Count != 1 {
			t.Errorf("%s", text(r))
		}
		if find(r, CodeNoAck) != nil || find(r, CodeAckLost) != nil {
			t.Errorf("%s", text(r))
		}
	})
}

// A packet that is lost, asked for and sent again was not overtaken.
func TestLostIsNotOvertaken(t *testing.T) {
	for _, here := range []bool{false, true} { // lost behind the point of capture, or before
		both(t, func(t *testing.T, s *story) {
			s.writes(100, 108)
			s.ack(107)
			if here {
				s.write(108)
			} else {
				s.id(1)
			}
			s.writes(109, 116)
			s.nak(108)
			s.now += 30 * microsecond
			s.writes(108, 120)
			s.ack(119)
			r := s.explain(t)
			if f := find(r, CodeLost); f == nil || find(r, CodeReordered) != nil || find(r, CodeCopies) != nil || find(r, CodeNoAck) != nil {
				t.Errorf("lost behind this point: %v\n%s", here, text(r))
			}
		})
	}
}

// An acknowledgement between the NAK and what is sent again shows, at the sender too, that the packet was only late.
func TestAcknowledgedBeforeItIsSentAgain(t *testing.T) {
	both(t, func(t *testing.T, s *story) {
		s.writes(100, 116)
		s.nak(108)
		s.ack(108)
		s.writes(109, 120)
		s.ack(119)
		says(t, s.explain(t), CodeReordered, Warning, "PSN 108 was asked for")
	})
}

// Copies, of the network or of a capture at several places, are not sent again.
func TestCopiesAreNotSentAgain(t *testing.T) {
	both(t, func(t *testing.T, s *story) {
		for psn := roce.PSN(100); psn < 140; psn++ {
			s.write(psn)
			if psn%7 == 0 {
				s.list = append(s.list, s.list[len(s.list)-1]) // at once
			}
			if psn%11 == 0 { // behind others
				s.list = append(s.list, s.list[len(s.list)-4])
				s.list[len(s.list)-1].Nanos = s.now + 1
			}
			if psn%4 == 3 {
				s.ack(psn)
			}
		}
		r := s.explain(t)
		says(t, r, CodeCopies, Info, "the network has made copies", "PSN 105")
		if r.Connections[0].Resent != 0 || !r.OK() {
			t.Errorf("%s", text(r))
		}
	})
	// Two captures of one kind in one file, as by mergecap: each packet twice, a while apart.
	both(t, func(t *testing.T, s *story) {
		s.writes(100, 120)
		s.ack(119)
		s.writes(120, 140)
		s.ack(139)
		var list []Frame
		for i, f := range s.list {
			list = append(list, f)
			if i >= 3 {
				g := s.list[i-3]
				g.Data = slices.Clone(g.Data)
				g.Data[14+8]--    // a router's work: lifetime
				g.Data[14+1] |= 3 // and mark
				list = append(list, g)
			}
		}
		s.list = list
		says(t, s.explain(t), CodeCopies, Info, "at several places")
	})
	// Where identifications count, a copy is one however late it is.
	s := newStory(true)
	s.writes(100, 108)
	s.ack(107)
	f := s.list[5]
	f.Nanos = s.now + 50e6
	s.list = append(s.list, f)
	says(t, s.explain(t), CodeCopies, Info, "PSN 105")
}

// The same bytes after a timer's time were sent again.
func TestSentAgainIsNoCopy(t *testing.T) {
	both(t, func(t *testing.T, s *story) {
		s.writes(100, 108)
		for range 3 {
			s.now += 4e6
			s.write(107)
		}
		s.ack(107)
		says(t, s.explain(t), CodeNoAck, Warning, "PSN 107 was sent again 3 times")
	})
}

// What leaves one interface and enters others, by a bridge, is one packet; and it goes on when the first interface falls silent.
func TestOtherPlaces(t *testing.T) {
	s := newStory(false)
	s.writes(100, 140)
	s.ack(139)
	var list []Frame
	for i, f := range s.list {
		for place := range 3 {
			if place == 0 && i > 12 {
				continue // the path has failed: others carry it
			}
			head := append(binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, uint32(place+1)), make([]byte, 12)...)
			if place == 2 {
				head[10] = 4 // outgoing
			}
			g := f
			g.Data = append(head, f.Data[14:]...)
			g.Length = len(g.Data)
			list = append(list, g)
		}
	}
	r := explainBytes(t, pcap(binary.LittleEndian, true, LinkSLL2, list))
	says(t, r, "", "")
	if r.Connections[0].Packets < 30 || r.Connections[0].Resent != 0 {
		t.Errorf("%s", text(r))
	}
}

// Captures of both sides in one file, of which the other's comes in long bursts behind, are the traffic of one.
func TestBothSidesMerged(t *testing.T) {
	both(t, func(t *testing.T, s *story) {
		for round := range roce.PSN(6) {
			s.writes(100+600*round, 700+600*round)
			s.ack(699 + 600*round)
		}
		var list []Frame
		place := func(f Frame, n byte) {
			g := f
			g.Data = append(append([]byte{8, 0, 0, 0, 0, 0, 0, n}, make([]byte, 12)...), f.Data[14:]...)
			g.Length = len(g.Data)
			list = append(list, g)
		}
		for at := 0; at < len(s.list); at += 601 { // as one side sent them, then as the other got them
			for side := byte(1); side <= 2; side++ {
				for _, f := range s.list[at : at+601] {
					place(f, side)
				}
			}
		}
		r := explainBytes(t, pcap(binary.LittleEndian, true, LinkSLL2, list))
		says(t, r, "", "")
		if len(r.Findings) != 0 || r.Connections[0].Packets != 3600 {
			t.Errorf("%s", text(r))
		}
	})
}

// Another connection with the queue pair number of one before is no gap and nothing that was sent again, in either direction of the jump.
func TestQueuePairNumberUsedAgain(t *testing.T) {
	for _, next := range []roce.PSN{100 + 1<<21, 100 + 3<<22, roce.PSN(80).Add(-beforeFirst)} {
		both(t, func(t *testing.T, s *story) {
			s.writes(100, 120)
			s.ack(119)
			s.write(120) // and that was all: the process was killed
			s.now += 2e9
			begin := next&^3&roce.PSNMask + 4
			s.writes(begin, begin+8)
			s.ack(begin + 7)
			r := s.explain(t)
			if f := find(r, CodeReused); f == nil || len(r.Connections) != 4 {
				t.Errorf("%s", text(r))
			}
			for _, code := range []string{CodeNotCaptured, CodeAckLost, CodeReordered} {
				if find(r, code) != nil {
					t.Errorf("%s", text(r))
				}
			}
		})
	}
	// The connection manager's messages say so too: the same run twice is not the first one sent again.
	list := frames(t, readFile(t, kernels+"rping.pcap"))
	want := explainBytes(t, pcap(binary.LittleEndian, true, LinkEthernet, list))
	for _, f := range slices.Clone(list) {
		f.Nanos += 20e9
		list = append(list, f)
	}
	r := explainBytes(t, pcap(binary.LittleEndian, true, LinkEthernet, list))
	for _, f := range r.Findings {
		if f.Severity != Info && f.Code != CodeRejected {
			t.Errorf("%s: %s", f.Code, f.Text)
		}
	}
	n := 0
	for _, c := range r.Connections {
		n += c.Resent
	}
	if n != 0 || len(r.Connections) <= len(want.Connections) {
		t.Errorf("%d sent again, %d connections", n, len(r.Connections))
	}
}

// A capture with one direction says so, and does not take every acknowledgement for lost.
func TestOneDirectionWithLosses(t *testing.T) {
	lossy := func(s *story) *story {
		for round := range roce.PSN(5) {
			at := 100 + 20*round
			s.writes(at, at+8)
			s.id(1)
			s.writes(at+9, at+12)
			s.nak(at + 8)
			s.now += 40 * microsecond
			s.writes(at+8, at+20)
			s.ack(at + 19)
		}
		return s
	}
	both(t, func(t *testing.T, s *story) {
		r := lossy(s).only(1).explain(t)
		if f := find(r, CodeOneDirection); f == nil || f.Severity != Warning || !strings.Contains(f.Text, "one direction is missing") || !strings.Contains(f.Text, "5 times") {
			t.Errorf("%s", text(r))
		}
		for _, code := range []string{CodeNoAnswer, CodeNoAck, CodeAckLost, CodeRetries, CodeReordered} {
			if find(r, code) != nil {
				t.Errorf("%s", text(r))
			}
		}
	})
	both(t, func(t *testing.T, s *story) {
		r := lossy(s).only(2).explain(t)
		if f := find(r, CodeLost); f == nil || !strings.Contains(f.Text, "PSN 108") || !strings.Contains(f.Text, "not in this capture") {
			t.Errorf("%s", text(r))
		}
		if find(r, CodeOneDirection) == nil {
			t.Errorf("%s", text(r))
		}
	})
	// Nothing answers, and that is the end: then it may be so.
	s := newStory(false)
	for range 8 {
		s.write(100)
		s.now += 4e6
	}
	says(t, s.explain(t), CodeNoAnswer, Failure, "PSN 100 was sent 8 times")
}

// A requester that falls silent in the middle of a message, or a request that nobody answers and nobody sends again: the side that receives never learns.
func TestSilence(t *testing.T) {
	both(t, func(t *testing.T, s *story) {
		s.writes(100, 110) // 110 would go on
		s.ack(107)
		s.now += 5e9
		s.frame(2, roce.UDSendOnly, 7, 8, s.id(2), nil) // others go on
		says(t, s.explain(t), CodeSilent, Warning, "PSN 109", "in the middle of a message", "5s")
	})
	both(t, func(t *testing.T, s *story) {
		s.writes(100, 112)
		s.ack(107)
		s.now += 5e9
		s.frame(2, roce.UDSendOnly, 7, 8, s.id(2), nil)
		says(t, s.explain(t), CodeNoAck, Warning, "PSN 111", "not sent again")
	})
	both(t, func(t *testing.T, s *story) { // all is well
		s.writes(100, 112)
		s.ack(111)
		s.now += 5e9
		s.frame(2, roce.UDSendOnly, 7, 8, s.id(2), nil)
		says(t, s.explain(t), "", "")
	})
}

// Responses of a READ in another order were not lost, unless they were asked for again.
func TestReadResponsesOvertaken(t *testing.T) {
	read := func(s *story, psn roce.PSN) {
		s.frame(1, roce.RCReadRequest, psn, 0, s.id(1), func(i *roce.OpInfo, b []byte) {
			i.RETH(b).Encode(&roce.RETHFields{VA: 4096, RKey: 7, Length: 8 * 256})
		})
	}
	respond := func(s *story, first, psn, last roce.PSN) {
		op := roce.RCReadResponseMiddle
		if psn == first {
			op = roce.RCReadResponseFirst
		} else if psn == last {
			op = roce.RCReadResponseLast
		}
		s.frame(2, op, psn, 256, s.id(2), nil)
	}
	both(t, func(t *testing.T, s *story) {
		read(s, 100)
		for _, psn := range []roce.PSN{100, 101, 103, 102, 104, 105, 107} {
			respond(s, 100, psn, 107)
		}
		read(s, 108)
		for _, psn := range []roce.PSN{108, 106, 109, 110, 111, 112, 113, 114, 115} {
			respond(s, 108, psn, 115)
		}
		says(t, s.explain(t), CodeReordered, Warning, "PSN 102, 106")
	})
	both(t, func(t *testing.T, s *story) {
		read(s, 100)
		for _, psn := range []roce.PSN{100, 101, 103, 104, 105, 106, 107} {
			respond(s, 100, psn, 107)
		}
		read(s, 102)
		for psn := roce.PSN(102); psn < 108; psn++ {
			respond(s, 102, psn, 107)
		}
		says(t, s.explain(t), CodeReadLost, Warning, "PSN 102")
	})
}

// Frames of several packets that the system had not cut are cut, also of READ requests, whose PSNs do not follow each other.
func TestSegmentsOfRequests(t *testing.T) {
	s := newStory(false)
	for i := range roce.PSN(3) {
		s.frame(1, roce.RCReadRequest, 100+8*i, 0, uint16(i), func(i *roce.OpInfo, b []byte) { i.RETH(b).Encode(&roce.RETHFields{VA: 4096, RKey: 7, Length: 8 * 256}) })
	}
	const head = 14 + roce.IPv4HeaderSize + roce.UDPHeaderSize
	f := s.list[0]
	for _, g := range s.list[1:] {
		f.Data = append(f.Data, g.Data[head:]...)
	}
	f.Length = len(f.Data)
	binary.BigEndian.PutUint16(f.Data[16:], uint16(f.Length-14))
	s.list = []Frame{f}
	r := s.explain(t)
	if r.RoCE != 3 || find(r, CodeSegments) == nil || !r.OK() {
		t.Errorf("%s", text(r))
	}
}

// What was lost again when all was sent again was lost where that was not seen, though it was seen before.
func TestLostAgain(t *testing.T) {
	both(t, func(t *testing.T, s *story) {
		s.writes(100, 108)
		s.ack(107)
		s.id(1) // 108 is lost
		s.writes(109, 116)
		s.nak(108)
		s.now += 30 * microsecond
		s.writes(108, 115)
		s.id(1) // and 115, which had come before
		s.writes(116, 120)
		s.nak(115)
		s.now += 30 * microsecond
		s.writes(115, 120)
		s.ack(119)
		f := find(s.explain(t), CodeLost)
		if f == nil || f.Count != 2 || !strings.Contains(f.Text, "PSN 115 (missing among what was sent again, so it was lost before this point)") {
			t.Errorf("%+v", f)
		}
		s.id(1)
		s.writes(121, 124)
		s.nak(120)
		if f := find(s.explain(t), CodeLost); f == nil || !strings.Contains(f.Text, "PSN 120 (not in this capture, so it was lost before this point)") {
			t.Errorf("%+v", f)
		}
	})
}

// What nobody asks for, and nobody sends again, the capture has left out.
func TestLeftOut(t *testing.T) {
	both(t, func(t *testing.T, s *story) {
		s.writes(100, 200)
		s.list = slices.Delete(s.list, 30, 60)
		s.ack(199)
		r := s.explain(t)
		if f := find(r, CodeNotCaptured); f == nil || !r.OK() || !strings.Contains(f.Text, "30 packets") {
			t.Errorf("%s", text(r))
		}
	})
}
