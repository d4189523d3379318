//go:build !linux

package netdev

import (
	"errors"
	"fmt"
)

// Watcher follows the changes of links and addresses; on Linux only.
type Watcher struct{}

// Watch returns errors.ErrUnsupported on this system.
func Watch(Selection, func([]Entry)) (*Watcher, error) {
	return nil, fmt.Errorf("watch network interfaces: %w", errors.ErrUnsupported)
}

// Close does nothing.
func (*Watcher) Close() {}
