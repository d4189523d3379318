// What others met, as a program on stock libibverbs: reported edge | memlock | inline | atomic.
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <fcntl.h>

#define CHECK(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)

static struct ibv_context *ctx;
static struct ibv_pd *pd;

static struct ibv_qp *queue_pair(struct ibv_cq *cq, unsigned inl)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = inl } };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	if (qp)
		printf("inline asked %u granted %u\n", inl, a.cap.max_inline_data);
	return qp;
}

// An edge-triggered waiter wakes for flushed receives, and each is there once.
static void edge(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	CHECK(ch);
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, ch, 0);
	CHECK(cq);
	struct ibv_qp *qp = queue_pair(cq, 0);
	CHECK(qp);
	CHECK(!fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK));
	int ep = epoll_create1(0);
	struct epoll_event e = { .events = EPOLLIN | EPOLLET };
	CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &e));
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	for (int i = 0; i < 20; i++) {
		struct ibv_recv_wr wr = { .wr_id = i }, *bad;
		CHECK(!ibv_post_recv(qp, &wr, &bad));
	}
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(epoll_wait(ep, &e, 1, 0) == 0);
	a.qp_state = IBV_QPS_ERR;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	CHECK(epoll_wait(ep, &e, 1, 60000) == 1);
	struct ibv_cq *got;
	void *cookie;
	CHECK(!ibv_get_cq_event(ch, &got, &cookie) && got == cq);
	ibv_ack_cq_events(cq, 1);
	struct ibv_wc wc;
	int n = 0;
	while (ibv_poll_cq(cq, 1, &wc) == 1) {
		CHECK(wc.wr_id == n && wc.status == IBV_WC_WR_FLUSH_ERR);
		n++;
	}
	CHECK(n == 20);
	CHECK(ibv_get_cq_event(ch, &got, &cookie)); // no second event
	printf("edge: %d flushed\n", n);
}

int main(int argc, char **argv)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n > 0 && argc == 2);
	ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	if (!strcmp(argv[1], "edge")) {
		edge();
	} else if (!strcmp(argv[1], "memlock")) {
		size_t size = 1ul << 30;
		void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(mem != MAP_FAILED);
		CHECK(ibv_reg_mr(pd, mem, size, IBV_ACCESS_LOCAL_WRITE));
		printf("memlock: 1 GiB registered\n");
	} else if (!strcmp(argv[1], "inline")) {
		struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
		CHECK(cq);
		unsigned sizes[] = { 0, 1, 36, 220, 400, 512, 5000 };
		for (int i = 0; i < 7; i++)
			if (!queue_pair(cq, sizes[i]))
				printf("inline asked %u refused\n", sizes[i]);
	} else {
		struct ibv_device_attr_ex a;
		CHECK(!ibv_query_device_ex(ctx, NULL, &a));
		printf("atomic %d pci %d\n", a.orig_attr.atomic_cap, a.pci_atomic_caps.fetch_add);
	}
	return 0;
}
