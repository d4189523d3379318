package ucm

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"rnic/internal/cma"
)

// Report is what is told of a command, or of an event that a program has fetched. Values of attributes are numbers, words, truths, or
// numbers with a text (fmt.Stringer).
type Report struct {
	At           time.Time // when the command began, or the event was fetched
	PID          int
	Event        bool
	Name         string
	Args, Result []slog.Attr
	Errno        syscall.Errno
	Reason       string // why it failed, if more is known than Errno says
}

// hex is a number that people read in hexadecimal.
type hex uint32

func (h hex) String() string { return fmt.Sprintf("%#x", uint32(h)) }

func num[N ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int](name string, n N) slog.Attr {
	return slog.Uint64(name, uint64(n))
}

// tell reports the command, which is about to be answered.
func (c *command) tell(err error) {
	if c.drv.cfg.Tell == nil || c.num == cmdGetEvent && !c.sys.Valid() { // of that, nobody is left to be told
		return
	}
	r := Report{At: c.began, PID: c.pid(), Name: c.name, Args: c.args()}
	if c.num == cmdGetEvent {
		r.At = time.Now() // it may have waited since it began
	}
	if err == nil {
		r.Result = c.result
	} else {
		r.Errno = cma.Errno(err)
		r.Reason = reason(err, r.Errno)
	}
	c.drv.cfg.Tell(r)
}

// pid is the process, or of one that has ended the thread.
func (c *command) pid() int {
	if pid := c.sys.PID(); pid != 0 {
		return pid
	}
	return c.sys.TID()
}

// reason is what an error says beside its number: "bind: port 7174 is in use: address already in use" says that the port is in use.
func reason(err error, errno syscall.Errno) string {
	text := err.Error()
	if text == errno.Error() {
		return ""
	}
	if _, rest, ok := strings.Cut(text, ": "); ok {
		text = rest
	}
	return strings.TrimSuffix(text, ": "+errno.Error())
}

// args are the command's arguments, of one that is long enough.
func (c *command) args() []slog.Attr {
	if !c.decoded || tellArgs[c.name] == nil {
		return nil
	}
	return tellArgs[c.name](c)
}

// idAt tells of the id whose number is at an offset.
func idAt(at int) func(*command) []slog.Attr {
	return func(c *command) []slog.Attr { return []slog.Attr{num("id", c.u32(at))} }
}

var tellArgs = map[string]func(*command) []slog.Attr{
	"CREATE_ID": func(c *command) []slog.Attr {
		return []slog.Attr{slog.String("ps", spaceName(cma.PortSpace(le.Uint16(c.in[16:])))), slog.String("qp_type", nameIn(uint32(c.in[18]), "0", "1", "RC", "UC", "UD"))}
	},
	"DESTROY_ID":    idAt(8),
	"BIND_IP":       func(c *command) []slog.Attr { return []slog.Attr{num("id", c.u32(36)), c.address("addr", c.in[8:36])} },
	"BIND":          func(c *command) []slog.Attr { return []slog.Attr{num("id", c.u32(0)), c.address("addr", c.in[8:136])} },
	"RESOLVE_IP":    func(c *command) []slog.Attr { return c.route(c.u32(56), c.in[:28], c.in[28:56]) },
	"RESOLVE_ADDR":  func(c *command) []slog.Attr { return c.route(c.u32(0), c.in[16:144], c.in[144:272]) },
	"RESOLVE_ROUTE": idAt(0),
	"QUERY_ROUTE":   idAt(8),
	"QUERY": func(c *command) []slog.Attr {
		return []slog.Attr{num("id", c.u32(8)), slog.String("what", nameIn(c.u32(12), "ADDR", "PATH", "GID"))}
	},
	"CONNECT": func(c *command) []slog.Attr {
		p, _ := decodeParam(c.in)
		return append([]slog.Attr{num("id", c.u32(272))}, paramAttrs(&p)...)
	},
	"LISTEN": func(c *command) []slog.Attr { return []slog.Attr{num("id", c.u32(0)), num("backlog", c.u32(4))} },
	"ACCEPT": func(c *command) []slog.Attr {
		list := []slog.Attr{num("id", c.u32(280))}
		if p, valid := decodeParam(c.in[8:]); valid {
			list = append(list, paramAttrs(&p)...)
		}
		return list
	},
	"REJECT": func(c *command) []slog.Attr {
		return []slog.Attr{num("id", c.u32(0)), num("reason", c.in[5]), num("private_data_len", c.in[4])}
	},
	"DISCONNECT": idAt(0),
	"INIT_QP_ATTR": func(c *command) []slog.Attr {
		return []slog.Attr{num("id", c.u32(8)), slog.String("qp_state", nameIn(c.u32(12), "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"))}
	},
	"SET_OPTION": func(c *command) []slog.Attr {
		return []slog.Attr{num("id", c.u32(8)), num("level", c.u32(12)), num("optname", c.u32(16)), num("optlen", c.u32(20))}
	},
	"NOTIFY":        idAt(0),
	"JOIN_IP_MCAST": func(c *command) []slog.Attr { return []slog.Attr{num("id", c.u32(44)), c.address("addr", c.in[16:44])} },
	"JOIN_MCAST": func(c *command) []slog.Attr {
		return []slog.Attr{num("id", c.u32(16)), c.address("addr", c.in[24:152])}
	},
	"LEAVE_MCAST": func(c *command) []slog.Attr { return []slog.Attr{num("mcast", c.u32(8))} },
	"MIGRATE_ID":  func(c *command) []slog.Attr { return []slog.Attr{num("id", c.u32(8)), num("fd", c.u32(12))} },
}

