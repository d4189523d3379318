package stock

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// compiled builds testdata/NAME.c, once.
func compiled(t *testing.T, name string, libraries ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is missing: apt-get install gcc libc6-dev")
	}
	for header, pkg := range map[string]string{"infiniband/verbs.h": "libibverbs-dev", "rdma/rdma_cma.h": "librdmacm-dev"} {
		if _, err := os.Stat("/usr/include/" + header); err != nil {
			t.Skipf("%s is missing: apt-get install %s", header, pkg)
		}
	}
	bin := filepath.Join(filepath.Dir(rnic(t)), name)
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	args := append([]string{"-O1", "-Wall", "-Werror", "-o", bin, "testdata/" + name + ".c"}, libraries...)
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return bin
}
