package cm_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"rnic/cm"
	"rnic/verbs"
)

// A peer that does not keep to the protocol ends its stream, and nothing else. docs/cm.md has the bits.
func TestStreamHostilePeer(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l := get(b.mgr.ListenStream("rdma", net.JoinHostPort(b.addr.String(), "0")))(t)
	defer l.Close()
	const fin, data = 1 << 16, 1 << 17
	message := func(imm uint32, n int) *verbs.SendWR {
		return &verbs.SendWR{Opcode: verbs.OpSendImm, Imm: imm, SGE: a.mr.Slice(0, n)}
	}
	for what, send := range map[string][]*verbs.SendWR{
		"no immediate data":    {{Opcode: verbs.OpSend, SGE: a.mr.Slice(0, 8)}},
		"unknown bits":         {message(1<<18, 0)},
		"data without its bit": {message(0, 8)},
		"credits out of air":   {message(1, 0)},
		"data after the end":   {message(fin, 0), message(data, 8)},
		"a message too long":   {message(data, 16<<10+1)},
		"another's memory":     {{Opcode: verbs.OpWrite, SGE: a.mr.Slice(0, 8), RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey()}},
		"more than there are credits, and no receives for those that come back": nil,
	} {
		hello := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte("rnic stream 1\n"), 32), 16<<10)
		cfg := a.config(string(hello))
		cfg.Prepare, cfg.QP.MaxSend = nil, 1024
		raw := get(a.mgr.Dial(longEnough(t), netip.AddrPort(l.Addr().(cm.Addr)), cfg))(t)
		s := get(l.Accept())(t)
		for _, w := range send {
			get(raw.QP().PostSend(w))(t)
		}
		for i := 0; send == nil && i < 700; i++ {
			get(raw.QP().PostSend(message(data, 0)))(t)
		}
		s.SetDeadline(time.Now().Add(30 * time.Second))
		_, err := s.Read(make([]byte, 100))
		if err == io.EOF { // which stays
			ended(t, raw)
		} else if !errors.Is(err, cm.ErrDisconnected) || send == nil && !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: %v", what, err)
		}
		eventually(t, "writes fail", func() bool { _, err := s.Write([]byte("x")); return errors.Is(err, syscall.EPIPE) })
		s.Close()
		raw.Close()
		drain(t, a.cq)
	}
	// The listener goes on.
	c := get(a.mgr.DialStream(longEnough(t), "rdma", l.Addr().String()))(t)
	c.Close()
	s := get(l.Accept())(t)
	s.Close()
	idle(t, a)
	idle(t, b)
}
