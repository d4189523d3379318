package uverbs

import (
	"fmt"
	"syscall"

	"rnic/internal/dma"
	"rnic/internal/nic"
)

// Advice of MR, ADVISE (enum ib_uverbs_advise_mr_advice), and its flag.
const (
	advicePrefetch        = 0
	advicePrefetchWrite   = 1
	advicePrefetchNoFault = 2

	adviseFlush = 1 << 0 // return when it is done
)

// sizeSGE is the size of struct ib_uverbs_sge: addr, length, lkey.
const sizeSGE = 16

// maxPrefetch bounds in pages what one command looks at: it is a hint, and others wait meanwhile.
const maxPrefetch = 4096

const pageSize = 4096

// adviseMR is MR, ADVISE: brings in the pages of parts of regions that are on demand (ibv_advise_mr(3)). Everything is
// checked before anything is done. As the drivers that have it: ENOENT for a key of no region, EPERM for one of another
// protection domain, or without the right to write where the advice is to prefetch for that, EFAULT for what is outside.
func (c *call) adviseMR() syscall.Errno {
	pd, errno := get[*pdObject](c.ctx, c.uint(advisePD))
	if errno != 0 {
		return errno
	}
	advice := c.uint(adviseAdvice)
	if _, errno := c.flags(adviseFlags, adviseFlush); errno != 0 {
		return errno
	}
	list := c.bytes(adviseList)
	if len(list)%sizeSGE != 0 {
		return syscall.EINVAL
	}
	if advice > advicePrefetchNoFault {
		return syscall.EOPNOTSUPP
	}
	regions := c.ctx.regions()
	var pages []page
	for ; len(list) > 0; list = list[sizeSGE:] {
		addr, length, key := le.Uint64(list), uint64(le.Uint32(list[8:])), le.Uint32(list[12:])
		o := regions[key]
		switch {
		case o == nil || o.dev == nil || o.access&nic.AccessOnDemand == 0:
			return c.failed(fmt.Errorf("advising on a memory region: key %#x is of no region on demand: %w", key, syscall.ENOENT))
		case o.pd != pd:
			return c.failed(fmt.Errorf("advising on a memory region: key %#x is of another protection domain: %w", key, syscall.EPERM))
		case advice == advicePrefetchWrite && o.access&nic.AccessLocalWrite == 0:
			return c.failed(fmt.Errorf("advising on a memory region: key %#x has no right to write: %w", key, syscall.EPERM))
		case addr < o.iova || addr-o.iova > o.length || length > o.length-(addr-o.iova):
			return c.failed(fmt.Errorf("advising on a memory region: %#x+%#x is outside key %#x: %w", addr, length, key, syscall.EFAULT))
		}
		if advice != advicePrefetchNoFault { // that one is for a device with page tables of its own
			pages = appendPages(pages, o, o.start+(addr-o.iova), length)
		}
	}
	if len(pages) > 0 && c.drv.prefetches.Load() < maxPrefetches {
		c.drv.prefetches.Add(1)
		c.after = func() error { return c.prefetch(pages) }
	}
	return 0
}

// regions are those of the context, by key.
func (c *verbsContext) regions() map[uint32]*mrObject {
	m := map[uint32]*mrObject{}
	for _, o := range c.objects {
		if r, ok := o.(*mrObject); ok {
			m[r.lkey] = r
		}
	}
	return m
}

// page is one of a program's, by an address in it.
type page struct {
	space *dma.Process
	addr  uint64
}

// appendPages appends each page of [addr, addr+length), up to maxPrefetch in all.
func appendPages(pages []page, o *mrObject, addr, length uint64) []page {
	for length > 0 && len(pages) < maxPrefetch {
		pages = append(pages, page{o.space, addr})
		step := min(length, pageSize-addr%pageSize)
		addr, length = addr+step, length-step
	}
	return pages
}

// maxPrefetches bounds the commands of a driver that read at the same time, each with a thread: where pages are of a file system or
// a handler (userfaultfd(2)) that does not answer, they wait for ever. Beyond that the advice is not followed.
const maxPrefetches = 16

// prefetch reads pages, so that they are there. EFAULT where nothing is mapped.
//
// The driver's lock is not held: who brings in a page may be one of this run's programs, or slow.
func (c *call) prefetch(pages []page) error {
	defer c.drv.prefetches.Add(-1)
	for _, p := range pages {
		if err := p.space.Touch(p.addr); err != nil {
			return fmt.Errorf("advising on a memory region: %w: %w", err, syscall.EFAULT)
		}
	}
	return nil
}

// regDmabufMR is MR, REG_DMABUF: this NIC reaches memory of processes only.
func (c *call) regDmabufMR() syscall.Errno {
	if _, errno := get[*pdObject](c.ctx, c.uint(dmabufPD)); errno != 0 {
		return errno
	}
	return c.failed(fmt.Errorf("REG_DMABUF_MR: this NIC does not have it: %w", syscall.EOPNOTSUPP))
}
