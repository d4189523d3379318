package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"rnic/internal/control"
	"rnic/internal/device"
)

// reachable lets commands in other processes reach the NICs of this one. A process works without, too.
type reachable struct {
	server *control.Server // nil: there is none
	err    error           // why

	mu      sync.Mutex
	devices map[string]*device.Device
}

// reach makes the socket for commands, of a process that was started as command.
func reach(command []string) *reachable {
	r := &reachable{devices: map[string]*device.Device{}}
	if r.server, r.err = control.Listen(control.About{Command: strings.Join(command, " "), Version: Version}); r.err == nil {
		r.handle()
	}
	return r
}

// handle gives the server its operations.
func (r *reachable) handle() {
	r.server.Handle("info", func(_ context.Context, args json.RawMessage, c *control.Stream) error {
		var a deviceArgs
		if err := json.Unmarshal(args, &a); err != nil {
			return err
		}
		d, err := r.device(a.Device)
		if err != nil {
			return err
		}
		info := deviceInfo{MTU: d.MTU(), Units: d.Units()}
		for _, g := range d.GIDs() {
			info.Addresses = append(info.Addresses, g.GID.Addr().String())
		}
		return c.Reply(info)
	})
}

// deviceArgs are what every operation on a device is given, at least.
type deviceArgs struct {
	Device string `json:"device"`
}

// deviceInfo describes a device.
type deviceInfo struct {
	MTU       int      `json:"mtu"` // bytes
	Units     int      `json:"units"`
	Addresses []string `json:"addresses"`
}

// add makes a device one that commands may name.
func (r *reachable) add(d *device.Device) {
	r.mu.Lock()
	_, known := r.devices[d.Name()]
	r.devices[d.Name()] = d
	r.mu.Unlock()
	if r.server != nil && !known {
		r.server.AddDevice(d.Name())
	}
}

// device is one of this process by its name; "" names the only one.
func (r *reachable) device(name string) (*device.Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.devices[name]; d != nil {
		return d, nil
	}
	if name == "" && len(r.devices) == 1 {
		for _, d := range r.devices {
			return d, nil
		}
	}
	return nil, fmt.Errorf("this process has no device %q", name)
}

func (r *reachable) close() {
	if r.server != nil {
		r.server.Close()
	}
}
