package cma

import (
	"testing"

	"rnic/internal/nic"
)

// What a queue pair is to be moved with is what the kernel's rdma_cm says (drivers/infiniband/core/cm.c and cma.c): no access before the
// connection is known, READs and atomics only if some are answered, the RNR timer of code 0.
func TestAttributesAreTheKernels(t *testing.T) {
	const all = nic.AccessRemoteWrite | nic.AccessRemoteRead | nic.AccessRemoteAtomic
	a, b := nicOn(t, loopbackAddr(61), nil), nicOn(t, loopbackAddr(62), nil)
	_, server, to := listening(t, b, loopbackAddr(62), 0)
	access := func(i *ID) nic.Access {
		t.Helper()
		at, mask, err := i.Attr(nic.Init)
		if err != nil || mask&nic.AttrAccessFlags == 0 {
			t.Fatalf("INIT: mask %#x, %v", mask, err)
		}
		return at.AccessFlags
	}
	for _, c := range []struct {
		resources uint8
		want      nic.Access
	}{{0, nic.AccessRemoteWrite}, {4, all}} {
		i, client := resolved(t, a, to)
		if got := access(i); got != 0 {
			t.Errorf("before the connection: access %#x", got)
		}
		if err := i.Connect(ConnParam{QPN: 1 + uint32(c.resources), ResponderResources: c.resources, InitiatorDepth: c.resources, RetryCount: 7}); err != nil {
			t.Fatal(err)
		}
		if got := access(i); got != c.want {
			t.Errorf("%d READs, asked for: access %#x, want %#x", c.resources, got, c.want)
		}
		s := server.next(t, ConnectRequest).ID
		t.Cleanup(s.Destroy)
		if err := s.Accept(&ConnParam{QPN: 100 + uint32(c.resources), ResponderResources: c.resources, InitiatorDepth: c.resources}); err != nil {
			t.Fatal(err)
		}
		client.next(t, ConnectResponse)
		for _, side := range []*ID{i, s} {
			if got := access(side); got != c.want {
				t.Errorf("%d READs: access %#x, want %#x", c.resources, got, c.want)
			}
			at, mask, err := side.Attr(nic.RTR)
			if err != nil || mask&nic.AttrMinRNRTimer == 0 || at.MinRNRTimer != 0 || at.MaxDestRDAtomic != c.resources {
				t.Errorf("RTR: RNR timer %d, %d READs, mask %#x, %v", at.MinRNRTimer, at.MaxDestRDAtomic, mask, err)
			}
		}
	}
}
