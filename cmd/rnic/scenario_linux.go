package main

import (
	"os"
	"path/filepath"
	"slices"
)

// judge is called when the program has ended, with its exit code.
func (r *supervised) judge(code int) error {
	r.hint(code)
	for _, o := range r.own {
		if o.dev != nil && o.nic.Scenario != nil {
			return judgeScenario(o.dev, os.Stderr, code)
		}
	}
	return nil
}

// hint says where to look if a program has failed that has asked for devices and opened none: libibverbs has shown it none, if it
// lacks the provider. Programs that ask for other reasons are left alone.
func (r *supervised) hint(code int) {
	own := func(o *ownNIC) bool { return o.drv != nil && o.drv.Opened() }
	if code == 0 || !r.asked.Load() || len(r.guests) > 0 || slices.ContainsFunc(r.own, own) || len(r.c.Command) == 0 ||
		filepath.Base(r.c.Command[0]) == "rdma" {
		return
	}
	logf("the program has asked for RDMA devices, opened none of those that there are, and failed: if it has found none, rnic doctor says what is missing")
}
