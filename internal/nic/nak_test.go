package nic

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// fromPeer is a packet as the peer of e would send it.
func (e *end) fromPeer(op roce.Opcode, psn roce.PSN, payload int, set func(info *roce.OpInfo, pkt []byte)) []byte {
	info := op.Info()
	pkt := make([]byte, info.HeaderLen+payload+int(roce.PadCount(payload)))
	roce.BTH(pkt).Encode(&roce.BTHFields{Opcode: op, PadCount: roce.PadCount(payload), PKey: 0xffff, DestQP: e.q.Num(), AckReq: true, PSN: psn})
	if set != nil {
		set(info, pkt)
	}
	return pkt
}

func (e *end) pathFrom(peer *end) roce.Path {
	return roce.Path{Src: peer.h.addr, Dst: e.h.addr, SrcPort: 50000, TTL: 64}
}

func reth(va uint64, key, length uint32) func(*roce.OpInfo, []byte) {
	return func(i *roce.OpInfo, p []byte) {
		i.RETH(p).Encode(&roce.RETHFields{VA: va, RKey: key, Length: length})
	}
}

// 9.7.4.1: an opcode that cannot follow the one before is an invalid request; so is a packet of
// the wrong length (9.7.4.1). The queue pair is in error, its program gets an event (11.6.3: invalid request).
func TestInvalidRequests(t *testing.T) {
	type packet struct {
		op      roce.Opcode
		payload int
		length  uint32
	}
	for _, c := range []struct {
		name string
		pkts []packet
	}{
		{"middle without first", []packet{{roce.RCSendMiddle, 1024, 0}}},
		{"last without first", []packet{{roce.RCWriteLast, 8, 0}}},
		{"first twice", []packet{{roce.RCSendFirst, 1024, 0}, {roce.RCSendFirst, 1024, 0}}},
		{"write middle in a send", []packet{{roce.RCSendFirst, 1024, 0}, {roce.RCWriteMiddle, 1024, 0}}},
		{"only in a write", []packet{{roce.RCWriteFirst, 1024, 4096}, {roce.RCWriteOnly, 8, 8}}},
		{"read in a write", []packet{{roce.RCWriteFirst, 1024, 4096}, {roce.RCReadRequest, 0, 8}}},
		{"atomic in a send", []packet{{roce.RCSendFirst, 1024, 0}, {roce.RCFetchAdd, 0, 0}}},
		{"first shorter than the MTU", []packet{{roce.RCSendFirst, 1020, 0}}},
		{"middle longer than the MTU", []packet{{roce.RCSendFirst, 1024, 0}, {roce.RCSendMiddle, 1028, 0}}},
		{"last empty", []packet{{roce.RCSendFirst, 1024, 0}, {roce.RCSendLast, 0, 0}}},
		{"only longer than the MTU", []packet{{roce.RCSendOnly, 1025, 0}}},
		{"write only of another length", []packet{{roce.RCWriteOnly, 8, 9}}},
		{"write first of a whole message", []packet{{roce.RCWriteFirst, 1024, 1024}}},
		{"write longer than announced", []packet{{roce.RCWriteFirst, 1024, 1030}, {roce.RCWriteLast, 8, 0}}},
		{"write shorter than announced", []packet{{roce.RCWriteFirst, 1024, 1030}, {roce.RCWriteLast, 4, 0}}},
		{"write middle beyond what was announced", []packet{{roce.RCWriteFirst, 1024, 2048}, {roce.RCWriteMiddle, 1024, 0}}},
		{"unaligned atomic", []packet{{roce.RCFetchAdd, 0, 3}}},
		{"message larger than the device's limit", []packet{{roce.RCWriteFirst, 1024, 1<<30 + 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			b.recv(1, b.sge(0, 8192))
			before := bytes.Clone(b.h.mem.Mem[8192:])
			for i, p := range c.pkts {
				b.h.inject(b.pathFrom(a), b.fromPeer(p.op, roce.PSN(100+i), p.payload, func(info *roce.OpInfo, pkt []byte) {
					switch {
					case info.HasRETH:
						reth(memBase+8192+4096, b.h.mr.RKey(), p.length)(info, pkt)
					case info.HasAtomicETH:
						info.AtomicETH(pkt).Encode(&roce.AtomicETHFields{VA: memBase + 8192 + uint64(p.length), RKey: b.h.mr.RKey(), SwapAdd: 1})
					}
				}))
			}
			w.run(1e6)
			nak := w.log[len(w.log)-1]
			if p := nak.packet(); nak.op != roce.RCAck || p.AETH().Syndrome() != roce.NAKInvalidRequest || nak.psn != roce.PSN(100+len(c.pkts)-1) {
				t.Errorf("answer %v %x psn %d, want an invalid request NAK for the last packet", nak.op, p.AETH().Syndrome(), nak.psn)
			}
			if b.q.State() != Err || b.h.events(EventQPReqErr) != 1 {
				t.Errorf("state %v, %d events", b.q.State(), b.h.events(EventQPReqErr))
			}
			b.want(t, "1:work request flushed error")
			// What was legal before the offending packet may have landed, nothing else.
			landed := 1024 * (len(c.pkts) - 1)
			for i := range before {
				if before[i] != b.h.mem.Mem[8192+i] && (i < 4096 || i >= 4096+landed) {
					t.Fatalf("byte %d of the memory has changed", i)
				}
			}
		})
	}
}

// 9.7.5.2, 10.6.3: a key, range or right that does not hold is answered at once with a remote
// access error and nothing is touched; the requester completes with it, what stands behind is
// flushed, what stands before is done. The responder's program gets an event (11.6.3: access violation).
func TestRemoteAccessErrors(t *testing.T) {
	type request func(a, b *end) *ring.SendWQE
	with := func(op ring.SendOpcode, addr uint64, n int) request {
		return func(a, b *end) *ring.SendWQE {
			s := wr(2, op, a.sge(0, n))
			s.RemoteAddr, s.RKey = addr, b.h.mr.RKey()
			return s
		}
	}
	type testCase struct {
		name   string
		req    request
		access Access // of the responder's queue pair
		region Access // of its region
	}
	cases := []testCase{}
	for _, op := range []ring.SendOpcode{ring.OpWrite, ring.OpRead, ring.OpFetchAdd, ring.OpCompareSwap} {
		n := 16
		if op == ring.OpFetchAdd || op == ring.OpCompareSwap {
			n = 8
		}
		need := map[ring.SendOpcode]Access{ring.OpWrite: AccessRemoteWrite, ring.OpRead: AccessRemoteRead}[op]
		if need == 0 {
			need = AccessRemoteAtomic
		}
		cases = append(cases,
			testCase{fmt.Sprint(op, " below"), with(op, memBase-8, n), allAccess, allAccess},
			testCase{fmt.Sprint(op, " above"), with(op, memBase+1<<20-uint64(n)+8, n), allAccess, allAccess},
			testCase{fmt.Sprint(op, " wraps"), with(op, math.MaxUint64-7, n), allAccess, allAccess},
			testCase{fmt.Sprint(op, " unknown key"), func(a, b *end) *ring.SendWQE {
				s := with(op, memBase, n)(a, b)
				s.RKey ^= 0x100
				return s
			}, allAccess, allAccess},
			testCase{fmt.Sprint(op, " key part"), func(a, b *end) *ring.SendWQE {
				s := with(op, memBase, n)(a, b)
				s.RKey ^= 1
				return s
			}, allAccess, allAccess},
			testCase{fmt.Sprint(op, " region"), with(op, memBase, n), allAccess, allAccess &^ need},
			testCase{fmt.Sprint(op, " deregistered"), func(a, b *end) *ring.SendWQE {
				_ = b.h.mr.Dereg()
				return with(op, memBase, n)(a, b)
			}, allAccess, allAccess},
			testCase{fmt.Sprint(op, " protection domain"), func(a, b *end) *ring.SendWQE {
				mr, err := b.h.n.RegMR(mustPD(b.h.w.t, b.h.n), b.h.mem, memBase, 4096, memBase, allAccess)
				if err != nil {
					b.h.w.t.Fatalf("%v", err)
				}
				s := with(op, memBase, n)(a, b)
				s.RKey = mr.RKey()
				return s
			}, allAccess, allAccess},
		)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWire(t, Config{}, Config{})
			a, b := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63)
			a.to(RTS, defaultAttr(), b)
			attr := defaultAttr()
			attr.AccessFlags = c.access
			b.to(RTS, attr, a)
			good := b.h.mr
			var err error
			if b.h.mr, err = b.h.n.RegMR(b.h.pd, b.h.mem, memBase, 1<<20, memBase, c.region); err != nil {
				t.Fatal(err)
			}
			first := wr(1, ring.OpSend, a.sge(64, 64))
			b.recv(1, ring.SGE{Addr: memBase + 500000, Length: 64, LKey: good.LKey()})
			before := bytes.Clone(b.h.mem.Mem[:500000])
			a.post(first, c.req(a, b), remote(wr(3, ring.OpWrite, a.sge(0, 8)), b, 0), wr(4, ring.OpSend, a.sge(0, 8)))
			start := w.now
			w.run(1e6)
			a.want(t, "1:success", "2:remote access error", "3:work request flushed error", "4:work request flushed error")
			if !slices.Contains(w.syndromes(b.h), roce.NAKRemoteAccess) || w.now-start > 2e6 {
				t.Errorf("no remote access NAK within a round trip: %x", w.syndromes(b.h))
			}
			if b.q.State() != Err || b.h.events(EventQPAccessErr) != 1 {
				t.Errorf("responder: state %v, %d access events", b.q.State(), b.h.events(EventQPAccessErr))
			}
			if !bytes.Equal(before, b.h.mem.Mem[:500000]) {
				t.Error("memory was touched")
			}
		})
	}
}

