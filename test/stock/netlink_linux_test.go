package stock

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// rdmaTool skips the test without the rdma tool.
func rdmaTool(t *testing.T) {
	t.Helper()
	for _, p := range []string{"/usr/bin/rdma", "/sbin/rdma", "/usr/sbin/rdma"} {
		if _, err := os.Stat(p); err == nil {
			return
		}
	}
	t.Skip("rdma is not installed: apt-get install iproute2")
}

// A device may have any name: programs find it by netlink, not by its name.
func TestAnyName(t *testing.T) {
	installed(t, "ibv_devinfo")
	for _, name := range []string{"mlx5_7", "7", "my.hca-A"} {
		out, code := run(t, "--name", name, "--", "ibv_devinfo", "-d", name)
		if code != 0 || !regexp.MustCompile(`hca_id:\s+`+regexp.QuoteMeta(name)+`\n`).MatchString(out) {
			t.Errorf("%s: exit code %d\n%s", name, code, out)
		}
	}
	installed(t, "ib_write_bw")
	if out, code := run(t, append([]string{"--name", "mlx5_7"}, pair("ibv_rc_pingpong -d mlx5_7 -g 0 -n 100 -c")...)...); code != 0 {
		t.Errorf("ibv_rc_pingpong -d mlx5_7: exit code %d\n%s", code, out)
	}
	if out, code := run(t, "--name", "mlx5_7", "--", "ibv_devinfo", "-d", "rxe0"); code == 0 {
		t.Errorf("a device of another name is found\n%s", out)
	}
}

// The files say the same name, and the node has the number that netlink tells.
func TestNamesInSysfs(t *testing.T) {
	const script = `cat /sys/class/infiniband_verbs/uverbs0/ibdev && ls /sys/class/infiniband && ls -lL /dev/infiniband/uverbs0`
	out, code := run(t, "--name", "mlx5_7", "--", "sh", "-c", script)
	if code != 0 || strings.Count(out, "mlx5_7\n") != 2 || !strings.Contains(out, "231, 192") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestRDMAToolListsTheDevice(t *testing.T) {
	rdmaTool(t)
	for command, want := range map[string]string{
		"dev show":               `^0: hca7: node_type ca fw \d+\.\d+\.\d+ node_guid [0-9a-f:]{19} sys_image_guid [0-9a-f:]{19} \n$`,
		"-d dev show hca7":       `caps: <.*SYS_IMAGE_GUID.*MEM_WINDOW_TYPE_2B`,
		"link show":              `^link hca7/1 state ACTIVE physical_state LINK_UP netdev lo \n$`,
		"link show hca7/1":       `^link hca7/1 state ACTIVE physical_state LINK_UP netdev lo \n$`,
		"-d link":                `netdev_index 1 \n$`,
		"system show":            `^netns shared copy-on-fork on\n$`,
		"resource show":          `^0: hca7: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0 \n$`,
		"statistic show":         `^link hca7/1 sent_pkts 0 rcvd_pkts 0 duplicate_request 0 `,
		"statistic mode":         `^$`,
		"-p statistic qp":        `^$`,
		"resource show qp":       `^link hca7/1 lqpn 1 type GSI state RTS sq-psn \d+ pdn 1 comm \[ib_core\] \n$`,
		"-j resource show cm_id": `^\[ ?\]\n$`,
	} {
		out, code := run(t, "--name", "hca7", "--", "sh", "-c", "PATH=$PATH:/sbin:/usr/sbin rdma "+command)
		if code != 0 || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("rdma %s: exit code %d, no %q in\n%s", command, code, want, out)
		}
	}
}

// What would change something is refused, as the kernel refuses it to users without privileges.
func TestRDMAToolChangesNothing(t *testing.T) {
	rdmaTool(t)
	if os.Getuid() != 0 {
		t.Skip("needs root, to run as a user who has no capability in the test's namespace")
	}
	for _, command := range []string{"dev set hca7 name other", "link add x type rxe netdev lo", "system set netns exclusive", "statistic qp set link hca7/1 auto type on"} {
		out, code := run(t, "--name", "hca7", "--", "sh", "-c", "PATH=$PATH:/sbin:/usr/sbin; rdma "+command+"; rdma dev")
		if code != 0 || !strings.Contains(out, "Operation not permitted") || !strings.Contains(out, "0: hca7: ") {
			t.Errorf("rdma %s: exit code %d\n%s", command, code, out)
		}
	}
}

// objects makes objects of every kind by pyverbs, and has the rdma tool list them: more queue pairs than one message
// of the protocol holds.
const objects = `
import json, os, subprocess
import pyverbs.enums as e
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.qp import QP, QPInitAttr, QPCap, QPAttr
from pyverbs.srq import SRQ, SrqInitAttr, SrqAttr

ctx = Context(name='hca7')
pd, cq = PD(ctx), CQ(ctx, 100)
mr = MR(pd, 12345, e.IBV_ACCESS_LOCAL_WRITE)
srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=10)))
def qp(typ, **kw):
    return QP(pd, QPInitAttr(qp_type=typ, scq=cq, rcq=cq, cap=QPCap(max_send_wr=4, max_recv_wr=4), **kw), QPAttr())
rc = [qp(e.IBV_QPT_RC) for _ in range(100)]
ud, shared = qp(e.IBV_QPT_UD), qp(e.IBV_QPT_RC, srq=srq)
def rdma(kind):
    return json.loads(subprocess.run(['rdma', '-j', 'resource', 'show'] + kind, stdout=subprocess.PIPE, check=True).stdout)
seen = {k: [o for o in rdma([k]) if 'pid' in o] for k in ['qp', 'cq', 'mr', 'pd', 'ctx', 'srq']} # without the NIC's own
made = {'qp': sorted(q.qp_num for q in rc + [ud, shared]), 'mr': [mr.lkey, mr.rkey], 'ud': ud.qp_num, 'shared': shared.qp_num, 'pid': os.getpid(), 'cqe': cq.cqe}
one = rdma(['qp', 'lqpn', str(ud.qp_num)])
for o in rc + [ud, shared, srq, mr, cq, pd]: o.close()
ctx.close()
print(json.dumps({'Made': made, 'Seen': seen, 'One': one, 'Left': rdma([])}))
`

