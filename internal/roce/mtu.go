package roce

// MTUBytes returns the bytes of a path MTU code (IBV_MTU_256 = 1 to IBV_MTU_4096 = 5), 0 if it is none.
func MTUBytes(code uint8) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// MTUCode returns the code of a path MTU of exactly so many bytes, 0 if there is none.
func MTUCode(bytes int) uint8 {
	for code := uint8(1); code <= 5; code++ {
		if MTUBytes(code) == bytes {
			return code
		}
	}
	return 0
}
