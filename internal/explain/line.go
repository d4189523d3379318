package explain

import (
	"fmt"
	"strings"

	"rnic/internal/roce"
)

// Line is a packet in one line, without its time.
func (p *Packet) Line() string {
	var b strings.Builder
	switch p.Vantage.Direction {
	case In:
		b.WriteString("in  ")
	case Out:
		b.WriteString("out ")
	}
	fmt.Fprintf(&b, "%s -> %s QP 0x%x %s PSN %d", p.Src, p.Dst, p.BTH.DestQP(), p.Op, uint32(p.BTH.PSN()))
	if p.Malformed || !p.Complete {
		b.WriteString(" (malformed)")
		return b.String() + p.comment()
	}
	if p.Info.Payload {
		fmt.Fprintf(&b, ", %s", plural(p.Payload, "byte"))
	}
	switch i := p.Info; {
	case i.HasRETH:
		h := i.RETH(p.Headers)
		fmt.Fprintf(&b, ", %s at 0x%x, R_Key 0x%x", plural(int(h.Length()), "byte"), h.VA(), h.RKey())
	case i.HasAtomicETH:
		h := i.AtomicETH(p.Headers)
		fmt.Fprintf(&b, ", at 0x%x, R_Key 0x%x", h.VA(), h.RKey())
	case i.HasDETH:
		h := i.DETH(p.Headers)
		fmt.Fprintf(&b, ", from QP 0x%x, Q_Key 0x%x", h.SrcQP(), h.QKey())
	}
	if h, ok := p.aeth(); ok {
		fmt.Fprintf(&b, ", %s", h.Syndrome())
		if h.Syndrome().Kind() == roce.SyndromeRNRNAK {
			fmt.Fprintf(&b, " %s", duration(roce.RNRTimerNanos(h.Syndrome().Value())))
		}
		fmt.Fprintf(&b, ", MSN %d", h.MSN())
	}
	if p.BTH.AckReq() {
		b.WriteString(", ack requested")
	}
	if p.ICRC == Bad {
		b.WriteString(", bad ICRC")
	}
	return b.String() + p.comment()
}

func (p *Packet) comment() string {
	if p.Comment == "" {
		return ""
	}
	return " [" + p.Comment + "]"
}