// 9.7.4.1, 11.6.2: a request for a function that the responder's queue pair is not set up for is an invalid request, also without
// data, as to Linux's Soft-RoCE (rxe_resp.c, check_op_valid); the responder's program gets the request error event (11.6.3).
func TestQueuePairThatIsNotSetUpForIt(t *testing.T) {
	for op, need := range map[ring.SendOpcode]Access{ring.OpWrite: AccessRemoteWrite, ring.OpRead: AccessRemoteRead, ring.OpFetchAdd: AccessRemoteAtomic,
		ring.OpCompareSwap: AccessRemoteAtomic, ring.OpAtomicWrite: AccessRemoteWrite, ring.OpFlush: AccessFlushGlobal} {
		for _, n := range []int{8, 0} {
			w := newWire(t, Config{}, Config{})
			a, b := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63)
			a.to(RTS, defaultAttr(), b)
			attr := defaultAttr()
			attr.AccessFlags = allAccess &^ need
			b.to(RTS, attr, a)
			req := remote(wr(1, op, a.sge(0, n)), b, 0)
			switch op {
			case ring.OpFlush:
				req = flushOf(1, b.h.mr.RKey(), memBase, uint32(n), roce.PlaceGlobal, roce.SelectRange)
			case ring.OpAtomicWrite:
				req = atomicWrite(1, "12345678", b, 0)
			case ring.OpWrite, ring.OpRead:
			default:
				if n == 0 {
					continue
				}
			}
			a.post(req)
			w.run(1e6)
			a.want(t, "1:remote invalid request error")
			if b.q.State() != Err || b.h.events(EventQPReqErr) != 1 || b.h.events(EventQPAccessErr) != 0 {
				t.Errorf("%v of %d bytes: state %v, %d request error events", op, n, b.q.State(), b.h.events(EventQPReqErr))
			}
		}
	}
}

