package verbs_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"rnic/verbs"
)

// within ends the test if f does not return: something sleeps for ever.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		buf := make([]byte, 1<<16)
		t.Fatalf("%s does not end\n%s", what, buf[:runtime.Stack(buf, true)])
	}
}

func write(from, to *side, id uint64, n int) *verbs.SendWR {
	return &verbs.SendWR{ID: id, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: from.mr.Slice(0, n),
		RemoteAddr: to.mr.Addr(0), RKey: to.mr.RKey()}
}

func local(t *testing.T) *verbs.Device {
	t.Helper()
	dev, err := verbs.NewDevice(verbs.DeviceConfig{Local: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

func TestClosingTwiceIsNoError(t *testing.T) {
	dev := local(t)
	ud := newSide(dev, verbs.QPConfig{Type: verbs.UD})
	ah := get(ud.pd.AHTo(dev.GIDs()[0].GID, 0))
	for range 2 {
		for what, closer := range map[string]func() error{"AH": ah.Close, "QP": ud.qp.Close, "MR": ud.mr.Close} {
			if err := closer(); err != nil {
				t.Errorf("close %s: %v", what, err)
			}
		}
	}
	for range 2 {
		for what, closer := range map[string]func() error{"CQ": ud.cq.Close, "PD": ud.pd.Close} {
			if err := closer(); err != nil {
				t.Errorf("close %s: %v", what, err)
			}
		}
	}
	other := newSide(dev, verbs.QPConfig{})
	for range 2 {
		if err := other.ctx.Close(); err != nil {
			t.Errorf("close context: %v", err)
		}
	}
	// What went with its context is closed too.
	for what, closer := range map[string]func() error{"QP": other.qp.Close, "MR": other.mr.Close, "CQ": other.cq.Close, "PD": other.pd.Close} {
		if err := closer(); err != nil {
			t.Errorf("close %s after its context: %v", what, err)
		}
	}
	for range 2 {
		if err := dev.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	}
}

func TestUseAfterClose(t *testing.T) {
	use := func(t *testing.T, s *side) {
		t.Helper()
		_, pd := s.ctx.AllocPD()
		_, mr := s.pd.AllocMR(64, verbs.AccessLocalWrite)
		_, reg := s.pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite)
		_, cq := s.ctx.CreateCQ(1)
		_, ah := s.pd.AHTo(verbs.GID{0: 0xfd, 15: 1}, 0)
		_, qp := s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq})
		_, query := s.qp.Query()
		_, send := s.qp.PostSend(&verbs.SendWR{})
		_, recv := s.qp.PostRecv(&verbs.RecvWR{})
		_, poll := s.cq.Poll(make([]verbs.WC, 1))
		for what, err := range map[string]error{"AllocPD": pd, "AllocMR": mr, "RegMR": reg, "CreateCQ": cq, "CreateAH": ah,
			"CreateQP": qp, "Query": query, "PostSend": send, "PostRecv": recv, "Poll": poll,
			"Modify": s.qp.Modify(&verbs.Attr{}, 0), "Wait": s.cq.Wait(context.Background()),
			"Connect": s.qp.Connect(verbs.Endpoint{}, verbs.ConnectOptions{})} {
			if !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("%s: %v, want ErrClosed", what, err)
			}
		}
	}
	dev := local(t)
	a, b := newSide(dev, verbs.QPConfig{}), newSide(dev, verbs.QPConfig{})
	check(a.ctx.Close())
	use(t, a)
	check(dev.Close())
	use(t, b)
	if _, err := dev.Open().AllocPD(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("AllocPD on a closed device: %v, want ErrClosed", err)
	}
	if _, open := <-b.ctx.Events(); open {
		t.Error("the events of a closed context do not end")
	}
}

