package cma

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"sync"
	"time"

	"rnic/internal/device"
	"rnic/internal/ibcm"
	"rnic/internal/nic"
	"rnic/internal/roce"
	"rnic/verbs"
)

// Sizes of the management queue pair's queues, and of a buffer: a GRH and a MAD.
const (
	receives   = 1024
	sendSlots  = 256
	bufferSize = roce.GRHSize + ibcm.MADSize
	// maxQueued bounds datagrams that wait for a slot; what finds no room is repeated by the protocol.
	maxQueued = 1 << 16
	// maxHandles bounds the address handles that are kept for peers.
	maxHandles = 4096
)

// port is the connection manager of one NIC: its management queue pair and its protocol.
type port struct {
	m   *Manager
	dev *device.Device
	cm  *ibcm.CM

	ctx    *verbs.Context
	pd     *verbs.PD
	cq     *verbs.CQ
	qp     *verbs.QP
	recv   *verbs.MR
	send   *verbs.MR
	free   []int
	life   uint64 // counts how often the queue pair was made ready; in the ids of its work requests
	queued []ibcm.Datagram
	ahs    map[ahKey]*verbs.AH

	strange uint64 // datagrams that are none of a connection manager

	stop context.CancelFunc
	kick chan struct{} // the next timer is earlier than wake
	wake int64         // when the timers are looked at next
	done sync.WaitGroup

	noHook func()
}

// earlyWait covers what a program does between telling its peer that it is ready and listening, on a machine whose cores are busy.
const earlyWait = 100 * time.Millisecond

type ahKey struct {
	index  int
	remote roce.GID
}

// open makes the management queue pair and starts its goroutines.
func (m *Manager) open(dev *device.Device) (p *port, err error) {
	p = &port{m: m, dev: dev, ahs: map[ahKey]*verbs.AH{}, kick: make(chan struct{}, 1)}
	cfg := ibcm.Config{NodeGUID: dev.NodeGUID(), EarlyWait: int64(earlyWait)}
	_, _ = crand.Read(cfg.Seed[:]) // cannot fail
	p.cm = ibcm.New(cfg)
	own := verbs.Wrap(dev).Open()
	p.ctx = own
	defer func() {
		if err != nil {
			own.Close() // p is nil by now
			err = fmt.Errorf("connection manager of NIC %s: %w", dev.Name(), err)
		}
	}()
	if p.pd, err = p.ctx.AllocPD(); err != nil {
		return nil, err
	}
	if p.cq, err = p.ctx.CreateCQ(receives + sendSlots); err != nil {
		return nil, err
	}
	if p.recv, err = p.pd.AllocMR(receives*bufferSize, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if p.send, err = p.pd.AllocMR(sendSlots*ibcm.MADSize, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if p.qp, err = p.pd.CreateQP(verbs.QPConfig{Type: verbs.UD, Special: true, SendCQ: p.cq, RecvCQ: p.cq,
		MaxSend: sendSlots, MaxRecv: receives}); err != nil {
		return nil, err
	}
	if err = p.activate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	p.done.Add(2)
	go p.receive(ctx)
	go p.timers(ctx)
	return p, nil
}

// activate makes the queue pair, which has just been made or reset, ready, with all its receives.
func (p *port) activate() error {
	for _, s := range []struct {
		a verbs.Attr
		m verbs.AttrMask
	}{
		{verbs.Attr{State: nic.Init, Port: 1, QKey: nic.ManagementQKey}, nic.AttrState | nic.AttrPort | nic.AttrPKeyIndex | nic.AttrQKey},
		{verbs.Attr{State: nic.RTR}, nic.AttrState},
		{verbs.Attr{State: nic.RTS}, nic.AttrState | nic.AttrSQPSN},
	} {
		if err := p.qp.Modify(&s.a, s.m); err != nil {
			return err
		}
	}
	p.life++
	for i := range receives {
		if err := p.postReceive(i); err != nil {
			return err
		}
	}
	p.free = p.free[:0]
	for i := range sendSlots {
		p.free = append(p.free, i)
	}
	return nil
}

// renew brings the queue pair back from the error state, into which a fault of the NIC's own can put it (nic.NIC.Revive): what was lost
// is repeated by the protocol.
func (p *port) renew() {
	if p.qp.Modify(&verbs.Attr{State: nic.Reset}, nic.AttrState) != nil {
		return // closed
	}
	var wc [64]verbs.WC
	for n := 1; n > 0; { // of before the reset
		n, _ = p.cq.Poll(wc[:])
	}
	for range renewals {
		if p.activate() == nil || p.qp.Modify(&verbs.Attr{State: nic.Reset}, nic.AttrState) != nil {
			return
		}
	}
}

// renewals is how often it is tried: the unit may die again meanwhile.
const renewals = 3

func (p *port) close() {
	if p.noHook != nil {
		p.noHook()
	}
	p.stop()
	p.done.Wait()
	p.ctx.Close()
}

func (p *port) postReceive(i int) error {
	_, err := p.qp.PostRecv(&verbs.RecvWR{ID: p.life*ofLife | uint64(i), SGE: p.recv.Slice(i*bufferSize, bufferSize)})
	return err
}

// The ids of work requests: the slot or buffer, whether it is a send, and the life of the queue pair. What an earlier life
// had posted may complete now: faults hold completions back (nic.NIC.SetCompletionDelay).
const (
	sendID = 1 << 31
	ofLife = 1 << 32
)

// receive takes completions until the port is closed.
func (p *port) receive(ctx context.Context) {
	defer p.done.Done()
	wc := make([]verbs.WC, 64)
	for {
		n, err := p.cq.Next(ctx, wc)
		if err != nil {
			return
		}
		p.m.mu.Lock()
		failed := false
		for _, w := range wc[:n] {
			if w.ID/ofLife != p.life {
				continue
			}
			if w.Status != verbs.StatusSuccess {
				failed = true
				continue
			}
			if w.ID&sendID != 0 {
				p.free = append(p.free, int(w.ID%sendID))
				continue
			}
			i := int(w.ID % sendID)
			if w.ByteLen == bufferSize && w.SrcQP == nic.ManagementQPN {
				b := p.recv.Bytes()[i*bufferSize : (i+1)*bufferSize]
				if path, ok := roce.GRH(b[:roce.GRHSize]).Path(); ok {
					p.cm.Receive(p.m.now(), ibcm.Address{Local: roce.GID(path.Dst.As16()), Remote: roce.GID(path.Src.As16())}, b[roce.GRHSize:])
					p.work()
				}
			} else {
				p.strange++
			}
			_ = p.postReceive(i) // fails only when the queue pair is gone
		}
		if failed {
			p.renew()
		}
		p.flush()
		p.m.mu.Unlock()
	}
}

// timers lets the protocol's timers act.
func (p *port) timers(ctx context.Context) {
	defer p.done.Done()
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		p.m.mu.Lock()
		p.cm.Expire(p.m.now())
		p.pump()
		now := p.m.now()
		p.wake = now + int64(time.Hour)
		if at, ok := p.cm.Next(); ok {
			p.wake = max(at, now)
		}
		t.Reset(time.Duration(p.wake - now))
		p.m.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-p.kick:
		case <-t.C:
		}
	}
}

