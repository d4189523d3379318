package uverbs

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The kernel's own rxe (Linux 6.12) was recorded under the same programs: testdata/rxe-6.12-*.txt has
// every ioctl of ibv_rc_pingpong, ibv_ud_pingpong, ibv_srq_pingpong and ibv_devinfo with its attributes and answers. Here
// the same programs run under rnic run, whose trace has the same form, and the two are
// compared: sequence of commands, attribute ids, lengths, flags, errors, which outputs are marked valid,
// and the contents of the answers.
//
// Everything that may differ is listed here, with its reason.

// differ says which bytes of an answer may differ from the kernel's.
type differ struct {
	command, attr string
	from, to      int
	reason        string
}

var mayDiffer = []differ{
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 0, 8, "fw_ver: the version of rnic"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 8, 24, "node_guid, sys_image_guid: names"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 52, 60, "max_qp, max_qp_wr: limits"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 60, 64, "device_cap_flags: no memory windows, path migration"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 72, 88, "max_cq, max_cqe, max_mr, max_pd: limits"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 96, 100, "max_res_rd_atom: a limit"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 120, 124, "max_mw: a limit; no memory windows"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 132, 144, "multicast: limits"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 144, 148, "max_ah: a limit"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 156, 170, "SRQ, P_Key table: limits"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 184, 204, "odp_caps: on-demand paging, which rxe has from Linux 6.15 on"},
	{"DEVICE.INVOKE_WRITE EX_QUERY_DEVICE", "CORE_OUT", 224, 232, "device_cap_flags_ex, as device_cap_flags"},
	{"DEVICE.QUERY_PORT", "RESP", 0, 4, "port_cap_flags: IP based GIDs are announced too"},
	{"DEVICE.QUERY_PORT", "RESP", 4, 8, "max_msg_sz: a limit, 1 GiB"},
	{"DEVICE.QUERY_PORT", "RESP", 16, 20, "gid_tbl_len: a limit"},
	{"DEVICE.QUERY_PORT", "RESP", 28, 29, "active_mtu: of the interface"},
	{"DEVICE.QUERY_PORT", "RESP", 34, 36, "active_width, active_speed: 100 Gb/s, where rxe says 2.5"},
	{"DEVICE.QUERY_PORT", "RESP", 44, 48, "active_speed_ex: as active_speed"},
	{"DEVICE.QUERY_GID_ENTRY", "RESP_ENTRY", 0, 20, "gid, gid_index: addresses"},
	{"DEVICE.QUERY_GID_ENTRY", "RESP_ENTRY", 28, 32, "ifindex: a name"},
	{"DEVICE.INVOKE_WRITE CREATE_COMP_CHANNEL", "CORE_OUT", 0, 4, "the descriptor: a handle"},
	{"DEVICE.INVOKE_WRITE ALLOC_PD", "CORE_OUT", 0, 4, "pd_handle: a handle, and never 0 here"},
	{"DEVICE.INVOKE_WRITE REG_MR", "CORE_OUT", 0, 12, "mr_handle, lkey, rkey: handles"},
	{"DEVICE.INVOKE_WRITE CREATE_AH", "CORE_OUT", 0, 4, "ah_handle: a handle"},
	{"DEVICE.INVOKE_WRITE CREATE_AH", "UHW_OUT", 0, 4, "ah_num: a handle"},
	{"CQ.CREATE", "UHW_OUT", 0, 12, "offset and size of the queue: an address; elements of 64 bytes, not 128"},
	{"SRQ.CREATE", "UHW_OUT", 0, 8, "offset of the queue: an address"},
	{"SRQ.CREATE", "UHW_OUT", 16, 20, "srq_num: a handle"},
	{"QP.CREATE", "UHW_OUT", 0, 8, "offset of the receive queue: an address"},
	{"QP.CREATE", "UHW_OUT", 16, 24, "offset of the send queue: an address"},
	{"QP.CREATE", "RESP_QP_NUM", 0, 4, "the queue pair number: a handle"},
	{"CQ.DESTROY", "RESP", 0, 4, "comp_events_reported: how many completions an event finds is a matter of time"},
}

