package ring

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const cHeaders = `#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <linux/types.h>
#include <rdma/rdma_user_rxe.h>
#include <rdma/ib_user_verbs.h>
`

// runC compiles a C program against the user ABI's headers and returns what it prints, in lines. It
// skips the test where gcc or the headers are not installed.
func runC(t *testing.T, source string) []string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("skipped: gcc is not installed, the layout cannot be compared with the C headers (apt-get install gcc)")
	}
	for header := range strings.SplitSeq(source, "\n") {
		name, ok := strings.CutPrefix(header, "#include <")
		if name = "/usr/include/" + strings.TrimSuffix(name, ">"); ok && strings.Contains(name, "/rdma/") {
			if _, err := os.Stat(name); err != nil {
				t.Skipf("skipped: %v, the layout cannot be compared with it (apt-get install linux-libc-dev)", err)
			}
		}
	}
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-O0", "-w", "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// The layout of rdma_user_rxe.h and ib_user_verbs.h (Linux UAPI), as the C compiler sees it.
func TestLayoutAsInTheHeaders(t *testing.T) {
	offsetof := func(of, field string) string { return fmt.Sprintf("offsetof(struct %s, %s)", of, field) }
	sizeof := func(of string) string { return fmt.Sprintf("sizeof(struct %s)", of) }
	table := []struct {
		c    string
		want int
	}{
		{sizeof("rxe_queue_buf"), HeaderSize},
		{offsetof("rxe_queue_buf", "log2_elem_size"), offLog2Elem},
		{offsetof("rxe_queue_buf", "index_mask"), offMask},
		{offsetof("rxe_queue_buf", "producer_index"), offProducer},
		{offsetof("rxe_queue_buf", "consumer_index"), offConsumer},
		{offsetof("rxe_queue_buf", "data"), HeaderSize},

		{sizeof("rxe_send_wqe"), SendWQESize},
		{offsetof("rxe_send_wqe", "wr.wr_id"), swrID},
		{offsetof("rxe_send_wqe", "wr.opcode"), swOpcode},
		{offsetof("rxe_send_wqe", "wr.send_flags"), swFlags},
		{offsetof("rxe_send_wqe", "wr.ex.imm_data"), swImm},
		{offsetof("rxe_send_wqe", "wr.ex.invalidate_rkey"), swImm},
		{offsetof("rxe_send_wqe", "wr.wr"), swUnion},
		{offsetof("rxe_send_wqe", "wr.wr.rdma.remote_addr"), swUnion},
		{offsetof("rxe_send_wqe", "wr.wr.rdma.rkey"), swRDMARkey},
		{offsetof("rxe_send_wqe", "wr.wr.atomic.remote_addr"), swUnion},
		{offsetof("rxe_send_wqe", "wr.wr.atomic.compare_add"), swAtCmp},
		{offsetof("rxe_send_wqe", "wr.wr.atomic.swap"), swAtSwap},
		{offsetof("rxe_send_wqe", "wr.wr.atomic.rkey"), swAtRkey},
		{offsetof("rxe_send_wqe", "wr.wr.mw.addr"), swUnion},
		{offsetof("rxe_send_wqe", "wr.wr.mw.length"), swMWLength},
		{offsetof("rxe_send_wqe", "wr.wr.mw.mr_lkey"), swMWLKey},
		{offsetof("rxe_send_wqe", "wr.wr.mw.mw_rkey"), swMWKey},
		{offsetof("rxe_send_wqe", "wr.wr.mw.rkey"), swMWNewKey},
		{offsetof("rxe_send_wqe", "wr.wr.mw.access"), swMWAccess},
		{offsetof("rxe_send_wqe", "wr.wr.ud.remote_qpn"), swUDQPN},
		{offsetof("rxe_send_wqe", "wr.wr.ud.remote_qkey"), swUDQKey},
		{offsetof("rxe_send_wqe", "wr.wr.ud.pkey_index"), swUDPkey},
		{offsetof("rxe_send_wqe", "wr.wr.ud.ah_num"), swUDAHNum},
		{offsetof("rxe_send_wqe", "wr.wr.ud.av"), swAV},
		{sizeof("rxe_av"), len(SendWQE{}.AV)},
		{offsetof("rxe_send_wqe", "dma.length"), swDMALen},
		{offsetof("rxe_send_wqe", "dma.resid"), swDMALen + 4},
		{offsetof("rxe_send_wqe", "dma.num_sge"), swNumSGE},
		{offsetof("rxe_send_wqe", "dma.sge"), swSGE},
		{offsetof("rxe_send_wqe", "dma.inline_data"), swSGE},

		{sizeof("rxe_recv_wqe"), RecvWQESize},
		{offsetof("rxe_recv_wqe", "wr_id"), rwrID},
		{offsetof("rxe_recv_wqe", "dma.length"), rwLen},
		{offsetof("rxe_recv_wqe", "dma.num_sge"), rwNumSGE},
		{offsetof("rxe_recv_wqe", "dma.sge"), rwSGE},

		{sizeof("rxe_sge"), SGESize},
		{offsetof("rxe_sge", "addr"), 0},
		{offsetof("rxe_sge", "length"), 8},
		{offsetof("rxe_sge", "lkey"), 12},

		{"IB_UVERBS_WR_RDMA_WRITE", int(OpWrite)},
		{"IB_UVERBS_WR_RDMA_WRITE_WITH_IMM", int(OpWriteImm)},
		{"IB_UVERBS_WR_SEND", int(OpSend)},
		{"IB_UVERBS_WR_SEND_WITH_IMM", int(OpSendImm)},
		{"IB_UVERBS_WR_RDMA_READ", int(OpRead)},
		{"IB_UVERBS_WR_ATOMIC_CMP_AND_SWP", int(OpCompareSwap)},
		{"IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD", int(OpFetchAdd)},
		{"IB_UVERBS_WR_LOCAL_INV", int(OpLocalInv)},
		{"IB_UVERBS_WR_BIND_MW", int(OpBindMW)},
		{"IB_UVERBS_WR_SEND_WITH_INV", int(OpSendInv)},
		{"IB_UVERBS_WR_TSO", int(OpTSO)},
		{"IB_UVERBS_WR_RDMA_READ_WITH_INV", int(OpReadInv)},
		{"IB_UVERBS_WR_MASKED_ATOMIC_CMP_AND_SWP", int(OpMaskedCAS)},
		{"IB_UVERBS_WR_MASKED_ATOMIC_FETCH_AND_ADD", int(OpMaskedFetchAdd)},
		{"IB_UVERBS_WC_SEND", int(WCSend)},
		{"IB_UVERBS_WC_RDMA_WRITE", int(WCWrite)},
		{"IB_UVERBS_WC_RDMA_READ", int(WCRead)},
		{"IB_UVERBS_WC_COMP_SWAP", int(WCCompareSwap)},
		{"IB_UVERBS_WC_FETCH_ADD", int(WCFetchAdd)},
		{"IB_UVERBS_WC_BIND_MW", int(WCBindMW)},
		{"IB_UVERBS_WC_LOCAL_INV", int(WCLocalInv)},
	}
	var c strings.Builder
	c.WriteString(cHeaders + "int main(void) {\n")
	for _, e := range table {
		fmt.Fprintf(&c, "printf(\"%%d\\n\", (int)(%s));\n", e.c)
	}
	c.WriteString("return 0; }\n")
	got := runC(t, c.String())
	if len(got) != len(table) {
		t.Fatalf("%d lines for %d questions", len(got), len(table))
	}
	for i, e := range table {
		if v, err := strconv.Atoi(got[i]); err != nil || v != e.want {
			t.Errorf("%s is %s, here it is %d", e.c, got[i], e.want)
		}
	}
}

