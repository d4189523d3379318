package nic

import (
	"math/rand/v2"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// A NIC is one processing unit of the device core, of which there is one unless Config.Units says otherwise. It
// is used by one goroutine at a time; so are commands, with no unit in use elsewhere: see units.go.
type NIC struct {
	*shared
	index int // among the units

	now      int64 // the latest time that an entry point was told
	events   []Event
	spare    []Event // the batch that the last Events handed out
	overruns []*CQ   // overflowed, and their queue pairs not yet told
	held     []*CQ   // moderated, with a completion event that waits
	late     []*CQ   // with completions that are held back, of faults

	stats     Stats
	storm     storm
	transport transport
}

// New makes a NIC, and returns its first unit. Zero fields of cfg and of its Limits take the defaults; limits
// beyond what the queues' layout can carry are cut down to it. The same cfg gives the same keys and numbers.
func New(cfg Config) *NIC {
	s := &shared{
		limits:  fillLimits(cfg.Limits),
		policy:  cfg.Policy,
		planted: cfg.Planted,
		mtuCode: mtuCodeAtMost(cfg.MTU),

		localMTU: min(cfg.LocalMTU, roce.MaxPayload),
		pkeys:    append([]uint16(nil), cfg.PKeys...),
		mrs:      make(map[uint32]*MR),
		ahs:      make(map[uint32]*AH),
		qps:      make(map[uint32]*QP),
		groups:   make(map[roce.GID]*group),
		peers:    make(map[peerKey]*peerShare),
	}
	if len(s.pkeys) == 0 {
		s.pkeys = []uint16{0xffff} // the default partition, full member (vol. 1, 10.9.1.2)
	}
	rng := rand.New(rand.NewPCG(cfg.Seed, 0x726e6963))
	s.mrKeys, s.qpNums = newKeySpace(rng), newKeySpace(rng)
	s.policy.DCQCN = s.policy.DCQCN.withDefaults()
	for i := range min(max(1, cfg.Units), MaxUnits) {
		n := &NIC{shared: s, index: i}
		n.transport.init(n)
		s.units = append(s.units, n)
	}
	s.makeLock = cfg.NewLock
	s.peersMu = s.newLock()
	return s.units[0]
}

// Limits are the NIC's limits, with the defaults filled in.
func (n *NIC) Limits() Limits { return n.limits }

// Stats are the unit's counters, live.
func (n *NIC) Stats() *Stats { return &n.stats }

// MTUCode is the code (1..5) of the active MTU.
func (n *NIC) MTUCode() uint8 { return n.mtuCode }

// PKeys is the P_Key table of the port. It must not be changed.
func (n *NIC) PKeys() []uint16 { return n.pkeys }

// fillLimits puts defaults where l is zero and bounds what was asked by what can be carried.
func fillLimits(l Limits) Limits {
	d := DefaultLimits()
	l.MaxQP = orDefault(l.MaxQP, d.MaxQP, maxNumbers)
	l.MaxCQ = orDefault(l.MaxCQ, d.MaxCQ, maxNumbers)
	l.MaxMR = orDefault(l.MaxMR, d.MaxMR, maxNumbers)
	l.MaxMW = orDefault(l.MaxMW, d.MaxMW, maxNumbers)
	l.MaxPD = orDefault(l.MaxPD, d.MaxPD, maxNumbers)
	l.MaxAH = orDefault(l.MaxAH, d.MaxAH, maxNumbers)
	l.MaxQPWR = orDefault(l.MaxQPWR, d.MaxQPWR, ring.MaxEntries/2-1)
	l.MaxSGE = orDefault(l.MaxSGE, d.MaxSGE, ring.MaxSGE)
	l.MaxInline = orDefault(l.MaxInline, d.MaxInline, ring.MaxInline)
	l.MaxSRQ = orDefault(l.MaxSRQ, d.MaxSRQ, maxNumbers)
	l.MaxSRQWR = orDefault(l.MaxSRQWR, d.MaxSRQWR, ring.MaxEntries/2-1)
	l.MaxCQE = orDefault(l.MaxCQE, d.MaxCQE, ring.MaxEntries/2-1)
	// 9.7.7 has messages of up to 2^31 bytes: of the smallest MTU 2^23 packets, which PSNs cannot tell from as many of the past.
	l.MaxMsgSize = orDefault(l.MaxMsgSize, d.MaxMsgSize, 1<<30)
	l.MaxRDAtomic = orDefault(l.MaxRDAtomic, d.MaxRDAtomic, 255)
	l.MaxMulticastGroups = orDefault(l.MaxMulticastGroups, d.MaxMulticastGroups, maxNumbers)
	l.MaxMulticastMembers = orDefault(l.MaxMulticastMembers, d.MaxMulticastMembers, maxNumbers)
	return l
}

func orDefault[T int | uint32 | uint8](v, def, most T) T {
	if v <= 0 {
		v = def
	}
	return min(v, most)
}

// mtuCodeAtMost is the code of the largest MTU that bytes allows; 0 bytes is the default, 4096.
func mtuCodeAtMost(bytes uint32) uint8 {
	code := uint8(5)
	for bytes != 0 && code > 1 && uint32(roce.MTUBytes(code)) > bytes {
		code--
	}
	return code
}

// refuse makes the answer to a command that is not carried out.
func refuse(errno Errno, op, object, reason string) error {
	return &Error{Op: op, Object: object, Reason: reason, Errno: errno}
}