// work deals with what the protocol has come up with, and has its next timer looked at. The manager is held.
func (p *port) work() {
	p.pump()
	if at, ok := p.cm.Next(); !ok || at >= p.wake {
		return
	}
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// pump takes events first, which may lead to more datagrams. The manager is held.
func (p *port) pump() {
	for {
		events := p.cm.Events()
		if len(events) == 0 {
			break
		}
		for i := range events {
			p.event(&events[i])
		}
	}
	p.queued = append(p.queued, p.cm.Sends()...)
	if len(p.queued) > maxQueued {
		p.queued = p.queued[:maxQueued]
	}
	p.flush()
}

// changed tells ids that their address is no longer one of the NIC's, or that the NIC is being closed or was taken away. Then their peers are told as well, once, as
// the kernel does: it destroys the ids itself.
func (p *port) changed() {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	for i := range p.m.ids {
		if i.port != p {
			continue
		}
		if p.dev.Removed() {
			if !i.gone {
				i.emit(Event{Type: DeviceRemoval})
				i.gone = true
				if i.conn != nil {
					_ = i.conn.Disconnect(p.m.now(), nil) // an error: it is no connection yet, or no more
				}
			}
			continue
		}
		g := p.gidIndex(ibcm.GIDOf(i.src.Addr()))
		if lost := g < 0; lost != i.lost {
			if i.lost = lost; lost {
				i.emit(Event{Type: AddrChange})
			}
		}
		if g >= 0 {
			i.gid = g
		}
	}
	if p.dev.Removed() {
		p.pump()
	}
}

// Gone tells whether the id's NIC has been taken away: all that is left to do with it is to destroy it.
func (i *ID) Gone() bool {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	return i.gone
}

// flush sends what has been waiting, as far as there are slots.
func (p *port) flush() {
	n := 0
	for ; n < len(p.queued) && len(p.free) > 0; n++ {
		d := &p.queued[n]
		ah := p.handle(d.Address)
		if ah == nil {
			continue // the own address is gone, and with it the connection
		}
		slot := p.free[len(p.free)-1]
		copy(p.send.Bytes()[slot*ibcm.MADSize:], d.MAD[:])
		_, err := p.qp.PostSend(&verbs.SendWR{ID: p.life*ofLife | sendID | uint64(slot), Opcode: verbs.OpSend, Flags: verbs.Signaled,
			SGE: p.send.Slice(slot*ibcm.MADSize, ibcm.MADSize), AH: ah, RemoteQPN: nic.ManagementQPN, RemoteQKey: nic.ManagementQKey})
		if err != nil {
			break
		}
		p.free = p.free[:len(p.free)-1]
	}
	if p.queued = p.queued[n:]; len(p.queued) == 0 {
		p.queued = nil
	}
}

// handle is the address handle of a datagram.
func (p *port) handle(a ibcm.Address) *verbs.AH {
	index := p.gidIndex(a.Local)
	if index < 0 {
		return nil
	}
	key := ahKey{index, a.Remote}
	if ah := p.ahs[key]; ah != nil {
		return ah
	}
	if len(p.ahs) >= maxHandles {
		for k, ah := range p.ahs {
			if ah.Close() == nil {
				delete(p.ahs, k)
			}
			if len(p.ahs) < maxHandles/2 {
				break
			}
		}
	}
	ah, err := p.pd.AHTo(a.Remote, index)
	if err != nil {
		return nil
	}
	p.ahs[key] = ah
	return ah
}

// gidIndex finds an own address; -1 if there is no such.
func (p *port) gidIndex(g roce.GID) int {
	for _, e := range p.dev.GIDs() {
		if e.GID == g {
			return e.Index
		}
	}
	return -1
}