// 9.4.3, 9.4.4: a request of zero bytes is fine whatever its key says.
func TestZeroLengthNeedsNoKey(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	write, read := wr(1, ring.OpWrite), wr(2, ring.OpRead)
	write.RKey, write.RemoteAddr, read.RKey = 0x1234567, math.MaxUint64, 0x7654321
	a.post(write, read)
	w.run(second)
	a.want(t, "1:success", "2:success")
	_ = b
}

// A page that is not there: the packet that touches it is refused with the remote access error, the
// messages before it are done, those behind are flushed; the other queue pair goes on.
func TestTargetFaultRefusesExactlyThatPacket(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a2, b2 := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63)
	a2.to(RTS, defaultAttr(), b2)
	b2.to(RTS, defaultAttr(), a2)
	b.h.mem.Holes = []hostmem.Range{{Addr: memBase + 20000, Len: 4096}}
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 8000)), b, 0), remote(wr(2, ring.OpWrite, a.sge(8000, 8000)), b, 8000),
		remote(wr(3, ring.OpWrite, a.sge(16000, 8000)), b, 16000), remote(wr(4, ring.OpWrite, a.sge(0, 8)), b, 0))
	a2.post(remote(wr(1, ring.OpWrite, a.sge(0, 8000)), b, 100000), remote(wr(2, ring.OpWrite, a.sge(0, 8000)), b, 200000))
	w.run(second)
	a.want(t, "1:success", "2:success", "3:remote access error", "4:work request flushed error")
	a2.want(t, "1:success", "2:success")
	if !bytes.Equal(a.bytes(0, 16000+3*1024), b.bytes(0, 16000+3*1024)) {
		t.Error("what came before the fault is not there")
	}
	// 16000 bytes are 2 messages of 8 packets; 20000 lies in the fourth packet of the third.
	i := slices.IndexFunc(w.log, func(f frame) bool {
		return f.from == b.h && f.op == roce.RCAck && func() bool { p := f.packet(); return p.AETH().Syndrome() == roce.NAKRemoteAccess }()
	})
	if i < 0 || w.log[i].psn != 100+8+8+3 {
		t.Errorf("NAK with PSN %v, want %d", w.log[max(i, 0)].psn, 100+8+8+3)
	}
	if b.q.State() != Err || b2.q.State() != RTS {
		t.Errorf("states %v, %v", b.q.State(), b2.q.State())
	}
}

