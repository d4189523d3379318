//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// node is a device node of the tree, or a live file.
type node struct {
	path         string // as in the program
	major, minor uint32
	dev          Device
	parent       fileID // of the real directory that stands for its directory
	live         bool   // a regular file: dev is a *live
}

// rdev is the device number as struct stat has it.
func (n *node) rdev() uint64 { return unix.Mkdev(n.major, n.minor) }

// tree is the emulated file tree: a real directory whose layout below it is that of /. The program
// gets descriptors of its directories and files, on which the kernel works natively.
type tree struct {
	dir string // private, world-readable: a program under another user id opens files relative to it
	fd  int    // of dir

	mu    sync.RWMutex
	nodes map[string]*node   // by path
	bases map[string][]*node // by last component, for opens relative to a directory of the tree
}

func newTree(dir string) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the directory of the emulated tree, %s: %w", dir, err)
	}
	hold(dir)
	return &tree{dir: dir, fd: fd, nodes: map[string]*node{}, bases: map[string][]*node{}}, nil
}

// real checks that a path given by the tree's builder is clean and below a prefix, and returns
// where it is.
func (t *tree) real(p string) (string, error) {
	if !path.IsAbs(p) || path.Clean(p) != p || !inTree([]byte(p)) {
		return "", fmt.Errorf("tree path %q: want a clean path below %s*, %s or %s: %w", p, classPrefix, cmPrefix, devPrefix, os.ErrInvalid)
	}
	return filepath.Join(t.dir, p), nil
}

func (t *tree) addDir(p string) error {
	r, err := t.real(p)
	if err != nil {
		return err
	}
	return mkdirs(r)
}

// mkdirs is MkdirAll with mode 0755 whatever the umask.
func mkdirs(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrNotExist) {
		if err := mkdirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// addFile writes beside and renames, so that a reader sees the old content or the new one.
func (t *tree) addFile(p, content string) error {
	r, err := t.real(p)
	if err != nil {
		return err
	}
	if err := mkdirs(filepath.Dir(r)); err != nil {
		return err
	}
	f, err := os.CreateTemp(t.dir, ".new-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Chmod(0o444), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), r)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s of the emulated tree: %w", p, err)
	}
	return nil
}

func (t *tree) addSymlink(p, target string) error {
	r, err := t.real(p)
	if err != nil {
		return err
	}
	if path.IsAbs(target) {
		return fmt.Errorf("tree symbolic link %s to %q: the target must be relative: %w", p, target, os.ErrInvalid)
	}
	if err := mkdirs(filepath.Dir(r)); err != nil {
		return err
	}
	return os.Symlink(target, r)
}

// remove takes away a file, or a directory with all that is in it. Descriptors of it stay what they are.
func (t *tree) remove(p string) error {
	r, err := t.real(p)
	if err != nil {
		return err
	}
	below := func(n *node) bool { return n.path == p || strings.HasPrefix(n.path, p+"/") }
	t.mu.Lock()
	maps.DeleteFunc(t.nodes, func(_ string, n *node) bool { return below(n) })
	for base, named := range t.bases {
		if named = slices.DeleteFunc(slices.Clone(named), below); len(named) > 0 { // others look at the old one
			t.bases[base] = named
		} else {
			delete(t.bases, base)
		}
	}
	t.mu.Unlock()
	if err := os.RemoveAll(r); err != nil {
		return fmt.Errorf("remove %s of the emulated tree: %w", p, err)
	}
	return nil
}

func (t *tree) addDevice(p string, major, minor uint32, d Device) error {
	return t.addNode(&node{path: p, major: major, minor: minor, dev: d})
}

func (t *tree) addNode(n *node) error {
	if err := t.addFile(n.path, ""); err != nil {
		return err
	}
	var err error
	if n.parent, _, err = identify(unix.AT_FDCWD, filepath.Join(t.dir, filepath.Dir(n.path)), 0); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	base := path.Base(n.path)
	t.nodes[n.path] = n
	t.bases[base] = append(t.bases[base], n)
	return nil
}

// node returns the device node at a cleaned path, or nil.
func (t *tree) node(p []byte) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.nodes[string(p)]
}

// relative returns the node that path p, relative to descriptor dirfd of thread tid, leads to,
// or nil. Everything else below an injected directory the kernel opens natively; a
// node is a plain file there.
func (t *tree) relative(tid int, dirfd int32, p []byte) *node {
	base := baseName(p)
	t.mu.RLock()
	named := t.bases[string(base)]
	t.mu.RUnlock()
	if len(named) == 0 || dirfd < 0 {
		return nil
	}
	dir, ok := fileAt(tid, int(dirfd))
	if ok && len(base) != len(p) {
		// Only where the tree is may a path be followed: anywhere else it could lead to a file system that waits for us.
		if dir.dev != named[0].parent.dev {
			return nil
		}
		dir, ok = within(fdPath(tid, int(dirfd)), string(p[:len(p)-len(base)]))
	}
	for _, n := range named {
		if ok && n.parent == dir {
			return n
		}
	}
	return nil
}

// within identifies what is at path p relative to a directory, unless the way there leaves the directory's file system.
func within(dir, p string) (fileID, bool) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fileID{}, false
	}
	defer unix.Close(fd)
	at, err := unix.Openat2(fd, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return fileID{}, false
	}
	defer unix.Close(at)
	id, _, err := identify(at, "", unix.AT_EMPTY_PATH)
	return id, err == nil
}

// devices returns each Device once, but for live files, which are of no process.
func (t *tree) devices() []Device {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []Device
	seen := map[Device]bool{}
	for _, n := range t.nodes {
		if !n.live && !seen[n.dev] {
			seen[n.dev] = true
			out = append(out, n.dev)
		}
	}
	return out
}
