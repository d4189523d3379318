package uverbs

import (
	"rnic/internal/nic"
)

// Sizes in bytes of the commands' structures (rdma/ib_user_verbs.h), requests without their header,
// and of the provider's (rdma_user_rxe.h).
const (
	sizeCmdHdr      = 8
	sizeExCmdHdr    = 16
	sizeIoctlHdr    = 24
	sizeIoctlAttr   = 16
	sizeDeviceAttr  = 176 // ib_uverbs_query_device_resp
	sizeDeviceExt   = 304 // ib_uverbs_ex_query_device_resp
	sizePortAttr    = 40  // ib_uverbs_query_port_resp
	sizePortAttrExt = 48  // ib_uverbs_query_port_resp_ex
	sizeGIDEntry    = 32  // ib_uverbs_gid_entry
	sizeQPAttr      = 128 // ib_uverbs_query_qp_resp
	sizeModifyQP    = 112 // ib_uverbs_modify_qp
	sizeModifyQPExt = 120 // ib_uverbs_ex_modify_qp
	sizeCreateQP    = 56
	sizeCreateQPExt = 64 // ib_uverbs_ex_create_qp
	sizeModifyCQ    = 16 // ib_uverbs_ex_modify_cq
	sizeQPCap       = 20 // ib_uverbs_qp_cap
	sizeMMInfo      = 16 // mminfo
	sizeCompEvent   = 8  // ib_uverbs_comp_event_desc
	sizeAsyncEvent  = 16 // ib_uverbs_async_event_desc
	inlineLimit     = 8  // an attribute up to this length stands in the attribute itself
)

// deviceAttr is what QUERY_DEVICE answers.
type deviceAttr struct {
	FWVersion  uint64
	NodeGUID   [8]byte // as on the wire
	Limits     nic.Limits
	PKeys      uint16
	ACKDelay   uint8
	Ports      uint8
	CapFlags   uint64 // QUERY_DEVICE answers the lower half
	VendorID   uint32
	PartID     uint32
	HWVersion  uint32
	AtomicCap  uint32
	PageSizes  uint64
	MaxMRBytes uint64
	ODP        odpCaps
}

// odpCaps is struct ib_uverbs_odp_caps, and xrc_odp_caps: on-demand paging, in general and by transport.
type odpCaps struct{ General, RC, UC, UD, XRC uint32 }

// What is on-demand (enum ibv_odp_general_caps, ibv_odp_transport_cap_bits): here everything that uses memory.
const (
	odpSupport  = 1 << 0
	odpImplicit = 1 << 1

	odpSend    = 1 << 0
	odpRecv    = 1 << 1
	odpWrite   = 1 << 2
	odpRead    = 1 << 3
	odpAtomic  = 1 << 4
	odpSRQRecv = 1 << 5
)

// deviceODP are the capabilities of this NIC. The stock provider has no XRC.
var deviceODP = odpCaps{General: odpSupport | odpImplicit, RC: odpSend | odpRecv | odpWrite | odpRead | odpAtomic | odpSRQRecv,
	UC: odpSend | odpRecv | odpWrite | odpSRQRecv, UD: odpSend | odpRecv | odpSRQRecv}

// Device capability flags (enum ib_device_cap_flags) that hold for this NIC.
const (
	capAutoPathMig     = 1 << 4
	capUDAVPortEnforce = 1 << 6
	capSysImageGUID    = 1 << 11
	capRCRNRNAKGen     = 1 << 12
	capSRQResize       = 1 << 13
	capMemWindow       = 1 << 17
	capMemMgtExt       = 1 << 21 // local invalidate, SEND with invalidate
	capMemWindow2B     = 1 << 24
	capFlushGlobal     = 1 << 38
	capAtomicWrite     = 1 << 40

	deviceCaps = capAutoPathMig | capUDAVPortEnforce | capSysImageGUID | capRCRNRNAKGen | capMemWindow | capMemMgtExt | capMemWindow2B |
		capFlushGlobal | capAtomicWrite | capSRQResize

	atomicHCA = 1 // IB_ATOMIC_HCA: atomic among the NIC's own operations
)

// encode writes struct ib_uverbs_query_device_resp. Precondition: len(b) >= sizeDeviceAttr, zeroed.
func (d *deviceAttr) encode(b []byte) {
	_ = b[sizeDeviceAttr-1]
	l := &d.Limits
	le.PutUint64(b[0:], d.FWVersion)
	copy(b[8:16], d.NodeGUID[:])
	copy(b[16:24], d.NodeGUID[:]) // sys_image_guid
	le.PutUint64(b[24:], d.MaxMRBytes)
	le.PutUint64(b[32:], d.PageSizes)
	le.PutUint32(b[40:], d.VendorID)
	le.PutUint32(b[44:], d.PartID)
	le.PutUint32(b[48:], d.HWVersion)
	le.PutUint32(b[52:], uint32(l.MaxQP))
	le.PutUint32(b[56:], l.MaxQPWR)
	le.PutUint32(b[60:], uint32(d.CapFlags))
	le.PutUint32(b[64:], l.MaxSGE)
	le.PutUint32(b[68:], l.MaxSGE) // max_sge_rd
	le.PutUint32(b[72:], uint32(l.MaxCQ))
	le.PutUint32(b[76:], l.MaxCQE)
	le.PutUint32(b[80:], uint32(l.MaxMR))
	le.PutUint32(b[84:], uint32(l.MaxPD))
	le.PutUint32(b[88:], uint32(l.MaxRDAtomic))                 // max_qp_rd_atom
	le.PutUint32(b[96:], uint32(l.MaxRDAtomic)*uint32(l.MaxQP)) // max_res_rd_atom
	le.PutUint32(b[100:], uint32(l.MaxRDAtomic))                // max_qp_init_rd_atom
	le.PutUint32(b[108:], d.AtomicCap)
	le.PutUint32(b[120:], uint32(l.MaxMW))
	le.PutUint32(b[132:], uint32(l.MaxMulticastGroups))
	le.PutUint32(b[136:], uint32(l.MaxMulticastMembers))
	le.PutUint32(b[140:], uint32(min(int64(l.MaxMulticastGroups)*int64(l.MaxMulticastMembers), 1<<31-1))) // max_total_mcast_qp_attach
	le.PutUint32(b[144:], uint32(l.MaxAH))
	le.PutUint32(b[156:], uint32(l.MaxSRQ))
	le.PutUint32(b[160:], l.MaxSRQWR)
	le.PutUint32(b[164:], l.MaxSGE)
	le.PutUint16(b[168:], d.PKeys)
	b[170] = d.ACKDelay
	b[171] = d.Ports
}

