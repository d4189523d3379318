package engine

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/internal/link"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// A program truncates the file of its send queue: the self-check, which looks there, does not end the process.
func TestCheckOfATruncatedQueue(t *testing.T) {
	r := newUnitsRig(t, []link.Link{nil})
	a := r.end(0, nic.UC)
	f, err := os.Create(filepath.Join(t.TempDir(), "queue"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := &unitsEnd{r: r, core: a.core, cq: a.cq}
	b.create(0, nic.UC, func(t *testing.T, entries, size uint32) (nicSide, own *ring.Queue) {
		g, err := ring.GeometryFor(entries, size)
		if err == nil {
			err = f.Truncate(int64(g.Size()))
		}
		if err != nil {
			t.Fatal(err)
		}
		buf, err := unix.Mmap(int(f.Fd()), 0, g.Size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if nicSide, err = ring.Format(buf, g); err != nil {
			t.Fatal(err)
		}
		return nicSide, ring.View(buf, g)
	})
	b.connect(localGID, a.q.Num())
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	r.checked()
}
