/*
 * rawqp - one queue pair on each of two hosts, connected without a connection manager, and a list of
 * operations whose every byte is checked on both sides. Needs libibverbs only; the same program runs on
 * the kernel's Soft-RoCE and on rnic.
 *
 *   rawqp [options]                       the server: waits for one client, exits with its verdict
 *   rawqp [options] -c HOST OPERATION...  the client: owns the list
 *
 *   -a ADDRESS   the GID whose address this is (IPv4 or IPv6); without it the first RoCE GID that is set
 *   -d DEVICE    device name; without it the first one
 *   -f SIDE      who executes the operations: client (default), server, both (client's turn, then server's)
 *   -m MTU       path MTU in bytes: 256 512 1024 (default) 2048 4096
 *   -p PORT      TCP port of the exchange (default 18611)
 *   -t TYPE      rc (default), uc or ud
 *   -w SECONDS   longest wait for one operation (default 30)
 *   -x           spoil the last byte of what this side sends, to show that the checks find it
 *
 * OPERATION is NAME or NAME:BYTES with NAME one of send send_imm write write_imm read cas cas_miss
 * fetch_add write_mw1 write_mw2; BYTES is a number, or mtu, mtu-1, mtu+1. UD knows send and send_imm up to
 * one MTU, UC all but read, atomics and windows. write_mw1 writes through a memory window of type 1, write_mw2
 * through one of type 2, which it invalidates afterwards by a SEND with invalidate.
 *
 * One line an operation on each side; exit status 0 only when all were right on both.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	AREA = 256 << 10,	/* bytes each of the outgoing and the incoming half of the buffer */
	MARGIN = 64,		/* bytes in front of a landing place; they must keep GUARD, as must those behind */
	GRH = 40,		/* bytes a UD receive puts in front of the message (IBTA vol. 1, 11.4.1.2) */
	LARGEST = AREA - 2 * MARGIN - GRH - 8,
	GUARD = 0xee,
	QKEY = 0x1badcafe,
};

enum kind { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, CAS, CAS_MISS, FETCH_ADD, MW1, MW2, KINDS };

