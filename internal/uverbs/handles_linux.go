package uverbs

import (
	"slices"
	"syscall"
)

// kinds tell the objects of a context with handles, by their number in the ABI.
var kinds = map[uint64]func(verbsObject) bool{
	objPD: is[*pdObject], objCQ: is[*cqObject], objQP: is[*qpObject], objSRQ: is[*srqObject], objAH: is[*ahObject],
	objMR: is[*mrObject], objMW: is[*mwObject],
}

func is[T verbsObject](o verbsObject) bool {
	_, ok := o.(T)
	return ok
}

// infoHandles is DEVICE, INFO_HANDLES: the handles of the context's objects of a kind, as many as there is room for, and
// how many that are.
func (c *call) infoHandles() syscall.Errno {
	a := find(c.attrs, handlesList)
	if a == nil || a.len%4 != 0 {
		return syscall.EINVAL
	}
	kind := kinds[c.uint(handlesObject)]
	if kind == nil {
		return syscall.EOPNOTSUPP
	}
	var handles []uint32
	for h, o := range c.ctx.objects {
		if kind(o) {
			handles = append(handles, h)
		}
	}
	slices.Sort(handles)
	handles = handles[:min(len(handles), int(a.len)/4)]
	c.put(handlesList, words(handles...))
	c.put(handlesTotal, words(uint32(len(handles))))
	return 0
}
