package nic

import "rnic/internal/roce"

// A Note says what the NIC decided about a packet, for who looks at the packets: a capture. It is a byte in the result
// (RxPacket.Note, TxPacket.Note), zero for a packet that took its usual course, and changes nothing.
type Note uint8

// Notes of packets to send: why they are sent once more.
const (
	NoteNone       Note = iota
	NoteTimeout         // the local ACK timer has expired
	NoteSequence        // the peer's NAK: packet sequence error
	NoteNotReady        // the time that the peer's RNR NAK asked for is over
	NoteImplied         // the peer answered something later: the response of a READ or atomic was lost
	NoteEarly           // nothing was heard for the usual round trip, and an answer showed that something is missing
	NoteProbe           // nothing was heard for the usual round trip
	NoteSelective       // selective repeat: the peer lacks this one
	NoteMigrated        // the connection has gone over to its alternate path
	NoteAnswered        // a response of a request that came again
	NoteNAK             // not sent again: a NAK (its syndrome says which)
	notesOfReceive      // the first one behind
)

// Notes of received packets: why they were not carried out, or not as usual.
const (
	NoteMalformed   Note = notesOfReceive + iota
	NoteNoQP             // no queue pair has this number
	NoteState            // its state takes no such packet
	NoteTransport        // it is of another transport
	NoteAddress          // it is connected to another address
	NotePKey             // of another partition
	NoteQKey             // with another Q_Key
	NoteMigration        // it asks for a migration that cannot be
	NoteNoGroup          // no member of this multicast group is here
	NoteOwnEcho          // a datagram to a group, sent by this NIC, back from the network
	NoteRefusing         // the queue pair has refused an earlier packet for good
	NoteGap              // packets before it are missing: refused
	NoteGapAgain         // and that was said before: dropped
	NoteKept             // packets before it are missing: kept until they have come
	NoteDuplicate        // carried out before: answered again
	NoteNoReceive        // no receive is posted: RNR NAK, or dropped (UC, UD)
	NoteTooLong          // longer than the receive
	NoteMTU              // its payload does not fit the path MTU of the queue pair and its place in the message
	NoteOrder            // its opcode does not fit the message under way
	NoteLength           // its length is not what its header announced
	NoteOperation        // an operation that is not offered
	NoteReads            // more READs and atomics outstanding than were agreed
	NoteUnaligned        // an atomic's address is no multiple of 8
	NoteNoRight          // the queue pair does not allow the operation
	NoteKeyUnknown       // no memory has this R_Key
	NoteKeyRange         // outside the memory that the R_Key names
	NoteKeyRight         // the memory does not allow the operation
	NoteNoSRQ            // XRC: no shared receive queue has this number
	NoteKeyForeign       // a protection domain, or a queue pair, of another
	NoteLocal            // the receive's memory cannot be used
	NoteInvalidate       // nothing that the key names may be invalidated
	NoteLostMessage      // UC: packets of its message are missing
	NoteGhost            // it acknowledges what was never sent
	NoteOld              // about something that is acknowledged already
	NoteUnexpected       // a response that nothing waits for
	NoteTooLarge         // its message would be longer than the NIC carries
	NotePlacement        // FLUSH: what it asks for is not defined
	NoteForgotten        // carried out before, and no longer known well enough to be answered again
	NoteResponseGap      // responses before it are missing
	NoteGroupQP          // to a multicast group, but one queue pair
	NoteSyndrome         // an acknowledgement of a kind that is reserved
	notes
)

