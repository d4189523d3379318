package perf

import (
	"errors"
	"fmt"
)

// Resend says what an RC connection sends again after a loss.
type Resend string

// The choices. The zero value is ResendAuto.
const (
	ResendAuto      Resend = "auto"      // selective repeat if the peer offers it too, which every rnic of this version does
	ResendGoBackN   Resend = "go-back-n" // everything from the lost packet on, as the specification says
	ResendSelective Resend = "selective" // only what was lost; the peer must offer it
)

// offersSelective tells whether this side's queue pairs offer selective repeat.
func (o *Options) offersSelective() bool { return o.qpTypeIsRC() && o.Resend != ResendGoBackN }

func (o *Options) qpTypeIsRC() bool { return o.Transport == "" || o.Transport == "RC" }

// resend is what was agreed on: of all queue pairs, as the two sides have the same options.
func (e *endpoint) resend() (Resend, error) {
	if e.o.qpTypeIsRC() && len(e.qps) > 0 && e.qps[0].SelectiveRepeat() {
		return ResendSelective, nil
	}
	if e.o.Resend == ResendSelective {
		return "", errors.New("selective repeat was asked for, and the peer does not offer it: start it with --resend=auto or --resend=selective")
	}
	return ResendGoBackN, nil
}

// column is a table's column, which only connections have that resend.
func (r Resend) column(text string) string {
	if r == "" {
		return ""
	}
	return fmt.Sprintf(" %10s", text)
}
