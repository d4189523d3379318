package main

import (
	"context"
	"os"

	"rnic/internal/doctor"
)

// Run examines this machine, or the way to a peer, or answers one.
func (d *DoctorCmd) Run(ctx context.Context) error {
	o := doctor.PeerOptions{Port: d.Port, Control: d.Control, Addr: d.Addr}
	switch {
	case d.Listen:
		return doctor.Listen(ctx, o, os.Stderr)
	case d.Peer != "":
		return d.print(doctor.Peer(ctx, d.Peer, o), "RoCEv2 works between these machines", "RoCEv2 does not work between these machines")
	}
	var self []string
	if d.Trial {
		self = []string{"run", "--no-nice", "--"}
	}
	return d.print(doctor.Examine(doctor.Here(self)), "rnic run works here", "rnic run does not work here")
}
