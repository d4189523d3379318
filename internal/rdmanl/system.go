package rdmanl

import "net/netip"

// System is what there is to be told of.
type System struct {
	Devices []Device
}

// Device is one RDMA device. Its ports are numbered from 1.
type Device struct {
	Index        uint32 // names the device in requests
	Name         string // 63 bytes at most (IB_DEVICE_NAME_MAX)
	Firmware     string
	NodeType     uint8 // RDMA_NODE_*; 1 is IB_CA, which RoCE devices are too
	CapFlags     uint64
	NodeGUID     [8]byte // as on the wire, as is the next
	SysImageGUID [8]byte
	Protocol     string // "roce"
	Ports        []Port
	Chardevs     []Chardev

	// Resources is called when they are asked for, at most once for a datagram; nil: there are none.
	Resources func() Resources
	// Counters are the hardware counters of a port, always the same in the same order; nil: there are none.
	Counters func(port uint32) []Counter
	// Remove takes the device away; nil: it cannot be. Removed: it has been, and is not to be told of.
	Remove  func()
	Removed bool
}

// Port is one port.
type Port struct {
	State, PhysState uint8  // enum ib_port_state, enum ib_port_phys_state
	IfIndex          uint32 // of the network interface; 0: none
	IfName           string
}

// Chardev is a device node through which programs reach a device.
type Chardev struct {
	Type         string // "uverbs", "umad"
	Name         string // below /dev/infiniband
	Major, Minor uint32
	ABI          uint64
	DriverID     uint32 // enum rdma_driver_id, which libibverbs chooses the provider by; 0: none
}

// Counter is one hardware counter.
type Counter struct {
	Name  string
	Value uint64
}

// Resources are what programs have created on a device. Numbers are unique among those of a kind, and never 0; PID is
// the process, 0 if it is not known.
type Resources struct {
	Contexts []Context
	PDs      []PD
	CQs      []CQ
	QPs      []QP
	MRs      []MR
	SRQs     []SRQ
	CMIDs    []CMID
}

// Context is an open device.
type Context struct{ Number, PID uint32 }

// PD is a protection domain, and how many objects are in it.
type PD struct {
	Number, Context, PID uint32
	Users                uint64
}

// CQ is a completion queue, how many completions it holds, and how many queues complete there.
type CQ struct {
	Number, Context, PID uint32
	CQE                  uint32
	Users                uint64
}

// MR is a memory region.
type MR struct {
	Number, PD, PID uint32
	LKey, RKey      uint32
	Length          uint64
}

// QP is a queue pair. RemoteNumber and RQPSN mean something for connected types only.
type QP struct {
	Number, PD, PID uint32
	Port            uint32 // 0: none yet
	SRQ             uint32 // number of the shared receive queue; 0: none
	Type, State     uint8  // enum ib_qp_type, enum ib_qp_state
	MigState        uint8  // enum ib_mig_state
	RemoteNumber    uint32
	RQPSN, SQPSN    uint32
}

// SRQ is a shared receive queue.
type SRQ struct {
	Number, PD, PID uint32
	Type            uint8 // enum ib_srq_type
}

// CMID is an identifier of the connection manager (struct rdma_cm_id).
type CMID struct {
	Number, PID uint32
	Port        uint32 // 0: not bound to a device's port
	QP          uint32 // number of its queue pair; 0: none
	QPType      uint8
	PortSpace   uint32         // enum rdma_ucm_port_space
	State       uint8          // enum rdma_cm_state
	Src, Dst    netip.AddrPort // the zero value: none
}

// connected tells whether a queue pair has one peer (IB_QPT_RC, IB_QPT_UC).
func (q *QP) connected() bool { return q.Type == 2 || q.Type == 3 }
