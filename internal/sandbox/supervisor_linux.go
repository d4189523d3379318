//go:build linux && (amd64 || arm64)

package sandbox

import "errors"

var errTODO = errors.New("not written yet")

type file struct{ dev, ino uint64 }

// Supervisor is the run as its supervisor process sees it: the emulated tree, the devices in it,
// and Serve.
type Supervisor struct{}

// Run starts opts.Command under the filter and returns when it has ended, with its exit code, or
// 128 plus the number of the signal that killed it. The error, if any, is one line for the user; the exit
// code is then one of the Exit constants.
//
// Run takes the process over: it forwards signals, becomes the reaper of orphans and, if the
// supervisor dies, kills every child of the process. Call it from main, once, with no child processes
// of your own.
func Run(opts Options) (exitCode int, err error) { return ExitFailure, errTODO }

// MaybeHelper must be called first thing in main (and in TestMain). In an ordinary process it
// returns at once. In a process that Run started it never returns: as the supervisor it calls
// supervise, whose error becomes Run's; as the helper it becomes the program.
//
//	sandbox.MaybeHelper(func(s *sandbox.Supervisor) error {
//		nic := ...              // from s.Config()
//		defer nic.Close()
//		s.AddFile("/sys/class/infiniband_verbs/abi_version", "6\n")
//		s.AddDevice("/dev/infiniband/uverbs0", 231, 192, dev)
//		return s.Serve()
//	})
func MaybeHelper(supervise func(*Supervisor) error) {}

// Config is what the caller of Run gave in Options.Config.
func (s *Supervisor) Config() []byte { return nil }

// AddDir makes a directory of the tree, and its parents. The path is absolute and lies under one of
// the emulated prefixes.
func (s *Supervisor) AddDir(path string) error { return errTODO }

// AddFile makes or atomically replaces a read-only file of the tree, and its parents. It may be
// called while the program runs.
func (s *Supervisor) AddFile(path, content string) error { return errTODO }

// AddSymlink makes a symbolic link of the tree. A relative target is resolved within the tree.
func (s *Supervisor) AddSymlink(path, target string) error { return errTODO }

// AddDevice makes a character device node (mode 0666) of the tree, whose opens go to d. The same Device may serve
// several nodes. Call it before Serve.
func (s *Supervisor) AddDevice(path string, major, minor uint32, d Device) error { return errTODO }

// Forget drops a file that is not regular, when its Device has seen its last close.
func (s *Supervisor) Forget(f *File) {}

// Serve starts the program and answers its calls until it and every process it started are gone.
// Then every device has had Closed for its files. The temporary directory of the tree is removed.
func (s *Supervisor) Serve() error { return errTODO }