func TestErrorsOfCommands(t *testing.T) {
	dev := local(t)
	s, foreign := newSide(dev, verbs.QPConfig{}), newSide(dev, verbs.QPConfig{})
	ud := newSide(dev, verbs.QPConfig{Type: verbs.UD})
	config := func(f func(*verbs.QPConfig)) error {
		c := verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq}
		f(&c)
		_, err := s.pd.CreateQP(c)
		return err
	}
	second := func(_ any, err error) error { return err }
	for what, k := range map[string]struct{ got, want error }{
		"empty slice":               {second(s.pd.RegMR(nil, 0)), verbs.ErrInvalid},
		"no bytes":                  {second(s.pd.AllocMR(0, 0)), verbs.ErrInvalid},
		"negative size":             {second(s.pd.AllocMR(-1, 0)), verbs.ErrInvalid},
		"too many bytes":            {second(s.pd.AllocMR(1<<60, 0)), verbs.ErrNoMemory},
		"no local write":            {second(s.pd.AllocMR(8, verbs.AccessRemoteAtomic)), verbs.ErrInvalid},
		"no entries":                {second(s.ctx.CreateCQ(0)), verbs.ErrInvalid},
		"too many entries":          {second(s.ctx.CreateCQ(1 << 30)), verbs.ErrInvalid},
		"no completion queue":       {config(func(c *verbs.QPConfig) { c.RecvCQ = nil }), verbs.ErrInvalid},
		"foreign queue":             {config(func(c *verbs.QPConfig) { c.SendCQ = foreign.cq }), verbs.ErrInvalid},
		"too many requests":         {config(func(c *verbs.QPConfig) { c.MaxSend = 1 << 20 }), verbs.ErrInvalid},
		"too many entries of QP":    {config(func(c *verbs.QPConfig) { c.MaxRecvSGE = 33 }), verbs.ErrInvalid},
		"too much inline":           {config(func(c *verbs.QPConfig) { c.MaxInline = 513 }), verbs.ErrInvalid},
		"unknown type":              {config(func(c *verbs.QPConfig) { c.Type = 8 }), verbs.ErrNotSupported},
		"PD in use":                 {s.pd.Close(), verbs.ErrBusy},
		"CQ in use":                 {s.cq.Close(), verbs.ErrBusy},
		"state":                     {s.qp.Modify(&verbs.Attr{State: verbs.StateRTS}, verbs.AttrState), verbs.ErrInvalid},
		"connect UD":                {ud.qp.Connect(verbs.Endpoint{}, verbs.ConnectOptions{}), verbs.ErrInvalid},
		"activate RC":               {s.qp.Activate(1), verbs.ErrInvalid},
		"MTU":                       {s.qp.Connect(verbs.Endpoint{}, verbs.ConnectOptions{MTU: 1500}), verbs.ErrInvalid},
		"no peer":                   {s.qp.Connect(verbs.Endpoint{}, verbs.ConnectOptions{}), verbs.ErrInvalid},
		"GID index":                 {second(s.qp.Local(5, 0)), verbs.ErrInvalid},
		"AH without address":        {second(s.pd.AHTo(verbs.GID{}, 0)), verbs.ErrInvalid},
		"UD without AH":             {second(ud.qp.PostSend(&verbs.SendWR{Opcode: verbs.OpSend})), verbs.ErrInvalid},
		"more inline than there is": {second(s.qp.PostSend(&verbs.SendWR{Inline: make([]byte, 17)})), verbs.ErrInvalid},
		"too many SGEs":             {second(s.qp.PostSend(&verbs.SendWR{SGE: make([]verbs.SGE, 2)})), verbs.ErrInvalid},
		"too many receive SGEs":     {second(s.qp.PostRecv(&verbs.RecvWR{SGE: make([]verbs.SGE, 2)})), verbs.ErrInvalid},
	} {
		if !errors.Is(k.got, k.want) {
			t.Errorf("%s: %v; want one that is %q", what, k.got, k.want)
		}
	}
}

