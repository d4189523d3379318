/*
 * A region that the program has mapped read-only must refuse remote writes: it cannot be registered for them, and what is
 * registered for reading stays as it is. One line "ok" when all is right.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
#define DIE(...) (printf(__VA_ARGS__), printf(": %s\n", strerror(errno)), exit(1))

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);

	if (!qp)
		DIE("create_qp");
	return qp;
}

static void join(struct ibv_qp *qp, struct ibv_qp *peer, union ibv_gid *gid)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		DIE("INIT");
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = IBV_MTU_1024;
	a.dest_qp_num = peer->qp_num;
	a.max_dest_rd_atomic = 1;
	a.min_rnr_timer = 12;
	a.ah_attr.is_global = 1;
	a.ah_attr.port_num = 1;
	a.ah_attr.grh.dgid = *gid;
	a.ah_attr.grh.hop_limit = 64;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		DIE("RTR");
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS;
	a.timeout = 14;
	a.retry_cnt = 7;
	a.rnr_retry = 7;
	a.max_rd_atomic = 1;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		DIE("RTS");
}

/* One RDMA WRITE or READ between two new queue pairs, and its status. */
static enum ibv_wc_status carry_out(enum ibv_wr_opcode op, struct ibv_mr *local, struct ibv_mr *remote)
{
	struct ibv_qp *a = make_qp(), *b = make_qp();
	struct ibv_sge sge = { (uintptr_t)local->addr, 64, local->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)remote->addr, remote->rkey } }, *bad;
	struct ibv_wc wc;
	union ibv_gid gid;

	if (ibv_query_gid(ctx, 1, 0, &gid))
		DIE("query_gid");
	join(a, b, &gid);
	join(b, a, &gid);
	if (ibv_post_send(a, &wr, &bad))
		DIE("post_send");
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	ibv_destroy_qp(a);
	ibv_destroy_qp(b);
	return wc.status;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	char *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *plain = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr, *own;
	enum ibv_wc_status s;

	if (!list || !list[0] || !(ctx = ibv_open_device(list[0])))
		DIE("no device");
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	own = ibv_reg_mr(pd, plain, PAGE, IBV_ACCESS_LOCAL_WRITE);
	if (!pd || !cq || !own)
		DIE("objects");
	mr = ibv_reg_mr(pd, page, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (mr || errno != EFAULT)
		DIE("a read-only page was registered for remote writes");
	mr = ibv_reg_mr(pd, page, PAGE, IBV_ACCESS_REMOTE_READ);
	if (!mr)
		DIE("a read-only page cannot be registered for reading");
	memset(plain, 'x', PAGE);
	s = carry_out(IBV_WR_RDMA_WRITE, own, mr);
	if (s != IBV_WC_REM_ACCESS_ERR || page[0])
		DIE("RDMA WRITE to it: %s, first byte %d", ibv_wc_status_str(s), page[0]);
	s = carry_out(IBV_WR_RDMA_READ, own, mr);
	if (s != IBV_WC_SUCCESS || plain[0])
		DIE("RDMA READ of it: %s, first byte %d", ibv_wc_status_str(s), plain[0]);
	printf("ok\n");
	return 0;
}