static const struct {
	const char *name;
	enum ibv_wr_opcode opcode;
	bool receives;		/* consumes a receive of the other side */
	bool atomic;
} kinds[KINDS] = {
	[SEND] = { "send", IBV_WR_SEND, true, false },
	[SEND_IMM] = { "send_imm", IBV_WR_SEND_WITH_IMM, true, false },
	[WRITE] = { "write", IBV_WR_RDMA_WRITE, false, false },
	[WRITE_IMM] = { "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, true, false },
	[READ] = { "read", IBV_WR_RDMA_READ, false, false },
	[CAS] = { "cas", IBV_WR_ATOMIC_CMP_AND_SWP, false, true },
	[CAS_MISS] = { "cas_miss", IBV_WR_ATOMIC_CMP_AND_SWP, false, true },
	[FETCH_ADD] = { "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, false, true },
	[MW1] = { "write_mw1", IBV_WR_RDMA_WRITE, false, false },
	[MW2] = { "write_mw2", IBV_WR_RDMA_WRITE, true, false },
};

/* What both sides know of one operation; the client sends it ahead as a line of text. */
struct op {
	bool by_server;
	enum kind kind;
	uint32_t length;
	uint32_t seed;
};

struct end {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	char gid[INET6_ADDRSTRLEN];
};

static struct {
	const char *device, *address, *peer, *from;
	uint32_t mtu;
	int port, wait;
	bool ud, uc, spoil;
} opt = { .from = "client", .mtu = 1024, .port = 18611, .wait = 30 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_qp *qp;
static struct ibv_ah *ah;
static struct ibv_mw *mw;	/* of the passive side, for one operation */
static uint8_t *out, *in;	/* the halves of the buffer */
static struct end local, remote;
static FILE *from_peer, *to_peer;

static void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "rawqp: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	exit(1);
}

static void check(int error, const char *what)
{
	if (error)
		die("%s: %s", what, strerror(error));
}

/* ---- contents ---- */

/* Byte i of the data of an operation: no period that a packet's or page's size divides. */
static uint8_t pattern(uint32_t seed, uint32_t i)
{
	uint32_t x = (seed + i) * 2654435761u;

	return x >> 24 ^ i >> 8;
}

static uint64_t pattern64(uint32_t seed)
{
	uint64_t value = 0;

	for (int i = 0; i < 8; i++)
		value = value << 8 | pattern(seed, i);
	return value;
}

static void fill(uint8_t *at, uint32_t length, uint32_t seed)
{
	for (uint32_t i = 0; i < length; i++)
		at[i] = pattern(seed, i);
}

/* Where the data of an operation begins: every alignment gets its turn, but atomics need eight. */
static uint32_t place(const struct op *op)
{
	return MARGIN + (kinds[op->kind].atomic ? 0 : op->seed % 8);
}

/* Whether area holds the pattern where the operation puts its data, and GUARD everywhere else. */
static bool landed(const uint8_t *area, uint32_t at, uint32_t length, uint32_t seed, char *why, size_t size)
{
	for (uint32_t i = 0; i < AREA; i++) {
		bool inside = i >= at && i - at < length;
		uint8_t want = inside ? pattern(seed, i - at) : GUARD;

		if (area[i] == want)
			continue;
		snprintf(why, size, "byte %d of %u is %02x, want %02x", (int)i - (int)at, length, area[i], want);
		return false;
	}
	return true;
}

/* ---- the queue pair ---- */

static void open_device(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);

	if (!list || !n)
		die("no RDMA device");
	for (int i = 0; i < n && !context; i++) {
		if (opt.device && strcmp(opt.device, ibv_get_device_name(list[i])))
			continue;
		context = ibv_open_device(list[i]);
		if (!context)
			die("opening %s: %s", ibv_get_device_name(list[i]), strerror(errno));
	}
	if (!context)
		die("no device %s", opt.device);
	ibv_free_device_list(list);
}

static bool same_address(const union ibv_gid *gid, const char *address)
{
	uint8_t want[16] = { [10] = 0xff, [11] = 0xff };

	if (inet_pton(AF_INET, address, want + 12) != 1 && inet_pton(AF_INET6, address, want) != 1)
		die("-a %s is not an IP address", address);
	return !memcmp(gid->raw, want, 16);
}

static int find_gid(void)
{
	static const union ibv_gid none;
	struct ibv_port_attr port;
	union ibv_gid gid;

	check(ibv_query_port(context, 1, &port), "query port 1");
	if (port.state != IBV_PORT_ACTIVE)
		die("port 1 is not active");
	for (int i = 0; i < port.gid_tbl_len; i++) {
		if (ibv_query_gid(context, 1, i, &gid))
			break;
		if (opt.address ? !same_address(&gid, opt.address) : !memcmp(&gid, &none, sizeof gid))
			continue;
		inet_ntop(AF_INET6, &gid, local.gid, sizeof local.gid);
		return i;
	}
	die("no GID for %s", opt.address ? opt.address : "any address");
	return -1;
}

static void create(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

	pd = ibv_alloc_pd(context);
	if (!pd || posix_memalign((void **)&out, 4096, 2 * AREA))
		die("allocating: %s", strerror(errno));
	in = out + AREA;
	memset(out, GUARD, 2 * AREA);
	mr = ibv_reg_mr(pd, out, 2 * AREA, access);
	send_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	recv_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	if (!mr || !send_cq || !recv_cq)
		die("registering memory, creating completion queues: %s", strerror(errno));

	struct ibv_qp_init_attr init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.qp_type = opt.ud ? IBV_QPT_UD : opt.uc ? IBV_QPT_UC : IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	qp = ibv_create_qp(pd, &init);
	if (!qp)
		die("creating the queue pair: %s", strerror(errno));

	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	/* Close to the end of the sequence numbers, so that every run passes their wrap. */
	local.psn = 0xffffff - now.tv_nsec % 16;
	local.qpn = qp->qp_num;
	local.rkey = mr->rkey;
	local.addr = (uintptr_t)out;
}

static enum ibv_mtu mtu_code(uint32_t bytes)
{
	for (int code = IBV_MTU_256; code <= IBV_MTU_4096; code++)
		if (128u << code == bytes)
			return code;
	die("-m %u is not a path MTU", bytes);
	return 0;
}

static void connect_qp(int gid_index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (opt.ud) {
		attr.qkey = QKEY;
		mask |= IBV_QP_QKEY;
	} else {
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	check(ibv_modify_qp(qp, &attr, mask), "RESET to INIT");

	struct ibv_ah_attr path = {
		.is_global = 1,
		.port_num = 1,
		.grh = { .sgid_index = gid_index, .hop_limit = 64 },
	};
	if (inet_pton(AF_INET6, remote.gid, &path.grh.dgid) != 1)
		die("the peer's GID %s is none", remote.gid);

	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR };
	mask = IBV_QP_STATE;
	if (!opt.ud) {
		attr.path_mtu = mtu_code(opt.mtu);
		attr.dest_qp_num = remote.qpn;
		attr.rq_psn = remote.psn;
		attr.max_dest_rd_atomic = 4;
		attr.min_rnr_timer = 12;
		attr.ah_attr = path;
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		if (!opt.uc)
			mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	check(ibv_modify_qp(qp, &attr, mask), "INIT to RTR");

	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = local.psn };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (!opt.ud && !opt.uc) {
		attr.timeout = 16;	/* 268 ms: an emulated machine is slow to answer */
		attr.retry_cnt = 6;	/* the kernel takes 7 as for ever */
		attr.rnr_retry = 6;
		attr.max_rd_atomic = 4;
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	check(ibv_modify_qp(qp, &attr, mask), "RTR to RTS");

	if (opt.ud && !(ah = ibv_create_ah(pd, &path)))
		die("creating the address handle: %s", strerror(errno));
}

/* ---- the exchange over TCP ---- */

static int dial(void)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
	char port[16];

	snprintf(port, sizeof port, "%d", opt.port);
	if (getaddrinfo(opt.peer, port, &hints, &list))
		die("%s: no such host", opt.peer);
	for (int try = 0; try < opt.wait * 10; try++) {
		int s = socket(list->ai_family, SOCK_STREAM, 0);

		if (!connect(s, list->ai_addr, list->ai_addrlen)) {
			freeaddrinfo(list);
			return s;
		}
		close(s);
		usleep(100000);
	}
	die("connecting to %s port %d: %s", opt.peer, opt.port, strerror(errno));
	return -1;
}

static int answer(void)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(opt.port) };
	int one = 1, s = socket(AF_INET6, SOCK_STREAM, 0);

	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(s, (struct sockaddr *)&any, sizeof any) || listen(s, 1))
		die("listening on port %d: %s", opt.port, strerror(errno));
	int c = accept(s, NULL, NULL);
	if (c < 0)
		die("accepting: %s", strerror(errno));
	close(s);
	return c;
}

