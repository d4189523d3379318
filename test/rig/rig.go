// Package rig is what tests over real sockets share: NICs on loopback addresses of their own, programs with a queue pair on them, and a reader of
// what was captured.
package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"rnic/internal/device"
	"rnic/internal/explain"
	"rnic/internal/nic"
	"rnic/verbs"
)

// Patience is how long a test waits for what comes in milliseconds, on a machine that is busy.
const Patience = 90 * time.Second

var hosts atomic.Uint32

// NIC makes a NIC at a loopback address that only it has: the NICs of other processes listen on the same port. One in 8192 of them may try the same
// addresses first.
func NIC(t *testing.T, change func(*device.Config)) *verbs.Device {
	t.Helper()
	for tries := 1; ; tries++ {
		d, err := device.New(config(change))
		if errors.Is(err, syscall.EADDRINUSE) && tries < 256 {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return verbs.Wrap(d)
	}
}

// config is the configuration of another NIC.
func config(change func(*device.Config)) device.Config {
	n, pid := hosts.Add(1), os.Getpid()
	cfg := device.Config{Name: fmt.Sprintf("nic%d", n), Limits: nic.DefaultLimits(),
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{127, 28 + byte(pid>>8&31), byte(pid), byte(n)})}}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// Address is the address of a NIC.
func Address(d *verbs.Device) netip.Addr { return d.GIDs()[0].GID.Addr() }

// Everything is what a region may allow.
const Everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessMWBind | verbs.AccessFlushGlobal

// Program has a queue pair, its completion queue and one region.
type Program struct {
	T   *testing.T
	Ctx *verbs.Context
	PD  *verbs.PD
	CQ  *verbs.CQ
	QP  *verbs.QP
	MR  *verbs.MR
}

// New makes a program on a NIC; its region has size bytes and allows what is given.
func New(t *testing.T, d *verbs.Device, size int, access verbs.Access, cfg verbs.QPConfig) *Program {
	t.Helper()
	p := &Program{T: t, Ctx: d.Open()}
	t.Cleanup(func() { p.Ctx.Close() })
	var err1, err2, err3, err4 error
	p.PD, err1 = p.Ctx.AllocPD()
	p.CQ, err2 = p.Ctx.CreateCQ(1024)
	p.MR, err3 = p.PD.AllocMR(size, access)
	cfg.SendCQ, cfg.RecvCQ = p.CQ, p.CQ
	p.QP, err4 = p.PD.CreateQP(cfg)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	return p
}

// Connect connects two programs, whose requests begin with these PSNs; each has options of its own.
func Connect(a, b *Program, psnA, psnB uint32, ao, bo verbs.ConnectOptions) {
	a.T.Helper()
	ea, err1 := a.QP.Local(0, psnA)
	eb, err2 := b.QP.Local(0, psnB)
	ao.PSN, bo.PSN = ea.PSN, eb.PSN
	if err := errors.Join(err1, err2, b.QP.Connect(ea, bo), a.QP.Connect(eb, ao)); err != nil {
		a.T.Fatal(err)
	}
}

// Post posts requests.
func (p *Program) Post(wrs ...*verbs.SendWR) {
	p.T.Helper()
	if _, err := p.QP.PostSend(wrs...); err != nil {
		p.T.Fatal(err)
	}
}

// Receive posts a receive of so many bytes, of the region from an offset on.
func (p *Program) Receive(id uint64, off, length int) {
	p.T.Helper()
	if _, err := p.QP.PostRecv(&verbs.RecvWR{ID: id, SGE: p.MR.Slice(off, length)}); err != nil {
		p.T.Fatal(err)
	}
}

// Next waits for a completion.
func (p *Program) Next() verbs.WC {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	var list [1]verbs.WC
	if _, err := p.CQ.Next(ctx, list[:]); err != nil {
		p.T.Fatalf("no completion: %v", err)
	}
	return list[0]
}

// Captured calls f with each packet of a capture. It is valid until f returns.
func Captured(t *testing.T, capture []byte, f func(*explain.Packet)) {
	t.Helper()
	r, err := explain.NewReader(bytes.NewReader(capture))
	if err != nil {
		t.Fatal(err)
	}
	var d explain.Dissected
	for {
		frame, err := r.Next()
		if err != nil {
			return
		}
		explain.Dissect(&frame, &d)
		for i := range d.Packets {
			f(&d.Packets[i])
		}
	}
}
