package device_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"go.uber.org/goleak"

	"rnic/internal/device"
	"rnic/internal/dma"
	"rnic/internal/engine"
	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
	"rnic/internal/testnet"
	"rnic/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func loopback(n byte) netip.Addr { return testnet.Loopback(60, n) }

func open(t *testing.T, cfg device.Config) *device.Device {
	t.Helper()
	d, err := device.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// end is one connected side, made with the user-mode driver.
type end struct {
	ctx *verbs.Context
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

func newEnd(t *testing.T, d *device.Device) *end {
	t.Helper()
	ctx := verbs.Wrap(d).Open()
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	e := &end{ctx: ctx}
	if e.cq, err = ctx.CreateCQ(512); err != nil {
		t.Fatal(err)
	}
	if e.mr, err = pd.AllocMR(1<<20, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead); err != nil {
		t.Fatal(err)
	}
	if e.qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq}); err != nil {
		t.Fatal(err)
	}
	return e
}

// connect connects two ends by their GIDs of these indices.
func connect(t *testing.T, a, b *end, indexA, indexB int) {
	t.Helper()
	ea, err1 := a.qp.Local(indexA, 0xfffff0)
	eb, err2 := b.qp.Local(indexB, 5)
	err3 := a.qp.Connect(eb, verbs.ConnectOptions{PSN: ea.PSN, GIDIndex: indexA})
	err4 := b.qp.Connect(ea, verbs.ConnectOptions{PSN: eb.PSN, GIDIndex: indexB})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
}

// complete waits for a completion.
func (e *end) complete(t *testing.T) verbs.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := e.cq.Next(ctx, wc[:]); err != nil {
		t.Fatal(err)
	}
	if err := wc[0].Err(); err != nil {
		t.Fatal(err)
	}
	return wc[0]
}

// exchange writes random bytes to b, reads them back to somewhere else, and compares.
func exchange(t *testing.T, a, b *end, rounds int) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		n := 1 + random.IntN(60_000)
		src, dst := a.mr.Bytes()[:n], a.mr.Bytes()[1<<19:1<<19+n]
		for i := range src {
			src[i] = byte(random.Uint32())
		}
		clear(dst)
		_, err := a.qp.PostSend(
			&verbs.SendWR{Opcode: verbs.OpWrite, SGE: a.mr.Slice(0, n), RemoteAddr: b.mr.Addr(77), RKey: b.mr.RKey()},
			&verbs.SendWR{Opcode: verbs.OpRead, Flags: verbs.Signaled, SGE: a.mr.Slice(1<<19, n), RemoteAddr: b.mr.Addr(77), RKey: b.mr.RKey()})
		if err != nil {
			t.Fatal(err)
		}
		a.complete(t)
		for i := range src {
			if src[i] != dst[i] || src[i] != b.mr.Bytes()[77+i] {
				t.Fatalf("byte %d of %d is %#x at the peer and came back as %#x, not %#x", i, n, b.mr.Bytes()[77+i], dst[i], src[i])
			}
		}
	}
}

// Faults of every kind, in either direction, over the network and within one NIC, cost time only.
func TestEveryByteIsRightUnderFaults(t *testing.T) {
	spec := func(s string) *fault.Spec {
		f, err := fault.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return &f
	}
	for _, local := range []bool{false, true} {
		for _, f := range []string{"drop=3%,seed=1", "dup=5%,seed=2", "reorder=5%:8,seed=3", "corrupt=3%,seed=4", "delay=5%:100us-2ms,seed=5",
			"drop=1%,dup=1%,reorder=1%,corrupt=1%,delay=1%:1ms,seed=6"} {
			t.Run(fmt.Sprintf("local=%v/%s", local, f), func(t *testing.T) {
				t.Parallel() // they mostly wait
				cfg := device.Config{Local: true, SendFault: spec(f), RecvFault: spec(f)}
				a := open(t, cfg)
				b := a
				if !local {
					a.Close()
					a, b = twoDevices(t, func(c *device.Config) { c.SendFault, c.RecvFault = cfg.SendFault, cfg.RecvFault })
				}
				ea, eb := newEnd(t, a), newEnd(t, b)
				connect(t, ea, eb, 0, 0)
				exchange(t, ea, eb, 25)
				if s := a.Stats(); s.Timeouts > 0 {
					t.Logf("local ACK timer expired %d times", s.Timeouts)
				}
			})
		}
	}
}

// pairs are the networks that are free: tests may run at once.
var pairs = make(chan byte, 31)

func init() {
	for i := range cap(pairs) {
		pairs <- byte(i)
	}
}

