package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cmNetworkCases are connections over other networks than a cable between two: three hosts at a bridge, a tunnel that carries IP without
// Ethernet; and UCX's endpoints by address.
func cmNetworkCases() (cases []testCase) {
	three := cmPair("mckey/three_namespaces", twoNICs, "mckey -C 50 -m "+group, "mckey -s -C 50 -m "+group)
	three.check, three.timeout = shows(`return status 0`), time.Minute
	three.do = func(ctx context.Context, r *runner, c *testCase) *outcome { return r.threeMembers(ctx, c) }
	cases = append(cases, three)

	for _, p := range []struct{ name, server, client, says string }{
		{"rping", "rping -s -v -V -C 20", "rping -c -v -V -C 20 -a " + tunHere, `rdma-ping-19: `},
		{"ucmatose", "ucmatose -c 20", "ucmatose -c 20 -s " + tunHere, `return status 0`},
		{"udaddy", "udaddy", "udaddy -s " + tunHere, `return status 0`},
		{"rstream", "rstream -T b -T v -S 65536 -I 5 -C 20", "rstream -T b -T v -S 65536 -I 5 -C 20 -s " + tunHere, `custom +64k`},
		{"ib_write_bw", "ib_write_bw -F -R -n 100", "ib_write_bw -F -R -n 100 " + tunHere, `65536 +100 `},
	} {
		c := cmPair("tun/"+p.name, twoNICs, p.server, p.client)
		c.check, c.short = clientShows(p.says), p.name == "rping"
		c.needs = append(c.needs, need{func(*runner) string {
			if _, err := os.Stat("/dev/net/tun"); err != nil {
				return "there is no /dev/net/tun here"
			}
			return ""
		}})
		c.do = func(ctx context.Context, r *runner, c *testCase) *outcome { return r.overTun(ctx, c) }
		cases = append(cases, c)
	}

	for _, l := range []layout{oneNIC, joined, twoNICs} {
		c := cmPair("ucx_rdmacm/"+named(l.String()), l, "@DIR/ucxcm server 7471", "@DIR/ucxcm client "+addrHere+" 7471")
		c.env = []string{"UCX_TLS=rc_v,self", "UCX_NET_DEVICES=rxe0:1", "UCX_SOCKADDR_TLS_PRIORITY=rdmacm"}
		c.again = "Destination is unreachable|Connection reset|Request rejected|rejected"
		c.needs = []need{installed("gcc"), built("ucxcm", "-lucp", "-lucs")}
		c.check, c.short = all(shows(`all right`), clientShows(`cm rdmacm`, `rc_verbs/rxe0:1`)), l == joined
		cases = append(cases, c)
	}
	return cases
}

// group is the multicast group of the three, and memberAddress where each of them is.
const group = "239.91.1.2"

func memberAddress(i int) string { return fmt.Sprintf("10.92.0.%d", i+1) }

// threeMembers has two members of a group in a namespace each hear what a sender in a third says, over a bridge.
func (r *runner) threeMembers(ctx context.Context, c *testCase) *outcome {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	fail := func(err error) *outcome { return &outcome{Problem: err.Error()} }
	commands := "ip link add rnicbr type bridge mcast_snooping 0\nip link set rnicbr up\n"
	var hosts []*other
	defer func() {
		for _, h := range hosts {
			h.close()
		}
		exec.Command("ip", "link", "del", "rnicbr").Run()
	}()
	for i := range 3 {
		h, err := holdNamespace()
		if err != nil {
			return fail(err)
		}
		hosts = append(hosts, h)
		enter := "nsenter --net=" + h.path + " "
		commands += fmt.Sprintf("ip link add rnicb%[1]d mtu 9000 type veth peer name rnicm mtu 9000 netns %[2]d\nip link set rnicb%[1]d master rnicbr up\n%[3]sip link set lo up\n%[3]sip link set rnicm up\n%[3]sip addr add %[4]s/24 dev rnicm\n",
			i, h.holder.Process.Pid, enter, memberAddress(i))
	}
	if out, err := exec.Command("sh", "-ec", commands).CombinedOutput(); err != nil {
		return fail(fmt.Errorf("making a bridge: %w: %s", err, tail(string(out))))
	}
	program := func(i int, words []string) *process {
		args := r.rnicRun(c, []string{"--interface", "rnicm"}, append(words, "-b", memberAddress(i))...)
		return start(ctx, append([]string{"nsenter", "--net=" + hosts[i].path}, args...))
	}
	first, second := program(0, c.server), program(1, c.server)
	defer first.kill()
	defer second.kill()
	for !hosts[0].member() || !hosts[1].member() {
		if ctx.Err() != nil || !first.running() || !second.running() {
			return fail(errors.New("the members do not join: " + tail(first.out.String()+second.out.String())))
		}
		time.Sleep(20 * time.Millisecond)
	}
	sender := program(2, c.client)
	o := &outcome{}
	for _, p := range []*process{sender, first, second} {
		select {
		case <-p.ended:
		case <-ctx.Done():
			o.Problem = fmt.Sprintf("not ended after %v", c.timeout)
			p.kill()
		}
	}
	o.Client, o.Server = sender.end(), first.end()
	other := second.end()
	o.Server.Out += other.Out
	o.Server.Code = max(o.Server.Code, other.Code)
	return o
}

