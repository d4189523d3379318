package uverbs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The objects of libibverbs, against its header and the C library.
func TestLibraryObjectsAgainstTheHeaders(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is missing: apt-get install gcc libc6-dev")
	}
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("infiniband/verbs.h is missing: apt-get install libibverbs-dev")
	}
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "p.c"), filepath.Join(dir, "p")
	if err := os.WriteFile(src, []byte(`#include <stddef.h>
#include <stdio.h>
#include <infiniband/verbs.h>
#define O(s, f) (int)offsetof(struct s, f)
int main(void)
{
	printf("%d %d %d\n", O(ibv_cq, handle), O(ibv_cq, comp_events_completed), O(ibv_cq, async_events_completed));
	printf("%d %d %d\n", O(ibv_cq_ex, handle), O(ibv_cq_ex, comp_events_completed), O(ibv_cq_ex, async_events_completed));
	printf("%d %d\n", O(ibv_srq, handle), O(ibv_srq, events_completed));
	printf("%d %d\n", O(ibv_qp, handle), O(ibv_qp, events_completed));
	return 0;
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	got, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	of := func(l libraryObject) string {
		return fmt.Sprintf("%d %d", l.handle, l.counts(mutexSizes()[0]))
	}
	second := fmt.Sprint(" ", libraryCQ.counts(mutexSizes()[0])+4)
	want := strings.Join([]string{of(libraryCQ) + second, of(libraryCQ) + second, of(librarySRQ), of(libraryQP), ""}, "\n")
	if string(got) != want {
		t.Errorf("the header has\n%s, here is\n%s", got, want)
	}
}

// Destroying answers how many events were read, for which libibverbs waits; where the program is stranded, how many it has acknowledged, if
// that can be told.
func TestUnacknowledgedEvents(t *testing.T) {
	for _, c := range []struct {
		name      string
		stranded  bool
		completed [2]uint32
		handle    int // added to the right one
		unmapped  bool
		comp      uint32
	}{
		{name: "not stranded", completed: [2]uint32{1, 0}, comp: 2},
		{name: "one is missing", stranded: true, completed: [2]uint32{1, 0}, comp: 1},
		{name: "both are missing", stranded: true, comp: 0},
		{name: "none is missing", stranded: true, completed: [2]uint32{2, 0}, comp: 2},
		{name: "more than there were", stranded: true, completed: [2]uint32{3, 0}, comp: 2},
		{name: "more of another kind than there were", stranded: true, completed: [2]uint32{1, 1}, comp: 2},
		{name: "another object's handle", stranded: true, completed: [2]uint32{1, 0}, handle: 1, comp: 2},
		{name: "no memory", stranded: true, unmapped: true, comp: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProgram(t, nil)
			p.stranded = c.stranded
			fd, _ := p.context()
			object := make([]byte, 256)
			user := p.address(object)
			if c.unmapped {
				user = 8
			}
			pd, ch := p.pd(fd), p.compChannel(fd)
			cq, _ := p.cq(fd, ch, user)
			a, b := p.connected(fd, pd, cq, cq)
			for range 2 {
				p.notify(fd, cq)
				b.receive0()
				a.send0()
				if !readable(t, ch, 10*time.Second) {
					t.Fatal("no event")
				}
				if _, err := unix.Read(ch, make([]byte, sizeCompEvent)); err != nil {
					t.Fatal(err)
				}
			}
			a.destroy()
			b.destroy()
			le.PutUint32(object[libraryCQ.handle:], uint32(int(cq)+c.handle))
			at := object[libraryCQ.counts(mutexSizes()[0]):]
			le.PutUint32(at, c.completed[0])
			le.PutUint32(at[4:], c.completed[1])
			if comp, async := p.destroyCQ(fd, cq); comp != c.comp || async != 0 {
				t.Errorf("the answer is %d completion events and %d others, want %d and 0", comp, async, c.comp)
			}
		})
	}
}
