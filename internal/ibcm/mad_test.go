package ibcm

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// frame is a captured management datagram.
type frame struct {
	kind     string
	src, dst netip.Addr
	mad      mad
}

func frames(t testing.TB) (list []frame) {
	t.Helper()
	b, err := os.ReadFile("testdata/frames.txt")
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] != "#" {
			m, err := hex.DecodeString(f[3])
			must(t, err)
			list = append(list, frame{f[0], netip.MustParseAddr(f[1]), netip.MustParseAddr(f[2]), m})
		}
	}
	return list
}

// 12.6: what the kernel's Soft-RoCE sends is read, and written again byte for byte.
func TestCapturedFrames(t *testing.T) {
	seen := map[string]int{}
	for _, f := range frames(t) {
		m, k, ok := decode(f.mad)
		if !ok || k.String() != f.kind {
			t.Fatalf("%s is read as %v, %v", f.kind, k, ok)
		}
		seen[f.kind]++
		again := mad(make([]byte, MADSize))
		again.header(k, m.tid())
		b := m.body()
		switch k {
		case kindREQ:
			r := m.decodeREQ()
			again.encodeREQ(m.localID(), r.RemoteGUID, r)
			if r.Primary.Local != GIDOf(f.src) || r.Primary.Remote != GIDOf(f.dst) || r.PathMTU != 3 || r.RetryCount != 7 || r.AckTimeout != 19 ||
				r.ResponderResources != 1 || r.InitiatorDepth != 1 || r.RespTimeout != 20 || r.MaxCMRetry != 15 || r.Primary.FlowLabel == 0 || r.Primary.HopLimit != 64 {
				t.Errorf("REQ is read as %+v", r)
			}
			h, ok := DecodeIPHeader(r.Private, r.ServiceID)
			if !ok || h.Src.Addr() != f.src || h.Dst.Addr() != f.dst || h.Dst.Port() != 7174 && h.Dst.Port() != 9999 {
				t.Errorf("the IP header is read as %+v", h)
			}
			head := make([]byte, IPHeaderSize)
			EncodeIPHeader(head, h)
			if !bytes.Equal(head, r.Private[:IPHeaderSize]) {
				t.Errorf("the IP header is written as %x, not %x", head, r.Private[:IPHeaderSize])
			}
		case kindREP:
			r := m.decodeREP()
			again.ids(m.localID(), m.remoteID())
			again.encodeREP(r.RemoteGUID, r)
			if r.QPN != 0x11 || r.ResponderResources != 1 || r.InitiatorDepth != 1 || r.AckDelay != 15 || r.RNRRetry != 7 {
				t.Errorf("REP is read as %+v", r)
			}
		case kindREJ:
			a, reason, info, private := m.decodeREJ()
			again.ids(m.localID(), m.remoteID())
			again.encodeREJ(a, reason, info, private)
			if a != aboutREQ || reason != RejInvalidServiceID || m.localID() != 0 {
				t.Errorf("REJ is read as about %d, reason %d, of id %x", a, reason, m.localID())
			}
		case kindDREQ:
			again.ids(m.localID(), m.remoteID())
			put24(again.body()[8:], get24(b[8:]))
		default:
			again.ids(m.localID(), m.remoteID())
		}
		if !bytes.Equal(again, f.mad) {
			t.Errorf("%s is written as\n%x, not\n%x", f.kind, []byte(again), []byte(f.mad))
		}
	}
	if len(seen) != 6 {
		t.Errorf("frames of %v", seen)
	}
}

