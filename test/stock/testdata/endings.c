/*
 * Every way in which a work request ends, and every asynchronous event: the argument says which. What completes and what
 * happens is printed, a line each: "a send: success", "b event: Local access violation work queue error".
 */
#include "ends.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static struct end a, b;

/* The next completion of an end. */
static void ends(const char *who, const char *what, struct end *e)
{
	struct ibv_wc wc = completion(e);
	printf("%s %s: %s\n", who, what, ibv_wc_status_str(wc.status));
}

/* The next event of an end. */
static void event(const char *who, struct end *e)
{
	struct pollfd p = {.fd = e->ctx->async_fd, .events = POLLIN};
	struct ibv_async_event ev;
	CHECK(poll(&p, 1, 60000) == 1);
	CHECK(!ibv_get_async_event(e->ctx, &ev));
	printf("%s event: %s\n", who, ibv_event_type_str(ev.event_type));
	fflush(stdout);
	ibv_ack_async_event(&ev);
}

static void post(struct end *e, struct ibv_send_wr wr, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = {(uintptr_t)e->buf, length, lkey};
	struct ibv_send_wr *bad;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.send_flags |= IBV_SEND_SIGNALED;
	CHECK(!(errno = ibv_post_send(e->qp, &wr, &bad)));
}

static void send_to_peer(struct end *e, uint32_t length)
{
	post(e, (struct ibv_send_wr){.opcode = IBV_WR_SEND}, length, e->mr->lkey);
}

static void receive_into(struct end *e, void *buf, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = {(uintptr_t)buf, length, lkey};
	struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
	CHECK(!(errno = ibv_post_recv(e->qp, &wr, &bad)));
}

static void receive(struct end *e, uint32_t length) { receive_into(e, e->buf, length, e->mr->lkey); }

static void pair(void) { open_pair(&a, &b, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND); }

/* ---- Completion statuses: vol. 1, 11.6.2. */

static void success(void)
{
	pair();
	post_write(&a, 100, (uintptr_t)b.buf, b.mr->rkey);
	ends("a", "write", &a);
}

/* A message longer than the receive. */
static void local_length(void)
{
	pair();
	receive(&b, 10);
	send_to_peer(&a, 100);
	ends("b", "receive", &b);
	ends("a", "send", &a);
}

