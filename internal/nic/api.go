// Package nic is the core of the NIC: its objects, and the InfiniBand transport of their queue
// pairs, as a pure state machine. There is no socket, clock, goroutine or global randomness in it:
// time, packets, doorbells and the seed come in as arguments, packets and memory transfers go out
// as lists, and the same code runs in the product and in the simulator.
//
// A NIC, or each of its units (units.go), is driven by one caller at a time, which loops over
//
//	n.Receive(now, packets)       // packets of the link, in order
//	n.Memory().Scatter()          // the caller performs the memory transfers
//	n.MemoryDone(now)             // and the NIC learns what failed: completions, acknowledgements
//	n.Doorbell(now, qp)           // for every queue pair whose send queue was rung
//	n.Expire(now)                 // timers
//	n.Transmit(now, tx)           // packets to send, with gather lists
//	tx.Gather.Gather(); n.GatherDone(now, tx)
//	                              // send what is not Dead
//	n.Events()                    // completion and asynchronous events
//
// Times are nanoseconds of a monotonic clock whose zero does not matter.
package nic

import (
	"reflect"

	"rnic/internal/hostmem"
	"rnic/internal/roce"
)

// Config is what a NIC is made with. The zero value of a field means its default.
type Config struct {
	Seed   uint64 // keys, queue pair numbers, first PSNs
	Limits Limits
	MTU    uint32 // active path MTU in bytes (256..4096): queue pairs may not ask for more. Default 4096
	PKeys  []uint16
	Policy Policy

	// LocalMTU is what packets between queue pairs of this NIC carry, in bytes, if both ask for the
	// active path MTU and that is less. 0: the path MTU.
	LocalMTU uint32

	// Units is the number of processing units, each of which may be driven by a thread of its own. Default 1; at
	// most MaxUnits.
	Units int
	// NewLock makes a lock, such as a sync.Mutex, for what units share. nil: one goroutine drives all units.
	NewLock func() Lock

	Planted Planted // tests only: a fault planted into the NIC, see Planted
}

// Limits are what QUERY_DEVICE answers, and what creation checks.
type Limits struct {
	MaxQP, MaxCQ, MaxMR, MaxMW, MaxPD, MaxAH int
	MaxQPWR                                  uint32 // work requests of a queue
	MaxSGE                                   uint32
	MaxInline                                uint32 // bytes
	MaxCQE                                   uint32
	MaxSRQ                                   int
	MaxSRQWR                                 uint32 // work requests of a shared receive queue
	MaxMsgSize                               uint32 // bytes
	MaxRDAtomic                              uint8  // as target and as initiator, of one queue pair

	MaxMulticastGroups  int // of which the NIC has members
	MaxMulticastMembers int // of one group
}

// DefaultLimits are the NIC's own.
func DefaultLimits() Limits {
	return Limits{MaxQP: 1 << 17, MaxCQ: 1 << 17, MaxMR: 1 << 19, MaxMW: 1 << 19, MaxPD: 1 << 17, MaxAH: 1 << 17,
		MaxSRQ: 1 << 17, MaxSRQWR: 32767, MaxQPWR: 16383, MaxSGE: 32, MaxInline: 512, MaxCQE: 65535, MaxMsgSize: 1 << 30, MaxRDAtomic: 128,
		MaxMulticastGroups: 8192, MaxMulticastMembers: 1 << 10}
}

// An Errno is a Linux error number: what the kernel's user ABI would answer.
type Errno int

// The error numbers that commands answer.
const (
	ENOENT     Errno = 2
	EAGAIN     Errno = 11
	ENOMEM     Errno = 12
	EFAULT     Errno = 14
	EBUSY      Errno = 16
	EINVAL     Errno = 22
	EOPNOTSUPP Errno = 95
)

func (e Errno) Error() string {
	switch e {
	case ENOENT:
		return "no such object"
	case EAGAIN:
		return "resource temporarily unavailable"
	case ENOMEM:
		return "out of room"
	case EFAULT:
		return "bad address"
	case EBUSY:
		return "object is in use"
	case EINVAL:
		return "invalid argument"
	case EOPNOTSUPP:
		return "not supported"
	}
	return "error"
}

