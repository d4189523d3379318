package uverbs

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

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// cProgram compiles and runs a C program that includes the kernel's headers, and returns its lines.
func cProgram(t *testing.T, body string) map[string]string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is missing: apt-get install gcc linux-libc-dev")
	}
	if _, err := os.Stat("/usr/include/rdma/rdma_user_rxe.h"); err != nil {
		t.Skip("the kernel's headers are missing: apt-get install linux-libc-dev")
	}
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "p.c"), filepath.Join(dir, "p")
	text := `#include <stdio.h>
#include <string.h>
#include <stddef.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/rdma_user_rxe.h>
static void dump(const char *n, const void *p, size_t l) {
	const unsigned char *b = p;
	printf("%s ", n);
	while (l--) printf("%02x", *b++);
	printf("\n");
}
#define SIZE(s) printf("size:" #s " %zu\n", sizeof(struct s))
#define OFF(s, f) printf("off:" #s "." #f " %zu\n", offsetof(struct s, f))
#define NUM(c) printf("num:" #c " %llu\n", (unsigned long long)(c))
int main(void) {
` + body + "\nreturn 0;\n}\n"
	if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]string{}
	for line := range strings.Lines(string(out)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[k] = v
	}
	return lines
}

// Sizes, numbers and the offsets at which requests are read.
func TestNumbersAgainstTheHeaders(t *testing.T) {
	sizes := map[string]int{
		"ib_uverbs_cmd_hdr": sizeCmdHdr, "ib_uverbs_ex_cmd_hdr": sizeExCmdHdr, "ib_uverbs_ioctl_hdr": sizeIoctlHdr,
		"ib_uverbs_attr": sizeIoctlAttr, "ib_uverbs_gid_entry": sizeGIDEntry, "ib_uverbs_qp_cap": sizeQPCap,
		"mminfo": sizeMMInfo, "ib_uverbs_comp_event_desc": sizeCompEvent, "ib_uverbs_async_event_desc": sizeAsyncEvent,
		"ib_uverbs_query_port_resp_ex": sizePortAttrExt, "ib_uverbs_ex_query_device_resp": sizeDeviceExt,
		"ib_uverbs_ex_modify_qp":    sizeModifyQPExt,
		"ib_uverbs_destroy_cq_resp": 8, "ib_uverbs_destroy_qp_resp": 4, "rxe_create_ah_resp": 8,
		"rxe_create_srq_resp": sizeSRQResp, "rxe_resize_cq_resp": sizeMMInfo, "ib_uverbs_destroy_srq_resp": 4,
		"rxe_create_cq_resp": sizeMMInfo, "rxe_create_qp_resp": 2 * sizeMMInfo,
		"ib_uverbs_sge": sizeSGE, "ib_uverbs_ex_create_qp": sizeCreateQPExt, "ib_uverbs_ex_modify_cq": sizeModifyCQ, "rxe_modify_srq_cmd": 8,
		"ib_uverbs_ex_create_cq_resp": 16, "ib_uverbs_ex_create_qp_resp": 40, "ib_uverbs_ex_modify_qp_resp": 8,
	}
	offsets := map[string]int{
		"ib_uverbs_ioctl_hdr.length": 0, "ib_uverbs_ioctl_hdr.object_id": 2, "ib_uverbs_ioctl_hdr.method_id": 4,
		"ib_uverbs_ioctl_hdr.num_attrs": 6, "ib_uverbs_ioctl_hdr.driver_id": 16, "ib_uverbs_ioctl_hdr.attrs": 24,
		"ib_uverbs_attr.len": 2, "ib_uverbs_attr.flags": 4, "ib_uverbs_attr.attr_data": 6, "ib_uverbs_attr.data": 8,
		"ib_uverbs_ex_cmd_hdr.response": 0, "ib_uverbs_ex_cmd_hdr.provider_in_words": 8,
		"ib_uverbs_ex_cmd_hdr.provider_out_words": 10, "ib_uverbs_ex_cmd_hdr.cmd_hdr_reserved": 12,
		"ib_uverbs_query_port.port_num": 8,
		"ib_uverbs_reg_mr.start":        8, "ib_uverbs_reg_mr.length": 16, "ib_uverbs_reg_mr.hca_va": 24,
		"ib_uverbs_reg_mr.pd_handle": 32, "ib_uverbs_reg_mr.access_flags": 36,
		"ib_uverbs_create_ah.pd_handle": 16, "ib_uverbs_create_ah.attr": 24,
		"ib_uverbs_create_cq.user_handle": 8, "ib_uverbs_create_cq.cqe": 16, "ib_uverbs_create_cq.comp_vector": 20,
		"ib_uverbs_create_cq.comp_channel": 24, "ib_uverbs_destroy_cq.cq_handle": 8,
		"ib_uverbs_ex_create_cq.user_handle": 0, "ib_uverbs_ex_create_cq.cqe": 8, "ib_uverbs_ex_create_cq.comp_vector": 12,
		"ib_uverbs_ex_create_cq.comp_channel": 16, "ib_uverbs_ex_create_cq.comp_mask": 20, "ib_uverbs_ex_create_cq.flags": 24,
		"ib_uverbs_req_notify_cq.solicited_only": 4,
		"ib_uverbs_create_qp.user_handle":        8, "ib_uverbs_create_qp.pd_handle": 16, "ib_uverbs_create_qp.send_cq_handle": 20,
		"ib_uverbs_create_qp.recv_cq_handle": 24, "ib_uverbs_create_qp.max_send_wr": 32, "ib_uverbs_create_qp.sq_sig_all": 52,
		"ib_uverbs_create_qp.qp_type": 53, "ib_uverbs_create_qp.is_srq": 54,
		"ib_uverbs_ex_create_qp.pd_handle": 8, "ib_uverbs_ex_create_qp.max_send_wr": 24, "ib_uverbs_ex_create_qp.sq_sig_all": 44,
		"ib_uverbs_ex_create_qp.comp_mask": 48, "ib_uverbs_ex_create_qp.create_flags": 52,
		"ib_uverbs_create_qp_resp.qpn": 4, "ib_uverbs_create_qp_resp.max_send_wr": 8,
		"ib_uverbs_query_qp.qp_handle": 8, "ib_uverbs_destroy_qp.qp_handle": 8,
		"ib_uverbs_post_send.qp_handle": 8, "ib_uverbs_post_send.wr_count": 12,
		"ib_uverbs_create_srq.user_handle": 8, "ib_uverbs_create_srq.pd_handle": 16, "ib_uverbs_create_srq.max_wr": 20,
		"ib_uverbs_create_srq.max_sge": 24, "ib_uverbs_create_srq_resp.srqn": 12,
		"ib_uverbs_modify_srq.attr_mask": 4, "ib_uverbs_modify_srq.max_wr": 8, "ib_uverbs_modify_srq.srq_limit": 12,
		"ib_uverbs_query_srq.srq_handle": 8, "ib_uverbs_query_srq_resp.srq_limit": 8, "ib_uverbs_destroy_srq.srq_handle": 8,
		"rxe_create_srq_resp.srq_num": 16, "rxe_modify_srq_cmd.mmap_info_addr": 0,
		"ib_uverbs_alloc_mw.pd_handle": 8, "ib_uverbs_alloc_mw.mw_type": 12, "ib_uverbs_attach_mcast.gid": 0, "ib_uverbs_attach_mcast.qp_handle": 16,
		"ib_uverbs_ex_create_qp.reserved": 47, "ib_uverbs_ex_create_qp.is_srq": 46, "ib_uverbs_create_ah.user_handle": 8,
		"ib_uverbs_ex_query_device.comp_mask": 0, "ib_uverbs_ex_query_device.reserved": 4, "ib_uverbs_ex_modify_qp.rate_limit": 112,
		"ib_uverbs_sge.addr": 0, "ib_uverbs_sge.length": 8, "ib_uverbs_sge.lkey": 12, "ib_uverbs_ah_attr.is_global": 29,
		"ib_uverbs_async_event_desc.element": 0, "ib_uverbs_async_event_desc.event_type": 8, "ib_uverbs_comp_event_desc.cq_handle": 0,
		"ib_uverbs_destroy_cq_resp.comp_events_reported": 0, "ib_uverbs_destroy_cq_resp.async_events_reported": 4, "ib_uverbs_modify_qp.qp_handle": 64,
		"ib_uverbs_reg_mr_resp.mr_handle": 0, "ib_uverbs_reg_mr_resp.lkey": 4, "ib_uverbs_reg_mr_resp.rkey": 8, "ib_uverbs_alloc_mw_resp.rkey": 4,
		"ib_uverbs_get_context_resp.async_fd": 0, "ib_uverbs_get_context_resp.num_comp_vectors": 4, "ib_uverbs_ex_create_cq_resp.response_length": 12,
		"ib_uverbs_resize_cq.cq_handle": 8, "ib_uverbs_resize_cq.cqe": 12,
		"ib_uverbs_ex_modify_cq.attr_mask": 4, "ib_uverbs_ex_modify_cq.attr": 8, "ib_uverbs_ex_modify_cq.reserved": 12,
		"ib_uverbs_cq_moderation.cq_count": 0, "ib_uverbs_cq_moderation.cq_period": 2,
		"ib_uverbs_rereg_mr.mr_handle": 8, "ib_uverbs_rereg_mr.flags": 12, "ib_uverbs_rereg_mr.start": 16, "ib_uverbs_rereg_mr.length": 24,
		"ib_uverbs_rereg_mr.hca_va": 32, "ib_uverbs_rereg_mr.pd_handle": 40, "ib_uverbs_rereg_mr.access_flags": 44,
		"ib_uverbs_query_device_resp.max_srq": 156, "ib_uverbs_query_device_resp.max_srq_wr": 160, "ib_uverbs_query_device_resp.max_srq_sge": 164,
		"ib_uverbs_ex_query_device_resp.cq_moderation_caps": 280,
		"rxe_create_qp_resp.rq_mi":                          0, "rxe_create_qp_resp.sq_mi": 16,
	}
	numbers := map[string]uint64{
		"RDMA_VERBS_IOCTL": 0xc0181b01, "RDMA_DRIVER_RXE": driverRXE, "UVERBS_ATTR_UHW_IN": attrUHWIn,
		"UVERBS_ATTR_UHW_OUT": attrUHWOut, "UVERBS_ATTR_F_MANDATORY": flagMandatory,
		"UVERBS_ATTR_F_VALID_OUTPUT": flagValidOutput, "IB_USER_VERBS_ABI_VERSION": classABI,
		"IB_USER_VERBS_CMD_FLAG_EXTENDED": commandExtended, "IB_USER_VERBS_CMD_COMMAND_MASK": commandMask,
		"UVERBS_OBJECT_SRQ": objSRQ, "UVERBS_ATTR_CREATE_SRQ_TYPE": srqType, "UVERBS_ATTR_CREATE_SRQ_EVENT_FD": srqEventFD,
		"UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR": srqRespMaxWR, "UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM": srqRespNum,
		"UVERBS_ATTR_CREATE_SRQ_LIMIT": srqLimit, "UVERBS_ATTR_DESTROY_SRQ_RESP": destroyResp,
		"UVERBS_OBJECT_ASYNC_EVENT": objAsyncEvent, "UVERBS_OBJECT_MR": objMR,
		"UVERBS_METHOD_QUERY_PORT": 2, "UVERBS_METHOD_GET_CONTEXT": 3, "UVERBS_METHOD_QUERY_CONTEXT": 4,
		"UVERBS_METHOD_QUERY_GID_TABLE": 5, "UVERBS_METHOD_QUERY_GID_ENTRY": 6, "UVERBS_METHOD_QUERY_MR": 3,
		"UVERBS_ATTR_CREATE_CQ_EVENT_FD": cqEventFD, "UVERBS_ATTR_CREATE_CQ_RESP_CQE": cqRespCQE,
		"UVERBS_ATTR_CREATE_QP_RESP_QP_NUM": qpRespNum, "UVERBS_ATTR_CREATE_QP_EVENT_FD": qpEventFD,
		"UVERBS_ATTR_CREATE_QP_FLAGS": qpFlags, "UVERBS_ATTR_DESTROY_QP_RESP": destroyResp,
		"UVERBS_ATTR_QUERY_MR_RESP_IOVA": uint64(mrRespIOVA),
		"IB_UVERBS_QP_CREATE_SQ_SIG_ALL|IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK|IB_UVERBS_QP_CREATE_SCATTER_FCS|IB_UVERBS_QP_CREATE_CVLAN_STRIPPING|IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING": qpFlagsKnown,
		"IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION|IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN":                                                                                                                 cqFlagsKnown,
		"IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH": advicePrefetch, "IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE": advicePrefetchWrite,
		"IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT": advicePrefetchNoFault, "IB_UVERBS_ADVISE_MR_FLAG_FLUSH": adviseFlush,
		"IB_UVERBS_QPT_RAW_PACKET": qpRawPacket, "IB_UVERBS_QPT_DRIVER": qpDriver, "IB_UVERBS_ACCESS_ON_DEMAND": uint64(nic.AccessOnDemand),
		"IB_UVERBS_QP_CREATE_SQ_SIG_ALL": qpFlagSigAll, "IB_UVERBS_GID_TYPE_ROCE_V2": gidTypeRoCEv2,
		"IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS": 1, "IB_UVERBS_PCF_CM_SUP": portCapCM,
		"IB_UVERBS_PCF_IP_BASED_GIDS": portCapIPGIDs,
		"IB_USER_VERBS_CMD_OPEN_QP":   lastCommand, "IB_USER_VERBS_EX_CMD_MODIFY_CQ": exModifyCQ &^ commandExtended,
		"IB_USER_VERBS_CMD_REQ_NOTIFY_CQ": cmdReqNotifyCQ, "IB_USER_VERBS_CMD_POST_SEND": cmdPostSend,
	}
	var c strings.Builder
	for s := range sizes {
		fmt.Fprintf(&c, "SIZE(%s);\n", s)
	}
	for s := range offsets {
		st, f, _ := strings.Cut(s, ".")
		fmt.Fprintf(&c, "OFF(%s, %s);\n", st, f)
	}
	for n := range numbers {
		fmt.Fprintf(&c, "NUM(%s);\n", n)
	}
	got := cProgram(t, c.String())
	check := func(key string, want uint64) {
		if n, err := strconv.ParseUint(got[key], 10, 64); err != nil || n != want {
			t.Errorf("%s is %s in the headers, %d here", key, got[key], want)
		}
	}
	for s, n := range sizes {
		check("size:"+s, uint64(n))
	}
	for s, n := range offsets {
		check("off:"+s, uint64(n))
	}
	for s, n := range numbers {
		check("num:"+s, n)
	}
}

