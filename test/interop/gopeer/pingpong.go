package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"rnic/verbs"
)

// helloSize is that of what rdma-core's pingpong programs tell each other: "0000:000000:000000:" and the GID, with the zero
// byte that ends it.
const helloSize = len("0000:000000:000000:") + 32 + 1

// pingpongKey is the Q_Key of ibv_ud_pingpong.
const pingpongKey = 0x11111111

// pingpong is the program of that name of rdma-core: who is the client sends first, and the sides take turns; each has two
// work requests outstanding at most.
func (e *end) pingpong(o *options) error {
	if e.typ == verbs.UD {
		e.own.PSN = 0 // Activate begins there
	}
	if err := e.meet(o); err != nil {
		return err
	}
	defer e.tcp.Close()
	if err := e.swap(o); err != nil {
		return err
	}
	for i := range o.iterations {
		if err := e.receive(uint64(i), e.mr.Slice(e.landing(), e.header()+o.size)); err != nil {
			return err
		}
	}
	// Both are ready when both have said so: the client with "done", the server with what it told of itself.
	if o.peer != "" {
		if err := e.said("done"); err != nil {
			return err
		}
	} else {
		if err := e.hello(); err != nil {
			return err
		}
		if err := e.heard("done"); err != nil {
			return err
		}
	}
	begin := time.Now()
	for i := range o.iterations {
		if err := e.turn(o, i); err != nil {
			return fmt.Errorf("exchange %d: %w", i, err)
		}
	}
	fmt.Printf("%d iters in %.2f seconds\n", o.iterations, time.Since(begin).Seconds())
	// The peer may need an acknowledgement again.
	time.Sleep(300 * time.Millisecond)
	return nil
}

// swap exchanges endpoints and connects.
func (e *end) swap(o *options) error {
	if o.peer != "" {
		if err := e.hello(); err != nil {
			return err
		}
	}
	buf := make([]byte, helloSize)
	if _, err := io.ReadFull(e.reader, buf); err != nil {
		return fmt.Errorf("the other side is gone: %w", err)
	}
	var lid int
	var gid string
	if _, err := fmt.Sscanf(strings.ReplaceAll(strings.TrimRight(string(buf), "\x00"), ":", " "), "%x %x %x %s", &lid, &e.peer.QPN, &e.peer.PSN, &gid); err != nil {
		return fmt.Errorf("the peer's parameters make no sense: %q: %w", buf, err)
	}
	var err error
	if e.peer.GID, err = parseGID(gid); err != nil {
		return err
	}
	return e.connect(o.mtu, 1, pingpongKey)
}

func (e *end) hello() error {
	return e.said(fmt.Sprintf("0000:%06x:%06x:%s", e.own.QPN, e.own.PSN, gidText(e.own.GID)))
}

// said sends a text with its zero byte.
func (e *end) said(text string) error {
	_, err := e.tcp.Write(append([]byte(text), 0))
	return err
}

func (e *end) heard(text string) error {
	buf := make([]byte, len(text)+1)
	if _, err := io.ReadFull(e.reader, buf); err != nil {
		return fmt.Errorf("the other side is gone: %w", err)
	}
	if string(buf[:len(text)]) != text {
		return fmt.Errorf("the other side said %q, not %q", buf, text)
	}
	return nil
}

func (e *end) receive(id uint64, sge []verbs.SGE) error {
	_, err := e.qp.PostRecv(&verbs.RecvWR{ID: id, SGE: sge})
	return err
}

// turn is one message each way.
func (e *end) turn(o *options, i int) error {
	if o.peer != "" {
		if err := e.ping(o, i); err != nil {
			return err
		}
		return e.pong(o)
	}
	if err := e.pong(o); err != nil {
		return err
	}
	return e.ping(o, i)
}

// The stock programs' messages are filled with one value; with -c each page begins with another, which the peer's
// server checks.
const (
	page   = 4096
	filler = 0x7b
	begins = 0
)

// ping sends the message.
func (e *end) ping(o *options, i int) error {
	buf := e.mr.Bytes()[:o.size]
	for at := range buf {
		buf[at] = filler
		if at%page == 0 {
			buf[at] = begins
		}
	}
	if _, err := e.qp.PostSend(e.to(&verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, SGE: e.mr.Slice(0, o.size)})); err != nil {
		return err
	}
	_, err := next(e.send, "send")
	return err
}

// pong takes a message and checks it.
func (e *end) pong(o *options) error {
	wc, err := next(e.recv, "receive")
	if err != nil {
		return err
	}
	if wc.ByteLen != e.header()+o.size {
		return fmt.Errorf("%d bytes, not %d", wc.ByteLen, e.header()+o.size)
	}
	got := e.mr.Bytes()[e.landing()+e.header():][:o.size]
	for at, b := range got {
		// ibv_ud_pingpong counts pages from before the header.
		if b != filler && !(at%page == 0 && (b == begins || e.typ == verbs.UD)) {
			return fmt.Errorf("byte %d is %02x", at, b)
		}
	}
	for at := range got {
		got[at] = ^byte(filler) // so that the next message must bring it again
	}
	return nil
}

// landing is where in the region the half for what comes in begins.
func (e *end) landing() int { return len(e.mr.Bytes()) / 2 }
