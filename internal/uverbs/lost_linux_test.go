package uverbs

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Old libraries write some commands with the length of a doorbell, so that they are taken for one: that they have no effect is told, once.
func TestCommandsThatLookLikeDoorbells(t *testing.T) {
	p := newProgram(t, nil)
	var said []string
	p.drv.cfg.Warnf = func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	write := func(fd int, command uint32) {
		t.Helper()
		b := make([]byte, 32) // the last word, a mlid of 0 for one, is 0
		binary.NativeEndian.PutUint32(b, command)
		b[16] = 1
		if _, err := unix.Write(fd, b); err != nil {
			t.Fatal(err)
		}
	}
	fd := p.open()
	write(fd, cmdPostSend)
	p.close(fd)
	if len(said) != 0 {
		t.Errorf("of a doorbell it is said: %q", said)
	}
	for range 2 {
		fd := p.open()
		write(fd, cmdModifySRQ)
		write(fd, cmdAttachMcast)
		p.close(fd)
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "ATTACH_MCAST, MODIFY_SRQ had no effect") || !strings.Contains(said[0], "rdma-core 22") {
		t.Errorf("it is said: %q", said)
	}
}
