package ucm

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"rnic/internal/cma"
	"rnic/internal/nic"
)

// Sizes of structures in bytes (rdma/rdma_user_cm.h).
const (
	sizeHeader    = 8
	sizeParam     = 272 // rdma_ucm_conn_param
	sizeAHAttr    = 32  // ib_uverbs_ah_attr
	sizeQPAttr    = 144 // ib_uverbs_qp_attr
	sizeEvent     = 336 // rdma_ucm_event_resp
	sizeEventTail = 12  // its reserved word and ece, which old libraries have no room for
	sizePathData  = 72  // ib_path_rec_data
)

// sockaddr decodes an IP address.
func (c *command) sockaddr(b []byte) (netip.AddrPort, error) {
	if len(b) < 2 {
		return netip.AddrPort{}, syscall.EINVAL
	}
	switch family := le.Uint16(b); {
	case family == syscall.AF_INET && len(b) >= 8:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), nil
	case family == syscall.AF_INET6 && len(b) >= 24:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), binary.BigEndian.Uint16(b[2:])), nil
	}
	return netip.AddrPort{}, syscall.EINVAL
}

// putSockaddr writes an address as sockaddr_in or sockaddr_in6, and returns its length. Nothing if there is none.
func putSockaddr(b []byte, a netip.AddrPort) int {
	addr := a.Addr()
	switch {
	case !addr.IsValid():
		return 0
	case addr.Is4():
		le.PutUint16(b, syscall.AF_INET)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		v := addr.As4()
		copy(b[4:], v[:])
		return 16
	}
	le.PutUint16(b, syscall.AF_INET6)
	binary.BigEndian.PutUint16(b[2:], a.Port())
	v := addr.As16()
	copy(b[8:], v[:])
	return 28
}

// decodeParam reads struct rdma_ucm_conn_param; valid is its last byte.
func decodeParam(b []byte) (p cma.ConnParam, valid bool) {
	n := int(b[264])
	// The Q_Key counts, in the kernel too, for addresses of InfiniBand only: those of datagrams in SpaceUDP have all the same.
	p = cma.ConnParam{QPN: le.Uint32(b) & 0xffffff, Private: append([]byte(nil), b[8:8+min(n, 256)]...), SRQ: b[265] != 0,
		ResponderResources: b[266], InitiatorDepth: b[267], FlowControl: b[268] != 0, RetryCount: b[269], RNRRetryCount: b[270]}
	return p, b[271] != 0
}

// encodeParam writes it.
func encodeParam(b []byte, p *cma.ConnParam) {
	le.PutUint32(b, p.QPN)
	le.PutUint32(b[4:], p.QKey)
	b[264] = byte(copy(b[8:264], p.Private[:min(len(p.Private), 255)]))
	for at, on := range map[int]bool{265: p.SRQ, 268: p.FlowControl} {
		if on {
			b[at] = 1
		}
	}
	b[266], b[267], b[269], b[270] = p.ResponderResources, p.InitiatorDepth, p.RetryCount, p.RNRRetryCount
}

// encodeAH writes struct ib_uverbs_ah_attr.
func encodeAH(b []byte, a *nic.AHAttr) {
	copy(b, a.DGID[:])
	le.PutUint32(b[16:], a.FlowLabel)
	b[20], b[21], b[22] = a.SGIDIndex, a.HopLimit, a.TrafficClass
	le.PutUint16(b[24:], a.DLID)
	b[26], b[27], b[28] = a.SL, a.SrcPathBits, a.StaticRate
	if a.IsGlobal {
		b[29] = 1
	}
	b[30] = a.Port
}

// encodeQPAttr writes struct ib_uverbs_qp_attr.
func encodeQPAttr(a *nic.Attr, mask nic.AttrMask) []byte {
	b := make([]byte, sizeQPAttr)
	for i, v := range []uint32{uint32(mask), uint32(a.State), uint32(a.CurState), uint32(a.PathMTU), uint32(a.PathMigState), a.QKey, a.RQPSN, a.SQPSN,
		a.DestQPN, uint32(a.AccessFlags)} {
		le.PutUint32(b[4*i:], v)
	}
	encodeAH(b[40:], &a.AH)
	encodeAH(b[72:], &a.AltAH)
	le.PutUint16(b[124:], a.PKeyIndex)
	le.PutUint16(b[126:], a.AltPKeyIndex)
	copy(b[128:], []byte{a.EnSQDAsyncNotify, 0, a.MaxRDAtomic, a.MaxDestRDAtomic, a.MinRNRTimer, a.Port, a.Timeout, a.RetryCnt, a.RNRRetry, a.AltPort, a.AltTimeout})
	return b
}

// encodeEvent writes struct rdma_ucm_event_resp.
func encodeEvent(uid uint64, num uint32, ud bool, e *cma.Event) []byte {
	b := make([]byte, sizeEvent)
	le.PutUint64(b, uid)
	le.PutUint32(b[8:], num)
	le.PutUint32(b[12:], uint32(e.Type))
	le.PutUint32(b[16:], uint32(int32(e.Status)))
	p := b[20:]
	if ud { // struct rdma_ucm_ud_param
		private := e.UD.Private
		if len(private) == 0 {
			private = e.Conn.Private // of a lookup that was refused
		}
		le.PutUint32(p, e.UD.QPN)
		le.PutUint32(p[4:], e.UD.QKey)
		encodeAH(p[8:], &e.UD.AH)
		p[296] = byte(copy(p[40:296], private[:min(len(private), 255)]))
		return b
	}
	encodeParam(p, &e.Conn)
	le.PutUint32(b[sizeEvent-sizeECE:], e.Conn.ECE.Vendor)
	le.PutUint32(b[sizeEvent-sizeECE+4:], e.Conn.ECE.Options)
	return b
}
