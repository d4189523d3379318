package ring

import "encoding/binary"

var le = binary.LittleEndian

// MaxSGE is the largest number of scatter/gather entries of a work request.
const MaxSGE = 32

// MaxInline is the largest inline payload in bytes: the room of 32 scatter/gather entries.
const MaxInline = MaxSGE * SGESize

// Sizes of the fixed parts of the elements in bytes (struct rxe_send_wqe, struct rxe_recv_wqe,
// struct rxe_sge, and a completion as struct ib_uverbs_wc).
const (
	SendWQESize = 208
	RecvWQESize = 40
	SGESize     = 16
	CQESize     = 64 // 48 used, and 8 for a time; the stock provider expects a power of two of 64 at least
)

// SendOpcode is enum ib_uverbs_wr_opcode.
type SendOpcode uint32

const (
	OpWrite          SendOpcode = 0
	OpWriteImm       SendOpcode = 1
	OpSend           SendOpcode = 2
	OpSendImm        SendOpcode = 3
	OpRead           SendOpcode = 4
	OpCompareSwap    SendOpcode = 5
	OpFetchAdd       SendOpcode = 6
	OpLocalInv       SendOpcode = 7
	OpBindMW         SendOpcode = 8
	OpSendInv        SendOpcode = 9
	OpTSO            SendOpcode = 10
	OpReadInv        SendOpcode = 11
	OpMaskedCAS      SendOpcode = 12
	OpMaskedFetchAdd SendOpcode = 13
	OpFlush          SendOpcode = 14
	OpAtomicWrite    SendOpcode = 15
)

// SendFlags is enum ib_uverbs_send_flags / ib_send_flags.
type SendFlags uint32

const (
	SendFence     SendFlags = 1 << 0
	SendSignaled  SendFlags = 1 << 1
	SendSolicited SendFlags = 1 << 2
	SendInline    SendFlags = 1 << 3
)

// SGE is one scatter/gather entry.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// Bind says what a memory window is to be bound to (struct rxe_send_wr, wr.mw).
type Bind struct {
	Addr, Length uint64 // in the address space of the region
	LKey         uint32 // of the region
	MWKey        uint32 // the window's key until now
	RKey         uint32 // and from now on: its lowest 8 bits count
	Access       uint32
}

// Flush says what a flush is to place where (struct rxe_send_wr, wr.flush).
type Flush struct {
	Length uint32 // bytes of the range
	Type   uint8  // placement type
	Level  uint8  // selectivity level
}

// SendWQE is a private copy of a send work request. Which fields mean something depends on
// Opcode and the queue pair's type; the others hold whatever the program left there.
type SendWQE struct {
	WRID   uint64
	Opcode SendOpcode
	Flags  SendFlags
	Imm    uint32 // immediate data as it goes on the wire (four bytes, little-endian view), or the key to invalidate

	RemoteAddr uint64 // write, read, atomics
	RKey       uint32
	RemoteSRQ  uint32 // XRC: in a word that is reserved for all others
	CompareAdd uint64
	Swap       uint64

	Bind  Bind // bind of a memory window
	Flush Flush

	RemoteQPN  uint32 // UD
	RemoteQKey uint32
	PKeyIndex  uint16
	AHNum      uint32 // 0: old provider, address vector AV instead
	AV         [88]byte

	NumSGE    int // as posted, checked to be at most MaxSGE
	SGE       [MaxSGE]SGE
	InlineLen int
	Inline    [MaxInline]byte
}

// Offsets in struct rxe_send_wqe.
const (
	swrID      = 0
	swOpcode   = 12
	swFlags    = 16
	swImm      = 20
	swUnion    = 24
	swAV       = 56
	swDMALen   = 184
	swNumSGE   = 196
	swSGE      = 208
	swUDQPN    = 24
	swUDQKey   = 28
	swUDPkey   = 32
	swUDAHNum  = 36
	swRDMARkey = 32
	swAtCmp    = 32
	swAtSwap   = 40
	swAtRkey   = 48
	swMWLength = 32
	swMWLKey   = 40
	swMWKey    = 44
	swMWNewKey = 48
	swMWAccess = 52
	swFlLength = 32
	swFlRkey   = 36
	swFlType   = 40
	swFlLevel  = 41
)

// Offsets in struct rxe_recv_wqe.
const (
	rwrID    = 0
	rwLen    = 16
	rwNumSGE = 28
	rwSGE    = 40
)

