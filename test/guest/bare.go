package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// BuildBare makes an image in dir whose only program is the first process, a static executable: kernel and serial console, no module, no network.
func BuildBare(ctx context.Context, dir string, first []byte) (*Image, error) {
	k, err := findKernel(ctx, CacheDir(), "")
	if err != nil {
		return nil, err
	}
	image := &Image{Version: k.version, Kernel: k.image, Initrd: filepath.Join(dir, "initrd")}
	f, err := os.Create(image.Initrd)
	if err != nil {
		return nil, err
	}
	w := bufio.NewWriter(f)
	root := &cpio{w: w}
	root.file("init", first)
	if err := errors.Join(root.close(), w.Flush(), f.Close()); err != nil {
		return nil, fmt.Errorf("building the guest's root file system: %w", err)
	}
	return image, nil
}

// Bare returns the command that boots such an image in so many mebibytes of memory, without its console.
func (i *Image) Bare(memory int) []string {
	params := fmt.Sprintf("console=ttyS0 quiet panic=-1 reboot=t nokaslr mitigations=off random.trust_cpu=on "+
		"tsc=reliable tsc_early_khz=%d cryptomgr.notests pci=off", cyclesPerMillisecond())
	return []string{qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "microvm,rtc=on", "-accel", "tcg,tb-size=32", "-cpu", "max", "-smp", "1", "-m", fmt.Sprint(memory),
		"-kernel", i.Kernel, "-initrd", i.Initrd, "-append", params}
}
