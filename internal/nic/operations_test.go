package nic

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// from are the packets that h sent, in order.
func (w *wire) from(h *host) (all []frame) {
	for _, f := range w.log {
		if f.from == h {
			all = append(all, f)
		}
	}
	return all
}

// wantPackets checks the opcodes of frames, and that their PSNs count up from psn.
func wantPackets(t *testing.T, frames []frame, psn roce.PSN, want ...roce.Opcode) {
	t.Helper()
	var ops []roce.Opcode
	for i, f := range frames {
		ops = append(ops, f.op)
		if f.psn != psn+roce.PSN(i) {
			t.Errorf("packet %d, %v: PSN %d, want %d", i, f.op, f.psn, psn+roce.PSN(i))
		}
	}
	if !slices.Equal(ops, want) {
		t.Fatalf("packets %v, want %v", ops, want)
	}
}

// cut are the lengths of the payloads of a message of n bytes.
func cut(n, mtu int) (lengths []int) {
	for ; n > mtu; n -= mtu {
		lengths = append(lengths, mtu)
	}
	return append(lengths, n)
}

// sequence are the opcodes of a message of n packets: one alone, or first, middle and last.
func sequence(n int, first, middle, last, only roce.Opcode) []roce.Opcode {
	if n == 1 {
		return []roce.Opcode{only}
	}
	return slices.Concat([]roce.Opcode{first}, slices.Repeat([]roce.Opcode{middle}, n-2), []roce.Opcode{last})
}

// 9.2.1, 9.4.1, 9.4.3: SEND and RDMA WRITE as a peer sees them: packets of the path MTU with the opcodes of their place
// in the message and consecutive PSNs; address, key and length of the whole in the first packet of a WRITE, immediate
// data and the solicited event in the last alone; payloads padded to four bytes. The last answer is an ACK of the last PSN.
func TestPacketsOfSendsAndWrites(t *testing.T) {
	for _, c := range []struct {
		op                        ring.SendOpcode
		first, middle, last, only roce.Opcode
	}{
		{ring.OpSend, roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast, roce.RCSendOnly},
		{ring.OpSendImm, roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastImm, roce.RCSendOnlyImm},
		{ring.OpWrite, roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLast, roce.RCWriteOnly},
		{ring.OpWriteImm, roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLastImm, roce.RCWriteOnlyImm},
	} {
		for _, n := range []int{0, 1, 1024, 1025, 3070} {
			t.Run(fmt.Sprint(c.op, " ", n), func(t *testing.T) {
				w, a, b := connected(t, Config{}, nil)
				b.recv(1, b.sge(8192, 4096))
				s := remote(wr(1, c.op, a.sge(5, n)), b, 16384)
				s.Imm, s.Flags = 0x01020304, s.Flags|ring.SendSolicited
				a.post(s)
				w.run(second)
				a.want(t, "1:success")
				lengths, sent := cut(n, 1024), w.from(a.h)
				wantPackets(t, sent, 100, sequence(len(lengths), c.first, c.middle, c.last, c.only)...)
				var data []byte
				for i, f := range sent {
					p, h := f.packet(), roce.BTH(f.data)
					last := i == len(sent)-1
					if len(p.Payload) != lengths[i] || h.PadCount() != roce.PadCount(lengths[i]) || h.DestQP() != b.q.Num() {
						t.Errorf("packet %d: %d bytes, %d of padding, for queue pair %#x", i, len(p.Payload), h.PadCount(), h.DestQP())
					}
					if h.Solicited() != (last && c.op != ring.OpWrite) || last && !h.AckReq() {
						t.Errorf("packet %d: solicited %v, acknowledge request %v", i, h.Solicited(), h.AckReq())
					}
					if p.Info.HasRETH && (i != 0 || p.RETH().Fields() != roce.RETHFields{VA: s.RemoteAddr, RKey: s.RKey, Length: uint32(n)}) {
						t.Errorf("packet %d: %+v", i, p.RETH().Fields())
					}
					if p.Info.HasImm && p.ImmDt().Imm() != 0x04030201 { // the ring has the bytes as they are sent
						t.Errorf("packet %d: immediate data %#x", i, p.ImmDt().Imm())
					}
					data = append(data, p.Payload...)
				}
				if !bytes.Equal(data, a.bytes(5, n)) {
					t.Error("the payloads are not the message")
				}
				answers := w.from(b.h)
				for _, f := range answers {
					if f.op != roce.RCAck {
						t.Errorf("it is answered by %v", f.op)
					}
				}
				final := answers[len(answers)-1]
				if p := final.packet(); final.psn != roce.PSN(100+len(lengths)-1) || p.AETH().Syndrome().Kind() != roce.SyndromeACK || p.AETH().MSN() != 1 {
					t.Errorf("the last answer has PSN %d and %+v", final.psn, p.AETH().Fields())
				}
			})
		}
	}
}

