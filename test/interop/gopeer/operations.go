package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"rnic/verbs"
)

// The exchange of test/guest/rawqp: what it says of margins, patterns and who does what is in its source.
const (
	margin   = 64 // bytes in front of a landing place, which must keep guard, as must those behind
	guard    = 0xee
	largest  = area - 2*margin - grh - 8
	rawqpKey = 0x1badcafe
)

// kind is an operation; its number is the protocol's.
type kind int

const (
	send kind = iota
	sendImm
	write
	writeImm
	read
	cas
	casMiss
	fetchAdd
)

var kinds = []struct {
	name     string
	opcode   verbs.Opcode
	receives bool // consumes a receive of the other side
}{
	send:     {"send", verbs.OpSend, true},
	sendImm:  {"send_imm", verbs.OpSendImm, true},
	write:    {"write", verbs.OpWrite, false},
	writeImm: {"write_imm", verbs.OpWriteImm, true},
	read:     {"read", verbs.OpRead, false},
	cas:      {"cas", verbs.OpCompareSwap, false},
	casMiss:  {"cas_miss", verbs.OpCompareSwap, false},
	fetchAdd: {"fetch_add", verbs.OpFetchAdd, false},
}

func (k kind) atomic() bool { return k == cas || k == casMiss || k == fetchAdd }

// operation is what both sides know of one.
type operation struct {
	byServer bool
	kind     kind
	length   int
	seed     uint32
}

// place is where its data begins: every alignment gets its turn, but atomics need eight.
func (p *operation) place() int {
	if p.kind.atomic() {
		return margin
	}
	return margin + int(p.seed%8)
}

// pattern is byte i of the data of an operation.
func pattern(seed, i uint32) byte {
	x := (seed + i) * 2654435761
	return byte(x>>24 ^ i>>8)
}

func pattern64(seed uint32) (v uint64) {
	for i := range uint32(8) {
		v = v<<8 | uint64(pattern(seed, i))
	}
	return v
}

func fill(b []byte, seed uint32) {
	for i := range b {
		b[i] = pattern(seed, uint32(i))
	}
}

func clean(b []byte) {
	for i := range b {
		b[i] = guard
	}
}

// landed says what is wrong with an area that should hold the pattern at a place, and guard everywhere else.
func landed(b []byte, at, length int, seed uint32) error {
	for i, got := range b {
		want := byte(guard)
		if i >= at && i-at < length {
			want = pattern(seed, uint32(i-at))
		}
		if got != want {
			return fmt.Errorf("byte %d of %d is %02x, want %02x", i-at, length, got, want)
		}
	}
	return nil
}

// rawqp speaks the exchange: the client has the operations, the server follows.
func (e *end) rawqp(o *options) error {
	clean(e.mr.Bytes())
	if err := e.meet(o); err != nil {
		return err
	}
	defer e.tcp.Close()
	if err := e.introduce(o); err != nil {
		return err
	}
	var right bool
	var err error
	if o.peer != "" {
		right, err = e.lead(o)
	} else {
		right, err = e.follow()
	}
	if err != nil {
		return err
	}
	// Nobody leaves while the other may still resend to it.
	if o.peer != "" {
		_, err = e.line()
	} else {
		err = e.tell("bye")
		time.Sleep(300 * time.Millisecond)
	}
	if !right {
		return errors.New("not everything was right")
	}
	fmt.Println("all right")
	return err
}

// introduce exchanges endpoints and memory, and connects.
func (e *end) introduce(o *options) error {
	if err := e.tell("%x %x %x %x %s", e.own.QPN, e.own.PSN, e.mr.RKey(), e.mr.Addr(0), netip.AddrFrom16(e.own.GID)); err != nil {
		return err
	}
	line, err := e.line()
	if err != nil {
		return err
	}
	var gid string
	if _, err := fmt.Sscanf(line, "%x %x %x %x %s", &e.peer.QPN, &e.peer.PSN, &e.theirs.key, &e.theirs.addr, &gid); err != nil {
		return fmt.Errorf("the peer's parameters make no sense: %q: %w", line, err)
	}
	address, err := netip.ParseAddr(gid)
	if err != nil {
		return err
	}
	e.peer.GID = address.As16()
	if err := e.connect(o.mtu, 4, rawqpKey); err != nil {
		return err
	}
	if err := e.tell("connected"); err != nil {
		return err
	}
	_, err = e.line()
	return err
}

