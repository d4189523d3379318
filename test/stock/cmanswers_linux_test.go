package stock

import (
	_ "embed"
	"strings"
	"testing"
)

// What the connection manager of a Debian 12 kernel (6.1) with its rxe answers to the programs testdata/cmanswers.c and testdata/ece.c; test/guest
// holds the kernel to it.
var (
	//go:embed testdata/cmanswers.txt
	cmAnswers string
	//go:embed testdata/ece.txt
	eceAnswers string
)

// The user ABI of the connection manager (rdma/rdma_user_cm.h) answers as the kernel does with a RoCE device: addresses of InfiniBand and the port space
// of InfiniBand, lengths of addresses, enhanced connection establishment.
func TestConnectionManagerAnswers(t *testing.T) {
	for name, want := range map[string]string{"cmanswers": cmAnswers, "ece": eceAnswers} {
		t.Run(name, func(t *testing.T) {
			out, code := run(t, "--", compiled(t, name, "-lrdmacm", "-libverbs"), "127.0.0.1")
			if code != 0 || out != want {
				t.Errorf("exit code %d\n%s", code, differing(want, out))
			}
		})
	}
}

// differing are the lines that two texts do not have in common, each with the last line before it that is not indented.
func differing(want, got string) string {
	var b strings.Builder
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	about := ""
	for i := 0; i < max(len(w), len(g)); i++ {
		line := func(l []string) string {
			if i < len(l) {
				return l[i]
			}
			return "(nothing)"
		}
		if !strings.HasPrefix(line(w), "\t") {
			about = line(w)
		}
		if line(w) != line(g) {
			b.WriteString(about + "\n- " + line(w) + "\n+ " + line(g) + "\n")
		}
	}
	return b.String()
}
