package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"rnic/internal/roce"
)

var (
	path4 = roce.Path{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 50000, TOS: 2, TTL: 63}
	path6 = roce.Path{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"), SrcPort: 50000, TOS: 1, TTL: 62}
)

// Payloads of lengths that need 3, 2 and 0 bytes of pad. tshark tries to
// dissect payloads and calls those malformed that are too short for its guess.
var (
	hello  = "hello, " + strings.Repeat("world. ", 18)
	hello6 = "hello, six " + strings.Repeat("x", 99)
	tail   = strings.Repeat("tail", 32)
)

// sendOnly is the record of an RC SEND_ONLY packet.
func sendOnly(path *roce.Path, psn roce.PSN, payload string) Record {
	pad := int(roce.PadCount(len(payload)))
	data := make([]byte, roce.BTHSize+len(payload)+pad)
	roce.BTH(data).Encode(&roce.BTHFields{Opcode: roce.RCSendOnly, PadCount: uint8(pad), PKey: 0xffff, DestQP: 0x11, AckReq: true, PSN: psn})
	copy(data[roce.BTHSize:], payload)
	return Record{Path: path, Data: data}
}

// corrupt is a record of a packet of which a bit is wrong, with the ICRC that it came with.
func corrupt(r Record) Record {
	r.ICRC = binary.LittleEndian.AppendUint32(nil, roce.ICRC(r.Path, 0, r.Data))
	r.Data[14] ^= 1
	return r
}

// clock counts nanoseconds from a date on.
func clock() func() int64 {
	now := time.Date(2024, 2, 29, 12, 0, 0, 123456789, time.UTC).UnixNano()
	return func() int64 { now++; return now }
}

// write captures what leaves one NIC, four packets of which one is corrupt, and the three that another gets.
func write(t *testing.T, file *File) {
	t.Helper()
	now := clock()
	a, b := file.Interface("nic0"), file.Interface("nic1")
	for _, r := range []Record{sendOnly(&path4, 7, hello), corrupt(sendOnly(&path4, 8, hello)), sendOnly(&path6, 9, hello6), sendOnly(&path4, 10, tail)} {
		r.Sent = true
		file.Append(a, now(), &r)
	}
	for _, r := range []Record{sendOnly(&path4, 7, hello), sendOnly(&path6, 9, hello6), sendOnly(&path4, 10, tail)} {
		file.Append(b, now(), &r)
	}
}

func TestFileSaysWhatWasCarried(t *testing.T) {
	var out bytes.Buffer
	file := NewFile(&out)
	write(t, file)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	names, packets := readBlocks(t, out.Bytes())
	want := []struct {
		iface   string
		path    *roce.Path
		payload string
		good    bool
	}{
		{"nic0", &path4, hello, true}, {"nic0", &path4, "", false}, {"nic0", &path6, hello6, true}, {"nic0", &path4, tail, true},
		{"nic1", &path4, hello, true}, {"nic1", &path6, hello6, true}, {"nic1", &path4, tail, true},
	}
	if len(packets) != len(want) {
		t.Fatalf("%d packets, want %d", len(packets), len(want))
	}
	for i, w := range want {
		p := packets[i]
		if names[p.iface] != w.iface {
			t.Errorf("packet %d: interface %q, want %q", i, names[p.iface], w.iface)
		}
		if at := time.Unix(0, p.nanos).UTC(); at.Year() != 2024 || at.Nanosecond() < 123456789 || at.Nanosecond() > 123456799 {
			t.Errorf("packet %d: time %v", i, at)
		}
		checkFrame(t, i, p.frame, w.path, w.payload, w.good)
	}
}

// Many units write one file at once, and interfaces are added while others write: the file stays whole.
func TestManyUnitsOneFile(t *testing.T) {
	var out bytes.Buffer
	file := NewFile(&out)
	const units, packets = 4, 200
	var all sync.WaitGroup
	for i := range units {
		all.Go(func() {
			iface, now := file.Interface(fmt.Sprint("unit ", i)), clock()
			for range packets {
				for _, r := range []Record{sendOnly(&path4, roce.PSN(i), hello), sendOnly(&path6, roce.PSN(i), hello6)} {
					file.Append(iface, now(), &r)
				}
			}
		})
	}
	all.Wait()
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	names, blocks := readBlocks(t, out.Bytes())
	seen := map[string]int{}
	for _, b := range blocks {
		if int(b.iface) >= len(names) {
			t.Fatalf("a packet of interface %d, which is not described before it", b.iface)
		}
		seen[names[b.iface]]++
		if at := etherSize + roce.IPv4HeaderSize + roce.UDPHeaderSize; b.frame[12] == 8 {
			if unit := fmt.Sprint("unit ", uint32(roce.BTH(b.frame[at:]).PSN())); names[b.iface] != unit {
				t.Errorf("a packet of %q is recorded as of %q", unit, names[b.iface])
			}
		}
	}
	for name, n := range seen {
		if n != 2*packets {
			t.Errorf("%s: %d packets, want %d", name, n, 2*packets)
		}
	}
	if len(seen) != units {
		t.Errorf("packets of %d units, want %d", len(seen), units)
	}
}

type block struct {
	iface uint32
	nanos int64
	frame []byte
}

// readBlocks reads a pcapng file as draft-ietf-opsawg-pcapng says, section 3:
// each block is its type, its length, the body, and the length again.
func readBlocks(t *testing.T, file []byte) (names []string, packets []block) {
	t.Helper()
	u32 := func(b []byte) int { return int(binary.LittleEndian.Uint32(b)) }
	for len(file) > 0 {
		n := u32(file[4:])
		if n%4 != 0 || n < 12 || n > len(file) || u32(file[n-4:]) != n {
			t.Fatalf("block of type %#x: length %d, at the end %d", u32(file), n, u32(file[n-4:]))
		}
		body := file[8 : n-4]
		switch u32(file) {
		case blockInterface:
			names = append(names, string(body[12:12+binary.LittleEndian.Uint16(body[10:])]))
		case blockPacket:
			nanos := int64(u32(body[4:]))<<32 | int64(u32(body[8:]))
			packets = append(packets, block{uint32(u32(body)), nanos, body[20 : 20+u32(body[12:])]})
		}
		file = file[n:]
	}
	return names, packets
}

// checkFrame decodes a frame with another implementation and the codec.
func checkFrame(t *testing.T, i int, frame []byte, path *roce.Path, payload string, good bool) {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	udp, ok := p.TransportLayer().(*layers.UDP)
	if !ok {
		t.Fatalf("packet %d: no UDP in %v", i, p)
	}
	src, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Src().Raw())
	dst, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Dst().Raw())
	got := roce.Path{Src: src, Dst: dst, SrcPort: uint16(udp.SrcPort)}
	switch ip := p.NetworkLayer().(type) {
	case *layers.IPv4:
		got.TOS, got.TTL = ip.TOS, ip.TTL
	case *layers.IPv6:
		got.TOS, got.TTL = ip.TrafficClass, ip.HopLimit
	}
	if got != *path || udp.DstPort != roce.Port {
		t.Errorf("packet %d: path %+v to port %d, want %+v to 4791", i, got, udp.DstPort, *path)
	}
	if ok := roce.VerifyIdent(path, 0, udp.Payload); ok != good {
		t.Errorf("packet %d: ICRC good is %v, want %v", i, ok, good)
	}
	if !good {
		return
	}
	var d roce.Packet
	if err := roce.Decode(udp.Payload[:len(udp.Payload)-roce.ICRCSize], &d); err != nil || string(d.Payload) != payload {
		t.Errorf("packet %d: payload %q, %v, want %q", i, d.Payload, err, payload)
	}
}