// route tells of an id's two addresses, of which the own one may be missing.
func (c *command) route(id uint32, src, dst []byte) []slog.Attr {
	list := []slog.Attr{num("id", id)}
	if le.Uint16(src) != 0 {
		list = append(list, c.address("src", src))
	}
	return append(list, c.address("dst", dst))
}

func (c *command) address(name string, b []byte) slog.Attr {
	if le.Uint16(b) == afIB && len(b) >= sizeIB {
		a := decodeIB(b[:sizeIB])
		return slog.String(name, fmt.Sprintf("GID %v service %#x", netip.AddrFrom16(a.GID), a.Service))
	}
	if a, err := c.sockaddr(b); err == nil {
		return slog.String(name, a.String())
	}
	return slog.String(name, fmt.Sprintf("family %d", le.Uint16(b)))
}

func paramAttrs(p *cma.ConnParam) []slog.Attr {
	return []slog.Attr{slog.Any("qp_num", hex(p.QPN)), num("responder_resources", p.ResponderResources), num("initiator_depth", p.InitiatorDepth),
		num("retry_count", p.RetryCount), num("rnr_retry_count", p.RNRRetryCount), num("private_data_len", len(p.Private))}
}

// nameIn is the n-th of a list, or the number.
func nameIn(n uint32, names ...string) string {
	if n < uint32(len(names)) {
		return names[n]
	}
	return fmt.Sprint(n)
}

func spaceName(s cma.PortSpace) string {
	switch s {
	case cma.SpaceTCP:
		return "TCP"
	case cma.SpaceUDP:
		return "UDP"
	case cma.SpaceIB:
		return "IB"
	case cma.SpaceIPoIB:
		return "IPOIB"
	}
	return fmt.Sprintf("%#x", uint16(s))
}

// tellEvent reports an event that the program has fetched.
func (c *command) tellEvent(e *event, id uint32) {
	if c.drv.cfg.Tell == nil {
		return
	}
	r := Report{At: time.Now(), PID: c.pid(), Event: true, Name: "RDMA_CM_EVENT_" + e.e.Type.String(), Args: []slog.Attr{num("id", id)}}
	if e.member != nil {
		r.Args = []slog.Attr{num("id", e.id.num), num("mcast", id)}
	}
	add := func(a ...slog.Attr) { r.Args = append(r.Args, a...) }
	if e.e.Status != 0 {
		add(slog.Int("status", e.e.Status))
	}
	switch e.e.Type {
	case cma.ConnectRequest:
		n := e.conn.cm.Info()
		add(num("listen_id", e.id.num), peers("src", n.Src), peers("dst", n.Dst))
		fallthrough
	case cma.ConnectResponse:
		if !e.id.ud {
			add(paramAttrs(&e.e.Conn)...)
		}
	case cma.Established, cma.MulticastJoin:
		if e.id.ud {
			add(slog.Any("qp_num", hex(e.e.UD.QPN)), slog.Any("qkey", hex(e.e.UD.QKey)))
		}
	}
	c.drv.cfg.Tell(r)
}

func peers(name string, a netip.AddrPort) slog.Attr { return slog.String(name, a.String()) }
