package cma

import (
	"cmp"
	"net/netip"
	"slices"

	"rnic/internal/device"
	"rnic/internal/nic"
)

// Summary is an id in a list of all.
type Summary struct {
	Number   uint32
	PID      int
	Device   *device.Device // nil: of none yet
	QPN      uint32         // 0: none yet
	Type     nic.QPType
	Space    PortSpace
	State    uint8 // enum rdma_cm_state of the kernel (rdma/rdma_cm.h)
	Src, Dst netip.AddrPort
}

// kernelStates are the numbers of enum rdma_cm_state.
var kernelStates = [...]uint8{stateIdle: 0, stateBound: 7, stateAddrResolved: 2, stateRouteResolved: 4, stateConnect: 5, stateListen: 8,
	stateDisconnect: 6, stateDestroyed: 10}

// add gives a new id its number. The manager is held.
func (m *Manager) add(i *ID) {
	m.lastID++
	i.num = m.lastID
	m.ids[i] = struct{}{}
}

// List lists the ids that are not destroyed, by number.
func (m *Manager) List() []Summary {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Summary, 0, len(m.ids))
	for i := range m.ids {
		s := Summary{Number: i.num, PID: i.PID, QPN: i.param.QPN, Type: i.typ, Space: i.space, State: kernelStates[i.state], Src: i.src, Dst: i.dst}
		if i.port != nil {
			s.Device = i.port.dev
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Summary) int { return cmp.Compare(a.Number, b.Number) })
	return list
}
