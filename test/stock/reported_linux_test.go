package stock

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What people have met with other RDMA software, through stock programs; test/reported has those that need none, and
// docs/faults.md a list of all.

// network runs a script as root of a user namespace with a network of its own, in which only lo is up.
func network(t *testing.T, script string) string {
	t.Helper()
	out, code := command(t, ordinary, "unshare", "-rn", "sh", "-ec", "RNIC="+rnic(t)+"\nip link set lo up || exit 77\n"+script)
	if code == 77 {
		t.Skipf("no such network can be made here:\n%s", out)
	}
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	return out
}

// interfaceWords make an interface with addresses, on the way to everywhere.
const interfaceWords = `
add() { ip link add $1 type veth peer name peer_$1 || exit 77; n=$1; shift; for a; do ip addr add $a dev $n nodad || exit 77; done; ip link set peer_$n up; ip link set $n up; }
`

// The interface of the default route has any name: the NIC has its addresses, first.
func TestInterfaceOfAnyName(t *testing.T) {
	t.Parallel()
	installed(t, "ibv_devinfo")
	for _, name := range []string{"ens5", "wlan0", "wg0", "tun0"} {
		out := network(t, interfaceWords+`add `+name+` 10.9.0.1/24; ip route add default via 10.9.0.2; $RNIC run -- ibv_devinfo -v`)
		if !strings.Contains(out, "GID[  0]:\t\t::ffff:10.9.0.1") {
			t.Errorf("%s:\n%s", name, out)
		}
	}
}

// Without IPv6, and without IPv4, the NIC has the other's addresses only, and programs work.
func TestOneIPVersionOnly(t *testing.T) {
	t.Parallel()
	installed(t, "ibv_rc_pingpong")
	installed(t, "rping")
	out := network(t, interfaceWords+`
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 || exit 77
add eth0 10.9.0.1/24
$RNIC run -- sh -ec 'ibv_devinfo -v | grep GID; `+serverAndClient("ibv_rc_pingpong -g 0 -n 50", "127.0.0.1")+`'
$RNIC run -- sh -ec '`+rpings("", "-C 3", "-a 10.9.0.1 -C 3")+`'`)
	if gids := regexp.MustCompile(`GID\[.*`).FindAllString(out, -1); len(gids) != 2 || strings.Count(out, "::ffff:") < 2 {
		t.Errorf("GIDs %v", gids)
	}
	out = network(t, interfaceWords+`
add eth0 fd00:9::1/64; ip addr del 127.0.0.1/8 dev lo; ip -6 addr del $(ip -6 -o addr show dev eth0 scope link | grep -o 'fe80[^ ]*') dev eth0 2>/dev/null || :
$RNIC run -- sh -ec 'ibv_devinfo -v | grep GID; `+serverAndClient("ibv_rc_pingpong -g 0 -n 50", "::1")+`'
$RNIC run -- sh -ec '`+rpings("", "-a ::1 -C 3", "-a ::1 -C 3")+`'`)
	if strings.Contains(out, "::ffff:") || !strings.Contains(out, "fd00:9::1") {
		t.Errorf("without IPv4:\n%s", out)
	}
}

// serverAndClient is shell for both sides of a program, of which the client is told where.
func serverAndClient(program, at string) string {
	return fmt.Sprintf(`%[1]s & s=$!; %[3]s
%[1]s %[2]s; wait $s`, program, at, pingpongListens)
}

// pingpongListens waits until the server of a pingpong does, at TCP port 18515.
const pingpongListens = `n=0; until grep -qi ":4853 00000000.*:0000 0A" /proc/net/tcp /proc/net/tcp6 || [ $n -gt 1500 ]; do n=$((n+1)); sleep 0.02; done`

// rpings is shell for both sides of rping, each begun with run, of which the client is refused until the server listens.
func rpings(run, server, client string) string {
	return fmt.Sprintf(`%[1]s rping -s %[2]s & s=$!; n=0; until %[1]s rping -c %[3]s; do n=$((n+1)); [ $n -lt 50 ] || exit 1; sleep 0.2; done; wait $s`, run, server, client)
}

// Every GID that is listed can be used, by its index. Where two do not go together the queue pair is refused, and the reason names them.
func TestEveryListedGIDCanBeUsed(t *testing.T) {
	t.Parallel()
	installed(t, "ibv_rc_pingpong")
	out := network(t, interfaceWords+`add eth0 10.9.0.1/24 fd00:9::1/64; add eth1 10.10.0.1/24; $RNIC run -- ibv_devinfo -v`)
	n := strings.Count(out, "GID[")
	if n < 5 {
		t.Fatalf("%d GIDs\n%s", n, out)
	}
	script := interfaceWords + "add eth0 10.9.0.1/24 fd00:9::1/64; add eth1 10.10.0.1/24\n"
	for i := range n {
		script += "$RNIC run -- sh -ec '" + serverAndClient("ibv_rc_pingpong -n 20 -g "+strconv.Itoa(i), "127.0.0.1") + "'\n"
	}
	network(t, script)

	out = network(t, `
$RNIC run -v -- sh -c 'ibv_rc_pingpong -g 0 & `+pingpongListens+`; ibv_rc_pingpong -g 1 127.0.0.1; wait' || :`)
	if !regexp.MustCompile(`MODIFY_QP\(.*INIT->RTR.*dgid=::1, sgid_index=0 \(::ffff:127.0.0.1\).*= -EINVAL \(.*different IP versions`).MatchString(out) {
		t.Errorf("a refused RTR:\n%s", out)
	}
}