// The whole of a captured connection, with the kernel's part played from the capture: every datagram of ours that the kernel answered
// has the kernel's form, and every answer of the kernel's moves the connection on.
func TestKernelConnects(t *testing.T) {
	list := frames(t)
	// The kernel of 10.7.0.3 asks 10.7.0.2: we are the latter.
	us := Address{Local: GIDOf(list[0].dst), Remote: GIDOf(list[0].src)}
	c := New(Config{Seed: [32]byte{9}})
	_, err := c.Listen(uint64(SpaceTCP)<<16|7174, 0, nil)
	must(t, err)
	c.Receive(1, us, list[0].mad)
	e := c.Events()
	if len(e) != 1 || e[0].Type != EventRequest {
		t.Fatalf("events %+v", e)
	}
	k := e[0].Conn
	must(t, k.Accept(2, &Reply{Connection: Connection{QPN: 0x11, StartingPSN: 0x7a60c8, ResponderResources: 1, InitiatorDepth: 1, RNRRetry: 7}, AckDelay: 15}))
	ours := c.Sends()[0].MAD
	theirs := append([]byte(nil), list[1].mad...)
	copy(theirs[headerSize:], ours[headerSize:headerSize+4])        // the communication id
	copy(theirs[headerSize+28:], ours[headerSize+28:headerSize+36]) // the GUID
	if !bytes.Equal(ours[:], theirs) {
		t.Errorf("REP\n%x, the kernel's\n%x", ours, theirs)
	}
	for _, i := range []int{2, 3} { // RTU, DREQ
		m := append([]byte(nil), list[i].mad...)
		mad(m).ids(mad(m).localID(), k.LocalID())
		c.Receive(3, us, m)
	}
	if e = c.Events(); len(e) != 2 || e[0].Type != EventReady || e[1].Type != EventDisconnect {
		t.Fatalf("events %+v", e)
	}
	must(t, k.DisconnectReply(4, nil))
	if s := c.Sends(); len(s) != 1 || kindOf(&s[0]) != kindDREP || mad(s[0].MAD[:]).tid() != list[4].mad.tid() {
		t.Errorf("sent %+v", s)
	}
	// Another service, which nobody listens to: the kernel's own rejection, byte for byte.
	c.Receive(5, us, list[5].mad)
	if s := c.Sends(); len(s) != 1 || !bytes.Equal(s[0].MAD[:], list[6].mad) {
		t.Errorf("the rejection is %x", s)
	}
}

// 12.6: every field of the messages that were not captured comes back.
func TestFields(t *testing.T) {
	n := newNet(t, 3, PlantedNone)
	want := request(n, 0xfffffe)
	want.SRQ, want.FlowControl, want.QKey, want.Transport = true, true, 0x12345678, TransportXRC
	want.Primary = Path{Local: gid(1), Remote: gid(2), FlowLabel: 0xfffff, TrafficClass: 0xa5, HopLimit: 3, SL: 9, PacketRate: 18, AckTimeout: 31}
	want.Alternate, want.AckTimeout, want.RespTimeout, want.MaxCMRetry, want.RemoteGUID = want.Primary, 31, 31, 15, [8]byte{7}
	m := mad(make([]byte, MADSize))
	m.encodeREQ(5, want.RemoteGUID, want)
	got := m.decodeREQ()
	if string(got.Private[:5]) != "hello" || len(got.Private) != ReqPrivate {
		t.Errorf("private data %q", got.Private)
	}
	got.Private, want.Private = nil, nil
	if got.Connection != want.Connection || got.Primary != want.Primary || got.Alternate != want.Alternate || got.Transport != want.Transport ||
		got.RespTimeout != 31 || got.MaxCMRetry != 15 || got.RemoteGUID != want.RemoteGUID {
		t.Errorf("%+v, want %+v", got, want)
	}
	m = make([]byte, MADSize)
	long := bytes.Repeat([]byte{0xee}, 300)
	m.encodeREJ(aboutREP, RejInvalidMTU, long, long)
	if a, reason, info, private := m.decodeREJ(); a != aboutREP || reason != RejInvalidMTU || len(info) != RejInfo || len(private) != RejPrivate {
		t.Errorf("REJ about %d, reason %d, %d and %d bytes", a, reason, len(info), len(private))
	}
}