// Error is the answer to a command that cannot be carried out; nothing was changed.
// errors.Is(err, EINVAL) and the like hold.
type Error struct {
	Op     string // what was attempted: "modify queue pair"
	Object string // on which object: "QP 0x1a2b3c"
	Reason string // why not, and what to do
	Errno  Errno
}

func (e *Error) Error() string {
	s := e.Op
	if e.Object != "" {
		s += " " + e.Object
	}
	if e.Reason != "" {
		return s + ": " + e.Reason
	}
	return s + ": " + e.Errno.Error()
}

func (e *Error) Unwrap() error { return e.Errno }

// Access is enum ib_access_flags.
type Access uint32

const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3
	AccessMWBind       Access = 1 << 4
	AccessZeroBased    Access = 1 << 5
	AccessOnDemand     Access = 1 << 6 // memory is looked at when it is used
	AccessHugeTLB      Access = 1 << 7
	AccessFlushGlobal  Access = 1 << 8
	AccessFlushPersist Access = 1 << 9
	// AccessOptional are the bits that a device may ignore when it does not know them.
	AccessOptional Access = 0x3ff00000
)

// QPType is enum ib_qp_type.
type QPType uint8

const (
	RC QPType = 2
	UC QPType = 3
	UD QPType = 4

	XRCINI QPType = 9  // annex A14: sends
	XRCTGT QPType = 10 // and receives
)

// State is enum ib_qp_state.
type State uint8

const (
	Reset State = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Err
)

func (s State) String() string {
	return [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}[min(s, Err)]
}

// AttrMask is enum ib_qp_attr_mask.
type AttrMask uint32

const (
	AttrState            AttrMask = 1 << 0
	AttrCurState         AttrMask = 1 << 1
	AttrEnSQDAsyncNotify AttrMask = 1 << 2
	AttrAccessFlags      AttrMask = 1 << 3
	AttrPKeyIndex        AttrMask = 1 << 4
	AttrPort             AttrMask = 1 << 5
	AttrQKey             AttrMask = 1 << 6
	AttrAV               AttrMask = 1 << 7
	AttrPathMTU          AttrMask = 1 << 8
	AttrTimeout          AttrMask = 1 << 9
	AttrRetryCnt         AttrMask = 1 << 10
	AttrRNRRetry         AttrMask = 1 << 11
	AttrRQPSN            AttrMask = 1 << 12
	AttrMaxRDAtomic      AttrMask = 1 << 13
	AttrAltPath          AttrMask = 1 << 14
	AttrMinRNRTimer      AttrMask = 1 << 15
	AttrSQPSN            AttrMask = 1 << 16
	AttrMaxDestRDAtomic  AttrMask = 1 << 17
	AttrPathMigState     AttrMask = 1 << 18
	AttrCap              AttrMask = 1 << 19
	AttrDestQPN          AttrMask = 1 << 20
	AttrRateLimit        AttrMask = 1 << 25
)

// AHAttr is struct ib_uverbs_ah_attr: an address vector.
type AHAttr struct {
	DGID         roce.GID
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	DLID         uint16
	SL           uint8
	SrcPathBits  uint8
	StaticRate   uint8
	IsGlobal     bool
	Port         uint8
}

// Attr are the attributes of a queue pair, struct ib_uverbs_qp_attr. Which fields count is said by a mask.
type Attr struct {
	State            State
	CurState         State
	PathMTU          uint8 // code 1..5
	PathMigState     uint8
	QKey             uint32
	RQPSN            uint32
	SQPSN            uint32
	DestQPN          uint32
	AccessFlags      Access
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	EnSQDAsyncNotify uint8
	SQDraining       bool
	MaxRDAtomic      uint8
	MaxDestRDAtomic  uint8
	MinRNRTimer      uint8
	Port             uint8
	Timeout          uint8
	RetryCnt         uint8
	RNRRetry         uint8
	AltPort          uint8
	AltTimeout       uint8
	AH               AHAttr
	AltAH            AHAttr
	Cap              Cap
}

