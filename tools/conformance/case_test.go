package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rnic/test/interop"
)

// perftest's table, of two sizes.
const table = `
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 2          100              0.00               0.00   		   0.000123
 65536      100              3200.11            3100.02		   0.049600
`

func outcomeOf(client, server said) *outcome {
	return &outcome{Client: client, Server: server, Case: &testCase{layout: oneNIC}}
}

// A program of perftest passes with the rows that were asked for, and with nothing else.
func TestMeasured(t *testing.T) {
	good := said{Out: table}
	for name, test := range map[string]struct {
		o          *outcome
		iterations int
		sizes      []int
		want       string
	}{
		"as asked":         {outcomeOf(good, good), 100, []int{2, 65536}, ""},
		"a row is missing": {outcomeOf(good, good), 100, []int{2, 4, 65536}, "rows for the sizes"},
		"iterations":       {outcomeOf(good, good), 200, []int{2, 65536}, "100 iterations, not 200"},
		"no table":         {outcomeOf(said{Out: "nothing"}, good), 0, nil, "rows for the sizes"},
		"a client fails":   {outcomeOf(said{Out: table, Code: 1}, good), 100, []int{2, 65536}, "the client ended with status 1"},
		"a server fails":   {outcomeOf(good, said{Code: 139}), 100, []int{2, 65536}, "the server ended with status 139"},
		"it complains":     {outcomeOf(good, said{Out: "Failed status 10: wr_id 0"}), 100, []int{2, 65536}, "it says"},
	} {
		err := measured(test.iterations, test.sizes...)(test.o)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// A limit is one only if the case fails, and in the way that is known.
func TestLimits(t *testing.T) {
	c := &testCase{layout: oneNIC, check: (*outcome).ended, limit: &limit{says: "no XRC", reason: "it lacks XRC"}}
	r := &runner{}
	for _, test := range []struct {
		o    *outcome
		want status
	}{
		{outcomeOf(said{}, said{}), passed},
		{outcomeOf(said{Out: "no XRC here", Code: 1}, said{}), limited},
		{outcomeOf(said{Out: "segmentation fault", Code: 139}, said{}), failed},
	} {
		if got, why := r.judge(t.Context(), c, test.o); got != test.want {
			t.Errorf("%+v: %s (%s), want %s", test.o.Client, got, why, test.want)
		}
	}
}

// What fails stands before what passes, is counted, and cannot break the table.
func TestDocument(t *testing.T) {
	r := &report{Machine: "Linux", Results: []result{
		{ID: "ucx/a", Group: "ucx", Command: "a", Layout: "one NIC", Status: passed},
		{ID: "ucx/b", Group: "ucx", Command: "b | c", Layout: "two NICs", Status: failed, Reason: "x | y\nz <w>"},
	}}
	path := filepath.Join(t.TempDir(), "suite.tsv")
	if err := os.WriteFile(path, []byte("module\ttest\tresult\treason\tkernel\ntest_pd\tPDTest.test_alloc_pd\tpass\t\tpass\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	suite, err := readSuite(path)
	if err != nil {
		t.Fatal(err)
	}
	matrix := interop.Begin + "the matrix\n" + interop.End
	text := r.markdown(suite, interop.SectionOf("before\n"+matrix+"behind\n"))
	for _, want := range []string{
		"| [UCX](#ucx) | 1 | 1 | 0 | 0 |\n",
		"| command | programs on | result |\n|---|---|---|\n| `b \\| c` | two NICs | **fail**: x \\| y z &lt;w> |\n| `a` | one NIC | pass |\n",
		"| [rdma-core's Python suite](#rdma-cores-python-suite) | 1 | 0 | | 0 |\n",
		"| test_pd PDTest.test_alloc_pd | pass | pass |\n",
		"\n" + matrix,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the document lacks\n%s\nin\n%s", want, text)
		}
	}
}

// Ids are used once (or allCases panics), each case checks something, and the short form is a choice of them.
func TestCases(t *testing.T) {
	short := 0
	for _, c := range allCases() {
		if len(c.server) == 0 || c.layout != alone && len(c.client) == 0 {
			t.Errorf("%s runs nothing", c.id)
		}
		if c.short {
			short++
		}
	}
	if short < 20 || short > 80 {
		t.Errorf("%d cases in the short form", short)
	}
}
