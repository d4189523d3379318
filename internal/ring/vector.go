package ring

// Vector is what counts of struct rxe_av, the address vector that providers put into the work requests of UD queue
// pairs before they had numbers of address handles (rdma-core before 39). Its addresses of sockets repeat the GIDs.
type Vector struct {
	Port         uint8
	DGID         [16]byte
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
}

// Offsets in struct rxe_av.
const (
	avPort         = 0
	avDGID         = 8
	avFlowLabel    = 24
	avSGIDIndex    = 28
	avHopLimit     = 29
	avTrafficClass = 30
)

// Vector is the request's address vector, unchecked.
func (w *SendWQE) Vector() Vector {
	v := Vector{Port: w.AV[avPort], FlowLabel: le.Uint32(w.AV[avFlowLabel:]), SGIDIndex: w.AV[avSGIDIndex],
		HopLimit: w.AV[avHopLimit], TrafficClass: w.AV[avTrafficClass]}
	copy(v.DGID[:], w.AV[avDGID:])
	return v
}

// SetVector puts an address vector into the request, as those providers do.
func (w *SendWQE) SetVector(v *Vector) {
	clear(w.AV[:])
	w.AV[avPort], w.AV[avSGIDIndex], w.AV[avHopLimit], w.AV[avTrafficClass] = v.Port, v.SGIDIndex, v.HopLimit, v.TrafficClass
	copy(w.AV[avDGID:], v.DGID[:])
	le.PutUint32(w.AV[avFlowLabel:], v.FlowLabel)
}
