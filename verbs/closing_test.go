package verbs_test

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"

	"rnic/verbs"
)

// Commands that meet the Close of their object are ErrClosed, whichever of the two is first.
func TestCommandsWhileClosing(t *testing.T) {
	dev := local(t)
	s := newSide(dev, verbs.QPConfig{})
	for what, begin := range map[string]func() (command func() error, end func() error){
		"modify": func() (func() error, func() error) {
			q := get(s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq}))
			check(q.Init(0))
			return func() error { return q.Init(0) }, q.Close
		},
		"moderate": func() (func() error, func() error) {
			q := get(s.ctx.CreateCQ(8))
			return func() error { return q.Moderate(2, 1000) }, q.Close
		},
		"resize": func() (func() error, func() error) {
			q := get(s.ctx.CreateCQ(8))
			return func() error { return q.Resize(8) }, q.Close
		},
		"arm": func() (func() error, func() error) {
			q := get(s.pd.CreateSRQ(verbs.SRQConfig{}))
			return func() error { return q.Arm(1) }, q.Close
		},
	} {
		for range 60 {
			command, end := begin()
			ended := untilError(command)
			check(end())
			if err := <-ended; !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("%s: %v", what, err)
				break
			}
		}
	}
}

// Whoever closes a device, also as the second, finds its addresses free then.
func TestDeviceCloseWaits(t *testing.T) {
	for range 5 {
		cfg := verbs.DeviceConfig{Addrs: []netip.Addr{address(1)}, Units: 8}
		dev := get(verbs.NewDevice(cfg))
		go dev.Close()
		for !dev.Unwrap().Removed() {
			runtime.Gosched()
		}
		check(dev.Close())
		next, err := verbs.NewDevice(cfg)
		if err != nil {
			t.Fatal(err)
		}
		check(next.Close())
	}
}

// untilError repeats a command until it fails.
func untilError(command func() error) <-chan error {
	ended, begun := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		err := command()
		begun <- struct{}{}
		for err == nil {
			err = command()
		}
		ended <- err
	}()
	<-begun
	return ended
}
