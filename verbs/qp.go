package verbs

import (
	"fmt"
	"math"
	"sync"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// QPType is a queue pair's transport.
type QPType = nic.QPType

// Transports.
const (
	RC = nic.RC // reliable connection
	UC = nic.UC // unreliable connection: what is lost on the way stays lost, message by message
	UD = nic.UD // unreliable datagram

	XRCINI = nic.XRCINI // XRC, the sending side: see XRCD
	XRCTGT = nic.XRCTGT // XRC, the receiving side: see XRCD.CreateTarget
)

// QPConfig says how a queue pair is created. Zero fields mean the defaults in brackets.
type QPConfig struct {
	Type           QPType // [RC]
	SendCQ, RecvCQ *CQ
	MaxSend        int  // work requests of the send queue [128]
	MaxRecv        int  // work requests of the receive queue [128]
	MaxSendSGE     int  // [1], 32 at most
	MaxRecvSGE     int  // [1], 32 at most
	MaxInline      int  // bytes [0], 512 at most
	SRQ            *SRQ // receives come from there, and MaxRecv and MaxRecvSGE are of no meaning
	Special        bool // the management queue pair (number 1, Q_Key 0x80010000, UD), of which a device has one: Get Special QP of vol. 1, 11.2
	SignalAll      bool // every send completes visibly, whatever its request says

	// SelectiveRepeat offers selective repeat to the peer (Endpoint.Selective): if both sides offer it, Connect turns it on, and
	// only what was lost is sent again, not what came behind it too. RC only, and only between NICs of this package; the wire
	// format is in docs/selective-repeat.md.
	SelectiveRepeat bool
}

// QP is a queue pair.
type QP struct {
	lifetime
	qp  *device.QP
	typ QPType
	cap nic.Cap
	// maxMsg is the device's longest message, in bytes.
	maxMsg uint32

	selective bool // offered

	sendMu sync.Mutex
	sq     *ring.Queue
	sendW  ring.SendWQE

	recvMu sync.Mutex
	rq     *ring.Queue // nil with a shared receive queue
	recvW  ring.RecvWQE
}

func (c *QPConfig) caps() nic.Cap {
	def := func(v, d int) uint32 {
		if v == 0 {
			v = d
		}
		return uint32(min(uint64(max(v, 0)), math.MaxUint32)) // beyond every limit, as it was
	}
	return nic.Cap{MaxSendWR: def(c.MaxSend, 128), MaxRecvWR: def(c.MaxRecv, 128), MaxSendSGE: def(c.MaxSendSGE, 1),
		MaxRecvSGE: def(c.MaxRecvSGE, 1), MaxInline: def(c.MaxInline, 0)}
}

// CreateQP creates a queue pair in state RESET.
func (p *PD) CreateQP(cfg QPConfig) (*QP, error) {
	if cfg.Type == 0 {
		cfg.Type = RC
	}
	if cfg.Type == XRCTGT {
		return nil, fmt.Errorf("create queue pair: XRC targets are made by XRCD.CreateTarget: %w", ErrInvalid)
	}
	if cfg.Type == XRCINI {
		cfg.RecvCQ, cfg.MaxRecv, cfg.MaxRecvSGE = cfg.SendCQ, 1, 1 // it receives nothing
	}
	if cfg.SendCQ == nil || cfg.RecvCQ == nil {
		return nil, fmt.Errorf("create queue pair: a send and a receive completion queue are needed: %w", ErrInvalid)
	}
	if err := p.use("create queue pair"); err != nil {
		return nil, err
	}
	if cfg.SendCQ.ctx != p.ctx || cfg.RecvCQ.ctx != p.ctx {
		return nil, fmt.Errorf("create queue pair: a completion queue is of another context: %w", ErrInvalid)
	}
	if cfg.SRQ != nil && cfg.SRQ.ctx != p.ctx {
		return nil, fmt.Errorf("create queue pair: the shared receive queue is of another context: %w", ErrInvalid)
	}
	caps := cfg.caps()
	l := p.ctx.dev.dev.Limits()
	if caps.MaxSendWR > l.MaxQPWR || caps.MaxRecvWR > l.MaxQPWR || caps.MaxSendSGE > l.MaxSGE ||
		caps.MaxRecvSGE > l.MaxSGE || caps.MaxInline > l.MaxInline {
		return nil, fmt.Errorf("create queue pair: at most %d work requests, %d entries and %d inline bytes are possible: %w",
			l.MaxQPWR, l.MaxSGE, l.MaxInline, ErrInvalid)
	}
	room := max(caps.MaxSendSGE*ring.SGESize, caps.MaxInline)
	nicSQ, sq, err := newRing(caps.MaxSendWR, ring.SendWQESize+room)
	if err != nil {
		return nil, fmt.Errorf("create queue pair: %v: %w", err, ErrInvalid)
	}
	if cfg.SelectiveRepeat && cfg.Type != RC {
		return nil, fmt.Errorf("create queue pair: only RC queue pairs repeat selectively: %w", ErrInvalid)
	}
	q := &QP{lifetime: lifetime{ctx: p.ctx}, typ: cfg.Type, cap: caps, maxMsg: l.MaxMsgSize, sq: sq, selective: cfg.SelectiveRepeat}
	init := device.QPInit{Type: cfg.Type, PD: p.pd, SendCQ: cfg.SendCQ.cq, RecvCQ: cfg.RecvCQ.cq,
		SQ: nicSQ, Cap: caps, SigAll: cfg.SignalAll, Special: cfg.Special, Cookie: q}
	if cfg.SRQ != nil {
		init.SRQ = cfg.SRQ.srq
	} else if cfg.Type == XRCINI {
		caps.MaxRecvWR, caps.MaxRecvSGE = 0, 0
		init.Cap, q.cap = caps, caps
	} else if init.RQ, q.rq, err = newRing(caps.MaxRecvWR, recvElement(int(caps.MaxRecvSGE))); err != nil {
		return nil, fmt.Errorf("create queue pair: %v: %w", err, ErrInvalid)
	}
	if q.qp, err = p.ctx.ctx.CreateQP(init); err != nil {
		return nil, err
	}
	_, granted, err := q.qp.Query() // the room for scatter/gather entries takes inline data too
	if err != nil {
		return nil, err
	}
	q.cap.MaxInline = granted.Cap.MaxInline
	return q, nil
}

// SelectiveRepeat tells whether the connection repeats selectively: both sides have offered it (QPConfig.SelectiveRepeat).
func (q *QP) SelectiveRepeat() bool {
	on, err := q.qp.Selective()
	return err == nil && on
}

// Num is the queue pair number.
func (q *QP) Num() uint32 { return q.qp.Num() }

// Close destroys the queue pair. What was posted and has not completed never will.
func (q *QP) Close() error {
	_, err := q.close(q.qp.Destroy)
	return err
}

// Attr, AttrMask and the attribute bits are those of ibv_modify_qp.
type (
	Attr     = nic.Attr
	AttrMask = nic.AttrMask
	AHAttr   = nic.AHAttr
	State    = nic.State
)

// States of a queue pair.
const (
	StateReset = nic.Reset
	StateInit  = nic.Init
	StateRTR   = nic.RTR
	StateRTS   = nic.RTS
	StateSQD   = nic.SQD // sends that have begun complete, no other begins
	StateSQE   = nic.SQE // UC, UD: a send has failed, receives go on; Modify to RTS revives it
	StateError = nic.Err
)

// Attributes that Modify is to set.
const (
	AttrState           = nic.AttrState
	AttrCurState        = nic.AttrCurState
	AttrAccessFlags     = nic.AttrAccessFlags
	AttrPKeyIndex       = nic.AttrPKeyIndex
	AttrPort            = nic.AttrPort
	AttrQKey            = nic.AttrQKey
	AttrAV              = nic.AttrAV
	AttrPathMTU         = nic.AttrPathMTU
	AttrTimeout         = nic.AttrTimeout
	AttrRetryCnt        = nic.AttrRetryCnt
	AttrRNRRetry        = nic.AttrRNRRetry
	AttrRQPSN           = nic.AttrRQPSN
	AttrMaxRDAtomic     = nic.AttrMaxRDAtomic
	AttrMinRNRTimer     = nic.AttrMinRNRTimer
	AttrSQPSN           = nic.AttrSQPSN
	AttrMaxDestRDAtomic = nic.AttrMaxDestRDAtomic
	AttrDestQPN         = nic.AttrDestQPN
	AttrAltPath         = nic.AttrAltPath          // AltAH, AltPort, AltPKeyIndex and AltTimeout
	AttrPathMigState    = nic.AttrPathMigState     // see the states of path migration
	AttrSQDAsyncNotify  = nic.AttrEnSQDAsyncNotify // an event when everything that had begun has completed
)

// States of path migration (InfiniBand vol. 1, 17.2.8). A program gives its queue pair an alternate path and asks for
// MigRearm; when the peer's has done so too, and sent something, the NIC makes it MigArmed. From then on it goes over to
// the alternate path by itself when an RC request has used up its retries, when the address that the path begins
// at goes down, or when the peer has gone over; and when the program asks for MigMigrated. EventPathMigrated says
// that it has: the alternate path is the primary one then, and none is left until the program gives another.
const (
	MigMigrated = nic.MigMigrated // the state at first: no other path is ready
	MigRearm    = nic.MigRearm
	MigArmed    = nic.MigArmed
)

// Modify changes the attributes in mask, and the state (InfiniBand vol. 1, 11.2.5.2). What the
// specification does not allow is ErrInvalid and changes nothing.
func (q *QP) Modify(a *Attr, mask AttrMask) error {
	if err := q.use("modify queue pair"); err != nil {
		return err
	}
	return q.told("modify queue pair", q.qp.Modify(a, mask))
}

// QPInfo is what a queue pair was created with: the capabilities that it was granted, without receives if it
// shares them, its type, and whether every send completes visibly.
type QPInfo = nic.InitInfo

// Info returns what the queue pair was created with (the second half of ibv_query_qp).
func (q *QP) Info() (QPInfo, error) {
	if err := q.use("query queue pair"); err != nil {
		return QPInfo{}, err
	}
	_, i, err := q.qp.Query()
	return i, err
}

// Query returns the attributes.
func (q *QP) Query() (Attr, error) {
	if err := q.use("query queue pair"); err != nil {
		return Attr{}, err
	}
	a, _, err := q.qp.Query()
	return a, err
}
