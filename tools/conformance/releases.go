package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// releases are those of Debian whose rdma-core is tried.
var releases = []string{"bullseye", "bookworm", "trixie", "sid"}

// releasePackages are what is unpacked of each, with all that they depend on.
var releasePackages = []string{"libc6", "libibverbs1", "ibverbs-providers", "ibverbs-utils", "librdmacm1", "perftest"}

const (
	archive = "http://deb.debian.org/debian"
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// cacheDir keeps unpacked packages.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "rnic", "releases")
}

// unpackRelease fetches and unpacks a release below the cache, unless it is there. Nothing is installed: apt has
// lists, a cache and an empty status of its own.
func unpackRelease(ctx context.Context, release string) error {
	top := filepath.Join(cacheDir(), release)
	done := filepath.Join(top, "root", ".unpacked")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("no %s: this is no Debian system", tool)
		}
	}
	if err := os.RemoveAll(top); err != nil {
		return err
	}
	for _, dir := range []string{"lists/partial", "archives/partial", "root/usr/bin", "root/usr/sbin", "root/usr/lib", "root/usr/lib64", "root/proc", "root/sys", "root/dev", "root/tmp", "root/etc"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} { // as newer packages expect it
		if err := os.Symlink("usr/"+dir, filepath.Join(top, "root", dir)); err != nil {
			return err
		}
	}
	sources := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, archive, release)
	err := errors.Join(os.WriteFile(filepath.Join(top, "sources.list"), []byte(sources), 0o644), os.WriteFile(filepath.Join(top, "status"), nil, 0o644))
	if err != nil {
		return err
	}
	apt := []string{"-q", "-y", "-o", "Dir::State::lists=" + top + "/lists", "-o", "Dir::State::status=" + top + "/status", "-o", "Dir::Cache=" + top, "-o", "Dir::Cache::archives=" + top + "/archives",
		"-o", "Dir::Etc::sourcelist=" + top + "/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Dir::Etc::preferencesparts=/dev/null", "-o", "APT::Sandbox::User=",
		"-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3", "-o", "Debug::NoLocking=true"}
	if err := command(ctx, "apt-get", append(apt, "update")...); err != nil {
		return err
	}
	if err := command(ctx, "apt-get", append(append(apt, "--download-only", "--no-install-recommends", "install"), releasePackages...)...); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(top, "archives", "*.deb"))
	if err != nil || len(packages) == 0 {
		return errors.Join(err, errors.New("apt-get has fetched nothing"))
	}
	for _, p := range packages {
		if err := command(ctx, "dpkg-deb", "-x", p, filepath.Join(top, "root")); err != nil {
			return err
		}
	}
	var versions []string
	for _, p := range packages {
		name, rest, _ := strings.Cut(filepath.Base(p), "_")
		version, _, _ := strings.Cut(rest, "_")
		if name == "libibverbs1" || name == "perftest" || name == "libc6" {
			versions = append(versions, name+" "+version)
		}
	}
	os.RemoveAll(filepath.Join(top, "archives"))
	os.RemoveAll(filepath.Join(top, "lists"))
	return os.WriteFile(done, []byte(strings.Join(versions, ", ")), 0o644)
}

func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, tail(string(out)))
	}
	return nil
}

// prepareReleases fetches what is not there yet. It is called where the network is; what it could not fetch makes
// the cases of that release be skipped.
func prepareReleases(ctx context.Context) {
	for _, release := range releases {
		if err := unpackRelease(ctx, release); err != nil {
			fmt.Fprintf(os.Stderr, "conformance: Debian %s is not tested: %v\n", release, err)
		}
	}
}

// unpacked is the need of a release, which it makes a root directory of.
func unpacked(release string) need {
	return need{func(r *runner) string {
		from, root := filepath.Join(cacheDir(), release, "root"), filepath.Join(r.dir, release)
		if _, err := os.Stat(filepath.Join(from, ".unpacked")); err != nil {
			return "the packages of Debian " + release + " could not be fetched"
		}
		if _, err := os.Stat(root); err == nil {
			return ""
		}
		if err := os.Mkdir(root, 0o755); err != nil {
			return err.Error()
		}
		script := fmt.Sprintf(`set -e
mount --bind %[1]s %[2]s
mount -o remount,bind,ro %[2]s
mount -t tmpfs -o size=1m,mode=755 tmpfs %[2]s/dev
for d in null zero full random urandom; do touch %[2]s/dev/$d; mount --bind /dev/$d %[2]s/dev/$d; done
mkdir -m 1777 %[2]s/dev/shm
mount -t tmpfs -o mode=1777 tmpfs %[2]s/tmp
mount --rbind /proc %[2]s/proc
mount -t sysfs -o ro sysfs %[2]s/sys || mount --rbind /sys %[2]s/sys`, from, root)
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			return "mounting: " + tail(string(out))
		}
		return ""
	}}
}

func versionCases() (cases []testCase) {
	for _, release := range releases {
		below := func(args []string) []string {
			if args == nil {
				return nil
			}
			return append([]string{"unshare", "-Ur", "chroot", "@DIR/" + release}, args...)
		}
		add := func(id string, c testCase) {
			c.id, c.needs = "versions/"+release+"/"+id, []need{unpacked(release)}
			c.server, c.client = below(c.server), below(c.client)
			cases = append(cases, c)
		}
		add("devices", testCase{server: []string{"/usr/bin/ibv_devices"}, check: shows(`rxe0`)})
		add("devinfo", testCase{server: []string{"/usr/bin/ibv_devinfo", "-v"}, check: shows(`PORT_ACTIVE`, `GID\[ +\d+\]:`)})
		for _, command := range []string{"ibv_rc_pingpong -g 1 -n 100", "ibv_rc_pingpong -g 1 -n 100 -e", "ibv_uc_pingpong -g 1 -n 100", "ibv_ud_pingpong -g 1 -n 100", "ibv_srq_pingpong -g 1 -n 100 -e"} {
			c := pair("", oneNIC, "/usr/bin/"+command)
			c.check = pingpong(100)
			add(named(strings.TrimPrefix(command, "ibv_")), c)
		}
		for _, t := range tools {
			commands := []string{""}
			if t.bandwidth && !t.atomic {
				commands = append(commands, "-s 1048579")
			}
			if t.bandwidth && t.events {
				commands = append(commands, "-e")
			}
			if t.send && t.bandwidth {
				commands = append(commands, "-c UD -s 1000", "-c UC", "--use-srq -q 4")
			}
			for _, options := range commands {
				c := perftestPair("", oneNIC, "/usr/bin/"+t.name+" -F -n 100 "+options)
				c.check = measured(0)
				add(strings.TrimSuffix(named(strings.TrimPrefix(t.name, "ib_")+" "+options), "_"), c)
			}
		}
		c := perftestPair("", twoNICs, "/usr/bin/ib_write_bw -F -n 100")
		c.check = measured(0)
		add("write_bw_two_NICs", c)
	}
	return cases
}
