package nic

import (
	"sync/atomic"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// Objects are of the device, and used by the queue pairs of all its units; each queue pair is of one unit.

// PD is a protection domain.
type PD struct {
	nic  *shared
	refs int // memory regions, queue pairs and address handles in it
	dead bool
}

// MR is a memory region. A key is 24 random index bits and 8 bits of the consumer's (see the key
// rules of InfiniBand vol. 1, 10.6.3.3).
type MR struct {
	nic    *shared
	pd     *PD
	space  hostmem.Space
	start  uint64 // address in the program
	length uint64
	iova   uint64 // address in work requests
	access Access
	key    uint32
	dead   bool
	Owner  any // the device service's

	windows map[*MW]struct{} // bound to the region

	// Of what a memory window's key stands for; the region that it is a part of is nil if it is not bound.
	window *MW
	parent *MR
	only   *QP // type 2: the queue pair that may use it
}

// LKey and RKey are the region's keys; they are equal.
func (m *MR) LKey() uint32 { return m.key }
func (m *MR) RKey() uint32 { return m.key }

// CQ is a completion queue.
type CQ struct {
	nic     *shared
	mu      Lock // taken if there are many units, by whoever adds completions; see shared.lock
	ring    *ring.Queue
	refs    int
	armed   armState
	pace    moderation
	overrun atomic.Bool // overflowed: takes no completion any more
	dead    bool        // destroyed
	users   []*QP
	Owner   any // the device service's: where its events go
}

type armState uint8

const (
	disarmed armState = iota
	armedSolicited
	armedAny
)

// AH is an address handle.
type AH struct {
	nic   *shared
	pd    *PD
	num   uint32 // what the provider puts in a work request; never 0
	attr  AHAttr
	path  roce.Path
	local bool
	dead  bool

	multicast bool // the destination is a group
}

// Num is the address handle's number in work requests.
func (a *AH) Num() uint32 { return a.num }

// QPInit is what a queue pair is created with. SQ and RQ are the queues that the program shares,
// already formatted; the NIC is SQ's and RQ's consumer.
type QPInit struct {
	Type           QPType
	PD             *PD
	SendCQ, RecvCQ *CQ
	SQ, RQ         *ring.Queue
	SRQ            *SRQ  // instead of RQ; nil: none
	XRCD           *XRCD // of XRCTGT, which has nothing else
	Cap            Cap
	SigAll         bool
	Special        bool        // the management queue pair, number 1, of type UD: one for each device
	RefuseSends    bool        // the send queue looks full while the state does not allow to post (10.3.1): for producers that make no call
	Counters       *QPCounters // the queue pair's own, counted from now on; nil: none
}

// A takenReceive is the work request id of a receive of a shared queue, and where it completes.
type takenReceive struct {
	wrid uint64
	cq   *CQ
}

// QP is a queue pair.
type QP struct {
	nic            *NIC         // the unit that it is of
	unit           atomic.Int32 // its index, for who drives no unit
	num            uint32
	typ            QPType
	pd             *PD
	sendCQ, recvCQ *CQ
	sq, rq         *ring.Queue // rq is nil with srq
	srq            *SRQ        // XRCTGT: of the message under way, or the last
	xrcd           *XRCD
	taken          []takenReceive // from srq, not completed yet, oldest first
	cap            Cap
	sigAll         bool
	count          *QPCounters // nil: nothing is counted
	state          State
	attr           Attr // as set by modify
	mtu            uint32
	path           roce.Path        // RC: to the peer
	local          bool             // RC: the peer is of this NIC
	dead           bool             // destroyed
	cqSlot         [2]int           // where sendCQ.users and recvCQ.users list it
	Owner          any              // the device service's
	Rung           atomic.Bool      // the engine's: a doorbell of it waits for its unit's driver
	windows        map[*MW]struct{} // type 2, bound to it
	mig            *migration       // nil: it never had an alternate path

	rate   *rate      // nil: windows alone bound what it sends
	groups []roce.GID // UD: multicast groups that it is a member of
	vector *vector    // UD: for requests of providers that number no address handles

	req   requester
	sel   selective
	resp  responder
	pace  paceState
	timer timerEntry
	sched schedEntry

	seen   seen   // see check.go
	resent uint32 // packets sent again, and RNR NAKs received, since it was made
	rnrs   uint32

	refuseSends bool // as QPInit says
	shut        bool // the send queue looks full
}

// Num is the queue pair number.
func (q *QP) Num() uint32 { return q.num }

// State is the queue pair's state.
func (q *QP) State() State { return q.state }

// Type is the queue pair's transport.
func (q *QP) Type() QPType { return q.typ }