// Besides:
//   - Calls that repeat the one before count once: REQ_NOTIFY_CQ, because how many completions an event
//     finds is a matter of time; QUERY_GID_ENTRY, because the tables have different lengths.
//   - QUERY_GID_ENTRY of an empty slot (ENODATA) is left out of both: it was not recorded.
//   - Of handles in attributes only their presence is compared.

// traced is one command of a trace.
type traced struct {
	name, head string
	process    string
	in         []string // "id len flags"
	result     string
	out        []string          // the same, of those marked valid; "id handle" for handles
	content    map[string][]byte // of valid outputs, by name
}

func (c *traced) String() string {
	return fmt.Sprintf("%s %s\n    in  %s\n    %s\n    out %s", c.name, c.head, strings.Join(c.in, ", "), c.result, strings.Join(c.out, ", "))
}

var (
	callLine   = regexp.MustCompile(`^ioctl (.*?) (\(.*?\))(?: process (\d+))?$`)
	inLine     = regexp.MustCompile(`^   in  (0x\w+) (\S+) +len (\d+) +flags (\d+)`)
	outLine    = regexp.MustCompile(`^   out (0x\w+) (\S+) +len (\d+) +flags (\d+) *(?:\*)?: (.*)$`)
	handleLine = regexp.MustCompile(`^   out (0x\w+) (\S+) +len 0 +flags \d+ data 0x`)
)

// parseTrace reads a trace. Doorbells and mmap, which the kernel's recording has too, are left out.
func parseTrace(t *testing.T, text string) (calls []*traced) {
	t.Helper()
	var c *traced
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		switch m := callLine.FindStringSubmatch(line); {
		case m != nil:
			c = &traced{name: m[1], head: m[2], process: m[3], content: map[string][]byte{}}
			calls = append(calls, c)
		case c == nil || !strings.HasPrefix(line, "   "):
			c = nil
		case strings.HasPrefix(line, "   in "):
			m := inLine.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("trace line %q", line)
			}
			c.in = append(c.in, fmt.Sprintf("%s len %s flags %s", m[1], m[3], m[4]))
		case strings.HasPrefix(line, "   = "):
			c.result = strings.ToLower(line[3:])
		case handleLine.MatchString(line):
			c.out = append(c.out, handleLine.FindStringSubmatch(line)[1]+" handle")
		default:
			c.addOutput(t, line)
		}
	}
	for _, c := range calls {
		slices.Sort(c.out) // the order in which they were answered does not show
	}
	return calls
}

func (c *traced) addOutput(t *testing.T, line string) {
	m := outLine.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("trace line %q", line)
	}
	if m[4] != "3" { // what the recorder shows of inputs afterwards
		return
	}
	c.out = append(c.out, fmt.Sprintf("%s len %s flags %s", m[1], m[3], m[4]))
	b, err := hex.DecodeString(strings.ReplaceAll(m[5], " ", ""))
	if err != nil {
		t.Fatalf("trace line %q: %v", line, err)
	}
	c.content[m[2]] = b
}

// essential leaves out what may differ in number.
func essential(calls []*traced) (kept []*traced) {
	for _, c := range calls {
		if c.name == "DEVICE.QUERY_GID_ENTRY" && strings.Contains(c.result, "no data available") {
			continue
		}
		if n := len(kept); n > 0 && kept[n-1].name == c.name && kept[n-1].String() == c.String() &&
			(strings.HasSuffix(c.name, "REQ_NOTIFY_CQ") || c.name == "DEVICE.QUERY_GID_ENTRY") {
			continue
		}
		kept = append(kept, c)
	}
	return kept
}

func compareTraces(t *testing.T, ours, kernel []*traced) {
	t.Helper()
	ours, kernel = essential(ours), essential(kernel)
	for i := range max(len(ours), len(kernel)) {
		switch {
		case i >= len(ours):
			t.Errorf("command %d is missing:\n%v", i, kernel[i])
			return
		case i >= len(kernel):
			t.Errorf("command %d is one more than the kernel's:\n%v", i, ours[i])
			return
		case ours[i].String() != kernel[i].String():
			t.Errorf("command %d:\n%v\nand with the kernel\n%v", i, ours[i], kernel[i])
			return
		}
		compareContent(t, ours[i], kernel[i])
	}
}