// The status of every completion that fails is an error of its own (InfiniBand vol. 1, 11.6.2).
func TestErrorsOfCompletions(t *testing.T) {
	for what, k := range map[string]struct {
		want verbs.Status
		wr   func(c, s *side) *verbs.SendWR
	}{
		"unknown rkey": {verbs.ErrRemoteAccess, func(c, s *side) *verbs.SendWR {
			w := write(c, s, 1, 8)
			w.RKey ^= 1
			return w
		}},
		"beyond the region": {verbs.ErrRemoteAccess, func(c, s *side) *verbs.SendWR {
			w := write(c, s, 1, 8)
			w.RemoteAddr += 1<<20 - 7
			return w
		}},
		"misaligned atomic": {verbs.ErrRemoteInvalid, func(c, s *side) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.OpFetchAdd, SGE: c.mr.Slice(0, 8), RemoteAddr: s.mr.Addr(4), RKey: s.mr.RKey()}
		}},
		"unknown lkey": {verbs.ErrLocalProtection, func(c, s *side) *verbs.SendWR {
			w := write(c, s, 1, 8)
			w.SGE[0].LKey ^= 1
			return w
		}},
		"message too long for the receive": {verbs.ErrRemoteInvalid, func(c, s *side) *verbs.SendWR {
			s.receive(1, 0, 8)
			return &verbs.SendWR{Opcode: verbs.OpSend, SGE: c.mr.Slice(0, 9)}
		}},
		"no receive": {verbs.ErrRNRRetryExceeded, func(c, s *side) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.OpSend, SGE: c.mr.Slice(0, 9)}
		}},
		"unknown operation": {verbs.ErrLocalQPOperation, func(c, s *side) *verbs.SendWR {
			w := write(c, s, 1, 8)
			w.Opcode = 77
			return w
		}},
	} {
		t.Run(what, func(t *testing.T) {
			dev := local(t)
			c, s := newSide(dev, verbs.QPConfig{}), newSide(dev, verbs.QPConfig{})
			check(c.qp.Connect(get(s.qp.Local(0, 2)), verbs.ConnectOptions{PSN: 1, RNRRetry: 1, RNRTimer: 1}))
			check(s.qp.Connect(get(c.qp.Local(0, 1)), verbs.ConnectOptions{PSN: 2, RNRTimer: 1}))
			c.post(k.wr(c, s))
			c.post(write(c, s, 2, 8))
			first, second := c.next(), c.next()
			if !errors.Is(first.Err(), k.want) {
				t.Errorf("completed with %v, want %v", first.Err(), k.want)
			}
			if !errors.Is(second.Err(), verbs.ErrFlushed) || second.ID != 2 {
				t.Errorf("behind it %d completed with %v, want 2 flushed", second.ID, second.Err())
			}
		})
	}
}

func TestWaitEnds(t *testing.T) {
	for what, k := range map[string]struct {
		end  func(s *side, cancel func())
		want error
	}{
		"cancelled":      {func(_ *side, cancel func()) { cancel() }, context.Canceled},
		"queue closed":   {func(s *side, _ func()) { check(s.qp.Close()); check(s.cq.Close()) }, verbs.ErrClosed},
		"context closed": {func(s *side, _ func()) { check(s.ctx.Close()) }, verbs.ErrClosed},
		"device closed":  {func(s *side, _ func()) { check(s.ctx.Device().Close()) }, verbs.ErrClosed},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSide(local(t), verbs.QPConfig{})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error)
			for _, wait := range []func(context.Context) error{s.cq.Wait, s.cq.WaitSolicited,
				func(ctx context.Context) error { _, err := s.cq.Next(ctx, make([]verbs.WC, 1)); return err }} {
				go func() { ended <- wait(ctx) }()
			}
			time.Sleep(time.Millisecond) // some are asleep already, or not
			k.end(s, cancel)
			within(t, "waiting", func() {
				for range 3 {
					if err := <-ended; !errors.Is(err, k.want) {
						t.Errorf("ended with %v, want %v", err, k.want)
					}
				}
			})
		})
	}
}

// One event, several waiters: each finds what the others leave.
func TestManyWaiters(t *testing.T) {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	const messages, waiters = 400, 4
	got := make(chan uint64, messages)
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for range waiters {
		all.Go(func() {
			for {
				var wc [1]verbs.WC
				if n, err := client.cq.Next(ctx, wc[:]); err != nil {
					return
				} else if n == 1 {
					got <- wc[0].ID
				}
			}
		})
	}
	within(t, "waiting", func() {
		for i := range uint64(messages) {
			client.post(write(client, server, i, 64))
			if i%20 == 19 { // then the queue is empty, and all sleep again
				for range 20 {
					<-got
				}
			}
		}
		cancel()
		all.Wait()
	})
}

