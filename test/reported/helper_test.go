package reported

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/test/rig"
	"rnic/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient is how long a test waits for what must come at last, on a machine that is busy.
const patient = rig.Patience

func nic(t *testing.T, change func(*device.Config)) *verbs.Device {
	t.Helper()
	return rig.NIC(t, change)
}

// end is one side of a connection with a region.
type end struct{ *rig.Program }

const all = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

const regionSize = 1 << 16

func newEnd(t *testing.T, d *verbs.Device, cfg verbs.QPConfig) *end {
	t.Helper()
	return &end{rig.New(t, d, regionSize, all, cfg)}
}

// connect connects two ends; o is for both.
func connect(a, b *end, o verbs.ConnectOptions) {
	a.T.Helper()
	rig.Connect(a.Program, b.Program, 100, 0xffff00, o, o)
}

// pair are two connected ends on two NICs.
func pair(t *testing.T, o verbs.ConnectOptions) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, nic(t, nil), verbs.QPConfig{}), newEnd(t, nic(t, nil), verbs.QPConfig{})
	connect(a, b, o)
	return a, b
}

func (e *end) post(wrs ...*verbs.SendWR) {
	e.T.Helper()
	e.Post(wrs...)
}

// write is a WRITE of so many bytes to an offset in the peer's region.
func (e *end) write(id uint64, peer *end, off, length int) *verbs.SendWR {
	return &verbs.SendWR{ID: id, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: e.MR.Slice(off, length), RemoteAddr: peer.MR.Addr(off), RKey: peer.MR.RKey()}
}

func (e *end) recv(id uint64, length int) {
	e.T.Helper()
	e.Receive(id, 0, length)
}

// want waits for a completion of a request with a status, nil for success.
func (e *end) want(id uint64, status error) (wc verbs.WC) {
	e.T.Helper()
	wc = e.Next()
	if err := wc.Err(); wc.ID != id || !errors.Is(err, status) || status == nil && err != nil {
		e.T.Errorf("completion of request %d: %v; want request %d, %v", wc.ID, err, id, status)
	}
	return wc
}

// none checks that there is no further completion now.
func (e *end) none() {
	e.T.Helper()
	var wc [4]verbs.WC
	if n, err := e.CQ.Poll(wc[:]); n != 0 || err != nil {
		e.T.Errorf("%d completions too many: %v, %v", n, wc[:n], err)
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
