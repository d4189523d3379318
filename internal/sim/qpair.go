package sim

import (
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// qpair is the program's view of a queue pair, and what the model knows about it. What changes with
// every connection is in epoch.
type qpair struct {
	h              *host
	qp             *nic.QP
	ud             bool
	typ            nic.QPType
	sendCQ, recvCQ *cqueue
	sq, rq         *ring.Queue
	cap            nic.Cap
	sigAll         bool
	conn           *conn // RC
	uc             unreliable
	peer           *qpair
	end            *pathEnd // RC and UC
	number         int      // connections made so far
	gone           bool     // destroyed
	ending         bool     // UD: it is going to be reset
	deaf           bool     // a completion queue of it has overflowed
	pool           *pool    // its receives come from there
	epoch
}

// epoch is one connection's part of a queue pair.
type epoch struct {
	attr  nic.Attr // as set for this connection
	mtu   int
	ready bool // in RTS: sends may be posted

	sends     []*work
	recvs     []*work
	consuming []*work // of sends: those that take a receive of the peer, in order
	nextSend  int     // sends[:nextSend] are settled
	nextRecv  int
	landed    int    // sends[:landed] are known to have reached the peer's memory
	psnCount  uint32 // PSNs of all sends together

	congested   congested
	windows     []*window
	planned     []*work // receives not posted yet
	recvBlocked bool    // planned waits for room in the receive queue
	left        int     // work requests that the program still means to post

	sendErr, recvErr bool // an error or flush completion was seen: all that follow are flushed
	errState         bool // the NIC says ERR
	asyncError       bool

	// Causes for which the queue pair may be in error.
	progErr   bool // the program moved it there
	hitByPeer bool // the peer posted something that this end must refuse
	reset     bool // the program took it down without a flush
	down      bool // recovery has begun
	held      bool // it does not talk before the communication manager says so
	late      bool // it was in INIT for long, because its address did not exist
	bomb      *work

	bombAt               int // index of the send at which an error is intended, -1 for none
	bombKind             bombKind
	lateRecv             bool // a receive for this queue pair's sends was late
	lastRead, lastWrite  *work
	lastWQE              int  // events that its last shared receive has completed
	sharedOver           bool // and the completions before them were polled
	sharedNext           int  // in the pool: what completes next was posted there or later
	sendFault, recvFault bool // an error completion other than a flush was seen
	flushed              bool

	// UD
	expect    int   // recvs[:expect] should have completed, by the datagrams that arrived
	sent      int   // datagrams seen on the wire
	lastHeard int64 // when a response arrived
	rnrOff    uint32
	rnrUntil  int64
	rnrCount  int
}

// work is a posted work request of either queue.
type work struct {
	id    uint64
	q     *qpair
	epoch int
	index int // in q.sends or q.recvs
	recv  bool

	op        ring.SendOpcode
	signalled bool
	fenced    bool
	solicited bool
	inline    bool
	imm       uint32
	n         int    // bytes
	data      []byte // what lands at its target: for a read, what it must bring
	local     []seg
	sge       []ring.SGE // as posted: local, unless an error is intended
	remote    seg
	rkey      uint32
	raddr     uint64
	onWord    *word
	add, swap uint64
	compare   uint64
	old       uint64
	postedAt  int64 // of an atomic
	endedAt   int64 // when its success was known

	// Memory windows and flushes.
	win   *window // what is bound or invalidated
	bind  ring.Bind
	grant *region // what the window is bound to afterwards
	flush ring.Flush

	psnOff, psnCount uint32
	seen             bool  // its first packet was seen
	sentAt           int64 // when
	held             bool  // posted in SQD
	takes            int   // which of the peer's receives it consumes, -1: none

	// Intended errors.
	allowed    statusSet // besides success, or besides flush
	mustFail   bool
	partial    bool // it may have been carried out in part
	remoteErr  bool // found by the responder
	closed     bool // its target was taken away
	shut       seg  // the part of local that was
	shutLanded bool // and whether what belongs there had arrived before
	why        string

	done    bool // its completion was seen, or is not to come any more
	success bool
	landed  bool
	final   bool
	match   *work // of a receive: the message; of a message: its receive
	pool    *pool // of a shared receive; q, epoch and index are not known before it completes

	// UD
	dest       *qpair
	strayAH    bool
	alienAH    bool
	group      *mgroup // instead of dest
	reachable  bool    // the destination's Q_Key was right
	delivered  int
	deliveries map[*qpair]int // UD

	// UC
	refused bool // the target's key or rights do not allow it
}

// datagrams or an unreliable connection: what is lost stays lost.
func (q *qpair) unreliable() bool { return q.typ != nic.RC }

// statusSet is a set of completion statuses.
type statusSet uint32

func statuses(list ...ring.Status) (s statusSet) {
	for _, x := range list {
		s |= 1 << x
	}
	return s
}

func (s statusSet) has(x ring.Status) bool { return s&(1<<x) != 0 }

// workBase is the id of the first work request: ids are told apart from indices.
const workBase = 0x5157_0000_0000

func (w *world) newWork(q *qpair, recv bool) *work {
	x := &work{id: workBase + uint64(len(w.works)), q: q, recv: recv, takes: -1}
	if q != nil {
		x.epoch = q.number
	}
	w.works = append(w.works, x)
	return x
}

func (w *world) workOf(id uint64) *work {
	if id < workBase || id-workBase >= uint64(len(w.works)) {
		return nil
	}
	return w.works[id-workBase]
}

// consumes tells whether the work request takes a receive of the peer.
func (x *work) consumes() bool {
	return x.op == ring.OpSend || x.op == ring.OpSendImm || x.op == ring.OpWriteImm || x.op == ring.OpSendInv
}

func (x *work) isAtomic() bool { return x.op == ring.OpCompareSwap || x.op == ring.OpFetchAdd }
func (x *work) isWrite() bool {
	return x.op == ring.OpWrite || x.op == ring.OpWriteImm || x.op == ring.OpAtomicWrite
}

// isWord tells whether the work request is about one aligned word.
func (x *work) isWord() bool { return x.isAtomic() || x.op == ring.OpAtomicWrite }

// isHere tells whether the work request is for its own NIC alone.
func (x *work) isHere() bool  { return x.op == ring.OpBindMW || x.op == ring.OpLocalInv }
func (x *work) withImm() bool { return x.op == ring.OpSendImm || x.op == ring.OpWriteImm }
func (x *work) fetches() bool { return x.op == ring.OpRead || x.isAtomic() }
func (x *work) capacity() (n int) {
	for _, s := range x.local {
		n += s.n
	}
	return n
}

// wcOpcode is the opcode of the completion of a send queue's work request.
func (x *work) wcOpcode() ring.WCOpcode {
	switch x.op {
	case ring.OpWrite, ring.OpWriteImm:
		return ring.WCWrite
	case ring.OpRead:
		return ring.WCRead
	case ring.OpCompareSwap:
		return ring.WCCompareSwap
	case ring.OpFetchAdd:
		return ring.WCFetchAdd
	case ring.OpBindMW:
		return ring.WCBindMW
	case ring.OpLocalInv:
		return ring.WCLocalInv
	case ring.OpFlush:
		return ring.WCFlush
	case ring.OpAtomicWrite:
		return ring.WCAtomicWrite
	}
	return ring.WCSend
}

// at finds the work request that the PSN belongs to, and whether it is its first.
func (q *qpair) at(psn roce.PSN) (x *work, off uint32, ok bool) {
	d := roce.Diff(psn, roce.PSN(q.attr.SQPSN&roce.PSNMask))
	if d < 0 || uint32(d) >= q.psnCount {
		return nil, 0, false
	}
	off = uint32(d)
	lo, hi := 0, len(q.sends)
	for lo+1 < hi {
		if m := (lo + hi) / 2; q.sends[m].psnOff <= off {
			lo = m
		} else {
			hi = m
		}
	}
	return q.sends[lo], off, true
}

// deliver notes that q has got a datagram.
func (x *work) deliver(q *qpair) {
	if x.deliveries == nil {
		x.deliveries = make(map[*qpair]int)
	}
	x.deliveries[q]++
}