static void local_operation(void)
{
	struct address at, bt;
	open_end(&a, 0, &at);
	open_end(&b, 0, &bt);
	/* No READ may be in flight (max_rd_atomic is 0): it cannot be sent. */
	connect_end(&b, &at);
	connect_end(&a, &bt);
	struct ibv_qp_attr sqd = {.qp_state = IBV_QPS_SQD}, rts = {.qp_state = IBV_QPS_RTS};
	struct ibv_qp_attr none = {.qp_state = IBV_QPS_SQD, .max_rd_atomic = 0};
	CHECK(!ibv_modify_qp(a.qp, &sqd, IBV_QP_STATE));
	CHECK(!ibv_modify_qp(a.qp, &none, IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(!ibv_modify_qp(a.qp, &rts, IBV_QP_STATE));
	post(&a, (struct ibv_send_wr){.opcode = IBV_WR_RDMA_READ, .wr.rdma = {(uintptr_t)b.buf, b.mr->rkey}}, 8, a.mr->lkey);
	ends("a", "read", &a);
}

/* A local key of no region. */
static void local_protection(void)
{
	pair();
	post(&a, (struct ibv_send_wr){.opcode = IBV_WR_SEND}, 10, a.mr->lkey ^ 0x5500);
	ends("a", "send", &a);
}

static void flushed(void)
{
	pair();
	receive(&b, 10);
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	CHECK(!ibv_modify_qp(b.qp, &err, IBV_QP_STATE));
	ends("b", "receive", &b);
}

/* A window beyond its region. */
static void window_bind(void)
{
	pair();
	struct ibv_mw *mw = ibv_alloc_mw(a.pd, IBV_MW_TYPE_2);
	CHECK(mw);
	struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {.mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = {.mr = a.mr, .addr = (uintptr_t)a.buf, .length = SIZE + 1,
			.mw_access_flags = IBV_ACCESS_REMOTE_READ}}};
	CHECK(!(errno = ibv_post_send(a.qp, &wr, &bad)));
	ends("a", "bind", &a);
	CHECK(!ibv_dealloc_mw(mw));
}

/* A READ from a queue pair that allows none. */
static void remote_invalid(void)
{
	pair();
	post(&a, (struct ibv_send_wr){.opcode = IBV_WR_RDMA_READ, .wr.rdma = {(uintptr_t)b.buf, b.mr->rkey}}, 8, a.mr->lkey);
	ends("a", "read", &a);
	event("b", &b);
}

static void remote_access(void)
{
	pair();
	post_write(&a, 100, (uintptr_t)b.buf + SIZE - 99, b.mr->rkey);
	ends("a", "write", &a);
	event("b", &b);
}

/* The receive's memory is gone since it was registered. */
static void remote_operation(void)
{
	pair();
	uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, page, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	receive_into(&b, page, 4096, mr->lkey);
	CHECK(!munmap(page, 4096));
	send_to_peer(&a, 100);
	ends("b", "receive", &b);
	ends("a", "send", &a);
}

/* Nobody is there. */
static void retries(void)
{
	struct address at, nobody;
	open_end(&a, 0, &at);
	nobody = at;
	nobody.qpn = 0xfffff0;
	connect_end(&a, &nobody);
	send_to_peer(&a, 100);
	ends("a", "send", &a);
}

/* No receive is ever posted. */
static void not_ready(void)
{
	pair();
	struct ibv_qp_attr sqd = {.qp_state = IBV_QPS_SQD}, rts = {.qp_state = IBV_QPS_RTS, .rnr_retry = 2};
	CHECK(!ibv_modify_qp(a.qp, &sqd, IBV_QP_STATE));
	struct ibv_qp_attr few = {.qp_state = IBV_QPS_SQD, .rnr_retry = 2};
	CHECK(!ibv_modify_qp(a.qp, &few, IBV_QP_STATE | IBV_QP_RNR_RETRY));
	CHECK(!ibv_modify_qp(a.qp, &rts, IBV_QP_STATE));
	send_to_peer(&a, 100);
	ends("a", "send", &a);
}

/* CRC-32 of Ethernet, as the ICRC is (A17.3.3). */
static uint32_t crc(uint32_t c, const uint8_t *p, size_t n)
{
	while (n--) {
		c ^= *p++;
		for (int k = 0; k < 8; k++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320 : 0);
	}
	return c;
}

/* A peer of our own making at 127.0.0.2, which answers a request by a NAK of a reserved code. */
static void *false_peer(void *arg)
{
	int s = *(int *)arg;
	uint8_t in[4096];
	struct sockaddr_in from;
	socklen_t len = sizeof from;
	CHECK(recvfrom(s, in, sizeof in, 0, (struct sockaddr *)&from, &len) >= 16);
	uint8_t ip[28] = {0x45, 0xff, 0, 20 + 8 + 12 + 4 + 4, 0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff, 127, 0, 0, 2, 127, 0, 0, 1};
	uint16_t udp[4] = {htons(4791), from.sin_port, htons(8 + 12 + 4 + 4), 0xffff};
	memcpy(ip + 20, udp, 8);
	/* BTH: RC ACKNOWLEDGE, the default partition, the asker's queue pair, the PSN of the request; AETH: NAK, code 31. */
	uint8_t out[20] = {0x11, 0, 0xff, 0xff, 0, a.qp->qp_num >> 16, a.qp->qp_num >> 8, a.qp->qp_num, 0, in[9], in[10], in[11], 0x7f, 0, 0, 0};
	uint8_t head[8], masked[16];
	memset(head, 0xff, sizeof head);
	memcpy(masked, out, 16);
	masked[4] = 0xff;
	uint32_t c = ~crc(crc(crc(~0u, head, 8), ip, 28), masked, 16);
	memcpy(out + 16, &c, 4);
	CHECK(sendto(s, out, sizeof out, 0, (struct sockaddr *)&from, len) == sizeof out);
	return NULL;
}

static void bad_response(void)
{
	int s = socket(AF_INET, SOCK_DGRAM, 0), set = IP_PMTUDISC_DO;
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(4791), .sin_addr.s_addr = htonl(0x7f000002)};
	CHECK(s >= 0 && !setsockopt(s, IPPROTO_IP, IP_MTU_DISCOVER, &set, sizeof set) && !bind(s, (struct sockaddr *)&own, sizeof own));
	struct address at, peer;
	open_end(&a, 0, &at);
	peer = at;
	peer.gid.raw[15] = 2;
	connect_end(&a, &peer);
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, false_peer, &s));
	send_to_peer(&a, 100);
	ends("a", "send", &a);
	CHECK(!pthread_join(t, NULL));
}

