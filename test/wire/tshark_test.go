package wire

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"rnic/cm"
	"rnic/internal/device"
	"rnic/internal/explain"
	"rnic/internal/nic"
	"rnic/internal/roce"
	"rnic/test/rig"
	"rnic/verbs"
)

// notByTshark are opcodes that the Wireshark of Debian 12 (4.0) does not know; it shows them as unknown, and must not
// take them for malformed.
var notByTshark = map[roce.Opcode]bool{roce.RCFlush: true, roce.RCAtomicWrite: true}

// The payload is no protocol above: tshark guesses, by the first bytes, and complains of what it then misses.
var guesses = []string{"rpcordma", "infiniband.eoib"}

// Every opcode goes over the wire between two NICs, and the connection manager's messages. Wireshark, which shares no code with
// this, dissects each packet without complaint, and reads the same operation, queue pair and PSN; every ICRC is right.
func TestWiresharkAgrees(t *testing.T) {
	file := captureFile(t, "all")
	everyOperation(t, file)
	ours := dissect(t, file)
	seen := map[roce.Opcode]int{}
	for _, p := range ours {
		seen[p.op]++
		if p.icrc != explain.Good || p.malformed {
			t.Errorf("packet %d, %v: ICRC %v, malformed %v", p.number, p.op, p.icrc, p.malformed)
		}
	}
	for op := range 256 {
		if i := roce.Opcode(op).Info(); i != nil && seen[i.Opcode] == 0 && i.Opcode != roce.SelectiveAck {
			t.Errorf("no %s in the capture", i.Name)
		}
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed: apt-get install tshark")
	}
	theirs := dissectedBy(t, tshark, file)
	if len(theirs) != len(ours) {
		t.Fatalf("tshark finds %d packets of InfiniBand, %d were captured", len(theirs), len(ours))
	}
	for i, p := range ours {
		q := theirs[i]
		// tshark 4.0 knows the opcodes of XRC, and takes what is behind the BTH of their responses for a "Vendor Specific or Unknown Header
		// Sequence": it reads no AETH there.
		noAETH := p.op.Info().Transport == roce.TransportXRC && q.syndrome == -1
		if q.number != p.number || q.op != p.op || q.psn != p.psn || q.qpn != p.qpn || q.syndrome != p.syndrome && !noAETH {
			t.Errorf("tshark reads %+v, ours is %+v", q, p)
		}
		if q.complaint != "" && !notByTshark[p.op] {
			t.Errorf("packet %d, %v: tshark says %s", p.number, p.op, q.complaint)
		}
	}
	messages := map[string]bool{}
	for _, q := range theirs {
		messages[q.attribute] = true
	}
	for attr, name := range map[string]string{"0x0010": "REQ", "0x0012": "REJ", "0x0013": "REP", "0x0014": "RTU", "0x0015": "DREQ", "0x0016": "DREP"} {
		if !messages[attr] {
			t.Errorf("tshark finds no %s of the connection manager", name)
		}
	}
}

type packet struct {
	number    int
	op        roce.Opcode
	psn, qpn  uint32
	syndrome  int // -1: none
	icrc      explain.Check
	malformed bool
	complaint string
	attribute string // of a management datagram, as tshark prints it
}

// dissect reads the capture as rnic explain does.
func dissect(t *testing.T, file string) (list []packet) {
	t.Helper()
	rig.Captured(t, must(os.ReadFile(file)), func(p *explain.Packet) {
		q := packet{number: p.Number, op: p.Op, psn: uint32(p.BTH.PSN()), qpn: p.BTH.DestQP(), syndrome: -1, icrc: p.ICRC, malformed: p.Malformed || !p.Complete}
		if p.Complete && p.Info.HasAETH {
			q.syndrome = int(p.Info.AETH(p.Headers).Syndrome())
		}
		list = append(list, q)
	})
	return list
}

// dissectedBy is what tshark reads.
func dissectedBy(t *testing.T, tshark, file string) (list []packet) {
	t.Helper()
	args := []string{"-n", "-r", file, "-o", "infiniband.try_heuristic_first:TRUE", "-Y", "infiniband", "-T", "fields", "-E", "separator=|"}
	for _, p := range guesses {
		args = append(args, "--disable-protocol", p)
	}
	for _, f := range []string{"frame.number", "infiniband.bth.opcode", "infiniband.bth.psn", "infiniband.bth.destqp", "infiniband.aeth.syndrome", "infiniband.mad.attributeid", "_ws.malformed", "_ws.expert.message"} {
		args = append(args, "-e", f)
	}
	out, err := exec.Command(tshark, args...).Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		w := strings.SplitN(strings.TrimRight(line, "\n"), "|", 8)
		if len(w) < 8 {
			t.Fatalf("tshark prints %q", line)
		}
		number := func(s string) int { return int(must(strconv.ParseInt(s, 0, 64))) }
		p := packet{number: number(w[0]), op: roce.Opcode(number(w[1])), psn: uint32(number(w[2])), qpn: uint32(number(w[3])), syndrome: -1, attribute: w[5], complaint: w[6]}
		if strings.Contains(w[7], "alformed") || strings.Contains(w[7], "hecksum") { // else: comments
			p.complaint += w[7]
		}
		if w[4] != "" {
			p.syndrome = number(w[4])
		}
		list = append(list, p)
	}
	return list
}

