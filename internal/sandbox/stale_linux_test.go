//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What a run has left whose processes were all killed at once goes with the next one; nothing else does.
func TestStaleDirectories(t *testing.T) {
	tmp := t.TempDir()
	now := time.Now().Add(time.Hour)
	old := now.Add(-2 * youngest)
	stays := map[string]bool{"rnic-run-stale": false, "rnic-run-held": true, "rnic-run-young": true, "other": true, "rnic-run-link": true, "rnic-run-file": true}
	for name := range stays {
		path := filepath.Join(tmp, name)
		var err error
		switch name {
		case "rnic-run-link":
			err = os.Symlink(filepath.Join(tmp, "other"), path)
		case "rnic-run-file":
			err = os.WriteFile(path, nil, 0o600)
		default:
			err = os.MkdirAll(filepath.Join(path, "sys", "class"), 0o755)
		}
		if err == nil && name != "rnic-run-link" {
			err = os.Chtimes(path, old, old)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	young := filepath.Join(tmp, "rnic-run-young")
	if err := os.Chtimes(young, now, now); err != nil {
		t.Fatal(err)
	}
	hold(filepath.Join(tmp, "rnic-run-held"))
	removeStale(tmp, now)
	for name, want := range stays {
		if _, err := os.Lstat(filepath.Join(tmp, name)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", name, err == nil, want)
		}
	}
}
