package uverbs

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

// pedanticCase makes one mistake, of which exactly one warning is given.
type pedanticCase struct {
	kind string // of the warning
	says string // and what is in it
	make func(t *testing.T, p *program, fd int, pd, cq uint32)
}

func signalled(op ring.SendOpcode) *ring.SendWQE {
	return &ring.SendWQE{Opcode: op, Flags: ring.SendSignaled}
}

// readWrite is modify to RTR and RTS with other numbers of READs in flight, and another timeout, than connect has.
func (q *qp) connectWith(peer *qp, reads, served, timeout byte) {
	q.p.t.Helper()
	gid := q.p.drv.dev.GIDs()[0]
	q.p.must(q.modify(nic.AttrState|nic.AttrPKeyIndex|nic.AttrPort|nic.AttrAccessFlags, func(b []byte) {
		b[96], b[104] = byte(nic.Init), 1
		le.PutUint32(b[88:], uint32(nic.AccessRemoteWrite|nic.AccessLocalWrite|nic.AccessRemoteRead|nic.AccessRemoteAtomic))
	}))
	q.p.must(q.modify(nic.AttrState|nic.AttrAV|nic.AttrPathMTU|nic.AttrDestQPN|nic.AttrRQPSN|nic.AttrMaxDestRDAtomic|nic.AttrMinRNRTimer,
		func(b []byte) {
			copy(b, gid.GID[:])
			b[24], b[25], b[30], b[31] = byte(gid.Index), 64, 1, 1
			le.PutUint32(b[84:], peer.num)
			b[96], b[98], b[102], b[103] = byte(nic.RTR), 3, served, 12
		}))
	q.p.must(q.modify(nic.AttrState|nic.AttrTimeout|nic.AttrRetryCnt|nic.AttrRNRRetry|nic.AttrSQPSN|nic.AttrMaxRDAtomic,
		func(b []byte) { b[96], b[101], b[105], b[106], b[107] = byte(nic.RTS), reads, timeout, 7, 7 }))
}

var pedanticCases = []pedanticCase{
	{warnSendQueue, "15 send requests in a row", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		a, _ := p.connected(fd, pd, cq, cq)
		for range 16 {
			a.post(&ring.SendWQE{Opcode: ring.OpWrite})
			p.notify(fd, cq) // it has been done then, and its slot is free
			for a.send.Free() == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}},
	{warnLateReceive, "before any receive was posted", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		a, b := p.connected(fd, pd, cq, cq)
		a.send0()
		p.notify(fd, cq)
		b.receive0()
	}},
	{warnStaleKey, "of MR 5, which is deregistered: remote access error", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		a, _ := p.connected(fd, pd, cq, cq)
		mem := make([]byte, 8)
		mr, key := p.regMR(fd, pd, mem)
		p.must(p.command(fd, cmdDeregMR, words(mr), nil, nil))
		w := signalled(ring.OpWrite)
		w.Flags |= ring.SendInline
		w.InlineLen, w.RemoteAddr, w.RKey = 8, p.address(mem), key
		a.post(w)
	}},
	{warnStaleKey, "of MR 5, which is deregistered: local protection error", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		a, _ := p.connected(fd, pd, cq, cq)
		mem := make([]byte, 8)
		mr, key := p.regMR(fd, pd, mem)
		p.must(p.command(fd, cmdDeregMR, words(mr), nil, nil))
		w := signalled(ring.OpSend)
		w.NumSGE, w.SGE[0] = 1, ring.SGE{Addr: p.address(mem), Length: 8, LKey: key}
		a.post(w)
	}},
	{warnAtomic, "must be a multiple of 8", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		a, b := p.qp(fd, pd, cq, uint64(nic.RC)), p.qp(fd, pd, cq, uint64(nic.RC))
		a.connectWith(b, 1, 1, 14)
		b.connectWith(a, 1, 1, 14)
		mem := make([]byte, 16)
		_, key := p.regMR(fd, pd, mem)
		w := signalled(ring.OpFetchAdd)
		w.RemoteAddr, w.RKey = p.address(mem)+1, key
		w.NumSGE, w.SGE[0] = 1, ring.SGE{Addr: p.address(mem), Length: 8, LKey: key}
		a.post(w)
	}},
	{warnReads, "max_dest_rd_atomic", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		a, b := p.qp(fd, pd, cq, uint64(nic.RC)), p.qp(fd, pd, cq, uint64(nic.RC))
		a.connectWith(b, 8, 1, 14)
		b.connectWith(a, 1, 1, 14)
		for range 8 {
			w := signalled(ring.OpRead)
			a.send.StoreSend(a.send.Position(), w, false)
			if err := a.send.Publish(); err != nil {
				t.Fatal(err)
			}
		}
		a.doorbell()
	}},
	{warnTimeout, "waits for ever", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		a, b := p.qp(fd, pd, cq, uint64(nic.RC)), p.qp(fd, pd, cq, uint64(nic.RC))
		a.connectWith(b, 1, 1, 0)
	}},
	{warnInline, "max_inline_data 300", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		p.qpWith(fd, pd, cq, uint64(nic.RC), words(10, 10, 2, 2, 300))
	}},
	{warnCQSize, "it holds 127 completions, and 13 queue pairs can complete 130 requests", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		for range 14 {
			p.qp(fd, pd, cq, uint64(nic.RC))
		}
	}},
	{warnCQOverrun, "more completions than it holds", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		a, _ := p.connected(fd, pd, cq, cq)
		for range 128 {
			a.post(signalled(ring.OpWrite))
			p.notify(fd, cq)
			for a.send.Free() == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}},
	{warnFork, "opened before it forked", func(t *testing.T, p *program, fd int, pd, cq uint32) {
		p.pid = unix.Getppid()
		p.pd(fd)
		p.pd(fd)
	}},
}

