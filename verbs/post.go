package verbs

import (
	"fmt"
	"math/bits"

	"rnic/internal/ring"
)

// Opcode is the operation of a send work request (enum ibv_wr_opcode).
type Opcode uint32

// Operations.
const (
	OpWrite       = Opcode(ring.OpWrite)
	OpWriteImm    = Opcode(ring.OpWriteImm)
	OpSend        = Opcode(ring.OpSend)
	OpSendImm     = Opcode(ring.OpSendImm)
	OpRead        = Opcode(ring.OpRead)
	OpCompareSwap = Opcode(ring.OpCompareSwap)
	OpFetchAdd    = Opcode(ring.OpFetchAdd)
	OpBindMW      = Opcode(ring.OpBindMW)
	OpLocalInv    = Opcode(ring.OpLocalInv)
	OpSendInv     = Opcode(ring.OpSendInv)
	OpFlush       = Opcode(ring.OpFlush)
	OpAtomicWrite = Opcode(ring.OpAtomicWrite)
)

// Flags of a send work request (enum ibv_send_flags).
type Flags uint32

// Flags.
const (
	Signaled  = Flags(ring.SendSignaled)  // complete visibly
	Fence     = Flags(ring.SendFence)     // wait for earlier READs and atomics first
	Solicited = Flags(ring.SendSolicited) // the receiver's completion is a solicited one
)

// SendWR is a send work request. Which fields count depends on Opcode and on the queue pair's type.
type SendWR struct {
	ID         uint64
	Opcode     Opcode
	Flags      Flags
	SGE        []SGE  // what is sent, or where what was read lands
	Inline     []byte // instead of SGE: copied when posted; at most QPConfig.MaxInline bytes
	Imm        uint32 // immediate data
	RemoteAddr uint64 // WRITE, READ, atomics
	RKey       uint32
	CompareAdd uint64 // COMPARE & SWAP: compared with; FETCH & ADD: added
	Swap       uint64
	Bind       *Bind  // bind of a memory window
	InvRKey    uint32 // local invalidate, SEND with invalidate: the window's key
	Flush      Flush  // FLUSH: of what is at RemoteAddr
	AH         *AH    // UD
	RemoteQPN  uint32
	RemoteQKey uint32
	RemoteSRQ  uint32 // XRCINI: SRQ.Num of the peer's
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID  uint64
	SGE []SGE
}

// The ring carries immediate data as the four bytes that go on the wire.
func immToRing(v uint32) uint32   { return bits.ReverseBytes32(v) }
func immFromRing(v uint32) uint32 { return bits.ReverseBytes32(v) }

// PostSend posts work requests, in order, and rings the doorbell once. It returns how many were
// posted; the error is about the next one. Errors of the operation itself come as completions.
func (q *QP) PostSend(wrs ...*SendWR) (n int, err error) {
	if err := q.use("post to queue pair"); err != nil {
		return 0, err
	}
	q.sendMu.Lock()
	for _, wr := range wrs {
		if err = q.postSend(wr); err != nil {
			break
		}
		n++
	}
	q.sendMu.Unlock()
	if n > 0 {
		q.qp.Doorbell()
	}
	return n, err
}

func (q *QP) postSend(wr *SendWR) error {
	if q.sq == nil {
		return fmt.Errorf("post to QP %#x: an XRC target sends nothing: %w", q.Num(), ErrInvalid)
	}
	if q.sq.Free() == 0 {
		return ErrQueueFull
	}
	w := &q.sendW
	w.WRID, w.Opcode, w.Flags = wr.ID, ring.SendOpcode(wr.Opcode), ring.SendFlags(wr.Flags)
	w.Imm = immToRing(wr.Imm)
	switch wr.Opcode {
	case OpBindMW:
		if err := q.fillBind(&w.Bind, wr.Bind); err != nil {
			return err
		}
	case OpLocalInv, OpSendInv:
		w.Imm = wr.InvRKey
	case OpFlush:
		w.Flush = wr.Flush.toRing()
	}
	w.RemoteAddr, w.RKey, w.CompareAdd, w.Swap = wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.Swap
	w.RemoteQPN, w.RemoteQKey, w.RemoteSRQ, w.AHNum = wr.RemoteQPN, wr.RemoteQKey, wr.RemoteSRQ, 0
	if q.typ == UD {
		if err := q.fits(wr.AH); err != nil {
			return err
		}
		w.AHNum = wr.AH.ah.Num()
	}
	w.NumSGE, w.InlineLen = 0, 0
	switch {
	case wr.Opcode == OpAtomicWrite && len(wr.Inline)+len(wr.SGE) == 0:
		return fmt.Errorf("post to QP %#x: an atomic write without its eight bytes: %w", q.Num(), ErrInvalid)
	case len(wr.Inline) > 0:
		if len(wr.Inline) > int(q.cap.MaxInline) {
			return fmt.Errorf("post to QP %#x: %d inline bytes, it was created for %d: %w", q.Num(), len(wr.Inline), q.cap.MaxInline, ErrInvalid)
		}
		w.Flags |= ring.SendInline
		w.InlineLen = copy(w.Inline[:], wr.Inline)
	case len(wr.SGE) > int(q.cap.MaxSendSGE):
		return fmt.Errorf("post to QP %#x: %d scatter/gather entries, it was created for %d: %w", q.Num(), len(wr.SGE), q.cap.MaxSendSGE, ErrInvalid)
	default:
		if n := messageLength(wr.SGE); n > uint64(q.maxMsg) {
			return fmt.Errorf("post to QP %#x: a message of %d bytes, the device carries %d: %w", q.Num(), n, q.maxMsg, ErrLocalLength)
		}
		w.NumSGE = copySGE(&w.SGE, wr.SGE)
	}
	q.sq.StoreSend(q.sq.Position(), w, q.typ == UD)
	if err := q.sq.Publish(); err != nil {
		return err
	}
	if wr.Opcode == OpBindMW {
		wr.Bind.MW.rebound(w.Bind.RKey)
	}
	return nil
}

// messageLength is the length of a message in these entries, in bytes.
func messageLength(list []SGE) (n uint64) {
	for i := range list {
		n += uint64(list[i].Length)
	}
	return n
}

// PostRecv posts receives, in order; see PostSend.
func (q *QP) PostRecv(wrs ...*RecvWR) (n int, err error) {
	if err := q.use("post to queue pair"); err != nil {
		return 0, err
	}
	if q.rq == nil {
		return 0, fmt.Errorf("post receive to QP %#x: it takes its receives from a shared queue, post there: %w", q.Num(), ErrInvalid)
	}
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	for _, wr := range wrs {
		if len(wr.SGE) > int(q.cap.MaxRecvSGE) {
			return n, fmt.Errorf("post receive to QP %#x: %d scatter/gather entries, it was created for %d: %w",
				q.Num(), len(wr.SGE), q.cap.MaxRecvSGE, ErrInvalid)
		}
		if err := postRecv(q.rq, &q.recvW, wr); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func copySGE(dst *[ring.MaxSGE]ring.SGE, src []SGE) int {
	for i, s := range src {
		dst[i] = ring.SGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey}
	}
	return len(src)
}