// Cap is struct ib_qp_cap.
type Cap struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline uint32
}

// EventType says what happened. The values of asynchronous events are enum ib_event_type.
type EventType uint8

const (
	EventCQErr       EventType = 0
	EventQPFatal     EventType = 1
	EventQPReqErr    EventType = 2
	EventQPAccessErr EventType = 3
	EventCommEst     EventType = 4
	EventSQDrained   EventType = 5
	EventPathMig     EventType = 6 // the queue pair has gone over to its alternate path
	EventPathMigErr  EventType = 7 // it was to, and cannot
	EventSRQErr      EventType = 14
	EventSRQLimit    EventType = 15
	EventQPLastWQE   EventType = 16
	EventDeviceFatal EventType = 8
	EventPortActive  EventType = 9
	EventPortErr     EventType = 10
	EventGIDChange   EventType = 18
	EventCompletion  EventType = 255 // not asynchronous: the completion channel of CQ
)

// An Event is one completion event (CQ set) or asynchronous event (CQ, QP or SRQ set).
type Event struct {
	Type EventType
	CQ   *CQ
	QP   *QP
	SRQ  *SRQ
}

// RxPacket is a packet that a link received: its ICRC was right and is cut off.
type RxPacket struct {
	Path roce.Path
	Data []byte // BTH up to and including the pad; valid until MemoryDone

	Local bool // this NIC has sent it, and it did not go over the network
}

// TxPacket is a packet to send.
type TxPacket struct {
	Path  *roce.Path
	Data  []byte // in Tx.Arena: BTH..pad, then 4 bytes of room for the ICRC
	QPN   uint32 // source queue pair
	Local bool   // the destination is an address of this NIC

	// Multicast: the destination is a group. The packet goes to the network, and if Local is set too,
	// this NIC gets a copy, as RxPacket.Local.
	Multicast bool
	Dead      bool // its gather failed: do not send
}

// Tx is one batch of packets to send. Packets lie back to back in Arena in order.
type Tx struct {
	Arena   []byte // room; its capacity bounds the batch
	Used    int
	Packets []TxPacket
	Gather  hostmem.List // Segment.Tag is the packet's index, Lane its QPN
}

// NewTx makes room for a batch of at most bytes and packets.
func NewTx(bytes, packets int) *Tx {
	return &Tx{Arena: make([]byte, bytes), Packets: make([]TxPacket, 0, packets)}
}

// Reset empties the batch and keeps its memory.
func (t *Tx) Reset() {
	t.Used = 0
	t.Packets = t.Packets[:0]
	t.Gather.Reset()
}

// Stats are the NIC's counters.
type Stats struct {
	RxPackets, TxPackets, RxBytes, TxBytes   uint64 // payload bytes
	RetransmittedPackets                     uint64
	Timeouts                                 uint64 // expiries of the local ACK timer
	EarlyResends                             uint64 // resends timed by the measured round trip
	SeqNAKsSent, SeqNAKsReceived             uint64
	RNRNAKsSent, RNRNAKsReceived             uint64
	AccessNAKsSent, OtherNAKsSent, NAKsRecvd uint64
	Duplicates                               uint64 // duplicate requests received
	BadPackets                               uint64 // malformed, unknown queue pair, wrong state or type
	BadPKey, BadQKey                         uint64
	UDDropped                                uint64 // no receive posted, or too small
	UCLost                                   uint64 // unreliable connections: packets that the numbers of later ones show missing
	UCDropped                                uint64 // unreliable connections: packets that cost a message
	Completions, ErrorCompletions            uint64
	SendsCompleted, ReceivesCompleted        uint64 // SEND requests and receives that have succeeded, signalled or not
	RetriesExceeded, RNRRetriesExceeded      uint64 // requests that failed because no retry was left
	CQOverflows                              uint64
	Migrations                               uint64 // queue pairs that have gone over to their alternate path
	HandoverDrops                            uint64 // many units: packets for another unit that found no room with it, lost like any packet

	ECNMarked              uint64 // packets of connections that the network has marked: congestion experienced
	CNPsSent, CNPsReceived uint64 // congestion notification packets
}