// LoadSend copies the send work request at position pos into w. It reads every byte of the
// element once. bad says that the request cannot be meant: more entries, or more inline bytes, than
// the element holds.
func (q *Queue) LoadSend(pos uint32, w *SendWQE, ud bool) (bad bool, err error) {
	defer guard(&err)
	q.reads()
	e := q.elem(pos)
	if len(e) < SendWQESize {
		return true, nil
	}
	w.WRID = le.Uint64(e[swrID:])
	w.Opcode = SendOpcode(le.Uint32(e[swOpcode:]))
	w.Flags = SendFlags(le.Uint32(e[swFlags:]))
	w.Imm = le.Uint32(e[swImm:])
	switch {
	case ud:
		w.RemoteQPN = le.Uint32(e[swUDQPN:]) & 0xffffff
		w.RemoteQKey = le.Uint32(e[swUDQKey:])
		w.PKeyIndex = le.Uint16(e[swUDPkey:])
		w.AHNum = le.Uint32(e[swUDAHNum:])
		copy(w.AV[:], e[swAV:swAV+len(w.AV)])
	case w.Opcode == OpBindMW || w.Opcode == OpLocalInv:
		w.loadBind(e)
		return false, nil
	case w.Opcode == OpFlush:
		w.loadFlush(e)
		return false, nil
	case w.Opcode == OpCompareSwap || w.Opcode == OpFetchAdd:
		w.RemoteAddr = le.Uint64(e[swUnion:])
		w.CompareAdd = le.Uint64(e[swAtCmp:])
		w.Swap = le.Uint64(e[swAtSwap:])
		w.RKey, w.RemoteSRQ = le.Uint32(e[swAtRkey:]), le.Uint32(e[swAtRkey+4:])&0xffffff
	default:
		w.RemoteAddr = le.Uint64(e[swUnion:])
		w.RKey, w.RemoteSRQ = le.Uint32(e[swRDMARkey:]), le.Uint32(e[swRDMARkey+4:])&0xffffff
	}
	room := len(e) - SendWQESize
	w.InlineLen, w.NumSGE = 0, 0
	n := le.Uint32(e[swNumSGE:])
	if !ud && w.Opcode == OpAtomicWrite && n == 0 {
		// The stock provider puts the eight bytes there, without saying so in the flags.
		if room < atomicWriteSize {
			return true, nil
		}
		w.Flags |= SendInline
		w.InlineLen = copy(w.Inline[:], e[swSGE:swSGE+atomicWriteSize])
		return false, nil
	}
	if w.Flags&SendInline != 0 {
		// Not dma.length alone: rdma-core before 64 leaves it 0 for an inline data list, where
		// resid has been set as well; the provider keeps both the same otherwise.
		n = le.Uint32(e[swDMALen:])
		if n == 0 {
			n = le.Uint32(e[swDMALen+4:])
		}
		if n > uint32(room) || n > MaxInline {
			return true, nil
		}
		w.InlineLen = int(n)
		copy(w.Inline[:n], e[swSGE:])
		return false, nil
	}
	if n > MaxSGE || n > uint32(room/SGESize) {
		return true, nil
	}
	w.NumSGE = int(n)
	for i := range w.NumSGE {
		s := e[swSGE+i*SGESize:]
		w.SGE[i] = SGE{le.Uint64(s), le.Uint32(s[8:]), le.Uint32(s[12:])}
	}
	return false, nil
}

// atomicWriteSize is the size of what ATOMIC WRITE writes (annex A19).
const atomicWriteSize = 8

// loadBind reads what a bind and a local invalidate have; they have no message.
func (w *SendWQE) loadBind(e []byte) {
	w.InlineLen, w.NumSGE = 0, 0
	w.Flags &^= SendInline
	w.Bind = Bind{Addr: le.Uint64(e[swUnion:]), Length: le.Uint64(e[swMWLength:]), LKey: le.Uint32(e[swMWLKey:]),
		MWKey: le.Uint32(e[swMWKey:]), RKey: le.Uint32(e[swMWNewKey:]), Access: le.Uint32(e[swMWAccess:])}
}

// loadFlush reads what a flush has; it has no message.
func (w *SendWQE) loadFlush(e []byte) {
	w.InlineLen, w.NumSGE = 0, 0
	w.Flags &^= SendInline
	w.RemoteAddr, w.RKey = le.Uint64(e[swUnion:]), le.Uint32(e[swFlRkey:])
	w.Flush = Flush{Length: le.Uint32(e[swFlLength:]), Type: e[swFlType], Level: e[swFlLevel]}
	if w.Flush.Length == 0 {
		w.Flush.Length = le.Uint32(e[swDMALen:]) // where the stock provider puts it
	}
}

