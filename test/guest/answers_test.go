package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The programs of test/stock whose output is recorded there as the kernel's.
var recorded = []string{"cmanswers", "ece"}

const stockData = "../stock/testdata/"

// compileRecorded builds them in dir.
func compileRecorded(t *testing.T, dir string) (paths []string) {
	t.Helper()
	for _, name := range recorded {
		path := filepath.Join(dir, name)
		out, err := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-o", path, stockData+name+".c", "-lrdmacm", "-libverbs").CombinedOutput()
		if err != nil {
			t.Fatalf("compiling %s.c: %v\n%s", name, err, out)
		}
		paths = append(paths, path)
	}
	return paths
}

// answers holds the kernel to what is recorded of it: that our connection manager answers the same is tested in test/stock.
func answers(t *testing.T, p *peer) {
	for _, name := range recorded {
		want, err := os.ReadFile(stockData + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Run(t.Context(), "timeout 60 "+name+" "+GuestAddress)
		if err != nil || strings.TrimSpace(out) != strings.TrimSpace(string(want)) {
			t.Errorf("%s: %v; the kernel answers\n%s\nand not, as recorded,\n%s", name, err, out, want)
		}
	}
}
