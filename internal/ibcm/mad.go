package ibcm

import (
	"encoding/binary"

	"rnic/internal/roce"
)

var be = binary.BigEndian

// The header of a MAD (vol. 1, 13.4.3).
const (
	offVersion = 0
	offClass   = 1
	offClassV  = 2
	offMethod  = 3
	offTID     = 8
	offAttr    = 16
	headerSize = 24

	baseVersion = 1
	classCM     = 7
	classV      = 2
	methodSend  = 3
)

// kind is the attribute of a message (12.6, table of attributes).
type kind uint16

const (
	kindREQ     kind = 0x10
	kindMRA     kind = 0x11
	kindREJ     kind = 0x12
	kindREP     kind = 0x13
	kindRTU     kind = 0x14
	kindDREQ    kind = 0x15
	kindDREP    kind = 0x16
	kindSIDRREQ kind = 0x17
	kindSIDRREP kind = 0x18
	kindLAP     kind = 0x19
	kindAPR     kind = 0x1a
)

// kinds counts messages by kind, from kindREQ on.
const kinds = int(kindAPR-kindREQ) + 1

func (k kind) String() string {
	names := [kinds]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}
	if i := int(k) - int(kindREQ); i >= 0 && i < kinds {
		return names[i]
	}
	return "?"
}

// mad is one datagram with its header.
type mad []byte

// decode checks the length and the header.
func decode(b []byte) (m mad, k kind, ok bool) {
	if len(b) != MADSize || b[offVersion] != baseVersion || b[offClass] != classCM || b[offClassV] != classV || b[offMethod] != methodSend {
		return nil, 0, false
	}
	k = kind(be.Uint16(b[offAttr:]))
	return b, k, k >= kindREQ && k <= kindAPR
}

func (m mad) header(k kind, tid uint64) {
	m[offVersion], m[offClass], m[offClassV], m[offMethod] = baseVersion, classCM, classV, methodSend
	be.PutUint64(m[offTID:], tid)
	be.PutUint16(m[offAttr:], uint16(k))
}

func (m mad) tid() uint64     { return be.Uint64(m[offTID:]) }
func (m mad) setTID(t uint64) { be.PutUint64(m[offTID:], t) }
func (m mad) body() []byte    { return m[headerSize:] }

// remoteTimeout is how long who gets a REQ may take for its answer, and so the time between the sender's repetitions.
func (m mad) remoteTimeout() uint8 { return m.body()[43] >> 3 }

