package cm_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"rnic/cm"
	"rnic/verbs"
)

// A connection that ends while it is being made says why: the peer has given up, or the manager is closed; not which step then failed.
func TestEndWhileConnecting(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l := b.listen(t, cm.ListenConfig{})
	ctx, cancel := context.WithCancel(longEnough(t))
	dialed := make(chan error, 1)
	go func() {
		_, err := a.mgr.Dial(ctx, l.Addr(), a.config(""))
		dialed <- err
	}()
	cfg := b.config("")
	cfg.Prepare = func(qp *verbs.QP) error {
		cancel()
		eventually(t, "the connection ends", func() bool { q, err := qp.Query(); return err != nil || q.State == verbs.StateError })
		return nil
	}
	if _, err := get(l.Accept(longEnough(t)))(t).Accept(longEnough(t), cfg); !errors.Is(err, cm.ErrRejected) {
		t.Errorf("the peer has given up: %v", err)
	}
	if err := <-dialed; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	cfg = a.config("")
	cfg.Prepare = func(qp *verbs.QP) error {
		go a.mgr.Close()
		eventually(t, "the queue pair is closed", func() bool { _, err := qp.Query(); return err != nil })
		return nil
	}
	if _, err := a.mgr.Dial(longEnough(t), l.Addr(), cfg); !errors.Is(err, net.ErrClosed) || errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("the manager is closed: %v", err)
	}
}
