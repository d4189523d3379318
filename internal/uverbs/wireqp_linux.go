package uverbs

import "rnic/internal/nic"

// decodeAHAttr reads struct ib_uverbs_ah_attr, 32 bytes, as CREATE_AH has it.
func decodeAHAttr(b []byte) (a nic.AHAttr) {
	_ = b[31]
	copy(a.DGID[:], b[:16])
	a.FlowLabel = le.Uint32(b[16:])
	a.SGIDIndex = b[20]
	a.HopLimit = b[21]
	a.TrafficClass = b[22]
	a.DLID = le.Uint16(b[24:])
	a.SL = b[26]
	a.SrcPathBits = b[27]
	a.StaticRate = b[28]
	a.IsGlobal = b[29] != 0
	a.Port = b[30]
	return a
}

// decodeDest reads struct ib_uverbs_qp_dest, 32 bytes, as MODIFY_QP has it.
func decodeDest(b []byte) (a nic.AHAttr) {
	_ = b[31]
	copy(a.DGID[:], b[:16])
	a.FlowLabel = le.Uint32(b[16:])
	a.DLID = le.Uint16(b[20:])
	a.SGIDIndex = b[24]
	a.HopLimit = b[25]
	a.TrafficClass = b[26]
	a.SL = b[27]
	a.SrcPathBits = b[28]
	a.StaticRate = b[29]
	a.IsGlobal = b[30] != 0
	a.Port = b[31]
	return a
}

// encodeDest writes struct ib_uverbs_qp_dest.
func encodeDest(b []byte, a *nic.AHAttr) {
	_ = b[31]
	copy(b[:16], a.DGID[:])
	le.PutUint32(b[16:], a.FlowLabel)
	le.PutUint16(b[20:], a.DLID)
	b[24] = a.SGIDIndex
	b[25] = a.HopLimit
	b[26] = a.TrafficClass
	b[27] = a.SL
	b[28] = a.SrcPathBits
	b[29] = a.StaticRate
	b[30] = 1 // RoCE has no address without GRH
	b[31] = a.Port
}

// modifyQP is struct ib_uverbs_modify_qp.
type modifyQP struct {
	Handle uint32
	Mask   nic.AttrMask
	Attr   nic.Attr
}

// decodeModifyQP reads it. Precondition: len(b) >= sizeModifyQP.
func decodeModifyQP(b []byte) (m modifyQP) {
	_ = b[sizeModifyQP-1]
	a := &m.Attr
	a.AH = decodeDest(b[0:])
	a.AltAH = decodeDest(b[32:])
	m.Handle = le.Uint32(b[64:])
	m.Mask = nic.AttrMask(le.Uint32(b[68:]))
	a.QKey = le.Uint32(b[72:])
	a.RQPSN = le.Uint32(b[76:])
	a.SQPSN = le.Uint32(b[80:])
	a.DestQPN = le.Uint32(b[84:])
	a.AccessFlags = nic.Access(le.Uint32(b[88:]))
	a.PKeyIndex = le.Uint16(b[92:])
	a.AltPKeyIndex = le.Uint16(b[94:])
	a.State = nic.State(b[96])
	a.CurState = nic.State(b[97])
	a.PathMTU = b[98]
	a.PathMigState = b[99]
	a.EnSQDAsyncNotify = b[100]
	a.MaxRDAtomic = b[101]
	a.MaxDestRDAtomic = b[102]
	a.MinRNRTimer = b[103]
	a.Port = b[104]
	a.Timeout = b[105]
	a.RetryCnt = b[106]
	a.RNRRetry = b[107]
	a.AltPort = b[108]
	a.AltTimeout = b[109]
	return m
}

// encodeQPAttr writes struct ib_uverbs_query_qp_resp. Precondition: len(b) >= sizeQPAttr, zeroed.
func encodeQPAttr(b []byte, a *nic.Attr, c *nic.Cap, sigAll bool) {
	_ = b[sizeQPAttr-1]
	encodeDest(b[0:], &a.AH)
	encodeDest(b[32:], &a.AltAH)
	encodeCap(b[64:], c)
	le.PutUint32(b[84:], a.QKey)
	le.PutUint32(b[88:], a.RQPSN)
	le.PutUint32(b[92:], a.SQPSN)
	le.PutUint32(b[96:], a.DestQPN)
	le.PutUint32(b[100:], uint32(a.AccessFlags))
	le.PutUint16(b[104:], a.PKeyIndex)
	le.PutUint16(b[106:], a.AltPKeyIndex)
	b[108] = uint8(a.State)
	b[109] = uint8(a.CurState)
	b[110] = a.PathMTU
	b[111] = a.PathMigState
	b[112] = boolByte(a.SQDraining)
	b[113] = a.MaxRDAtomic
	b[114] = a.MaxDestRDAtomic
	b[115] = a.MinRNRTimer
	b[116] = a.Port
	b[117] = a.Timeout
	b[118] = a.RetryCnt
	b[119] = a.RNRRetry
	b[120] = a.AltPort
	b[121] = a.AltTimeout
	b[122] = boolByte(sigAll)
}

// encodeCap writes struct ib_uverbs_qp_cap, which several structures contain.
func encodeCap(b []byte, c *nic.Cap) {
	_ = b[sizeQPCap-1]
	le.PutUint32(b[0:], c.MaxSendWR)
	le.PutUint32(b[4:], c.MaxRecvWR)
	le.PutUint32(b[8:], c.MaxSendSGE)
	le.PutUint32(b[12:], c.MaxRecvSGE)
	le.PutUint32(b[16:], c.MaxInline)
}

// decodeCap reads it.
func decodeCap(b []byte) nic.Cap {
	_ = b[sizeQPCap-1]
	return nic.Cap{MaxSendWR: le.Uint32(b[0:]), MaxRecvWR: le.Uint32(b[4:]),
		MaxSendSGE: le.Uint32(b[8:]), MaxRecvSGE: le.Uint32(b[12:]), MaxInline: le.Uint32(b[16:])}
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}
