package ibcm

import "slices"

// A request can come a moment before its service does: a server tells its client, by another way, that it is ready, and only then listens
// (perftest's -R does). A driver in a kernel listens within microseconds of that; here every command takes longer. So a request for a
// service that nobody listens for may wait for a while before it is refused. To the peer this is a slow answer, as any may be (12.9.8).

// maxEarly bounds the requests that wait so; more are refused at once.
const maxEarly = 256

// earlyKey knows a request that is repeated.
type earlyKey struct {
	kind kind
	remoteKey
}

type earlyRequest struct {
	key     earlyKey
	from    Address
	mad     [MADSize]byte
	service uint64
	timer   timer
}

func (c *CM) findEarly(key earlyKey) int {
	return slices.IndexFunc(c.waiting, func(r *earlyRequest) bool { return r.key == key })
}

// early keeps a REQ or SIDR REQ until somebody listens for its service, or refuses it: when the time is over, or now.
func (c *CM) early(key earlyKey, from Address, m mad, service uint64, refuse func(m mad)) {
	var r *earlyRequest
	if i := c.findEarly(key); i >= 0 { // repeated: the newest counts
		r = c.waiting[i]
	} else {
		if c.cfg.EarlyWait <= 0 || len(c.waiting) >= maxEarly {
			refuse(m)
			return
		}
		r = &earlyRequest{key: key, timer: timer{index: -1}}
		c.waiting = append(c.waiting, r)
		c.set(&r.timer, c.now+c.cfg.EarlyWait)
	}
	r.from, r.service = from, service
	copy(r.mad[:], m)
	r.timer.fire = func() {
		c.forgetEarly(key)
		refuse(r.mad[:])
	}
}

// takeEarly gives a service the requests that have waited for it, in the order in which they came.
func (c *CM) takeEarly(service uint64) {
	for i := 0; i < len(c.waiting); {
		r := c.waiting[i]
		if r.service != service {
			i++
			continue
		}
		c.forgetEarly(r.key)
		if r.key.kind == kindREQ {
			c.receiveREQ(r.from, r.mad[:])
		} else {
			c.receiveLookup(r.from, r.mad[:])
		}
	}
}

// forgetEarly is for a request that is answered otherwise, or that the peer has given up.
func (c *CM) forgetEarly(key earlyKey) {
	if i := c.findEarly(key); i >= 0 {
		c.unset(&c.waiting[i].timer)
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
}
