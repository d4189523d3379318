package ring

// Status is enum ibv_wc_status.
type Status uint32

const (
	StatusSuccess        Status = 0
	StatusLocLenErr      Status = 1
	StatusLocQPOpErr     Status = 2
	StatusLocEECOpErr    Status = 3
	StatusLocProtErr     Status = 4
	StatusWRFlushErr     Status = 5
	StatusMWBindErr      Status = 6
	StatusBadRespErr     Status = 7
	StatusLocAccessErr   Status = 8
	StatusRemInvReqErr   Status = 9
	StatusRemAccessErr   Status = 10
	StatusRemOpErr       Status = 11
	StatusRetryExcErr    Status = 12
	StatusRNRRetryExcErr Status = 13
	StatusLocRDDViolErr  Status = 14
	StatusRemInvRDReqErr Status = 15
	StatusRemAbortErr    Status = 16
	StatusInvEECNErr     Status = 17
	StatusInvEECStateErr Status = 18
	StatusFatalErr       Status = 19
	StatusRespTimeoutErr Status = 20
	StatusGeneralErr     Status = 21
)

var statusNames = [...]string{"success", "local length error", "local QP operation error", "local EE context operation error",
	"local protection error", "work request flushed error", "memory window bind error", "bad response error",
	"local access error", "remote invalid request error", "remote access error", "remote operation error",
	"transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation error",
	"remote invalid RD request", "aborted error", "invalid EE context number", "invalid EE context state",
	"fatal error", "response timeout error", "general error"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown status"
}

// WCOpcode is enum ibv_wc_opcode, the values that the stock rxe provider passes on.
type WCOpcode uint32

const (
	WCSend        WCOpcode = 0
	WCWrite       WCOpcode = 1
	WCRead        WCOpcode = 2
	WCCompareSwap WCOpcode = 3
	WCFetchAdd    WCOpcode = 4
	WCBindMW      WCOpcode = 5
	WCLocalInv    WCOpcode = 6
	WCFlush       WCOpcode = 8
	WCAtomicWrite WCOpcode = 9
	WCRecv        WCOpcode = 128
	WCRecvImm     WCOpcode = 129
)

// WCFlags is enum ibv_wc_flags.
type WCFlags uint32

const (
	WCGRH     WCFlags = 1
	WCWithImm WCFlags = 2
	WCWithInv WCFlags = 8
)

// CQE is one completion: struct ib_uverbs_wc, and a time.
type CQE struct {
	WRID      uint64
	Status    Status
	Opcode    WCOpcode
	VendorErr uint32
	ByteLen   uint32
	Imm       uint32 // as in SendWQE
	QPN       uint32
	SrcQP     uint32
	Flags     WCFlags
	PKeyIndex uint16
	SLID      uint16
	SL        uint8
	Time      uint64 // nanoseconds of the NIC's clock; behind what the stock provider reads
}

// StoreCQE writes c into the slot at position pos, without publishing it.
func (q *Queue) StoreCQE(pos uint32, c *CQE) (err error) {
	defer guard(&err)
	e := q.elem(pos)
	_ = e[55]
	le.PutUint64(e[0:], c.WRID)
	le.PutUint32(e[8:], uint32(c.Status))
	le.PutUint32(e[12:], uint32(c.Opcode))
	le.PutUint32(e[16:], c.VendorErr)
	le.PutUint32(e[20:], c.ByteLen)
	le.PutUint32(e[24:], c.Imm)
	le.PutUint32(e[28:], c.QPN)
	le.PutUint32(e[32:], c.SrcQP)
	le.PutUint32(e[36:], uint32(c.Flags))
	le.PutUint16(e[40:], c.PKeyIndex)
	le.PutUint16(e[42:], c.SLID)
	e[44], e[45], e[46], e[47] = c.SL, 0, 1, 0
	le.PutUint64(e[48:], c.Time)
	return nil
}

// LoadCQE reads the completion at position pos.
func (q *Queue) LoadCQE(pos uint32, c *CQE) {
	e := q.elem(pos)
	_ = e[55]
	*c = CQE{
		WRID: le.Uint64(e[0:]), Status: Status(le.Uint32(e[8:])), Opcode: WCOpcode(le.Uint32(e[12:])),
		VendorErr: le.Uint32(e[16:]), ByteLen: le.Uint32(e[20:]), Imm: le.Uint32(e[24:]),
		QPN: le.Uint32(e[28:]), SrcQP: le.Uint32(e[32:]), Flags: WCFlags(le.Uint32(e[36:])),
		PKeyIndex: le.Uint16(e[40:]), SLID: le.Uint16(e[42:]), SL: e[44], Time: le.Uint64(e[48:]),
	}
}
