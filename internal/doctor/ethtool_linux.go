package doctor

import (
	"bytes"
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sizes of linux/ethtool.h.
const (
	featureNames  = 4  // ETH_SS_FEATURES
	stringLength  = 32 // ETH_GSTRING_LEN
	mostFeatures  = 1024
	segmentation  = "tx-udp-segmentation"
	featureBlock  = 16 // struct ethtool_get_features_block: available, requested, active, never_changed
	activeInBlock = 8
)

// udpSegmentation reports whether the interface's feature tx-udp-segmentation is active.
func udpSegmentation(ifname string) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)

	// struct ethtool_sset_info: cmd, reserved, sset_mask (8 bytes), then the number of strings.
	info := make([]uint32, 5)
	info[0], info[2] = unix.ETHTOOL_GSSET_INFO, 1<<featureNames
	if err := ethtool(fd, ifname, info); err != nil {
		return false, err
	}
	n := int(info[4])
	if n == 0 || n > mostFeatures {
		return false, errors.New("no list of features")
	}
	// struct ethtool_gstrings: cmd, string_set, len, then len strings.
	names := make([]uint32, 3+n*stringLength/4)
	names[0], names[1], names[2] = unix.ETHTOOL_GSTRINGS, featureNames, uint32(n)
	if err := ethtool(fd, ifname, names); err != nil {
		return false, err
	}
	// struct ethtool_gfeatures: cmd, size in blocks of 32 features, then the blocks.
	features := make([]uint32, 2+(n+31)/32*featureBlock/4)
	features[0], features[1] = unix.ETHTOOL_GFEATURES, uint32((n+31)/32)
	if err := ethtool(fd, ifname, features); err != nil {
		return false, err
	}
	text := bytesOf(names)[12:]
	for i := range n {
		name, _, _ := bytes.Cut(text[i*stringLength:(i+1)*stringLength], []byte{0})
		if string(name) == segmentation {
			return features[2+i/32*featureBlock/4+activeInBlock/4]>>(i%32)&1 != 0, nil
		}
	}
	return false, nil
}

// ethtool is the ioctl SIOCETHTOOL with a structure made of words.
func ethtool(fd int, ifname string, data []uint32) error {
	var req struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data uintptr
		_    [16]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], ifname)
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&data[0])
	req.data = uintptr(unsafe.Pointer(&data[0]))
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); e != 0 {
		return e
	}
	return nil
}

func bytesOf(words []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 4*len(words))
}