// twoDevices are two NICs over UDP on addresses of their own.
func twoDevices(t *testing.T, change func(*device.Config)) (a, b *device.Device) {
	t.Helper()
	base := loopback(0).As4()
	network := <-pairs
	t.Cleanup(func() { pairs <- network }) // when the devices are closed
	base[1] -= network
	var d [2]*device.Device
	for i := range d {
		base[3] = base[3]&^3 | byte(i+1)
		cfg := device.Config{Name: fmt.Sprintf("nic%d", i), Addrs: []netip.Addr{netip.AddrFrom4(base)}}
		if change != nil {
			change(&cfg)
		}
		d[i] = open(t, cfg)
	}
	return d[0], d[1]
}

// Both units sleep whenever they can, for an hour: packets have to wake them.
func TestPacketsWakeTheUnit(t *testing.T) {
	a, b := twoDevices(t, func(c *device.Config) { c.Waking = engine.Waking{SpinNanos: -1, SleepNanos: int64(time.Hour)} })
	ea, eb := newEnd(t, a), newEnd(t, b)
	connect(t, ea, eb, 0, 0)
	random := rand.New(rand.NewPCG(3, 3))
	sides := [2]*end{ea, eb}
	for i := range 2000 {
		from, to := sides[i%2], sides[1-i%2]
		if _, err := to.qp.PostRecv(&verbs.RecvWR{ID: uint64(i), SGE: to.mr.Slice(0, 64)}); err != nil {
			t.Fatal(err)
		}
		if random.IntN(2) == 0 {
			time.Sleep(time.Duration(random.IntN(200)) * time.Microsecond)
		}
		if _, err := from.qp.PostSend(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: from.mr.Slice(0, 8)}); err != nil {
			t.Fatal(err)
		}
		if wc := to.complete(t); wc.ID != uint64(i) {
			t.Fatalf("receive %d completed, %d was due", wc.ID, i)
		}
		from.complete(t)
	}
}

func TestGIDTable(t *testing.T) {
	d := open(t, device.Config{Addrs: []netip.Addr{loopback(1), loopback(2)}})
	var got []string
	for i, g := range d.GIDs() {
		if g.Index != i || g.IfName != "lo" || g.IfIndex != 1 {
			t.Errorf("entry %d: %+v", i, g)
		}
		got = append(got, g.GID.Addr().String())
	}
	if diff := cmp.Diff([]string{loopback(1).String(), loopback(2).String()}, got); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if d.NodeGUID() == [8]byte{} {
		t.Error("the node GUID is zero")
	}
	// Every GID reaches every other one, on this NIC and from another.
	other := open(t, device.Config{Addrs: []netip.Addr{loopback(3)}})
	for i := range d.GIDs() {
		for k := range d.GIDs() {
			a, b := newEnd(t, d), newEnd(t, d)
			connect(t, a, b, i, k)
			exchange(t, a, b, 1)
		}
		a, b := newEnd(t, other), newEnd(t, d)
		connect(t, a, b, 0, i)
		exchange(t, a, b, 1)
	}
}

func TestAddressInUse(t *testing.T) {
	open(t, device.Config{Addrs: []netip.Addr{loopback(1)}})
	if d, err := device.New(device.Config{Addrs: []netip.Addr{loopback(1)}}); err == nil {
		d.Close()
		t.Error("two NICs have one address")
	}
}

