/*
 * A verbs program that uses what can be changed after creation: a shared
 * receive queue with its limit and size, a completion queue's size, and the
 * asynchronous events of all of them. Everything within one process.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(cond) do { if (!(cond)) { \
	fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, strerror(errno)); exit(1); } } while (0)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static union ibv_gid gid;
static char buf[1 << 16];

static struct ibv_qp *new_qp(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 64, .max_recv_wr = srq ? 0 : 64, .max_send_sge = 1, .max_recv_sge = srq ? 0 : 1},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	MUST(qp);
	return qp;
}

static void to_rts(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.rq_psn = 7, .sq_psn = 7, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 12,
		.timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}},
	};
	MUST(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a.qp_state = IBV_QPS_RTR;
	MUST(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a.qp_state = IBV_QPS_RTS;
	MUST(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			    IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct ibv_sge piece(int n)
{
	return (struct ibv_sge){(uintptr_t)buf, n, mr->lkey};
}

static void post(struct ibv_srq *srq, uint64_t id)
{
	struct ibv_sge s = piece(64);
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &s, .num_sge = 1}, *bad;
	MUST(!ibv_post_srq_recv(srq, &wr, &bad));
}

static void send_one(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge s = piece(16);
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	MUST(!ibv_post_send(qp, &wr, &bad));
}

static void expect(struct ibv_cq *cq, uint64_t id)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	MUST(n == 1);
	if (wc.status || wc.wr_id != id) {
		fprintf(stderr, "completion %d with status %d, wanted %d\n", (int)wc.wr_id, wc.status, (int)id);
		exit(1);
	}
}

/* The next event of a type, others that come before it are read over. */
static struct ibv_async_event event(enum ibv_event_type type)
{
	struct ibv_async_event e;
	do {
		MUST(!ibv_get_async_event(ctx, &e));
		ibv_ack_async_event(&e);
	} while (e.event_type != type);
	return e;
}

static void shared(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	MUST(srq && init.attr.max_wr >= 8);
	struct ibv_cq *from = ibv_create_cq(ctx, 64, NULL, NULL, 0), *to = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp *a[2], *b[2];
	for (int i = 0; i < 2; i++) {
		a[i] = new_qp(from, NULL);
		b[i] = new_qp(to, srq);
		to_rts(a[i], b[i]);
		to_rts(b[i], a[i]);
	}

	struct ibv_srq_attr attr;
	uint64_t in = 0, out = 0;
	while (in < 5)
		post(srq, in++);
	attr.srq_limit = 4;
	MUST(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	MUST(!ibv_query_srq(srq, &attr) && attr.srq_limit == 4 && attr.max_sge == 1);
	for (; out < 2; out++) {
		send_one(a[out % 2], out);
		expect(to, out);
		expect(from, out);
	}
	MUST(event(IBV_EVENT_SRQ_LIMIT_REACHED).element.srq == srq);
	MUST(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0);
	attr.srq_limit = 1000;
	MUST(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);

	attr.max_wr = 1;
	MUST(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL); /* three are posted */
	for (int round = 0; round < 20; round++) {
		attr.max_wr = round % 2 ? 8 : 100;
		MUST(!ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
		MUST(!ibv_query_srq(srq, &attr) && attr.max_wr == (round % 2 ? 15 : 127));
		for (int k = 0; k < 5; k++)
			post(srq, in++);
		for (int k = 0; k < 5; k++, out++) {
			send_one(a[out % 3 == 0], out);
			expect(to, out);
			expect(from, out);
		}
	}

	MUST(ibv_destroy_srq(srq) == EBUSY);
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	MUST(!ibv_modify_qp(b[1], &err, IBV_QP_STATE));
	MUST(event(IBV_EVENT_QP_LAST_WQE_REACHED).element.qp == b[1]);
	send_one(a[0], out); /* what b[1] left serves b[0] */
	expect(to, out);
	for (int i = 0; i < 2; i++)
		MUST(!ibv_destroy_qp(a[i]) && !ibv_destroy_qp(b[i]));
	MUST(!ibv_destroy_srq(srq) && !ibv_destroy_cq(from) && !ibv_destroy_cq(to));
}

static void completion_queue(void)
{
	struct ibv_cq *from = ibv_create_cq(ctx, 1000, NULL, NULL, 0), *to = ibv_create_cq(ctx, 7, NULL, NULL, 0);
	struct ibv_qp *a = new_qp(from, NULL), *b = new_qp(to, NULL);
	to_rts(a, b);
	to_rts(b, a);
	struct ibv_sge s = piece(64);
	struct ibv_recv_wr *bad;
	for (int i = 0; i < 60; i++) {
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &s, .num_sge = 1};
		MUST(!ibv_post_recv(b, &wr, &bad));
	}
	int sent = 0, seen = 0;
	for (int round = 0; round < 8; round++) { /* five wait to be polled when the size changes */
		for (int k = 0; k < 5; k++, sent++) {
			send_one(a, sent);
			expect(from, sent);
		}
		MUST(ibv_resize_cq(to, 3) == EINVAL);
		MUST(!ibv_resize_cq(to, round % 2 ? 7 : 300));
		for (int k = 0; k < 5; k++)
			expect(to, seen++);
	}
	for (int k = 0; k < 9; k++, sent++) /* it holds seven */
		send_one(a, sent);
	MUST(event(IBV_EVENT_CQ_ERR).element.cq == to);
	MUST(event(IBV_EVENT_QP_FATAL).element.qp == b);
	MUST(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(from) && !ibv_destroy_cq(to));
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && list[0] && (ctx = ibv_open_device(list[0])));
	MUST((pd = ibv_alloc_pd(ctx)) && (mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE)));
	MUST(!ibv_query_gid(ctx, 1, 0, &gid));
	shared();
	completion_queue();
	MUST(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}