// Programs that ask sysfs for the place and the speed of a device get values that they can use.
func TestPlaceAndSpeedOfTheDevice(t *testing.T) {
	t.Parallel()
	out, code := run(t, "--", "sh", "-ec", `d=/sys/class/infiniband/rxe0; for f in device/numa_node device/local_cpus device/local_cpulist ports/1/rate ports/1/link_layer; do
echo "$f: $(cat $d/$f)"; done; ls -d $d/device/net/*`)
	for _, want := range []string{`numa_node: (-1|\d+)`, `local_cpus: [0-9a-f,]*[1-9a-f][0-9a-f,]*`, `local_cpulist: \d[-,0-9]*`, `rate: [1-9]\d* Gb/sec \(\dX [A-Z]+\)`, `link_layer: Ethernet`, `/device/net/\S+`} {
		if code != 0 || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("exit code %d, no %q\n%s", code, want, out)
		}
	}
}

// Two hosts write to a third while one packet in a hundred is lost, both ways: everybody ends, and with success.
func TestIncastWithLoss(t *testing.T) {
	t.Parallel()
	installed(t, "ib_write_bw")
	out := network(t, `
up() { n=0; until grep -qi ":$(printf %04X $1) 00000000.*:0000 0A" /proc/net/tcp /proc/net/tcp6; do n=$((n+1)); [ $n -lt 1500 ] || exit 1; sleep 0.02; done; }
$RNIC run --addr 127.0.0.1 --fault both:drop=1%,seed=1 -- sh -ec 'ib_write_bw -F -u 16 -D 5 -p 18601 & a=$!; ib_write_bw -F -u 16 -D 5 -p 18602 & b=$!; wait $a; wait $b' & s=$!
up 18601; up 18602
$RNIC run --addr 127.0.0.2 --fault both:drop=1%,seed=2 -- ib_write_bw -F -u 16 -D 5 -p 18601 127.0.0.1 & a=$!
$RNIC run --addr 127.0.0.3 --fault both:drop=1%,seed=3 -- ib_write_bw -F -u 16 -D 5 -p 18602 127.0.0.1 & b=$!
wait $a; wait $b; wait $s; echo all ended`)
	if n := len(regexp.MustCompile(`(?m)^ 65536 +[1-9]`).FindAllString(out, -1)); n != 4 || !strings.Contains(out, "all ended") {
		t.Errorf("%d of 4 results\n%s", n, out)
	}
}

// Two networks on one machine: each NIC has its own addresses, and they do not meet.
func TestNICsInTwoNetworks(t *testing.T) {
	t.Parallel()
	installed(t, "ibv_rc_pingpong")
	out := network(t, interfaceWords+`
add eth0 10.9.0.1/24
f=$(mktemp); trap 'rm $f' EXIT
$RNIC run -- sh -ec 'ibv_devinfo -v | grep GID; echo listed >$0; exec sleep 3' $f & a=$!
n=0; until grep -q listed $f; do n=$((n+1)); [ $n -lt 1500 ] || exit 1; sleep 0.02; done
unshare -n sh -ec 'ip link set lo up; $0 run -- sh -ec "echo other; ibv_devinfo -v | grep GID"' $RNIC
wait $a`)
	_, other, _ := strings.Cut(out, "other\n")
	if !strings.Contains(out, "10.9.0.1") || strings.Contains(other, "10.9.0.1") || !strings.Contains(other, "127.0.0.1") {
		t.Errorf("\n%s", out)
	}
}

// The GUIDs are not zero, and the same after a restart.
func TestGUIDsAreStable(t *testing.T) {
	t.Parallel()
	installed(t, "ibv_devinfo")
	out := network(t, interfaceWords+`add eth0 10.9.0.1/24; for i in 1 2; do $RNIC run -- ibv_devinfo -v | grep _guid; done`)
	guids := regexp.MustCompile(`(\w+_guid):\s+(\S+)`).FindAllStringSubmatch(out, -1)
	if len(guids) != 4 || guids[0][2] != guids[2][2] || guids[1][2] != guids[3][2] || guids[0][2] == "0000:0000:0000:0000" || guids[1][2] == "0000:0000:0000:0000" {
		t.Errorf("%q", guids)
	}
}

