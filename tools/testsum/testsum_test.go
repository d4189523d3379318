package main

import (
	"strings"
	"testing"
)

// TestSummary reads what go test -json writes for a passed, a skipped and a
// failed test, for a package that does not compile and for one that crashes.
func TestSummary(t *testing.T) {
	const events = `{"Action":"output","Package":"p","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestAway","Output":"=== RUN   TestAway\n"}
{"Action":"output","Package":"p","Test":"TestAway","Output":"    x_test.go:3: no root\n"}
{"Action":"output","Package":"p","Test":"TestAway","Output":"--- SKIP: TestAway (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestAway","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestBad","Output":"    x_test.go:9: one is not two\n"}
{"Action":"fail","Package":"p","Test":"TestBad","Elapsed":0}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"fail","Package":"p","Elapsed":1.5}
{"ImportPath":"q [q.test]","Action":"build-output","Output":"q.go:1: undefined: x\n"}
{"ImportPath":"q [q.test]","Action":"build-fail"}
{"Action":"output","Package":"d","Test":"TestCrash","Output":"fatal error: out of luck\n"}
{"Action":"fail","Package":"d","Elapsed":1}
{"Action":"pass","Package":"r","Elapsed":2}
`
	var out strings.Builder
	s := &summary{out: &out, outputs: map[string]*strings.Builder{}}
	s.read(strings.NewReader(events))
	s.finish()
	got := out.String()
	for _, want := range []string{
		"ok    r ", "FAIL  p ", "left out: p TestAway: x_test.go:3: no root\n", "one is not two", "q.go:1: undefined: x",
		"out of luck",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "TestGood") {
		t.Errorf("a passed test is mentioned:\n%s", got)
	}
	if strings.Index(got, "left out") > strings.Index(got, "one is not two") {
		t.Errorf("the failures do not stand last:\n%s", got)
	}
	if len(s.failed) != 5 {
		t.Errorf("failed: %q, want TestBad, p, q, TestCrash and d", s.failed)
	}
}
