package uverbs

import (
	"rnic/internal/device"
	"rnic/internal/rdmanl"
)

// refusedCounters are what the NIC has refused or passed over, beside what hwCounters lists: docs/security.md says which attack moves which.
func refusedCounters(r *device.Readings) []rdmanl.Counter {
	s := &r.NIC
	return []rdmanl.Counter{
		{Name: "unknown_qp", Value: s.UnknownQPs},
		{Name: "bad_source", Value: s.BadSources},
		{Name: "out_of_seq_dropped", Value: s.OutOfSequence},
		{Name: "behind_error", Value: s.BehindErrors},
		{Name: "ghost_acks", Value: s.GhostAcks},
		{Name: "stale_acks", Value: s.StaleAcks},
		{Name: "mcast_echoes", Value: s.MulticastEchoes},
		{Name: "handover_drops", Value: s.HandoverDrops},
		{Name: "bad_icrc", Value: r.Net.BadICRC + r.Loop.BadICRC},
		{Name: "malformed", Value: r.Net.Malformed + r.Loop.Malformed},
		{Name: "socket_drops", Value: r.Net.SocketDrops + r.Loop.SocketDrops},
	}
}
