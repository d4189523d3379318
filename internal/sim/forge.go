package sim

import (
	"net/netip"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// forge sends a packet to some queue pair that is well formed, with keys, addresses and PSNs that are
// right, but does not come from where the queue pair is connected to, or does not have its Q_Key. It
// must change nothing, and nothing may be answered (9.6.1).
func (w *world) forge() {
	if len(w.xrcs) > 0 && w.chance(25) {
		w.forgeXRC()
		return
	}
	h := w.hosts[w.rng.IntN(len(w.hosts))]
	if len(h.qps) == 0 {
		return
	}
	q := h.qps[w.rng.IntN(len(h.qps))]
	if q.number == 0 {
		return
	}
	fam := w.rng.IntN(2)
	if q.end != nil {
		fam = q.end.primary.family()
	}
	path := roce.Path{Src: w.stranger(q, fam), Dst: h.addrs[fam], SrcPort: 0xc123, TTL: 64}
	op := pick(w, roce.RCWriteOnly, roce.RCSendOnly, roce.RCSendFirst, roce.RCFetchAdd, roce.RCReadRequest, roce.RCAtomicWrite, roce.RCSendOnlyInv, roce.RCAck,
		roce.RCReadResponseOnly, roce.RCAtomicAck, roce.RCCmpSwap, roce.RCFlush, roce.RCSendOnlyImm, roce.RCWriteOnlyImm, roce.RCAck)
	switch q.typ {
	case nic.UC:
		op = pick(w, roce.UCSendOnly, roce.UCWriteOnly, roce.UCSendFirst, roce.UCSendOnlyImm, roce.UCWriteOnlyImm)
	case nic.UD:
		op = pick(w, roce.UDSendOnly, roce.UDSendOnlyImm)
	}
	pkt := w.forgePacket(q, op)
	ghost := false
	if q.typ == nic.RC && w.chance(25) { // a ghost: the peer itself answers what was never sent (9.7.6.1)
		r := q.peer.end.primary
		path.Src, path.Dst, ghost = q.peer.h.addrs[r.src], h.addrs[r.dst], true
		pkt = w.forgePacket(q, roce.RCAck)
		roce.BTH(pkt).SetMigReq(q.peer.end.state == nic.MigMigrated)
		if w.chance(30) { // and by another path, perhaps, as if it had migrated, or had not
			e := q.end
			by := pick(w, e.primary, e.alt, e.former, w.randomRoute())
			path.Src, path.Dst = q.peer.h.addrs[by.dst], h.addrs[by.src]
			roce.BTH(pkt).SetMigReq(w.chance(50))
			roce.BTH(pkt).SetPKey(q.h.pkeys[w.rng.IntN(len(q.h.pkeys))])
		}
		psn := roce.PSN(q.attr.SQPSN).Add(int(q.psnCount) + w.between(500, 5000))
		roce.BTH(pkt).SetPSN(psn)
	}
	w.notePacket(h, "is sent a forged", pkt)
	p := w.packet(&path, pkt)
	p.forged, p.ghost, p.faults = true, ghost, 1<<FaultForged
	h.arrive(p)
}

// stranger is an address that q is not connected to.
func (w *world) stranger(q *qpair, fam int) netip.Addr {
	if !q.ud {
		for _, h := range w.hosts {
			if h != q.peer.h && w.chance(60) {
				return h.addrs[fam]
			}
		}
	}
	return w.unknown(fam)
}

// unknown is an address of no host.
func (w *world) unknown(fam int) netip.Addr {
	if fam == 0 {
		return netip.AddrFrom4([4]byte{198, 51, 100, 7})
	}
	return netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 14: 1, 15: 7})
}

func (w *world) forgePacket(q *qpair, op roce.Opcode) []byte {
	info := op.Info()
	payload := 0
	if info.Payload {
		payload = 8
	}
	if info.First {
		payload = q.mtu
	}
	pkt := make([]byte, info.HeaderLen+payload)
	from := q
	if info.Request && !q.ud {
		from = q.peer
	}
	psn := roce.PSN(from.attr.SQPSN).Add(w.between(-1, int(from.psnCount)+1))
	roce.BTH(pkt).Encode(&roce.BTHFields{Opcode: op, PKey: 0xffff, DestQP: q.qp.Num(), PSN: psn, AckReq: true})
	r := q.h.mem.regions[regionPlain]
	if h := info.RETH(pkt); h != nil {
		h.Encode(&roce.RETHFields{VA: r.iova, RKey: r.mr.RKey(), Length: 8})
	}
	if h := info.AtomicETH(pkt); h != nil {
		h.Encode(&roce.AtomicETHFields{VA: q.h.words[0].at.addr(), RKey: r.mr.RKey(), SwapAdd: 1})
	}
	if h := info.AETH(pkt); h != nil {
		h.Encode(&roce.AETHFields{Syndrome: pick(w, roce.ACKSyndrome(31), roce.NAKRemoteAccess, roce.NAKSequence, roce.RNRSyndrome(3))})
	}
	if h := info.DETH(pkt); h != nil {
		h.Encode(&roce.DETHFields{QKey: q.attr.QKey + 1, SrcQP: 5})
	}
	return pkt
}