// encodeExt writes struct ib_uverbs_ex_query_device_resp with its length. Precondition: len(b) >=
// sizeDeviceExt, zeroed.
func (d *deviceAttr) encodeExt(b []byte, length int) {
	_ = b[sizeDeviceExt-1]
	d.encode(b)
	le.PutUint32(b[180:], uint32(length)) // response_length: the fields that count
	le.PutUint64(b[184:], uint64(d.ODP.General))
	le.PutUint32(b[192:], d.ODP.RC)
	le.PutUint32(b[196:], d.ODP.UC)
	le.PutUint32(b[200:], d.ODP.UD)
	le.PutUint64(b[224:], d.CapFlags)
	le.PutUint16(b[280:], 0xffff) // cq_moderation_caps: completions
	le.PutUint16(b[282:], 0xffff) // and microseconds
	le.PutUint32(b[296:], d.ODP.XRC)
}

// portAttr is what QUERY_PORT answers.
type portAttr struct {
	CapFlags   uint32
	MaxMsgSize uint32 // bytes
	GIDs       uint32 // slots of the table
	PKeys      uint16
	State      uint8
	MaxMTU     uint8 // codes 1..5
	ActiveMTU  uint8
	Width      uint8
	Speed      uint8
	PhysState  uint8
	LinkLayer  uint8
}

// Values of a port (enum ib_uverbs_query_port_cap_flags, ib_port_state, ib_port_width,
// ib_port_speed, rdma_link_layer).
const (
	portCapCM       = 1 << 16
	portCapIPGIDs   = 1 << 26
	portDown        = 1
	portActive      = 4
	portWidth4X     = 2
	portSpeedEDR    = 32
	portDisabled    = 3 // port_physical_state
	portLinkUp      = 5
	portEthernet    = 2
	portGRHRequired = 1 // ib_uverbs_query_port_resp.flags: RoCE has no address without GRH
	portRate        = "100 Gb/sec (4X EDR)"
	mtuCode4096     = 5
	gidTypeRoCEv2   = 2 // ib_uverbs_gid_entry.gid_type
	portNumber      = 1
	maxVLNum        = 1
	deviceVendor    = 0xffffff // no IEEE company: as the kernel's rxe
	localACKDelay   = 15       // 4.096 us << 15: as the kernel's rxe
	pkeyTableLength = 1
)

// encode writes struct ib_uverbs_query_port_resp_ex, whose first 40 bytes are
// ib_uverbs_query_port_resp. Precondition: len(b) >= sizePortAttrExt, zeroed.
func (p *portAttr) encode(b []byte) {
	_ = b[sizePortAttrExt-1]
	le.PutUint32(b[0:], p.CapFlags)
	le.PutUint32(b[4:], p.MaxMsgSize)
	le.PutUint32(b[16:], p.GIDs)
	le.PutUint16(b[20:], p.PKeys)
	b[26] = p.State
	b[27] = p.MaxMTU
	b[28] = p.ActiveMTU
	b[30] = maxVLNum
	b[34] = p.Width
	b[35] = p.Speed
	b[36] = p.PhysState
	b[37] = p.LinkLayer
	b[38] = portGRHRequired
	le.PutUint32(b[44:], uint32(p.Speed)) // active_speed_ex, Linux 6.9
}

// gidEntry writes struct ib_uverbs_gid_entry. Precondition: len(b) >= sizeGIDEntry.
func gidEntry(b []byte, g [16]byte, index, ifindex int) {
	copy(b[:16], g[:])
	le.PutUint32(b[16:], uint32(index))
	le.PutUint32(b[20:], portNumber)
	le.PutUint32(b[24:], gidTypeRoCEv2)
	le.PutUint32(b[28:], uint32(ifindex))
}

// mmInfo writes struct mminfo: where the program maps a queue on its command descriptor.
func mmInfo(b []byte, offset int64, size int) {
	le.PutUint64(b[0:], uint64(offset))
	le.PutUint32(b[8:], uint32(size))
	le.PutUint32(b[12:], 0)
}

// words encodes 32-bit words, as most answers are.
func words(v ...uint32) []byte {
	b := make([]byte, 4*len(v))
	for i, x := range v {
		le.PutUint32(b[4*i:], x)
	}
	return b
}
