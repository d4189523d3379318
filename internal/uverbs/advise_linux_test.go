package uverbs

import (
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/nic"
)

// absent is memory whose pages are brought in by bring alone (userfaultfd(2)).
func absent(t *testing.T, size int) (mem []byte, bring func()) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if e != 0 {
		t.Skipf("userfaultfd is not permitted here: %v", e)
	}
	t.Cleanup(func() { unix.Close(int(fd)) })
	at, length := uint64(uintptr(unsafe.Pointer(&mem[0]))), uint64(size)
	// linux/userfaultfd.h: UFFDIO_API, UFFDIO_REGISTER with MODE_MISSING, UFFDIO_ZEROPAGE.
	control := func(request uintptr, words ...uint64) {
		t.Helper()
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(&words[0]))); e != 0 {
			t.Fatalf("ioctl %#x of a userfaultfd: %v", request, e)
		}
	}
	control(0xc018aa3f, 0xaa, 0, 0)
	control(0xc020aa00, at, length, 1, 0)
	return mem, sync.OnceFunc(func() { control(0xc020aa04, at, length, 0, 0) })
}

// A page that does not come keeps the program that asks for it waiting, and nobody else; a signal ends that.
func TestAdviseWaitsAlone(t *testing.T) {
	mem, bring := absent(t, pageSize)
	p := newProgram(t, nil)
	t.Cleanup(bring)
	fd, _ := p.context()
	pd := p.pd(fd)
	_, key, errno := p.tryRegMR(fd, pd, p.address(mem), uint64(len(mem)), nic.AccessLocalWrite|nic.AccessOnDemand)
	if errno != 0 {
		t.Fatal(errno)
	}
	advise := func() *fakeCall {
		sge := append(le.AppendUint64(nil, p.address(mem)), words(uint32(len(mem)), key)...)
		b := ioctlBytes(objMR, 2, number(advisePD, uint64(pd)), p.input(adviseAdvice, le.AppendUint64(nil, advicePrefetch)),
			p.input(adviseFlags, words(adviseFlush)), p.input(adviseList, sge))
		c := &fakeCall{p: p}
		p.drv.Ioctl(c, p.files[fd], p.address(b))
		return c
	}
	waits, interrupted := advise(), advise()
	for range maxPrefetches - 2 {
		advise()
	}
	if c := advise(); !c.await() || c.errno != 0 {
		t.Errorf("one more than can wait: %v", c.errno)
	}
	p.pd(fd) // is answered meanwhile
	interrupted.signalled.Store(true)
	if !interrupted.await() || interrupted.errno != syscall.EINTR {
		t.Errorf("with a signal: %v", interrupted.errno)
	}
	waits.mu.Lock()
	if waits.answered {
		t.Errorf("the page has not come, and the advice was answered: %v", waits.errno)
	}
	waits.mu.Unlock()
	bring()
	if !waits.await() || waits.errno != 0 {
		t.Errorf("when the page has come: %v", waits.errno)
	}
}