/* ---- Asynchronous events: vol. 1, 11.6.3. */

/* A completion queue that overflows: it says so, and ends its queue pairs. */
static void overflow(void)
{
	pair();
	for (int i = 0; i < 8; i++)
		for (int k = 0; k < 16; k++) {
			struct ibv_sge sge = {(uintptr_t)a.buf, 1, a.mr->lkey};
			struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				.wr.rdma = {(uintptr_t)b.buf, b.mr->rkey}};
			for (int try = 0; ibv_post_send(a.qp, &wr, &bad); try++) {
				if (try > 2000)
					goto full;
				usleep(1000);
			}
		}
full:
	event("a", &a);
	event("a", &a);
}

/* Data before the program has moved to ready-to-send. */
static void established(void)
{
	struct address at, bt;
	open_end(&a, 0, &at);
	open_end(&b, 0, &bt);
	connect_end(&a, &bt);
	struct ibv_qp_attr q = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	CHECK(!ibv_modify_qp(b.qp, &q, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	receive(&b, 100);
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = at.qpn, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = at.gid, .hop_limit = 64}}};
	CHECK(!ibv_modify_qp(b.qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	send_to_peer(&a, 10);
	ends("a", "send", &a);
	event("b", &b);
}

static void drained(void)
{
	pair();
	struct ibv_qp_attr sqd = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
	CHECK(!ibv_modify_qp(a.qp, &sqd, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	event("a", &a);
}

/* The index of the GID of an IPv4 address. */
static int gid_index(struct ibv_context *ctx, const char *addr)
{
	union ibv_gid g, want = {.raw = {[10] = 0xff, [11] = 0xff}};
	CHECK(inet_pton(AF_INET, addr, want.raw + 12) == 1);
	for (int i = 0; i < 64; i++)
		if (!ibv_query_gid(ctx, 1, i, &g) && !memcmp(&g, &want, sizeof g))
			return i;
	fprintf(stderr, "no GID of %s\n", addr);
	exit(1);
}

/* Two ends that are ready to migrate (17.2.8) to a path between two ports of the same address. */
static void armed(const char *addr)
{
	pair();
	int index = gid_index(a.ctx, addr);
	struct ibv_qp_attr q = {.path_mig_state = IBV_MIG_REARM, .alt_port_num = 1, .alt_timeout = 12,
		.alt_ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = index, .hop_limit = 64}}};
	CHECK(!ibv_query_gid(a.ctx, 1, index, &q.alt_ah_attr.grh.dgid));
	CHECK(!(errno = ibv_modify_qp(a.qp, &q, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)));
	CHECK(!(errno = ibv_modify_qp(b.qp, &q, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)));
	struct ibv_qp_init_attr init;
	do {
		post_write(&a, 100, (uintptr_t)b.buf, b.mr->rkey);
		CHECK(completion(&a).status == IBV_WC_SUCCESS);
		CHECK(!ibv_query_qp(a.qp, &q, IBV_QP_PATH_MIG_STATE, &init));
	} while (q.path_mig_state != IBV_MIG_ARMED);
}

static void migrate(void)
{
	struct ibv_qp_attr now = {.path_mig_state = IBV_MIG_MIGRATED};
	CHECK(!(errno = ibv_modify_qp(a.qp, &now, IBV_QP_PATH_MIG_STATE)));
}

static void migrated(void)
{
	armed("127.0.0.2");
	migrate();
	event("a", &a);
	post_write(&a, 100, (uintptr_t)b.buf, b.mr->rkey);
	ends("a", "write", &a);
	event("b", &b);
}

/* The test takes the alternate path's address away. */
static void not_migrated(void)
{
	armed("10.9.8.2");
	puts("ready");
	fflush(stdout);
	event("a", &a);
	migrate();
	event("a", &a);
}

/* ---- Shared receive queues. */

static struct ibv_srq *shared(struct end *e)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *s = ibv_create_srq(e->pd, &init);
	CHECK(s && !ibv_destroy_qp(e->qp));
	struct ibv_qp_init_attr q = {.send_cq = e->cq, .recv_cq = e->cq, .srq = s, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_send_sge = 1}};
	CHECK(e->qp = ibv_create_qp(e->pd, &q));
	return s;
}