// tshark, which shares no code with this, dissects the file as InfiniBand,
// finds IP and UDP checksums right and nothing malformed, and takes the ICRC
// from where it is. It does not compute the ICRC itself (4.0 and before do
// not), so what it shows is compared with the rule applied to the frame.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skipf("tshark is not installed (apt-get install tshark): %v", err)
	}
	name := filepath.Join(t.TempDir(), "t.pcapng")
	file, err := Create(name)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	var text, complaints bytes.Buffer
	cmd := exec.Command(tshark, "-n", "-r", name, "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
		"-T", "fields", "-E", "separator=|", "-e", "frame.interface_name", "-e", "frame.packet_flags_direction",
		"-e", "infiniband.bth.opcode", "-e", "infiniband.bth.psn", "-e", "infiniband.invariant.crc", "-e", "_ws.expert.message")
	cmd.Stdout, cmd.Stderr = &text, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("tshark: %v\n%s", err, complaints.String())
	}
	t.Logf("\n%s", text.String())
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != 7 {
		t.Fatalf("tshark shows %d packets, want 7:\n%s%s", len(lines), text.String(), complaints.String())
	}
	written, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, packets := readBlocks(t, written)
	psns := []string{"7", "8", "9", "10", "7", "9", "10"}
	for i, line := range lines {
		f := strings.Split(line, "|")
		if len(f) != 6 || f[2] != "4" || f[3] != psns[i] || f[4] == "" {
			t.Errorf("packet %d: %q, want opcode 4 (RC SEND Only), PSN %s and an ICRC", i, line, psns[i])
			continue
		}
		if f[5] != "" {
			t.Errorf("packet %d: tshark says %q", i, f[5])
		}
		if right := f[4] == icrcOfFrame(packets[i].frame); right != (i != 1) {
			t.Errorf("packet %d: tshark shows ICRC %s, the frame's is %s", i, f[4], icrcOfFrame(packets[i].frame))
		}
		iface, direction := "nic0", "0x00000002"
		if i > 3 {
			iface, direction = "nic1", "0x00000001"
		}
		if f[0] != iface || !sameNumber(f[1], direction) {
			t.Errorf("packet %d: interface %q direction %q, want %q %q", i, f[0], f[1], iface, direction)
		}
	}
}

