/*
 * A verbs program that watches its port while it takes the cable out of
 * interface v0, by way of the other end v1, and gives v0 another address.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(cond) do { if (!(cond)) { \
	fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, strerror(errno)); exit(1); } } while (0)

static struct ibv_context *ctx;

static void event(enum ibv_event_type want)
{
	struct ibv_async_event e;
	MUST(!ibv_get_async_event(ctx, &e));
	if (e.event_type != want || e.element.port_num != 1) {
		fprintf(stderr, "event \"%s\" of %d, want \"%s\"\n", ibv_event_type_str(e.event_type), e.element.port_num,
			ibv_event_type_str(want));
		exit(1);
	}
	ibv_ack_async_event(&e);
}

static void state(enum ibv_port_state want, const char *text)
{
	struct ibv_port_attr a;
	char line[32];
	MUST(!ibv_query_port(ctx, 1, &a));
	MUST(a.state == want);
	FILE *f = fopen("/sys/class/infiniband/rxe0/ports/1/state", "r");
	MUST(f && fgets(line, sizeof line, f));
	fclose(f);
	MUST(!strcmp(line, text));
}

/* index of 10.9.9.last in the GID table */
static int gid_index(int last)
{
	const unsigned char want[16] = {[10] = 0xff, 0xff, 10, 9, 9, last};
	struct ibv_port_attr a;
	union ibv_gid g;
	MUST(!ibv_query_port(ctx, 1, &a));
	for (int i = 0; i < a.gid_tbl_len; i++)
		if (!ibv_query_gid(ctx, 1, i, &g) && !memcmp(&g, want, 16))
			return i;
	return -1;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && list[0]);
	ctx = ibv_open_device(list[0]);
	MUST(ctx);
	for (int round = 0; round < 3; round++) {
		state(IBV_PORT_ACTIVE, "4: ACTIVE\n");
		MUST(!system("ip link set v1 down"));
		event(IBV_EVENT_PORT_ERR);
		state(IBV_PORT_DOWN, "1: DOWN\n");
		MUST(!system("ip link set v1 up"));
		event(IBV_EVENT_PORT_ACTIVE);
	}
	MUST(gid_index(1) >= 0 && gid_index(9) < 0);
	MUST(!system("ip address add 10.9.9.9/24 dev v0"));
	event(IBV_EVENT_GID_CHANGE);
	MUST(gid_index(9) >= 0);
	MUST(!system("ip address delete 10.9.9.9/24 dev v0"));
	event(IBV_EVENT_GID_CHANGE);
	MUST(gid_index(1) >= 0 && gid_index(9) < 0);
	MUST(!ibv_close_device(ctx));
	ibv_free_device_list(list);
	return 0;
}