// everyOperation has NIC 1, whose packets are captured, exchange packets of every opcode with NIC 2. READs go both ways, so that
// requests and responses of each are sent and received.
func everyOperation(t *testing.T, file string) {
	a := open(t, 1, file, func(c *device.Config) {
		c.Policy.Congestion = nic.CongestionDCQCN
		c.Policy.NoEarlyResend = true
	})
	b := open(t, 2, "", func(c *device.Config) { c.RecvFault = spec("ecn=100%,op=RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE") })
	reliable(t, a, b)
	refused(t, a, b)
	unreliable(t, a, b)
	datagrams(t, a, b)
	extended(t, a, b)
	connections(t, a, b)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

var patient1024 = verbs.ConnectOptions{MTU: 1024, Timeout: 18, Access: rig.Everything &^ verbs.AccessLocalWrite &^ verbs.AccessMWBind}

// sizes give messages of one packet, with and without pad, of two, and of four.
var sizes = []int{0, 1, 700, 1500, 3001}

func reliable(t *testing.T, da, db *verbs.Device) {
	a, b := newSide(t, da, verbs.QPConfig{}), newSide(t, db, verbs.QPConfig{})
	connect(a, b, patient1024, patient1024)
	for _, n := range sizes {
		b.receive(t, 3)
		a.ok(t, a.to(b, verbs.OpSend, n))
		a.ok(t, a.to(b, verbs.OpSendImm, n))
		a.ok(t, a.to(b, verbs.OpWrite, n))
		a.ok(t, a.to(b, verbs.OpWriteImm, n))
		a.ok(t, a.to(b, verbs.OpRead, n))
		inv := a.to(b, verbs.OpSendInv, n)
		inv.InvRKey = window(t, b)
		b.receive(t, 1)
		a.ok(t, inv)
	}
	a.ok(t, a.to(b, verbs.OpCompareSwap, 8))
	a.ok(t, a.to(b, verbs.OpFetchAdd, 8))
	a.ok(t, a.to(b, verbs.OpAtomicWrite, 8))
	flush := a.to(b, verbs.OpFlush, 0)
	flush.SGE, flush.Flush = nil, verbs.Flush{Length: 64}
	a.ok(t, flush)
	b.ok(t, b.to(a, verbs.OpRead, 3000))
	b.ok(t, b.to(a, verbs.OpFetchAdd, 8))
}

// window binds a window of type 2 to s's region: something to invalidate.
func window(t *testing.T, s *side) uint32 {
	t.Helper()
	w := must(s.PD.AllocMW(verbs.MWType2))
	check(s.QP.BindMW(0, verbs.Signaled, verbs.Bind{MW: w, MR: s.MR, Addr: s.MR.Addr(0), Length: 64, Access: verbs.AccessRemoteRead}))
	for {
		if wc := s.Next(); wc.Opcode == verbs.WCBindMW {
			check(wc.Err())
			return w.RKey()
		}
	}
}

// refused has each NAK sent: not ready, access, invalid request.
func refused(t *testing.T, da, db *verbs.Device) {
	for _, provoke := range []func(a, b *side){
		func(a, b *side) { a.do(t, a.to(b, verbs.OpSend, 64)) },
		func(a, b *side) { wr := a.to(b, verbs.OpWrite, 64); wr.RKey ^= 0xff00; a.do(t, wr) },
		func(a, b *side) { wr := a.to(b, verbs.OpFetchAdd, 8); wr.RemoteAddr++; a.do(t, wr) },
	} {
		a, b := newSide(t, da, verbs.QPConfig{}), newSide(t, db, verbs.QPConfig{})
		o := patient1024
		o.RNRRetry = 1
		connect(a, b, o, patient1024)
		provoke(a, b)
	}
}

func unreliable(t *testing.T, da, db *verbs.Device) {
	a, b := newSide(t, da, verbs.QPConfig{Type: verbs.UC}), newSide(t, db, verbs.QPConfig{Type: verbs.UC})
	connect(a, b, patient1024, patient1024)
	for _, n := range sizes {
		b.receive(t, 3)
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm} {
			a.ok(t, a.to(b, op, n))
		}
	}
}

