package uverbs

import (
	"runtime/debug"
	"time"

	"rnic/internal/nic"
	"rnic/internal/sandbox"
)

// removed takes the device from the run's programs, when it has been taken away (device.Device.Remove): as the kernel does it for drivers that can be
// unbound while programs have the device open (disassociate_ucontext, ib_uverbs_free_hw_resources), everything in each context is destroyed, its
// asynchronous events end with IB_EVENT_DEVICE_FATAL, and commands are EIO. paths are the device's in the tree.
func (d *Driver) removed(t Tree, paths []string) {
	var ended []*sandbox.File
	d.mu.Lock()
	for c := range d.contexts {
		ended = append(ended, c.disassociate()...)
	}
	d.mu.Unlock()
	for _, f := range ended {
		d.pump.sup.Forget(f)
	}
	for _, p := range paths {
		if err := t.Remove(p); err != nil {
			d.logf("device %s was removed: %v", d.cfg.Name, err)
		}
	}
}

// disassociate makes the context one without a device, for what is left of its life. It returns the files of its channels, which have ended. The driver's
// lock is held.
func (c *verbsContext) disassociate() (ended []*sandbox.File) {
	if c.closed || c.dead {
		return nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	c.dead = true
	c.destroyAll()
	if j := c.drv.journal; j.tellsCommands() {
		j.event(told{ctx: c, event: nic.EventDeviceFatal, kind: "device"})
	}
	var fatal [sizeAsyncEvent]byte
	le.PutUint32(fatal[8:], uint32(nic.EventDeviceFatal))
	for _, ch := range c.drv.pump.of(c) {
		if ch.size == sizeAsyncEvent {
			ch.post(&eventOrigin{}, fatal)
		}
		if ch.drained() {
			if f := c.drv.pump.remove(ch); f != nil { // nil: the program has closed it in this moment, and the sandbox is told of that
				ended = append(ended, f)
			}
		}
	}
	go c.sweep()
	return ended
}

// drained tells whether nothing waits for room in the pipe any more. Else the channel stays, so that the program gets it.
func (c *channel) drained() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) == 0
}

// sweepPause is how often what the program still rings is taken out of its log: doorbells that fail cannot be, as they are plain writes.
const sweepPause = 100 * time.Millisecond

// sweep keeps a program that goes on ringing from filling the shared memory, until it closes the device.
func (c *verbsContext) sweep() {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for open := true; open; time.Sleep(sweepPause) {
		c.drv.mu.Lock()
		if open = !c.closed; open {
			for c.file.Log().Drain(func(uint32) {}) > 0 {
			}
		}
		c.drv.mu.Unlock()
	}
}
