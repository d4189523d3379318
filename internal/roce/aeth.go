package roce

// AETHSize is the size of an ACK extended transport header in bytes.
const AETHSize = 4

// AETH is an ACK extended transport header (9.3). Its methods need AETHSize bytes.
type AETH []byte

// AETHFields are the fields of an AETH.
type AETHFields struct {
	Syndrome Syndrome
	MSN      uint32 // message sequence number, 24 bits
}

// Syndrome returns what kind of acknowledge it is.
func (h AETH) Syndrome() Syndrome { return Syndrome(h[0]) }

// MSN returns the message sequence number, 24 bits.
func (h AETH) MSN() uint32 { return be24(h[1:]) }

// Fields returns all fields.
func (h AETH) Fields() AETHFields { return AETHFields{Syndrome: h.Syndrome(), MSN: h.MSN()} }

// Encode writes all fields.
func (h AETH) Encode(f *AETHFields) {
	_ = h[AETHSize-1]
	h[0] = byte(f.Syndrome)
	putBE24(h[1:], f.MSN)
}

// Syndrome is the first byte of an AETH (9.7.5): bits 6 and 5 give the kind, bits 4 to 0 its
// value. Bit 7 is reserved and ignored.
type Syndrome uint8

// SyndromeKind is what an AETH means.
type SyndromeKind uint8

// The kinds of AETH.
const (
	SyndromeACK      SyndromeKind = 0 // the value is a credit code
	SyndromeRNRNAK   SyndromeKind = 1 // the value is an RNR timer code
	SyndromeReserved SyndromeKind = 2
	SyndromeNAK      SyndromeKind = 3 // the value is a NAK code
)

// The syndromes of a NAK (9.7.5.2).
const (
	NAKSequence          Syndrome = 0x60 // PSN sequence error
	NAKInvalidRequest    Syndrome = 0x61
	NAKRemoteAccess      Syndrome = 0x62
	NAKRemoteOperational Syndrome = 0x63
	NAKInvalidRDRequest  Syndrome = 0x64
)

// CreditsUnlimited is the credit code that sets no limit (9.7.7.2).
const CreditsUnlimited = 31

// ACKSyndrome returns the syndrome of an ACK with a credit code.
func ACKSyndrome(creditCode uint8) Syndrome { return Syndrome(creditCode & 31) }

// RNRSyndrome returns the syndrome of an RNR NAK with a timer code, see RNRTimerNanos.
func RNRSyndrome(timerCode uint8) Syndrome { return 0x20 | Syndrome(timerCode&31) }

// Kind returns the kind.
func (s Syndrome) Kind() SyndromeKind { return SyndromeKind(s >> 5 & 3) }

// Value returns the low five bits: credit code, RNR timer code or NAK code.
func (s Syndrome) Value() uint8 { return uint8(s & 31) }

// credits is the encoding of the credits of end-to-end flow control (9.7.7.2).
var credits = [31]uint16{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// Credits returns the number of receive requests that a credit code announces; limited is false
// for CreditsUnlimited.
func Credits(code uint8) (n int, limited bool) {
	if code &= 31; code == CreditsUnlimited {
		return 0, false
	}
	return int(credits[code]), true
}

// CreditCode returns the code of the greatest number of credits that is at most n.
func CreditCode(n int) uint8 {
	for code := len(credits) - 1; code > 0; code-- {
		if int(credits[code]) <= n {
			return uint8(code)
		}
	}
	return 0
}

// String is the syndrome in the specification's words.
func (s Syndrome) String() string {
	switch s.Kind() {
	case SyndromeACK:
		return "ACK"
	case SyndromeRNRNAK:
		return "RNR NAK"
	case SyndromeNAK:
		switch s &^ 0x80 {
		case NAKSequence:
			return "PSN sequence error"
		case NAKInvalidRequest:
			return "invalid request"
		case NAKRemoteAccess:
			return "remote access error"
		case NAKRemoteOperational:
			return "remote operational error"
		case NAKInvalidRDRequest:
			return "invalid RD request"
		}
	}
	const hex = "0123456789abcdef"
	return "reserved syndrome 0x" + string([]byte{hex[s>>4], hex[s&15]})
}
