package nic

import "math/rand/v2"

// Keys and queue pair numbers are 24 bits that nobody should be able to guess from another one, and
// that should come back as late as possible: a packet or a work request that names a number of the
// past must not meet a new owner. A keyed permutation of a counter has both properties without a
// table: every number is used once before any is used again.

const (
	numberBits = 24
	numberMask = 1<<numberBits - 1
	// maxNumbers bounds the objects of a kind well below the numbers there are, so that a free one
	// is found at once.
	maxNumbers = 1 << 22

	halfBits      = numberBits / 2
	halfMask      = 1<<halfBits - 1
	feistelRounds = 6
)

// A keySpace hands out 24-bit numbers in an order that only its seed tells.
type keySpace struct {
	round [feistelRounds]uint64
	next  uint32
	cycle uint8 // how often all numbers have been handed out
}

func newKeySpace(rng *rand.Rand) keySpace {
	var s keySpace
	for i := range s.round {
		s.round[i] = rng.Uint64()
	}
	return s
}

// take returns the next number, and the cycle it belongs to: the same number comes again only in
// the next cycle, 2^24 calls later.
func (s *keySpace) take() (number uint32, cycle uint8) {
	number, cycle = s.permute(s.next), s.cycle
	s.next = (s.next + 1) & numberMask
	if s.next == 0 {
		s.cycle++
	}
	return number, cycle
}

// permute is a Feistel network: a permutation whatever its round function is.
func (s *keySpace) permute(x uint32) uint32 {
	l, r := x>>halfBits, x&halfMask
	for _, k := range s.round {
		l, r = r, l^uint32(mix64(uint64(r)^k))&halfMask
	}
	return l<<halfBits | r
}

// keyByte is the 8-bit key part for a number in a cycle: unrelated from number to number, and
// another one in each of 256 consecutive cycles.
func (s *keySpace) keyByte(number uint32, cycle uint8) uint8 {
	return uint8(mix64(uint64(number)^s.round[0]^s.round[1])) + cycle
}

// mix64 is the output function of SplitMix64 (Steele, Lea, Flood 2014).
func mix64(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// newMRKey finds a key whose index no live region has. A region's key is never the key of the
// region that had its index before (vol. 1, 10.6.3.3: the key part tells a stale key).
func (n *shared) newMRKey() uint32 {
	for {
		index, cycle := n.mrKeys.take()
		if index == 0 || n.mrs[index] != nil {
			continue // a key with index 0 could be 0, which programs take for "none"
		}
		return index<<8 | uint32(n.mrKeys.keyByte(index, cycle))
	}
}

// Queue pair numbers 0 and 1 are the management queue pairs and 0xffffff is the multicast one (vol. 1,
// 3.5.3, 9.2); below 256 nothing is handed out, so that numbers in dumps do not look like handles.
const (
	minQPN = 1 << 8
	maxQPN = numberMask - 1
)

// newQPN finds a number that no live queue pair has.
func (n *shared) newQPN() uint32 {
	for {
		num, _ := n.qpNums.take()
		if num >= minQPN && num <= maxQPN && n.qps[num] == nil {
			return num
		}
	}
}

// newAHNum finds a number that no live address handle has; never 0, which in a work request says
// that it carries the address itself.
func (n *shared) newAHNum() uint32 {
	for {
		n.ahNext++
		if n.ahNext != 0 && n.ahs[n.ahNext] == nil {
			return n.ahNext
		}
	}
}

// lookupMR finds the region of a key; nil if there is none. Rights and bounds are not checked.
func (n *shared) lookupMR(key uint32) *MR {
	if m := n.mrs[key>>8]; m != nil && (m.key == key || n.planted == PlantedStaleWindow && m.window != nil) {
		return m
	}
	return nil
}

// lookupLocal finds the region that a local key names; a memory window has none (10.6.7).
func (n *shared) lookupLocal(key uint32) *MR {
	if m := n.lookupMR(key); m != nil && m.window == nil {
		return m
	}
	return nil
}

// lookupQP finds a queue pair by its number; nil if there is none.
func (n *shared) lookupQP(num uint32) *QP { return n.qps[num] }

// lookupAH finds an address handle by its number; nil if there is none. Whether it is of the right
// protection domain is not checked.
func (n *shared) lookupAH(num uint32) *AH { return n.ahs[num] }
