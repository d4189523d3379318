package verbs

import (
	"errors"
	"fmt"
	"sync/atomic"

	"rnic/internal/nic"
)

// lifetime is the part of every object that knows whether the object, or its context, is closed.
type lifetime struct {
	ctx    *Context
	closed atomic.Bool
}

// use is nil while the object may be used; else it wraps ErrClosed.
func (l *lifetime) use(op string) error {
	if l.closed.Load() || l.ctx.isClosed() {
		return fmt.Errorf("%s: %w", op, ErrClosed)
	}
	return nil
}

// told is the error of a command. What has been destroyed since use has looked is ErrClosed too.
func (l *lifetime) told(op string, err error) error {
	if errors.Is(err, nic.ENOENT) {
		return fmt.Errorf("%s: %w", op, ErrClosed)
	}
	return err
}

// close destroys the object. To close what is closed already, by itself or with its context, is no
// error. first says that this call was the one.
func (l *lifetime) close(destroy func() error) (first bool, err error) {
	if l.use("") != nil {
		return false, nil
	}
	if err = destroy(); err == nil {
		return !l.closed.Swap(true), nil
	}
	if errors.Is(err, nic.ENOENT) || errors.Is(err, ErrClosed) {
		return false, nil // somebody was faster
	}
	return false, err
}