// Add adds the counters of another unit.
func (s *Stats) Add(o *Stats) {
	sum, more := reflect.ValueOf(s).Elem(), reflect.ValueOf(o).Elem()
	for i := range sum.NumField() {
		sum.Field(i).SetUint(sum.Field(i).Uint() + more.Field(i).Uint())
	}
}

// Policy holds the choices that are not the specification's. The zero value is the default.
type Policy struct {
	NoEarlyResend  bool  // leave loss of the last packet, of ACK or NAK to the local ACK timer
	MinResendNanos int64 // least delay of an early resend. Default 1 ms
	AckDelayNanos  int64 // longest wait of an acknowledgement for company; see NIC.Quiet. Default 0: none waits
	Window         WindowPolicy
	Pace           PacePolicy

	Congestion Congestion // of reliable connections
	DCQCN      DCQCNPolicy
}

// WindowPolicy bounds the bytes in flight. The zero value means the defaults.
type WindowPolicy struct {
	QPMin, QPMax     uint32 // bytes in flight of one queue pair; default 16 KiB, 160 KiB
	PeerMin, PeerMax uint32 // bytes in flight to one peer address; default 32 KiB, 160 KiB
	PacketOverhead   uint32 // bytes a packet costs beyond its length in the receiver's socket. Default 512
}

// Planted is a fault planted into the NIC, to show that the simulator catches it. Tests only.
type Planted uint8

const (
	PlantedNone Planted = iota
	PlantedPSNWrap
	PlantedAtomicTwice
	PlantedEarlyACK
	PlantedCompletionBeforeData
	PlantedLostFlush
	PlantedBoundsWrap
	PlantedStaleKey
	PlantedSkippedRNRTimer
	PlantedWrongFence
	PlantedDuplicateCompletion
	PlantedReorderedCompletion
	PlantedLostSolicited
	PlantedSharedTwice  // a shared receive is now and then given to two messages
	PlantedLostLastWQE  // a queue pair in error does not say that it has completed its last shared receive
	PlantedLimitAgain   // the limit event of a shared queue comes with every receive
	PlantedResizeLoses  // a shared queue that is resized loses its oldest receive
	PlantedReregKey     // the old keys of a region that changes stay
	PlantedLateNotice   // a moderated event comes by the count only
	PlantedUnseenGap    // UC: a missing packet is not noticed
	PlantedDroppedUsed  // UC: a message that is dropped uses its receive up
	PlantedXRCQueueKept // XRC: a message goes to the queue of the one before
	PlantedSQEDeaf      // UC, UD: a send queue in error stops the receive queue too
	PlantedStaleWindow
	PlantedForeignWindow
	PlantedInvalidateIgnored
	PlantedWindowBounds
	PlantedLostCopy     // multicast: of several members the last gets nothing
	PlantedStaleMember  // who left a group with other members still gets what comes
	PlantedEchoedCopy   // what the network brings back of the NIC's own is delivered again
	PlantedCNPFlood     // every marked packet is notified
	PlantedUnpaced      // the rate holds nothing back
	PlantedStaleSteer   // many units: packets go by the number of a queue pair that has moved
	PlantedMoveForgets  // many units: a queue pair that moves forgets its timers
	PlantedOverrunNear  // many units: an overflow is told to the queue pairs of one unit only
	PlantedLonely       // many units: what waits for all units to stand still waits for ever
	PlantedKeptAhead    // selective repeat: a packet that was kept is executed before the missing one
	PlantedSackAcks     // selective repeat: what the peer has behind a gap counts as acknowledged
	PlantedEarlyAnswer  // selective repeat: a response behind a gap is taken for the missing one
	PlantedKeptReused   // selective repeat: a kept packet's buffer is used again before its bytes are placed
	PlantedNeverArmed   // migration: a queue pair to be armed never is
	PlantedMigrateDeaf  // migration: the peer's request is ignored
	PlantedMigrateSpent // migration: the retries that are used up stay so
	PlantedDeath        // the unit panics when a COMPARE SWAP comes
)
