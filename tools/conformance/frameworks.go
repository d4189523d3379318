package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

// clientShows is shows for what only one side writes.
func clientShows(patterns ...string) func(*outcome) error {
	check := shows(patterns...)
	return func(o *outcome) error {
		c := *o.Case
		c.serverStays = true
		copied := *o
		copied.Case = &c
		return check(&copied)
	}
}

// qperfPort is where qperf's server listens.
const qperfPort = 19765

// qperfCases are the tests of RDMA without its connection manager. Then qperf addresses by LID alone, which no RoCE device
// takes: they go to the kernel's too.
func qperfCases() (cases []testCase) {
	for _, test := range []string{"rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_read_lat", "rc_rdma_write_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat",
		"rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add", "uc_lat", "uc_bw", "uc_bi_bw", "uc_rdma_write_bw", "uc_rdma_write_lat",
		"uc_rdma_write_poll_lat", "ud_lat", "ud_bw", "ud_bi_bw"} { // Debian's is built without those of XRC
		c := testCase{id: "qperf/" + test, layout: oneNIC, server: []string{"qperf"}, port: qperfPort, serverStays: true, needs: []need{installed("qperf")},
			client: []string{"qperf", serverAddress, "-t", "1", test}, check: clientShows(`(bw|latency|msg_rate) +=  *[\d.]+`)}
		c.limit = &limit{says: `failed to modify QP to RTR: Invalid argument|failed to create address handle: Invalid argument`, kernel: true,
			reason: "without a connection manager qperf addresses by LID alone, and RoCE needs a GID"}
		cases = append(cases, c)
	}
	return cases
}

// ucxPort is where ucx_perftest's server listens.
const ucxPort = 13337

