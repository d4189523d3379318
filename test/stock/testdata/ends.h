/* Two ends of a connection, for the programs here: each includes this once. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE 65536

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

#define CHECK(c) do { if (!(c)) fail(#c); } while (0)

/* One end of a connection, with a context of its own. */
struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buf;
};

/* What an end tells the other. */
struct address {
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t addr;
};

static void open_end(struct end *e, int access, struct address *self)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n >= 1);
	CHECK(e->ctx = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(e->pd = ibv_alloc_pd(e->ctx));
	CHECK(e->channel = ibv_create_comp_channel(e->ctx));
	CHECK(e->cq = ibv_create_cq(e->ctx, 64, NULL, e->channel, 0));
	e->buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(e->buf != MAP_FAILED);
	CHECK(e->mr = ibv_reg_mr(e->pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | access));
	struct ibv_qp_init_attr init = {
		.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
	};
	CHECK(e->qp = ibv_create_qp(e->pd, &init));
	CHECK(!ibv_query_gid(e->ctx, 1, 0, &self->gid));
	self->qpn = e->qp->qp_num;
	self->rkey = e->mr->rkey;
	self->addr = (uintptr_t)e->buf;
}

static void connect_end(struct end *e, const struct address *peer)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = IBV_MTU_1024;
	a.dest_qp_num = peer->qpn;
	a.max_dest_rd_atomic = 1;
	a.min_rnr_timer = 12;
	a.ah_attr.is_global = 1;
	a.ah_attr.port_num = 1;
	a.ah_attr.grh.dgid = peer->gid;
	a.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS;
	a.timeout = 12; /* 17 ms */
	a.retry_cnt = 7;
	a.rnr_retry = 7;
	a.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

__attribute__((unused)) static void close_end(struct end *e)
{
	CHECK(!ibv_destroy_qp(e->qp) && !ibv_dereg_mr(e->mr) && !ibv_destroy_cq(e->cq));
	CHECK(!ibv_destroy_comp_channel(e->channel) && !ibv_dealloc_pd(e->pd) && !ibv_close_device(e->ctx));
	munmap(e->buf, SIZE);
}

/* Two ends in this process, each with a context of its own. */
static void open_pair(struct end *a, struct end *b, int access)
{
	struct address at, bt;
	open_end(a, access, &at);
	open_end(b, access, &bt);
	connect_end(a, &bt);
	connect_end(b, &at);
}

static void post_write(struct end *e, uint32_t length, uint64_t to, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)e->buf, length, e->mr->lkey};
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {to, rkey}};
	CHECK(!(errno = ibv_post_send(e->qp, &wr, &bad)));
}

/* The next completion: waits for its event. */
static struct ibv_wc completion(struct end *e)
{
	struct ibv_wc wc;
	int n;
	CHECK(!ibv_req_notify_cq(e->cq, 0));
	while ((n = ibv_poll_cq(e->cq, 1, &wc)) == 0) {
		struct ibv_cq *cq;
		void *arg;
		CHECK(!ibv_get_cq_event(e->channel, &cq, &arg) && cq == e->cq);
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(e->cq, 0));
	}
	CHECK(n == 1);
	return wc;
}
