package perf

import "testing"

// The result says what was agreed on; other transports than RC have nothing to agree on.
func TestResendIsShown(t *testing.T) {
	write := Kind{"write", false}
	for _, c := range []struct {
		ask       Resend
		transport string
		want      any
	}{{ResendAuto, "RC", "selective"}, {ResendSelective, "RC", "selective"}, {ResendGoBackN, "RC", "go-back-n"}, {"", "RC", "selective"},
		{ResendAuto, "UC", nil}, {ResendAuto, "XRC", nil}} {
		o := options(t, write, func(o *Options) { o.Resend, o.Transport, o.Check = c.ask, c.transport, false })
		if r := runJSON(t, o)[0]; r["resend"] != c.want {
			t.Errorf("%q over %s: resend is %v, want %v", c.ask, c.transport, r["resend"], c.want)
		}
	}
}

// Both ways to send again keep every byte of every operation under loss.
func TestLossIsInvisibleEitherWay(t *testing.T) {
	for _, kind := range kinds[:4] {
		for _, resend := range []Resend{ResendGoBackN, ResendSelective} {
			o := options(t, kind, func(o *Options) {
				o.Resend, o.Faults, o.Iterations = resend, []string{"drop=5%,dup=1%,reorder=1%:4,seed=3"}, 60
			})
			if r := runJSON(t, o)[0]; r["resend"] != string(resend) || r["errors"] != 0. || r["retransmitted_packets"] == 0. {
				t.Errorf("%v, %s: %v", kind, resend, r)
			}
		}
	}
}