static void tell(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(to_peer, format, args);
	va_end(args);
	if (fflush(to_peer))
		die("the other side is gone: %s", strerror(errno));
}

static const char *hear(void)
{
	static char line[512];

	if (!fgets(line, sizeof line, from_peer))
		die("the other side is gone");
	line[strcspn(line, "\n")] = 0;
	return line;
}

static void exchange(void)
{
	int s = opt.peer ? dial() : answer();

	from_peer = fdopen(s, "r");
	to_peer = fdopen(dup(s), "w");
	if (!from_peer || !to_peer)
		die("fdopen: %s", strerror(errno));
	tell("%x %x %x %" PRIx64 " %s\n", local.qpn, local.psn, local.rkey, local.addr, local.gid);
	const char *line = hear();
	if (sscanf(line, "%x %x %x %" SCNx64 " %45s", &remote.qpn, &remote.psn, &remote.rkey, &remote.addr,
		   remote.gid) != 5)
		die("the peer's parameters make no sense: %s", line);
	printf("local  qpn %06x psn %06x gid %s\nremote qpn %06x psn %06x gid %s\n", local.qpn, local.psn,
	       local.gid, remote.qpn, remote.psn, remote.gid);
}

/* ---- one operation ---- */

static bool completion(struct ibv_cq *cq, struct ibv_wc *wc, char *why, size_t size)
{
	struct timespec now, begin;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (;;) {
		int n = ibv_poll_cq(cq, 1, wc);

		if (n > 0)
			break;
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (n < 0 || now.tv_sec - begin.tv_sec > opt.wait) {
			snprintf(why, size, n < 0 ? "poll_cq failed" : "no completion in %d s", opt.wait);
			return false;
		}
		usleep(20);
	}
	if (wc->status != IBV_WC_SUCCESS)
		snprintf(why, size, "status %d: %s", wc->status, ibv_wc_status_str(wc->status));
	return wc->status == IBV_WC_SUCCESS;
}

static uint32_t immediate(const struct op *op)
{
	return op->seed * 0x01010101u ^ 0xa5c3f017u;
}

static bool window(const struct op *op)
{
	return op->kind == MW1 || op->kind == MW2;
}

