package ibcm

import (
	"maps"
	"slices"
)

// A DREQ needs no decision of the peer's, so nobody waits a minute for its answer.
const (
	maxDreqWait    = 1 << 30 // 1.07 s
	maxDreqRetries = 4
)

// Disconnect sends a DREQ: EventDisconnected follows, or EventDisconnect if the peer does the same.
func (k *Conn) Disconnect(now int64, private []byte) error {
	k.cm.now = max(k.cm.now, now)
	if k.state != Established && k.state != RepSent {
		return ErrState
	}
	k.disconnect(private)
	return nil
}

func (k *Conn) disconnect(private []byte) {
	c := k.cm
	k.answered()
	k.out.stop(c)
	d, m := k.message(kindDREQ, c.random())
	put24(m.body()[8:], k.peer.QPN)
	copy(m.body()[dreqPrivateAt:dreqPrivateAt+DreqPrivate], private)
	time := k.wait
	if k.state == RepSent { // a peer that has heard of nothing yet will ask again, and is to have the same answer
		time = max(time, k.memory+k.granted)
	}
	k.state = DreqSent
	k.out.start(c, d, kindDREQ, min(k.timeout, maxDreqWait), min(k.retries, maxDreqRetries), func() {
		k.end(Event{Type: EventDisconnected, Err: true})
		k.stay(time)
	})
}

func (k *Conn) receiveDREQ(m mad) {
	if get24(m.body()[8:]) != k.own.QPN&0xffffff && k.cm.cfg.Planted != PlantedStaleID { // 12.6.10
		k.cm.stats.Foreign++
		return
	}
	private := clone(m.body()[dreqPrivateAt : dreqPrivateAt+DreqPrivate])
	switch k.state {
	case RepSent, RepReceived, Established:
		k.out.stop(k.cm)
		k.endTID, k.state = m.tid(), DreqReceived
		k.end(Event{Type: EventDisconnect, Private: private})
		if k.orphan {
			k.dreply(nil)
		}
	case DreqSent: // both at once (12.9.8.6): neither waits for the other
		k.endTID = m.tid()
		k.end(Event{Type: EventDisconnect, Private: private})
		k.dreply(nil)
	case DreqReceived:
		k.cm.stats.Duplicates++
		k.endTID = m.tid()
	case Timewait: // the DREP was lost, or there was never one
		k.cm.stats.Duplicates++
		if k.asDREP == nil {
			d, _ := k.message(kindDREP, m.tid())
			k.asDREP = copyOf(d)
			return
		}
		mad(k.asDREP.MAD[:]).setTID(m.tid())
		k.repeat(k.asDREP)
	default:
		k.cm.stats.Unknown++
	}
}

// DisconnectReply answers a DREQ.
func (k *Conn) DisconnectReply(now int64, private []byte) error {
	k.cm.now = max(k.cm.now, now)
	if k.state != DreqReceived {
		return ErrState
	}
	k.dreply(private)
	return nil
}

func (k *Conn) dreply(private []byte) {
	d, m := k.message(kindDREP, k.endTID)
	copy(m.body()[drepPrivateAt:drepPrivateAt+DrepPrivate], private)
	k.asDREP = copyOf(d)
	k.enterTimewait()
}

func (k *Conn) receiveDREP(m mad) {
	if k.state != DreqSent {
		k.cm.stats.Unknown++
		return
	}
	k.end(Event{Type: EventDisconnected, Private: clone(m.body()[drepPrivateAt : drepPrivateAt+DrepPrivate])})
	k.enterTimewait()
}

// receiveLAP refuses another path for a connection (12.8.3): paths are changed by attributes of the queue pair alone.
func (k *Conn) receiveLAP(m mad) {
	if k.state != Established {
		k.cm.stats.Unknown++
		return
	}
	_, r := k.message(kindAPR, m.tid())
	r.body()[aprStatusAt] = aprUnsupported
}

// LastWords repeats, ahead of their time, the DREQs that have no answer yet, and tells how many there are: who is about to end can
// wait for no timer, and a peer that misses the DREQ may never learn of the end.
func (c *CM) LastWords(now int64) (n int) {
	c.now = max(c.now, now)
	for _, id := range slices.Sorted(maps.Keys(c.conns)) {
		if k := c.conns[id]; k.state == DreqSent {
			k.out.again(c)
			n++
		}
	}
	return n
}
