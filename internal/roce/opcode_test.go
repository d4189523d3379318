package roce

import (
	"strings"
	"testing"
)

// TestOpcodeTable checks every entry against rules that follow from its name (9.2.1), so that a
// slip in one of the flags shows.
func TestOpcodeTable(t *testing.T) {
	defined := 0
	for op := range 256 {
		i := Opcode(op).Info()
		if i == nil {
			continue
		}
		defined++
		has := func(part string) bool { return strings.Contains(i.Name, part) }
		write, request := has("RDMA_WRITE"), has("SEND") || has("WRITE") || has("REQUEST") || has("SWAP") || has("ADD") || has("FLUSH")
		ends := has("_ONLY") || has("_LAST")
		for _, c := range []struct {
			what string
			got  bool
			want bool
		}{
			{"Opcode", int(i.Opcode) == op, true},
			{"RC", i.Transport == TransportRC, has("RC_") && !has("XRC_")},
			{"XRC", i.Transport == TransportXRC, has("XRC_")},
			{"XRCETH", i.HasXRCETH, has("XRC_") && request},
			{"UC", i.Transport == TransportUC, has("UC_")},
			{"UD", i.Transport == TransportUD, has("UD_")},
			{"RETH", i.HasRETH, write && (has("_FIRST") || has("_ONLY")) || has("READ_REQUEST") || has("ATOMIC_WRITE") || has("FLUSH")},
			{"FETH", i.HasFETH, has("FLUSH")},
			{"AETH", i.HasAETH, has("ACKNOWLEDGE") || has("RESPONSE") && !has("MIDDLE")},
			{"AtomicETH", i.HasAtomicETH, has("SWAP") || has("ADD")},
			{"AtomicAckETH", i.HasAtomicAck, has("ATOMIC_ACK")},
			{"ImmDt", i.HasImm, has("IMMEDIATE")},
			{"IETH", i.HasIETH, has("INVALIDATE")},
			{"DETH", i.HasDETH, has("UD_")},
			{"First", i.First, has("_FIRST")},
			{"Middle", i.Middle, has("_MIDDLE")},
			{"Last", i.Last, has("_LAST")},
			{"Only", i.Only, has("_ONLY")},
			{"Ends", i.Ends(), ends},
			{"Starts", i.Starts(), has("_FIRST") || has("_ONLY")},
			{"Request", i.Request, request},
			{"Payload", i.Payload, has("SEND") || has("WRITE") || has("RESPONSE")},
			{"KindSend", i.Kind == KindSend, has("SEND")},
			{"KindWrite", i.Kind == KindWrite, write},
			{"KindReadRequest", i.Kind == KindReadRequest, has("READ_REQUEST")},
			{"KindReadResponse", i.Kind == KindReadResponse, has("RESPONSE")},
			{"KindAck", i.Kind == KindAck, has("ACKNOWLEDGE") && !has("ATOMIC") && !has("SELECTIVE")},
			{"KindSelectiveAck", i.Kind == KindSelectiveAck, has("SELECTIVE")},
			{"SACK", i.HasSACK, has("SELECTIVE")},
			{"KindAtomicAck", i.Kind == KindAtomicAck, has("ATOMIC_ACK")},
			{"KindCmpSwap", i.Kind == KindCmpSwap, has("SWAP")},
			{"KindFetchAdd", i.Kind == KindFetchAdd, has("ADD")},
			{"KindFlush", i.Kind == KindFlush, has("FLUSH")},
			{"KindAtomicWrite", i.Kind == KindAtomicWrite, has("ATOMIC_WRITE")},
			{"KindCNP", i.Kind == KindCNP, has("CNP")},
			{"bounded", i.HeaderLen <= MaxHeaderSize && i.HeaderLen%4 == 0, true},
		} {
			if c.got != c.want {
				t.Errorf("%s: %s is %v, want %v", i.Name, c.what, c.got, c.want)
			}
		}
		if back, ok := ParseOpcode(strings.ToLower(strings.ReplaceAll(i.Name, "_", "-"))); !ok || int(back) != op {
			t.Errorf("ParseOpcode of %s = %#x, %v", i.Name, uint8(back), ok)
		}
	}
	if want := 25 + 12 + 2 + 1 + 23 + 1; defined != want {
		t.Errorf("%d opcodes are defined, want %d", defined, want)
	}
}

// TestOpcodeHeaderLen checks sizes that follow from the table of packet headers in 9.2.1.
func TestOpcodeHeaderLen(t *testing.T) {
	for op, want := range map[Opcode]int{
		RCSendMiddle: 12, RCSendOnlyImm: 16, RCSendLastInv: 16, RCWriteFirst: 28, RCWriteOnlyImm: 32, RCReadRequest: 28,
		RCReadResponseMiddle: 12, RCReadResponseOnly: 16, RCAck: 16, RCAtomicAck: 24, RCCmpSwap: 40, RCFetchAdd: 40, RCFlush: 32, RCAtomicWrite: 28,
		UCWriteOnlyImm: 32, UDSendOnly: 20, UDSendOnlyImm: 24, CNP: 28,
		XRCSendFirst: 16, XRCWriteOnlyImm: 36, XRCCmpSwap: 44, XRCAck: 16, XRCReadResponseMiddle: 12,
	} {
		if got := op.Info().HeaderLen; got != want {
			t.Errorf("%s: %d bytes of headers, want %d", op, got, want)
		}
	}
}

// TestOpcodeString: an undefined opcode, such as 0x15, is printed as its number and has no name.
func TestOpcodeString(t *testing.T) {
	if got := RCCmpSwap.String(); got != "RC_COMPARE_SWAP" {
		t.Errorf("String = %q", got)
	}
	if got := Opcode(0x15).String(); got != "opcode 0x15" {
		t.Errorf("String of 0x15 = %q", got)
	}
	for _, name := range []string{"", "opcode 0x15", "SEND"} {
		if op, ok := ParseOpcode(name); ok {
			t.Errorf("ParseOpcode(%q) = %s", name, op)
		}
	}
}
