package verbs

import (
	"fmt"
	"math"

	"rnic/internal/device"
)

// AH is an address handle: where a UD message goes.
type AH struct {
	lifetime
	ah *device.AH
}

// CreateAH makes an address handle for the address vector a.
func (p *PD) CreateAH(a AHAttr) (*AH, error) {
	if err := p.use("create address handle"); err != nil {
		return nil, err
	}
	h, err := p.ctx.ctx.CreateAH(p.pd, a)
	if err != nil {
		return nil, err
	}
	return &AH{lifetime: lifetime{ctx: p.ctx}, ah: h}, nil
}

// AHTo is CreateAH for a peer's GID, from the own address of index gidIndex.
func (p *PD) AHTo(peer GID, gidIndex int) (*AH, error) {
	if gidIndex < 0 || gidIndex > math.MaxUint8 {
		return nil, fmt.Errorf("create address handle: no GID at index %d: %w", gidIndex, ErrInvalid)
	}
	return p.CreateAH(AHAttr{DGID: peer, SGIDIndex: uint8(gidIndex), HopLimit: 64, IsGlobal: true, Port: 1})
}

// Close destroys the address handle. Work requests that name it and are not yet sent fail.
func (a *AH) Close() error {
	_, err := a.close(a.ah.Destroy)
	return err
}