// Every command's request and answer, against the structures of the headers.
func TestCommandSizesAgainstTheHeaders(t *testing.T) {
	structs := map[uint32]string{cmdGetContext: "get_context", cmdQueryDevice: "query_device", cmdQueryPort: "query_port",
		cmdAllocPD: "alloc_pd", cmdDeallocPD: "dealloc_pd", cmdCreateAH: "create_ah", cmdDestroyAH: "destroy_ah",
		cmdRegMR: "reg_mr", cmdReregMR: "rereg_mr", cmdDeregMR: "dereg_mr", cmdAllocMW: "alloc_mw", cmdDeallocMW: "dealloc_mw",
		cmdCreateCompChannel: "create_comp_channel", cmdCreateCQ: "create_cq", cmdResizeCQ: "resize_cq",
		cmdDestroyCQ: "destroy_cq", cmdReqNotifyCQ: "req_notify_cq", cmdCreateQP: "create_qp", cmdQueryQP: "query_qp",
		cmdModifyQP: "modify_qp", cmdDestroyQP: "destroy_qp", cmdPostSend: "post_send", cmdPostRecv: "post_recv",
		cmdAttachMcast: "attach_mcast", cmdDetachMcast: "detach_mcast", cmdCreateSRQ: "create_srq",
		cmdModifySRQ: "modify_srq", cmdQuerySRQ: "query_srq", cmdDestroySRQ: "destroy_srq",
		cmdPostSRQRecv: "post_srq_recv", cmdOpenXRCD: "open_xrcd", cmdCloseXRCD: "close_xrcd",
		cmdCreateXSRQ: "create_xsrq", cmdOpenQP: "open_qp", exCreateCQ: "ex_create_cq"}
	answers := map[uint32]string{cmdCreateXSRQ: "create_srq_resp", cmdOpenQP: "create_qp_resp"}
	var c strings.Builder
	resp := map[uint32]string{}
	for num, s := range structs {
		fmt.Fprintf(&c, "SIZE(ib_uverbs_%s);\n", s)
		if commands[num].resp > 0 && num != cmdPollCQ {
			r := s + "_resp"
			if a := answers[num]; a != "" {
				r = a
			}
			resp[num] = r
			fmt.Fprintf(&c, "SIZE(ib_uverbs_%s);\n", r)
		}
	}
	got := cProgram(t, c.String())
	for num, s := range structs {
		if g := got["size:ib_uverbs_"+s]; g != strconv.Itoa(commands[num].req) {
			t.Errorf("%s: request of %s bytes in the headers, %d here", commands[num].name, g, commands[num].req)
		}
		if r := resp[num]; r != "" {
			if g := got["size:ib_uverbs_"+r]; g != strconv.Itoa(commands[num].resp) {
				t.Errorf("%s: answer of %s bytes in the headers, %d here", commands[num].name, g, commands[num].resp)
			}
		}
	}
}

