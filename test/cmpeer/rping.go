package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"rnic/verbs"
)

// rping's messages say where a buffer lies: address, key and length, in network byte order. Of each ping the client tells where its data are;
// the server reads them, and says so; the client tells where they shall go; the server writes them there, and says so.
const (
	infoSize      = 16
	rpingReceives = 8
)

func info(b []byte, mr *verbs.MR, n int) {
	binary.BigEndian.PutUint64(b, mr.Addr(0))
	binary.BigEndian.PutUint32(b[8:], mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(n))
}

// turn sends a message and waits for the answer; slot counts answers.
func (l *link) turn(mr *verbs.MR, n int, slot *int) error {
	info(l.mr.Bytes()[l.half:], mr, n)
	if err := l.send(); err != nil {
		return err
	}
	return l.next(slot)
}

// next waits for a message, which is in the slot that is returned before it is received into again.
func (l *link) next(slot *int) error {
	if err := l.wait(true); err != nil {
		return err
	}
	*slot++
	return nil
}

// last is the message received last.
func (l *link) last(slot int) []byte {
	at := (slot - 1) % rpingReceives * infoSize
	return l.mr.Bytes()[at : at+infoSize]
}

func rpingClient(p *peer) error {
	l, err := p.dial(infoSize, rpingReceives)
	if err != nil {
		return err
	}
	from, err := p.pd.AllocMR(*size, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
	if err != nil {
		return err
	}
	to, err := p.pd.AllocMR(*size, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	slot := 0
	for ping := range *count {
		b := from.Bytes()
		for i := range b[:len(b)-1] {
			b[i] = 'A' + byte((ping+i)%58)
		}
		b[len(b)-1] = 0 // the server prints it
		for _, mr := range []*verbs.MR{from, to} {
			if err := l.turn(mr, *size, &slot); err != nil {
				return err
			}
			if err := l.receive(l.conn.QP(), (slot-1)%rpingReceives); err != nil {
				return err
			}
		}
		if !bytes.Equal(from.Bytes(), to.Bytes()) {
			return fmt.Errorf("ping %d came back changed", ping)
		}
		clear(to.Bytes())
	}
	fmt.Printf("cmpeer: %d pings of %d bytes came back\n", *count, *size)
	return l.conn.Close()
}

func rpingServer(p *peer) error {
	l, err := p.accept(infoSize, rpingReceives)
	if err != nil {
		return err
	}
	buf, err := p.pd.AllocMR(*size, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	slot := 0
	for range *count {
		for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite} {
			if err := l.next(&slot); err != nil {
				return err
			}
			m := l.last(slot)
			addr, key, n := binary.BigEndian.Uint64(m), binary.BigEndian.Uint32(m[8:]), int(binary.BigEndian.Uint32(m[12:]))
			if n > *size {
				return errors.New("a ping is longer than -S says")
			}
			if err := l.receive(l.conn.QP(), (slot-1)%rpingReceives); err != nil {
				return err
			}
			if err := l.do(&verbs.SendWR{Opcode: op, SGE: buf.Slice(0, n), RemoteAddr: addr, RKey: key}); err != nil {
				return err
			}
			if err := l.send(); err != nil {
				return err
			}
		}
	}
	return l.finish()
}
