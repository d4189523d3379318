/* Connections one after the other against one listener: cmcycle server PORT N, cmcycle client ADDRESS PORT N. Each carries a message that is
 * different every time there and back. cmcycle interrupt PORT: a signal without SA_RESTART ends a blocking rdma_get_cm_event with EINTR. */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { SIZE = 3000 };

static void must(int bad, const char *what, int round)
{
	if (bad) {
		printf("round %d: %s: %s\n", round, what, strerror(errno));
		exit(1);
	}
}

static void fill(uint8_t *b, int round, int way)
{
	for (int i = 0; i < SIZE; i++)
		b[i] = (uint8_t)(i * 7 + round * 31 + way * 101 + (i >> 8) + (round >> 8));
}

static struct rdma_cm_id *endpoint(const char *node, const char *port, int passive)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = passive ? RAI_PASSIVE : 0 }, *res;
	struct ibv_qp_init_attr attr = { .cap = { 2, 2, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct rdma_cm_id *id;
	must(rdma_getaddrinfo((char *)node, (char *)port, &hints, &res), "rdma_getaddrinfo", -1);
	must(rdma_create_ep(&id, res, NULL, &attr), "rdma_create_ep", -1);
	rdma_freeaddrinfo(res);
	return id;
}

static void complete(int n, struct ibv_wc *wc, const char *what, int round)
{
	if (n == 1 && wc->status != IBV_WC_SUCCESS) {
		printf("round %d: %s: %s\n", round, what, ibv_wc_status_str(wc->status));
		exit(1);
	}
	must(n != 1, what, round);
}

static void exchange(struct rdma_cm_id *id, struct ibv_mr *mr, uint8_t *buf, int round, int active)
{
	static uint8_t want[SIZE];
	struct ibv_wc wc;
	for (int step = 0; step < 2; step++) {
		if (step == !active) { /* the client speaks first */
			fill(buf, round, active);
			must(rdma_post_send(id, NULL, buf, SIZE, mr, 0), "rdma_post_send", round);
			/* The server's is not waited for: its acknowledgement may be lost when the client, which has the answer, ends. */
			if (active)
				complete(rdma_get_send_comp(id, &wc), &wc, "send", round);
		} else {
			complete(rdma_get_recv_comp(id, &wc), &wc, "receive", round);
			fill(want, round, !active);
			if (memcmp(want, buf + SIZE, SIZE)) {
				printf("round %d: other bytes than were sent\n", round);
				exit(1);
			}
		}
	}
}

static void serve(const char *port, int rounds)
{
	struct rdma_cm_id *listener = endpoint("0.0.0.0", port, 1), *id;
	static uint8_t buf[2 * SIZE];
	must(rdma_listen(listener, 64), "rdma_listen", -1);
	for (int r = 0; r < rounds; r++) {
		must(rdma_get_request(listener, &id), "rdma_get_request", r);
		struct ibv_mr *mr = rdma_reg_msgs(id, buf, sizeof buf);
		must(!mr, "rdma_reg_msgs", r);
		must(rdma_post_recv(id, NULL, buf + SIZE, SIZE, mr), "rdma_post_recv", r);
		must(rdma_accept(id, NULL), "rdma_accept", r);
		exchange(id, mr, buf, r, 0);
		struct rdma_cm_event *event;
		must(rdma_get_cm_event(id->channel, &event), "rdma_get_cm_event", r);
		must(event->event != RDMA_CM_EVENT_DISCONNECTED, rdma_event_str(event->event), r);
		rdma_ack_cm_event(event);
		/* rdma_disconnect would wait for one more event, the end of timewait; destroying the id answers the peer. */
		rdma_dereg_mr(mr);
		rdma_destroy_ep(id);
	}
	rdma_destroy_ep(listener);
}

static void ask(const char *node, const char *port, int rounds)
{
	static uint8_t buf[2 * SIZE];
	for (int r = 0; r < rounds; r++) {
		struct rdma_cm_id *id = endpoint(node, port, 0);
		struct ibv_mr *mr = rdma_reg_msgs(id, buf, sizeof buf);
		must(!mr, "rdma_reg_msgs", r);
		must(rdma_post_recv(id, NULL, buf + SIZE, SIZE, mr), "rdma_post_recv", r);
		/* Only before the first is the server perhaps not there yet. */
		for (int n = 0; rdma_connect(id, NULL); n++) {
			must(r > 0 || n == 100, "rdma_connect", r);
			usleep(50000);
			rdma_dereg_mr(mr);
			rdma_destroy_ep(id);
			id = endpoint(node, port, 0);
			mr = rdma_reg_msgs(id, buf, sizeof buf);
			must(!mr || rdma_post_recv(id, NULL, buf + SIZE, SIZE, mr), "rdma_post_recv", r);
		}
		exchange(id, mr, buf, r, 1);
		must(rdma_disconnect(id), "rdma_disconnect", r);
		rdma_dereg_mr(mr);
		rdma_destroy_ep(id);
	}
}

static void nothing(int s) { (void)s; }

static void interrupted(const char *port)
{
	struct sigaction act = { .sa_handler = nothing };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	must(!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id", -1);
	must(rdma_bind_addr(id, (struct sockaddr *)&any) || rdma_listen(id, 1), "rdma_listen", -1);
	sigaction(SIGALRM, &act, NULL);
	for (int r = 0; r < 5; r++) {
		ualarm(300000, 0);
		int got = rdma_get_cm_event(channel, &event);
		must(got != -1 || errno != EINTR, "rdma_get_cm_event did not end with EINTR", r);
	}
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 4 && !strcmp(argv[1], "server"))
		serve(argv[2], atoi(argv[3]));
	else if (argc == 5 && !strcmp(argv[1], "client"))
		ask(argv[2], argv[3], atoi(argv[4]));
	else if (argc == 3 && !strcmp(argv[1], "interrupt"))
		interrupted(argv[2]);
	else
		return 2;
	printf("ok\n");
	return 0;
}
