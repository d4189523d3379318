package verbs_test

import (
	"errors"
	"math"
	"testing"

	"rnic/verbs"
)

// Numbers that do not fit into the NIC's fields are refused, not cut: 4 GiB and 8 bytes are not 8 bytes, and GID 256 is not GID 0.
func TestNumbersOutOfRange(t *testing.T) {
	dev := local(t)
	peer := newSide(dev, verbs.QPConfig{})
	for what, o := range map[string]verbs.ConnectOptions{"GID index": {GIDIndex: 256}, "negative GID index": {GIDIndex: -256}, "timeout": {Timeout: 256 + 14},
		"retries": {RetryCount: 256 + 7}, "RNR retries": {RNRRetry: 8}, "RNR timer": {RNRTimer: 32}, "depth": {RDAtomic: 256 + 16}, "hop limit": {HopLimit: 256}} {
		s := newSide(dev, verbs.QPConfig{})
		if err := s.qp.Connect(get(peer.qp.Local(0, 1)), o); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("connect with a %s of %+v: %v", what, o, err)
		}
	}
	if _, err := peer.pd.CreateQP(verbs.QPConfig{SendCQ: peer.cq, RecvCQ: peer.cq, MaxSend: math.MaxInt/2 + 2}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a send queue for %d work requests: %v", math.MaxInt/2+2, err)
	}
	for _, cfg := range []verbs.DeviceConfig{{Local: true, Units: -1}, {Local: true, Units: 65}, {Local: true, Congestion: 77}, {Local: true, MTU: 1500}} {
		if d, err := verbs.NewDevice(cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("a NIC of %d units with policy %d and MTU %d: %v, %v", cfg.Units, cfg.Congestion, cfg.MTU, d, err)
		}
	}
	for _, index := range []int{256, -256} {
		if _, err := peer.pd.AHTo(dev.GIDs()[0].GID, index); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("address handle from GID %d: %v", index, err)
		}
	}
	s := newSide(dev, verbs.QPConfig{})
	connect(s, peer)
	for _, n := range []int64{1<<32 + 8, 1 << 32, -1} {
		if int64(int(n)) != n {
			continue // of 32 bits
		}
		w := write(s, peer, 1, int(n))
		if _, err := s.qp.PostSend(w); !errors.Is(err, verbs.ErrLocalLength) {
			t.Errorf("post %d bytes: %v", n, err)
		}
	}
}
