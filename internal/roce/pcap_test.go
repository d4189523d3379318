package roce

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
)

// frame is one captured RoCE packet.
type frame struct {
	file   string
	number int // of all frames in the file, from 1
	path   Path
	ident  uint16
	ip     []byte // IP and UDP headers
	pkt    []byte // BTH to ICRC
}

// data is the packet from the BTH to the pad.
func (f *frame) data() []byte { return f.pkt[:len(f.pkt)-ICRCSize] }

// captures are recorded between Soft-RoCE of two kernels, and how many RoCE frames each has.
var captures = []struct {
	name   string
	frames int
}{
	{"frames.pcap", 59}, // one of each kind, over IPv4 and IPv6
	{"nak.pcap", 48},    // losses and NAKs
	{"raw.pcap", 102},   // one list of operations
	{"rping.pcap", 43},  // a connection by the communication manager
}

// readFrames returns the RoCE frames of a capture (classic pcap, microseconds, Ethernet).
func readFrames(t testing.TB, name string) []frame {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	if le.Uint32(data) != 0xa1b2c3d4 || le.Uint32(data[20:]) != 1 {
		t.Fatalf("%s: no little-endian Ethernet pcap", name)
	}
	var frames []frame
	data = data[24:]
	for number := 1; len(data) > 0; number++ {
		size := le.Uint32(data[8:])
		if f, ok := splitFrame(data[16 : 16+size]); ok {
			f.file, f.number = name, number
			frames = append(frames, f)
		}
		data = data[16+size:]
	}
	return frames
}

// splitFrame takes an Ethernet frame apart, if it is UDP to Port.
func splitFrame(eth []byte) (f frame, ok bool) {
	be := binary.BigEndian
	ip := eth[14:]
	switch {
	case be.Uint16(eth[12:]) == 0x0800 && ip[0] == 0x45 && ip[9] == protocolUDP:
		ip = ip[:be.Uint16(ip[2:])]
		f.ip, f.pkt = ip[:28], ip[28:]
		f.ident = be.Uint16(ip[4:])
		f.path = Path{
			Src: netip.AddrFrom4([4]byte(ip[12:])), Dst: netip.AddrFrom4([4]byte(ip[16:])), TOS: ip[1], TTL: ip[8],
		}
	case be.Uint16(eth[12:]) == 0x86dd && ip[6] == protocolUDP:
		ip = ip[:40+be.Uint16(ip[4:])]
		f.ip, f.pkt = ip[:48], ip[48:]
		f.path = Path{
			Src: netip.AddrFrom16([16]byte(ip[8:])), Dst: netip.AddrFrom16([16]byte(ip[24:])),
			TOS: ip[0]<<4 | ip[1]>>4, TTL: ip[7],
		}
	default:
		return f, false
	}
	udp := f.ip[len(f.ip)-8:]
	f.path.SrcPort = be.Uint16(udp)
	return f, be.Uint16(udp[2:]) == Port
}

// allFrames returns the RoCE frames of all captures.
func allFrames(t testing.TB) []frame {
	var all []frame
	for _, c := range captures {
		all = append(all, readFrames(t, c.name)...)
	}
	return all
}
