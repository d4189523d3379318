/*
 * A verbs program that lives as programs do: it forks, waits for events without
 * blocking, has several contexts, loses its peer. Argument: what to do.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void close_end(struct end *e)
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

/* Writes from a to b that arrive. */
static void traffic(struct end *a, struct end *b, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		memset(a->buf, i + 1, SIZE);
		post_write(a, SIZE, (uintptr_t)b->buf, b->mr->rkey);
		CHECK(completion(a).status == IBV_WC_SUCCESS);
		CHECK(b->buf[0] == (uint8_t)(i + 1) && !memcmp(b->buf, a->buf, SIZE));
	}
}

static void simple(int rounds)
{
	struct end a, b;
	open_pair(&a, &b, 0);
	traffic(&a, &b, rounds);
	close_end(&a);
	close_end(&b);
}

static void reap(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	if (status) {
		fprintf(stderr, "child: status %#x\n", status);
		exit(1);
	}
}

/* Children come and go while transfers go on; each has transfers of its own. kept: they have a copy of the registered
 * memory too, and write to it, which must not be seen. */
static void forks(int kept)
{
	struct end a, b;
	open_pair(&a, &b, 0);
	traffic(&a, &b, 3);
	for (int i = 0; i < 4; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			if (kept) {
				memset(a.buf, 0xee, SIZE);
				memset(b.buf, 0xee, SIZE);
			}
			simple(3);
			if (i == 3)
				execlp("true", "true", (char *)NULL);
			_exit(0);
		}
		traffic(&a, &b, 20);
		reap(child);
		traffic(&a, &b, 3);
	}
	close_end(&a);
	close_end(&b);
}

/* Descriptors that do not block. */
static void nonblocking(void)
{
	struct end a, b;
	open_pair(&a, &b, 0);
	int fds[] = {a.channel->fd, a.ctx->async_fd};
	for (int i = 0; i < 2; i++)
		CHECK(!fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK));
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(a.ctx, &event) == -1 && errno == EAGAIN);
	struct pollfd p = {.fd = a.channel->fd, .events = POLLIN};
	for (int i = 0; i < 50; i++) {
		struct ibv_cq *cq;
		void *arg;
		CHECK(ibv_get_cq_event(a.channel, &cq, &arg) == -1 && errno == EAGAIN);
		CHECK(poll(&p, 1, 0) == 0);
		CHECK(!ibv_req_notify_cq(a.cq, 0));
		post_write(&a, 100, (uintptr_t)b.buf, b.mr->rkey);
		CHECK(poll(&p, 1, 10000) == 1 && p.revents == POLLIN);
		CHECK(!ibv_get_cq_event(a.channel, &cq, &arg) && cq == a.cq);
		ibv_ack_cq_events(cq, 1);
		struct ibv_wc wc;
		CHECK(ibv_poll_cq(a.cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	}
	/* An event of the target: the key is wrong. */
	p.fd = b.ctx->async_fd;
	CHECK(poll(&p, 1, 0) == 0);
	post_write(&a, 100, (uintptr_t)b.buf, b.mr->rkey ^ 0xff00);
	CHECK(completion(&a).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(poll(&p, 1, 10000) == 1);
	CHECK(!ibv_get_async_event(b.ctx, &event) && event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b.qp);
	ibv_ack_async_event(&event);
	close_end(&a);
	close_end(&b);
}

/* A peer in another process is killed in the middle of transfers, which then fail as with a peer that is gone. The
 * NIC serves the next one. */
static void killed(void)
{
	for (int i = 0; i < 3; i++) {
		int up[2], down[2];
		CHECK(!pipe(up) && !pipe(down));
		struct end e;
		struct address self, peer;
		pid_t child = fork();
		CHECK(child >= 0);
		open_end(&e, 0, &self);
		CHECK(write(child ? down[1] : up[1], &self, sizeof self) == sizeof self);
		CHECK(read(child ? up[0] : down[0], &peer, sizeof peer) == sizeof peer);
		connect_end(&e, &peer);
		char go = 0;
		if (child == 0) {
			CHECK(write(up[1], &go, 1) == 1);
			pause();
		}
		CHECK(read(up[0], &go, 1) == 1);
		int posted = 0, done = 0;
		for (; posted < 8; posted++)
			post_write(&e, SIZE, peer.addr, peer.rkey);
		enum ibv_wc_status status = IBV_WC_SUCCESS;
		for (int n = 0; status == IBV_WC_SUCCESS; n++) {
			if (n == 20)
				CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
			status = completion(&e).status;
			done++;
			if (status == IBV_WC_SUCCESS) {
				post_write(&e, SIZE, peer.addr, peer.rkey);
				posted++;
			}
		}
		if (status != IBV_WC_RETRY_EXC_ERR && status != IBV_WC_REM_ACCESS_ERR) {
			fprintf(stderr, "the peer was killed: %s\n", ibv_wc_status_str(status));
			exit(1);
		}
		printf("killed: %s\n", ibv_wc_status_str(status));
		for (; done < posted; done++)
			CHECK(completion(&e).status == IBV_WC_WR_FLUSH_ERR);
		close_end(&e);
		for (int j = 0; j < 2; j++) {
			close(up[j]);
			close(down[j]);
		}
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "simple")) {
		simple(5);
	} else if (!strcmp(what, "fork")) {
		forks(1);
	} else if (!strcmp(what, "fork-init")) {
		CHECK(!(errno = ibv_fork_init()));
		/* The library says that it was not needed (the device copies on fork), and keeps memory from children all the same. */
		CHECK(ibv_is_fork_initialized() != IBV_FORK_DISABLED);
		forks(0);
	} else if (!strcmp(what, "fork-safe")) { /* RDMAV_FORK_SAFE or IBV_FORK_SAFE is set */
		forks(0);
	} else if (!strcmp(what, "nonblocking")) {
		nonblocking();
	} else if (!strcmp(what, "killed")) {
		killed();
	} else if (!strcmp(what, "wait")) { /* with objects, until it is killed */
		struct end a, b;
		open_pair(&a, &b, 0);
		traffic(&a, &b, 3);
		puts("ready");
		fflush(stdout);
		for (;;)
			traffic(&a, &b, 1);
	} else {
		fprintf(stderr, "no such thing: %s\n", what);
		return 2;
	}
	puts("ok");
	return 0;
}
