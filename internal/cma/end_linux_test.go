package cma

import (
	"net/netip"
	"syscall"
	"testing"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/internal/ibcm"
	"rnic/internal/nic"
	"rnic/verbs"
)

// ending is a connection of an id on a device, which the test ends, to a listener on another, whose events are returned.
func ending(t *testing.T, addr byte, lost *fault.Spec) (dev *device.Device, m *Manager, c *ID, server events) {
	t.Helper()
	dev, err := device.New(device.Config{Addrs: []netip.Addr{loopbackAddr(addr)}, SendFault: lost})
	if err != nil {
		t.Fatal(err)
	}
	if m, err = New(dev); err != nil {
		t.Fatal(err)
	}
	b := loopbackAddr(addr + 1)
	_, server, to := listening(t, nicOn(t, b, nil), b, 0)
	c, _, _ = linked(t, m, to, server, 7)
	return dev, m, c, server
}

// A process that ends at once: the other side hears of it before the NIC is gone.
func TestEndIsHeard(t *testing.T) {
	dev, m, c, server := ending(t, 21, nil)
	c.Destroy()
	dev.Close()
	m.Close()
	server.next(t, Disconnected)
}

// A NIC that is taken away: its own ids hear of that and of nothing else, and can be destroyed; the other side hears that the connection has ended.
func TestRemovalIsHeard(t *testing.T) {
	a, b := loopbackAddr(27), loopbackAddr(28)
	dev, err := device.New(device.Config{Addrs: []netip.Addr{a}})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	m, err := New(dev)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	other := nicOn(t, b, nil)
	_, server, to := listening(t, other, b, 0)
	c, client, _ := linked(t, m, to, server, 7)
	idle, idleEvents := resolved(t, m, to)
	dev.Remove()
	client.next(t, DeviceRemoval)
	idleEvents.next(t, DeviceRemoval)
	server.next(t, Disconnected)
	if !c.Gone() || !idle.Gone() {
		t.Error("the ids are not known to be without a NIC")
	}
	c.Destroy()
	idle.Destroy()
	if n := m.IDs(); n != 0 {
		t.Errorf("%d ids are left", n)
	}
	if len(client)+len(idleEvents) > 0 {
		t.Error("an id has heard of more")
	}
}

// The same where the first three DREQs are lost.
func TestEndIsHeardUnderLoss(t *testing.T) {
	dev, m, c, server := ending(t, 24, &fault.Spec{Nth: []uint64{3, 4, 5}}) // after REQ and RTU
	c.Destroy()
	m.Settle()
	dev.Close()
	m.Close()
	server.next(t, Disconnected)
}

// rdma_disconnect(3) of what is no connection, as the kernel answers.
func TestDisconnectAfterTheEnd(t *testing.T) {
	m := nicOn(t, loopbackAddr(23), nil)
	_, server, to := listening(t, m, loopbackAddr(23), 0)
	c, client := resolved(t, m, to)
	wantErrno(t, "before", c.Disconnect(), syscall.EINVAL)
	wantErrno(t, "connect", c.Connect(ConnParam{QPN: 5}), 0)
	wantErrno(t, "reject", server.next(t, ConnectRequest).ID.Reject(nil, 0), 0)
	client.next(t, Rejected)
	wantErrno(t, "after a rejection", c.Disconnect(), 0)
	c, client, s := linked(t, m, to, server, 7)
	wantErrno(t, "disconnect", c.Disconnect(), 0)
	server.next(t, Disconnected)
	wantErrno(t, "answer", s.Disconnect(), 0)
	client.next(t, Disconnected)
	client.next(t, TimewaitExit)
	wantErrno(t, "after its time", c.Disconnect(), 0)
}

// Datagrams that look like management datagrams, of a program that has found out the Q_Key: they say which queue pair has sent them, and are
// ignored. Connections are made all the while.
func TestStrangers(t *testing.T) {
	dev, err := device.New(device.Config{Local: true})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); dev.Close() })
	addr := addrOf(dev.GIDs()[0].GID)
	_, server, to := listening(t, m, addr, 0)

	ctx := verbs.Wrap(dev).Open()
	defer ctx.Close()
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := ctx.CreateCQ(64)
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.AllocMR(ibcm.MADSize, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, MaxSend: 32, MaxRecv: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []verbs.Attr{{State: nic.Init, Port: 1, QKey: nic.ManagementQKey}, {State: nic.RTR}, {State: nic.RTS}} {
		mask := map[nic.State]nic.AttrMask{nic.Init: nic.AttrState | nic.AttrPort | nic.AttrPKeyIndex | nic.AttrQKey, nic.RTR: nic.AttrState, nic.RTS: nic.AttrState | nic.AttrSQPSN}[s.State]
		if err := qp.Modify(&s, mask); err != nil {
			t.Fatal(err)
		}
	}
	ah, err := pd.AHTo(dev.GIDs()[0].GID, 0)
	if err != nil {
		t.Fatal(err)
	}
	// What a real client sends to the listener: class, version and method of a REQ of the communication manager (vol. 1, 13.4.2, 12.6.5).
	copy(mr.Bytes(), []byte{1, 7, 2, 3})
	mr.Bytes()[17] = 0x10
	wc := make([]verbs.WC, 32)
	for n := range uint32(8) {
		sent := 0
		for sent < 200 {
			if _, err := qp.PostSend(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: mr.Slice(0, ibcm.MADSize), AH: ah,
				RemoteQPN: nic.ManagementQPN, RemoteQKey: nic.ManagementQKey}); err == nil {
				sent++
			}
			if _, err := cq.Poll(wc); err != nil {
				t.Fatal(err)
			}
		}
		linked(t, m, to, server, 0x100+2*n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if st := m.ports[0].cm.Stats(); st.Malformed+st.Unknown != 0 {
		t.Errorf("strangers were listened to: %+v", st)
	}
}
