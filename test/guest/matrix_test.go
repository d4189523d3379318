package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"rnic/test/interop"
)

// someOfMatrix runs the cases of the matrix of make interop that are for every change.
func someOfMatrix(t *testing.T, p *peer, rnic string) {
	gopeer := filepath.Join(t.TempDir(), "gopeer")
	build := exec.Command("go", "build", "-o", gopeer, "rnic/test/interop/gopeer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building gopeer: %v\n%s", err, out)
	}
	rig := interop.NewRig(p.Machine, p.network, Link, rnic, gopeer)
	for _, c := range interop.Short() {
		t.Run(c.ID, func(t *testing.T) {
			res, err := rig.Run(t.Context(), &c)
			if err != nil {
				t.Fatalf("%v\nconsole:\n%s", err, p.Console())
			}
			if !res.Pass {
				t.Errorf("%s: %s\nserver:\n%s\nclient:\n%s", res.Command, res.Reason, res.Server, res.Client)
			} else if res.First != "" {
				t.Logf("at the first try: %s", res.First)
			}
		})
	}
}
