package guest

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed init.sh
var initScript []byte

// tools are the host's programs that every guest has, besides busybox.
var tools = []string{
	"ip", "rdma", "ibv_devices", "ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong",
	"ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat", "ib_send_bw", "ib_send_lat", "ib_atomic_bw", "ib_atomic_lat", "rping",
}

// libDir is where the guest looks for shared libraries.
const libDir = "lib/x86_64-linux-gnu"

// Image is a kernel and a root file system to boot.
type Image struct {
	Version string // of the kernel, as uname -r says
	Kernel  string // path
	Initrd  string // path
}

// BuildImage makes an image in dir with the kernel that Debian serves now.
// Programs, paths of the host, are added to the guest's /bin, with the shared
// libraries that they need.
func BuildImage(ctx context.Context, dir string, programs ...string) (*Image, error) {
	return BuildImageOf(ctx, "", dir, programs...)
}

// BuildImageOf is BuildImage with the kernel of a suite of Debian, as trixie or sid; "" is the host's own release.
func BuildImageOf(ctx context.Context, suite, dir string, programs ...string) (*Image, error) {
	k, err := findKernel(ctx, CacheDir(), suite)
	if err != nil {
		return nil, err
	}
	image := &Image{Version: k.version, Kernel: k.image, Initrd: filepath.Join(dir, "initrd")}
	f, err := os.Create(image.Initrd)
	if err != nil {
		return nil, err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = writeRoot(ctx, &cpio{w: w}, k, programs)
	if err := errors.Join(err, w.Flush(), f.Close()); err != nil {
		return nil, fmt.Errorf("building the guest's root file system: %w", err)
	}
	return image, nil
}

func writeRoot(ctx context.Context, root *cpio, k *kernel, programs []string) error {
	for _, dir := range []string{"bin", "dev", "etc", "etc/libibverbs.d", "lib", libDir, "lib64", "modules", "proc",
		"sys", "tmp", "usr", "usr/lib", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/libibverbs"} {
		root.dir(dir)
	}
	root.file("init", initScript)
	if err := writeModules(ctx, root, k); err != nil {
		return err
	}
	have, err := writePrograms(root, programs)
	if err != nil {
		return err
	}
	if err := writeBusybox(ctx, root, have); err != nil {
		return err
	}
	return root.close()
}

// writeModules adds the modules, and the file "modules.list" with the order of loading.
func writeModules(ctx context.Context, root *cpio, k *kernel) error {
	var list strings.Builder
	for _, path := range k.modules {
		data, err := os.ReadFile(path)
		if strings.HasSuffix(path, ".xz") {
			data, err = run(ctx, "", "xz", "-dc", path)
		}
		if err != nil {
			return err
		}
		name := "modules/" + strings.TrimSuffix(filepath.Base(path), ".xz")
		root.file(name, data)
		fmt.Fprintf(&list, "/%s\n", name)
	}
	root.file("modules.list", []byte(list.String()))
	return nil
}

// writePrograms adds the tools that the host has, the given programs, the
// verbs provider of Soft-RoCE and all shared libraries of these. It returns
// the names that /bin has now.
func writePrograms(root *cpio, programs []string) (map[string]bool, error) {
	have := map[string]bool{}
	add := func(from, to string) error {
		data, err := os.ReadFile(from)
		if err == nil {
			root.file(to, data)
		}
		return err
	}
	var binaries []string
	for _, name := range tools {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("%w; run scripts/packages.sh build", err)
		}
		binaries = append(binaries, path)
	}
	binaries = append(binaries, programs...)
	for _, path := range binaries {
		if err := add(path, "bin/"+filepath.Base(path)); err != nil {
			return nil, err
		}
		have[filepath.Base(path)] = true
	}
	providers, _ := filepath.Glob("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so")
	if len(providers) == 0 {
		return nil, errors.New("no rxe provider; install ibverbs-providers")
	}
	for _, path := range providers {
		if err := add(path, strings.TrimPrefix(path, "/")); err != nil {
			return nil, err
		}
	}
	if err := add("/etc/libibverbs.d/rxe.driver", "etc/libibverbs.d/rxe.driver"); err != nil {
		return nil, err
	}
	libraries, err := sharedLibraries(append(binaries, providers...))
	if err != nil {
		return nil, err
	}
	for path := range libraries {
		to := libDir
		if strings.HasPrefix(path, "/lib64/") {
			to = "lib64"
		}
		if err := add(path, filepath.Join(to, filepath.Base(path))); err != nil {
			return nil, err
		}
	}
	return have, nil
}

var libraryPath = regexp.MustCompile(`(?m)(?:=> |^\s*)(/\S+) \(0x`)

// sharedLibraries returns the paths of all libraries that the files load, and
// of libgcc_s, which the C library loads by itself when a thread ends.
func sharedLibraries(files []string) (map[string]bool, error) {
	libraries := map[string]bool{}
	if path := "/" + libDir + "/libgcc_s.so.1"; exists(path) {
		libraries[path] = true
	}
	for _, file := range files {
		out, err := exec.Command("ldd", file).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not a dynamic executable") {
			return nil, fmt.Errorf("ldd %s: %w: %s", file, err, out)
		}
		for _, match := range libraryPath.FindAllStringSubmatch(string(out), -1) {
			libraries[match[1]] = true
		}
	}
	return libraries, nil
}

// writeBusybox adds busybox, under all its names that are not taken.
func writeBusybox(ctx context.Context, root *cpio, taken map[string]bool) error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	root.file("bin/busybox", data)
	names, err := run(ctx, "", path, "--list")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(names)) {
		if name != "busybox" && !taken[name] {
			root.symlink("bin/"+name, "busybox")
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
