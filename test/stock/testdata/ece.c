/*
 * Enhanced connection establishment (ECE) with librdmacm, for a queue pair that the program moves itself: each side sets what it says of its device
 * (rdma_set_local_ece), and gets what the other said (rdma_get_remote_ece). A second connection is refused for it (rdma_reject_ece). The argument is
 * the IPv4 address of the device.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

#define CHECK(c) do { if (!(c)) fail(#c); } while (0)

/* The next event of a channel, which must be of this type. */
static struct rdma_cm_event *next(struct rdma_event_channel *ch, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *e;
	CHECK(!rdma_get_cm_event(ch, &e));
	if (e->event != type) {
		fprintf(stderr, "%s, status %d, in place of %s\n", rdma_event_str(e->event), e->status, rdma_event_str(type));
		exit(1);
	}
	return e;
}

static void acknowledge(struct rdma_event_channel *ch, enum rdma_cm_event_type type)
{
	CHECK(!rdma_ack_cm_event(next(ch, type)));
}

static void heard(const char *who, struct rdma_cm_id *id)
{
	struct ibv_ece e = {};
	CHECK(!rdma_get_remote_ece(id, &e));
	printf("%s heard vendor %#x, options %#x, compatibility mask %#x\n", who, e.vendor_id, e.options, e.comp_mask);
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc == 2 && inet_aton(argv[1], &addr.sin_addr));
	struct rdma_event_channel *active = rdma_create_event_channel(), *passive = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	CHECK(active && passive);
	CHECK(!rdma_create_id(passive, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&addr));
	CHECK(!rdma_listen(listener, 4));
	addr.sin_port = rdma_get_src_port(listener);
	for (int refused = 0; refused < 2; refused++) {
		struct rdma_cm_id *client;
		struct ibv_ece ask = { .vendor_id = 0x2c9, .options = 0x10000001 + refused }, answer = { .vendor_id = 0xffeedd, .options = 0x80000001 };
		struct rdma_conn_param param = { .qp_num = 0x10 + refused, .retry_count = 7, .rnr_retry_count = 7 };
		CHECK(!rdma_create_id(active, &client, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&addr, 2000));
		acknowledge(active, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_resolve_route(client, 2000));
		acknowledge(active, RDMA_CM_EVENT_ROUTE_RESOLVED);
		CHECK(!rdma_set_local_ece(client, &ask));
		CHECK(!rdma_connect(client, &param));
		struct rdma_cm_event *e = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *server = e->id;
		heard("server", server);
		CHECK(!rdma_ack_cm_event(e));
		if (refused) {
			CHECK(!rdma_reject_ece(server, "sorry", 6));
			e = next(active, RDMA_CM_EVENT_REJECTED);
			printf("refused for reason %d: %s\n", e->status, (const char *)e->param.conn.private_data);
			CHECK(!rdma_ack_cm_event(e));
		} else {
			CHECK(!rdma_set_local_ece(server, &answer));
			param.qp_num += 0x100;
			CHECK(!rdma_accept(server, &param));
			e = next(active, RDMA_CM_EVENT_CONNECT_RESPONSE);
			heard("client", client);
			CHECK(!rdma_ack_cm_event(e));
			CHECK(!rdma_establish(client));
			acknowledge(passive, RDMA_CM_EVENT_ESTABLISHED);
			CHECK(!rdma_disconnect(client));
			acknowledge(passive, RDMA_CM_EVENT_DISCONNECTED);
			CHECK(!rdma_disconnect(server)); /* the answer that the client waits for */
			acknowledge(active, RDMA_CM_EVENT_DISCONNECTED);
		}
		CHECK(!rdma_destroy_id(server));
		CHECK(!rdma_destroy_id(client));
	}
	CHECK(!rdma_destroy_id(listener));
	printf("ok\n");
	return 0;
}