// parse reads NAME:BYTES, where BYTES may be mtu, mtu-1, mtu+1.
func parse(text string, mtu int) (p operation, err error) {
	name, size, _ := strings.Cut(text, ":")
	p.kind, p.length = -1, 8
	for k := range kinds {
		if kinds[k].name == name {
			p.kind = kind(k)
		}
	}
	if p.kind < 0 {
		return p, fmt.Errorf("unknown operation %q", text)
	}
	if p.kind.atomic() {
		return p, nil
	}
	base, rest := 0, size
	if after, ok := strings.CutPrefix(size, "mtu"); ok {
		if base, rest = mtu, after; rest == "" {
			rest = "0"
		}
	}
	p.length, err = strconv.Atoi(rest)
	p.length += base
	if err == nil && (p.length < 0 || p.length > largest) {
		err = fmt.Errorf("%s: at most %d bytes", text, largest)
	}
	return p, err
}

// lead is the client: it says what is done, and takes part.
func (e *end) lead(o *options) (right bool, err error) {
	right = true
	seed := uint32(1)
	for _, byServer := range []bool{false, true} {
		if o.from != "both" && byServer != (o.from == "server") {
			continue
		}
		for _, text := range o.operations {
			p, err := parse(text, o.mtu)
			if err != nil {
				return false, err
			}
			p.byServer, p.seed = byServer, seed
			seed++
			by := 0
			if byServer {
				by = 1
			}
			if err := e.tell("op %d %d %d %d", by, p.kind, p.length, p.seed); err != nil {
				return false, err
			}
			if right, err = e.perform(&p, !byServer); err != nil || !right {
				return false, err
			}
		}
	}
	return right, e.tell("bye")
}

// follow is the server.
func (e *end) follow() (right bool, err error) {
	right = true
	for {
		line, err := e.line()
		if err != nil || line == "bye" {
			return right, err
		}
		var p operation
		var by int
		if _, err := fmt.Sscanf(line, "op %d %d %d %d", &by, &p.kind, &p.length, &p.seed); err != nil || p.kind < 0 || int(p.kind) >= len(kinds) || p.length < 0 || p.length > largest {
			return false, fmt.Errorf("the client said: %q", line)
		}
		p.byServer = by != 0
		ok, err := e.perform(&p, p.byServer)
		if err != nil {
			return false, err
		}
		right = right && ok
	}
}

// perform is done by both sides: the passive one prepares, the active one executes, the passive one verifies.
func (e *end) perform(p *operation, active bool) (bool, error) {
	var why error
	role := "passive"
	if active {
		role = "active "
		if _, err := e.line(); err != nil {
			return false, err
		}
		why = e.execute(p)
		if err := e.tell("%s", verdict(why, "done")); err != nil {
			return false, err
		}
		line, err := e.line()
		if err != nil {
			return false, err
		}
		if why == nil && line != "ok" {
			why = fmt.Errorf("the other side: %s", line)
		}
	} else {
		if err := e.prepare(p); err != nil {
			return false, err
		}
		if err := e.tell("ready 0"); err != nil {
			return false, err
		}
		line, err := e.line()
		if err != nil {
			return false, err
		}
		if line != "done" {
			why = fmt.Errorf("the other side: %s", line)
		} else {
			why = e.verify(p)
		}
		if err := e.tell("%s", verdict(why, "ok")); err != nil {
			return false, err
		}
	}
	said := "ok"
	if why != nil {
		said = "WRONG, " + why.Error()
	}
	fmt.Printf("%s %-9s %6d bytes: %s\n", role, kinds[p.kind].name, p.length, said)
	return why == nil, nil
}

