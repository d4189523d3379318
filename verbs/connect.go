package verbs

import (
	"fmt"
	"math"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// Endpoint is what a peer must know of a queue pair to connect to it. Programs exchange it by any
// means they have, a TCP connection for instance.
type Endpoint struct {
	GID GID    `json:"gid"`
	QPN uint32 `json:"qpn"`
	PSN uint32 `json:"psn"` // the first packet sequence number that the peer will send: 24 bits

	// Selective offers selective repeat: QPConfig.SelectiveRepeat.
	Selective bool `json:"selective,omitempty"`
}

// ConnectOptions are the attributes of a connection. Zero fields mean the defaults in brackets.
type ConnectOptions struct {
	GIDIndex   int    // of the own address
	PSN        uint32 // own first packet sequence number: what the peer was told
	MTU        int    // path MTU in bytes [the device's]
	Access     Access // what the peer may do [remote write, read and atomic]
	Timeout    int    // RC: local ACK timeout, 4.096 us * 2^Timeout [14, 67 ms]; -1: none
	RetryCount int    // RC [7]; -1: 0
	RNRRetry   int    // RC [7, for ever]; -1: 0
	RNRTimer   int    // RC: code of the RNR timer that peers are told [12, 0.64 ms]
	RDAtomic   int    // RC: RDMA READs and atomics in flight, each way [16]
	HopLimit   int    // [64]
	Class      uint8  // traffic class
}

func pick(v, def int) uint8 {
	switch {
	case v == 0:
		return uint8(def)
	case v < 0:
		return 0
	}
	return uint8(v)
}

// check refuses what does not fit into the fields of attributes; what fits but may not be, Modify refuses.
func (o *ConnectOptions) check() error {
	for _, f := range []struct {
		what  string
		v     int
		least int
	}{{"GID index", o.GIDIndex, 0}, {"timeout", o.Timeout, -1}, {"retry count", o.RetryCount, -1}, {"RNR retry count", o.RNRRetry, -1},
		{"RNR timer", o.RNRTimer, -1}, {"number of RDMA READs and atomics", o.RDAtomic, -1}, {"hop limit", o.HopLimit, 0}} {
		if f.v < f.least || f.v > math.MaxUint8 {
			return fmt.Errorf("a %s of %d: %w", f.what, f.v, ErrInvalid)
		}
	}
	return nil
}

// Init takes the queue pair from RESET to INIT: receives may be posted.
func (q *QP) Init(access Access) error {
	a := &Attr{State: nic.Init, Port: 1, AccessFlags: access}
	return q.Modify(a, nic.AttrState|nic.AttrPort|nic.AttrPKeyIndex|nic.AttrAccessFlags)
}

// Connect takes an RC, UC or XRC queue pair from RESET or INIT to RTS, connected to the peer, which must be of the
// same type; of XRC, one is XRCINI and the other XRCTGT.
func (q *QP) Connect(peer Endpoint, o ConnectOptions) error {
	if q.typ == UD {
		return fmt.Errorf("connect QP %#x: it is of type UD, which has no connection: %w", q.Num(), ErrInvalid)
	}
	if err := o.check(); err != nil {
		return fmt.Errorf("connect QP %#x: %w", q.Num(), err)
	}
	if o.Access == 0 {
		o.Access = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
	}
	if o.MTU == 0 {
		o.MTU = q.ctx.dev.MTU()
	}
	code := roce.MTUCode(o.MTU)
	if code == 0 {
		return fmt.Errorf("connect QP %#x: path MTU %d: 256, 512, 1024, 2048 or 4096 are possible: %w", q.Num(), o.MTU, ErrInvalid)
	}
	if cur, err := q.Query(); err != nil {
		return err
	} else if cur.State == nic.Reset {
		if err := q.Init(o.Access); err != nil {
			return err
		}
	}
	if q.selective && peer.Selective {
		if err := q.qp.SetSelective(true); err != nil {
			return q.told("connect queue pair", err)
		}
	}
	rtr := &Attr{State: nic.RTR, PathMTU: code, DestQPN: peer.QPN, RQPSN: peer.PSN, MaxDestRDAtomic: pick(o.RDAtomic, 16),
		MinRNRTimer: pick(o.RNRTimer, 12), AccessFlags: o.Access,
		AH: AHAttr{DGID: peer.GID, SGIDIndex: uint8(o.GIDIndex), HopLimit: pick(o.HopLimit, 64), TrafficClass: o.Class, IsGlobal: true, Port: 1}}
	toRTR, toRTS := connectMasks(q.typ)
	mask := nic.AttrState | nic.AttrAV | nic.AttrPathMTU | nic.AttrDestQPN | nic.AttrRQPSN | nic.AttrAccessFlags
	if err := q.Modify(rtr, mask|toRTR); err != nil {
		return err
	}
	rts := &Attr{State: nic.RTS, Timeout: pick(o.Timeout, 14), RetryCnt: pick(o.RetryCount, 7), RNRRetry: pick(o.RNRRetry, 7),
		SQPSN: o.PSN, MaxRDAtomic: pick(o.RDAtomic, 16)}
	return q.Modify(rts, nic.AttrState|nic.AttrSQPSN|toRTS)
}

// Local is the queue pair's own endpoint, for the peer: the address of GID index gidIndex, and psn.
func (q *QP) Local(gidIndex int, psn uint32) (Endpoint, error) {
	for _, g := range q.ctx.dev.GIDs() {
		if g.Index == gidIndex {
			return Endpoint{GID: g.GID, QPN: q.Num(), PSN: psn & 0xffffff, Selective: q.selective}, nil
		}
	}
	return Endpoint{}, fmt.Errorf("endpoint of QP %#x: no GID at index %d: %w", q.Num(), gidIndex, ErrInvalid)
}

// Activate takes a UD queue pair from RESET to RTS, with the Q_Key that peers must send.
func (q *QP) Activate(qkey uint32) error {
	if q.typ != UD {
		return fmt.Errorf("activate QP %#x: it is not of type UD: %w", q.Num(), ErrInvalid)
	}
	err := q.Modify(&Attr{State: nic.Init, Port: 1, QKey: qkey}, nic.AttrState|nic.AttrPort|nic.AttrPKeyIndex|nic.AttrQKey)
	if err != nil {
		return err
	}
	if err = q.Modify(&Attr{State: nic.RTR}, nic.AttrState); err != nil {
		return err
	}
	return q.Modify(&Attr{State: nic.RTS}, nic.AttrState|nic.AttrSQPSN)
}
