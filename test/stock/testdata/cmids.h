/* Ids of librdmacm on one event channel, for the programs here: each includes this once. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

#define CHECK(c) do { if (!(c)) fail(#c); } while (0)

static struct rdma_event_channel *channel;

/* The next event, which must be of this type; its id. */
static struct rdma_cm_id *next(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *e;
	CHECK(!rdma_get_cm_event(channel, &e));
	if (e->event != type) {
		fprintf(stderr, "%s, status %d, in place of %s\n", rdma_event_str(e->event), e->status, rdma_event_str(type));
		exit(1);
	}
	struct rdma_cm_id *id = e->id;
	CHECK(!rdma_ack_cm_event(e));
	return id;
}

/* A listener at an address, whose port it fills in; name is its context. */
static struct rdma_cm_id *listen_at(struct sockaddr_in *addr, char *name)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, name, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)addr));
	CHECK(!rdma_listen(id, 4));
	addr->sin_port = rdma_get_src_port(id);
	return id;
}
