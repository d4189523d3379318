package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// program is the need of a program in PATH.
func installed(name string) need {
	return need{func(*runner) string {
		if _, err := exec.LookPath(name); err != nil {
			return name + " is not installed: scripts/packages.sh conformance"
		}
		return ""
	}}
}

// hugepages is the need of huge pages that are free.
var hugepages = need{func(*runner) string {
	data, _ := os.ReadFile("/proc/sys/vm/nr_hugepages")
	if n := strings.TrimSpace(string(data)); n == "" || n == "0" {
		return "this machine has no huge pages reserved (vm.nr_hugepages)"
	}
	return ""
}}

// runsJoin is the need of a rnic whose second run joins the first.
var runsJoin = need{func(r *runner) string {
	if r.joins == nil {
		c := testCase{layout: joined, server: []string{"sleep", "1"}, client: []string{"ibv_devices"}, timeout: 20 * time.Second}
		o := r.run(context.Background(), &c)
		works := o.Client.Code == 0 && strings.Contains(o.Client.Out, "rxe0")
		r.joins = &works
	}
	if !*r.joins {
		return "a second rnic run does not join the first one's NIC in this build"
	}
	return ""
}}

// wrote returns a check that the programs have written a file with something in it.
func wrote(name string) func(*outcome) error {
	return func(o *outcome) error {
		info, err := os.Stat(filepath.Join(o.scratch, name))
		if err != nil {
			return err
		}
		if info.Size() == 0 {
			return fmt.Errorf("%s is empty", name)
		}
		return nil
	}
}

// sameContents returns a check that two files, the buffers of both sides, are equal and not all zero.
func sameContents(one, two string) func(*outcome) error {
	return func(o *outcome) error {
		a, err1 := os.ReadFile(filepath.Join(o.scratch, one))
		b, err2 := os.ReadFile(filepath.Join(o.scratch, two))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if !bytes.Equal(a, b) || len(bytes.Trim(a, "\x00")) == 0 {
			return errors.New("the buffers of both sides are not equal, or all zero")
		}
		return nil
	}
}

func (l *limit) pattern() *regexp.Regexp { return regexp.MustCompile(l.says) }
