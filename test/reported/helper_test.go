package reported

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient is how long a test waits for what must come at last, on a machine that is busy.
const patient = 90 * time.Second

var hosts atomic.Uint32

// nic is a NIC over UDP on a loopback address of its own.
func nic(t *testing.T, change func(*device.Config)) *verbs.Device {
	t.Helper()
	n := hosts.Add(1)
	pid := os.Getpid()
	cfg := device.Config{Name: fmt.Sprintf("nic%d", n), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{127, 100 + byte(pid>>16&7)<<4 | byte(n>>8)&15, byte(pid), byte(n)})}}
	if change != nil {
		change(&cfg)
	}
	d, err := device.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return verbs.Wrap(d)
}

// end is one side of a connection with a region.
type end struct {
	t   *testing.T
	ctx *verbs.Context
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

const all = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

const regionSize = 1 << 16

func newEnd(t *testing.T, d *verbs.Device, cfg verbs.QPConfig) *end {
	t.Helper()
	e := &end{t: t, ctx: d.Open()}
	t.Cleanup(func() { e.ctx.Close() })
	var err1, err2, err3, err4 error
	e.pd, err1 = e.ctx.AllocPD()
	e.cq, err2 = e.ctx.CreateCQ(1024)
	e.mr, err3 = e.pd.AllocMR(regionSize, all)
	cfg.SendCQ, cfg.RecvCQ = e.cq, e.cq
	e.qp, err4 = e.pd.CreateQP(cfg)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	return e
}

// connect connects two ends; o is for both.
func connect(a, b *end, o verbs.ConnectOptions) {
	a.t.Helper()
	ea, err1 := a.qp.Local(0, 100)
	eb, err2 := b.qp.Local(0, 0xffff00)
	oa, ob := o, o
	oa.PSN, ob.PSN = ea.PSN, eb.PSN
	if err := errors.Join(err1, err2, a.qp.Connect(eb, oa), b.qp.Connect(ea, ob)); err != nil {
		a.t.Fatal(err)
	}
}

// pair are two connected ends on two NICs.
func pair(t *testing.T, o verbs.ConnectOptions) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, nic(t, nil), verbs.QPConfig{}), newEnd(t, nic(t, nil), verbs.QPConfig{})
	connect(a, b, o)
	return a, b
}

func (e *end) post(wrs ...*verbs.SendWR) {
	e.t.Helper()
	if _, err := e.qp.PostSend(wrs...); err != nil {
		e.t.Fatal(err)
	}
}

// write is a WRITE of so many bytes to an offset in the peer's region.
func (e *end) write(id uint64, peer *end, off, length int) *verbs.SendWR {
	return &verbs.SendWR{ID: id, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: e.mr.Slice(off, length), RemoteAddr: peer.mr.Addr(off), RKey: peer.mr.RKey()}
}

func (e *end) recv(id uint64, length int) {
	e.t.Helper()
	if _, err := e.qp.PostRecv(&verbs.RecvWR{ID: id, SGE: e.mr.Slice(0, length)}); err != nil {
		e.t.Fatal(err)
	}
}

// next waits for a completion.
func (e *end) next() (wc verbs.WC) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	var list [1]verbs.WC
	if _, err := e.cq.Next(ctx, list[:]); err != nil {
		e.t.Fatalf("no completion: %v", err)
	}
	return list[0]
}

// want waits for a completion of a request with a status, nil for success.
func (e *end) want(id uint64, status error) (wc verbs.WC) {
	e.t.Helper()
	wc = e.next()
	if err := wc.Err(); wc.ID != id || !errors.Is(err, status) || status == nil && err != nil {
		e.t.Errorf("completion of request %d: %v; want request %d, %v", wc.ID, err, id, status)
	}
	return wc
}

// none checks that there is no further completion now.
func (e *end) none() {
	e.t.Helper()
	var wc [4]verbs.WC
	if n, err := e.cq.Poll(wc[:]); n != 0 || err != nil {
		e.t.Errorf("%d completions too many: %v, %v", n, wc[:n], err)
	}
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for begin := time.Now(); !f(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > patient {
			t.Fatal(what)
		}
	}
}

func plant(t *testing.T, d *verbs.Device, spec string) int {
	t.Helper()
	s, err := fault.ParseRule(spec)
	if err != nil {
		t.Fatal(err)
	}
	id, err := d.Unwrap().AddFault(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