// 9.2.1, 9.4.4: RDMA READ as a peer sees it: one request, and responses of the path MTU that carry the request's PSN and
// those behind it, which the next request leaves free. First, last and only responses carry an AETH.
func TestPacketsOfReads(t *testing.T) {
	for _, n := range []int{0, 7, 1024, 1025, 3070} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			a.post(remote(wr(1, ring.OpRead, a.sge(0, n)), b, 16384))
			w.run(second)
			a.want(t, "1:success")
			asked := w.from(a.h)
			wantPackets(t, asked, 100, roce.RCReadRequest)
			p := asked[0].packet()
			if len(p.Payload) != 0 || p.RETH().Fields() != (roce.RETHFields{VA: memBase + 16384, RKey: b.h.mr.RKey(), Length: uint32(n)}) {
				t.Errorf("the request has %d bytes and %+v", len(p.Payload), p.RETH().Fields())
			}
			lengths, answers := cut(n, 1024), w.from(b.h)
			wantPackets(t, answers, 100, sequence(len(lengths), roce.RCReadResponseFirst, roce.RCReadResponseMiddle,
				roce.RCReadResponseLast, roce.RCReadResponseOnly)...)
			var data []byte
			for i, f := range answers {
				p := f.packet()
				if len(p.Payload) != lengths[i] || p.Info.HasAETH && (p.AETH().Syndrome().Kind() != roce.SyndromeACK || p.AETH().MSN() != 1) {
					t.Errorf("response %d has %d bytes", i, len(p.Payload))
				}
				data = append(data, p.Payload...)
			}
			if !bytes.Equal(data, b.bytes(16384, n)) || !bytes.Equal(data, a.bytes(0, n)) {
				t.Error("the responses are not what was asked for")
			}
			w.log = nil
			a.post(remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0))
			w.run(second)
			wantPackets(t, w.from(a.h), roce.PSN(100+len(lengths)), roce.RCWriteOnly)
		})
	}
}

// 9.2.1, 9.4.5: atomics as a peer sees them: one packet with address, key and operands and no payload; the answer has
// the request's PSN and the word that was found.
func TestPacketsOfAtomics(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	add := remote(wr(1, ring.OpFetchAdd, a.sge(0, 8)), b, 4096)
	add.CompareAdd = 0x1122334455667788
	swap := remote(wr(2, ring.OpCompareSwap, a.sge(8, 8)), b, 4096)
	found := word(b.bytes(4096, 8))
	sum := found + add.CompareAdd
	swap.CompareAdd, swap.Swap = sum, 42
	a.post(add, swap)
	w.run(second)
	a.want(t, "1:success", "2:success")
	asked, answers := w.from(a.h), w.from(b.h)
	wantPackets(t, asked, 100, roce.RCFetchAdd, roce.RCCmpSwap)
	wantPackets(t, answers, 100, roce.RCAtomicAck, roce.RCAtomicAck)
	for i, want := range []roce.AtomicETHFields{{SwapAdd: add.CompareAdd}, {SwapAdd: 42, Compare: sum}} {
		want.VA, want.RKey = memBase+4096, b.h.mr.RKey()
		p, answer := asked[i].packet(), answers[i].packet()
		if i == 0 {
			want.Compare = p.AtomicETH().Compare() // of no meaning
		}
		if p.AtomicETH().Fields() != want || len(p.Payload) != 0 {
			t.Errorf("request %d: %+v, want %+v", i, p.AtomicETH().Fields(), want)
		}
		if got, want := answer.AtomicAckETH().Orig(), []uint64{found, sum}[i]; got != want || answer.AETH().MSN() != uint32(i+1) {
			t.Errorf("answer %d: %#x, message %d, want %#x", i, got, answer.AETH().MSN(), want)
		}
	}
	if word(b.bytes(4096, 8)) != 42 {
		t.Errorf("the word is %#x", word(b.bytes(4096, 8)))
	}
}
