package sim

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"rnic/internal/hostmem"
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// IncastConfig is an incast: senders on links of equal speed write to one receiver behind one switch port, whose queue marks
// packets that are ECN capable. The zero value of a field means the default in brackets.
type IncastConfig struct {
	Senders   int    // [8]
	LinkRate  uint64 // bytes a second of every link [5e9, 40 Gb/s]
	LinkNanos int64  // of every link [2000]
	Buffer    int    // bytes that the switch port queues before it drops [2 MiB]
	// Packets are marked at random: none below MarkFrom bytes in the queue, MarkMost of them at MarkTo, all above. The
	// defaults are those of the paper on DCQCN (SIGCOMM 2015, section 5): [5 kB, 200 kB, 1 %].
	MarkFrom, MarkTo int
	MarkMost         float64
	Stagger          int64 // nanoseconds from the start of one sender to that of the next [1 ms]
	Nanos            int64 // length of the run [60 ms]
	Step             int64 // of the series [200 us]
	Seed             uint64
	Policy           nic.Policy
}

// IncastResult is what happened: the series hold one value for each step.
type IncastResult struct {
	Step     int64
	Rates    [][]float64 // of each sender: payload that the receiver got, bytes a second
	Queue    []int       // the most bytes in the switch's queue
	Dropped  uint64
	Marked   uint64
	Stats    []nic.Stats // of each sender
	Receiver nic.Stats
	Hash     uint64 // of everything that arrived, and when
}

// Jain is the index of fairness of the senders' mean rates in steps [from, to): 1 is equal shares, 1/n is one taking all
// (Jain, Chiu, Hawe: DEC-TR-301, 1984).
func (r *IncastResult) Jain(from, to int) float64 {
	var sum, squares float64
	for _, series := range r.Rates {
		x := 0.0
		for _, v := range series[from:to] {
			x += v
		}
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(r.Rates)) * squares)
}

// Goodput is the mean of all senders' rates together in steps [from, to), bytes a second.
func (r *IncastResult) Goodput(from, to int) float64 {
	sum := 0.0
	for _, series := range r.Rates {
		for _, v := range series[from:to] {
			sum += v
		}
	}
	return sum / float64(to-from)
}

func (c *IncastConfig) fill() {
	c.Senders = orElse(c.Senders, 8)
	c.LinkRate = orElse(c.LinkRate, 5_000_000_000)
	c.LinkNanos = orElse(c.LinkNanos, 2000)
	c.Buffer = orElse(c.Buffer, 2<<20)
	c.MarkFrom, c.MarkTo = orElse(c.MarkFrom, 5000), orElse(c.MarkTo, 200_000)
	c.MarkMost = orElse(c.MarkMost, 0.01)
	c.Stagger = orElse(c.Stagger, 1_000_000)
	c.Nanos = orElse(c.Nanos, 60_000_000)
	c.Step = orElse(c.Step, 200_000)
}

func orElse[T int | int64 | uint64 | float64](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}

// incast is a run.
type incast struct {
	cfg      IncastConfig
	rng      *rand.Rand
	now      int64
	events   incastEvents
	count    uint64 // events so far: their order among equal times
	senders  []*incastHost
	receiver *incastHost
	queued   int   // bytes in the switch's queue
	freeAt   int64 // when the switch's port has sent what it has
	res      *IncastResult
}

type incastEvent struct {
	at    int64
	order uint64
	run   func()
}

type incastEvents []incastEvent

func (e incastEvents) Len() int { return len(e) }
func (e incastEvents) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e incastEvents) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *incastEvents) Push(x any)   { *e = append(*e, x.(incastEvent)) }
func (e *incastEvents) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = incastEvent{}
	*e = (*e)[:last]
	return x
}

func (s *incast) after(nanos int64, run func()) {
	s.count++
	heap.Push(&s.events, incastEvent{s.now + nanos, s.count, run})
}

// wire is how many nanoseconds a packet occupies a link.
func (s *incast) wire(bytes int) int64 { return int64(uint64(bytes) * 1_000_000_000 / s.cfg.LinkRate) }

// outerBytes is what a packet has around BTH to ICRC: Ethernet with preamble and gap, IP, UDP.
const outerBytes = 38 + 20 + 8

// incastHost is a NIC on its link.
type incastHost struct {
	s      *incast
	index  int // of a sender
	nic    *nic.NIC
	gid    roce.GID
	pd     *nic.PD
	mr     *nic.MR
	mem    *hostmem.Bytes
	tx     *nic.Tx
	busy   bool // the link sends, and the NIC is asked again when it is free
	timer  int64
	qp     *nic.QP // of a sender
	sq, cq *ring.Queue
}

const (
	incastMessage = 64 << 10
	incastDepth   = 15
	incastBase    = 0x100000
)

