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

// mappedSize is the length of the files that programs map as buffers.
const mappedSize = 1 << 20

// makeFiles makes files in dir with contents that differ everywhere and from each other.
func makeFiles(dir string, names []string) error {
	for n, name := range names {
		b := make([]byte, mappedSize)
		for i := range b {
			b[i] = byte(i>>8 ^ i*7 ^ (n+1)*29)
		}
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, b, 0o666), os.Chmod(path, 0o666)); err != nil {
			return err
		}
	}
	return nil
}

// arrived returns a check that the first bytes of the client's buffer are in the server's.
func arrived(length int) func(*outcome) error {
	return func(o *outcome) error {
		server, err1 := os.ReadFile(filepath.Join(o.scratch, "server"))
		client, err2 := os.ReadFile(filepath.Join(o.scratch, "client"))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if !bytes.Contains(server, client[:length]) {
			return errors.New("what the client had in its buffer is not in the server's")
		}
		return nil
	}
}

func (l *limit) pattern() *regexp.Regexp { return regexp.MustCompile(l.says) }