static void shared_receive(struct end *e, struct ibv_srq *s)
{
	struct ibv_sge sge = {(uintptr_t)e->buf, 64, e->mr->lkey};
	struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
	CHECK(!(errno = ibv_post_srq_recv(s, &wr, &bad)));
}

static void shared_pair(struct ibv_srq **s)
{
	struct address at, bt;
	open_end(&a, 0, &at);
	open_end(&b, 0, &bt);
	*s = shared(&b);
	bt.qpn = b.qp->qp_num;
	connect_end(&a, &bt);
	connect_end(&b, &at);
	for (int i = 0; i < 3; i++)
		shared_receive(&b, *s);
}

static void limit(void)
{
	struct ibv_srq *s;
	shared_pair(&s);
	struct ibv_srq_attr armed = {.srq_limit = 3};
	CHECK(!ibv_modify_srq(s, &armed, IBV_SRQ_LIMIT));
	send_to_peer(&a, 10);
	ends("a", "send", &a);
	event("b", &b);
}

static void last(void)
{
	struct ibv_srq *s;
	shared_pair(&s);
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	CHECK(!ibv_modify_qp(b.qp, &err, IBV_QP_STATE));
	event("b", &b);
}

/* ---- The port: the test changes the interface. */

static void port(void)
{
	struct address at;
	open_end(&a, 0, &at);
	puts("ready");
	fflush(stdout);
	for (;;)
		event("a", &a);
}

static const struct {
	const char *name;
	void (*run)(void);
} all[] = {
	{"success", success}, {"local_length", local_length}, {"local_operation", local_operation}, {"local_protection", local_protection},
	{"flushed", flushed}, {"window_bind", window_bind}, {"bad_response", bad_response}, {"remote_invalid", remote_invalid},
	{"remote_access", remote_access}, {"remote_operation", remote_operation}, {"retries", retries}, {"not_ready", not_ready},
	{"overflow", overflow}, {"established", established}, {"drained", drained}, {"migrated", migrated}, {"not_migrated", not_migrated},
	{"limit", limit}, {"last", last}, {"port", port},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (argc > 1 && !strcmp(argv[1], all[i].name)) {
			all[i].run();
			return 0;
		}
	fprintf(stderr, "no such ending: %s\n", argc > 1 ? argv[1] : "");
	return 2;
}
