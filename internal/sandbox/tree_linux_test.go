//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A device that is gone leaves nothing of itself in the tree, and others everything.
func TestTreeRemove(t *testing.T) {
	tr, err := newTree(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rxe0", "rxe00"} {
		err := errors.Join(tr.addDevice("/dev/infiniband/"+name, 231, 192, nil), tr.addFile("/sys/class/infiniband/"+name+"/ports/1/state", "4: ACTIVE\n"),
			tr.addNode(&node{path: "/sys/class/infiniband/" + name + "/ports/1/counters/x", live: true}))
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // what is not there is not missed
		if err := errors.Join(tr.remove("/dev/infiniband/rxe0"), tr.remove("/sys/class/infiniband/rxe0")); err != nil {
			t.Fatal(err)
		}
	}
	for p, want := range map[string]bool{"/dev/infiniband/rxe0": false, "/dev/infiniband/rxe00": true, "/sys/class/infiniband/rxe0/ports/1/counters/x": false,
		"/sys/class/infiniband/rxe00/ports/1/counters/x": true} {
		if _, err := os.Stat(filepath.Join(tr.dir, p)); (err == nil) != want || (tr.node([]byte(p)) != nil) != want {
			t.Errorf("%s: %v, node %v", p, err, tr.node([]byte(p)))
		}
	}
	if n := tr.bases["x"]; len(n) != 1 || len(tr.bases["rxe0"]) != 0 {
		t.Errorf("by their last components there are %v", tr.bases)
	}
	for _, p := range []string{"/etc", "/sys/class/infiniband/../../..", "sys/class/infiniband/rxe00"} {
		if tr.remove(p) == nil {
			t.Errorf("%s was removed", p)
		}
	}
}
