//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// treePrefix begins the names of the directories of emulated trees, in os.TempDir.
const treePrefix = "rnic-run-"

// hold locks the directory of a tree for as long as this process lives: it is in use.
func hold(dir string) {
	if fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) // where there are no locks nothing is ever stale
	}
}

// removeStale removes the directories of runs of this user whose processes were all killed at once, so that none was left to do
// it: those that nobody holds. Young ones may be about to be held.
func removeStale(tmp string, now time.Time) {
	d, err := os.Open(tmp)
	if err != nil {
		return
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		if strings.HasPrefix(name, treePrefix) {
			removeIfStale(filepath.Join(tmp, name), now)
		}
	}
}

// youngest is the age from which on an unlocked directory is stale.
const youngest = time.Minute

func removeIfStale(dir string, now time.Time) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || int(st.Uid) != os.Geteuid() || now.Sub(time.Unix(st.Mtim.Unix())) < youngest {
		return
	}
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		os.RemoveAll(dir)
	}
}
