// Command conformance runs stock RDMA programs of Debian, unmodified, on rnic run, one case after the other, and
// says of each whether it passes, fails, is skipped, or fails for a reason that is not the NIC's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rnic/test/interop"
)

// options are those of the command line.
type options struct {
	group, pattern, rnic, results, document, suite string
	short, list, verbose, render, update           bool
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == startsPlan {
		if err := carryOut(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "conformance:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 2 && (os.Args[1] == movesFrom || os.Args[1] == movesTo) {
		if err := runQEMU(os.Args[1], os.Args[2:]); err != nil {
			fmt.Println("conformance:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.group, "group", "", "run only this `group`, or these, comma separated")
	flag.StringVar(&o.pattern, "run", "", "run only cases whose id matches this `pattern`")
	flag.BoolVar(&o.short, "short", false, "run a few cases of each group, which takes about a minute")
	flag.BoolVar(&o.list, "list", false, "print the cases and run none")
	flag.BoolVar(&o.verbose, "verbose", false, "print what the programs write")
	flag.BoolVar(&o.update, "update", false, "keep the last run's results of the cases that are not run now")
	flag.BoolVar(&o.render, "render", false, "run nothing: write the document from the results of the last run")
	flag.StringVar(&o.rnic, "rnic", "./rnic", "`binary` to test")
	flag.StringVar(&o.results, "o", "build/conformance.json", "write results to this `file`")
	flag.StringVar(&o.document, "doc", "docs/conformance.md", "write this `document` when all cases were run; empty: none")
	flag.StringVar(&o.suite, "suite", "test/stock/testdata/pyverbs.tsv", "results of rdma-core's Python suite, tab separated")
	flag.Parse()
	code, err := run(&o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(o *options) (int, error) {
	if flag.NArg() > 0 {
		return 2, fmt.Errorf("unknown argument %q", flag.Arg(0))
	}
	cases, err := o.selected()
	if err != nil {
		return 2, err
	}
	if o.render {
		r, err := readReport(o.results)
		if err != nil {
			return 1, err
		}
		return 0, r.document(o)
	}
	if o.list {
		for i := range cases {
			fmt.Printf("%s\t%s\t%s\n", cases[i].id, cases[i].layout, cases[i].command())
		}
		return 0, nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv(inNamespaces) == "" {
		if !o.short && slices.ContainsFunc(cases, func(c testCase) bool { return c.group == "versions" }) {
			prepareReleases(ctx)
		}
		if len(kernelPrograms(cases)) > 0 || slices.ContainsFunc(cases, func(c testCase) bool { return c.group == "qemu" }) {
			prepareKernel(ctx)
		}
		code, err := enterNamespaces(ctx)
		if o.short && errors.Is(err, errNoNamespaces) {
			fmt.Println("skip, all of them:", err)
			return 0, nil
		}
		return code, err
	}
	r, err := newRunner(o.rnic, os.Getenv(inNamespaces))
	if r != nil {
		defer r.close()
	}
	if err != nil {
		return 1, err
	}
	rep := r.runAll(ctx, o, cases)
	if o.update {
		if last, err := readReport(o.results); err == nil {
			rep.keep(last)
		}
	}
	rep.Complete = len(rep.Results) == len(allCases())
	if err := rep.write(o.results); err != nil {
		return 1, err
	}
	fmt.Printf("%d pass, %d fail, %d limit, %d skip, %.0f s\n", rep.count("", passed), rep.count("", failed), rep.count("", limited), rep.count("", skipped), rep.Seconds)
	if rep.Complete && o.document != "" {
		if err := rep.document(o); err != nil {
			return 1, err
		}
	}
	if ctx.Err() != nil || rep.count("", failed) > 0 {
		return 1, nil
	}
	return 0, nil
}

// document writes the document.
func (r *report) document(o *options) error {
	suite, err := readSuite(o.suite)
	if err != nil {
		return err
	}
	last, err := os.ReadFile(o.document)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(o.document, []byte(r.markdown(suite, interop.SectionOf(string(last)))), 0o644)
}

// selected are the cases that the options ask for.
func (o *options) selected() ([]testCase, error) {
	pattern, err := regexp.Compile(o.pattern)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	wanted := strings.Split(o.group, ",")
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	for _, w := range wanted {
		if w != "" && !slices.Contains(names, w) {
			return nil, fmt.Errorf("--group: no group %q; there are %s", w, strings.Join(names, ", "))
		}
	}
	cases := slices.DeleteFunc(allCases(), func(c testCase) bool {
		return o.group != "" && !slices.Contains(wanted, c.group) || !pattern.MatchString(c.id) || o.short && !c.short
	})
	if len(cases) == 0 {
		return nil, fmt.Errorf("no case matches; --list shows them")
	}
	return cases, nil
}

// runAll runs cases one after the other.
func (r *runner) runAll(ctx context.Context, o *options, cases []testCase) *report {
	rep := &report{Machine: machine(), Programs: versions()}
	begin := time.Now()
	for i := range cases {
		if ctx.Err() != nil {
			break
		}
		c := &cases[i]
		res, out := r.try(ctx, c)
		rep.Results = append(rep.Results, res)
		line := fmt.Sprintf("%-5s %s %.1f s", res.Status, res.ID, res.Seconds)
		if res.Reason != "" {
			line += ": " + res.Reason
		}
		if res.Status != passed || !o.short {
			fmt.Println(line)
		}
		if o.verbose && out != nil {
			fmt.Printf("--- %s\n--- server, status %d:\n%s--- client, status %d:\n%s--- rnic run:\n%s\n", res.Command, out.Server.Code, out.Server.Out, out.Client.Code, out.Client.Out, out.Runs)
		}
	}
	rep.Seconds = time.Since(begin).Seconds()
	return rep
}

// machine describes what the tests ran on.
func machine() string {
	var u unix.Utsname
	unix.Uname(&u)
	return fmt.Sprintf("Linux %s, %d processors", unix.ByteSliceToString(u.Release[:]), runtime.NumCPU())
}

// versions are those of the packages that the programs come from.
func versions() (list []string) {
	for _, p := range []string{"ibverbs-utils", "perftest", "qperf", "ucx-utils", "mpich", "openmpi-bin", "libfabric-bin", "rdmacm-utils", "iperf3", "qemu-system-x86"} {
		if out, err := exec.Command("dpkg-query", "-W", "-f", "${Package} ${Version}", p).Output(); err == nil {
			list = append(list, string(out))
		}
	}
	return list
}