// cElements fills elements as the user-mode driver does, and prints their bytes.
const cElements = cHeaders + `
static union { char b[1024]; struct rxe_send_wqe s; struct rxe_recv_wqe r; struct ib_uverbs_wc c; } u;
static void out(int n) { for (int i = 0; i < n; i++) printf("%02x", (unsigned char)u.b[i]); puts(""); memset(&u, 0, sizeof u); }
static void sges(struct rxe_dma_info *d) {
	d->length = d->resid = 0x30; d->num_sge = 2;
	d->sge[0] = (struct rxe_sge){ .addr = 0x1112131415161718, .length = 0x10, .lkey = 0x21222324 };
	d->sge[1] = (struct rxe_sge){ .addr = 0x3132333435363738, .length = 0x20, .lkey = 0x41424344 };
}
static void wr(int opcode, int flags) {
	u.s.wr.wr_id = 0xa1a2a3a4a5a6a7a8; u.s.wr.opcode = opcode; u.s.wr.send_flags = flags; u.s.wr.ex.imm_data = 0xb1b2b3b4;
}
int main(void) {
	wr(IB_UVERBS_WR_RDMA_WRITE_WITH_IMM, 2); u.s.wr.wr.rdma.remote_addr = 0xc1c2c3c4c5c6c7c8; u.s.wr.wr.rdma.rkey = 0xd1d2d3d4;
	sges(&u.s.dma); out(256);
	wr(IB_UVERBS_WR_ATOMIC_CMP_AND_SWP, 3); u.s.wr.wr.atomic.remote_addr = 0xc1c2c3c4c5c6c7c8; u.s.wr.wr.atomic.rkey = 0xd1d2d3d4;
	u.s.wr.wr.atomic.compare_add = 0xe1e2e3e4e5e6e7e8; u.s.wr.wr.atomic.swap = 0xf1f2f3f4f5f6f7f8; sges(&u.s.dma); out(256);
	wr(IB_UVERBS_WR_SEND, 6); u.s.wr.wr.ud.remote_qpn = 0x123456; u.s.wr.wr.ud.remote_qkey = 0x80010000; u.s.wr.wr.ud.pkey_index = 7;
	u.s.wr.wr.ud.ah_num = 9; sges(&u.s.dma); out(256);
	wr(IB_UVERBS_WR_SEND, 10); u.s.dma.length = u.s.dma.resid = 5; memcpy(u.s.dma.inline_data, "hello", 5); out(256);
	u.r.wr_id = 0xa1a2a3a4a5a6a7a8; sges(&u.r.dma); out(128);
	u.c = (struct ib_uverbs_wc){ .wr_id = 0xa1a2a3a4a5a6a7a8, .status = 5, .opcode = 3, .vendor_err = 0x11121314, .byte_len = 0x21222324,
		.ex.imm_data = 0xb1b2b3b4, .qp_num = 0x31323334, .src_qp = 0x41424344, .wc_flags = 3, .pkey_index = 0x5152, .slid = 0x6162,
		.sl = 0x71, .port_num = 1 };
	out(64);
	return 0;
}
`

