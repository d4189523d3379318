package device_test

import (
	"testing"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/internal/nic"
)

// RFC 3168, A17.9.3: marks travel through the sockets, in the IP header; the receiver tells the sender, which
// slows down, and every byte arrives. Without the policy packets are not ECN capable, and none is marked.
func TestMarkedPacketsSlowTheSenderDown(t *testing.T) {
	for _, policy := range []nic.Congestion{nic.CongestionWindow, nic.CongestionDCQCN} {
		a, b := twoDevices(t, func(c *device.Config) {
			c.Policy.Congestion = policy
			c.Policy.DCQCN.MinRate = 100_000_000
			c.RecvFault = &fault.Spec{Mark: 0.2, Seed: 9}
		})
		ea, eb := newEnd(t, a), newEnd(t, b)
		connect(t, ea, eb, 0, 0)
		exchange(t, ea, eb, 40)
		sender, receiver := a.Stats(), b.Stats()
		if on := policy == nic.CongestionDCQCN; on != (receiver.ECNMarked > 0) || on != (receiver.CNPsSent > 0) || on != (sender.CNPsReceived > 0) {
			t.Errorf("policy %d: marked %d, notifications %d sent, %d received", policy, receiver.ECNMarked, receiver.CNPsSent, sender.CNPsReceived)
		}
		if sender.BadPackets+receiver.BadPackets != 0 {
			t.Errorf("policy %d: bad packets: %+v %+v", policy, sender, receiver)
		}
		_ = a.Close()
		_ = b.Close()
	}
}