// Each mistake has its warning, once, and no other.
func TestPedanticWarnings(t *testing.T) {
	for _, c := range pedanticCases {
		t.Run(c.kind, func(t *testing.T) {
			var out output
			p := newWatchedProgram(t, nil, Watch{Text: &out, Pedantic: true})
			fd, _ := p.context()
			pd := p.pd(fd)
			cq, _ := p.cq(fd, -1, 1)
			c.make(t, p, fd, pd, cq)
			p.await(&out, `\[`+c.kind+`\]`)
			p.drv.lookAtAll()
			p.drv.Close()
			p.closed = true
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(lines) != 1 || !strings.Contains(lines[0], c.says) || !strings.HasPrefix(lines[0], "rnic: warning: ") {
				t.Errorf("want one warning with %q:\n%s", c.says, &out)
			}
		})
	}
}

// await waits for something to be told, and looks at the counters meanwhile.
func (p *program) await(out *output, what string) {
	p.t.Helper()
	p.drv.lookAtAll()
	out.await(p.t, what)
}

// What is right is not warned of: the same things, as they should be.
func TestPedanticIsSilent(t *testing.T) {
	var out output
	p := newWatchedProgram(t, nil, Watch{Text: &out, Pedantic: true})
	fd, _ := p.context()
	pd := p.pd(fd)
	cq, _ := p.cq(fd, -1, 1)
	a, b := p.qpWith(fd, pd, cq, uint64(nic.RC), words(10, 10, 2, 2, commonInline)), p.qp(fd, pd, cq, uint64(nic.RC))
	a.connectWith(b, 4, 4, 14)
	b.connectWith(a, 4, 4, 14)
	mem := make([]byte, 16)
	mr, key := p.regMR(fd, pd, mem)
	for i := range 60 {
		w := &ring.SendWQE{Opcode: ring.OpWrite}
		if i%10 == 9 {
			w = signalled(ring.OpFetchAdd)
			w.RemoteAddr, w.RKey = p.address(mem)+8, key
			w.NumSGE, w.SGE[0] = 1, ring.SGE{Addr: p.address(mem), Length: 8, LKey: key}
		}
		for a.send.Free() == 0 {
			time.Sleep(time.Millisecond)
		}
		a.post(w)
	}
	b.receive0()
	a.send0()
	p.notify(fd, cq)
	b.receive0()
	for a.send.Pending() > 0 {
		time.Sleep(time.Millisecond)
	}
	p.must(p.command(fd, cmdDeregMR, words(mr), nil, nil))
	p.drv.Close()
	p.closed = true
	if s := out.String(); s != "" {
		t.Errorf("warnings of nothing:\n%s", s)
	}
}

