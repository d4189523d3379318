package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// busy starts a measurement that lasts, and returns when commands reach its NICs.
func busy(t *testing.T) (p *program, pid string) {
	t.Helper()
	p = start(t, loopback("write-bw", "-D", "300s", "-s", "256", "--rate", "2000/s", "--fault", "drop=1%,seed=7")...)
	pid = strconv.Itoa(p.cmd.Process.Pid)
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		var rows []nicRow
		if err := json.Unmarshal(run(t, 0, "nics", "--json").out.Bytes(), &rows); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, r := range rows {
			if strconv.Itoa(r.PID) == pid && strings.HasPrefix(r.Command, "rnic perf write-bw") && len(r.Addresses) == 1 {
				n++
			}
		}
		if n == 2 {
			return p, pid
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("the NICs of process %s are not listed: %+v\n%s", pid, rows, p.errOut.String())
		}
	}
}

// A NIC that runs is captured: to a file, to a ring of files, from memory, as text; and what was captured is explained.
func TestCaptureOfARunningNIC(t *testing.T) {
	_, pid := busy(t)
	nic, dir := pid+"/rnic1", t.TempDir()
	packets := func(file string) int {
		t.Helper()
		var r struct {
			RoCE int `json:"roce_packets"`
		}
		if err := json.Unmarshal(run(t, 0, "explain", "--json", file).out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		return r.RoCE
	}

	file := filepath.Join(dir, "f.pcapng")
	p := run(t, 0, "capture", "--nic", nic, "-w", file, "-c", "1000")
	if n := packets(file); n != 1000 || !strings.Contains(p.errOut.String(), "1000 packets captured") {
		t.Errorf("%d packets in the file, 1000 were asked for: %s", n, p.errOut.String())
	}
	if out := run(t, 0, "explain", file).out.String(); !strings.Contains(out, "packet-lost") && !strings.Contains(out, "no-acknowledgement") {
		t.Errorf("one packet in a hundred is lost, and that is not said:\n%s", out)
	}

	run(t, 0, "capture", "--nic", nic, "-w", filepath.Join(dir, "ring.pcapng"), "--ring", "2", "--size", "20K", "-c", "400")
	ring, _ := filepath.Glob(filepath.Join(dir, "ring-*.pcapng"))
	if len(ring) != 2 {
		t.Errorf("a ring of 2 has the files %v", ring)
	}
	for _, f := range ring {
		if st, err := os.Stat(f); err != nil || st.Size() > 24<<10 || packets(f) == 0 {
			t.Errorf("%s: %v, %d packets", f, st, packets(f))
		}
	}

	lines := strings.Split(strings.TrimSpace(run(t, 0, "capture", "--nic", nic, "--opcode", "rdma_write", "-c", "5").out.String()), "\n")
	if len(lines) != 5 || strings.Count(strings.Join(lines, "\n"), "out 127.") != 5 || strings.Count(strings.Join(lines, "\n"), "RC_RDMA_WRITE") != 5 {
		t.Errorf("five WRITEs are shown as\n%s", strings.Join(lines, "\n"))
	}
	if p := run(t, 0, "capture", "--nic", nic, "--peer", "192.0.2.0/24", "-D", "200ms"); p.out.Len() != 0 || !strings.Contains(p.errOut.String(), "0 packets captured") {
		t.Errorf("packets of a peer that there is not: %s%s", p.out.String(), p.errOut.String())
	}
	memory(t, nic, filepath.Join(dir, "m.pcapng"), packets)
}

// What falls out of the memory is let go at once.
func TestMemorySinkLetsGo(t *testing.T) {
	s := memorySink{size: 10, blocks: make([][]byte, 0, 8)}
	all := s.blocks[:8]
	for range 8 {
		if err := s.block(blockPacket, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.blocks) != 2 || all[0] != nil || all[5] != nil || all[6] == nil || all[7] == nil {
		t.Errorf("%d blocks, %v", len(s.blocks), all)
	}
}

// A ring goes on behind the files of a run before, and has N in all; what else is in the directory is left alone. Numbered files of --memory
// overwrite none.
func TestRingGoesOn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.pcapng")
	for _, name := range []string{"r-00007.pcapng", "r-00008.pcapng", "r-00009.pcapng", "r-8.pcapng", "r-00008.pcap", "rr-00001.pcapng", "r-0000x.pcapng", "r.pcapng"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &ringSink{path: path, files: 3, size: 64}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the third begins another file
		if err := s.block(blockPacket, make([]byte, 40)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	var names []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{"r-00008.pcap", "r-00010.pcapng", "r-00011.pcapng", "r-00012.pcapng", "r-0000x.pcapng", "r-8.pcapng", "r.pcapng", "rr-00001.pcapng"}
	slices.Sort(want)
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	m := &memorySink{path: path}
	if err := m.open(); err != nil || m.dumps != 12 {
		t.Errorf("numbered files go on behind %d, %v", m.dumps, err)
	}
}

// memory: the last packets, at a signal and at the end.
func memory(t *testing.T, nic, file string, packets func(string) int) {
	t.Helper()
	p := start(t, "capture", "--nic", nic, "-w", file, "--memory", "50K")
	first := strings.Replace(file, "m.", "m-00001.", 1)
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if _, err := os.Stat(first); err == nil {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("no file at SIGUSR1")
		}
		if opened(p, "socket:") { // then it catches the signal
			_ = p.cmd.Process.Signal(syscall.SIGUSR1)
		}
	}
	_ = p.cmd.Process.Signal(syscall.SIGINT)
	if code := p.end(t); code != 0 || packets(file) == 0 {
		t.Errorf("exit code %d: %s", code, p.errOut.String())
	}
	if st, err := os.Stat(file); err != nil || st.Size() > 55<<10 {
		t.Errorf("%v bytes, of 50K", st.Size())
	}
}

// A capture ends with its NIC, and has its last packets.
func TestCaptureEndsWithTheNIC(t *testing.T) {
	n, pid := busy(t)
	p := start(t, "capture", "--nic", pid+"/rnic0", "-w", filepath.Join(t.TempDir(), "f.pcapng"))
	for begin := time.Now(); !opened(p, "f.pcapng"); time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal("the capture does not connect")
		}
	}
	_ = n.cmd.Process.Signal(syscall.SIGINT)
	if code := p.end(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.errOut.String())
	}
	n.end(t)
}

