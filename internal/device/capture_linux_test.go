package device_test

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rnic/internal/device"
	"rnic/internal/explain"
	"rnic/internal/fault"
	"rnic/internal/link/capture"
	"rnic/internal/roce"
	"rnic/test/rig"
)

// captured is what a capture holds, a line for each packet.
func captured(t *testing.T, b []byte) (lines []string) {
	t.Helper()
	rig.Captured(t, b, func(p *explain.Packet) { lines = append(lines, p.Line()) })
	return lines
}

func count(lines []string, texts ...string) (n int) {
next:
	for _, l := range lines {
		for _, t := range texts {
			if !strings.Contains(l, t) {
				continue next
			}
		}
		n++
	}
	return n
}

// A capture may begin and end while the NIC works, with a filter, and several at the same time. What the NIC decided stands beside the packets.
func TestCaptureWhileItRuns(t *testing.T) {
	a, b := twoDevices(t, func(c *device.Config) { c.Seed = 7 })
	ea, eb := newEnd(t, a), newEnd(t, b)
	connect(t, ea, eb, 0, 0)
	exchange(t, ea, eb, 3)
	var all, reads, other bytes.Buffer
	files := []*capture.File{capture.NewFile(&all), capture.NewFile(&reads), capture.NewFile(&other)}
	filters := []device.CaptureFilter{{}, {Opcodes: []roce.Opcode{roce.RCReadRequest}}, {Peers: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
	var caps []*device.Capture
	for i, f := range files {
		c, err := a.StartCapture(f, filters[i])
		if err != nil {
			t.Fatal(err)
		}
		caps = append(caps, c)
	}
	exchange(t, ea, eb, 3)
	for _, c := range caps {
		c.Stop()
	}
	exchange(t, ea, eb, 3)
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	lines := captured(t, all.Bytes())
	if n := count(lines, "out ", "WRITE"); n < 3 || n > 40 || count(lines, "in ") == 0 {
		t.Errorf("%d packets, %d WRITEs sent:\n%s", len(lines), n, strings.Join(lines, "\n"))
	}
	if n := count(captured(t, reads.Bytes()), "RC_RDMA_READ_REQUEST"); n == 0 || n != len(captured(t, reads.Bytes())) {
		t.Errorf("a filter for READ requests gives\n%s", strings.Join(captured(t, reads.Bytes()), "\n"))
	}
	if n := len(captured(t, other.Bytes())); n != 0 {
		t.Errorf("%d packets of a peer that there is not", n)
	}
	if n := count(lines, "[dropped") + count(lines, "[refused"); n != 0 {
		t.Errorf("%d packets dropped or refused, though nothing happened:\n%s", n, strings.Join(lines, "\n"))
	}
}

// Losses: the sender says why it sends again, the receiver what it refused and asked for; corrupt packets are shown as they came.
func TestCaptureComments(t *testing.T) {
	var bufs [2]bytes.Buffer
	a, b := twoDevices(t, func(c *device.Config) { c.SendFault = &fault.Spec{Drop: 0.05, Corrupt: 0.05, Seed: 3} })
	var files []*capture.File
	for i, d := range []*device.Device{a, b} {
		f := capture.NewStream(&bufs[i], 1<<24)
		if _, err := d.StartCapture(f, device.CaptureFilter{}); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	ea, eb := newEnd(t, a), newEnd(t, b)
	connect(t, ea, eb, 0, 0)
	exchange(t, ea, eb, 60)
	_, _ = a.Close(), b.Close()
	for _, f := range files {
		if err := f.Close(); err != nil || f.Missing() != 0 {
			t.Fatal(err, f.Missing())
		}
	}
	lines := append(captured(t, bufs[0].Bytes()), captured(t, bufs[1].Bytes())...)
	for _, want := range [][]string{{"out ", "[retransmitted: "}, {"out ", "[NAK sent: PSN sequence error, PSN "}, {"in ", "bad ICRC [dropped: bad ICRC]"}, {"in ", "[out of sequence"}} {
		if count(lines, want...) == 0 {
			t.Errorf("no packet says %q, of %d", want, len(lines))
		}
	}
}

func TestCaptureLimits(t *testing.T) {
	d, err := device.New(device.Config{Local: true})
	if err != nil {
		t.Fatal(err)
	}
	f := capture.NewFile(&bytes.Buffer{})
	defer f.Close()
	var c *device.Capture
	for err == nil {
		var next *device.Capture
		if next, err = d.StartCapture(f, device.CaptureFilter{}); err == nil {
			c = next
		}
	}
	if !errors.Is(err, device.ErrManyCaptures) {
		t.Fatal(err)
	}
	c.Stop()
	if c, err = d.StartCapture(f, device.CaptureFilter{}); err != nil {
		t.Errorf("after one was stopped: %v", err)
	}
	d.Close()
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Error("a capture does not end with its device")
	}
	if _, err := d.StartCapture(f, device.CaptureFilter{}); err == nil {
		t.Error("a closed device is captured")
	}
}
