package roce

// rnrTimerMicros is the encoding of the RNR NAK timer (9.7.5.2.8, table "RNR NAK timer field").
var rnrTimerMicros = [32]uint32{
	655360, 10, 20, 30, 40, 60, 80, 120,
	160, 240, 320, 480, 640, 960, 1280, 1920,
	2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720,
	40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
}

// RNRTimerNanos returns the time that an RNR NAK with this timer code asks the requester to wait.
// Only the five low bits of code count.
func RNRTimerNanos(code uint8) int64 { return int64(rnrTimerMicros[code&31]) * 1000 }

// TimeoutNanos returns the local ACK timeout of a code: 4.096 us * 2^code, and 0, which is no
// timeout, for code 0 (9.7.6.1.3). Only the five low bits of code count.
func TimeoutNanos(code uint8) int64 {
	code &= 31
	if code == 0 {
		return 0
	}
	return 4096 << code
}