func TestTwoGoroutinesPost(t *testing.T) {
	client, server, done := newPair(verbs.QPConfig{MaxSend: 64})
	defer done()
	const each = 1500
	room := make(chan struct{}, 60)
	var posting sync.WaitGroup
	for g := range uint64(2) {
		posting.Go(func() {
			for i := range uint64(each) {
				room <- struct{}{}
				client.post(write(client, server, g<<32|i, 256))
			}
		})
	}
	next := [2]uint64{}
	within(t, "completing", func() {
		for range 2 * each {
			wc := client.next()
			g := wc.ID >> 32
			if wc.Err() != nil || uint32(wc.ID) != uint32(next[g]) {
				t.Errorf("goroutine %d: completion %d (%v), %d was due", g, uint32(wc.ID), wc.Status, next[g])
			}
			next[g]++
			<-room
		}
	})
	posting.Wait()
}

// The region of the target is closed in mid-transfer: a remote access error, the rest is flushed, and
// nothing is written to the memory any more (it is unmapped: a write would end the process).
func TestRemoteRegionClosedInMidTransfer(t *testing.T) {
	closeInMidTransfer(t, func(client, server *side) *verbs.MR { return server.mr }, verbs.ErrRemoteAccess)
}

// The same with the region that is sent from.
func TestLocalRegionClosedInMidTransfer(t *testing.T) {
	closeInMidTransfer(t, func(client, server *side) *verbs.MR { return client.mr }, verbs.ErrLocalProtection)
}

// closeInMidTransfer closes a region while writes are under way: one of them at most fails, with want, and those after it are flushed.
func closeInMidTransfer(t *testing.T, region func(client, server *side) *verbs.MR, want error) {
	for range 20 {
		client, server, done := newPair(verbs.QPConfig{})
		wr := write(client, server, 0, 1<<20)
		var closing sync.WaitGroup
		closing.Go(func() { check(region(client, server).Close()) })
		for i := range uint64(8) {
			wr.ID = i
			client.post(wr)
		}
		closing.Wait()
		client.post(wr)
		failed := false
		for range 9 {
			err := client.next().Err()
			switch {
			case !failed && err == nil:
			case !failed && errors.Is(err, want):
				failed = true
			case failed && errors.Is(err, verbs.ErrFlushed):
			default:
				t.Fatalf("completed with %v; failed before: %v", err, failed)
			}
		}
		if !failed {
			t.Fatal("no transfer failed although the region is closed")
		}
		done()
	}
}

// Everything may be closed at any time, by anyone.
func TestClosingUnderTraffic(t *testing.T) {
	for what, closer := range map[string]func(c, s *side) error{
		"the own queue pair":    func(c, s *side) error { return c.qp.Close() },
		"the peer's queue pair": func(c, s *side) error { return s.qp.Close() },
		"the own region":        func(c, s *side) error { return c.mr.Close() },
		"the own context":       func(c, s *side) error { return c.ctx.Close() },
		"the peer's context":    func(c, s *side) error { return s.ctx.Close() },
		"the device":            func(c, s *side) error { return c.ctx.Device().Close() },
	} {
		t.Run(what, func(t *testing.T) {
			for i := range 16 {
				devs := network
				if i%2 == 0 {
					devs = oneNIC
				}
				a, b := devs(t)
				c, s := newSide(a, verbs.QPConfig{}), newSide(b, verbs.QPConfig{})
				connect(c, s)
				within(t, "closing under traffic", func() { traffic(t, c, s, closer) })
				check(a.Close())
				check(b.Close())
			}
		})
	}
}

func oneNIC(t *testing.T) (a, b *verbs.Device) {
	a = local(t)
	return a, a
}

// network are two NICs over UDP.
func network(t *testing.T) (a, b *verbs.Device) {
	t.Helper()
	var devs [2]*verbs.Device
	for i := range devs {
		dev, err := verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{address(byte(i + 1))}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dev.Close() })
		devs[i] = dev
	}
	return devs[0], devs[1]
}

