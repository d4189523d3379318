package stock

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Where Debian's python3-pyverbs has the tests of rdma-core, some of them compressed, and what runs them.
const (
	pyverbsTests = "/usr/share/doc/rdma-core/tests"
	python       = "/usr/bin/python3"
)

// pyverbs unpacks rdma-core's own tests where an ordinary user can read them.
func pyverbs(t *testing.T) (runner string) {
	t.Helper()
	files, err := filepath.Glob(pyverbsTests + "/*.py*")
	if len(files) == 0 || err != nil {
		t.Skipf("rdma-core's tests are not in %s: apt-get install python3-pyverbs", pyverbsTests)
	}
	top, err := os.MkdirTemp("", "rnic-pyverbs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	dir := filepath.Join(top, "tests")
	for _, err := range []error{os.Chmod(top, 0o755), os.Mkdir(dir, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range files {
		if err := unpack(name, filepath.Join(dir, strings.TrimSuffix(filepath.Base(name), ".gz"))); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "run_tests.py")
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

// Verbs that no other stock program uses, by the tests of rdma-core itself: memory windows of both types,
// bound, invalidated by either side and deallocated (InfiniBand vol. 1, 10.6.7), ATOMIC WRITE (annex A19), and
// completion queues that are resized, extended, and waited for (11.2.8).
func TestPyverbs(t *testing.T) {
	runner := pyverbs(t)
	tests := []string{"tests.test_mr.MWTest", "tests.test_qpex.QpExTestCase.test_qp_ex_rc_bind_mw",
		"tests.test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write", "tests.test_device.DeviceTest",
		"tests.test_cq", "tests.test_cq_events", "tests.test_cqex.CQEXAPITest", "tests.test_cqex.CqExTestCase.test_rc_traffic_cq_ex",
		"tests.test_cqex.CqExTestCase.test_ud_traffic_cq_ex", "tests.test_mr.MRTest.test_reg_mr_bad_flags"}
	out, code := run(t, append([]string{"--", python, "-B", runner, "--dev", "rxe0", "--gid", "0", "-v"}, tests...)...)
	if code != 0 || !regexp.MustCompile(`(?m)^Ran \d\d+ tests in `).MatchString(out) || strings.Contains(out, "skipped") {
		t.Errorf("exit code %d, or something was skipped\n%s", code, out)
	}
}
