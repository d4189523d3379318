package engine

import "runtime"

// Waiting of the unit's thread, in nanoseconds.
const (
	yieldToWaiters = 200_000 // at most this long the thread waits for a goroutine that wants the unit
	callerIdle     = 100_000 // a caller that has not polled for so long has stopped
	callerPause    = 50_000  // a caller that has not polled for so long may need help
	callerNap      = 100_000 // how often the thread looks while a caller drives the unit
	callerNapMax   = 400_000 // and at least, when it has found nothing to do
	longestSleep   = 1_000_000_000
	pendingSleep   = 50_000    // a full link is tried again after this
	deafSleep      = 1_000_000 // longest sleep while a source of doorbells cannot be watched
)

// run is the unit's thread.
func (u *Unit) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with its changed scheduling
	defer close(u.done)
	setUpThread()
	restore := faultsPanic()
	defer restore()
	nap := int64(callerNap)
	idleSince := int64(0)
	network := lookNow
	for !u.closed.Load() {
		if now := Now(); now-u.lastCall.Load() < callerIdle+nap {
			u.waiter.nap(nap)
			nap = min(2*nap, callerNapMax)
			idleSince = 0
			// A caller in full swing needs no help: two threads that take turns at one NIC's work cost
			// more than either.
			if Now()-u.lastCall.Load() > callerPause && u.lookAfter() {
				nap = callerNap
			}
			continue
		}
		nap = callerNap
		u.giveWay()
		u.mu.Lock()
		worked := u.step(network)
		u.letGo().do(u.engine, false)
		network = lookSometimes
		if worked {
			idleSince = 0
			continue
		}
		now := Now()
		if idleSince == 0 {
			idleSince = now
		}
		if u.maySpin(now, now-idleSince) {
			continue
		}
		network = u.sleep()
		idleSince = 0
	}
}

// lookAfter does what a caller that drives the unit has left undone: acknowledgements, timers, what came in
// since it stopped polling.
func (u *Unit) lookAfter() (worked bool) {
	for u.mu.TryLock() {
		worked = u.step(lookNow)
		u.letGo().do(u.engine, false)
		if !u.leftHere() {
			break
		}
	}
	return worked
}

// giveWay lets goroutines that wait for the unit have it: the thread would take it again at once.
func (u *Unit) giveWay() {
	if u.want.Load() == 0 {
		return
	}
	for until := Now() + yieldToWaiters; u.want.Load() != 0 && Now() < until; {
		yieldThread()
	}
}

// maySpin tells whether the thread should go on looking after so many idle nanoseconds.
func (u *Unit) maySpin(now, idle int64) bool {
	switch {
	case u.waking.Always:
		return true
	case idle >= u.waking.SpinNanos:
		return false
	case u.cores.free(now):
		return true
	case u.polled.Load() == 0 && idle < politeSpin:
		// No other process spins for this NIC's sake: to be woken for the next packet of a stream
		// would cost more than to wait for it, and whoever wants the core gets it.
		yieldThread()
		return true
	}
	return false
}

// politeSpin is how long, in nanoseconds, the thread looks on though no core is free.
const politeSpin = 50_000

// sleep waits for a doorbell, a packet, a timer or a command. Everything is looked at once more
// after the unit has said that it sleeps, so that nothing is missed between. It tells where to look next.
func (u *Unit) sleep() look {
	u.mu.Lock()
	u.waiter.arm(u.sources)
	u.sleeping.Store(true)
	if u.step(lookRarely) {
		u.sleeping.Store(false)
		u.letGo().do(u.engine, false)
		return lookSometimes
	}
	timeout := u.timeout()
	u.wakeAt = Now() + timeout
	u.letGo().do(u.engine, false)
	u.counters.Sleeps.Add(1)
	network := lookNow
	if timeout > 0 && !u.waiter.wait(timeout) {
		network = lookRarely
	}
	u.sleeping.Store(false)
	return network
}

// timeout is how long the unit may sleep. The unit is held.
func (u *Unit) timeout() int64 {
	if u.dead {
		return 0
	}
	now := Now()
	timeout := u.waking.SleepNanos
	earliest := func(t int64) {
		if t != 0 {
			timeout = min(timeout, t-now)
		}
	}
	earliest(u.core.NextTimer())
	if u.net != nil {
		earliest(u.net.NextDelayed())
	}
	if u.loop != nil {
		earliest(u.loop.NextDelayed())
	}
	if len(u.pending) > 0 {
		timeout = min(timeout, pendingSleep)
	}
	if u.waiter.deaf {
		timeout = min(timeout, deafSleep)
	}
	return timeout
}