func (s *incast) newHost(index int) (*incastHost, error) {
	h := &incastHost{s: s, index: index, tx: nic.NewTx(roce.MaxPacketSize, 1)}
	h.nic = nic.New(nic.Config{Seed: s.cfg.Seed + uint64(index) + 1, Policy: s.cfg.Policy})
	h.gid = roce.GIDFromAddr(netip.AddrFrom4([4]byte{192, 0, 2, byte(index + 2)}))
	h.nic.SetGID(0, h.gid)
	h.mem = &hostmem.Bytes{Base: incastBase, Mem: make([]byte, incastMessage)}
	var err, err2 error
	h.pd, err = h.nic.AllocPD()
	h.mr, err2 = h.nic.RegMR(h.pd, h.mem, incastBase, incastMessage, incastBase, nic.AccessLocalWrite|nic.AccessRemoteWrite)
	return h, errors.Join(err, err2)
}

// newQP makes a queue pair of the host, and returns the program's sides of its send and completion queues.
func (h *incastHost) newQP() (q *nic.QP, sq, cq *ring.Queue, err error) {
	queue := func(g ring.Geometry) (nics, programs *ring.Queue) {
		b := make([]byte, g.Size())
		nics, e := ring.Format(b, g)
		err = errors.Join(err, e)
		return nics, ring.View(b, g)
	}
	g, err := ring.GeometryFor(2*incastDepth, ring.CQESize)
	if err != nil {
		return nil, nil, nil, err
	}
	nicCQ, cq := queue(g)
	c, err := h.nic.CreateCQ(nicCQ)
	if err != nil {
		return nil, nil, nil, err
	}
	caps := nic.Cap{MaxSendWR: incastDepth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	granted, sg, rg, err := h.nic.QueueShapes(caps)
	if err != nil {
		return nil, nil, nil, err
	}
	nicSQ, sq := queue(sg)
	nicRQ, _ := queue(rg)
	q, err = h.nic.CreateQP(nic.QPInit{Type: nic.RC, PD: h.pd, SendCQ: c, RecvCQ: c, SQ: nicSQ, RQ: nicRQ, Cap: granted})
	return q, sq, cq, err
}

func (s *incast) connect(h, peer *incastHost, q, to *nic.QP) error {
	a := nic.Attr{Port: 1, AccessFlags: nic.AccessRemoteWrite, PathMTU: 5, DestQPN: to.Num(), MaxRDAtomic: 1, MaxDestRDAtomic: 1, MinRNRTimer: 12,
		Timeout: 14, RetryCnt: 7, RNRRetry: 7, AH: nic.AHAttr{DGID: peer.gid, IsGlobal: true, Port: 1, HopLimit: 64}}
	for _, step := range []struct {
		to   nic.State
		mask nic.AttrMask
	}{
		{nic.Init, nic.AttrPKeyIndex | nic.AttrPort | nic.AttrAccessFlags},
		{nic.RTR, nic.AttrAV | nic.AttrPathMTU | nic.AttrDestQPN | nic.AttrRQPSN | nic.AttrMaxDestRDAtomic | nic.AttrMinRNRTimer},
		{nic.RTS, nic.AttrSQPSN | nic.AttrTimeout | nic.AttrRetryCnt | nic.AttrRNRRetry | nic.AttrMaxRDAtomic},
	} {
		a.State = step.to
		if err := h.nic.Modify(s.now, q, &a, nic.AttrState|step.mask); err != nil {
			return err
		}
	}
	return nil
}

// Incast makes a run. The same configuration gives the same result.
func Incast(cfg IncastConfig) (*IncastResult, error) {
	cfg.fill()
	s := &incast{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x696e63617374)), now: startNanos}
	steps := int(cfg.Nanos / cfg.Step)
	s.res = &IncastResult{Step: cfg.Step, Queue: make([]int, steps)}
	var err error
	if s.receiver, err = s.newHost(-1); err != nil {
		return nil, err
	}
	for i := range cfg.Senders {
		h, err := s.newHost(i)
		if err != nil {
			return nil, err
		}
		far, _, _, err := s.receiver.newQP()
		if err != nil {
			return nil, err
		}
		if h.qp, h.sq, h.cq, err = h.newQP(); err != nil {
			return nil, err
		}
		if err := errors.Join(s.connect(s.receiver, h, far, h.qp), s.connect(h, s.receiver, h.qp, far)); err != nil {
			return nil, err
		}
		s.senders = append(s.senders, h)
		s.res.Rates = append(s.res.Rates, make([]float64, steps))
		s.after(int64(i)*cfg.Stagger, h.post)
	}
	end := s.now + cfg.Nanos
	for len(s.events) > 0 && s.events[0].at < end {
		e := heap.Pop(&s.events).(incastEvent)
		s.now = e.at
		e.run()
	}
	for _, h := range s.senders {
		s.res.Stats = append(s.res.Stats, *h.nic.Stats())
		if st := h.qp.State(); st != nic.RTS {
			return s.res, fmt.Errorf("sender %d ends in state %v", h.index, st)
		}
	}
	s.res.Receiver = *s.receiver.nic.Stats()
	return s.res, nil
}

