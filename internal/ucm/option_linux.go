package ucm

import (
	"syscall"
)

// Levels and names of options (rdma_user_cm.h).
const (
	levelID = 0
	levelIB = 1

	optionTOS        = 0
	optionReuse      = 1
	optionAFOnly     = 2
	optionAckTimeout = 3
	optionIBPath     = 1

	maxOption = 4096
)

// setOption is struct rdma_ucm_set_option: optval, id, level, optname, optlen.
func (c *command) setOption() error {
	i, err := c.id(8)
	if err != nil {
		return err
	}
	n := c.u32(20)
	if n > maxOption {
		return syscall.EINVAL
	}
	v := make([]byte, n)
	if n > 0 && c.sys.ReadMem(c.u64(0), v) != nil {
		return syscall.EFAULT
	}
	switch level, name := c.u32(12), c.u32(16); {
	case level == levelID && name == optionTOS && n == 1:
		i.cm.SetTOS(v[0])
		return nil
	case level == levelID && name == optionReuse && n == 4:
		return i.cm.SetReuse(le.Uint32(v) != 0)
	case level == levelID && name == optionAFOnly && n == 4:
		return i.cm.SetAFOnly(le.Uint32(v) != 0)
	case level == levelID && name == optionAckTimeout && n == 1:
		return i.cm.SetAckTimeout(v[0])
	case level == levelIB && name == optionIBPath && n > 0 && n%sizePathData == 0:
		// A path that the program has found itself: on Ethernet it says nothing new.
		return i.cm.ResolveRoute()
	case level > levelIB:
		return syscall.ENOSYS
	case level == levelID && name <= optionAckTimeout, level == levelIB && name == optionIBPath:
		return syscall.EINVAL
	}
	return syscall.ENOSYS
}
