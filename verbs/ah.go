package verbs

import "rnic/internal/device"

// AH is an address handle: where a UD message goes.
type AH struct{ ah *device.AH }

// CreateAH makes an address handle for the address vector a.
func (p *PD) CreateAH(a AHAttr) (*AH, error) {
	h, err := p.ctx.ctx.CreateAH(p.pd, a)
	if err != nil {
		return nil, err
	}
	return &AH{h}, nil
}

// AHTo is CreateAH for a peer's GID, from the own address of index gidIndex.
func (p *PD) AHTo(peer GID, gidIndex int) (*AH, error) {
	return p.CreateAH(AHAttr{DGID: peer, SGIDIndex: uint8(gidIndex), HopLimit: 64, IsGlobal: true, Port: 1})
}

// Close destroys the address handle.
func (a *AH) Close() error { return a.ah.Destroy() }
