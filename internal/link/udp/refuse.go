package udp

import (
	"rnic/internal/link"
	"rnic/internal/roce"
)

// refuser shows what a link refuses.
type refuser struct{ f func(*link.Refused) }

// OnRefused implements link.Refuser.
func (r *refuser) OnRefused(f func(*link.Refused)) { r.f = f }

func (r *refuser) refuse(path *roce.Path, data []byte, badICRC bool) {
	if r.f != nil {
		r.f(&link.Refused{Path: *path, Data: data, BadICRC: badICRC})
	}
}
