package uverbs

import (
	"testing"

	"rnic/internal/nic"
	"rnic/internal/rdmanl"
)

// What is told of the device is what its commands answer.
func TestNetlinkDescription(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd := p.pd(fd)
	cq, _ := p.cq(fd, -1, 1)
	_, key := p.regMR(fd, pd, make([]byte, 64))
	a, b := p.connected(fd, pd, cq, cq)
	d := p.drv.netlinkDevice(5)
	attr := make([]byte, sizeDeviceAttr)
	p.must(p.command(fd, cmdQueryDevice, make([]byte, 8), attr, nil))
	if d.Index != 5 || d.Name != DefaultName || d.Firmware != "1.2.3" || string(d.NodeGUID[:]) != string(attr[8:16]) || string(d.SysImageGUID[:]) != string(attr[16:24]) {
		t.Errorf("device %+v", d)
	}
	if len(d.Ports) != 1 || d.Ports[0] != (rdmanl.Port{State: portActive, PhysState: portLinkUp, IfIndex: 1, IfName: "lo"}) {
		t.Errorf("ports %+v", d.Ports)
	}
	r := d.Resources()
	pid := uint32(p.pid)
	if len(r.Contexts) != 1 || r.Contexts[0].PID != pid || len(r.PDs) != 1 || r.PDs[0].PID != pid || r.PDs[0].Users != 3 ||
		len(r.CQs) != 1 || r.CQs[0].Users != 4 || r.CQs[0].CQE != 127 || len(r.MRs) != 1 || r.MRs[0].RKey != key || r.MRs[0].Length != 64 {
		t.Errorf("resources %+v", r)
	}
	seen := map[uint32]rdmanl.QP{}
	for _, q := range r.QPs {
		seen[q.Number] = q
	}
	q := seen[a.num]
	if len(r.QPs) != 2 || q.RemoteNumber != b.num || seen[b.num].RemoteNumber != a.num || q.Type != uint8(nic.RC) || q.State != uint8(nic.RTS) || q.Port != 1 || q.PD != r.PDs[0].Number {
		t.Errorf("queue pairs %+v", r.QPs)
	}
	b.receive0()
	a.send0()
	p.notify(fd, cq)
	for _, c := range d.Counters(1) {
		if c.Name == "completions" && c.Value != 2 {
			t.Errorf("%d completions, want 2", c.Value)
		}
	}
	p.close(fd)
	if r := d.Resources(); len(r.Contexts)+len(r.PDs)+len(r.CQs)+len(r.QPs)+len(r.MRs) != 0 {
		t.Errorf("after the end: %+v", r)
	}
}