// What cannot be is EINVAL, what the system refuses is the system's error.
func TestBadConfig(t *testing.T) {
	for what, cfg := range map[string]device.Config{
		"MTU":        {Local: true, MTU: 1500},
		"capture":    {Local: true, Capture: "/nonexistent/file"},
		"interface":  {Interface: "nosuch0"},
		"no address": {Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.99")}},
		"both":       {Addrs: []netip.Addr{loopback(1)}, Interface: "lo"},
	} {
		d, err := device.New(cfg)
		if err == nil {
			d.Close()
		}
		if err == nil || errors.Is(err, nic.EINVAL) != (what != "capture") {
			t.Errorf("%s: %v; EINVAL: %v", what, err, errors.Is(err, nic.EINVAL))
		}
	}
}

// A17.3.2.2, A17.3.3: what a NIC sends goes to UDP port 4791 and ends with the right ICRC: the capture shows it, and every
// packet, over the network and within one NIC.
func TestCaptureIsReadable(t *testing.T) {
	for _, local := range []bool{false, true} {
		name := filepath.Join(t.TempDir(), "c.pcapng")
		var a, b *device.Device
		if local {
			a = open(t, device.Config{Local: true, Capture: name})
			b = a
		} else {
			a, b = twoDevices(t, func(c *device.Config) {
				if c.Name == "nic0" {
					c.Capture = name
				}
			})
		}
		ea, eb := newEnd(t, a), newEnd(t, b)
		connect(t, ea, eb, 0, 0)
		exchange(t, ea, eb, 3)
		for _, d := range []*device.Device{a, b} {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
		writes, reads := readCapture(t, name)
		if writes < 3 || reads < 3 {
			t.Errorf("local=%v: %d RDMA WRITEs and %d READ requests in the capture, 3 and 3 were posted", local, writes, reads)
		}
	}
}

func readCapture(t *testing.T, name string) (writes, reads int) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range enhancedPackets(t, b) {
		pkt := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
		u, ok := pkt.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if !ok || u.DstPort != roce.Port || len(u.Payload) < 16 {
			t.Fatalf("no RoCEv2 packet: %v", pkt)
		}
		path := roce.Path{SrcPort: uint16(u.SrcPort)}
		ident := uint16(0)
		switch ip := pkt.NetworkLayer().(type) {
		case *layers.IPv4:
			path.Src, _ = netip.AddrFromSlice(ip.SrcIP.To4())
			path.Dst, _ = netip.AddrFromSlice(ip.DstIP.To4())
			path.TOS, path.TTL, ident = ip.TOS, ip.TTL, ip.Id
		case *layers.IPv6:
			path.Src, _ = netip.AddrFromSlice(ip.SrcIP)
			path.Dst, _ = netip.AddrFromSlice(ip.DstIP)
			path.TOS, path.TTL = ip.TrafficClass, ip.HopLimit
		}
		if !roce.VerifyIdent(&path, ident, u.Payload) {
			t.Fatalf("the ICRC is wrong: %v", pkt)
		}
		var p roce.Packet
		if err := roce.Decode(u.Payload[:len(u.Payload)-roce.ICRCSize], &p); err != nil {
			t.Fatal(err)
		}
		switch {
		case p.Info.Kind == roce.KindWrite && p.Info.First, p.Info.Kind == roce.KindWrite && p.Info.Only:
			writes++
		case p.Info.Kind == roce.KindReadRequest:
			reads++
		}
	}
	return writes, reads
}

// enhancedPackets are the packets of a pcapng file (draft-ietf-opsawg-pcapng, 4.3: enhanced packet blocks).
func enhancedPackets(t *testing.T, b []byte) (packets [][]byte) {
	t.Helper()
	for len(b) >= 12 {
		kind, length := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		if length < 12 || int(length) > len(b) || length&3 != 0 || binary.LittleEndian.Uint32(b[length-4:]) != length {
			t.Fatalf("a block of type %#x says that it has %d bytes; %d are left", kind, length, len(b))
		}
		if kind == 6 {
			n := binary.LittleEndian.Uint32(b[20:])
			packets = append(packets, b[28:28+n])
		}
		b = b[length:]
	}
	if len(b) > 0 {
		t.Fatalf("%d bytes behind the last block", len(b))
	}
	return packets
}

// recorder is a sink that remembers.
type recorder struct {
	completions chan *device.CQ
	async       chan device.AsyncEvent
}

func (r *recorder) Completion(q *device.CQ)   { r.completions <- q }
func (r *recorder) Async(e device.AsyncEvent) { r.async <- e }
func newRecorder() *recorder {
	return &recorder{make(chan *device.CQ, 100), make(chan device.AsyncEvent, 100)}
}
func (r *recorder) event(t *testing.T) (e device.AsyncEvent) {
	t.Helper()
	select {
	case e = <-r.async:
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
	}
	return e
}

func newRing(t *testing.T, entries, size uint32) (nicSide, own *ring.Queue) {
	t.Helper()
	g, err := ring.GeometryFor(entries, size)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, g.Size())
	if nicSide, err = ring.Format(b, g); err != nil {
		t.Fatal(err)
	}
	return nicSide, ring.View(b, g)
}

// objects are one of each kind, made by commands.
type objects struct {
	pd *device.PD
	mr *device.MR
	cq *device.CQ
	ah *device.AH
	qp *device.QP
	sq *ring.Queue
}

