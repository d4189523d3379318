package main

import "fmt"

// containerCases run rnic as a container would: without capabilities, and with little shared memory.
func containerCases() (cases []testCase) {
	// The namespaces' own root sets them up, and then gives up all capabilities.
	inside := "mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm && ip link set lo up && exec "
	dropped := `setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs "$@"`
	nobody := `unshare -U --map-user=65534 --map-group=65534 setpriv --no-new-privs "$@"`
	for _, who := range []struct {
		name string
		wrap []string
	}{
		{"no_capability", []string{"unshare", "-Urnpfm", "--mount-proc", "sh", "-c", inside + dropped, "sh"}},
		{"uid_65534", []string{"unshare", "-Urnpfm", "--mount-proc", "sh", "-c", inside + nobody, "sh"}},
		{"small_shm", []string{"unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm && exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --inh-caps=-all \"$@\"", "sh"}},
	} {
		add := func(id string, c testCase) {
			c.id, c.wrap = fmt.Sprintf("container/%s/%s", who.name, id), who.wrap
			c.short = who.name == "no_capability" && (id == "write_bw" || id == "rc_pingpong")
			cases = append(cases, c)
		}
		add("devinfo", testCase{server: []string{"ibv_devinfo", "-v"}, check: shows(`PORT_ACTIVE`, `GID\[ +\d+\]:.*RoCE v2`)})
		for _, p := range []struct{ id, command string }{{"rc_pingpong", "ibv_rc_pingpong -g 0 -n 100 -c"}, {"rc_pingpong_events", "ibv_rc_pingpong -g 0 -n 100 -e"}, {"ud_pingpong", "ibv_ud_pingpong -g 0 -n 100 -c"}} {
			c := pair("", oneNIC, p.command)
			c.check = pingpong(100)
			add(p.id, c)
		}
		for _, p := range []struct{ id, command string }{{"write_bw", "ib_write_bw -F -n 100"}, {"write_bw_8M", "ib_write_bw -F -n 5 -s 8388608 -q 4"}, {"read_bw", "ib_read_bw -F -n 100"}, {"send_lat", "ib_send_lat -F -n 100"}, {"atomic_bw", "ib_atomic_bw -F -n 100"}} {
			c := perftestPair("", oneNIC, p.command)
			c.check = measured(0)
			add(p.id, c)
		}
	}
	return cases
}
