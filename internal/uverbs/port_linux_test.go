package uverbs

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/device"
	"rnic/internal/nic"
)

// A stock program sees its port go down and up, and its GID table change: events, QUERY_PORT, sysfs.
func TestStockProgramWatchesThePort(t *testing.T) {
	stock(t, "ibv_devinfo")
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("ip is missing: apt-get install iproute2")
	}
	t.Parallel()
	bin := buildC(t, "port")
	// No IPv6 addresses: they come and go with the link, and have events of their own.
	script := `echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; ip link add v0 type veth peer name v1 || exit 77
ip address add 10.9.9.1/24 dev v0 && ip link set v1 up && ip link set v0 up && exec "$@"`
	cmd := isolated(t, "sh", "-c", script, "sh", buildRnic(t), "run", "-v", "--", bin)
	out, err := outcome(t, cmd, time.Minute)
	if cmd.ProcessState.ExitCode() == 77 {
		t.Skipf("no veth devices: %s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A port's event comes to every file of asynchronous events of the context, and to no other's.
func TestPortEventReachesEveryFile(t *testing.T) {
	p := newProgram(t, nil)
	fd, first := p.context()
	_, other := p.context()
	a, errno := p.ioctl(fd, objAsyncEvent, 0, number(0, 0))
	p.must(errno)
	completions := p.compChannel(fd)
	ctx, ok := p.files[fd].Data.(*verbsContext)
	if !ok {
		t.Fatalf("the open device is a %T", p.files[fd].Data)
	}
	sink{ctx}.Async(device.AsyncEvent{Type: nic.EventPortErr, Port: 1})
	for _, file := range []int{first, int(a[0].data)} {
		var r [32]byte
		if !readable(t, file, 10*time.Second) {
			t.Fatal("no event")
		}
		if n, err := unix.Read(file, r[:]); n != sizeAsyncEvent || err != nil {
			t.Fatal(n, err)
		}
		if le.Uint64(r[:]) != 1 || nic.EventType(le.Uint32(r[8:])) != nic.EventPortErr {
			t.Errorf("event %d of port %d, want %d of port 1", le.Uint32(r[8:]), le.Uint64(r[:]), nic.EventPortErr)
		}
	}
	for _, file := range []int{other, completions} {
		if readable(t, file, 0) {
			t.Error("an event came to a file that it is not for")
		}
	}
}