/* The passive side of an operation through a memory window: the window covers the landing place only. */
static void bind_window(const struct op *op)
{
	struct ibv_mw_bind_info info = {
		.mr = mr, .addr = (uintptr_t)in + place(op), .length = op->length,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	struct ibv_wc wc;
	char why[200];

	mw = ibv_alloc_mw(pd, op->kind == MW1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	if (!mw)
		die("allocating a memory window: %s", strerror(errno));
	if (op->kind == MW1) {
		struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED, .bind_info = info };

		check(ibv_bind_mw(qp, mw, &bind), "binding a window of type 1");
	} else {
		struct ibv_send_wr wr = {
			.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
			.bind_mw = { .mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = info },
		}, *bad;

		check(ibv_post_send(qp, &wr, &bad), "binding a window of type 2");
		mw->rkey = wr.bind_mw.rkey;
	}
	if (!completion(send_cq, &wc, why, sizeof why))
		die("binding a window: %s", why);
	if (wc.opcode != IBV_WC_BIND_MW)
		die("binding a window: the completion's opcode is %d", wc.opcode);
}

/* The active side: takes the peer's right to the window away. */
static bool send_invalidate(uint32_t rkey, char *why, size_t size)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey,
	}, *bad;
	struct ibv_wc wc;

	check(ibv_post_send(qp, &wr, &bad), "posting a send with invalidate");
	return completion(send_cq, &wc, why, size);
}

static bool invalidated(char *why, size_t size)
{
	enum { KERNELS_WITH_INV = 1 << 2 };	/* what Soft-RoCE passes on: IB_WC_WITH_INVALIDATE */
	struct ibv_wc wc;

	if (!completion(recv_cq, &wc, why, size))
		return false;
	snprintf(why, size, "opcode %d byte_len %u flags %x key %08x, want key %08x", wc.opcode, wc.byte_len, wc.wc_flags,
		 wc.invalidated_rkey, mw->rkey);
	return wc.opcode == IBV_WC_RECV && !wc.byte_len && wc.invalidated_rkey == mw->rkey &&
	       wc.wc_flags & (IBV_WC_WITH_INV | KERNELS_WITH_INV) && !(wc.wc_flags & IBV_WC_WITH_IMM);
}

/* The passive side, before: landing place or source ready, receive posted. */
static void prepare(const struct op *op)
{
	memset(in, GUARD, AREA);
	if (op->kind == READ)
		fill(in + place(op), op->length, op->seed);
	if (kinds[op->kind].atomic) {
		uint64_t before = pattern64(op->seed);
		memcpy(in + place(op), &before, 8);
	}
	if (window(op))
		bind_window(op);
	if (!kinds[op->kind].receives)
		return;
	struct ibv_sge sge = { (uintptr_t)in + place(op), op->length + (opt.ud ? GRH : 0), mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = op->seed, .sg_list = &sge, .num_sge = 1 }, *bad;
	if (op->kind == WRITE_IMM || op->kind == MW2)
		wr.num_sge = 0;		/* its data goes where the write says */
	check(ibv_post_recv(qp, &wr, &bad), "posting a receive");
}

static bool received(const struct op *op, char *why, size_t size)
{
	struct ibv_wc wc;
	bool imm = op->kind != SEND;

	if (!completion(recv_cq, &wc, why, size))
		return false;
	snprintf(why, size, "wr_id %" PRIu64 " opcode %d byte_len %u flags %x imm %08x", wc.wr_id, wc.opcode,
		 wc.byte_len, wc.wc_flags, imm ? ntohl(wc.imm_data) : 0);
	return wc.wr_id == op->seed && wc.byte_len == op->length + (opt.ud ? GRH : 0) &&
	       wc.opcode == (op->kind == WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) &&
	       !(wc.wc_flags & IBV_WC_WITH_IMM) == !imm && (!imm || ntohl(wc.imm_data) == immediate(op)) &&
	       wc.qp_num == qp->qp_num && (!opt.ud || wc.src_qp == remote.qpn);
}

/* What the eight bytes hold after the operation. */
static uint64_t atomic_result(const struct op *op)
{
	uint64_t before = pattern64(op->seed);

	switch (op->kind) {
	case CAS: return ~before;
	case FETCH_ADD: return before + 0xfedcba9876543210u;
	default: return before;
	}
}