// icrcOfFrame computes the ICRC of an Ethernet frame as annex A17.3.3 says,
// plainly, and writes it as tshark does: the bytes in the order of the wire.
func icrcOfFrame(frame []byte) string {
	b := append(bytes.Repeat([]byte{0xff}, 8), frame[14:len(frame)-4]...)
	ip, masked := b[8:], []int{1, 8, 10, 11} // TOS, TTL, header checksum
	udp := 20
	if ip[0]>>4 == 6 {
		ip[0] |= 0x0f
		masked = []int{1, 2, 3, 7} // traffic class and flow label, hop limit
		udp = 40
	}
	for _, i := range append(masked, udp+6, udp+7, udp+8+4) { // UDP checksum, BTH resv8a
		ip[i] = 0xff
	}
	return fmt.Sprintf("0x%08x", bits.ReverseBytes32(crc32.ChecksumIEEE(b)))
}

func sameNumber(a, hex string) bool {
	return strings.TrimLeft(strings.TrimPrefix(a, "0x"), "0") == strings.TrimLeft(strings.TrimPrefix(hex, "0x"), "0")
}

// notify is a writer that tells of writes.
type notify struct {
	mu   sync.Mutex
	n    int
	wake chan struct{}
	err  error
}

func (w *notify) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	w.n += len(b)
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return len(b), nil
}

// A killed process loses nothing that is older than the flush interval: what
// was written goes out without any further call.
func TestIdleFileIsFlushed(t *testing.T) {
	w := &notify{wake: make(chan struct{}, 1)}
	file := NewFile(w)
	iface := file.Interface("nic0")
	r := sendOnly(&path4, 1, "x")
	<-w.wake
	w.mu.Lock()
	before := w.n
	w.mu.Unlock()
	for range 2 { // the timer is armed again
		file.Append(iface, 1, &r)
		select {
		case <-w.wake:
		case <-time.After(10 * time.Second):
			t.Fatal("not flushed")
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n <= before {
		t.Errorf("%d bytes written, want more than %d", w.n, before)
	}
	file.Close()
}

// A full disk ends the capture, and whoever records does not notice; likewise after its end.
func TestWriteErrorDoesNotDisturb(t *testing.T) {
	full := errors.New("disk full")
	w := &notify{wake: make(chan struct{}, 1), err: full}
	file := NewFile(w)
	iface := file.Interface("nic0")
	r := sendOnly(&path4, 1, strings.Repeat("x", 1024))
	for range 1000 { // more than the buffer
		file.Append(iface, 1, &r)
	}
	if err := file.Close(); !errors.Is(err, full) {
		t.Errorf("Close = %v, want %v", err, full)
	}
	file.Append(iface, 1, &r)
}

func TestCaptureIsPrivate(t *testing.T) {
	name := filepath.Join(t.TempDir(), "t.pcapng")
	file, err := Create(name)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	st, err := os.Stat(name)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600: payload is the programs' data", st.Mode(), err)
	}
	b, _ := os.ReadFile(name)
	if len(b) < 12 || binary.LittleEndian.Uint32(b) != blockSection {
		t.Error("no section header")
	}
}

func BenchmarkCapture(b *testing.B) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	file := NewFile(null)
	iface := file.Interface("nic0")
	r := sendOnly(&path4, 1, strings.Repeat("x", 4096))
	b.ReportAllocs()
	b.SetBytes(int64(len(r.Data)))
	for b.Loop() {
		file.Append(iface, 1, &r)
	}
}