// recordedBytes is as much of an answer as was recorded.
const recordedBytes = 256

func compareContent(t *testing.T, ours, kernel *traced) {
	t.Helper()
	for name, want := range kernel.content {
		got := ours.content[name]
		if len(want) == recordedBytes && len(got) > len(want) {
			got = got[:len(want)]
		}
		if len(got) != len(want) {
			t.Errorf("%s: %s has %d bytes, with the kernel %d", ours.name, name, len(got), len(want))
			continue
		}
		for i := range got {
			if got[i] == want[i] || slices.ContainsFunc(mayDiffer, func(d differ) bool {
				return d.command == ours.name && d.attr == name && d.from <= i && i < d.to
			}) {
				continue
			}
			t.Errorf("%s: byte %d of %s is %#x, with the kernel %#x\nours   %x\nkernel %x", ours.name, i, name, got[i], want[i], got, want)
			break
		}
	}
}

// stock tells whether a stock program is installed, and skips the test if not.
func stock(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed: apt-get install ibverbs-utils ibverbs-providers", program)
	}
}

// buildRnic builds the binary once for all tests of the package.
func buildRnic(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "uverbs-test-")
		if err != nil {
			built.err = err
			return
		}
		built.dir, built.path = dir, filepath.Join(dir, "rnic")
		out, err := exec.Command("go", "build", "-o", built.path, "rnic/cmd/rnic").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// rnicRun runs a shell command under rnic run in a network namespace of its own, and returns the trace of
// its commands by process, in the order in which the processes appear.
func rnicRun(t *testing.T, shell string) (output string, byProcess [][]*traced) {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := isolated(t, buildRnic(t), "run", "-v", "--trace", trace, "--", "sh", "-c", shell)
	out := finish(t, cmd, time.Minute)
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	place := map[string]int{}
	for _, c := range parseTrace(t, string(text)) {
		i, ok := place[c.process]
		if !ok {
			i = len(byProcess)
			place[c.process] = i
			byProcess = append(byProcess, nil)
		}
		byProcess[i] = append(byProcess[i], c)
	}
	return out, byProcess
}

// pair is a shell command that runs a server and a client, and fails if one of them does. The client tries
// again until the server listens.
func pair(server, client string) string {
	return fmt.Sprintf(`%s & s=$!; n=0
until [ -n "$(grep -i ':%04X 00000000:0000 0A' /proc/net/tcp /proc/net/tcp6)" ] || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done
%s || exit 1; wait $s`, server, 18515, client)
}

func TestCommandsAsWithTheKernel(t *testing.T) {
	const rc, ud = "ibv_rc_pingpong -d rxe0 -n 3 -g 0", "ibv_ud_pingpong -d rxe0 -n 3 -g 0"
	const srq = "ibv_srq_pingpong -d rxe0 -n 16 -s 1024 -g 0"
	for _, c := range []struct{ recording, program, shell string }{
		{"devinfo", "ibv_devinfo", "ibv_devinfo -v -d rxe0"},
		{"rc_pingpong", "ibv_rc_pingpong", pair(rc+" -s 4096", rc+" -s 4096 127.0.0.1")},
		{"rc_pingpong-e", "ibv_rc_pingpong", pair(rc+" -s 4096 -e", rc+" -s 4096 -e 127.0.0.1")},
		{"ud", "ibv_ud_pingpong", pair(ud+" -s 1024", ud+" -s 1024 127.0.0.1")},
		{"srq_pingpong", "ibv_srq_pingpong", pair(srq, srq+" 127.0.0.1")},
	} {
		t.Run(c.recording, func(t *testing.T) {
			stock(t, c.program)
			recorded, err := os.ReadFile("testdata/rxe-6.12-" + c.recording + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			out, processes := rnicRun(t, c.shell)
			want := 2
			if c.recording == "devinfo" {
				want = 1
			}
			if len(processes) != want {
				t.Fatalf("%d processes opened the device, want %d\n%s", len(processes), want, out)
			}
			for _, p := range processes {
				compareTraces(t, p, parseTrace(t, string(recorded)))
			}
		})
	}
}