var noteTexts = [notes]string{
	NoteTimeout: "retransmitted: the local ACK timer expired", NoteSequence: "retransmitted: the peer sent a NAK, PSN sequence error",
	NoteNotReady: "retransmitted: the peer sent an RNR NAK, and its time is over", NoteImplied: "retransmitted: a later answer of the peer shows that this one's response was lost",
	NoteEarly: "retransmitted: no answer within the usual round trip, and an answer to a probe shows a loss", NoteProbe: "retransmitted: a probe, no answer within the usual round trip",
	NoteSelective: "retransmitted: the peer lacks this packet (selective repeat)", NoteMigrated: "retransmitted: the connection has gone over to its alternate path",
	NoteAnswered: "retransmitted: the peer's request came again",

	NoteMalformed: "dropped: malformed", NoteNoQP: "dropped: no such queue pair", NoteState: "dropped: the state of the queue pair does not allow it",
	NoteTransport: "dropped: the queue pair is of another transport", NoteAddress: "dropped: the queue pair is connected to another address",
	NotePKey: "dropped: wrong P_Key", NoteQKey: "dropped: wrong Q_Key", NoteMigration: "dropped: asks for a path migration that is not possible",
	NoteNoGroup: "dropped: no member of this multicast group", NoteOwnEcho: "dropped: own multicast datagram, back from the network",
	NoteRefusing: "dropped: the queue pair has refused an earlier packet", NoteGap: "out of sequence: packets before it are missing, NAK",
	NoteGapAgain: "dropped: out of sequence, packets before it are missing", NoteKept: "kept: packets before it are missing (selective repeat)",
	NoteDuplicate: "duplicate: carried out before, answered again", NoteNoReceive: "not accepted: no receive is posted",
	NoteTooLong: "refused: longer than the receive's buffers", NoteMTU: "refused: its payload does not fit the path MTU of the queue pair",
	NoteOrder: "refused: its opcode does not fit the message under way", NoteLength: "refused: its length is not what the RETH announced",
	NoteOperation: "refused: the operation is not offered", NoteReads: "refused: more READs and atomics outstanding than agreed (max_dest_rd_atomic)",
	NoteUnaligned: "refused: the address of an atomic must be a multiple of 8", NoteNoRight: "refused: the queue pair's access flags do not allow it",
	NoteKeyUnknown: "refused: no memory region has this R_Key", NoteKeyRange: "refused: outside of the memory region that the R_Key names",
	NoteKeyRight: "refused: the memory region's access flags do not allow it", NoteNoSRQ: "refused: no XRC shared receive queue has this number", NoteKeyForeign: "refused: the R_Key is of another protection domain or queue pair",
	NoteLocal: "refused: the receive's memory cannot be used", NoteInvalidate: "refused: nothing that the key names may be invalidated",
	NoteLostMessage: "dropped: packets of its message are missing", NoteGhost: "dropped: acknowledges what was never sent",
	NoteOld: "ignored: about something that is acknowledged already", NoteUnexpected: "ignored: nothing waits for this response",
	NoteTooLarge: "refused: its message would be longer than the NIC carries", NotePlacement: "refused: a FLUSH whose placement or selectivity is not defined",
	NoteForgotten: "duplicate: carried out before, and too long ago to be answered again", NoteResponseGap: "dropped: out of sequence, responses before it are missing",
	NoteGroupQP: "dropped: to a multicast group, but not to its members (queue pair 0xffffff)", NoteSyndrome: "dropped: an acknowledgement of a reserved kind",
}

// String is the note in words; "" for NoteNone and NoteNAK.
func (n Note) String() string {
	if n >= notes {
		return ""
	}
	return noteTexts[n]
}

// Resent tells whether the note is of a packet that is sent once more.
func (n Note) Resent() bool { return n >= NoteTimeout && n <= NoteAnswered }

// note notes something of the packet that is being received. The first note stays: it is the reason of later ones.
func (q *QP) note(n Note) { q.nic.noteReceived(n) }

func (n *NIC) noteReceived(note Note) {
	if n.transport.note == NoteNone {
		n.transport.note = note
	}
}

// noteSent notes something of the last packet of the batch.
func (tx *Tx) noteSent(n Note) { tx.Packets[len(tx.Packets)-1].Note = n }

// whyNot tells why a queue pair does not accept a packet; q is nil if there is none.
func whyNot(q *QP, rx *RxPacket, p *roce.Packet) Note {
	switch {
	case q == nil:
		return NoteNoQP
	case q.state < RTR || q.state > SQE || q.state == RTR && !p.Info.Request:
		return NoteState
	case q.typ != UD && p.Info.Transport == q.transportOf() && !comesBy(&rx.Path, &q.path):
		return NoteAddress
	case q.typ == UD && p.Info.Transport == roce.TransportUD && rx.Path.Dst.IsMulticast():
		return NoteGroupQP
	}
	return NoteTransport
}

func (q *QP) transportOf() roce.Transport {
	switch q.typ {
	case UC:
		return roce.TransportUC
	case UD:
		return roce.TransportUD
	case XRCINI, XRCTGT:
		return roce.TransportXRC
	}
	return roce.TransportRC
}

// whyNoCNP is whyNot for a notification of congestion.
func whyNoCNP(q *QP, rx *RxPacket, p *roce.Packet) Note {
	switch {
	case q == nil || q.typ != RC:
	case q.state < RTR || q.state > SQD:
		return NoteState
	case rx.Path.Src != q.path.Dst || rx.Path.Dst != q.path.Src:
		return NoteAddress
	default:
		return NotePKey
	}
	return whyNot(q, rx, p)
}

// noteAccess notes why a key gave no access. One that gives it leads to memory that is not aligned.
func (q *QP) noteAccess(key uint32, va, length uint64, need Access) {
	m := q.nic.lookupMR(key)
	switch {
	case m == nil || m.dead:
		q.note(NoteKeyUnknown)
	case m.pd != q.pd || m.only != nil && m.only != q:
		q.note(NoteKeyForeign)
	case need&^m.access != 0:
		q.note(NoteKeyRight)
	case m.check(q.pd, va, length, need):
		q.note(NoteUnaligned)
	default:
		q.note(NoteKeyRange)
	}
}
