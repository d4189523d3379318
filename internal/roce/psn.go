package roce

// PSN is a packet sequence number: 24 bits, counting modulo 2^24 (9.7). The upper eight bits
// of a PSN made by this package are zero.
type PSN uint32

// PSNMask covers the 24 bits of a PSN, an MSN or a queue pair number.
const PSNMask = 1<<24 - 1

// Add returns the PSN n packets later; n may be negative.
func (p PSN) Add(n int) PSN { return (p + PSN(uint32(n))) & PSNMask }

// Diff returns a - b as a signed 24-bit number: positive when a comes after b. The PSNs exactly
// half the space apart, which the window of 2^23 outstanding packets never reaches, give -2^23.
func Diff(a, b PSN) int32 { return int32(uint32(a-b)<<8) >> 8 }

// After reports whether p comes later than q.
func (p PSN) After(q PSN) bool { return Diff(p, q) > 0 }

// Before reports whether p comes earlier than q.
func (p PSN) Before(q PSN) bool { return Diff(p, q) < 0 }
