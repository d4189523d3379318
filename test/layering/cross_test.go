package layering

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestOtherSystemsCompile holds that verbs and the command compile, without cgo, where the NIC has
// programs to serve.
func TestOtherSystemsCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the standard library for five systems: left out with -short")
	}
	for _, system := range []string{"linux/arm64", "darwin/arm64", "darwin/amd64", "windows/amd64", "freebsd/amd64"} {
		t.Run(strings.ReplaceAll(system, "/", "_"), func(t *testing.T) {
			goos, goarch, _ := strings.Cut(system, "/")
			cmd := exec.Command("go", "build", "-o", os.DevNull, "./cmd/rnic")
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
