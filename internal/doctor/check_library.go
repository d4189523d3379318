package doctor

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// libraryName is what programs are linked with: its major version has never changed.
const libraryName = "libibverbs.so.1"

// libraryDirs are where dynamic loaders look: Debian's directories for each architecture, those of
// others, and what the environment adds.
func (s *System) libraryDirs() (dirs []string) {
	for d := range strings.SplitSeq(s.Getenv("LD_LIBRARY_PATH"), ":") {
		if d != "" {
			dirs = append(dirs, d)
		}
	}
	return append(dirs, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
		"/usr/lib64", "/lib64", "/usr/local/lib64", "/usr/local/lib", "/usr/lib", "/lib")
}

// library finds libibverbs: its directory, and the name of the real file, which has the version.
func (s *System) library() (dir, file string) {
	for _, d := range s.libraryDirs() {
		names, err := s.ReadDir(d)
		if err != nil {
			continue
		}
		for _, n := range names {
			if n != libraryName {
				continue
			}
			if to, err := s.Readlink(path.Join(d, n)); err == nil {
				n = path.Base(to)
			}
			return d, n
		}
	}
	return "", ""
}

// releaseOf takes rdma-core's release out of a file name such as libibverbs.so.1.14.44.0; 0 if it
// has none, as before rdma-core 13.
var releaseOf = regexp.MustCompile(`^libibverbs\.so\.1\.\d+\.(\d+)\.(\d+)`)

func checkLibrary(s *System) []Finding {
	const check = "libibverbs"
	dir, file := s.library()
	if dir == "" {
		return []Finding{{check, Problem, libraryName + " is not installed", "Every RDMA program is linked with it. (One that brings its own is not concerned.)",
			s.install()}}
	}
	m := releaseOf.FindStringSubmatch(file)
	if m == nil {
		return ok(check, "%s/%s, of a release that its name does not tell", dir, file)
	}
	if n, _ := strconv.Atoi(m[1]); n < 22 {
		return []Finding{{check, Warning, fmt.Sprintf("%s/%s, of rdma-core %s.%s", dir, file, m[1], m[2]),
			"Before release 22, changes of a shared receive queue and of multicast groups have no effect.", []string{"# a newer release of the distribution has a newer one"}}}
	}
	return ok(check, "%s/%s, of rdma-core %s.%s", dir, libraryName, m[1], m[2])
}

func checkProvider(s *System) []Finding {
	const check = "rxe provider"
	dir, _ := s.library()
	if dir == "" {
		return nil // said above
	}
	var plugin string
	plugins := path.Join(dir, "libibverbs")
	names, _ := s.ReadDir(plugins)
	for _, n := range names {
		if strings.HasPrefix(n, "librxe-rdmav") && strings.HasSuffix(n, ".so") {
			plugin = path.Join(plugins, n)
		}
	}
	config := s.providerConfig()
	switch {
	case plugin == "":
		return []Finding{{check, Problem, "no librxe-rdmav*.so in " + plugins, "Programs find no device.", s.install()}}
	case config == "" && s.Getenv("RDMAV_DRIVERS") == "" && s.Getenv("IBV_DRIVERS") == "":
		return []Finding{{check, Problem, plugin + ", but no file in /etc/libibverbs.d says \"driver rxe\"", "libibverbs does not load the provider: programs find no device.",
			append([]string{"echo driver rxe | sudo tee /etc/libibverbs.d/rxe.driver", "export RDMAV_DRIVERS=rxe     # without root, for programs of this shell"}, s.install()...)}}
	case config == "":
		return ok(check, "%s, loaded because RDMAV_DRIVERS is set", plugin)
	}
	return ok(check, "%s, named in %s", plugin, config)
}

// providerConfig is the file that makes libibverbs load the provider.
func (s *System) providerConfig() string {
	for _, dir := range []string{"/etc/libibverbs.d", "/usr/etc/libibverbs.d", "/usr/share/libibverbs.d", "/usr/local/etc/libibverbs.d"} {
		names, _ := s.ReadDir(dir)
		for _, n := range names {
			for line := range strings.Lines(s.read(path.Join(dir, n))) {
				if f := strings.Fields(line); len(f) == 2 && f[0] == "driver" && path.Base(f[1]) == "rxe" {
					return path.Join(dir, n)
				}
			}
		}
	}
	return ""
}

// install is the command that installs library and provider, by the distribution.
func (s *System) install() []string {
	release := s.read("/etc/os-release")
	ids := strings.Trim(field(release, "ID="), `"`) + " " + strings.Trim(field(release, "ID_LIKE="), `"`)
	for _, id := range strings.Fields(ids) {
		switch id {
		case "debian", "ubuntu":
			return []string{"apt-get install libibverbs1 ibverbs-providers"}
		case "fedora", "rhel", "centos":
			return []string{"dnf install rdma-core libibverbs"}
		case "suse", "opensuse":
			return []string{"zypper install rdma-core libibverbs1"}
		case "arch":
			return []string{"pacman -S rdma-core"}
		}
	}
	return []string{"# install rdma-core: the libraries of libibverbs and its provider rxe"}
}
