package uverbs

import (
	"time"

	"rnic/internal/device"
	"rnic/internal/nic"
)

// tally sums up what the queue pairs of a run have done. Guarded by Driver.mu.
type tally struct {
	began   device.Readings
	total   nic.QPCounters
	count   int
	each    []fields // of the first maxListed, in the order of their end
	omitted int
}

// maxListed bounds the queue pairs that a summary lists one by one.
const maxListed = 4096

// look reads what a queue pair has done, and warns of what hardware takes amiss.
func (o *qpObject) look() (c nic.QPCounters) {
	d := o.ctx.drv
	if !d.journal.counts() {
		return c
	}
	c, ok := o.dev.Counters()
	if ok && d.journal.pedantic() {
		d.pedant.judge(o, &c)
	}
	return c
}

// tallyUp takes what a queue pair has done, which has ended, into the sums.
func (o *qpObject) tallyUp(c *nic.QPCounters) {
	d := o.ctx.drv
	if !d.journal.counts() {
		return
	}
	t := &d.tally
	t.total.Add(c)
	if t.count++; len(t.each) == maxListed {
		t.omitted++
		return
	}
	var f fields
	f.num("qp", uint64(o.handle))
	f.num("qpn", uint64(o.dev.Num()))
	f.word("qp_type", numbered(o.init.typ, qpTypeNames))
	f.num("pid", uint64(o.ctx.pid))
	f.word("process", o.ctx.process)
	t.each = append(t.each, append(f, counterFields(c)...))
}

// counterFields are the counters of a queue pair, or of many, by the names that docs/run.md explains.
func counterFields(c *nic.QPCounters) (f fields) {
	f.num("sent_messages", c.SentMessages)
	f.num("sent_bytes", c.SentBytes)
	f.num("received_messages", c.ReceivedMessages)
	f.num("received_bytes", c.ReceivedBytes)
	f.num("reads_served", c.ReadsServed)
	f.num("read_bytes_served", c.ReadServedBytes)
	f.num("atomics_served", c.AtomicsServed)
	f.num("failed_requests", c.Failed)
	f.num("tx_packets", c.TxPackets)
	f.num("rx_packets", c.RxPackets)
	f.num("retransmitted_packets", c.Retransmitted)
	f.num("duplicate_requests", c.Duplicates)
	f.num("timeouts", c.Timeouts)
	f.num("rnr_naks_sent", c.RNRSent)
	f.num("rnr_naks_received", c.RNRReceived)
	f.num("sequence_naks_sent", c.SeqNAKsSent)
	f.num("sequence_naks_received", c.SeqNAKsReceived)
	f.num("error_naks_sent", c.NAKsSent)
	f.num("error_naks_received", c.NAKsReceived)
	f.num("dropped_messages", c.Dropped)
	return f
}

// summary is the last line of JSON.
func (d *Driver) summary() any {
	d.mu.Lock()
	defer d.mu.Unlock()
	j, t, now := d.journal, &d.tally, d.dev.Readings()
	var f fields
	f.word("type", "summary")
	f.word("device", d.cfg.Name)
	f.word("started", j.start.UTC().Format(time.RFC3339Nano))
	f.add("seconds", "", time.Since(j.start).Seconds())
	f.num("commands", j.commands.Load())
	f.num("failed_commands", j.failed.Load())
	f.num("warnings", j.warnings.Load())
	f.add("total", "", append(fields{{name: "queue_pairs", json: t.count}}, counterFields(&t.total)...))
	if t.each == nil {
		t.each = []fields{}
	}
	f.add("queue_pairs", "", t.each)
	f.num("queue_pairs_omitted", uint64(t.omitted))
	f.add("nic", "", nicFields(&now, &t.began))
	f.add("faults", "", fields{{name: "send", json: faultFields(&now.Send, &t.began.Send)}, {name: "receive", json: faultFields(&now.Recv, &t.began.Recv)}})
	return f
}

// nicFields are what the NIC has counted since an earlier reading.
func nicFields(now, since *device.Readings) (f fields) {
	a, b := &since.NIC, &now.NIC
	f.num("completions", b.Completions-a.Completions)
	f.num("error_completions", b.ErrorCompletions-a.ErrorCompletions)
	f.num("cq_overruns", b.CQOverflows-a.CQOverflows)
	f.num("early_resends", b.EarlyResends-a.EarlyResends)
	f.num("bad_packets", b.BadPackets-a.BadPackets)
	f.num("unknown_qp", b.UnknownQPs-a.UnknownQPs)
	f.num("bad_source", b.BadSources-a.BadSources)
	f.num("out_of_sequence", b.OutOfSequence-a.OutOfSequence)
	f.num("behind_errors", b.BehindErrors-a.BehindErrors)
	f.num("ghost_acks", b.GhostAcks-a.GhostAcks)
	f.num("stale_acks", b.StaleAcks-a.StaleAcks)
	f.num("multicast_echoes", b.MulticastEchoes-a.MulticastEchoes)
	f.num("bad_pkey", b.BadPKey-a.BadPKey)
	f.num("bad_qkey", b.BadQKey-a.BadQKey)
	f.num("ecn_marked", b.ECNMarked-a.ECNMarked)
	f.num("cnps_sent", b.CNPsSent-a.CNPsSent)
	f.num("cnps_received", b.CNPsReceived-a.CNPsReceived)
	f.num("migrations", b.Migrations-a.Migrations)
	f.add("network", "", linkFields(&now.Net, &since.Net))
	f.add("internal", "", linkFields(&now.Loop, &since.Loop))
	return f
}

func linkFields(b, a *device.LinkStats) (f fields) {
	f.num("sent_packets", b.Sent-a.Sent)
	f.num("sent_bytes", b.SentBytes-a.SentBytes)
	f.num("received_packets", b.Received-a.Received)
	f.num("received_bytes", b.ReceivedBytes-a.ReceivedBytes)
	f.num("bad_icrc", b.BadICRC-a.BadICRC)
	f.num("malformed", b.Malformed-a.Malformed)
	f.num("send_errors", b.SendErrors-a.SendErrors)
	f.num("socket_drops", b.SocketDrops-a.SocketDrops)
	return f
}

func faultFields(b, a *device.FaultCounters) (f fields) {
	f.num("packets", b.Seen-a.Seen)
	f.num("selected", b.Selected-a.Selected)
	f.num("dropped", b.Dropped-a.Dropped)
	f.num("duplicated", b.Duplicated-a.Duplicated)
	f.num("corrupted", b.Corrupted-a.Corrupted)
	f.num("reordered", b.Reordered-a.Reordered)
	f.num("delayed", b.Delayed-a.Delayed)
	f.num("marked", b.Marked-a.Marked)
	return f
}

// Opened tells whether a program has opened the device.
func (d *Driver) Opened() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened
}
