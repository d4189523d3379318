package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A FIFO that nobody reads takes what there is room for; then records are lost, without anybody waiting for each, and counted for
// who reads at last. What is read is of whole records.
func TestOutputThatNobodyReads(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := create("--trace", fifo)
	if err != nil {
		t.Fatal(err)
	}
	// As in another process, to which the file is passed.
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	unix.SetNonblock(fd, true)
	w := patientTrace(os.NewFile(uintptr(fd), "passed"))
	record := strings.Repeat("x", 999) + "\n"
	lost := 0
	for range 1000 {
		if _, err := w.Write([]byte(record)); errors.Is(err, os.ErrDeadlineExceeded) {
			lost++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if lost == 0 {
		t.Fatal("a million bytes found room in a pipe")
	}
	read := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		read <- string(b)
	}()
	for err = os.ErrDeadlineExceeded; err != nil; _, err = w.Write([]byte("last\n")) {
	}
	w.(*patientFile).Close()
	noted := false
	for line := range strings.Lines(<-read) {
		switch {
		case line == record, line == "last\n":
		case strings.HasPrefix(line, "# ") && strings.HasSuffix(line, " entries lost: nobody read them\n"):
			noted = true
		default:
			t.Errorf("read %q", line)
		}
	}
	if !noted {
		t.Error("nothing says that records were lost")
	}

	disk, err := create("--trace", filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	w = patientTrace(disk)
	for range 1000 {
		if n, err := w.Write([]byte(record)); n != len(record) || err != nil {
			t.Fatalf("to a disk: %d, %v", n, err)
		}
	}
}