// The two ids that begin the body of all but SIDR messages: the sender's and the receiver's. A REQ has only the first.
func (m mad) localID() uint32  { return be.Uint32(m[headerSize:]) }
func (m mad) remoteID() uint32 { return be.Uint32(m[headerSize+4:]) }
func (m mad) ids(local, remote uint32) {
	be.PutUint32(m[headerSize:], local)
	be.PutUint32(m[headerSize+4:], remote)
}

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }
func get24(b []byte) uint32    { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// Private data and other areas of fixed length.
const (
	reqPrivateAt     = 140
	repPrivateAt     = 36
	rejInfoAt        = 12
	rejPrivateAt     = 84
	mraPrivateAt     = 10
	rtuPrivateAt     = 8
	dreqPrivateAt    = 12
	drepPrivateAt    = 8
	sidrReqPrivateAt = 16
	sidrRepInfoAt    = 24
	sidrRepPrivateAt = 96
)

// permissiveLID is what a path outside the subnet has for LIDs; RoCE has no LIDs.
const permissiveLID = 0xffff

// encodeREQ writes the body of a REQ (12.6.5).
func (m mad) encodeREQ(local uint32, guid [8]byte, r *Request) {
	b := m.body()
	be.PutUint32(b, local)
	be.PutUint64(b[8:], r.ServiceID)
	copy(b[16:24], guid[:])
	be.PutUint32(b[28:], r.QKey)
	put24(b[32:], r.QPN)
	b[35] = r.ResponderResources
	b[39] = r.InitiatorDepth
	b[43] = r.RespTimeout<<3 | byte(r.Transport&3)<<1 | flag(r.FlowControl)
	put24(b[44:], r.StartingPSN)
	b[47] = r.RespTimeout<<3 | r.RetryCount&7
	be.PutUint16(b[48:], r.PKey)
	b[50] = r.PathMTU<<4 | r.RNRRetry&7
	b[51] = r.MaxCMRetry<<4 | flag(r.SRQ)<<3
	if r.Transport == TransportXRC {
		b[51] |= 1 // transport type extension: XRC
	}
	encodePath(b[52:96], &r.Primary)
	if r.Alternate.Local != (roce.GID{}) {
		encodePath(b[96:140], &r.Alternate)
	}
	m.setREQECE(r.ECE)
	copy(b[reqPrivateAt:reqPrivateAt+ReqPrivate], r.Private)
}

// encodePath writes the 44 bytes of a path of a REQ.
func encodePath(b []byte, p *Path) {
	be.PutUint16(b, permissiveLID)
	be.PutUint16(b[2:], permissiveLID)
	copy(b[4:20], p.Local[:])
	copy(b[20:36], p.Remote[:])
	be.PutUint32(b[36:], p.FlowLabel<<12|uint32(p.PacketRate&0x3f))
	b[40], b[41] = p.TrafficClass, p.HopLimit
	b[42] = p.SL << 4
	b[43] = p.AckTimeout << 3
}

func decodePath(b []byte) (p Path) {
	copy(p.Local[:], b[4:20])
	copy(p.Remote[:], b[20:36])
	v := be.Uint32(b[36:])
	p.FlowLabel, p.PacketRate = v>>12, byte(v&0x3f)
	p.TrafficClass, p.HopLimit, p.SL, p.AckTimeout = b[40], b[41], b[42]>>4, b[43]>>3
	return p
}

// decodeREQ reads the body of a REQ. Paths are the sender's: its local is the other side here.
func (m mad) decodeREQ() *Request {
	b := m.body()
	r := &Request{ServiceID: be.Uint64(b[8:]), RespTimeout: b[47] >> 3, RetryCount: b[47] & 7, PKey: be.Uint16(b[48:]), PathMTU: b[50] >> 4,
		MaxCMRetry: b[51] >> 4, Primary: decodePath(b[52:96]), Alternate: decodePath(b[96:140]), Private: clone(b[reqPrivateAt : reqPrivateAt+ReqPrivate])}
	copy(r.RemoteGUID[:], b[16:24])
	r.AckTimeout = r.Primary.AckTimeout
	r.Transport = Transport(b[43] >> 1 & 3)
	if r.Transport == TransportXRC && b[51]&7 != 1 {
		r.Transport = transportUnknown
	}
	r.Connection = Connection{QPN: get24(b[32:]), QKey: be.Uint32(b[28:]), StartingPSN: get24(b[44:]), ResponderResources: b[35],
		InitiatorDepth: b[39], FlowControl: b[43]&1 != 0, RNRRetry: b[50] & 7, SRQ: b[51]&8 != 0, ECE: m.reqECE()}
	return r
}

// encodeREP writes the body of a REP behind its ids (12.6.8).
func (m mad) encodeREP(guid [8]byte, r *Reply) {
	b := m.body()
	be.PutUint32(b[8:], r.QKey)
	put24(b[12:], r.QPN)
	put24(b[20:], r.StartingPSN)
	b[24], b[25] = r.ResponderResources, r.InitiatorDepth
	b[26] = r.AckDelay<<3 | r.Failover&3<<1 | flag(r.FlowControl)
	b[27] = r.RNRRetry<<5 | flag(r.SRQ)<<4
	copy(b[28:36], guid[:])
	m.setREPECE(r.ECE)
	copy(b[repPrivateAt:repPrivateAt+RepPrivate], r.Private)
}

func (m mad) decodeREP() *Reply {
	b := m.body()
	r := &Reply{AckDelay: b[26] >> 3, Failover: b[26] >> 1 & 3, Private: clone(b[repPrivateAt : repPrivateAt+RepPrivate])}
	copy(r.RemoteGUID[:], b[28:36])
	r.Connection = Connection{QPN: get24(b[12:]), QKey: be.Uint32(b[8:]), StartingPSN: get24(b[20:]), ResponderResources: b[24],
		InitiatorDepth: b[25], FlowControl: b[26]&1 != 0, RNRRetry: b[27] >> 5, SRQ: b[27]&0x10 != 0, ECE: m.repECE()}
	return r
}

// What a REJ or MRA is about (12.6.6, 12.6.7).
type about uint8

const (
	aboutREQ   about = 0
	aboutREP   about = 1
	aboutOther about = 2
)

func (m mad) encodeREJ(a about, reason Reason, info, private []byte) {
	b := m.body()
	b[8] = byte(a) << 6
	info = info[:min(len(info), RejInfo)]
	b[9] = byte(len(info)) << 1
	be.PutUint16(b[10:], uint16(reason))
	copy(b[rejInfoAt:], info)
	copy(b[rejPrivateAt:rejPrivateAt+RejPrivate], private)
}

func (m mad) decodeREJ() (a about, reason Reason, info, private []byte) {
	b := m.body()
	n := min(int(b[9]>>1), RejInfo)
	return about(b[8] >> 6), Reason(be.Uint16(b[10:])), clone(b[rejInfoAt : rejInfoAt+n]), clone(b[rejPrivateAt : rejPrivateAt+RejPrivate])
}

func (m mad) encodeMRA(a about, timeout uint8, private []byte) {
	b := m.body()
	b[8], b[9] = byte(a)<<6, timeout<<3
	copy(b[mraPrivateAt:mraPrivateAt+MraPrivate], private)
}

// The status of an APR (12.8.2): alternate paths are not taken by message.
const (
	aprStatusAt    = 9
	aprUnknownID   = 1
	aprUnsupported = 2
)

func clone(b []byte) []byte { return append([]byte(nil), b...) }
