package udp

import (
	"cmp"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A Group is links for the same addresses, one for each processing unit of a NIC. Each has sockets of its own; the sockets of one
// address form a SO_REUSEPORT group, whose classic BPF program steers by the destination queue pair number.
//
// The system steers whole datagrams: of a run of packets that it has merged (UDP_GRO), or that were sent as one segmented message over a
// virtual device, the first decides. Who receives looks at each packet and hands over what is another's. Packets to multicast
// groups come to the first link, which alone joins them.
type Group struct{ links []*Link }

// maxExceptions bounds the queue pairs that are steered apart from their number: a classic program has at most 4096
// instructions, and its memory counts against net.core.optmem_max. What is beyond it arrives at the link that its number says.
const maxExceptions = 512

// OpenGroup opens n links. The first socket of an address is bound without SO_REUSEPORT, so that it is refused, as
// Open is, if anybody else has the port: the others join it then. A program of the same user that asks for
// SO_REUSEPORT could join the group later; another user's cannot (Linux compares the users), nor can one that does
// not ask, such as another NIC.
func OpenGroup(cfg Config, n int) (*Group, error) {
	g := &Group{}
	for i := range n {
		cfg.shared = n > 1
		cfg.follows = i > 0
		l, err := Open(cfg)
		if err != nil {
			g.close()
			return nil, err
		}
		g.links = append(g.links, l)
	}
	if err := g.Steer(nil); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *Group) close() {
	for _, l := range g.links {
		_ = l.Close()
	}
}

// Links are the group's links: the queue pairs with number m modulo their number arrive at link m. Each is closed by itself.
func (g *Group) Links() []*Link { return g.links }

// Steer makes the sockets steer, with exceptions: the links of the queue pairs whose numbers do not say it. Up to
// maxExceptions of them, those with the lowest numbers, are heeded.
func (g *Group) Steer(exceptions map[uint32]int) error {
	if len(g.links) == 1 {
		return nil
	}
	program := steering(len(g.links), exceptions)
	for _, s := range g.links[0].sockets {
		f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
		if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &f); err != nil {
			return g.links[0].fail("steer", os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_CBPF", err))
		}
	}
	return nil
}

// steering is the program. It runs on the UDP payload: the destination queue pair is bytes 5 to 7 (BTH). A load
// beyond the end of a short datagram ends it with 0: the first link.
func steering(n int, exceptions map[uint32]int) []unix.SockFilter {
	type exception struct {
		num  uint32
		link int
	}
	var list []exception
	for num, link := range exceptions {
		if link >= 0 && link < n {
			list = append(list, exception{num, link})
		}
	}
	slices.SortFunc(list, func(a, b exception) int { return cmp.Compare(a.num, b.num) })
	list = append([]exception{{multicastQPN, 0}}, list[:min(len(list), maxExceptions)]...)

	p := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xffffff},
	}
	for _, e := range list {
		p = append(p,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: e.num, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(e.link)})
	}
	return append(p,
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(n)},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_A})
}

const multicastQPN = 0xffffff

// share lets other sockets of the group have the address too. Of a socket that is bound already, it makes the group.
func (s *socket) share() error {
	return os.NewSyscallError("setsockopt SO_REUSEPORT", unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
}
