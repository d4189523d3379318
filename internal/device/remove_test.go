package device_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"rnic/internal/device"
	"rnic/verbs"
)

// A device that is taken away tells those who look at its port before its contexts are closed; then it has no program any more, and takes none.
func TestRemove(t *testing.T) {
	d := open(t, device.Config{Local: true})
	a, b := newEnd(t, d), newEnd(t, d)
	connect(t, a, b, 0, 0)
	exchange(t, a, b, 3)
	own := d.Open(newRecorder())
	if _, err := own.AllocPD(); err != nil {
		t.Fatal(err)
	}
	told := 0
	cancel := d.OnPortChange(func() {
		if d.Removed() {
			told++
			if got := own.Objects(); got.PDs != 1 {
				t.Errorf("before anybody was told it had %+v", got)
			}
		}
	})
	defer cancel()
	waiter := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := b.cq.Next(ctx, make([]verbs.WC, 1))
		waiter <- err
	}()
	time.Sleep(20 * time.Millisecond) // mostly it sleeps by now; sooner, the test sees less
	d.Remove()
	d.Remove()
	if told != 1 {
		t.Errorf("it was told %d times", told)
	}
	if err := <-waiter; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("who waited for a completion sees %v", err)
	}
	if got := own.Objects(); got != (device.Objects{}) {
		t.Errorf("left are %+v", got)
	}
	if _, err := verbs.Wrap(d).Open().AllocPD(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("a program that comes later sees %v", err)
	}
	// What becomes of the port of such a device is nobody's news.
	if _, err := d.AddFault(rule(t, "down=1h")); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); d.PortActive(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > 30*time.Second {
			t.Fatal("the port does not go down")
		}
	}
	if err := d.Close(); err != nil || told != 1 {
		t.Errorf("closing: %v; told %d times", err, told)
	}
}
