//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"path"
	"runtime"
	"strings"
	"testing"
	"unsafe"
)

// look is the decision on a path as pathCall makes it: the cleaned path, or "" for the kernel's.
func look(p string) string {
	b := []byte(p)
	if !mayBeInTree(b) {
		return ""
	}
	if b = cleanPath(b); !inTree(b) {
		return ""
	}
	return string(b)
}

func TestTreePaths(t *testing.T) {
	for p, want := range map[string]string{
		"/sys/class/infiniband":                       "/sys/class/infiniband",
		"/sys/class/infiniband/":                      "/sys/class/infiniband",
		"//sys///class/./infiniband/rxe0":             "/sys/class/infiniband/rxe0",
		"/sys/class/infiniband_verbs/uverbs0/dev":     "/sys/class/infiniband_verbs/uverbs0/dev",
		"/dev/infiniband/uverbs0":                     "/dev/infiniband/uverbs0",
		"/usr/../dev/infiniband":                      "/dev/infiniband",
		"/./dev/infiniband":                           "/dev/infiniband",
		"/../../dev/infiniband":                       "/dev/infiniband",
		"/sys/class/misc/rdma_cm/abi_version":         "/sys/class/misc/rdma_cm/abi_version",
		"/sys/class/infiniband/../infiniband":         "/sys/class/infiniband",
		"/sys/class/infiniband/..":                    "",
		"/sys/class/infinibandx":                      "",
		"/sys/class/misc":                             "",
		"/sys/class/misc/rdma_cmx":                    "",
		"/dev/infiniband/../null":                     "",
		"/dev":                                        "",
		"/":                                           "",
		"/usr/lib/dev/infiniband":                     "",
		"/home/sys/class/infiniband":                  "",
		"dev/infiniband":                              "",
		"/tmp/sys":                                    "",
		"/usr/" + strings.Repeat("x", 4000):           "",
		"/sys/" + strings.Repeat("/", 4000) + "class": "",
	} {
		if got := look(p); got != want {
			t.Errorf("%.60s: %q, want %q", p, got, want)
		}
	}
}

// FuzzTreePath compares with the obvious way: clean the path, then look for a prefix.
func FuzzTreePath(f *testing.F) {
	for _, s := range []string{"/dev/infiniband/uverbs0", "/a/../sys/class/infiniband_x", "//..//dev/./infiniband/", "/sys"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if !path.IsAbs(p) || strings.Contains(p, "\x00") {
			return
		}
		clean, want := path.Clean(p), ""
		for _, prefix := range []string{classPrefix, cmPrefix, devPrefix} {
			if clean == prefix || strings.HasPrefix(clean, prefix+"/") {
				want = clean
			}
		}
		if strings.HasPrefix(clean, classPrefix+"_") {
			want = clean
		}
		if got := look(p); got != want {
			t.Errorf("%q: %q, want %q", p, got, want)
		}
	})
}

// ownPath places p so that its first letters end a page, as a path at the end of mapped memory may.
func ownPath(p string) (buf []byte, addr uint64) {
	buf = make([]byte, 4*pageSize)
	off := pageSize - int(uintptr(unsafe.Pointer(&buf[0]))%pageSize) + pageSize - 3
	copy(buf[off:], p+"\x00")
	return buf, uint64(uintptr(unsafe.Pointer(&buf[off])))
}

func TestReadPath(t *testing.T) {
	tid := os.Getpid()
	var buf [pathMax]byte
	long := "/dev/" + strings.Repeat("y", pathMax-6)
	for p, want := range map[string]string{
		"/dev/infiniband": "/dev/infiniband",
		"/d":              "/d",
		"":                "",
		long:              long,
		long + "y":        "", // ENAMETOOLONG is the kernel's
	} {
		keep, addr := ownPath(p)
		if got := string(readPath(tid, addr, buf[:])); got != want {
			t.Errorf("%.20s (%d): %.20q (%d)", p, len(p), got, len(got))
		}
		runtime.KeepAlive(keep)
	}
	if got := readPath(tid, 8, buf[:]); got != nil {
		t.Errorf("path at an unmapped address: %q", got)
	}
}

// BenchmarkUnrelatedPath is the supervisor's own work on a path that is not its own, but for the
// receiving and the sending.
func BenchmarkUnrelatedPath(b *testing.B) {
	tid := os.Getpid()
	s := &server{}
	keep, addr := ownPath("/usr/lib/python3.11/site-packages/nothing.py")
	b.ReportAllocs()
	for b.Loop() {
		if p := readPath(tid, addr, s.path[:]); p != nil && mayBeInTree(p) {
			b.Fatal("not unrelated")
		}
	}
	runtime.KeepAlive(keep)
}

func TestUnrelatedPathAllocatesNothing(t *testing.T) {
	tid := os.Getpid()
	s := &server{}
	for _, p := range []string{"/usr/lib/python3.11/site-packages/nothing.py", "/dev/null", "/sys/devices/system/cpu/online"} {
		keep, addr := ownPath(p)
		n := testing.AllocsPerRun(100, func() {
			if p := readPath(tid, addr, s.path[:]); p != nil && mayBeInTree(p) && inTree(cleanPath(p)) {
				t.Error("not unrelated")
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", p, n)
		}
		runtime.KeepAlive(keep)
	}
}
