/*
 * What befalls a program whose device is taken away (librdmacm, libibverbs): a connection to itself at 127.0.0.1, its listener, a bare listener of all addresses, and
 * an open device beside them. It prints "ready", and what happens then.
 */
#include "cmids.h"

#define SHOW(what, c) printf(what ": %s\n", (c) ? strerror(errno) : "ok")

/* All asynchronous events of a device, until there are no more ever. */
static void async_events(const char *whose, struct ibv_context *ctx)
{
	struct ibv_async_event e;
	while (!ibv_get_async_event(ctx, &e)) {
		printf("%s: %s\n", whose, ibv_event_type_str(e.event_type));
		ibv_ack_async_event(&e);
	}
}

int main(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) }, any = { .sin_family = AF_INET };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *client, *server, *id;
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(60);
	CHECK(channel = rdma_create_event_channel());
	struct rdma_cm_id *listener = listen_at(&at, "listener"), *bare = listen_at(&any, "bare listener");
	CHECK(!rdma_create_id(channel, &client, "client", RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&at, 2000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(client, 2000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_create_qp(client, NULL, &init));
	CHECK(!rdma_connect(client, &param));
	server = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	server->context = "server";
	CHECK(!rdma_create_qp(server, NULL, &init));
	CHECK(!rdma_accept(server, &param));
	next(RDMA_CM_EVENT_ESTABLISHED);
	next(RDMA_CM_EVENT_ESTABLISHED);

	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n == 1);
	struct ibv_context *ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	ibv_free_device_list(list);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *events = ibv_create_comp_channel(ctx);
	CHECK(pd && events);
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, events, 0);
	static char buf[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	CHECK(cq && mr);
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp && !ibv_req_notify_cq(cq, 0));
	printf("ready\n");

	int seen = 0;
	for (int i = 0; i < 3; i++) {
		id = next(RDMA_CM_EVENT_DEVICE_REMOVAL);
		seen |= id == client ? 1 : id == server ? 2 : id == listener ? 4 : 8;
	}
	printf("removal: client %d, server %d, listener %d, others %d\n", seen & 1, seen >> 1 & 1, seen >> 2 & 1, seen >> 3);
	async_events("the program's context", ctx);
	async_events("librdmacm's context", client->verbs);
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	printf("further events of ids: %d\n", poll(&p, 1, 0));
	struct ibv_cq *whose;
	void *arg;
	printf("completion event: %d\n", ibv_get_cq_event(events, &whose, &arg));
	struct ibv_port_attr port;
	SHOW("querying the port", errno = ibv_query_port(ctx, 1, &port));
	SHOW("another protection domain", !ibv_alloc_pd(ctx));
	SHOW("modifying a queue pair", errno = ibv_modify_qp(qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE));
	SHOW("arming", errno = ibv_req_notify_cq(cq, 0));
	SHOW("an option of the client", rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &(uint8_t){ 1 }, 1));
	SHOW("destroying the queue pair", errno = ibv_destroy_qp(qp));
	SHOW("deregistering", errno = ibv_dereg_mr(mr));
	SHOW("closing", ibv_close_device(ctx));
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server) && !rdma_destroy_id(listener) && !rdma_destroy_id(bare));
	list = ibv_get_device_list(&n);
	printf("devices: %d\n", list ? n : 0);
	CHECK(!rdma_create_id(channel, &id, "late", RDMA_PS_TCP));
	at.sin_port = htons(7471);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000));
	struct rdma_cm_event *e;
	CHECK(!rdma_get_cm_event(channel, &e));
	printf("resolving: %s, %s\n", rdma_event_str(e->event), strerror(-e->status));
	rdma_ack_cm_event(e);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	printf("ok\n");
	return 0;
}
