package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// documents are what users read.
func documents(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	all := map[string]string{}
	for _, f := range append(files, "../../README.md") {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(f)] = string(text)
	}
	return all
}

// blocks are the blocks of code in a language.
func blocks(text, language string) (found []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

// Every rnic command in the documents has options and arguments that there are.
func TestDocumentedCommands(t *testing.T) {
	command := regexp.MustCompile(`(?m)^(?:\$ |here\$ +|there\$ +)?rnic ([^#|&<>;\n]*)`)
	n := 0
	for name, text := range documents(t) {
		for _, block := range blocks(text, "(?:sh)?") {
			for _, m := range command.FindAllStringSubmatch(block, -1) {
				var words []string
				for _, w := range strings.Fields(m[1]) {
					words = append(words, strings.Trim(w, `"'`))
				}
				if len(words) > 0 && words[0] == "run" && strings.Contains(m[1], "--scenario") {
					words = without(words, "--scenario") // whose file must exist
				}
				c := cli
				if _, err := kong.Must(&c, kong.Exit(func(int) {})).Parse(words); err != nil {
					t.Errorf("%s: rnic %s: %v", name, m[1], err)
				}
				n++
			}
		}
	}
	if n < 50 {
		t.Errorf("%d commands were found", n)
	}
}

// without leaves an option and its value away.
func without(words []string, option string) (rest []string) {
	for i := 0; i < len(words); i++ {
		if words[i] == option {
			i++
			continue
		}
		rest = append(rest, words[i])
	}
	return rest
}

// The unit of systemd is one that systemd understands.
func TestDocumentedUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("package systemd is not installed")
	}
	units := blocks(documents(t)["running-programs.md"], "ini")
	if len(units) != 1 {
		t.Fatalf("%d units", len(units))
	}
	file := filepath.Join(t.TempDir(), "my-rdma.service")
	// What it starts is not on this machine.
	unit := regexp.MustCompile(`/usr/local/bin/\S+`).ReplaceAllString(units[0], "/bin/true")
	for _, c := range []struct {
		unit string
		fine bool
	}{{unit, true}, {strings.Replace(unit, "KillMode=", "KillsMode=", 1), false}} {
		if err := os.WriteFile(file, []byte(c.unit), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file).CombinedOutput()
		said := strings.Contains(string(out), "my-rdma.service:")
		if err != nil && !said { // an old one without the option, or a container in which it finds nothing
			t.Skipf("systemd-analyze does not work here: %v\n%s", err, out)
		}
		if said == c.fine {
			t.Errorf("%v\n%s\n%s", err, c.unit, out)
		}
	}
}
