package capture

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A pipe whose reader does not read holds up neither who records nor the end, and leaves out what finds no room. A file that is there already
// becomes its owner's alone.
func TestPipeWithoutAReader(t *testing.T) {
	dir := t.TempDir()
	fifo, plain := filepath.Join(dir, "fifo"), filepath.Join(dir, "plain")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Skipf("no pipes here: %v", err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	f, err := Create(fifo)
	if err != nil {
		t.Fatal(err)
	}
	for range createRoom / (1 << 20) * 2 { // twice what there is room for
		f.mu.Lock()
		if f.hasRoom(1 << 20) {
			f.buf = append(f.buf, make([]byte, 1<<20)...)
		}
		f.mu.Unlock()
	}
	if f.Missing() == 0 {
		t.Error("nothing is missing")
	}
	if err := f.Close(); err == nil {
		t.Error("closed without an error, though nobody has read it")
	}
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	g, err := Create(plain)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if st, err := os.Stat(plain); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}