// traffic posts and polls from two goroutines until closer has closed something and a little longer.
func traffic(t *testing.T, c, s *side, closer func(c, s *side) error) {
	stop := make(chan struct{})
	var users sync.WaitGroup
	wr := write(c, s, 0, 100_000)
	users.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, err := c.qp.PostSend(wr)
			if err != nil && !errors.Is(err, verbs.ErrQueueFull) && !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("post: %v", err)
			}
			runtime.Gosched()
		}
	})
	users.Go(func() {
		wc := make([]verbs.WC, 8)
		for {
			select {
			case <-stop:
				return
			default:
			}
			// What is posted to a queue pair in error is flushed at once: more than a poller takes who is kept from a core.
			if _, err := c.cq.Poll(wc); err != nil && !errors.Is(err, verbs.ErrClosed) && !errors.Is(err, verbs.ErrOverrun) {
				t.Errorf("poll: %v", err)
			}
		}
	})
	time.Sleep(time.Millisecond)
	if err := closer(c, s); err != nil {
		t.Errorf("close: %v", err)
	}
	time.Sleep(time.Millisecond)
	close(stop)
	users.Wait()
}

// A slice of the Go heap stays where it is, and alive, while it is registered.
func TestRegisteredSliceAndTheGarbageCollector(t *testing.T) {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	addr, key := func() (uint64, uint32) {
		mr := get(server.pd.RegMR(make([]byte, 8192), verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead))
		return mr.Addr(0), mr.RKey()
	}()
	for i := range 50 {
		for k := range client.mr.Bytes()[:8192] {
			client.mr.Bytes()[k] = byte(i + k)
		}
		client.post(&verbs.SendWR{Opcode: verbs.OpWrite, SGE: client.mr.Slice(0, 8192), RemoteAddr: addr, RKey: key})
		runtime.GC()
		_ = make([]byte, 8192) // would take the place of memory that was freed
		client.post(&verbs.SendWR{Opcode: verbs.OpRead, Flags: verbs.Signaled, SGE: client.mr.Slice(65536, 8192), RemoteAddr: addr, RKey: key})
		if wc := client.next(); wc.Err() != nil {
			t.Fatal(wc.Err())
		}
		for k, b := range client.mr.Bytes()[65536 : 65536+8192] {
			if b != byte(i+k) {
				t.Fatalf("round %d: byte %d is %d, not %d", i, k, b, byte(i+k))
			}
		}
	}
}

// Asynchronous events that nobody reads do not stop the NIC.
func TestUnreadEventsAreDropped(t *testing.T) {
	dev := local(t)
	s := newSide(dev, verbs.QPConfig{})
	for range 300 {
		c := newSide(dev, verbs.QPConfig{})
		check(s.qp.Modify(&verbs.Attr{State: verbs.StateReset}, verbs.AttrState))
		connect(c, s)
		wr := write(c, s, 1, 8)
		wr.RKey ^= 1
		c.post(wr)
		if wc := c.next(); !errors.Is(wc.Err(), verbs.ErrRemoteAccess) {
			t.Fatal(wc.Err())
		}
		check(c.ctx.Close())
	}
	if n := len(s.ctx.Events()); n != cap(s.ctx.Events()) {
		t.Errorf("%d events wait, of 300", n)
	}
}

// The peer's machine is gone: retries, then an error; the program is told in any case.
func TestPeerGone(t *testing.T) {
	a, b := network(t)
	c, s := newSide(a, verbs.QPConfig{}), newSide(b, verbs.QPConfig{})
	check(c.qp.Connect(get(s.qp.Local(0, 2)), verbs.ConnectOptions{PSN: 1, Timeout: 8, RetryCount: 2}))
	check(s.qp.Connect(get(c.qp.Local(0, 1)), verbs.ConnectOptions{PSN: 2}))
	wr := write(c, s, 1, 4096)
	c.post(wr)
	if wc := c.next(); wc.Err() != nil {
		t.Fatal(wc.Err())
	}
	check(s.ctx.Device().Close())
	c.post(wr)
	if wc := c.next(); !errors.Is(wc.Err(), verbs.ErrRetryExceeded) {
		t.Errorf("completed with %v, want %v", wc.Err(), verbs.ErrRetryExceeded)
	}
	if a := get(c.qp.Query()); a.State != verbs.StateError {
		t.Errorf("the queue pair is in state %v", a.State)
	}
}