// step is where the present time falls in the series.
func (s *incast) step() int { return int((s.now - startNanos) / s.cfg.Step) }

// post keeps the send queue full.
func (h *incastHost) post() {
	var e ring.CQE
	for h.cq.Pending() > 0 {
		h.cq.LoadCQE(h.cq.Position(), &e)
		_ = h.cq.Consume()
	}
	w := ring.SendWQE{Opcode: ring.OpWrite, Flags: ring.SendSignaled, NumSGE: 1, RemoteAddr: incastBase, RKey: h.s.receiver.mr.RKey()}
	w.SGE[0] = ring.SGE{Addr: incastBase, Length: incastMessage, LKey: h.mr.LKey()}
	for h.sq.Free() > 0 {
		h.sq.StoreSend(h.sq.Position(), &w, false)
		_ = h.sq.Publish()
	}
	h.nic.Doorbell(h.s.now, h.qp)
	h.drive()
}

// drive lets the NIC send while its link is free, one packet at a time.
func (h *incastHost) drive() {
	s := h.s
	if t := h.nic.NextTimer(); t != 0 && t <= s.now {
		h.nic.Expire(s.now)
	}
	for !h.busy && !h.nic.Idle() {
		h.tx.Reset()
		h.nic.Transmit(s.now, h.tx)
		h.tx.Gather.Gather()
		h.nic.GatherDone(s.now, h.tx)
		for i := range h.tx.Packets {
			p := &h.tx.Packets[i]
			h.send(p.Path, p.Data)
		}
	}
	h.nic.Events()
	if t := h.nic.NextTimer(); t != 0 && (h.timer == 0 || t < h.timer) {
		h.timer = t
		s.after(max(1, t-s.now), func() {
			if h.timer == t {
				h.timer = 0
				h.drive()
			}
		})
	}
}

// send puts a packet on the link.
func (h *incastHost) send(path *roce.Path, data []byte) {
	s := h.s
	bytes := len(data) + outerBytes
	rx := nic.RxPacket{Path: *path, Data: append([]byte(nil), data[:len(data)-roce.ICRCSize]...)}
	h.busy = true
	s.after(s.wire(bytes), func() {
		h.busy = false
		h.drive()
	})
	there := s.wire(bytes) + s.cfg.LinkNanos
	if h == s.receiver { // the way back is not congested
		for _, to := range s.senders {
			if to.gid.Addr() == path.Dst {
				s.after(there+s.cfg.LinkNanos, func() { to.arrive(rx) })
			}
		}
		return
	}
	s.after(there, func() { s.enqueue(h, rx, bytes) })
}

// enqueue is the arrival of a packet at the switch.
func (s *incast) enqueue(from *incastHost, rx nic.RxPacket, bytes int) {
	if s.queued+bytes > s.cfg.Buffer {
		s.res.Dropped++
		return
	}
	if s.marks() && rx.Path.TOS&3 != 0 {
		rx.Path.TOS |= 3 // RFC 3168, 5: congestion experienced
		s.res.Marked++
	}
	s.queued += bytes
	s.res.Queue[s.step()] = max(s.res.Queue[s.step()], s.queued)
	s.freeAt = max(s.freeAt, s.now) + s.wire(bytes)
	s.after(s.freeAt-s.now, func() { s.queued -= bytes })
	s.after(s.freeAt-s.now+s.cfg.LinkNanos, func() {
		var p roce.Packet
		if roce.Decode(rx.Data, &p) == nil {
			s.res.Rates[from.index][s.step()] += float64(len(p.Payload)) * 1e9 / float64(s.cfg.Step)
			s.res.Hash = (s.res.Hash ^ uint64(s.now)<<20 ^ uint64(from.index)<<56 ^ uint64(p.BTH.PSN())) * 0x100000001b3
		}
		s.receiver.arrive(rx)
	})
}

// marks is random early detection on the queue of the moment.
func (s *incast) marks() bool {
	c := &s.cfg
	switch {
	case s.queued <= c.MarkFrom:
		return false
	case s.queued > c.MarkTo:
		return true
	}
	return s.rng.Float64() < c.MarkMost*float64(s.queued-c.MarkFrom)/float64(c.MarkTo-c.MarkFrom)
}

// arrive hands a packet to the NIC.
func (h *incastHost) arrive(rx nic.RxPacket) {
	h.nic.Receive(h.s.now, []nic.RxPacket{rx})
	h.nic.Memory().Scatter()
	h.nic.MemoryDone(h.s.now)
	if h.sq != nil && h.cq.Pending() > 0 {
		h.post()
		return
	}
	h.drive()
}
