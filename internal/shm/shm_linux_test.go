package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/internal/ring"
)

func create(t testing.TB) (*File, int) {
	t.Helper()
	f, app, err := Create(Options{})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { f.Close() })
	t.Cleanup(func() { unix.Close(app) })
	return f, app
}

// queue makes room for a queue of geometry g and formats it, as the verbs ABI does.
func queue(t testing.TB, f *File, g ring.Geometry) (Area, *ring.Queue) {
	t.Helper()
	a, err := f.Alloc(g.Size())
	if err != nil {
		t.Fatal(err)
	}
	var q *ring.Queue
	if fault := Guard(func() { q, err = ring.Format(a.Mem, g) }); fault != nil || err != nil {
		t.Fatal(fault, err)
	}
	return a, q
}

// doorbell is what the rxe provider writes: struct ib_uverbs_cmd_hdr and ib_uverbs_post_send.
func doorbell(handle uint32) []byte {
	b := make([]byte, RecordSize)
	binary.LittleEndian.PutUint32(b, 28)
	binary.LittleEndian.PutUint16(b[4:], 8)
	binary.LittleEndian.PutUint16(b[6:], 1)
	binary.LittleEndian.PutUint64(b[8:], 0x7ffd12345678)
	binary.LittleEndian.PutUint32(b[16:], handle)
	binary.LittleEndian.PutUint32(b[28:], 128)
	return b
}

func write(t testing.TB, fd int, b []byte) {
	t.Helper()
	if n, err := unix.Write(fd, b); n != len(b) || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
}

func drain(t testing.TB, l *Log) (handles []uint32) {
	t.Helper()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for l.Drain(func(h uint32) { handles = append(handles, h) }) > 0 {
	}
	return handles
}

func TestEveryDoorbellArrivesInOrder(t *testing.T) {
	f, app := create(t)
	const total = 3*logChunk/RecordSize + 17 // over several windows
	next := uint32(1)
	for sent := uint32(0); sent < total; {
		for range min(total-sent, 700) {
			sent++
			write(t, app, doorbell(sent))
		}
		for _, h := range drain(t, f.Log()) {
			if h != next {
				t.Fatalf("doorbell %d arrived, want %d", h, next)
			}
			next++
		}
	}
	if next != total+1 {
		t.Fatalf("%d doorbells arrived of %d", next-1, total)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		t.Fatal(err)
	}
	if held := st.Blocks * 512; held > 2*logWindow {
		t.Errorf("%d bytes of read doorbells are still held", held)
	}
}

func TestDoorbellsOfABacklogLongerThanTheWindow(t *testing.T) {
	f, app := create(t)
	const total = 5 * logChunk / RecordSize
	for i := range uint32(total) {
		write(t, app, doorbell(i+1))
	}
	got := drain(t, f.Log())
	if len(got) != total || got[0] != 1 || got[total-1] != total {
		t.Fatalf("%d doorbells arrived of %d", len(got), total)
	}
}

func TestDoorbellThroughADuplicateAndAnInheritedPosition(t *testing.T) {
	f, app := create(t)
	dup, err := unix.Dup(app)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dup)
	write(t, app, doorbell(1))
	write(t, dup, doorbell(2))
	write(t, app, doorbell(3))
	if got := drain(t, f.Log()); len(got) != 3 || got[1] != 2 {
		t.Fatalf("arrived: %v", got)
	}
}

// Not doorbells: other commands of 32 bytes (ATTACH_MCAST is 30), zeros, nonsense.
func TestRecordsThatAreNoDoorbellsAreSkipped(t *testing.T) {
	f, app := create(t)
	other := doorbell(5)
	other[0] = 30
	half := doorbell(6)
	clear(half[28:])
	for _, b := range [][]byte{doorbell(1), other, doorbell(2), half, doorbell(3)} {
		write(t, app, b)
	}
	got := drain(t, f.Log())
	if len(got) != 3 || got[0] != 1 || got[1] != 2 || got[2] != 3 {
		t.Fatalf("arrived: %v", got)
	}
	if s := f.Log().Stats(); s.Skipped != 2 || s.Others != 1<<30 || s.Dead != nil {
		t.Errorf("stats %+v", s)
	}
	last := doorbell(7)
	last[0] = 31
	clear(last[28:]) // nothing stands behind it
	write(t, app, last)
	if got := drain(t, f.Log()); len(got) != 0 {
		t.Errorf("arrived: %v", got)
	}
	if s := f.Log().Stats(); s.Skipped != 2 || s.Others != 1<<30|1<<31 {
		t.Errorf("stats %+v", s)
	}
}

func TestDoorbellIsFoundAgainAfterASeek(t *testing.T) {
	for name, jump := range map[string]int64{
		"in the window": 1000 * RecordSize,
		"behind it":     10 * logChunk,
		"far behind":    1 << 35,
		"crooked":       logChunk*7 + 13,
	} {
		t.Run(name, func(t *testing.T) {
			f, app := create(t)
			write(t, app, doorbell(1))
			if got := drain(t, f.Log()); len(got) != 1 {
				t.Fatalf("arrived: %v", got)
			}
			if _, err := unix.Seek(app, jump, unix.SEEK_CUR); err != nil {
				t.Fatal(err)
			}
			var got []uint32
			for i := range uint32(4000) {
				write(t, app, doorbell(i))
				got = append(got, drain(t, f.Log())...)
			}
			if name == "crooked" {
				return // no doorbell is promised, only no harm
			}
			if len(got) == 0 || got[len(got)-1] != 3999 {
				t.Fatalf("%d arrived", len(got))
			}
		})
	}
}