// Warnings are told as JSON too, with their objects.
func TestPedanticAsJSON(t *testing.T) {
	var text, out output
	p := newWatchedProgram(t, nil, Watch{Text: &text, JSON: &out, Pedantic: true})
	fd, _ := p.context()
	pd := p.pd(fd)
	cq, _ := p.cq(fd, -1, 1)
	q := p.qpWith(fd, pd, cq, uint64(nic.RC), words(10, 10, 2, 2, 300))
	p.drv.Close()
	p.closed = true
	records, sum := jsonLines(t, out.String())
	if len(records) != 1 || records[0].Warning != warnInline || records[0].Args["qpn"] != float64(q.num) || sum["warnings"] != 1.0 {
		t.Errorf("%+v, %v", records, sum["warnings"])
	}
	if !strings.Contains(text.String(), "["+warnInline+"]") {
		t.Errorf("as text: %q", &text)
	}
}

// Choices of addresses that do not travel, an MTU that an interface has lost, more memory than may be locked: with a
// stock program.
func TestPedanticWithAStockProgram(t *testing.T) {
	stock(t, "ibv_rc_pingpong")
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("ip is missing: apt-get install iproute2")
	}
	t.Parallel()
	const setup = `ip address add 10.9.9.1/24 dev lo && ip address add 169.254.9.9/16 dev lo || exit 77; `
	for _, c := range []struct{ kind, gid, before string }{
		{"", "10.9.9.1", ""},
		{warnLoopbackGID, "127.0.0.1", ""},
		{warnLinkLocalGID, "169.254.9.9", ""},
		{warnPathMTU, "10.9.9.1", "ip link set lo mtu 700;"},
	} {
		program := `ibv_rc_pingpong -n 20 -g $(ibv_devinfo -v | sed -n 's/.*GID\[ *\([0-9]*\)\].*::ffff:` + c.gid + `,.*/\1/p')`
		cmd := isolated(t, "sh", "-c", setup+buildRnic(t)+` run --pedantic -- sh -c "$1"`, "sh", c.before+pair(program, program+" 127.0.0.1"))
		out, err := outcome(t, cmd, time.Minute)
		if cmd.ProcessState.ExitCode() == 77 {
			t.Skipf("no addresses can be set: %s", out)
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.gid, err, out)
		}
		if n, m := strings.Count(out, "["+c.kind+"]\n"), strings.Count(out, "rnic: warning"); c.kind != "" && (n != 2 || m != 2) || c.kind == "" && m != 0 {
			t.Errorf("%q: %d warnings of this kind, one for each process wanted, and %d in all:\n%s", c.kind, n, m, out)
		}
	}
}

// A process's limit of locked memory counts unless it may lock what it likes.
func TestLockable(t *testing.T) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		t.Fatal(err)
	}
	if r.Cur == unix.RLIM_INFINITY {
		t.Skip("memory may be locked without limit here")
	}
	cmd := exec.Command("sleep", "60")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if limit, ok := lockable(cmd.Process.Pid); !ok || limit != r.Cur {
		t.Errorf("an ordinary user may lock %d bytes (%v), want %d", limit, ok, r.Cur)
	}
	if _, ok := lockable(1 << 30); ok {
		t.Error("the limit of a process that there is not")
	}
}
