/*
 * A verbs program that lives as programs do: it forks, waits for events without
 * blocking, has several contexts, loses its peer. Argument: what to do.
 */
#include "ends.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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
	} else if (!strcmp(what, "wait") || !strcmp(what, "wait-on-demand")) { /* with objects, until it is killed */
		struct end a, b;
		int on_demand = strcmp(what, "wait");
		open_pair(&a, &b, on_demand ? IBV_ACCESS_ON_DEMAND : 0);
		traffic(&a, &b, 3);
		puts("ready");
		fflush(stdout);
		for (;;) {
			if (on_demand) /* each write finds pages that are not there */
				CHECK(!madvise(b.buf, SIZE, MADV_DONTNEED));
			traffic(&a, &b, 1);
		}
	} else {
		fprintf(stderr, "no such thing: %s\n", what);
		return 2;
	}
	puts("ok");
	return 0;
}
