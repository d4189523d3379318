package cm_test

import (
	"errors"
	"testing"

	"rnic/cm"
	"rnic/verbs"
)

// A request is answered once: what comes second is an error and does the connection no harm.
func TestAnswerTwice(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l := b.listen(t, cm.ListenConfig{})
	ctx := longEnough(t)
	again := make(chan [2]error, 1)
	accepted := make(chan *cm.Conn, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			return
		}
		c, err := r.Accept(ctx, b.config(""))
		if err != nil {
			t.Error(err)
		}
		accepted <- c
		_, err = r.Accept(ctx, b.config(""))
		again <- [2]error{err, r.Reject(0, nil)}
	}()
	client := get(a.mgr.Dial(ctx, l.Addr(), a.config("")))(t)
	server := <-accepted
	for _, err := range <-again {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("answered again: %v", err)
		}
	}
	send(t, a, client, "ping")
	if w := b.next(t); w.Status != verbs.StatusSuccess {
		t.Error(w.Err())
	}
	client.Close()
	server.Close()
	idle(t, a)
	idle(t, b)
}