// reported compiles testdata/reported.c.
func reported(t *testing.T) string {
	t.Helper()
	rnic(t)
	path := filepath.Join(binary.dir, "reported")
	out, err := exec.Command("gcc", "-o", path, "testdata/reported.c", "-libverbs").CombinedOutput()
	if err != nil {
		t.Skipf("the test's program cannot be compiled here (apt-get install gcc libibverbs-dev): %v\n%s", err, out)
	}
	return path
}

// A region of 1 GiB is registered by a user who may lock 64 KiB.
func TestLargeRegionWithLittleLockableMemory(t *testing.T) {
	t.Parallel()
	if out, code := run(t, "--", "sh", "-c", "ulimit -l; exec "+reported(t)+" memlock"); code != 0 || !strings.HasPrefix(out, "64\n") || !strings.Contains(out, "1 GiB registered") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// A waiter on an edge-triggered epoll wakes for what an ending connection flushes: one event, and each request once.
func TestEdgeTriggeredWaiterWakesForFlushes(t *testing.T) {
	t.Parallel()
	if out, code := run(t, "--", reported(t), "edge"); code != 0 || !strings.Contains(out, "edge: 20 flushed") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// create_qp returns the inline size that there is, what was asked for at least, or refuses.
func TestInlineSizeThatIsReturned(t *testing.T) {
	t.Parallel()
	out, code := run(t, "--", reported(t), "inline")
	granted := regexp.MustCompile(`asked (\d+) granted (\d+)`).FindAllStringSubmatch(out, -1)
	if code != 0 || len(granted) != 6 || !strings.Contains(out, "asked 5000 refused") {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	for _, g := range granted {
		asked, _ := strconv.Atoi(g[1])
		if got, _ := strconv.Atoi(g[2]); got < asked {
			t.Errorf("asked for %d, granted %d", asked, got)
		}
	}
}

// What atomics the device has is told truly: among requests of the device, none over PCI.
func TestAtomicCapabilityIsTrue(t *testing.T) {
	t.Parallel()
	if out, code := run(t, "--", reported(t), "atomic"); code != 0 || !strings.Contains(out, "atomic 1 pci 0") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// rping verifies a hundred rounds over each address of its own, in one run and in two.
func TestPingsOverOwnAddresses(t *testing.T) {
	t.Parallel()
	installed(t, "rping")
	for _, at := range []string{"127.0.0.1", "::1", "10.9.0.1"} {
		options := "-a " + at + " -C 100 -V"
		network(t, interfaceWords+"add eth0 10.9.0.1/24\n$RNIC run -- sh -ec '"+rpings("", options, options)+"'\n"+rpings("$RNIC run --", options, options))
	}
}

// Reads of every size finish at every path MTU.
func TestReadsOfEverySizeAtEveryMTU(t *testing.T) {
	t.Parallel()
	for _, mtu := range []string{"256", "512", "1024", "2048", "4096"} {
		if out, code := command(t, ordinary, rnic(t), "perf", "read-bw", "--loopback", "-a", "-n", "1", "-m", mtu); code != 0 || !strings.Contains(out, "8388608") {
			t.Errorf("MTU %s: exit code %d\n%s", mtu, code, out)
		}
	}
}

// A program under a memory checker finds nothing to complain of in what the NIC gives it.
func TestMemoryCheckerFindsNothing(t *testing.T) {
	t.Parallel()
	installed(t, "valgrind")
	installed(t, "ib_send_bw")
	out, code := run(t, "--", "sh", "-ec", serverAndClient("valgrind -q --error-exitcode=9 --suppressions=/dev/null ib_send_bw -n 20 -s 4096", "127.0.0.1"))
	if code != 0 || strings.Contains(out, "Invalid ") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// A program that finds no device because libibverbs lacks its provider: the run says where to look, and the doctor what is missing.
func TestMissingProviderIsTold(t *testing.T) {
	t.Parallel()
	installed(t, "ibv_devinfo")
	const hint = "rnic: the program has asked for RDMA devices, opened none"
	out := network(t, `
unshare -m sh -c 'mount -t tmpfs none /etc/libibverbs.d || exit 77; $0 run -- ibv_devinfo; [ $? = 255 ] || exit 1; $0 doctor' $RNIC || [ $? != 77 ] || exit 77`)
	if !strings.Contains(out, "No IB devices found") || !strings.Contains(out, hint) || !strings.Contains(out, "provider") {
		t.Errorf("\n%s", out)
	}
	if out, _ := run(t, "--", "false"); strings.Contains(out, hint) {
		t.Errorf("a program that never asked:\n%s", out)
	}
	if out, _ := run(t, "--", "sh", "-c", "ibv_devinfo >/dev/null; exit 3"); strings.Contains(out, hint) {
		t.Errorf("a program that found it:\n%s", out)
	}
}
