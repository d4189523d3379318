package udp

import (
	"cmp"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A Group is links for the same addresses, one for each processing unit of a NIC. Each has sockets of its own; the sockets of one
// address form a SO_REUSEPORT group, whose classic BPF program steers by the destination queue pair number.
//
// What the program returns is an index into the group, in the order in which its sockets were bound: member i is of link i. It stays so while
// all are open: a socket keeps its place when its address is taken from the interface and comes back. The kernel moves the last socket
// into the place of one that is closed, so the links are closed together.
//
// The system steers whole datagrams: of a run of packets that it has merged (UDP_GRO), or that were sent as one segmented message over
// loopback or a virtual device, the first decides, and the others may be for queue pairs of any link. Who receives looks at each packet and
// hands over what is another's. Packets to multicast groups come to the first link, which alone joins them.
type Group struct{ links []*Link }

// maxExceptions bounds the queue pairs that are steered apart from their number: a classic program has at most 4096
// instructions, and here about three for each. What is beyond it arrives at the link that its number says.
const maxExceptions = 512

// OpenGroup opens n links. The first socket of an address is bound without SO_REUSEPORT, so that it is refused, as
// Open is, if anybody else has the port; the others join it then. Later another user's program cannot join (Linux compares the users), nor
// one that does not ask for SO_REUSEPORT, such as another NIC.
//
// A program of the same user that does ask can. By that alone it gets nothing: the program returns only the places of the links. But it may
// give the group a program of its own and so take the packets away, as it may stop or trace this process.
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
// maxExceptions of them, those with the lowest numbers, are heeded, and fewer where the system has less room
// for a program (net.core.optmem_max).
func (g *Group) Steer(exceptions map[uint32]int) error {
	if len(g.links) == 1 {
		return nil
	}
	l := g.links[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.fail("steer", net.ErrClosed)
	}
	list := effective(len(g.links), exceptions)
	for _, s := range l.sockets {
		err := s.attach(steering(len(g.links), list))
		for err == unix.ENOMEM && len(list) > 0 {
			list = list[:len(list)/2]
			err = s.attach(steering(len(g.links), list))
		}
		if err != nil {
			return l.fail("steer", os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_CBPF", err))
		}
	}
	return nil
}

func (s *socket) attach(program []unix.SockFilter) error {
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &f)
}

// exception is a queue pair that is of another link than its number says.
type exception struct {
	num  uint32
	link int
}

// effective returns the exceptions that can be heeded, by number.
func effective(n int, exceptions map[uint32]int) (list []exception) {
	for num, link := range exceptions {
		if link >= 0 && link < n && int(num%uint32(n)) != link && num < multicastQPN {
			list = append(list, exception{num, link})
		}
	}
	slices.SortFunc(list, func(a, b exception) int { return cmp.Compare(a.num, b.num) })
	return list[:min(len(list), maxExceptions)]
}

// steering is the program. It runs on the UDP payload: the destination queue pair is bytes 5 to 7 (BTH). A load
// beyond the end of a short datagram ends it with 0: the first link.
func steering(n int, list []exception) []unix.SockFilter {
	p := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: multicastQPN},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: multicastQPN, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return search(p, uint32(n), list)
}

// search appends instructions that return the link of the queue pair in the accumulator: a binary search in
// list, whose leaves compare with a few numbers each. They jump forward only, and far with BPF_JA: others reach 255 instructions.
func search(p []unix.SockFilter, n uint32, list []exception) []unix.SockFilter {
	const leaf = 4
	if len(list) > leaf {
		half := len(list) / 2
		p = append(p,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: list[half].num, Jf: 1},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA})
		far := len(p)
		p = search(p, n, list[:half])
		p[far-1].K = uint32(len(p) - far)
		return search(p, n, list[half:])
	}
	for _, e := range list {
		p = append(p,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: e.num, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(e.link)})
	}
	return append(p,
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: n},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_A})
}

// share lets other sockets of the group have the address too. Of a socket that is bound already, it makes the group.
func (s *socket) share() error {
	return os.NewSyscallError("setsockopt SO_REUSEPORT", unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
}