func datagrams(t *testing.T, da, db *verbs.Device) {
	a, b := newSide(t, da, verbs.QPConfig{Type: verbs.UD}), newSide(t, db, verbs.QPConfig{Type: verbs.UD})
	check(a.QP.Activate(0x1234))
	check(b.QP.Activate(0x1234))
	to := must(b.QP.Local(0, 0))
	ah := must(a.PD.AHTo(to.GID, 0))
	for _, n := range []int{0, 3, 1000} {
		b.receive(t, 2)
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm} {
			a.ok(t, verbs.SendWR{Opcode: op, SGE: a.MR.Slice(0, n), AH: ah, RemoteQPN: to.QPN, RemoteQKey: 0x1234, Imm: 7})
		}
	}
}

// extended is XRC, in both directions, so that responses are captured from either side.
func extended(t *testing.T, da, db *verbs.Device) {
	a, b := newSide(t, da, verbs.QPConfig{Type: verbs.XRCINI}), newXRC(db)
	ea, eb := must(a.QP.Local(0, 1000)), must(b.target.Local(0, 2000))
	o := patient1024
	o.PSN = 2000
	check(b.target.Connect(ea, o))
	o.PSN = 1000
	check(a.QP.Connect(eb, o))
	for _, n := range sizes {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead} {
			a.ok(t, b.aim(a, op, n))
		}
	}
	a.ok(t, b.aim(a, verbs.OpCompareSwap, 8))
	a.ok(t, b.aim(a, verbs.OpFetchAdd, 8))
	for _, n := range []int{64, 1500} { // nothing that the key names may be invalidated: refused, but sent
		inv := b.aim(a, verbs.OpSendInv, n)
		inv.InvRKey = 0x77
		if _, err := a.QP.PostSend(&inv); err != nil {
			t.Fatal(err)
		}
		a.Next()
		if n == 64 {
			a, b = newSide(t, da, verbs.QPConfig{Type: verbs.XRCINI}), newXRC(db)
			ea, eb := must(a.QP.Local(0, 1000)), must(b.target.Local(0, 2000))
			o.PSN = 2000
			check(b.target.Connect(ea, o))
			o.PSN = 1000
			check(a.QP.Connect(eb, o))
		}
	}
}

// xrc is the receiving side of XRC.
type xrc struct {
	pd     *verbs.PD
	srq    *verbs.SRQ
	mr     *verbs.MR
	target *verbs.QP
}

func newXRC(d *verbs.Device) *xrc {
	ctx := d.Open()
	domain := must(ctx.AllocXRCD())
	x := &xrc{pd: must(ctx.AllocPD())}
	x.mr = must(x.pd.AllocMR(1<<20, rig.Everything))
	x.srq = must(x.pd.CreateSRQ(verbs.SRQConfig{XRCD: domain, CQ: must(ctx.CreateCQ(256))}))
	for range 32 {
		must(x.srq.PostRecv(&verbs.RecvWR{SGE: x.mr.Slice(512<<10, 64<<10)}))
	}
	x.target = must(domain.CreateTarget())
	return x
}

func (x *xrc) aim(a *side, op verbs.Opcode, n int) verbs.SendWR {
	return verbs.SendWR{Opcode: op, SGE: a.MR.Slice(0, n), RemoteAddr: x.mr.Addr(0), RKey: x.mr.RKey(), RemoteSRQ: x.srq.Num()}
}

// connections has the connection manager connect, disconnect, and refuse.
func connections(t *testing.T, da, db *verbs.Device) {
	ma, mb := must(cm.New(da)), must(cm.New(db))
	defer mb.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l := must(mb.ListenStream("rdma", net.JoinHostPort(rig.Address(db).String(), "7000")))
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = c.Read(make([]byte, 4))
			c.Close()
		}
		done <- err
	}()
	c := must(ma.DialStream(ctx, "rdma", l.Addr().String()))
	fmt.Fprint(c, "over")
	if err := <-done; err != nil {
		t.Error(err)
	}
	c.Close()
	if _, err := ma.DialStream(ctx, "rdma", net.JoinHostPort(rig.Address(db).String(), "7")); err == nil {
		t.Error("nobody listens, and it is connected")
	}
	// The disconnection is on its way, in either direction, when Close has returned; Close of the manager waits for it.
	ma.Close()
	time.Sleep(50 * time.Millisecond)
}
