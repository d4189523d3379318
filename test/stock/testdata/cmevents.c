/*
 * What befalls the ids of a connection when the address under them goes away (librdmacm). Arguments: the address, another that stays. It prints
 * "ready" when a connection stands at the address, and a listener at the other; then the events of all, until the address is gone for both ends of
 * the connection; then it ends everything, and connects over the other.
 */
#include "cmids.h"

struct end {
	struct rdma_cm_id *listener, *client, *server;
};

static void connect_to(struct end *e, struct sockaddr_in *addr)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	CHECK(!rdma_create_id(channel, &e->client, "client", RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(e->client, NULL, (struct sockaddr *)addr, 2000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(e->client, 2000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_create_qp(e->client, NULL, &init));
	CHECK(!rdma_connect(e->client, &param));
	e->server = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	e->server->context = "server";
	CHECK(!rdma_create_qp(e->server, NULL, &init));
	CHECK(!rdma_accept(e->server, &param));
	/* Either end may hear first. */
	next(RDMA_CM_EVENT_ESTABLISHED);
	next(RDMA_CM_EVENT_ESTABLISHED);
}

static void close_end(struct end *e)
{
	rdma_destroy_qp(e->client);
	rdma_destroy_qp(e->server);
	CHECK(!rdma_destroy_id(e->client));
	CHECK(!rdma_destroy_id(e->server));
	CHECK(!rdma_destroy_id(e->listener));
}

int main(int argc, char **argv)
{
	struct sockaddr_in going = { .sin_family = AF_INET }, staying = going;
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(60);
	CHECK(argc == 3 && inet_aton(argv[1], &going.sin_addr) && inet_aton(argv[2], &staying.sin_addr));
	CHECK(channel = rdma_create_event_channel());
	struct end a = {}, b = {};
	a.listener = listen_at(&going, "listener");
	b.listener = listen_at(&staying, "listener");
	connect_to(&a, &going);
	printf("ready\n");
	for (int n = 0; n < 3; n++) {
		struct rdma_cm_id *id = next(RDMA_CM_EVENT_ADDR_CHANGE);
		printf("the %s's address has changed%s\n", (char *)id->context, id == b.listener ? ", but it has not" : "");
	}
	close_end(&a);
	connect_to(&b, &staying);
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	printf("over the other: %d further events\n", poll(&p, 1, 0));
	close_end(&b);
	struct rdma_cm_id *late;
	going.sin_port = 0;
	CHECK(!rdma_create_id(channel, &late, NULL, RDMA_PS_TCP));
	printf("binding to it: %s\n", rdma_bind_addr(late, (struct sockaddr *)&going) ? strerror(errno) : "ok");
	CHECK(!rdma_destroy_id(late));
	printf("ok\n");
	return 0;
}
