package doctor

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"rnic/internal/netdev"
	"rnic/internal/roce"
)

func checkAddresses(s *System) []Finding {
	const check = "addresses"
	t, err := s.Network()
	if err != nil {
		return []Finding{{check, Problem, err.Error(), "The NIC is reached at an address of the machine; the loopback interface is enough.",
			[]string{"ip link set lo up"}}}
	}
	var list []string
	var largest, narrow *netdev.Entry
	for i := range t.Entries {
		e := &t.Entries[i]
		list = append(list, fmt.Sprintf("%s (%s, MTU %d)", e.Addr, e.IfName, e.MTU))
		if largest == nil || e.PathMTU > largest.PathMTU {
			largest = e
		}
		if narrow == nil || e.PathMTU < narrow.PathMTU {
			narrow = e
		}
	}
	const most = 6
	found := strings.Join(list[:min(most, len(list))], ", ")
	if n := len(list) - most; n > 0 {
		found += fmt.Sprintf(" and %d more", n)
	}
	found += fmt.Sprintf("; path MTU %d", t.PathMTU())
	if narrow.PathMTU < 1024 {
		return []Finding{{check, Warning, found, fmt.Sprintf("Interface %s carries small packets only: %s", narrow.IfName,
			"the path MTU, which has to suit all addresses, is small, and so is the speed."),
			[]string{fmt.Sprintf("ip link set %s mtu 1500", narrow.IfName), "rnic run --interface " + largest.IfName + " -- ..."}}}
	}
	return ok(check, "%s", found)
}

func checkPort(s *System) []Finding {
	check := fmt.Sprintf("UDP port %d", roce.Port)
	p := s.Socket(roce.Port)
	err := p.BindErr4
	if err == nil {
		err = p.BindErr6
	}
	switch {
	case err == nil:
		return ok(check, "free on all addresses")
	case errors.Is(err, syscall.EADDRINUSE) && s.insideRun():
		return ok(check, "held by the outer rnic run")
	case errors.Is(err, syscall.EADDRINUSE) && s.worked:
		return ok(check, "%s, whose NIC rnic run joins", s.holder(roce.Port))
	case errors.Is(err, syscall.EADDRINUSE):
		fix := []string{"rnic run --addr 127.0.0.2 -- ...     # an address that the holder does not use, or one of those above"}
		h := s.holder(roce.Port)
		if strings.Contains(h, "kernel") {
			fix = append(fix, "rdma link     # lists Soft-RoCE devices; rdma link delete NAME removes one")
		}
		return []Finding{{check, Problem, h, "RoCEv2 has this port alone: two NICs need an address each.", fix}}
	}
	return []Finding{{check, Problem, fmt.Sprintf("cannot be bound: %v", err), "The NIC receives its packets there.", nil}}
}

// holder says who has a UDP port in this network namespace (proc(5), /proc/net/udp).
func (s *System) holder(port int) string {
	inodes, kernel := map[string]bool{}, false
	for _, table := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		for line := range strings.Lines(s.read(table)) {
			f := strings.Fields(line) // sl local_address rem_address st ... uid timeout inode
			if len(f) < 10 || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				continue
			}
			if f[9] == "0" { // sockets of the kernel itself have no inode
				kernel = true
				continue
			}
			inodes["socket:["+f[9]+"]"] = true
		}
	}
	pids, _ := s.ReadDir("/proc")
	for _, pid := range pids {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		dir := path.Join("/proc", pid, "fd")
		fds, _ := s.ReadDir(dir)
		for _, fd := range fds {
			if to, err := s.Readlink(path.Join(dir, fd)); err == nil && inodes[to] {
				return fmt.Sprintf("held by process %s (%s)", pid, strings.TrimSpace(s.read(path.Join("/proc", pid, "comm"))))
			}
		}
	}
	switch {
	case kernel:
		return "held by the kernel: Soft-RoCE (rdma_rxe) has a device here"
	case len(inodes) > 0:
		return "held by a process of another user, or of another container in this network namespace"
	}
	return "held by somebody who is gone by now: look again"
}

// usefulBuffer is the receive buffer, in bytes as SO_RCVBUF counts, from which many peers at once cause no drops.
const usefulBuffer = 1 << 20

func checkBuffers(s *System) []Finding {
	const check = "socket buffers"
	p := s.Socket(0)
	found := fmt.Sprintf("a socket gets %d KiB for receiving (net.core.rmem_max %s)", p.ReceiveBuffer>>10, strings.TrimSpace(orElse(s.read("/proc/sys/net/core/rmem_max"), "not readable")))
	if p.ReceiveBuffer < usefulBuffer {
		return []Finding{{check, Warning, found, "Enough for a few peers: what is in flight from each is limited to suit. When many send at once, packets are dropped and sent again.",
			[]string{"sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304"}}}
	}
	return ok(check, "%s", found)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func checkOffload(s *System) []Finding {
	const check = "offloads"
	p := s.Socket(0)
	if !p.Segment || !p.GRO {
		var missing []string
		if !p.Segment {
			missing = append(missing, "UDP_SEGMENT")
		}
		if !p.GRO {
			missing = append(missing, "UDP_GRO")
		}
		return []Finding{{check, Warning, strings.Join(missing, " and ") + " cannot be set on sockets",
			"Packets go through the UDP stack singly: bandwidth is a third or less.", []string{"# Linux 5.0 or newer has both; gVisor has neither"}}}
	}
	var hardware, software []string
	if t, err := s.Network(); err == nil {
		seen := map[string]bool{}
		for _, e := range t.Entries {
			if seen[e.IfName] {
				continue
			}
			seen[e.IfName] = true
			if on, err := s.Segmentation(e.IfName); err == nil && on {
				hardware = append(hardware, e.IfName)
			} else {
				software = append(software, e.IfName)
			}
		}
	}
	found := "UDP_SEGMENT and UDP_GRO"
	if len(hardware) > 0 {
		found += "; cut into packets by the interface: " + strings.Join(hardware, ", ")
	}
	if len(software) > 0 {
		found += "; by the kernel, in one go: " + strings.Join(software, ", ")
	}
	return ok(check, "%s", found)
}

func checkTemp(s *System) []Finding {
	const check = "temporary files"
	if err := s.TempDir(); err != nil {
		return []Finding{{check, Problem, err.Error(), "The emulated files of /sys and /dev live in a directory for temporary files.",
			[]string{"export TMPDIR=/dev/shm     # or another directory that is writable"}}}
	}
	return ok(check, "a directory can be made in %s", os.TempDir())
}
