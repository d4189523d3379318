package uverbs

import (
	"strconv"

	"rnic/internal/device"
	"rnic/internal/rdmanl"
)

// hwCounters are the NIC's counters. Those that Linux's Soft-RoCE has too have its names and come first, in its order
// (drivers/infiniband/sw/rxe/rxe_hw_counters.c).
func hwCounters(r device.Readings) []rdmanl.Counter {
	s := &r.NIC
	return []rdmanl.Counter{
		{Name: "sent_pkts", Value: s.TxPackets},
		{Name: "rcvd_pkts", Value: s.RxPackets},
		{Name: "duplicate_request", Value: s.Duplicates},
		{Name: "out_of_seq_request", Value: s.SeqNAKsSent},
		{Name: "rcvd_rnr_err", Value: s.RNRNAKsReceived},
		{Name: "send_rnr_err", Value: s.RNRNAKsSent},
		{Name: "rcvd_seq_err", Value: s.SeqNAKsReceived},
		{Name: "ack_deferred", Value: 0}, // acknowledgements left to another task: there is none
		{Name: "retry_exceeded_err", Value: s.RetriesExceeded},
		{Name: "retry_rnr_exceeded_err", Value: s.RNRRetriesExceeded},
		{Name: "completer_retry_err", Value: s.Timeouts + s.EarlyResends + s.SeqNAKsReceived},
		{Name: "send_err", Value: r.Net.SendErrors + r.Loop.SendErrors},
		{Name: "link_downed", Value: r.PortDowns},
		{Name: "rdma_sends", Value: s.SendsCompleted},
		{Name: "rdma_recvs", Value: s.ReceivesCompleted},

		{Name: "sent_bytes", Value: s.TxBytes},
		{Name: "rcvd_bytes", Value: s.RxBytes},
		{Name: "resent_pkts", Value: s.RetransmittedPackets},
		{Name: "ack_timeouts", Value: s.Timeouts},
		{Name: "early_resends", Value: s.EarlyResends},
		{Name: "access_naks_sent", Value: s.AccessNAKsSent},
		{Name: "other_naks_sent", Value: s.OtherNAKsSent},
		{Name: "naks_rcvd", Value: s.NAKsRecvd},
		{Name: "bad_pkts", Value: s.BadPackets},
		{Name: "bad_pkey", Value: s.BadPKey},
		{Name: "bad_qkey", Value: s.BadQKey},
		{Name: "ud_dropped", Value: s.UDDropped},
		{Name: "uc_lost", Value: s.UCLost},
		{Name: "uc_dropped", Value: s.UCDropped},
		{Name: "completions", Value: s.Completions},
		{Name: "error_completions", Value: s.ErrorCompletions},
		{Name: "cq_overflows", Value: s.CQOverflows},
		{Name: "migrations", Value: s.Migrations},
		{Name: "ecn_marked", Value: s.ECNMarked},
		{Name: "cnp_sent", Value: s.CNPsSent},
		{Name: "cnp_rcvd", Value: s.CNPsReceived},

		// What the NIC has found wrong with itself.
		{Name: "units_replaced", Value: r.Health.Replaced},
		{Name: "units_stuck", Value: r.Health.Stuck},
		{Name: "qps_stalled", Value: r.Health.Stalled},
		{Name: "retry_storms", Value: r.Health.Repeats},
		{Name: "rnr_storms", Value: r.Health.NotReady},
		{Name: "leaked_objects", Value: r.Health.Leaked},
	}
}

// portCounters are those of the PortCounters and PortCountersExtended attributes (InfiniBand vol. 1, 16.1.3.5, 16.1.4.11) that
// this port has figures for, under the names of sysfs (Documentation/ABI/stable/sysfs-class-infiniband). What queue pairs of
// the device send each other counts as sent and received.
func portCounters(r device.Readings) []rdmanl.Counter {
	const word = 4 // data is counted in units of 32 bits
	all := r.Net
	all.Add(r.Loop)
	return []rdmanl.Counter{
		{Name: "port_xmit_data", Value: all.SentBytes / word},
		{Name: "port_rcv_data", Value: all.ReceivedBytes / word},
		{Name: "port_xmit_packets", Value: all.Sent},
		{Name: "port_rcv_packets", Value: all.Received},
		{Name: "port_xmit_discards", Value: all.SendErrors},
		{Name: "port_rcv_errors", Value: all.BadICRC + all.Malformed},
		{Name: "excessive_buffer_overrun_errors", Value: all.SocketDrops},
		{Name: "link_downed", Value: r.PortDowns},
	}
}

// counterFiles are those of a port: each tells what the NIC has counted when it is read.
func (b *treeBuilder) counterFiles(d *Driver, port string) {
	for dir, counters := range map[string]func(device.Readings) []rdmanl.Counter{"hw_counters": hwCounters, "counters": portCounters} {
		for i, c := range counters(device.Readings{}) {
			b.live(port+"/"+dir+"/"+c.Name, func() (string, error) {
				return strconv.FormatUint(counters(d.dev.Readings())[i].Value, 10) + "\n", nil
			})
		}
	}
	b.file(port+"/hw_counters/lifespan", "0") // milliseconds for which a reader gets what an earlier one got
}

func (b *treeBuilder) live(path string, read func() (string, error)) {
	if b.err == nil {
		b.err = b.t.AddLive(path, read)
	}
}
