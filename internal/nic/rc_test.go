package nic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"rnic/internal/ring"
)

func word(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

// 11.4.1.1, 9.4: what is posted to a reliable connection moves its bytes, of any length, and tells the receiver how many.
func TestEveryOperationMovesItsData(t *testing.T) {
	for _, size := range []int{0, 1, 3, 8, 1023, 1024, 1025, 5000, 65536, 300000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			b.recv(11, b.sge(0, size))
			b.recv(12, b.sge(0, 8))
			send := wr(1, ring.OpSendImm, a.sge(100, size))
			send.Imm = 0xdeadbeef
			write := remote(wr(2, ring.OpWrite, a.sge(200, size)), b, 400000)
			imm := remote(wr(3, ring.OpWriteImm, a.sge(300, size)), b, 700000)
			imm.Imm = 7
			read := remote(wr(4, ring.OpRead, a.sge(700000, size)), b, 1000)
			a.post(send, write, imm, read)
			w.run(second)
			a.want(t, "1:success", "2:success", "3:success", "4:success")
			got := b.poll()
			if len(got) != 2 || got[0].WRID != 11 || got[1].WRID != 12 {
				t.Fatalf("receives %+v", got)
			}
			if c := got[0]; c.ByteLen != uint32(size) || c.Opcode != ring.WCRecv || c.Flags != ring.WCWithImm || c.Imm != 0xdeadbeef {
				t.Errorf("receive of the SEND %+v", c)
			}
			if c := got[1]; c.ByteLen != uint32(size) || c.Opcode != ring.WCRecvImm || c.Imm != 7 {
				t.Errorf("receive of the WRITE %+v", c)
			}
			for _, m := range [][2][]byte{{a.bytes(100, size), b.bytes(0, size)}, {a.bytes(200, size), b.bytes(400000, size)},
				{a.bytes(300, size), b.bytes(700000, size)}, {a.bytes(700000, size), b.bytes(1000, size)}} {
				if !bytes.Equal(m[0], m[1]) {
					t.Errorf("data differ")
				}
			}
		})
	}
}

// 9.4.5: the atomics return the word found, and store in the host's byte order.
func TestAtomics(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	binary.NativeEndian.PutUint64(b.bytes(64, 8), 40)
	add := remote(wr(1, ring.OpFetchAdd, a.sge(0, 8)), b, 64)
	add.CompareAdd = 2
	cas := remote(wr(2, ring.OpCompareSwap, a.sge(8, 8)), b, 64)
	cas.CompareAdd, cas.Swap = 42, 1<<40
	miss := remote(wr(3, ring.OpCompareSwap, a.sge(16, 8)), b, 64)
	miss.CompareAdd, miss.Swap = 42, 5
	a.post(add, cas, miss)
	w.run(second)
	a.want(t, "1:success", "2:success", "3:success")
	if x, y, z := word(a.bytes(0, 8)), word(a.bytes(8, 8)), word(a.bytes(16, 8)); x != 40 || y != 42 || z != 1<<40 {
		t.Errorf("old values %d %d %d", x, y, z)
	}
	if v := word(b.bytes(64, 8)); v != 1<<40 {
		t.Errorf("the word is %d", v)
	}
}