// What a C program writes into the kernel's structures is what our encoders write.
func TestStructuresAgainstTheHeaders(t *testing.T) {
	got := cProgram(t, `
struct ib_uverbs_ex_query_device_resp x; memset(&x, 0, sizeof x);
struct ib_uverbs_query_device_resp *d = &x.base;
d->fw_ver = 0x000100020003; memcpy(&d->node_guid, "\1\2\3\4\5\6\7\10", 8); memcpy(&d->sys_image_guid, "\1\2\3\4\5\6\7\10", 8);
d->max_mr_size = 0x1122334455667788; d->page_size_cap = 0xfffff000; d->vendor_id = 11; d->vendor_part_id = 12; d->hw_ver = 13;
d->max_qp = 14; d->max_qp_wr = 15; d->device_cap_flags = 16; d->max_sge = 17; d->max_sge_rd = 17; d->max_cq = 18; d->max_cqe = 19;
d->max_mr = 20; d->max_pd = 21; d->max_qp_rd_atom = 22; d->max_res_rd_atom = 22 * 14; d->max_qp_init_rd_atom = 22;
d->atomic_cap = 23; d->max_ah = 24; d->max_mw = 28; d->max_srq = 29; d->max_srq_wr = 30; d->max_srq_sge = 17; d->max_pkeys = 25; d->local_ca_ack_delay = 26; d->phys_port_cnt = 27;
dump("device", d, sizeof *d);
x.response_length = sizeof x; x.device_cap_flags_ex = 16 | 1ULL << 40;
x.cq_moderation_caps.max_cq_moderation_count = x.cq_moderation_caps.max_cq_moderation_period = 65535;
x.odp_caps.general_caps = 41; x.odp_caps.per_transport_caps.rc_odp_caps = 42; x.odp_caps.per_transport_caps.uc_odp_caps = 43;
x.odp_caps.per_transport_caps.ud_odp_caps = 44; x.xrc_odp_caps = 45;
dump("deviceExt", &x, sizeof x);
struct ib_uverbs_query_port_resp_ex p; memset(&p, 0, sizeof p);
p.legacy_resp.port_cap_flags = 1; p.legacy_resp.max_msg_sz = 2; p.legacy_resp.gid_tbl_len = 3; p.legacy_resp.pkey_tbl_len = 4;
p.legacy_resp.state = 5; p.legacy_resp.max_mtu = 6; p.legacy_resp.active_mtu = 7; p.legacy_resp.max_vl_num = 1;
p.legacy_resp.active_width = 8; p.legacy_resp.active_speed = 9; p.legacy_resp.phys_state = 10; p.legacy_resp.link_layer = 11;
p.legacy_resp.flags = IB_UVERBS_QPF_GRH_REQUIRED;
dump("port", &p, sizeof p);
struct ib_uverbs_gid_entry g; memset(&g, 0, sizeof g);
memcpy(g.gid, "ABCDEFGHIJKLMNOP", 16); g.gid_index = 5; g.port_num = 1; g.gid_type = 2; g.netdev_ifindex = 77;
dump("gid", &g, sizeof g);
struct mminfo m = {.offset = 0x123456789000, .size = 0x11000};
dump("mminfo", &m, sizeof m);
struct ib_uverbs_modify_qp q; memset(&q, 0, sizeof q);
struct ib_uverbs_qp_dest *a[2] = {&q.dest, &q.alt_dest};
for (int i = 0; i < 2; i++) { memcpy(a[i]->dgid, "abcdefghijklmnop", 16); a[i]->dgid[0] += i; a[i]->flow_label = 101 + i; a[i]->dlid = 102;
 a[i]->sgid_index = 103; a[i]->hop_limit = 104; a[i]->traffic_class = 105; a[i]->sl = 106; a[i]->src_path_bits = 107;
 a[i]->static_rate = 108; a[i]->is_global = 1; a[i]->port_num = 110 + i; }
q.qp_handle = 1; q.attr_mask = 2; q.qkey = 3; q.rq_psn = 4; q.sq_psn = 5; q.dest_qp_num = 6; q.qp_access_flags = 7; q.pkey_index = 8;
q.alt_pkey_index = 9; q.qp_state = 3; q.cur_qp_state = 2; q.path_mtu = 12; q.path_mig_state = 13; q.en_sqd_async_notify = 14;
q.max_rd_atomic = 15; q.max_dest_rd_atomic = 16; q.min_rnr_timer = 17; q.port_num = 18; q.timeout = 19; q.retry_cnt = 20;
q.rnr_retry = 21; q.alt_port_num = 22; q.alt_timeout = 23;
dump("modify", &q, sizeof q);
struct ib_uverbs_query_qp_resp r; memset(&r, 0, sizeof r);
memcpy(&r.dest, &q.dest, sizeof q.dest); memcpy(&r.alt_dest, &q.alt_dest, sizeof q.dest);
r.max_send_wr = 31; r.max_recv_wr = 32; r.max_send_sge = 33; r.max_recv_sge = 34; r.max_inline_data = 35; r.qkey = 3; r.rq_psn = 4;
r.sq_psn = 5; r.dest_qp_num = 6; r.qp_access_flags = 7; r.pkey_index = 8; r.alt_pkey_index = 9; r.qp_state = 3; r.cur_qp_state = 2;
r.path_mtu = 12; r.path_mig_state = 13; r.sq_draining = 1; r.max_rd_atomic = 15; r.max_dest_rd_atomic = 16; r.min_rnr_timer = 17;
r.port_num = 18; r.timeout = 19; r.retry_cnt = 20; r.rnr_retry = 21; r.alt_port_num = 22; r.alt_timeout = 23; r.sq_sig_all = 1;
dump("query", &r, sizeof r);
struct ib_uverbs_ah_attr h; memset(&h, 0, sizeof h);
memcpy(h.grh.dgid, "abcdefghijklmnop", 16); h.grh.flow_label = 101; h.grh.sgid_index = 103; h.grh.hop_limit = 104;
h.grh.traffic_class = 105; h.dlid = 102; h.sl = 106; h.src_path_bits = 107; h.static_rate = 108; h.is_global = 1; h.port_num = 110;
dump("ah", &h, sizeof h);
struct ib_uverbs_qp_cap k = {31, 32, 33, 34, 35};
dump("cap", &k, sizeof k);
`)
	ah := nic.AHAttr{DGID: roce.GID([]byte("abcdefghijklmnop")), FlowLabel: 101, DLID: 102, SGIDIndex: 103, HopLimit: 104,
		TrafficClass: 105, SL: 106, SrcPathBits: 107, StaticRate: 108, IsGlobal: true, Port: 110}
	alt := ah
	alt.DGID[0]++
	alt.FlowLabel++
	alt.Port++
	qp := nic.Attr{State: nic.RTS, CurState: nic.RTR, PathMTU: 12, PathMigState: 13, QKey: 3, RQPSN: 4, SQPSN: 5, DestQPN: 6,
		AccessFlags: 7, PKeyIndex: 8, AltPKeyIndex: 9, EnSQDAsyncNotify: 14, MaxRDAtomic: 15, MaxDestRDAtomic: 16,
		MinRNRTimer: 17, Port: 18, Timeout: 19, RetryCnt: 20, RNRRetry: 21, AltPort: 22, AltTimeout: 23, AH: ah, AltAH: alt}
	cap := nic.Cap{MaxSendWR: 31, MaxRecvWR: 32, MaxSendSGE: 33, MaxRecvSGE: 34, MaxInline: 35}

	bin := func(name string) []byte {
		b, err := hex.DecodeString(got[name])
		if err != nil || len(b) == 0 {
			t.Fatalf("%s: %q", name, got[name])
		}
		return b
	}
	same := func(name string, ours []byte) {
		if want := bin(name); !bytes.Equal(ours, want) {
			t.Errorf("%s:\nhere    %x\nheaders %x", name, ours, want)
		}
	}
	dev := deviceAttr{FWVersion: 0x000100020003, NodeGUID: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}, MaxMRBytes: 0x1122334455667788,
		PageSizes: 0xfffff000, VendorID: 11, PartID: 12, HWVersion: 13, CapFlags: 16 | 1<<40, AtomicCap: 23, PKeys: 25, ACKDelay: 26,
		Ports: 27, ODP: odpCaps{General: 41, RC: 42, UC: 43, UD: 44, XRC: 45}, Limits: nic.Limits{MaxQP: 14, MaxQPWR: 15, MaxSGE: 17, MaxCQ: 18, MaxCQE: 19, MaxMR: 20, MaxPD: 21,
			MaxRDAtomic: 22, MaxAH: 24, MaxMW: 28, MaxSRQ: 29, MaxSRQWR: 30}}
	b := make([]byte, sizeDeviceExt)
	dev.encode(b)
	same("device", b[:sizeDeviceAttr])
	dev.encodeExt(b, sizeDeviceExt)
	same("deviceExt", b)
	b = make([]byte, sizePortAttrExt)
	(&portAttr{CapFlags: 1, MaxMsgSize: 2, GIDs: 3, PKeys: 4, State: 5, MaxMTU: 6, ActiveMTU: 7, Width: 8, Speed: 9,
		PhysState: 10, LinkLayer: 11}).encode(b)
	if b[44] != 9 { // active_speed_ex: newer than the headers of some distributions
		t.Errorf("active_speed_ex is %d", b[44])
	}
	clear(b[44:48])
	same("port", b)
	b = make([]byte, sizeGIDEntry)
	gidEntry(b, roce.GID([]byte("ABCDEFGHIJKLMNOP")), 5, 77)
	same("gid", b)
	b = make([]byte, sizeMMInfo)
	mmInfo(b, 0x123456789000, 0x11000)
	same("mminfo", b)
	b = make([]byte, sizeQPCap)
	encodeCap(b, &cap)
	same("cap", b)
	if decodeCap(bin("cap")) != cap {
		t.Errorf("cap decoded as %+v", decodeCap(bin("cap")))
	}
	if m := decodeModifyQP(bin("modify")); m.Attr != qp || m.Handle != 1 || m.Mask != 2 {
		t.Errorf("modify decoded as %+v, want %+v", m, qp)
	}
	if a := decodeAHAttr(bin("ah")); a != ah {
		t.Errorf("address vector decoded as %+v, want %+v", a, ah)
	}
	draining := qp
	draining.SQDraining = true
	b = make([]byte, sizeQPAttr)
	encodeQPAttr(b, &draining, &cap, true)
	same("query", b)
}