// StoreSend writes w into the slot at position pos, as the user-mode driver does. Precondition:
// w.NumSGE and w.InlineLen fit the element.
func (q *Queue) StoreSend(pos uint32, w *SendWQE, ud bool) {
	e := q.elem(pos)
	clear(e[:SendWQESize])
	le.PutUint64(e[swrID:], w.WRID)
	le.PutUint32(e[swOpcode:], uint32(w.Opcode))
	le.PutUint32(e[swFlags:], uint32(w.Flags))
	le.PutUint32(e[swImm:], w.Imm)
	switch {
	case ud:
		le.PutUint32(e[swUDQPN:], w.RemoteQPN)
		le.PutUint32(e[swUDQKey:], w.RemoteQKey)
		le.PutUint16(e[swUDPkey:], w.PKeyIndex)
		le.PutUint32(e[swUDAHNum:], w.AHNum)
		copy(e[swAV:], w.AV[:])
	case w.Opcode == OpBindMW || w.Opcode == OpLocalInv:
		le.PutUint64(e[swUnion:], w.Bind.Addr)
		le.PutUint64(e[swMWLength:], w.Bind.Length)
		le.PutUint32(e[swMWLKey:], w.Bind.LKey)
		le.PutUint32(e[swMWKey:], w.Bind.MWKey)
		le.PutUint32(e[swMWNewKey:], w.Bind.RKey)
		le.PutUint32(e[swMWAccess:], w.Bind.Access)
		return
	case w.Opcode == OpFlush:
		le.PutUint64(e[swUnion:], w.RemoteAddr)
		le.PutUint32(e[swFlLength:], w.Flush.Length)
		le.PutUint32(e[swFlRkey:], w.RKey)
		e[swFlType], e[swFlLevel] = w.Flush.Type, w.Flush.Level
		return
	case w.Opcode == OpCompareSwap || w.Opcode == OpFetchAdd:
		le.PutUint64(e[swUnion:], w.RemoteAddr)
		le.PutUint64(e[swAtCmp:], w.CompareAdd)
		le.PutUint64(e[swAtSwap:], w.Swap)
		le.PutUint32(e[swAtRkey:], w.RKey)
		le.PutUint32(e[swAtRkey+4:], w.RemoteSRQ)
	default:
		le.PutUint64(e[swUnion:], w.RemoteAddr)
		le.PutUint32(e[swRDMARkey:], w.RKey)
		le.PutUint32(e[swRDMARkey+4:], w.RemoteSRQ)
	}
	if w.Flags&SendInline != 0 {
		copy(e[swSGE:], w.Inline[:w.InlineLen])
		le.PutUint32(e[swDMALen:], uint32(w.InlineLen))
		le.PutUint32(e[swDMALen+4:], uint32(w.InlineLen))
		return
	}
	var total uint32
	for i, s := range w.SGE[:w.NumSGE] {
		b := e[swSGE+i*SGESize:]
		le.PutUint64(b, s.Addr)
		le.PutUint32(b[8:], s.Length)
		le.PutUint32(b[12:], s.LKey)
		total += s.Length
	}
	le.PutUint32(e[swDMALen:], total)
	le.PutUint32(e[swDMALen+4:], total)
	le.PutUint32(e[swNumSGE:], uint32(w.NumSGE))
}

// RecvWQE is a private copy of a receive work request.
type RecvWQE struct {
	WRID   uint64
	NumSGE int
	SGE    [MaxSGE]SGE
}

// LoadRecv copies the receive work request at position pos into w; see LoadSend.
func (q *Queue) LoadRecv(pos uint32, w *RecvWQE) (bad bool, err error) {
	defer guard(&err)
	q.reads()
	e := q.elem(pos)
	w.WRID = le.Uint64(e[rwrID:])
	n := le.Uint32(e[rwNumSGE:])
	if n > MaxSGE || int(n) > (len(e)-RecvWQESize)/SGESize {
		w.NumSGE = 0
		return true, nil
	}
	w.NumSGE = int(n)
	for i := range w.NumSGE {
		s := e[rwSGE+i*SGESize:]
		w.SGE[i] = SGE{le.Uint64(s), le.Uint32(s[8:]), le.Uint32(s[12:])}
	}
	return false, nil
}

// StoreRecv writes w into the slot at position pos. Precondition: w.NumSGE fits the element.
func (q *Queue) StoreRecv(pos uint32, w *RecvWQE) {
	e := q.elem(pos)
	clear(e[:RecvWQESize])
	le.PutUint64(e[rwrID:], w.WRID)
	var total uint32
	for i, s := range w.SGE[:w.NumSGE] {
		b := e[rwSGE+i*SGESize:]
		le.PutUint64(b, s.Addr)
		le.PutUint32(b[8:], s.Length)
		le.PutUint32(b[12:], s.LKey)
		total += s.Length
	}
	le.PutUint32(e[rwLen:], total)
	le.PutUint32(e[rwLen+4:], total)
	le.PutUint32(e[rwNumSGE:], uint32(w.NumSGE))
}
