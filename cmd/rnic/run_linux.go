package main

import (
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/sandbox"
	"rnic/internal/uverbs"
)

// supervise makes the NIC and serves the program's calls until it has ended.
func supervise(s *sandbox.Supervisor, c *runConfig) error {
	var policy nic.Policy
	if c.DCQCN {
		policy.Congestion = nic.CongestionDCQCN
	}
	dev, err := device.New(device.Config{Policy: policy, Name: c.Name, Interface: c.Interface, Addrs: c.Addrs, MTU: c.MTU, Units: c.Units, Seed: c.Seed,
		SendFault: c.SendFault, RecvFault: c.RecvFault, Capture: c.Capture})
	if err != nil {
		return err
	}
	defer dev.Close()
	cfg := uverbs.Config{Name: c.Name, Version: firmware(Version), Warnf: logf, NoIoctl: c.NoIoctl}
	var done func()
	if cfg.Watch, done, err = c.watch(); err != nil {
		return err
	}
	defer done()
	if c.Verbose && cfg.Watch.JSON == nil {
		cfg.Logf = logf
	}
	if c.Trace != "" {
		f, err := create("--trace", c.Trace)
		if err != nil {
			return err
		}
		defer f.Close()
		cfg.Trace = f
	}
	if c.Profile != "" {
		f, err := create("--profile", c.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	drv, err := uverbs.New(dev, s, cfg)
	if err != nil {
		return err
	}
	defer drv.Close()
	if err := drv.AddTo(s); err != nil {
		return fmt.Errorf("building the device's files: %w", err)
	}
	return s.Serve()
}

// firmware is the version as the device reports it.
func firmware(version string) (v [3]uint16) {
	for i, part := range strings.SplitN(version, ".", 3) {
		n, _ := strconv.ParseUint(part, 10, 16)
		v[i] = uint16(n)
	}
	return v
}
