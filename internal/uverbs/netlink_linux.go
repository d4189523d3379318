package uverbs

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"strconv"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/rdmanl"
	"rnic/internal/sandbox"
)

// nodeTypeCA is RDMA_NODE_IB_CA, of RoCE devices too.
const nodeTypeCA = 1

// Netlink answers what programs ask of these devices on sockets of NETLINK_RDMA. Their order gives them their
// indexes.
func Netlink(devices ...Described) sandbox.NetlinkHandler {
	return func(datagram []byte, port uint32, admin bool) [][]byte {
		var sys rdmanl.System
		for i, d := range devices {
			if x := d.netlinkDevice(uint32(i)); !x.Removed {
				sys.Devices = append(sys.Devices, x)
			}
		}
		return sys.Answer(datagram, rdmanl.Caller{PortID: port, Admin: admin})
	}
}

// Described is a device that sockets of NETLINK_RDMA tell of: a Driver, or a Remote.
type Described interface {
	netlinkDevice(index uint32) rdmanl.Device
}

// Remote is a device whose Driver is in another process: Ask brings an answer of its Describe.
type Remote struct {
	Name string
	Ask  func(question []byte) ([]byte, error)
}

// Questions to Describe.
var (
	askDevice   = []byte("device")
	askDetailed = []byte("resources")
	askRemove   = []byte("remove") // the device
)

// description is a device in words, with what its functions would say.
type description struct {
	Device    rdmanl.Device
	Resources rdmanl.Resources
	Counters  []rdmanl.Counter
}

// Describe answers a Remote's question.
func (d *Driver) Describe(question []byte) ([]byte, error) {
	if bytes.Equal(question, askRemove) {
		d.dev.Remove()
	}
	x := description{Device: d.netlinkDevice(0)}
	if bytes.Equal(question, askDetailed) {
		x.Resources, x.Counters = x.Device.Resources(), x.Device.Counters(0)
	}
	x.Device.Resources, x.Device.Counters, x.Device.Remove = nil, nil, nil
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&x)
	return b.Bytes(), err
}

// ask is the answer to a question; empty if the other process is gone.
func (r Remote) ask(question []byte) (x description) {
	b, err := r.Ask(question)
	if err != nil || gob.NewDecoder(bytes.NewReader(b)).Decode(&x) != nil {
		return description{Device: rdmanl.Device{Name: r.Name}}
	}
	return x
}

func (r Remote) netlinkDevice(index uint32) rdmanl.Device {
	d := r.ask(askDevice).Device
	d.Index = index
	d.Resources = func() rdmanl.Resources { return r.ask(askDetailed).Resources }
	d.Counters = func(uint32) []rdmanl.Counter { return r.ask(askDetailed).Counters }
	d.Remove = func() { r.ask(askRemove) }
	return d
}

func (d *Driver) netlinkDevice(index uint32) rdmanl.Device {
	v, port := d.cfg.Version, d.portNow()
	p := rdmanl.Port{State: port.State, PhysState: port.PhysState}
	if g := d.dev.GIDs(); len(g) > 0 {
		p.IfIndex, p.IfName = uint32(g[0].IfIndex), g[0].IfName
	}
	return rdmanl.Device{
		Index: index, Name: d.cfg.Name, Firmware: fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]), NodeType: nodeTypeCA,
		CapFlags: d.attr.CapFlags, NodeGUID: d.attr.NodeGUID, SysImageGUID: d.attr.NodeGUID, Protocol: "roce",
		Ports:     []rdmanl.Port{p},
		Chardevs:  []rdmanl.Chardev{{Type: "uverbs", Name: "uverbs" + strconv.Itoa(d.cfg.Index), Major: verbsMajor, Minor: verbsMinor + uint32(d.cfg.Index), ABI: providerABI, DriverID: driverRXE}},
		Removed:   d.dev.Removed(),
		Remove:    d.dev.Remove,
		Resources: d.netlinkResources,
		Counters:  func(uint32) []rdmanl.Counter { return d.hwCounters(d.dev.Readings()) },
	}
}

func (d *Driver) netlinkResources() rdmanl.Resources {
	r := netlinkResources(d.dev.Resources())
	if d.cfg.CMIDs != nil {
		r.CMIDs = d.cfg.CMIDs()
	}
	return r
}

// netlinkResources are those of the whole device, whichever run's programs have created them.
func netlinkResources(r device.Resources) (out rdmanl.Resources) {
	// As in the kernel, the NIC's own objects are listed, of no process, but for their context and memory.
	for _, c := range r.Contexts {
		if c.PID == 0 {
			continue
		}
		out.Contexts = append(out.Contexts, rdmanl.Context{Number: c.Number, PID: uint32(c.PID)})
	}
	for _, p := range r.PDs {
		out.PDs = append(out.PDs, rdmanl.PD{Number: p.Number, Context: p.Context.Number, PID: uint32(p.Context.PID), Users: uint64(p.Users)})
	}
	for _, c := range r.CQs {
		out.CQs = append(out.CQs, rdmanl.CQ{Number: c.Number, Context: c.Context.Number, PID: uint32(c.Context.PID), CQE: c.Capacity, Users: uint64(c.Users)})
	}
	for i := range r.QPs {
		q := &r.QPs[i]
		typ := uint8(q.Type)
		if q.Number == nic.ManagementQPN {
			typ = 1 // IB_QPT_GSI
		}
		out.QPs = append(out.QPs, rdmanl.QP{Number: q.Number, PD: q.PD, PID: uint32(q.Context.PID), Port: uint32(q.Attr.Port), SRQ: q.SRQ,
			Type: typ, State: uint8(q.Attr.State), MigState: q.Attr.PathMigState,
			RemoteNumber: q.Attr.DestQPN, RQPSN: q.Attr.RQPSN, SQPSN: q.Attr.SQPSN})
	}
	for _, m := range r.MRs {
		if m.Context.PID == 0 {
			continue
		}
		out.MRs = append(out.MRs, rdmanl.MR{Number: m.Number, PD: m.PD, PID: uint32(m.Context.PID), LKey: m.Key, RKey: m.Key, Length: m.Length})
	}
	for _, s := range r.SRQs {
		x := rdmanl.SRQ{Number: s.Number, PD: s.PD, PID: uint32(s.Context.PID)}
		if s.XRC {
			x.Type = 1 // IB_SRQT_XRC
		}
		out.SRQs = append(out.SRQs, x)
	}
	return out
}
