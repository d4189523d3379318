package perf

import (
	"cmp"
	"errors"
	"sync"
	"time"
)

// sum is the result of both directions: what both have sent, over the time of the slower one.
func (r *Result) sum(messages int, took time.Duration) {
	r.rate(r.Iterations+messages, max(r.took, took))
}

// loopbackBandwidth measures between two NICs of this process, with one or both of them sending.
func loopbackBandwidth(o *Options, s, c *endpoint, server, client remote, r *Result) error {
	s.prepare()
	stop := make(chan struct{})
	var receiving, sending sync.WaitGroup
	var errs [4]error
	var receivers []*receiver
	receive := func(e *endpoint, err *error) {
		if !o.receives() {
			return
		}
		rc := newReceiver(e)
		receivers = append(receivers, rc)
		receiving.Go(func() { *err = rc.run(stop) })
	}
	there := newBandwidth(c, server, s)
	senders := []*bandwidth{there}
	var timed sync.WaitGroup // both timed parts
	receive(s, &errs[0])
	back := &Result{SizeBytes: o.Size}
	if o.Both {
		c.prepare()
		receive(c, &errs[1])
		b := newBandwidth(s, client, c)
		senders = append(senders, b)
		reached := [2]func(){sync.OnceFunc(timed.Done), sync.OnceFunc(timed.Done)}
		timed.Add(2)
		b.between = func() error { reached[0](); timed.Wait(); o.settle(); return nil }
		there.between = func() error { reached[1](); timed.Wait(); o.settle(); return nil }
		sending.Go(func() { defer reached[0](); errs[2] = b.measure(back) })
		errs[3] = there.measure(r)
		reached[1]() // where it failed before
	} else {
		errs[3] = there.measure(r)
	}
	sending.Wait()
	close(stop)
	receiving.Wait()
	if o.Both {
		r.sum(back.Iterations, back.took)
	}
	r.lostDatagrams(o, senders, receivers)
	return cmp.Or(errs[3], errs[2], errs[0], errs[1])
}

// settle waits until what the other side has sent in its timed part is no longer on its way: it would cost the
// messages of the last round, where nothing is sent again.
func (o *Options) settle() {
	if !o.reliable() {
		time.Sleep(settleTime)
	}
}

// lostDatagrams counts what was sent over UD and has not come: no number tells it.
func (r *Result) lostDatagrams(o *Options, senders []*bandwidth, receivers []*receiver) {
	if !o.datagrams() {
		return
	}
	for _, b := range senders {
		*r.LostPackets += uint64(b.sent)
	}
	for _, rc := range receivers {
		*r.LostPackets -= min(*r.LostPackets, rc.received())
	}
}

// both is what the server must know to send too.
type both struct {
	Iterations int           `json:"iterations"`
	Duration   time.Duration `json:"duration"`
	Rate       Rate          `json:"rate"`
	PostList   int           `json:"post_list,omitempty"`
}

// Words of the client during a measurement.
const (
	wordGo    = "go"    // with --bidirectional: its queue pairs are ready, the server may send
	wordTimed = "timed" // and: its timed part is over
	wordDone  = "done"  // it has sent everything
)

func (r *reply) tally() tally { return tally{r.Resent, r.Timeouts, r.Errors, r.Lost} }

// clientBandwidth is the client's side of a bandwidth measurement.
func clientBandwidth(e *endpoint, peer remote, c *conn, r *Result) error {
	stop := make(chan struct{})
	received := make(chan error, 1)
	rc := newReceiver(e)
	if e.o.Both {
		e.prepare()
		if err := c.enc.Encode(wordGo); err != nil {
			return err
		}
	}
	if e.o.Both && e.o.receives() {
		go func() { received <- rc.run(stop) }()
	} else {
		received <- nil
	}
	b := newBandwidth(e, peer, nil)
	if e.o.Both {
		b.between = func() error {
			_, err := c.exchange(wordTimed) // which the server answers when its timed part is over
			e.o.settle()
			return err
		}
	}
	err := b.measure(r)
	var end reply
	if err == nil {
		end, err = c.exchange(wordDone) // which the server answers when it has sent everything
	}
	close(stop)
	if err := cmp.Or(err, <-received); err != nil {
		return c.reason(err)
	}
	r.add(end.tally())
	if e.o.Both {
		r.sum(end.Timed, end.Took)
	}
	if e.o.datagrams() {
		sent, came := uint64(b.sent)+end.Sent, rc.received()+end.Received
		*r.LostPackets += sent - min(sent, came)
	}
	return nil
}

// serveBandwidth is the server's side: it receives until stop, and sends too if it shall.
func serveBandwidth(e *endpoint, client remote, c *conn, timed, stop <-chan struct{}) (end reply, err error) {
	received := make(chan error, 1)
	rc := newReceiver(e)
	if e.o.receives() {
		go func() { received <- rc.run(stop) }()
	} else {
		received <- nil
	}
	if e.o.Both {
		b, r := newBandwidth(e, client, nil), &Result{SizeBytes: e.o.Size}
		b.between = func() error {
			select {
			case <-timed:
			case <-stop:
				return errors.New("the client is gone")
			}
			if err := c.enc.Encode(reply{}); err != nil {
				return err
			}
			e.o.settle()
			return nil
		}
		err = b.measure(r)
		end.Sent, end.Timed, end.Took = uint64(b.sent), r.Iterations, r.took
	}
	if err != nil {
		return end, err // the receiver ends with the connection to the client
	}
	if err = <-received; err == nil {
		end.Received = rc.received()
	}
	return end, err
}