// 9.7.5.2: a receive buffer that is not accessible is the responder's own fault: local protection
// error there, remote operational error at the requester.
func TestReceiveBufferFaults(t *testing.T) {
	for name, sge := range map[string]func(b *end) ring.SGE{
		"key":  func(b *end) ring.SGE { s := b.sge(0, 100); s.LKey ^= 1; return s },
		"page": func(b *end) ring.SGE { return b.sge(50000, 100) },
		"bounds": func(b *end) ring.SGE {
			return ring.SGE{Addr: math.MaxUint64 - 10, Length: 100, LKey: b.h.mr.LKey()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			b.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50000, Len: 10}}
			b.recv(1, b.sge(0, 100))
			b.recv(2, sge(b))
			b.recv(3, b.sge(0, 100))
			a.post(wr(1, ring.OpSend, a.sge(0, 100)), wr(2, ring.OpSend, a.sge(0, 100)), wr(3, ring.OpSend, a.sge(0, 100)))
			w.run(second)
			a.want(t, "1:success", "2:remote operation error", "3:work request flushed error")
			b.want(t, "1:success", "2:local protection error", "3:work request flushed error")
		})
	}
}

// 9.7.4.1: a SEND longer than the receive buffers is an invalid request, and a local length error
// at the receiver.
func TestSendLongerThanReceive(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	b.recv(1, b.sge(0, 2000))
	b.recv(2, b.sge(0, 2000))
	a.post(wr(1, ring.OpSend, a.sge(0, 2001)))
	before := bytes.Clone(b.bytes(2000, 100))
	w.run(second)
	a.want(t, "1:remote invalid request error")
	b.want(t, "1:local length error", "2:work request flushed error")
	if !bytes.Equal(before, b.bytes(2000, 100)) {
		t.Error("bytes behind the buffer were touched")
	}
}

