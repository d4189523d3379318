package device

import (
	"slices"

	"rnic/internal/netdev"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// portState is the port at one moment. It is never changed: another one takes its place.
type portState struct {
	gids   []GIDEntry // by index
	active bool
}

// portNumber is that of the only port.
const portNumber = 1

// watch follows the network's changes. Its fields are the watcher's goroutine's, once that runs.
type watch struct {
	watcher *netdev.Watcher
	// slots is the index that each address has had, so that one which comes back is found where it was: queue
	// pairs name their source by its index.
	slots map[roce.GID]int
	// grows: new addresses become GIDs. Not where each address of the beginning has a socket of its own.
	grows bool
	// carried: an interface other than loopback had a carrier.
	carried bool
	// down are the indices of addresses from which nothing reaches the network.
	down []int
	// up: the network says that the port is up. forced: a fault says that it is down. Both are guarded by Device.portMu.
	up, forced bool
}

// startWatch takes the table of the beginning and watches its interfaces. Without rtnetlink the port stays as it
// is; so does that of a NIC whose chosen addresses are all loopback ones.
func (d *Device) startWatch() {
	w := &d.watch
	w.slots = map[roce.GID]int{}
	for _, g := range d.port.gids {
		w.slots[g.GID] = g.Index
	}
	chosen := len(d.cfg.Addrs) > 0 || d.cfg.Interface != ""
	w.grows = !chosen && !d.cfg.plain()
	d.state.Store(&portState{gids: d.port.gids, active: true})
	w.up = true
	fixed := !slices.ContainsFunc(d.port.entries, func(e netdev.Entry) bool { return !e.Loopback })
	if d.cfg.Local || chosen && fixed {
		return
	}
	w.up = w.active(d.port.entries)
	always := d.state.Swap(&portState{gids: d.port.gids, active: w.up})
	var err error
	if w.watcher, err = netdev.Watch(d.cfg.selection(), d.networkChanged); err != nil {
		w.up = true
		d.state.Store(always)
	}
}

// stop returns when no port event is under way, nor will be.
func (w *watch) stop() {
	if w.watcher != nil {
		w.watcher.Close()
	}
}

// active tells the port's state by the table's addresses. The loopback interface keeps a port up only if
// there was never another one: that it works says nothing about the network.
func (w *watch) active(entries []netdev.Entry) bool {
	running, loopback := false, false
	for i := range entries {
		if entries[i].Loopback {
			loopback = true
		} else if entries[i].Running {
			running = true
		}
	}
	w.carried = w.carried || running
	return running || loopback && !w.carried
}

// table is the GID table with the addresses that there are now: those of old while they exist, whatever
// their interface does, and new ones of interfaces that are up. It returns what of entries is in it.
func (w *watch) table(old []GIDEntry, entries []netdev.Entry) (gids []GIDEntry, used []netdev.Entry) {
	var taken [netdev.MaxEntries]bool
	put := func(e *netdev.Entry, index int) {
		if index < 0 || taken[index] {
			return
		}
		taken[index] = true
		w.slots[e.GID] = index
		gids = append(gids, GIDEntry{Index: index, GID: e.GID, IfIndex: e.IfIndex, IfName: e.IfName})
		used = append(used, *e)
	}
	// An address may stand on two interfaces: the one that works counts.
	slices.SortStableFunc(entries, func(a, b netdev.Entry) int { return rank(&a) - rank(&b) })
	var fresh []*netdev.Entry
	for i := range entries {
		e := &entries[i]
		index, known := w.slots[e.GID]
		switch {
		case slices.ContainsFunc(old, func(g GIDEntry) bool { return g.GID == e.GID }), known && e.Up:
			put(e, index)
		case !known && e.Up && w.grows:
			fresh = append(fresh, e)
		}
	}
	for _, e := range fresh {
		if _, twice := w.slots[e.GID]; !twice {
			put(e, w.freeSlot(&taken))
		}
	}
	slices.SortFunc(gids, func(a, b GIDEntry) int { return a.Index - b.Index })
	return gids, used
}

// downs are the indices of old from whose interface nothing leaves any more, or that are no addresses any more:
// connections with an alternate path leave them.
func (w *watch) downs(old []GIDEntry, used []netdev.Entry) (down []int) {
	for _, g := range old {
		works := slices.ContainsFunc(used, func(e netdev.Entry) bool { return e.GID == g.GID && (e.Running || e.Loopback) })
		if !works {
			down = append(down, g.Index)
		}
	}
	return down
}

func rank(e *netdev.Entry) int {
	switch {
	case e.Running:
		return 0
	case e.Up:
		return 1
	}
	return 2
}

// freeSlot is an index that no address has had, else one whose address is gone, which loses it; -1 if
// there is none.
func (w *watch) freeSlot(taken *[netdev.MaxEntries]bool) int {
	had := map[int]roce.GID{}
	for g, i := range w.slots {
		had[i] = g
	}
	again := -1
	for i := range taken {
		if _, used := had[i]; !used {
			return i
		}
		if !taken[i] && again < 0 {
			again = i
		}
	}
	if again >= 0 {
		delete(w.slots, had[again])
	}
	return again
}

// networkChanged brings the port up to date and tells every context what has changed (InfiniBand vol. 1,
// 11.6.3): the device answers as it is before the events come.
func (d *Device) networkChanged(entries []netdev.Entry) {
	d.portMu.Lock()
	defer d.portMu.Unlock()
	old := d.state.Load()
	gids, used := d.watch.table(old.gids, entries)
	d.watch.up = d.watch.active(used)
	d.changePort(gids, d.watch.downs(old.gids, used))
}

// forcePort takes the port down whatever the network says, or lets that decide again: a fault.
func (d *Device) forcePort(down bool) {
	d.portMu.Lock()
	defer d.portMu.Unlock()
	d.watch.forced = down
	gids := d.state.Load().gids
	var dead []int
	for _, g := range gids {
		if down {
			dead = append(dead, g.Index)
		}
	}
	d.changePort(gids, dead)
}

// changePort goes over to another table and state. portMu is held.
func (d *Device) changePort(gids []GIDEntry, down []int) {
	old := d.state.Load()
	now := &portState{gids: gids, active: d.watch.up && !d.watch.forced}
	var events []nic.EventType
	if !slices.Equal(old.gids, now.gids) {
		events = append(events, nic.EventGIDChange)
	}
	switch {
	case now.active && !old.active:
		events = append(events, nic.EventPortActive)
	case !now.active && old.active:
		events = append(events, nic.EventPortErr)
		d.portDowns.Add(1)
	}
	if len(events) == 0 && slices.Equal(down, d.watch.down) {
		return
	}
	d.watch.down = down
	d.engine.Do(func(core *nic.NIC, clock int64) {
		// While the old table stands: who leaves an address that is gone is known by it.
		core.SetDown(clock, func(index int) bool { return slices.Contains(down, index) })
		for _, g := range old.gids {
			core.SetGID(g.Index, roce.GID{})
		}
		for _, g := range now.gids {
			core.SetGID(g.Index, g.GID)
		}
	})
	d.state.Store(now)
	d.callHooks()
	d.engine.Do(func(*nic.NIC, int64) { d.announce(events) })
}

// announce gives every context the port's events. The unit is held; a context that is closed is not in the
// map any more, and gets none.
func (d *Device) announce(events []nic.EventType) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.contexts {
		if c.sink == nil {
			continue
		}
		for _, e := range events {
			c.sink.Async(AsyncEvent{Type: e, Port: portNumber})
		}
	}
}

// PortActive tells whether the port is up: one of its interfaces is, and has a carrier. Loopback counts
// only where there is no other.
func (d *Device) PortActive() bool { return d.state.Load().active }

// Removed tells whether the device is being closed, or was taken away (Remove).
func (d *Device) Removed() bool { return d.removed.Load() }

// callHooks calls them, but no more when they have been told that the device is removed.
func (d *Device) callHooks() {
	d.hookMu.Lock()
	defer d.hookMu.Unlock()
	if d.told {
		return
	}
	d.told = d.removed.Load()
	for _, f := range d.hooks {
		(*f)()
	}
}

// OnPortChange makes the device call f now, after each change of the port's state or GID table before
// its events, and once when the device is being closed or taken away (Removed), before its contexts are. The function returned ends that, and waits for a call that is under way. f must not close the device.
func (d *Device) OnPortChange(f func()) (cancel func()) {
	d.hookMu.Lock()
	defer d.hookMu.Unlock()
	h := &f
	d.hooks = append(d.hooks, h)
	f()
	return func() {
		d.hookMu.Lock()
		defer d.hookMu.Unlock()
		d.hooks = slices.DeleteFunc(d.hooks, func(o *func()) bool { return o == h })
	}
}