func verdict(err error, good string) string {
	if err != nil {
		return strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return good
}

func immediate(p *operation) uint32 { return p.seed*0x01010101 ^ 0xa5c3f017 }

// in and out are the halves of the memory.
func (e *end) in() []byte  { return e.mr.Bytes()[area : 2*area] }
func (e *end) out() []byte { return e.mr.Bytes()[:area] }

func (e *end) prepare(p *operation) error {
	in, at := e.in(), p.place()
	clean(in)
	if p.kind == read {
		fill(in[at:at+p.length], p.seed)
	}
	if p.kind.atomic() {
		binary.NativeEndian.PutUint64(in[at:], pattern64(p.seed))
	}
	if !kinds[p.kind].receives {
		return nil
	}
	wr := &verbs.RecvWR{ID: uint64(p.seed)}
	if p.kind != writeImm { // its data goes where the write says
		wr.SGE = e.mr.Slice(area+at, p.length+e.header())
	}
	_, err := e.qp.PostRecv(wr)
	return err
}

// received checks the completion of the receive.
func (e *end) received(p *operation) error {
	wc, err := next(e.recv, "receive")
	if err != nil {
		return err
	}
	imm, opcode := p.kind != send, verbs.WCRecv
	if p.kind == writeImm {
		opcode = verbs.WCRecvImm
	}
	if wc.ID != uint64(p.seed) || wc.ByteLen != p.length+e.header() || wc.Opcode != opcode || wc.HasImm != imm ||
		imm && wc.Imm != immediate(p) || e.typ == verbs.UD && wc.SrcQP != e.peer.QPN {
		return fmt.Errorf("completion %+v", wc)
	}
	return nil
}

// atomicResult is what the eight bytes hold after the operation.
func atomicResult(p *operation) uint64 {
	before := pattern64(p.seed)
	switch p.kind {
	case cas:
		return ^before
	case fetchAdd:
		return before + 0xfedcba9876543210
	}
	return before
}

func (e *end) verify(p *operation) error {
	in, at := e.in(), p.place()
	if kinds[p.kind].receives {
		if err := e.received(p); err != nil {
			return err
		}
	}
	if e.typ == verbs.UC && p.kind == write {
		time.Sleep(300 * time.Millisecond) // nothing tells when it has landed
	}
	if p.kind.atomic() {
		if after := binary.NativeEndian.Uint64(in[at:]); after != atomicResult(p) {
			return fmt.Errorf("the memory holds %x, want %x", after, atomicResult(p))
		}
		clean(in[at : at+8])
		return landed(in, at, 0, 0)
	}
	clean(in[at : at+e.header()])
	return landed(in, at+e.header(), p.length, p.seed)
}

func (e *end) execute(p *operation) error {
	out, at, before := e.out(), p.place(), pattern64(p.seed)
	clean(out)
	if p.kind != read && !p.kind.atomic() {
		fill(out[at:at+p.length], p.seed)
	}
	wr := e.to(&verbs.SendWR{ID: uint64(p.seed), Opcode: kinds[p.kind].opcode, SGE: e.mr.Slice(at, p.length), Imm: immediate(p)})
	if e.typ != verbs.UD {
		wr.RemoteAddr, wr.RKey = e.theirs.addr+area+uint64(at), e.theirs.key
	}
	switch p.kind {
	case fetchAdd:
		wr.CompareAdd = atomicResult(p) - before
	case cas:
		wr.CompareAdd, wr.Swap = before, ^before
	case casMiss:
		wr.CompareAdd, wr.Swap = before^1, ^before
	}
	if _, err := e.qp.PostSend(wr); err != nil {
		return err
	}
	wc, err := next(e.send, kinds[p.kind].name)
	if err != nil {
		return err
	}
	if wc.ID != uint64(p.seed) {
		return fmt.Errorf("completion of work request %d", wc.ID)
	}
	if !p.kind.atomic() {
		return landed(out, at, p.length, p.seed)
	}
	if old := binary.NativeEndian.Uint64(out[at:]); old != before {
		return fmt.Errorf("fetched %x, want %x", old, before)
	}
	clean(out[at : at+8])
	return landed(out, at, 0, 0)
}