var (
	cSGE  = [2]SGE{{0x1112131415161718, 0x10, 0x21222324}, {0x3132333435363738, 0x20, 0x41424344}}
	cWRID = uint64(0xa1a2a3a4a5a6a7a8)
)

// What a C program writes by the headers' structures is read here as what it meant, and what is
// written here has the same bytes.
func TestElementsAsACProgramWritesThem(t *testing.T) {
	lines := runC(t, cElements)
	base := SendWQE{WRID: cWRID, Imm: 0xb1b2b3b4}
	withSGE := func(w SendWQE) SendWQE {
		w.NumSGE = copy(w.SGE[:], cSGE[:])
		return w
	}
	write, swap, ud, inline := withSGE(base), withSGE(base), withSGE(base), base
	write.Opcode, write.Flags, write.RemoteAddr, write.RKey = OpWriteImm, SendSignaled, 0xc1c2c3c4c5c6c7c8, 0xd1d2d3d4
	swap.Opcode, swap.Flags, swap.RemoteAddr, swap.RKey = OpCompareSwap, SendFence|SendSignaled, 0xc1c2c3c4c5c6c7c8, 0xd1d2d3d4
	swap.CompareAdd, swap.Swap = 0xe1e2e3e4e5e6e7e8, 0xf1f2f3f4f5f6f7f8
	ud.Opcode, ud.Flags, ud.RemoteQPN, ud.RemoteQKey, ud.PKeyIndex, ud.AHNum = OpSend, SendSignaled|SendSolicited, 0x123456, 0x80010000, 7, 9
	inline.Opcode, inline.Flags, inline.InlineLen = OpSend, SendSignaled|SendInline, 5
	copy(inline.Inline[:], "hello")

	for i, want := range []SendWQE{write, swap, ud, inline} {
		raw := unhex(t, lines[i])
		q := queueOf(t, 1, len(raw))
		copy(q.elem(0), raw)
		var got SendWQE
		if bad, err := q.LoadSend(0, &got, want.AHNum != 0); bad || err != nil || got != want {
			t.Errorf("send %d: got %+v, %v, %v, want %+v", i, got, bad, err, want)
		}
		clear(q.elem(0))
		if q.StoreSend(0, &want, want.AHNum != 0); !bytes.Equal(q.elem(0), raw) {
			t.Errorf("send %d: wrote\n%x, a C program\n%x", i, q.elem(0), raw)
		}
	}

	raw := unhex(t, lines[4])
	q := queueOf(t, 1, len(raw))
	copy(q.elem(0), raw)
	want, got := RecvWQE{WRID: cWRID, NumSGE: 2}, RecvWQE{}
	copy(want.SGE[:], cSGE[:])
	if bad, err := q.LoadRecv(0, &got); bad || err != nil || got != want {
		t.Errorf("receive: got %+v, %v, %v, want %+v", got, bad, err, want)
	}
	clear(q.elem(0))
	if q.StoreRecv(0, &want); !bytes.Equal(q.elem(0), raw) {
		t.Errorf("receive: wrote\n%x, a C program\n%x", q.elem(0), raw)
	}

	raw = unhex(t, lines[5])
	q = queueOf(t, 1, len(raw))
	cqe, back := CQE{WRID: cWRID, Status: StatusWRFlushErr, Opcode: WCCompareSwap, VendorErr: 0x11121314, ByteLen: 0x21222324,
		Imm: 0xb1b2b3b4, QPN: 0x31323334, SrcQP: 0x41424344, Flags: WCGRH | WCWithImm, PKeyIndex: 0x5152, SLID: 0x6162, SL: 0x71}, CQE{}
	if err := q.StoreCQE(0, &cqe); err != nil || !bytes.Equal(q.elem(0), raw) {
		t.Errorf("completion: wrote\n%x, a C program\n%x", q.elem(0), raw)
	}
	if q.LoadCQE(0, &back); back != cqe {
		t.Errorf("completion: got %+v, want %+v", back, cqe)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// queueOf makes a queue for entries elements of size bytes.
func queueOf(t testing.TB, entries uint32, size int) *Queue {
	t.Helper()
	g, err := GeometryFor(entries, uint32(size))
	if err != nil {
		t.Fatal(err)
	}
	q, err := Format(make([]byte, g.Size()), g)
	if err != nil {
		t.Fatal(err)
	}
	return q
}
