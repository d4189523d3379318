package nic

import "testing"

// Vol. 1, 11.2.2: address handles.
func TestAddressHandles(t *testing.T) {
	n := objectsNIC(Config{Limits: Limits{MaxAH: 2}})
	pd := mustPD(t, n)
	attr := goodAttr(RTR).AH
	a, err := n.CreateAH(pd, attr)
	wantErrno(t, err, 0)
	b, err := n.CreateAH(pd, attr)
	wantErrno(t, err, 0)
	if a.Num() == 0 || b.Num() == 0 || a.Num() == b.Num() {
		t.Errorf("numbers %d and %d: 0, or not different", a.Num(), b.Num())
	}
	_, err = n.CreateAH(pd, attr)
	wantErrno(t, err, ENOMEM)
	if n.lookupAH(a.Num()) != a || n.lookupAH(b.Num()) != b || n.lookupAH(0) != nil {
		t.Error("a number does not name its address handle")
	}
	wantErrno(t, a.Destroy(), 0)
	wantErrno(t, a.Destroy(), ENOENT)
	if n.lookupAH(a.Num()) != nil {
		t.Error("a destroyed address handle is found")
	}
	n.ahNext = b.num - 1 // the numbers come again
	c, err := n.CreateAH(pd, attr)
	wantErrno(t, err, 0)
	if c.Num() == b.Num() {
		t.Error("the number of a live address handle was given again")
	}
	wantErrno(t, c.Destroy(), 0)
	n.ahNext = 1<<32 - 1
	c, err = n.CreateAH(pd, attr)
	wantErrno(t, err, 0)
	if c.Num() == 0 {
		t.Error("number 0 was given")
	}
}