// member tells whether somebody in the namespace is a member of the group: the NIC's socket is (proc(5), /proc/net/igmp: 239.91.1.2).
func (o *other) member() bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/igmp", o.holder.Process.Pid))
	return strings.Contains(string(b), "02015BEF")
}

// The tunnel: its interface has the same name in both namespaces.
const tunName, tunHere, tunThere = "rnictun", "10.93.0.1", "10.93.0.2"

// overTun runs a case between two NICs at the ends of a pair of tun interfaces, between which this process carries the packets.
func (r *runner) overTun(ctx context.Context, c *testCase) *outcome {
	here, err1 := openTun("")
	there, err2 := openTun(r.other.path)
	for _, f := range []*os.File{here, there} {
		if f != nil {
			defer f.Close()
		}
	}
	if err := errors.Join(err1, err2); err != nil {
		return &outcome{Problem: err.Error()}
	}
	enter := "nsenter --net=" + r.other.path + " "
	commands := fmt.Sprintf("ip addr add %[2]s peer %[3]s dev %[1]s\nip link set %[1]s mtu 9000 up\n%[4]sip addr add %[3]s peer %[2]s dev %[1]s\n%[4]sip link set %[1]s mtu 9000 up\n", tunName, tunHere, tunThere, enter)
	if out, err := exec.Command("sh", "-ec", commands).CombinedOutput(); err != nil {
		return &outcome{Problem: fmt.Sprintf("setting a tunnel up: %v: %s", err, tail(string(out)))}
	}
	go carry(here, there)
	go carry(there, here)
	p := plan{Server: r.rnicRun(c, []string{"--interface", tunName}, c.server...), Again: c.again, After: c.after, Timeout: c.timeout,
		Client: append([]string{"nsenter", "--net=" + r.other.path}, r.rnicRun(c, []string{"--interface", tunName}, c.client...)...)}
	return p.run(ctx)
}

// carry moves packets until an end is closed.
func carry(from, to *os.File) {
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		_, _ = to.Write(b[:n]) // what an interface does not take is lost, as on a wire
	}
}

// openTun makes the interface in a network namespace, by its path; empty: in this one. It is there for as long as the file is open.
func openTun(namespace string) (*os.File, error) {
	type answer struct {
		f   *os.File
		err error
	}
	c := make(chan answer)
	go func() {
		// The thread that has gone to another namespace ends with this goroutine: it is not unlocked.
		runtime.LockOSThread()
		if namespace != "" {
			ns, err := os.Open(namespace)
			if err == nil {
				err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
				ns.Close()
			}
			if err != nil {
				c <- answer{nil, fmt.Errorf("making a tunnel in another namespace: %w", err)}
				return
			}
		}
		f, err := tun()
		c <- answer{f, err}
	}()
	a := <-c
	return a.f, a.err
}

func tun() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(tunName)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("making the interface %s: %w", tunName, err)
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), nil
}
