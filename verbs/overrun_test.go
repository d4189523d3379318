package verbs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"rnic/verbs"
)

// Who waits for completions of a queue that has overflowed learns that none will come, after those that were there (InfiniBand vol. 1, 11.6.3).
func TestOverrun(t *testing.T) {
	dev := local(t)
	for _, polls := range []bool{false, true} {
		client, server := newSide(dev, verbs.QPConfig{}), newSide(dev, verbs.QPConfig{})
		small := get(client.ctx.CreateCQ(1))
		qp := get(client.pd.CreateQP(verbs.QPConfig{SendCQ: small, RecvCQ: client.cq}))
		check(qp.Connect(get(server.qp.Local(0, 2)), verbs.ConnectOptions{PSN: 1}))
		check(server.qp.Connect(get(qp.Local(0, 1)), verbs.ConnectOptions{PSN: 2}))
		for i := range 2 * small.Cap() {
			get(qp.PostSend(write(client, server, uint64(i), 8)))
		}
		for e := range client.ctx.Events() {
			if e.Type == verbs.EventCQError && e.CQ == small {
				break
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		var wc [1]verbs.WC
		for i := range small.Cap() {
			if _, err := small.Next(ctx, wc[:]); err != nil || wc[0].ID != uint64(i) {
				t.Fatalf("completion %d of those that found room: %v, %v", i, wc[0], err)
			}
		}
		var err error
		if polls {
			_, err = small.Poll(wc[:])
		} else {
			err = small.Wait(ctx)
		}
		if !errors.Is(err, verbs.ErrOverrun) {
			t.Errorf("polls %v: %v", polls, err)
		}
		check(qp.Close())
		check(small.Close())
	}
}

// A wait that is under way when the queue overflows ends too.
func TestOverrunEndsWait(t *testing.T) {
	dev := local(t)
	client, server := newSide(dev, verbs.QPConfig{}), newSide(dev, verbs.QPConfig{})
	small := get(client.ctx.CreateCQ(1))
	qp := get(client.pd.CreateQP(verbs.QPConfig{SendCQ: small, RecvCQ: client.cq}))
	check(qp.Connect(get(server.qp.Local(0, 2)), verbs.ConnectOptions{PSN: 1}))
	check(server.qp.Connect(get(qp.Local(0, 1)), verbs.ConnectOptions{PSN: 2}))
	ended := make(chan error, 1)
	go func() {
		for {
			if err := small.WaitSolicited(context.Background()); err != nil {
				ended <- err
				return
			}
			var wc [1]verbs.WC
			if _, err := small.Poll(wc[:]); err != nil {
				ended <- err
				return
			}
		}
	}()
	for i := 0; ; i++ { // until it overflows
		if _, err := qp.PostSend(write(client, server, uint64(i), 8), write(client, server, uint64(i), 8), write(client, server, uint64(i), 8)); err != nil && !errors.Is(err, verbs.ErrQueueFull) {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, verbs.ErrOverrun) {
				t.Error(err)
			}
			return
		case e := <-client.ctx.Events():
			if e.Type != verbs.EventCQError {
				continue
			}
			within(t, "the wait", func() { ended <- <-ended })
		default:
		}
	}
}