// A source page that is not there fails its request with a local protection error; before it all is
// done, behind it all is flushed.
func TestSourceFault(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50000, Len: 10}}
	bad := a.sge(40000, 20000)
	key := a.sge(0, 8)
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 20000)), b, 0), remote(wr(2, ring.OpWrite, bad), b, 40000), remote(wr(3, ring.OpWrite, key), b, 0))
	w.run(second)
	a.want(t, "1:success", "2:local protection error", "3:work request flushed error")
	if !bytes.Equal(a.bytes(0, 20000), b.bytes(0, 20000)) {
		t.Error("data differ")
	}
}

// A READ whose data cannot be read is a remote access error; one whose data cannot be stored is a
// local protection error.
func TestReadFaults(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	b.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50000, Len: 10}}
	a.post(remote(wr(1, ring.OpRead, a.sge(0, 3000)), b, 0), remote(wr(2, ring.OpRead, a.sge(3000, 20000)), b, 40000), remote(wr(3, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(second)
	a.want(t, "1:success", "2:remote access error", "3:work request flushed error")

	w, a, b = connected(t, Config{}, nil)
	a.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50000, Len: 10}}
	a.post(remote(wr(1, ring.OpRead, a.sge(0, 3000)), b, 0), remote(wr(2, ring.OpRead, a.sge(40000, 20000)), b, 40000), remote(wr(3, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(second)
	a.want(t, "1:success", "2:local protection error", "3:work request flushed error")
	add := remote(wr(1, ring.OpFetchAdd, a.sge(50000, 8)), b, 0)
	w, a, b = connected(t, Config{}, nil)
	a.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50000, Len: 10}}
	add.SGE[0].LKey, add.RKey = a.h.mr.LKey(), b.h.mr.RKey()
	a.post(add)
	w.run(second)
	a.want(t, "1:local protection error")
}

// An atomic on a page that is not there.
func TestAtomicTargetFault(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	b.h.mem.Holes = []hostmem.Range{{Addr: memBase + 4096, Len: 8}}
	a.post(remote(wr(1, ring.OpFetchAdd, a.sge(0, 8)), b, 0), remote(wr(2, ring.OpFetchAdd, a.sge(8, 8)), b, 4096), remote(wr(3, ring.OpFetchAdd, a.sge(8, 8)), b, 0))
	w.run(second)
	a.want(t, "1:success", "2:remote access error", "3:work request flushed error")
}

// 9.7.4.1, 9.4.4: more READs than max_dest_rd_atomic are an invalid request.
func TestMoreReadsThanTheResponderTakes(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	a, b := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63)
	attr := defaultAttr()
	attr.MaxDestRDAtomic = 2
	a.to(RTS, defaultAttr(), b) // 4 as initiator
	b.to(RTS, attr, a)
	var reqs []*ring.SendWQE
	for i := range 4 {
		reqs = append(reqs, remote(wr(uint64(i+1), ring.OpRead, a.sge(0, 100)), b, 0))
	}
	a.post(reqs...)
	w.run(second)
	a.want(t, "1:success", "2:success", "3:remote invalid request error", "4:work request flushed error")

	w, a, b = connected(t, Config{}, func(at *Attr) { at.MaxDestRDAtomic = 0 })
	a.post(remote(wr(1, ring.OpFetchAdd, a.sge(0, 8)), b, 0))
	w.run(second)
	a.want(t, "1:remote invalid request error")
}