func ucxCases() (cases []testCase) {
	needs := []need{installed("ucx_perftest"), installed("ucx_info")}
	cases = append(cases,
		testCase{id: "ucx/info/transports", server: []string{"ucx_info", "-d"}, needs: needs, short: true,
			check: shows(`Transport: rc_verbs\n#\s+Device: rxe0:1`, `Transport: ud_verbs\n#\s+Device: rxe0:1`)},
		testCase{id: "ucx/info/endpoint", server: []string{"ucx_info", "-e", "-u", "t"}, env: []string{"UCX_TLS=rc_v,self"}, needs: needs, check: shows(`rc_verbs/rxe0:1`)})
	add := func(l layout, transport, test, size string, n int) *testCase {
		where := map[layout]string{oneNIC: "", twoNICs: "/two_NICs", joined: "/two_runs_joined"}[l]
		options := []string{"-t", test, "-n", fmt.Sprint(n), "-w", "10", "-s", size}
		c := testCase{id: "ucx/" + transport + "/" + test + "/" + size + where, layout: l, port: ucxPort, needs: needs,
			env: []string{"UCX_TLS=" + transport + ",self", "UCX_NET_DEVICES=rxe0:1"}, server: []string{"ucx_perftest"}, client: append([]string{"ucx_perftest", serverAddress}, options...)}
		c.check = clientShows(fmt.Sprintf(`(?m)^(Final:)? +%d( +(?:[\d.]+|inf)){7}`, n))
		cases = append(cases, c)
		return &cases[len(cases)-1]
	}
	tests := []string{"tag_lat", "tag_bw", "tag_sync_lat", "tag_sync_bw", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_am_lat", "ucp_am_bw", "stream_bw", "stream_lat"}
	atomics := []string{"ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"}
	for _, transport := range []string{"rc_v", "ud_v", "rc_verbs,ud_verbs"} {
		for _, test := range tests {
			for _, size := range []struct {
				bytes string
				n     int
			}{{"8", 1000}, {"4097", 1000}, {"65536", 300}, {"1048579", 30}} {
				c := add(oneNIC, transport, test, size.bytes, size.n)
				c.short = size.bytes == "65536" && (test == "tag_bw" || test == "ucp_get") && transport != "rc_verbs,ud_verbs"
			}
		}
		for _, test := range atomics {
			add(oneNIC, transport, test, "8", 1000).short = test == "ucp_fadd" && transport == "rc_v"
		}
	}
	for _, transport := range []string{"rc_v", "ud_v"} {
		for _, test := range []string{"tag_lat", "ucp_put_bw", "ucp_get", "ucp_am_bw"} {
			add(twoNICs, transport, test, "65536", 300)
			c := add(twoNICs, transport, test, "65535", 300)
			c.run = []string{"--fault", "drop=1%,seed=7"}
			c.id += "/loss"
		}
		add(twoNICs, transport, "ucp_fadd", "8", 1000)
		add(joined, transport, "tag_bw", "65536", 300)
	}
	return append(cases, uctCases(needs)...)
}

// uctCases are those of UCX's lower layer, which goes to one transport directly.
func uctCases(needs []need) (cases []testCase) {
	for _, t := range []struct{ transport, test, layout, size string }{
		{"rc_verbs", "am_lat", "short", "8"}, {"rc_verbs", "am_lat", "bcopy", "1000"}, {"rc_verbs", "am_bw", "zcopy", "4096"},
		{"rc_verbs", "put_lat", "short", "8"}, {"rc_verbs", "put_lat", "bcopy", "1000"}, {"rc_verbs", "put_bw", "zcopy", "65536"},
		{"rc_verbs", "get", "bcopy", "1000"}, {"rc_verbs", "get", "zcopy", "65536"},
		{"rc_verbs", "fadd", "bcopy", "8"}, {"rc_verbs", "cswap", "bcopy", "8"},
		{"ud_verbs", "am_lat", "short", "8"}, {"ud_verbs", "am_lat", "bcopy", "1000"}, {"ud_verbs", "am_bw", "zcopy", "1000"},
	} {
		options := []string{"-d", "rxe0:1", "-x", t.transport, "-t", t.test, "-s", t.size, "-n", "1000", "-w", "10"}
		if t.test != "fadd" && t.test != "cswap" {
			options = append(options, "-D", t.layout)
		}
		cases = append(cases, testCase{id: "ucx/uct/" + t.transport + "/" + t.test + "/" + t.layout, layout: oneNIC, port: ucxPort, needs: needs,
			server: []string{"ucx_perftest"}, client: append([]string{"ucx_perftest", serverAddress}, options...), check: clientShows(`(?m)^(Final:)? +1000( +(?:[\d.]+|inf)){7}`)})
	}
	return cases
}

// mpiCases run a program of ours, in testdata, with each of both implementations.
func mpiCases() (cases []testCase) {
	for _, m := range []struct {
		name, compiler, launcher string
		options, env             []string
	}{
		// Between ranks of one machine both prefer shared memory, which is not what is tested.
		{"mpich", "mpicc.mpich", "mpiexec.mpich", nil, []string{"MPIR_CVAR_NOLOCAL=1", "MPIR_CVAR_CH4_NETMOD=ucx"}},
		{"openmpi", "mpicc.openmpi", "mpiexec.openmpi", []string{"--oversubscribe", "--mca", "pml", "ucx", "--mca", "btl", "self", "--mca", "osc", "ucx", "--mca", "coll", "^hcoll",
			"--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any", "--mca", "plm", "isolated", "--mca", "mca_base_component_show_load_errors", "0"}, nil},
	} {
		for _, ranks := range []string{"4", "8"} {
			for _, transport := range []string{"rc_v", "ud_v"} {
				for _, operation := range []string{"allreduce", "alltoall"} {
					program := "@DIR/mpicheck-" + m.name
					cases = append(cases, testCase{id: "mpi/" + m.name + "/" + transport + "/" + ranks + "_ranks/" + operation, timeout: 3 * time.Minute,
						server: append(append([]string{m.launcher, "-n", ranks}, m.options...), program, operation),
						env:    append([]string{"UCX_TLS=" + transport + ",self", "UCX_NET_DEVICES=rxe0:1", "HOME=@TMP", "TMPDIR=@TMP"}, m.env...),
						check:  shows(operation + " of " + ranks + ` ranks: all right`), needs: []need{installed(m.launcher), compiled(m.compiler, program)}})
				}
			}
		}
	}
	return cases
}

// compiled is the need of the MPI program, which it builds.
func compiled(compiler, program string) need {
	return need{func(r *runner) string {
		target := r.expand([]string{program}, "")[0]
		if matches, _ := filepath.Glob(target); matches != nil {
			return ""
		}
		return compile(compiler, target, "tools/conformance/testdata/mpicheck.c")
	}}
}

// compile builds a program, and returns why it cannot.
func compile(compiler, target, source string, libraries ...string) string {
	if _, err := exec.LookPath(compiler); err != nil {
		return compiler + " is not installed: scripts/packages.sh conformance"
	}
	args := append([]string{"-O1", "-Wall", "-o", target, source}, libraries...)
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		return fmt.Sprintf("%s: %v: %s", compiler, err, tail(string(out)))
	}
	return ""
}
