package nic

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"rnic/internal/ring"
)

// tamperer is a program that writes into its queues at the worst moment: just before the NIC reads an index or an element.
type tamperer struct {
	w *coreWorld
	s *script
}

// on has the script say what changes at each read of q. When it is at its end nothing does any more.
func (t *tamperer) on(q *ring.Queue, h *coreHost) {
	if q == nil {
		return
	}
	q.OnRead(func() { t.tamper(q, h) })
}

func (t *tamperer) tamper(q *ring.Queue, h *coreHost) {
	s, b := t.s, q.Bytes()
	if s.done() {
		return
	}
	how := s.byte()
	slot := int(q.Next(q.Position()+uint32(how>>6)-1)) * q.ElemSize()
	e := b[ring.HeaderSize+slot:][:q.ElemSize()]
	switch how & 15 {
	case 0:
		binary.LittleEndian.PutUint32(b[128:], s.long()) // the producer's index
	case 1:
		binary.LittleEndian.PutUint32(b[256:], s.long()) // the consumer's
	case 2:
		b[128] += byte(s.byte() & 7)
	case 3:
		b[256] += byte(s.byte() & 7)
	case 4:
		e[s.byte()%len(e)] ^= byte(s.byte())
	case 5: // a place where a count, a length or an opcode is
		at := [...]int{12, 16, 20, 28, 32, 184, 188, 196, 200}[s.byte()%9]
		if at+4 <= len(e) {
			binary.LittleEndian.PutUint32(e[at:], s.long())
		}
	case 6: // a piece of memory: of send and of receive requests
		at := 208
		if len(e) < 208+16 {
			at = 40
		}
		if at+16 <= len(e) {
			binary.LittleEndian.PutUint64(e[at:], s.anyAddr(8))
			binary.LittleEndian.PutUint32(e[at+8:], s.long()>>(s.byte()&31))
			binary.LittleEndian.PutUint32(e[at+12:], h.foreign.LKey()^uint32(how>>4&1)*(h.foreign.LKey()^h.mr.LKey()))
		}
	case 7:
		for i := range b[:64] { // the header: nobody on this side reads it
			b[i] ^= byte(how)
		}
	}
}

// honest lets the first connection, whose queues nobody touches, transfer between regions of its own, and looks at every byte.
func (w *coreWorld) honest(keys [2]*MR, round int) {
	a, b := w.ends[0], w.ends[1]
	src, dst := w.hosts[0].mem.Mem[coreHonest:coreHonestEnd], w.hosts[1].before[coreHonest:coreHonestEnd]
	for i := range src {
		src[i] = byte(i*round + i>>8 + round)
	}
	copy(w.hosts[0].before[coreHonest:], src)
	at := uint64(memBase + coreHonest)
	s := &ring.SendWQE{WRID: 1 << 40, Opcode: ring.OpWrite, Flags: ring.SendSignaled, RemoteAddr: at, RKey: keys[1].RKey(), NumSGE: 1}
	s.SGE[0] = ring.SGE{Addr: at, Length: coreHonestEnd - coreHonest, LKey: keys[0].LKey()}
	a.post(s)
	w.run(5e9)
	var c ring.CQE
	if a.scv.Pending() != 1 {
		w.t.Fatalf("the honest connection has %d completions; states %v and %v", a.scv.Pending(), a.q.state, b.q.state)
	}
	if a.scv.LoadCQE(a.scv.Position(), &c); c.Status != ring.StatusSuccess || c.WRID != s.WRID {
		w.t.Fatalf("the honest connection's completion: %+v", c)
	}
	_ = a.scv.Consume()
	copy(dst, src)
	w.check()
}

const (
	coreHonest    = 8 << 10
	coreHonestEnd = 12 << 10
)

func ringsAreHarmless(t fatalTB, data []byte) {
	w := newCoreWorld(t, Config{})
	w.wild = true
	s := &script{data}
	var keys [2]*MR
	for i, h := range w.hosts {
		m, err := h.n.RegMR(h.pd, h.mem, memBase+coreHonest, coreHonestEnd-coreHonest, memBase+coreHonest, allAccess)
		keys[i] = coreMust(w, m, err)
	}
	tm := &tamperer{w, s}
	for _, e := range w.ends[2:] {
		for _, q := range e.rings {
			tm.on(q, e.ch)
		}
	}
	for _, p := range w.pools {
		tm.on(p.srq.ring, p.h)
		if p.cq != nil {
			tm.on(p.cq.ring, p.h)
		}
	}
	w.focus = 2 + s.byte()
	for round := 1; !s.done(); round++ {
		for range 12 {
			w.program(s)
		}
		w.honest(keys, round)
	}
	w.finishWith(keys[:]...)
}

// program is what the owner of tampered queues does.
func (w *coreWorld) program(s *script) {
	op := s.byte()
	e := w.ends[2+w.focus%(len(w.ends)-2)]
	if v := s.byte(); v < 0x80 {
		e = w.ends[2+v%(len(w.ends)-2)]
	} else if v >= 0xf0 {
		e = e.peer
	}
	switch op & 7 {
	case 0, 1:
		w.postSend(e, ring.SendOpcode(s.byte()&15), s.word(), s.word()%4000)
	case 2, 3:
		w.postRecv(e, s.word(), s.byte()*8)
	case 4:
		e.h.n.Doorbell(w.now, e.q)
	case 5:
		w.run(int64(s.byte()) * 100_000)
	case 6:
		w.change(s, e)
	case 7:
		e.scq.Arm(true)
		e.rcq.Arm(false)
	}
	if op&0x80 == 0 {
		w.settle()
		w.check()
	}
}

// Programs change their queues while the NIC reads them, indices and elements, before each single read: no panic, no endless work, no memory
// but their own, and another connection of the same NICs transfers on.
func FuzzRings(f *testing.F) {
	rng := rand.New(rand.NewPCG(51, 52))
	for i := range 24 {
		f.Add(coreSeed(rng, 500, byte(i)))
	}
	f.Fuzz(func(t *testing.T, data []byte) { ringsAreHarmless(t, data[:min(len(data), 1500)]) })
}
