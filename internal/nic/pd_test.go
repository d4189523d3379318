package nic

import "testing"

// Vol. 1, 11.2.1.6: a protection domain in use is not deallocated.
func TestPDInUse(t *testing.T) {
	n := objectsNIC(Config{Limits: Limits{MaxPD: 2}})
	pd, cqs := mustPD(t, n), mustCQ(t, n, 4)
	q := mustQP(t, n, RC, pd, cqs, cqs)
	wantErrno(t, pd.Dealloc(), EBUSY)
	wantErrno(t, q.Destroy(), 0)
	m, err := n.RegMR(pd, &anywhere{}, 0, 8, 0, 0)
	wantErrno(t, err, 0)
	wantErrno(t, pd.Dealloc(), EBUSY)
	wantErrno(t, m.Dereg(), 0)
	h, err := n.CreateAH(pd, goodAttr(RTR).AH)
	wantErrno(t, err, 0)
	wantErrno(t, pd.Dealloc(), EBUSY)
	wantErrno(t, h.Destroy(), 0)

	mustPD(t, n)
	_, err = n.AllocPD()
	wantErrno(t, err, ENOMEM)
	wantErrno(t, pd.Dealloc(), 0)
	wantErrno(t, pd.Dealloc(), ENOENT)
	mustPD(t, n)

	_, err = n.RegMR(pd, &anywhere{}, 0, 8, 0, 0)
	wantErrno(t, err, EINVAL)
	_, err = n.CreateQP(qpInit(t, n, RC, pd, cqs, cqs, smallCap))
	wantErrno(t, err, EINVAL)
	_, err = n.CreateAH(pd, goodAttr(RTR).AH)
	wantErrno(t, err, EINVAL)
}