func TestTruncationHarmsOnlyTheProgram(t *testing.T) {
	f, app := create(t)
	g, _ := ring.GeometryFor(100, 64)
	a, q := queue(t, f, g)
	write(t, app, doorbell(1))
	if err := unix.Ftruncate(app, 0); err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if n := f.Log().Drain(func(uint32) {}); n != 0 {
		t.Errorf("%d doorbells from a truncated log", n)
	}
	if s := f.Log().Stats(); !errors.Is(s.Dead, ErrGone) {
		t.Errorf("log ended with %v, want ErrGone", s.Dead)
	}
	if err := q.StoreCQE(0, &ring.CQE{}); !errors.Is(err, ring.ErrFault) {
		t.Errorf("completion into a truncated queue: %v, want ErrFault", err)
	}
	if err := Guard(func() { clear(a.Mem) }); !errors.Is(err, ErrGone) {
		t.Errorf("touching a truncated queue: %v, want ErrGone", err)
	}
	f.Free(a)
	queue(t, f, g) // makes the file long enough again, as far as it needs
}

func TestQueueMemoryIsSharedAndGivenBack(t *testing.T) {
	f, app := create(t)
	held := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(f.fd, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	before := held()
	g, _ := ring.GeometryFor(500, 64)
	a, q := queue(t, f, g)
	// The program maps exactly what the answer names.
	m, err := unix.Mmap(app, a.Offset, len(a.Mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.StoreCQE(0, &ring.CQE{WRID: 0xabcdef}); err != nil {
		t.Fatal(err)
	}
	var got ring.CQE
	ring.View(m, g).LoadCQE(0, &got)
	if got.WRID != 0xabcdef {
		t.Errorf("the program sees work request %#x", got.WRID)
	}
	unix.Munmap(m)
	f.Free(a)
	if after := held(); after != before {
		t.Errorf("%d bytes held after Free, %d before", after, before)
	}
}

func TestQueueSpaceIsReused(t *testing.T) {
	f, _ := create(t)
	var areas []Area
	highest := int64(0)
	round := func() {
		for i := range 300 {
			g, _ := ring.GeometryFor(uint32(1+i*37%4000), 64<<(i%4))
			a, _ := queue(t, f, g)
			for _, b := range areas {
				if a.Offset < b.Offset+int64(len(b.Mem)) && b.Offset < a.Offset+int64(len(a.Mem)) {
					t.Fatalf("areas %#x and %#x overlap", a.Offset, b.Offset)
				}
			}
			areas = append(areas, a)
			highest = max(highest, a.Offset)
		}
		for i := range areas { // an order that leaves gaps
			f.Free(areas[i*7%len(areas)])
		}
		areas = areas[:0]
	}
	round()
	first := highest
	if len(f.space.chunks) != 1 || !f.space.chunks[0].empty() {
		t.Errorf("%d chunks left, want one empty one", len(f.space.chunks))
	}
	for range 3 {
		round()
	}
	if highest > first+2*chunkSize {
		t.Errorf("areas reach up to %d, in the first round %d: the space is not used again", highest, first)
	}
}

func TestLayoutStaysBelowTheFileSizeLimits(t *testing.T) {
	for _, c := range []struct {
		program, own uint64
		ok           bool
	}{{0, 0, true}, {1 << 30, 0, true}, {0, 8 << 20, true}, {1 << 41, 1 << 43, true}, {1 << 20, 0, false}, {1, 0, false}} {
		base, end, err := layout(c.program, c.own)
		if (err == nil) != c.ok {
			t.Errorf("limits %d, %d: %v", c.program, c.own, err)
		}
		if err != nil {
			if !errors.Is(err, ErrNoRoom) {
				t.Errorf("limits %d, %d: %v is not ErrNoRoom", c.program, c.own, err)
			}
			continue
		}
		for _, l := range []uint64{c.program, c.own} {
			if l != 0 && (uint64(end) > l || base >= end) {
				t.Errorf("limits %d, %d: base %d, end %d", c.program, c.own, base, end)
			}
		}
	}
}

func TestSizeLimitOfAProcess(t *testing.T) {
	if n, err := SizeLimit(os.Getpid()); err != nil || n == 1 {
		t.Errorf("own limit: %d, %v", n, err)
	}
	const head = "Limit                     Soft Limit           Hard Limit           Units     \n"
	for line, want := range map[string]uint64{
		"Max file size             unlimited            unlimited            bytes     \n": 0,
		"Max file size             1048576              unlimited            bytes     \n": 1 << 20,
	} {
		if n, err := parseSizeLimit(head + line); err != nil || n != want {
			t.Errorf("%q: %d, %v", line, n, err)
		}
	}
	if _, err := parseSizeLimit(head); err == nil {
		t.Error("no limit listed, and no error")
	}
}

func TestMissingDirectoryIsNoRoom(t *testing.T) {
	if _, _, err := Create(Options{Dir: "/nonexistent"}); !errors.Is(err, ErrNoRoom) {
		t.Errorf("%v is not ErrNoRoom", err)
	}
}

func TestDoorbellWakesAWatcher(t *testing.T) {
	f, app := create(t)
	in, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(in)
	if err := f.Log().Arm(in); err != nil {
		t.Fatal(err)
	}
	write(t, app, doorbell(1))
	p := []unix.PollFd{{Fd: int32(in), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 10000); n != 1 || err != nil {
		t.Fatalf("the watch did not fire: %d, %v", n, err)
	}
	f.Log().Disarm(in)
	b := make([]byte, 4096)
	for {
		if n, _ := unix.Read(in, b); n <= 0 {
			break
		}
	}
	write(t, app, doorbell(2))
	if n, _ := unix.Poll(p, 0); n != 0 {
		t.Error("the watch fired after Disarm")
	}
}

// smallTmpfs is a tmpfs of so many pages, which nothing else uses.
func smallTmpfs(t *testing.T, pages int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("rnic-test", dir, "tmpfs", 0, fmt.Sprintf("nr_blocks=%d", pages)); err != nil {
		t.Skipf("mounting a tmpfs of its own (needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill takes all pages of a tmpfs, and returns what gives them back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "others"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	page := make([]byte, pageSize)
	for err == nil {
		_, err = f.Write(page)
	}
	return func() {
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
	}
}

// Another program fills the tmpfs: doorbells that the kernel took still count, and the log goes on when
// there is room again. At every page that may be the one without room.
func TestFullTmpfsDoesNotEndTheLog(t *testing.T) {
	for _, before := range []int{1, pageSize / RecordSize, logChunk/RecordSize - 1, logChunk / RecordSize, logWindow / RecordSize} {
		dir := smallTmpfs(t, 64)
		f, app, err := Create(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		sent, got := 0, 0
		ring := func() bool {
			n, err := unix.Write(app, doorbell(uint32(sent+1)))
			if err == nil && n == RecordSize {
				sent++
			}
			return err == nil
		}
		hear := func() {
			for _, h := range drain(t, f.Log()) {
				if got++; h != uint32(got) {
					t.Fatalf("doorbell %d arrived, want %d", h, got)
				}
			}
		}
		for range before {
			ring()
		}
		hear()
		free := fill(t, dir)
		for range 3 * pageSize / RecordSize {
			ring()
			hear()
		}
		if s := f.Log().Stats(); s.Dead != nil {
			t.Errorf("after %d doorbells the log ended with %v", before, s.Dead)
		}
		free()
		for range 3 * logChunk / RecordSize {
			if !ring() {
				t.Fatal("no room in an empty tmpfs")
			}
			hear()
		}
		if got != sent {
			t.Errorf("full after %d: %d doorbells arrived of %d", before, got, sent)
		}
		f.Close()
		unix.Close(app)
	}
}

// A program that writes nonsense keeps the NIC from others no longer than one that writes doorbells, and
// a Drain that left something says so.
func TestNonsenseIsBoundedToo(t *testing.T) {
	f, app := create(t)
	other := doorbell(5)
	other[0] = 30
	for range 3 * maxDrain {
		write(t, app, other)
	}
	write(t, app, doorbell(7))
	l, heard := f.Log(), 0
	for i := 0; l.Drain(func(uint32) { heard++ }) > 0; i++ {
		if s := l.Stats().Skipped; s > uint64((i+1)*maxDrain) {
			t.Fatalf("%d records in %d Drains", s, i+1)
		}
	}
	if heard != 1 {
		t.Errorf("%d doorbells arrived, want the one behind the nonsense", heard)
	}
}

func FuzzHostileLog(f *testing.F) {
	f.Add(doorbell(1), int64(0))
	f.Add(make([]byte, 64), int64(1<<20))
	f.Add([]byte("garbage that is not a doorbell at all"), int64(-64))
	f.Fuzz(func(t *testing.T, b []byte, seek int64) {
		f, app, err := Create(Options{})
		if err != nil {
			t.Skip("no shared memory: ", err)
		}
		defer f.Close()
		defer unix.Close(app)
		_, _ = unix.Seek(app, seek%(1<<36), unix.SEEK_CUR)
		_, _ = unix.Write(app, b)
		write(t, app, doorbell(7))
		for range 200 {
			drain(t, f.Log())
		}
	})
}

func BenchmarkDrain(b *testing.B) {
	f, app := create(b)
	b.ReportAllocs()
	rec := doorbell(3)
	l := f.Log()
	nop := func(uint32) {}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for range b.N {
		write(b, app, rec)
		l.Drain(nop)
	}
}

func BenchmarkDrainEmpty(b *testing.B) {
	f, _ := create(b)
	b.ReportAllocs()
	l := f.Log()
	nop := func(uint32) {}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for range b.N {
		l.Drain(nop)
	}
}
