package link

import "rnic/internal/roce"

// A Refused packet is one that a link received and does not hand up.
type Refused struct {
	Path    roce.Path // not Valid if the system did not tell
	Data    []byte    // BTH to ICRC, if it is that long; valid during the call
	BadICRC bool      // else it is malformed
}

// Refuser is a Link that shows what it refuses.
type Refuser interface {
	// OnRefused has the link call f for each, from Recv. It is called before the first Recv. What is merely counted, because
	// it came in no usable form, is not shown.
	OnRefused(f func(*Refused))
}

// OnRefused asks l. It must not be a decorator.
func OnRefused(l Link, f func(*Refused)) {
	if r, ok := l.(Refuser); ok {
		r.OnRefused(f)
	}
}
