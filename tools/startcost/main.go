// Command startcost measures what the system-call filter of rnic run costs programs while they start: the time of whole
// commands with and without it, in interleaved rounds, and the number of calls that the filter hands over.
//
//	go run ./tools/startcost
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// commands are what is measured: a program of few calls, an interpreter that looks for its modules, a walk through many files.
var commands = [][]string{
	{"/bin/true"},
	{"/usr/bin/python3", "-c", "pass"},
	{"/usr/bin/python3", "-c", "import json, asyncio, http.client"},
	{"/bin/sh", "-c", "ls -R /usr/share/doc | tail"},
	{"/bin/sh", "-c", "ls -lR /usr/share/doc | tail"},
}

// workerFlag makes this program the one that runs commands under the filter.
const workerFlag = "-worker"

func main() {
	log.SetFlags(0)
	log.SetPrefix("startcost: ")
	if len(os.Args) == 2 && os.Args[1] == workerFlag {
		work(os.Stdin, os.Stdout)
		return
	}
	rounds := flag.Int("runs", 21, "number of interleaved `rounds`")
	binary := flag.String("rnic", "", "the rnic to measure; built if empty")
	address := flag.String("addr", "127.77.77.1", "`address` of the NIC, so that it is in nobody's way")
	flag.Parse()
	if err := run(*rounds, *binary, *address); err != nil {
		log.Fatal(err)
	}
}

// work runs the commands whose numbers it reads, and writes how many microseconds each took.
func work(in io.Reader, out io.Writer) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		i, err := strconv.Atoi(lines.Text())
		if err != nil || i < 0 || i >= len(commands) {
			return
		}
		d, err := once(commands[i])
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintln(out, d.Microseconds())
	}
}

func once(command []string) (time.Duration, error) {
	began := time.Now()
	err := exec.Command(command[0], command[1:]...).Run()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return time.Since(began), err
}

// worker is a process under the filter.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startWorker(rnic, address string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// --no-nice: another priority is not the filter's cost.
	w := &worker{cmd: exec.Command(rnic, "run", "--no-nice", "--addr", address, "--", self, workerFlag)}
	w.cmd.Stderr = os.Stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewScanner(out)
	return w, w.cmd.Start()
}

func (w *worker) once(i int) (time.Duration, error) {
	fmt.Fprintln(w.in, i)
	if !w.out.Scan() {
		return 0, fmt.Errorf("the process under rnic run ended: %v", w.out.Err())
	}
	us, err := strconv.ParseInt(w.out.Text(), 10, 64)
	return time.Duration(us) * time.Microsecond, err
}

// both runs a command without and with the filter, in that order or the other: the second finds caches that the first has filled.
func both(command []string, i int, w *worker, without bool) (a, b time.Duration, err error) {
	if !without {
		if b, err = w.once(i); err != nil {
			return 0, 0, err
		}
	}
	if a, err = once(command); err == nil && without {
		b, err = w.once(i)
	}
	return a, b, err
}

func run(rounds int, rnic, address string) error {
	if rnic == "" {
		dir, err := os.MkdirTemp("", "rnic-startcost-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		rnic = filepath.Join(dir, "rnic")
		build := exec.Command("go", "build", "-o", rnic, "./cmd/rnic")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build rnic: %w", err)
		}
	}
	w, err := startWorker(rnic, address)
	if err != nil {
		return err
	}
	without, under := make([][]float64, len(commands)), make([][]float64, len(commands))
	for round := range rounds + 1 { // the first fills caches
		for i, c := range commands {
			a, b, err := both(c, i, w, round%2 == 0)
			if err != nil {
				return err
			}
			if round > 0 {
				without[i] = append(without[i], a.Seconds()*1e3)
				under[i] = append(under[i], b.Seconds()*1e3)
			}
		}
	}
	w.in.Close()
	if err := w.cmd.Wait(); err != nil {
		return err
	}
	var whole []float64
	for range rounds {
		d, err := once([]string{rnic, "run", "--no-nice", "--addr", address, "--", "/bin/true"})
		if err != nil {
			return err
		}
		whole = append(whole, d.Seconds()*1e3)
	}
	print(rounds, without, under, whole)
	return nil
}

func print(rounds int, without, under [][]float64, whole []float64) {
	load, _ := os.ReadFile("/proc/loadavg")
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	fmt.Printf("%d processors, Linux %s, %d rounds, load average %s.\n\n", runtime.NumCPU(), strings.TrimSpace(string(release)), rounds,
		strings.Join(strings.Fields(string(load))[:min(3, len(strings.Fields(string(load))))], " "))
	fmt.Print("| command | without, ms | under the filter, ms | fastest, ms | more, ms | calls handed over | us each |\n|---|---|---|---|---|---|---|\n")
	for i, c := range commands {
		// The fastest of each: what else runs on the machine only adds.
		a, b := slices.Min(without[i]), slices.Min(under[i])
		calls, each := "", ""
		if n, err := count(c); err != nil {
			calls = err.Error()
		} else {
			calls, each = strconv.Itoa(n), fmt.Sprintf("%.1f", (b-a)*1e3/float64(n))
			if n < fewCalls {
				each = "" // the clock says nothing of so few
			}
		}
		fmt.Printf("| `%s` | %s | %s | %.1f, %.1f | %.1f | %s | %s |\n", strings.Replace(strings.Join(c, " "), "|", `\|`, 1), figure(without[i]), figure(under[i]), a, b, b-a, calls, each)
	}
	fmt.Printf("\n`rnic run -- /bin/true`, NIC made and gone again: %s ms.\n", figure(whole))
}

// fewCalls is the number of calls below which the cost of one is not computed.
const fewCalls = 50

// figure is a median, with quartiles.
func figure(v []float64) string {
	slices.Sort(v)
	return fmt.Sprintf("**%.1f** (%.1f to %.1f)", median(v), v[len(v)/4], v[len(v)*3/4])
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// notified are the calls on paths that the filter hands over, and execve.
const notified = "?open,openat,openat2,?stat,?lstat,newfstatat,statx,?access,faccessat,faccessat2,?readlink,readlinkat,getxattr,lgetxattr,listxattr,llistxattr,execve,execveat"

// count tells how many calls of a command the filter hands over: strace sees them all, and a stat by descriptor
// (AT_EMPTY_PATH) passes.
func count(command []string) (int, error) {
	f, err := os.CreateTemp("", "rnic-startcost-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	cmd := exec.Command("strace", append([]string{"-f", "-qq", "-e", "signal=none", "-e", "trace=" + notified, "-o", f.Name()}, command...)...)
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("strace: %w", err)
	}
	n := -1 // the execve of strace itself is before the filter
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if l := lines.Text(); !strings.Contains(l, "AT_EMPTY_PATH") && !strings.Contains(l, " resumed>") && strings.Contains(l, "(") {
			n++
		}
	}
	return n, lines.Err()
}
