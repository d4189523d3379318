//go:build !linux || !(amd64 || arm64)

package sandbox

// file has no content where there is no sandbox.
type file struct{}

// Supervisor is what MaybeHelper's callback gets; there is none on this platform.
type Supervisor struct{}

// Run starts a program under the filter: ErrUnsupported on this platform.
func Run(Options) (exitCode int, err error) { return ExitFailure, ErrUnsupported }

// MaybeHelper returns at once on this platform.
func MaybeHelper(func(*Supervisor) error) {}

// Config is nil on this platform.
func (*Supervisor) Config() []byte { return nil }

// AddDir returns ErrUnsupported on this platform.
func (*Supervisor) AddDir(path string) error { return ErrUnsupported }

// AddFile returns ErrUnsupported on this platform.
func (*Supervisor) AddFile(path, content string) error { return ErrUnsupported }

// AddLive returns ErrUnsupported on this platform.
func (*Supervisor) AddLive(path string, read func() (string, error)) error { return ErrUnsupported }

// Remove returns ErrUnsupported on this platform.
func (*Supervisor) Remove(path string) error { return ErrUnsupported }

// AddSymlink returns ErrUnsupported on this platform.
func (*Supervisor) AddSymlink(path, target string) error { return ErrUnsupported }

// AddDevice returns ErrUnsupported on this platform.
func (*Supervisor) AddDevice(path string, major, minor uint32, d Device) error {
	return ErrUnsupported
}

// AnswerNetlink returns ErrUnsupported on this platform.
func (*Supervisor) AnswerNetlink(NetlinkHandler) error { return ErrUnsupported }

// Forget does nothing on this platform.
func (*Supervisor) Forget(*File) {}

// Serve returns ErrUnsupported on this platform.
func (*Supervisor) Serve() error { return ErrUnsupported }

// Leave does nothing on this platform.
func (*Supervisor) Leave(error) {}

// Abort does nothing on this platform.
func (*Supervisor) Abort(error) {}
