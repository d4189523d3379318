package stock

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Where Debian's python3-pyverbs has the tests of rdma-core, some of them compressed, and what runs them.
const (
	pyverbsTests = "/usr/share/doc/rdma-core/tests"
	python       = "/usr/bin/python3"
)

//go:embed testdata/run_pyverbs.py
var pyverbsRunner []byte

// What the kernel's rxe makes of the same tests: module, test, result, reason.
//
//go:embed testdata/pyverbs-rxe-6.12.tsv
var pyverbsKernel string

var pyverbsOut = flag.String("pyverbs.out", "", "write a table of rdma-core's tests to this file: module, test, result, reason, and result with the kernel's rxe, by tabs")

// pyverbs unpacks rdma-core's own tests, and their runner, where an ordinary user can read them. The modules are those
// of no vendor.
func pyverbs(t *testing.T) (runner, dir string, modules []string) {
	t.Helper()
	files, err := filepath.Glob(pyverbsTests + "/*.py*")
	if len(files) == 0 || err != nil {
		t.Skipf("rdma-core's tests are not in %s: apt-get install python3-pyverbs; images without documentation: apt-get download it and unpack it", pyverbsTests)
	}
	top, err := os.MkdirTemp("", "rnic-pyverbs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	dir, runner = filepath.Join(top, "tests"), filepath.Join(top, "run_pyverbs.py")
	for _, err := range []error{os.Chmod(top, 0o755), os.Mkdir(dir, 0o755), os.WriteFile(runner, pyverbsRunner, 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	vendor := regexp.MustCompile(`^test_(mlx5|efa)`)
	for _, name := range files {
		to := strings.TrimSuffix(filepath.Base(name), ".gz")
		if err := unpack(name, filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
		if m := strings.TrimSuffix(to, ".py"); strings.HasPrefix(m, "test_") && !vendor.MatchString(m) {
			modules = append(modules, m)
		}
	}
	return runner, dir, modules
}

func unpack(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(from, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return err
		}
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// pyverbsTest is what has become of one test.
type pyverbsTest struct{ module, name, result, reason string }

func (r pyverbsTest) key() string { return r.module + "." + r.name }

// pyverbsRow reads a line of fields; ok is false for anything else.
func pyverbsRow(line string) (r pyverbsTest, ok bool) {
	f := strings.Split(line, "\t")
	if len(f) != 4 {
		return r, false
	}
	return pyverbsTest{f[0], f[1], f[2], f[3]}, true
}

// pyverbsSkips are the reasons for which tests may be skipped, as the tests say them and as they are.
var pyverbsSkips = []struct{ says, why string }{
	{`^Device memory is not supported`, "this NIC has no memory of its own"},
	{`^Create XRCD is not supported`, "the stock rxe provider has no XRC"},
	{`^Create Raw Packet QP|^Create QP type 8`, "no raw packet queue pairs: this NIC carries RoCE only"},
	{`^Extended CQ is not supported`, "no tag matching; the rxe provider refuses such a completion queue itself"},
	{`^Parent Domain is not supported`, "the stock rxe provider has no parent domains"},
	{`^Importing a device is not supported`, "the stock rxe provider cannot import"},
	{`^Rereg MR is not supported`, "the rxe provider of this rdma-core has no ibv_rereg_mr"},
	{`^Advise MR with flags`, "the rxe provider of this rdma-core has no ibv_advise_mr (59 has)"},
	{`^There are no huge pages|^Huge pages of size 2M is not`, "this machine has no huge pages set aside (vm.nr_hugepages)"},
	{`^Allocating dmabuf is not supported`, "needs a GPU"},
	{`^cuda-python`, "needs a GPU, and CUDA"},
}

// pyverbsKnown is the one test that the kernel passes and that cannot pass here.
const pyverbsKnown = "test_qpex.QpExTestCase.test_post_send_qp_state_bad_flow"

const pyverbsKnownWhy = "posting to a queue pair that is not ready to send is refused, but with ENOSPC, as if its queue were full: " +
	"the doorbell is a plain write, which cannot answer EINVAL"

// rdma-core's own tests, all modules of no vendor: none fails; what passes with the kernel's
// rxe passes here; and what is skipped has a reason.
func TestPyverbs(t *testing.T) {
	runner, dir, modules := pyverbs(t)
	out, code := runAs(t, fakeRoot, "--", python, "-B", runner, dir, strings.Join(modules, ","), "--dev", "rxe0", "--gid", "0")
	results := map[string]pyverbsTest{}
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "pyverbs\t"); ok {
			if r, ok := pyverbsRow(rest); ok {
				results[r.key()] = r
			}
		}
	}
	if code != 0 || !strings.Contains(out, "\npyverbs\tend\n") {
		t.Fatalf("exit code %d after %d tests\n%s", code, len(results), out)
	}
	kernel := map[string]pyverbsTest{}
	for line := range strings.Lines(pyverbsKernel) {
		if r, ok := pyverbsRow(strings.TrimRight(line, "\n")); ok {
			kernel[r.key()] = r
			if _, ran := results[r.key()]; !ran {
				t.Errorf("%s, which ran with the kernel, did not run", r.key())
			}
		}
	}
	var table bytes.Buffer
	counts := map[string]int{}
	for _, key := range slices.Sorted(maps.Keys(results)) {
		r := results[key]
		judgePyverbs(t, &r, kernel[key])
		counts[r.result]++
		k := kernel[key]
		if k.result == "" {
			k.result = "not recorded"
		}
		fmt.Fprintf(&table, "%s\t%s\t%s\t%s\t%s\n", r.module, r.name, r.result, r.reason, strings.TrimSuffix(k.result+": "+k.reason, ": "))
	}
	t.Logf("%d tests: %v", len(results), counts)
	if *pyverbsOut != "" {
		if err := os.WriteFile(*pyverbsOut, append([]byte("module\ttest\tresult\treason\tkernel\n"), table.Bytes()...), 0o644); err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.Logf("all that was written:\n%s", out)
	}
}

// judgePyverbs finds fault with a result, and completes its reason.
func judgePyverbs(t *testing.T, r *pyverbsTest, kernel pyverbsTest) {
	t.Helper()
	switch {
	case r.key() == pyverbsKnown:
		if r.result == "pass" {
			t.Errorf("%s passes: it is no difference any more", r.key())
		}
		if r.reason != "28 != 22" { // ENOSPC, EINVAL
			t.Errorf("%s: %s: %s, want ENOSPC in the place of EINVAL", r.key(), r.result, r.reason)
		}
		r.reason += ": " + pyverbsKnownWhy
	case r.result == "skip" && kernel.result != "pass":
		for _, s := range pyverbsSkips {
			if regexp.MustCompile(s.says).MatchString(r.reason) {
				r.reason += ": " + s.why
				return
			}
		}
		t.Errorf("%s is skipped for an unknown reason: %s", r.key(), r.reason)
	case r.result != "pass":
		t.Errorf("%s: %s: %s (with the kernel: %s)", r.key(), r.result, r.reason, kernel.result)
	}
}