func TestRDMAToolListsResources(t *testing.T) {
	rdmaTool(t)
	if _, err := os.Stat("/usr/lib/python3/dist-packages/pyverbs"); err != nil {
		t.Skip("pyverbs is not installed: apt-get install python3-pyverbs")
	}
	out, code := run(t, "--name", "hca7", "--", "env", "PATH="+os.Getenv("PATH")+":/sbin:/usr/sbin", python, "-c", objects)
	var got struct {
		Made struct {
			QP              []uint32
			MR              []uint32
			UD, Shared, PID uint32
			CQE             uint32
		}
		Seen struct {
			QP []struct {
				Lqpn, PDN, PID    uint32
				Type, State, Comm string
			}
			CQ []struct{ CQN, CQE, Users, CTXN, PID uint32 }
			MR []struct {
				MRN, PDN, PID uint32
				Rkey, Lkey    string
				Mrlen         int
			}
			PD  []struct{ PDN, Users, CTXN, PID uint32 }
			Ctx []struct{ CTXN, PID uint32 }
			SRQ []struct {
				SRQN, PDN, PID uint32
				Type           string
				Lqpn           []string
			}
		}
		One []struct {
			Lqpn uint32
			Type string
		}
		Left []map[string]any
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v\n%.2000s", code, err, out)
	}
	made, seen := &got.Made, &got.Seen
	if len(seen.QP) != len(made.QP) || len(seen.CQ) != 1 || len(seen.MR) != 1 || len(seen.PD) != 1 || len(seen.Ctx) != 1 || len(seen.SRQ) != 1 {
		t.Fatalf("%+v", seen)
	}
	for i, q := range seen.QP {
		want := "RC"
		if q.Lqpn == made.UD {
			want = "UD"
		}
		if q.Lqpn != made.QP[i] || q.Type != want || q.State == "" || q.PDN != seen.PD[0].PDN || q.PID != made.PID || !strings.HasPrefix(q.Comm, "python3") {
			t.Errorf("queue pair %+v, made was %d", q, made.QP[i])
		}
	}
	if c := seen.CQ[0]; c.CQE != made.CQE || int(c.Users) != 2*len(made.QP) || c.CTXN != seen.Ctx[0].CTXN || c.PID != made.PID {
		t.Errorf("completion queue %+v", c)
	}
	if p := seen.PD[0]; int(p.Users) != len(made.QP)+2 || p.CTXN != seen.Ctx[0].CTXN { // a region and a shared queue
		t.Errorf("protection domain %+v", p)
	}
	if m := seen.MR[0]; m.Mrlen != 12345 || m.Lkey != hex(made.MR[0]) || m.Rkey != hex(made.MR[1]) || m.PDN != seen.PD[0].PDN {
		t.Errorf("region %+v, keys made %x", m, made.MR)
	}
	if s := seen.SRQ[0]; s.Type != "BASIC" || len(s.Lqpn) != 1 || s.Lqpn[0] != strconv.Itoa(int(made.Shared)) || s.PDN != seen.PD[0].PDN {
		t.Errorf("shared receive queue %+v", s)
	}
	if len(got.One) != 1 || got.One[0].Lqpn != made.UD || got.One[0].Type != "UD" {
		t.Errorf("one queue pair: %+v", got.One)
	}
	for k, own := range map[string]float64{"pd": 1, "cq": 1, "qp": 1, "mr": 0, "ctx": 0, "srq": 0} {
		if len(got.Left) != 1 || got.Left[0][k] != own {
			t.Errorf("left of kind %s: %v", k, got.Left)
		}
	}
}

func TestRDMAToolCounts(t *testing.T) {
	rdmaTool(t)
	installed(t, "ibv_rc_pingpong")
	args := pair("ibv_rc_pingpong -d hca7 -g 0 -n 100 -s 64 -c")
	args[3] += "; PATH=$PATH:/sbin:/usr/sbin rdma -j statistic show"
	out, code := run(t, append([]string{"--name", "hca7"}, args...)...)
	var counters []map[string]any
	if at := strings.Index(out, `[{"ifname"`); code != 0 || at < 0 || json.Unmarshal([]byte(out[at:]), &counters) != nil || len(counters) != 1 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	// 200 messages, all between queue pairs of this NIC, and their acknowledgements.
	c := counters[0]
	if v, _ := c["sent_pkts"].(float64); v < 400 || c["rcvd_pkts"] != c["sent_pkts"] {
		t.Errorf("%v packets sent, %v received", c["sent_pkts"], c["rcvd_pkts"])
	}
	if c["rdma_sends"] != 200.0 || c["rdma_recvs"] != 200.0 {
		t.Errorf("%v sends, %v receives, want 200 each", c["rdma_sends"], c["rdma_recvs"])
	}
	if v, _ := c["completions"].(float64); v != 400 || c["error_completions"] != 0.0 {
		t.Errorf("%v completions, of them errors %v", c["completions"], c["error_completions"])
	}
}

func hex(v uint32) string { return strconv.FormatUint(uint64(v), 16) }
