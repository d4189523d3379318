package udp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rnic/internal/link"
	"rnic/internal/roce"
	"rnic/internal/testnet"
)

// Frames as the kernel's Soft-RoCE put them on a wire reach a socket and are
// accepted: identifications that count, source ports that vary, and IPv6
// with UDP checksum 0.
func TestFramesOfSoftRoCE(t *testing.T) {
	ownNetwork(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"10.7.0.2", "10.7.0.3", "fd07::2", "fd07::3"} {
		ip := netip.MustParseAddr(a)
		na, _ := netlink.ParseAddr(netip.PrefixFrom(ip, ip.BitLen()).String())
		if ip.Is6() {
			na.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(lo, na); err != nil {
			t.Fatal(err)
		}
		testnet.WaitLocal(t, ip)
	}
	l := open(t, Config{})
	inject := rawIP(t)
	var sent4, sent6 []link.Packet
	for _, ip := range ipPackets(t, "testdata/softroce.pcap") {
		p := fromWire(ip)
		inject(ip, p.Path.Dst)
		if p.Path.Src.Is4() {
			sent4 = append(sent4, p)
		} else {
			sent6 = append(sent6, p)
		}
	}
	if len(sent4) != 46 || len(sent6) != 13 {
		t.Fatalf("%d and %d frames in the capture, want 46 of IPv4 and 13 of IPv6", len(sent4), len(sent6))
	}
	var got4, got6 []link.Packet
	for _, p := range receive(t, l, 59) {
		if p.Path.Src.Is4() {
			got4 = append(got4, p)
		} else {
			got6 = append(got6, p)
		}
	}
	equal(t, sent4, got4)
	equal(t, sent6, got6)
}

func equal(t *testing.T, want, got []link.Packet) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%d received, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i].Path != want[i].Path || !bytes.Equal(got[i].Data, want[i].Data) {
			t.Errorf("packet %d: path %+v, want %+v", i, got[i].Path, want[i].Path)
		}
	}
}

// ipPackets reads the IP packets out of an Ethernet capture (pcap, little-endian).
func ipPackets(t *testing.T, name string) (packets [][]byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for b = b[24:]; len(b) > 16; {
		n := binary.LittleEndian.Uint32(b[8:])
		packets = append(packets, b[16+14:16+n])
		b = b[16+n:]
	}
	return packets
}

// fromWire is what Recv should make of an IP packet.
func fromWire(ip []byte) link.Packet {
	var p link.Packet
	udp := ip[20:]
	if ip[0]>>4 == 4 {
		p.Path = roce.Path{Src: netip.AddrFrom4([4]byte(ip[12:16])), Dst: netip.AddrFrom4([4]byte(ip[16:20])), TOS: ip[1], TTL: ip[8]}
	} else {
		udp = ip[40:]
		p.Path = roce.Path{Src: netip.AddrFrom16([16]byte(ip[8:24])), Dst: netip.AddrFrom16([16]byte(ip[24:40])),
			TOS: ip[0]<<4 | ip[1]>>4, TTL: ip[7]}
	}
	p.Path.SrcPort = binary.BigEndian.Uint16(udp)
	p.Data = udp[8 : binary.BigEndian.Uint16(udp[4:])-roce.ICRCSize]
	return p
}

// rawIP returns a function that sends IP packets, header included.
func rawIP(t *testing.T) func(packet []byte, dst netip.Addr) {
	t.Helper()
	fd4, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		t.Skipf("no raw socket: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd4) })
	fd6, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		t.Skipf("no raw IPv6 socket: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd6) })
	return func(packet []byte, dst netip.Addr) {
		t.Helper()
		var err error
		if dst.Is4() {
			err = unix.Sendto(fd4, packet, 0, &unix.SockaddrInet4{Addr: dst.As4()})
		} else {
			err = unix.Sendto(fd6, packet, 0, &unix.SockaddrInet6{Addr: dst.As16()})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
