package guest

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// kernel is a Debian kernel unpacked for QEMU.
type kernel struct {
	version string   // as uname -r says
	image   string   // path of vmlinux, or of vmlinuz where it could not be unpacked
	modules []string // paths of modules, in the order of loading
}

// guestModules are what a guest loads, each with all that it depends on. The
// checksums are looked up by name through the crypto API, which modules.dep
// does not know.
var guestModules = []string{
	"virtio_mmio", "virtio_net", "crc32_generic", "crc32c_generic", "libcrc32c", "ib_uverbs", "rdma_ucm", "rdma_rxe",
}

// cacheLayout changes whenever an unpacked kernel of the cache would lack something.
const cacheLayout = "2"

// keptFiles are those of a kernel package that a guest can need: a tenth of it.
var keptFiles = regexp.MustCompile(`^\./(boot/vmlinuz-|(usr/)?lib/modules/[^/]+/(modules\.|vmlinuz$|kernel/(arch|crypto|fs/configfs|lib|net|drivers/(infiniband|virtio|net/[^/]+$))))`)

// findKernel returns the kernel that Debian serves now, in a suite or ("") the configured archive, from the cache or
// from there.
func findKernel(ctx context.Context, cache, suite string) (*kernel, error) {
	from, err := openArchive(ctx, cache, suite)
	if err != nil {
		return nil, err
	}
	name, err := from.kernelPackage(ctx)
	if err != nil {
		return nil, err
	}
	k := &kernel{version: strings.TrimPrefix(name, "linux-image-")}
	dir := filepath.Join(cache, "kernel-"+k.version+"-"+cacheLayout)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := from.fetchKernel(ctx, name, k.version, dir); err != nil {
			return nil, fmt.Errorf("fetching %s: %w", name, err)
		}
	}
	k.image = filepath.Join(dir, "vmlinux")
	if _, err := os.Stat(k.image); err != nil {
		k.image = filepath.Join(dir, "boot", "vmlinuz-"+k.version)
	}
	k.modules, err = modulesInOrder(filepath.Join(dir, "lib/modules", k.version))
	if err != nil {
		return nil, fmt.Errorf("kernel in %s (remove the directory to fetch it again): %w", dir, err)
	}
	return k, nil
}

// kernelPackage returns the name of the package that linux-image-amd64 depends on.
func (a *archive) kernelPackage(ctx context.Context) (string, error) {
	names, err := a.depends(ctx, "linux-image-amd64")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "linux-image-") {
			return name, nil
		}
	}
	return "", errors.New("apt-cache knows no kernel behind linux-image-amd64; run apt-get update")
}

// kernelParts are the packages whose files make up a kernel: one, or in newer releases those of the image and of
// the modules that it depends on.
func (a *archive) kernelParts(ctx context.Context, name, version string) ([]string, error) {
	needs, err := a.depends(ctx, name)
	if err != nil {
		return nil, err
	}
	parts := []string{name}
	for _, n := range needs {
		if n == "linux-binary-"+version || n == "linux-modules-"+version {
			parts = append(parts, n)
		}
	}
	return parts, nil
}

// fetchKernel makes dir, whole or not at all.
func (a *archive) fetchKernel(ctx context.Context, name, version, dir string) (err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	parts, err := a.kernelParts(ctx, name, version)
	if err != nil {
		return err
	}
	debs, err := a.download(ctx, tmp, parts...)
	if err != nil {
		return err
	}
	root := filepath.Join(tmp, "root")
	for _, deb := range debs {
		if err := unpack(ctx, deb, root); err != nil {
			return err
		}
	}
	if _, err := run(ctx, "", "depmod", "-b", root, version); err != nil {
		return err
	}
	vmlinuz := filepath.Join(root, "boot", "vmlinuz-"+version)
	if newer := filepath.Join(root, "lib/modules", version, "vmlinuz"); exists(newer) {
		// Later releases have it beside the modules.
		if err := errors.Join(os.MkdirAll(filepath.Dir(vmlinuz), 0o755), os.Rename(newer, vmlinuz)); err != nil {
			return err
		}
	}
	if err := uncompressKernel(ctx, vmlinuz, filepath.Join(root, "vmlinux")); err != nil {
		return err
	}
	return os.Rename(root, dir)
}

// unpack writes the files of a package that a guest can need below root.
func unpack(ctx context.Context, deb, root string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	copyErr := untar(tar.NewReader(bufio.NewReaderSize(stdout, 1<<20)), root)
	if copyErr != nil {
		cmd.Process.Kill()
	}
	if err := cmd.Wait(); copyErr == nil && err != nil {
		return fmt.Errorf("dpkg-deb: %w: %s", err, stderr.Bytes())
	}
	return copyErr
}

func untar(archive *tar.Reader, root string) error {
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg || !keptFiles.MatchString(header.Name) || !filepath.IsLocal(header.Name) {
			continue
		}
		path := filepath.Join(root, strings.TrimPrefix(header.Name, "./usr/"))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, archive)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

// uncompressKernel writes the ELF file inside vmlinuz, which QEMU enters
// directly: under emulation the kernel would spend seconds on uncompressing
// itself. Where there is none in xz format it writes nothing.
func uncompressKernel(ctx context.Context, vmlinuz, vmlinux string) error {
	data, err := os.ReadFile(vmlinuz)
	if err != nil {
		return err
	}
	at := bytes.Index(data, []byte("\xfd7zXZ\x00"))
	if at < 0 {
		return nil
	}
	cmd := exec.CommandContext(ctx, "xz", "-dc", "--single-stream")
	cmd.Stdin = bytes.NewReader(data[at:])
	// xz may complain of what follows the stream; what it wrote is judged instead.
	elf, _ := cmd.Output()
	if !bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return nil
	}
	return os.WriteFile(vmlinux, elf, 0o644)
}

// modulesInOrder returns the paths of guestModules and of all they need,
// dependencies first. A module that is not there is built in.
func modulesInOrder(dir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	lines := map[string][]string{} // module name: its file, then those it needs, nearest first
	for line := range strings.Lines(string(data)) {
		file, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
		base, _, _ := strings.Cut(filepath.Base(file), ".")
		lines[strings.ReplaceAll(base, "-", "_")] = append([]string{file}, strings.Fields(needs)...)
	}
	if lines["rdma_rxe"] == nil {
		return nil, errors.New("no module rdma_rxe")
	}
	var order []string
	for _, name := range guestModules {
		for _, file := range slices.Backward(lines[name]) {
			if path := filepath.Join(dir, file); !slices.Contains(order, path) {
				order = append(order, path)
			}
		}
	}
	return order, nil
}

// run runs a command and returns its output; its error contains what the
// command said.
func run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, err
}