func (o *objects) create(t *testing.T, ctx *device.Context, entries uint32) error {
	t.Helper()
	var errs [5]error
	o.pd, errs[0] = ctx.AllocPD()
	if errs[0] != nil {
		return errs[0]
	}
	space := dma.NewSlice(make([]byte, 4096))
	o.mr, errs[1] = ctx.RegMR(o.pd, space, space.Base(), 4096, space.Base(), nic.AccessLocalWrite)
	cq, _ := newRing(t, entries, ring.CQESize)
	o.cq, errs[2] = ctx.CreateCQ(device.CQInit{Ring: cq, Cookie: "cq"})
	o.ah, errs[3] = ctx.CreateAH(o.pd, nic.AHAttr{DGID: ctx.Device().GIDs()[0].GID, IsGlobal: true, Port: 1})
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	sq, own := newRing(t, 16, ring.SendWQESize+ring.SGESize)
	rq, _ := newRing(t, 16, ring.RecvWQESize+ring.SGESize)
	o.sq = own
	o.qp, errs[4] = ctx.CreateQP(device.QPInit{Type: nic.RC, PD: o.pd, SendCQ: o.cq, RecvCQ: o.cq, SQ: sq, RQ: rq, Cookie: "qp",
		Cap: nic.Cap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
	return errs[4]
}

// 11.2.1.4, close HCA: what a program leaves behind is gone with its context, and the device's limits are free again.
func TestContextCloseFreesEverything(t *testing.T) {
	d := open(t, device.Config{Local: true, Limits: nic.Limits{MaxQP: 3, MaxCQ: 3, MaxMR: 3, MaxPD: 3, MaxAH: 3}})
	for round := range 5 {
		ctx := d.Open(newRecorder())
		var o objects
		for range 3 {
			if err := o.create(t, ctx, 16); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if got := ctx.Objects(); got != (device.Objects{PDs: 3, MRs: 3, CQs: 3, AHs: 3, QPs: 3}) {
			t.Fatalf("round %d: the context owns %+v", round, got)
		}
		if err := o.create(t, ctx, 16); !errors.Is(err, nic.ENOMEM) {
			t.Fatalf("round %d: beyond the limit: %v, want ENOMEM", round, err)
		}
		ctx.Close()
		ctx.Close()
		if got := ctx.Objects(); got != (device.Objects{}) {
			t.Fatalf("round %d: the closed context owns %+v", round, got)
		}
		for what, err := range map[string]error{"destroy": o.qp.Destroy(), "arm": o.cq.Arm(false), "deregister": o.mr.Dereg(), "create": o.create(t, ctx, 16)} {
			var number nic.Errno
			if !errors.Is(err, device.ErrClosed) || !errors.As(err, &number) || number != nic.EINVAL {
				t.Errorf("%s on a closed context: %v, want ErrClosed and EINVAL", what, err)
			}
		}
	}
}

// Another program's objects are not affected by a context that closes.
func TestContextsAreApart(t *testing.T) {
	d := open(t, device.Config{Local: true})
	ea, eb := newEnd(t, d), newEnd(t, d)
	connect(t, ea, eb, 0, 0)
	for range 10 {
		ctx := d.Open(newRecorder())
		var o objects
		if err := o.create(t, ctx, 16); err != nil {
			t.Fatal(err)
		}
		exchange(t, ea, eb, 2)
		ctx.Close()
		exchange(t, ea, eb, 2)
	}
}

// 11.6.3: events go to the program that owns the object, with its cookie; nothing comes of an object that is gone.
func TestEventsReachTheirSink(t *testing.T) {
	d := open(t, device.Config{Local: true})
	mine, other := newRecorder(), newRecorder()
	d.Open(other)
	ctx := d.Open(mine)
	var o objects
	if err := o.create(t, ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := o.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	for i, n := uint64(0), o.cqCapacity()+2; i < n; i++ {
		o.sq.StoreSend(o.sq.Position(), &ring.SendWQE{WRID: i, Opcode: ring.OpSend}, false)
		if err := o.sq.Publish(); err != nil {
			t.Fatal(err)
		}
	}
	// In the error state everything is flushed: more completions than the queue takes (vol. 1, 11.6.3).
	attr := &nic.Attr{State: nic.Init, Port: 1}
	if err := o.qp.Modify(attr, nic.AttrState|nic.AttrPort|nic.AttrPKeyIndex|nic.AttrAccessFlags); err != nil {
		t.Fatal(err)
	}
	if err := o.qp.Modify(&nic.Attr{State: nic.Err}, nic.AttrState); err != nil {
		t.Fatal(err)
	}
	select {
	case q := <-mine.completions:
		if q != o.cq || q.Cookie != "cq" {
			t.Errorf("completion event of %v", q.Cookie)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no completion event")
	}
	if e := mine.event(t); e.Type != nic.EventCQErr || e.CQ != o.cq {
		t.Errorf("event %+v, want that the completion queue overflowed", e)
	}
	ctx.Close()
	if len(other.async)+len(other.completions) > 0 {
		t.Error("another program got events")
	}
}

func (o *objects) cqCapacity() uint64 { return 1 }