// The NAK codes that a peer may send, and the statuses that they lead to (9.7.5.2, 11.6.2).
func TestStatusOfEachNAK(t *testing.T) {
	for s, want := range map[roce.Syndrome]string{
		roce.NAKInvalidRequest:    "remote invalid request error",
		roce.NAKRemoteAccess:      "remote access error",
		roce.NAKRemoteOperational: "remote operation error",
		roce.NAKInvalidRDRequest:  "remote invalid RD request",
	} {
		w, a, b := connected(t, Config{}, nil)
		w.drop = func(f frame) bool { return f.from == a.h } // the test answers
		a.post(remote(wr(1, ring.OpWrite, a.sge(0, 10)), b, 0), remote(wr(2, ring.OpWrite, a.sge(0, 10)), b, 0), remote(wr(3, ring.OpWrite, a.sge(0, 10)), b, 0))
		w.settle()
		a.h.inject(a.pathFrom(b), a.fromPeer(roce.RCAck, 101, 0, func(i *roce.OpInfo, p []byte) {
			i.AETH(p).Encode(&roce.AETHFields{Syndrome: s, MSN: 1})
		}))
		w.settle()
		a.want(t, "1:success", "2:"+want, "3:work request flushed error")
		if a.q.State() != Err {
			t.Errorf("%x: state %v", s, a.q.State())
		}
	}
}

// 9.7.5.2: a WRITE with immediate whose receive request is no good is refused itself, not the
// request behind it: it must not complete at the requester, and the requester must not wait for ever.
func TestBadReceiveOfWriteWithImmediate(t *testing.T) {
	for _, n := range []int{0, 100, 3000} {
		w, a, b := connected(t, Config{Policy: Policy{NoEarlyResend: true}}, nil)
		b.recv(9, b.sge(0, 8))
		elem := b.rq.Bytes()[ring.HeaderSize:]
		elem[28], elem[29] = 0xff, 0xff // the number of its entries
		a.post(remote(wr(1, ring.OpWriteImm, a.sge(0, n)), b, 0), wr(2, ring.OpSend))
		w.settle()
		a.want(t, "1:remote operation error", "2:work request flushed error")
		b.want(t, "9:local QP operation error")
	}
}

// 9.7.7: no message is larger than 2^31 bytes, or than the device's limit, whatever the receive's
// buffers hold.
func TestSendLongerThanTheLimit(t *testing.T) {
	w, a, b := connected(t, Config{Limits: Limits{MaxMsgSize: 4096}}, nil)
	b.recv(9, b.sge(0, 8192))
	path := b.pathFrom(a)
	for i, op := range []roce.Opcode{roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendMiddle, roce.RCSendMiddle, roce.RCSendLast} {
		b.h.inject(path, b.fromPeer(op, roce.PSN(100+i), 1024, nil))
	}
	w.settle()
	b.want(t, "9:local length error")
	if s := w.syndromes(b.h); len(s) == 0 || s[len(s)-1] != roce.NAKInvalidRequest {
		t.Errorf("answers %x", s)
	}
}

// 9.7.5.1: a duplicate READ asks for a part of one that was executed. A length that goes round the
// PSN space is none.
func TestDuplicateReadLongerThanTheSpaceOfPSNs(t *testing.T) {
	w, a, b := connected(t, Config{}, func(at *Attr) { at.PathMTU = 1 })
	mr, err := b.h.n.RegMR(b.h.pd, vast{b.h.mem}, 0, 1<<33, 0, AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	path := b.pathFrom(a)
	b.h.inject(path, b.fromPeer(roce.RCReadRequest, 100, 0, reth(memBase, mr.RKey(), 1024)))
	w.settle()
	if n := w.countOp(roce.RCReadResponseMiddle); n != 2 {
		t.Fatalf("%d packets in the middle of the response", n)
	}
	for _, length := range []uint32{1<<32 - 1, 1 << 31, 1<<31 + 1024, 1<<32 - 1024} {
		for _, psn := range []roce.PSN{100, 103} {
			b.h.inject(path, b.fromPeer(roce.RCReadRequest, psn, 0, reth(memBase, mr.RKey(), length)))
			b.h.deliver()
			if n := len(b.q.resp.pending()); n != 0 {
				t.Fatalf("a duplicate READ of %d bytes at %d is answered by %d packets", length, psn, roce.Diff(b.q.resp.out[0].end, psn))
			}
		}
	}
}

// vast is a program's memory of which any part may be registered.
type vast struct{ *hostmem.Bytes }

func (vast) Check(uint64, uint64, bool) error { return nil }
