package testnet

import (
	"net/netip"
	"os"
)

// Loopback is a loopback address, the n-th of four, that only this process uses: the NICs of others listen on the same port. The packages whose
// tests run in one process at a time have a block of 32 networks each, which begins with 127.block.
func Loopback(block, n byte) netip.Addr {
	slot := os.Getpid() & (1<<19 - 1)
	return netip.AddrFrom4([4]byte{127, block + byte(slot>>14), byte(slot >> 6), byte(slot<<2) | n&3})
}