/* The passive side, after the active one has its completion. */
static bool verify(const struct op *op, char *why, size_t size)
{
	uint32_t at = place(op);

	if (op->kind == MW2 ? !invalidated(why, size) : kinds[op->kind].receives && !received(op, why, size))
		return false;
	if (window(op))
		check(ibv_dealloc_mw(mw), "deallocating the window");
	if (opt.uc && op->kind == WRITE)
		usleep(300000);		/* nothing tells when it has landed */
	if (kinds[op->kind].atomic) {
		uint64_t after;

		memcpy(&after, in + at, 8);
		if (after != atomic_result(op)) {
			snprintf(why, size, "the memory holds %" PRIx64 ", want %" PRIx64, after, atomic_result(op));
			return false;
		}
		memset(in + at, GUARD, 8);
		return landed(in, at, 0, 0, why, size);
	}
	if (opt.ud)
		memset(in + at, GUARD, GRH);
	return landed(in, at + (opt.ud ? GRH : 0), op->length, op->seed, why, size);
}

/* The active side: post, wait, check what came back and that the source is as it was. */
static bool execute(const struct op *op, uint32_t rkey, char *why, size_t size)
{
	uint32_t at = place(op);
	bool fetches = op->kind == READ || kinds[op->kind].atomic;
	uint64_t before = pattern64(op->seed), old;
	struct ibv_sge sge = { (uintptr_t)out + at, op->length, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = op->seed, .sg_list = &sge, .num_sge = 1,
		.opcode = kinds[op->kind].opcode, .send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(immediate(op)),
	}, *bad;
	struct ibv_wc wc;

	memset(out, GUARD, AREA);
	if (!fetches)
		fill(out + at, op->length, op->seed);
	if (opt.spoil && !fetches && op->length)
		out[at + op->length - 1] ^= 1;
	if (opt.ud) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = remote.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (kinds[op->kind].atomic) {
		wr.wr.atomic.remote_addr = remote.addr + AREA + at;
		wr.wr.atomic.rkey = remote.rkey;
		wr.wr.atomic.compare_add = op->kind == FETCH_ADD ? atomic_result(op) - before :
					   op->kind == CAS ? before : before ^ 1;
		wr.wr.atomic.swap = ~before;
	} else {
		wr.wr.rdma.remote_addr = remote.addr + AREA + at;
		wr.wr.rdma.rkey = window(op) ? rkey : remote.rkey;
	}
	check(ibv_post_send(qp, &wr, &bad), "posting a send");
	if (!completion(send_cq, &wc, why, size))
		return false;
	if (wc.wr_id != op->seed || wc.qp_num != qp->qp_num) {
		snprintf(why, size, "completion of wr_id %" PRIu64 " qp %06x", wc.wr_id, wc.qp_num);
		return false;
	}
	if (op->kind == MW2 && !send_invalidate(rkey, why, size))
		return false;
	if (opt.spoil && !fetches && op->length)
		out[at + op->length - 1] ^= 1;
	if (!kinds[op->kind].atomic)
		return landed(out, at, op->length, op->seed, why, size);
	memcpy(&old, out + at, 8);
	if (old != before) {
		snprintf(why, size, "fetched %" PRIx64 ", want %" PRIx64, old, before);
		return false;
	}
	memset(out + at, GUARD, 8);
	return landed(out, at, 0, 0, why, size);
}

/* Both sides call this with the same op: passive prepares, active executes, passive verifies. */
static bool perform(const struct op *op)
{
	bool active = op->by_server == !opt.peer, right;
	char why[200] = "";
	const char *verdict;

	if (!active) {
		prepare(op);
		tell("ready %x\n", window(op) ? mw->rkey : 0);
		verdict = hear();
		right = !strcmp(verdict, "done") && verify(op, why, sizeof why);
		if (strcmp(verdict, "done"))
			snprintf(why, sizeof why, "the other side: %.150s", verdict);
		tell("%s\n", right ? "ok" : why);
	} else {
		uint32_t rkey = 0;

		sscanf(hear(), "ready %x", &rkey);
		right = execute(op, rkey, why, sizeof why);
		tell("%s\n", right ? "done" : why);
		verdict = hear();
		if (right && strcmp(verdict, "ok")) {
			right = false;
			snprintf(why, sizeof why, "the other side: %.150s", verdict);
		}
	}
	printf("%s %-9s %6u bytes: %s%s\n", active ? "active " : "passive", kinds[op->kind].name, op->length,
	       right ? "ok" : "WRONG, ", right ? "" : why);
	fflush(stdout);
	return right;
}

