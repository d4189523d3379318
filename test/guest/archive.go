package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// archive is a Debian archive that apt looks into: the configured one, or one suite with lists of its own, which
// the system's apt does not see.
type archive struct {
	options []string // of apt-get and apt-cache
	stamp   string   // a file as old as the lists; empty: the system keeps them
}

const (
	archiveURL = "http://deb.debian.org/debian"
	keyring    = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// listsLast is how long lists of a suite are used before apt looks for newer ones.
const listsLast = 7 * 24 * time.Hour

// openArchive returns the archive of a suite ("trixie", "sid"), or for "" the one that the system is configured for.
func openArchive(ctx context.Context, cache, suite string) (*archive, error) {
	if suite == "" {
		return &archive{}, nil
	}
	top := filepath.Join(cache, "archive-"+suite)
	for _, dir := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			return nil, err
		}
	}
	sources := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, archiveURL, suite)
	err := errors.Join(os.WriteFile(filepath.Join(top, "sources.list"), []byte(sources), 0o644),
		os.WriteFile(filepath.Join(top, "status"), nil, 0o644))
	if err != nil {
		return nil, err
	}
	a := &archive{stamp: filepath.Join(top, "updated"), options: []string{
		"-o", "Dir::State::lists=" + top + "/lists", "-o", "Dir::State::status=" + top + "/status", "-o", "Dir::Cache=" + top,
		"-o", "Dir::Etc::sourcelist=" + top + "/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::Etc::preferencesparts=/dev/null", "-o", "Acquire::Languages=none",
		"-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"}}
	info, err := os.Stat(a.stamp)
	if err == nil && time.Since(info.ModTime()) < listsLast {
		return a, nil
	}
	if updateErr := a.update(ctx); updateErr != nil && err != nil {
		return nil, updateErr
	}
	return a, nil // old lists serve where no newer can be had
}

// update fetches the lists of packages.
func (a *archive) update(ctx context.Context) error {
	if _, err := a.get(ctx, "", "update"); err != nil {
		return err
	}
	if a.stamp == "" {
		return nil
	}
	return os.WriteFile(a.stamp, nil, 0o644)
}

// get runs apt-get in a directory.
func (a *archive) get(ctx context.Context, dir string, args ...string) ([]byte, error) {
	// The sandbox user of apt may not write to a directory of root's.
	options := append([]string{"-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3"}, a.options...)
	return run(ctx, dir, "apt-get", append(options, args...)...)
}

// depends returns what a package depends on.
func (a *archive) depends(ctx context.Context, name string) (names []string, err error) {
	out, err := run(ctx, "", "apt-cache", append(append([]string(nil), a.options...), "depends", name)...)
	for line := range strings.Lines(string(out)) {
		if _, dependence, ok := strings.Cut(line, "Depends: "); ok {
			names = append(names, strings.TrimSpace(dependence))
		}
	}
	return names, err
}

// download fetches packages into a directory and returns the files.
func (a *archive) download(ctx context.Context, dir string, names ...string) ([]string, error) {
	args := append([]string{"download"}, names...)
	if _, err := a.get(ctx, dir, args...); err != nil {
		// The package lists may be older than the archive.
		if err := a.update(ctx); err != nil {
			return nil, err
		}
		if _, err := a.get(ctx, dir, args...); err != nil {
			return nil, err
		}
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
	if len(files) != len(names) {
		return nil, fmt.Errorf("apt-get download of %s left %d packages", strings.Join(names, ", "), len(files))
	}
	return files, nil
}
