package ibcm

// Reject refuses a request or a reply. What has been answered with a REP already is disconnected too, since the peer may take the connection
// for made, and a REJ that is lost is not asked for again.
func (k *Conn) Reject(now int64, reason Reason, info, private []byte) error {
	k.cm.now = max(k.cm.now, now)
	switch k.state {
	case ReqReceived:
		k.refuse(aboutREQ, reason, info, private)
		k.told = true
		k.lapse()
	case RepReceived:
		k.refuse(aboutREP, reason, info, private)
		k.told = true
		k.lapse()
	case RepSent:
		k.refuse(aboutOther, reason, info, private)
		k.told = true
		k.disconnect(nil)
	default:
		return ErrState
	}
	return nil
}

// refuse sends a REJ, which is sent again when the peer repeats what it is about.
func (k *Conn) refuse(a about, reason Reason, info, private []byte) {
	d, m := k.message(kindREJ, k.tid)
	m.encodeREJ(a, reason, info, private)
	k.asREJ = copyOf(d)
}

// receiveREJ: what is about a REQ is for who waits for its answer alone; it may have been sent before the peer changed its mind, and be late.
func (k *Conn) receiveREJ(m mad) {
	a, reason, info, private := m.decodeREJ()
	if m.localID() == 0 && k.state != ReqSent || a == aboutREQ && k.state != ReqSent && k.state != DreqSent {
		k.cm.stats.Unknown++
		return
	}
	rejected := Event{Type: EventRejected, Reason: reason, Info: info, Private: private}
	switch k.state {
	case ReqSent:
		k.end(rejected)
		k.forget()
	case ReqReceived, RepSent, RepReceived:
		k.end(rejected)
		k.lapse()
	case Established: // the peer has given up its half, or does not know the connection
		k.end(Event{Type: EventDisconnect})
		k.enterTimewait()
	case DreqSent: // as good as a DREP
		k.end(Event{Type: EventDisconnected})
		k.enterTimewait()
	default:
		k.cm.stats.Unknown++
	}
}