/* ---- the two programs ---- */

static struct op parse(const char *text)
{
	struct op op = { .length = 8 };
	const char *colon = strchr(text, ':');
	size_t n = colon ? (size_t)(colon - text) : strlen(text);

	while (op.kind < KINDS && (strlen(kinds[op.kind].name) != n || strncmp(kinds[op.kind].name, text, n)))
		op.kind++;
	if (op.kind == KINDS)
		die("unknown operation %s", text);
	if (opt.ud && op.kind != SEND && op.kind != SEND_IMM)
		die("UD has no %s", kinds[op.kind].name);
	if (opt.uc && (op.kind == READ || kinds[op.kind].atomic || window(&op)))
		die("UC has no %s", kinds[op.kind].name);
	if (colon) {
		char *rest = (char *)colon + 1;

		if (!strncmp(rest, "mtu", 3))
			op.length = opt.mtu + atoi(rest + 3);
		else
			op.length = strtoul(rest, &rest, 10);
	}
	if (kinds[op.kind].atomic)
		op.length = 8;
	if (window(&op) && !op.length)
		die("%s: a window has no less than 1 byte", text);
	if (op.length > (opt.ud ? opt.mtu : LARGEST))
		die("%s: at most %u bytes", text, opt.ud ? opt.mtu : LARGEST);
	return op;
}

static bool run_client(int n, char **texts)
{
	bool right = true;
	uint32_t seed = 1;

	for (int turn = 0; turn < 2; turn++) {
		if (strcmp(opt.from, "both") && strcmp(opt.from, turn ? "server" : "client"))
			continue;
		for (int i = 0; i < n && right; i++) {
			struct op op = parse(texts[i]);

			op.by_server = turn;
			op.seed = seed++;
			tell("op %d %d %u %u\n", op.by_server, op.kind, op.length, op.seed);
			right = perform(&op);
		}
	}
	tell("bye\n");
	return right;
}

static bool run_server(void)
{
	for (bool right = true;;) {
		const char *line = hear();
		struct op op;
		int by_server, kind;

		if (!strcmp(line, "bye"))
			return right;
		if (sscanf(line, "op %d %d %u %u", &by_server, &kind, &op.length, &op.seed) != 4 || kind < 0 ||
		    kind >= KINDS || op.length > LARGEST)
			die("the client said: %s", line);
		op.by_server = by_server;
		op.kind = kind;
		right = perform(&op) && right;
	}
}

static void destroy(void)
{
	check(ibv_destroy_qp(qp), "destroying the queue pair");
	if (ah)
		check(ibv_destroy_ah(ah), "destroying the address handle");
	check(ibv_destroy_cq(send_cq), "destroying the send completion queue");
	check(ibv_destroy_cq(recv_cq), "destroying the receive completion queue");
	check(ibv_dereg_mr(mr), "deregistering memory");
	check(ibv_dealloc_pd(pd), "deallocating the protection domain");
	check(ibv_close_device(context), "closing the device");
	free(out);
}

int main(int argc, char **argv)
{
	int o;

	while ((o = getopt(argc, argv, "+a:c:d:f:m:p:t:w:x")) != -1) {
		switch (o) {
		case 'a': opt.address = optarg; break;
		case 'c': opt.peer = optarg; break;
		case 'd': opt.device = optarg; break;
		case 'f': opt.from = optarg; break;
		case 'm': opt.mtu = atoi(optarg); break;
		case 'p': opt.port = atoi(optarg); break;
		case 't': opt.ud = !strcmp(optarg, "ud"); opt.uc = !strcmp(optarg, "uc"); break;
		case 'w': opt.wait = atoi(optarg); break;
		case 'x': opt.spoil = true; break;
		default: die("unknown option; the head of rawqp.c lists them");
		}
	}
	if (!opt.peer != (optind == argc))
		die("the client, and only the client, has operations");
	for (int i = optind; i < argc; i++)
		parse(argv[i]);

	open_device();
	int gid_index = find_gid();
	create();
	exchange();
	connect_qp(gid_index);
	tell("connected\n");
	hear();
	bool right = opt.peer ? run_client(argc - optind, argv + optind) : run_server();
	/* Nobody leaves while the other may still resend to it. */
	if (opt.peer)
		hear();
	else
		tell("bye\n");
	destroy();
	printf("%s\n", right ? "all right" : "FAILED");
	return right ? 0 : 1;
}