// opened tells whether the program has something of this name open.
func opened(p *program, name string) bool {
	fds, _ := filepath.Glob("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/fd/*")
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.Contains(to, name) {
			return true
		}
	}
	return false
}

func TestCaptureBadArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"no operation has that":      {"--opcode", "fly"},
		"below 2^24":                 {"--qp", "0x1000000"},
		"no address":                 {"--peer", "host"},
		"need a file":                {"--ring", "3"},
		"a size such as":             {"--memory", "much", "-w", "f"},
		"goes with --ring":           {"--size", "3M", "-w", "f"},
		"exclude each other":         {"--ring", "3", "--memory", "3M", "-w", "f"},
		"1 to 100000 files":          {"--ring=-3", "-w", "f"},
		"no such NIC runs here":      {"--nic", "no-such-nic"},
		"unexpected argument nobody": {"nobody"},
	} {
		code := 2
		if strings.Contains(want, "no such NIC") {
			code = 1
		}
		if p := run(t, code, append([]string{"capture"}, args...)...); !strings.Contains(p.errOut.String(), want) {
			t.Errorf("%v: %s", args, p.errOut.String())
		}
	}
	if p := run(t, 1, "explain", "/dev/null"); !strings.Contains(p.errOut.String(), "no pcap or pcapng capture") {
		t.Errorf("%s", p.errOut.String())
	}
}