// A write of 32 bytes passes the filter and lands in the doorbell log (rdma/ib_user_verbs.h:
// struct ib_uverbs_cmd_hdr and ib_uverbs_post_send). These other commands have that size too; none of
// them may be one that an old library writes and that has to be answered.
func TestWhichCommandsAreTakenForDoorbells(t *testing.T) {
	provider := map[uint32]int{cmdModifySRQ: 8} // bytes of the rxe provider's own request (struct rxe_modify_srq_cmd)
	listed := map[uint32]string{
		cmdPostSend:        "the doorbell itself",
		cmdAttachMcast:     "libraries that have it for rxe use the ioctl (rdma-core 22 and later)",
		cmdDetachMcast:     "as ATTACH_MCAST",
		cmdModifySRQ:       "libraries that write it cannot change a shared receive queue (docs/run.md)",
		exQueryDevice:      "libraries that send it for rxe use the ioctl (rdma-core 22 and later)",
		exDestroyFlow:      "refused in any case: no flows",
		exDestroyWQ:        "refused in any case: no work queues",
		exDestroyRWQIndTbl: "refused in any case: no indirection tables",
		exCreateRWQIndTbl:  "refused in any case: no indirection tables",

		cmdPostRecv: "never written by a provider with queues of its own", cmdPostSRQRecv: "as POST_RECV",
	}
	for num, c := range commands {
		size := sizeCmdHdr + c.req + provider[num]
		if num&commandExtended != 0 {
			size += sizeExCmdHdr
		}
		_, ok := listed[num]
		if size == doorbellSize && !ok {
			t.Errorf("%s is written with %d bytes: it would be taken for a doorbell", c.name, size)
		}
		if size != doorbellSize && ok {
			t.Errorf("%s is listed, but has %d bytes", c.name, size)
		}
		if ok && c.run != nil && num != cmdPostSend && num != exQueryDevice && num != cmdModifySRQ &&
			num != cmdAttachMcast && num != cmdDetachMcast {
			t.Errorf("%s is carried out, but as a write it would be taken for a doorbell", c.name)
		}
	}
}

const doorbellSize = 32
