/*
 * Asks a kernel's connection manager (/dev/infiniband/rdma_cm, rdma/rdma_user_cm.h) what few programs ask it, in the words of the ABI, and
 * prints its answers: addresses of InfiniBand (AF_IB) and the port space RDMA_PS_IB on a RoCE device, lengths of addresses, and enhanced
 * connection establishment (ECE). The argument is an IPv4 address of the device.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef AF_IB
#define AF_IB 27
#endif

#define SID_IB 0x00000000013f0000ull
#define SID_TCP 0x0000000001060000ull
#define SID_UDP 0x0000000001110000ull
#define SPACE_MASK 0xffffffffffff0000ull
#define PORT_MASK 0xffffull

struct sockaddr_ib { /* rdma/ib.h of the kernel */
	uint16_t family, pkey;
	uint32_t flowinfo;
	uint8_t addr[16];
	uint64_t sid, sid_mask, scope_id;
};

static int channel;
static struct in_addr own;

static const char *name_of(int e)
{
	return e ? strerrorname_np(e) : "ok";
}

/* One command: 0, or its error number. */
static int command(int cmd, const void *in, int in_len, int out_len)
{
	uint8_t b[1024] = {};
	struct rdma_ucm_cmd_hdr *h = (void *)b;
	h->cmd = cmd, h->in = in_len, h->out = out_len;
	memcpy(b + sizeof(*h), in, in_len);
	return write(channel, b, sizeof(*h) + in_len) < 0 ? errno : 0;
}

static uint32_t open_id(int space, int type, int *error)
{
	struct rdma_ucm_create_id_resp resp = {};
	struct rdma_ucm_create_id c = { .uid = 1, .response = (uintptr_t)&resp, .ps = space, .qp_type = type };
	int e = command(RDMA_USER_CM_CMD_CREATE_ID, &c, sizeof(c), sizeof(resp));
	if (error)
		*error = e;
	else if (e) {
		printf("id of space %#x and type %d: %s\n", space, type, name_of(e));
		exit(1);
	}
	return resp.id;
}

static uint32_t new_id(int space, int type)
{
	return open_id(space, type, NULL);
}

static void close_id(uint32_t id)
{
	struct rdma_ucm_destroy_id_resp resp;
	struct rdma_ucm_destroy_id c = { .response = (uintptr_t)&resp, .id = id };
	command(RDMA_USER_CM_CMD_DESTROY_ID, &c, sizeof(c), sizeof(resp));
}

static struct sockaddr_in ip(struct in_addr a, int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = a, .sin_port = htons(port) };
}

static struct sockaddr_ib ib(const uint8_t *gid, uint64_t sid, uint64_t mask)
{
	struct sockaddr_ib a = { .family = AF_IB, .pkey = 0xffff, .sid = htobe64(sid), .sid_mask = htobe64(mask) };
	if (gid)
		memcpy(a.addr, gid, 16);
	return a;
}

static void gid_of(uint8_t *gid, struct in_addr a)
{
	memset(gid, 0, 16);
	gid[10] = gid[11] = 0xff;
	memcpy(gid + 12, &a, 4);
}

static int bind_to(uint32_t id, const void *addr, int size)
{
	struct rdma_ucm_bind c = { .id = id, .addr_size = size };
	memcpy(&c.addr, addr, size < 128 ? size : 128);
	return command(RDMA_USER_CM_CMD_BIND, &c, sizeof(c), 0);
}

static int resolve(uint32_t id, const void *src, int src_size, const void *dst, int dst_size)
{
	struct rdma_ucm_resolve_addr c = { .id = id, .timeout_ms = 2000, .src_size = src_size, .dst_size = dst_size };
	memcpy(&c.src_addr, src ? src : "", src ? src_size : 0);
	memcpy(&c.dst_addr, dst, dst_size);
	return command(RDMA_USER_CM_CMD_RESOLVE_ADDR, &c, sizeof(c), 0);
}

static int route(uint32_t id)
{
	struct rdma_ucm_resolve_route c = { .id = id, .timeout_ms = 2000 };
	return command(RDMA_USER_CM_CMD_RESOLVE_ROUTE, &c, sizeof(c), 0);
}

static int listen_on(uint32_t id)
{
	struct rdma_ucm_listen c = { .id = id, .backlog = 4 };
	return command(RDMA_USER_CM_CMD_LISTEN, &c, sizeof(c), 0);
}

static void show_addr(const char *which, const void *addr, int size)
{
	const struct sockaddr *sa = addr;
	if (!size)
		printf(" %s none", which);
	else if (sa->sa_family == AF_IB) {
		const struct sockaddr_ib *s = addr;
		uint8_t mine[16];
		gid_of(mine, own);
		int i = 0, any = 1;
		for (; i < 16; i++)
			any &= !s->addr[i];
		uint64_t sid = be64toh(s->sid);
		if ((sid & PORT_MASK) >= 32768)
			sid |= PORT_MASK; /* a free port: any */
		printf(" %s %d bytes: IB %s pkey %#x service %#llx mask %#llx", which, size, any ? "any" : memcmp(s->addr, mine, 16) ? "another" : "own", ntohs(s->pkey),
		       (unsigned long long)sid, (unsigned long long)be64toh(s->sid_mask));
	} else if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *s = addr;
		int port = ntohs(s->sin_port);
		printf(" %s %d bytes: IPv4 %s port %d", which, size, !s->sin_addr.s_addr ? "any" : s->sin_addr.s_addr == own.s_addr ? "own" : "another", port >= 32768 ? 65535 : port);
	} else
		printf(" %s %d bytes: family %d", which, size, sa->sa_family);
}

static void show(uint32_t id)
{
	for (int option = RDMA_USER_CM_QUERY_ADDR; option <= RDMA_USER_CM_QUERY_GID; option += 2) {
		struct rdma_ucm_query_addr_resp r = {};
		struct rdma_ucm_query c = { .response = (uintptr_t)&r, .id = id, .option = option };
		int e = command(RDMA_USER_CM_CMD_QUERY, &c, sizeof(c), sizeof(r));
		if (e) {
			printf("\tquery %d: %s\n", option, name_of(e));
			continue;
		}
		printf("\t%s:%s port %d pkey %#x;", option ? "GIDs" : "addresses", r.node_guid ? "" : " no device", r.port_num, ntohs(r.pkey));
		show_addr("own", &r.src_addr, r.src_size);
		show_addr("peer", &r.dst_addr, r.dst_size);
		printf("\n");
	}
}

static const char *const events[] = { "ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
	"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT" };

/* The next event, within five seconds; 0 if there is none. */
static int next(struct rdma_ucm_event_resp *r)
{
	struct pollfd p = { .fd = channel, .events = POLLIN };
	memset(r, 0, sizeof(*r));
	if (poll(&p, 1, 5000) != 1) {
		printf("\tno event\n");
		return 0;
	}
	struct rdma_ucm_get_event c = { .response = (uintptr_t)r };
	int e = command(RDMA_USER_CM_CMD_GET_EVENT, &c, sizeof(c), sizeof(*r));
	if (e) {
		printf("\tevent: %s\n", name_of(e));
		return 0;
	}
	printf("\tevent %s, status %d", events[r->event], (int)r->status);
	if (r->ece.vendor_id || r->ece.attr_mod)
		printf(", ECE of vendor %#x: %#x", r->ece.vendor_id, r->ece.attr_mod);
	printf("\n");
	return 1;
}

/* Binding to an address of InfiniBand. */
static void binds(const char *what, int space, int type, struct sockaddr_ib addr)
{
	uint32_t id = new_id(space, type);
	int e = bind_to(id, &addr, sizeof(addr));
	printf("bind in space %#x to %s: %s\n", space, what, name_of(e));
	if (!e)
		show(id);
	close_id(id);
}

/* Resolving an address of InfiniBand. */
static void resolves(const char *what, int space, const void *src, int src_size, struct sockaddr_ib dst)
{
	struct rdma_ucm_event_resp r;
	uint32_t id = new_id(space, space == RDMA_PS_UDP ? 4 : 2);
	int e = resolve(id, src, src_size, &dst, sizeof(dst));
	printf("resolve in space %#x %s: %s\n", space, what, name_of(e));
	if (!e && next(&r)) {
		show(id);
		printf("\troute: %s\n", name_of(route(id)));
	}
	close_id(id);
}

static int connect_with(uint32_t id, struct rdma_ucm_ece ece, int length, int qpn)
{
	struct rdma_ucm_connect c = { .id = id, .ece = ece };
	c.conn_param = (struct rdma_ucm_conn_param){ .qp_num = qpn, .retry_count = 7, .rnr_retry_count = 7, .valid = 1 };
	return command(RDMA_USER_CM_CMD_CONNECT, &c, length, 0);
}

static int accept_with(uint32_t id, struct rdma_ucm_ece ece, int length, int qpn, int valid)
{
	struct rdma_ucm_accept c = { .uid = 2, .id = id, .ece = ece };
	if (valid)
		c.conn_param = (struct rdma_ucm_conn_param){ .qp_num = qpn, .retry_count = 7, .rnr_retry_count = 7, .valid = 1 };
	return command(RDMA_USER_CM_CMD_ACCEPT, &c, length, 0);
}

static int reject_with(uint32_t id, int reason)
{
	struct rdma_ucm_reject c = { .id = id, .reason = reason };
	return command(RDMA_USER_CM_CMD_REJECT, &c, sizeof(c), 0);
}

static void hang_up(uint32_t id)
{
	struct rdma_ucm_disconnect c = { .id = id };
	command(RDMA_USER_CM_CMD_DISCONNECT, &c, sizeof(c), 0);
}

/* A connection, whose listener is bound to addr; how says what the listener's side does with the request. */
enum how { ACCEPT, ACCEPT_SHORT, REJECT };

static void connects(const char *what, int space, int type, const void *addr, int size, int to_port, enum how how, int reason)
{
	static int qpn = 0x100; /* of nothing: connections of one peer's queue pair would replace each other */
	struct rdma_ucm_ece request = { 0x12345678, 0xcafe0001 }, answer = { 0xabcdef, 7 };
	struct rdma_ucm_event_resp r;
	uint32_t listener = new_id(space, type), id = new_id(space, type);
	int e = bind_to(listener, addr, size);
	if (!e)
		e = listen_on(listener);
	printf("connection, %s: bind and listen: %s\n", what, name_of(e));
	if (e)
		goto out;
	show(listener);
	struct sockaddr_in to = ip(own, to_port);
	qpn += 2;
	if ((e = resolve(id, NULL, 0, &to, sizeof(to))) || !next(&r) || (e = route(id)) || !next(&r) ||
	    (e = connect_with(id, request, how == ACCEPT_SHORT ? 280 : sizeof(struct rdma_ucm_connect), qpn))) {
		printf("\tnot connected: %s\n", name_of(e));
		goto out;
	}
	if (!next(&r) || r.event != 4)
		goto out;
	uint32_t conn = r.id;
	show(conn);
	if (how == REJECT) {
		e = reject_with(conn, reason);
		printf("\treject for reason %d: %s\n", reason, name_of(e));
		if (!e)
			next(&r);
		close_id(conn);
		goto out;
	}
	e = accept_with(conn, answer, how == ACCEPT_SHORT ? 288 : sizeof(struct rdma_ucm_accept), qpn + 1, 1);
	printf("\taccept: %s\n", name_of(e));
	if (!e && next(&r) && type != 4) {
		e = accept_with(id, answer, sizeof(struct rdma_ucm_accept), 0, 0);
		printf("\taccept of the response: %s\n", name_of(e));
		next(&r);
		hang_up(id);
		next(&r);
	}
	close_id(conn);
out:
	close_id(id);
	close_id(listener);
	/* What is left of both goes with the channel. */
	close(channel);
	channel = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
}

static void sizes(void)
{
	struct sockaddr_in a = ip(own, 0);
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6 };
	struct sockaddr_ib any = ib(NULL, SID_TCP, SPACE_MASK);
	uint8_t unknown[128] = { 99 };
	const struct { const char *what; const void *addr; int size; } tests[] = {
		{ "IPv4 of 16 bytes", &a, 16 }, { "IPv4 of 28", &a, 28 }, { "IPv4 of 8", &a, 8 }, { "IPv6 of 28", &a6, 28 }, { "IPv6 of 24", &a6, 24 },
		{ "IPv6 of 128", &a6, 128 }, { "IB of 48", &any, 48 }, { "IB of 128", &any, 128 }, { "IB of 28", &any, 28 }, { "nothing", &a, 0 }, { "another family", unknown, 16 },
		{ "another family of 0", unknown, 0 },
	};
	for (unsigned i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		uint8_t b[128] = {};
		memcpy(b, tests[i].addr, tests[i].size < 48 ? tests[i].size : 28);
		uint32_t id = new_id(RDMA_PS_TCP, 2);
		printf("bind to %s: %s", tests[i].what, name_of(bind_to(id, b, tests[i].size)));
		close_id(id);
		id = new_id(RDMA_PS_TCP, 2);
		printf("; resolve it: %s", name_of(resolve(id, NULL, 0, b, tests[i].size)));
		close_id(id);
		id = new_id(RDMA_PS_TCP, 2);
		printf("; from it: %s\n", name_of(resolve(id, b, tests[i].size, &a, sizeof(a))));
		close_id(id);
	}
	/* The older command has room for an IPv6 address. */
	struct rdma_ucm_bind_ip old = { .id = new_id(RDMA_PS_TCP, 2) };
	memcpy(&old.addr, &any, sizeof(old.addr));
	printf("BIND_IP of an address of InfiniBand: %s\n", name_of(command(RDMA_USER_CM_CMD_BIND_IP, &old, sizeof(old), 0)));
	struct rdma_ucm_resolve_ip older = { .id = old.id, .timeout_ms = 2000 };
	memcpy(&older.dst_addr, &any, sizeof(older.dst_addr));
	printf("RESOLVE_IP of it: %s\n", name_of(command(RDMA_USER_CM_CMD_RESOLVE_IP, &older, sizeof(older), 0)));
	memcpy(&older.dst_addr, &a, sizeof(a));
	memcpy(&older.src_addr, &any, sizeof(older.src_addr));
	printf("RESOLVE_IP from it: %s\n", name_of(command(RDMA_USER_CM_CMD_RESOLVE_IP, &older, sizeof(older), 0)));
	close_id(old.id);
}

static void renew(void)
{
	close(channel);
	if ((channel = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC)) < 0) {
		perror("/dev/infiniband/rdma_cm");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 2 || !inet_aton(argv[1], &own))
		return 2;
	channel = -1;
	renew();
	uint8_t mine[16], foreign[16], local[16] = { 0xfe, 0x80 };
	gid_of(mine, own);
	gid_of(foreign, (struct in_addr){ htonl(0xc0000201) });
	local[15] = 9;

	const int spaces[] = { RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB, 0x123 }, types[] = { 0, 2, 3, 4, 8, 9, 10, 77 };
	for (unsigned s = 0; s < 5; s++)
		for (unsigned t = 0; t < 8; t++) {
			int e;
			uint32_t id = open_id(spaces[s], types[t], &e);
			printf("id in space %#x, type %d: %s\n", spaces[s], types[t], name_of(e));
			close_id(id);
		}

	sizes();
	renew();

	for (unsigned s = 1; s < 4; s++) {
		int type = spaces[s] == RDMA_PS_UDP ? 4 : 2;
		binds("any, no service", spaces[s], type, ib(NULL, 0, 0));
		binds("any, own service of port 7001", spaces[s], type, ib(NULL, (uint64_t)spaces[s] << 16 | 7001, ~0ull));
		binds("any, own service, any port", spaces[s], type, ib(NULL, (uint64_t)spaces[s] << 16, SPACE_MASK));
		binds("any, TCP's service of port 7002", spaces[s], type, ib(NULL, SID_TCP | 7002, ~0ull));
		binds("any, UDP's service of port 7003", spaces[s], type, ib(NULL, SID_UDP | 7003, ~0ull));
		binds("any, IB's service of port 7004", spaces[s], type, ib(NULL, SID_IB | 7004, ~0ull));
		binds("any, port 7005 without service", spaces[s], type, ib(NULL, 7005, PORT_MASK));
		binds("any, a service of its own", spaces[s], type, ib(NULL, 0x1000000000000123ull, ~0ull));
		binds("its IPv4 address", spaces[s], type, ib(mine, (uint64_t)spaces[s] << 16 | 7006, ~0ull));
		binds("another's address", spaces[s], type, ib(foreign, (uint64_t)spaces[s] << 16 | 7007, ~0ull));
		binds("a link-local address", spaces[s], type, ib(local, 0, 0));
	}

	struct sockaddr_in from = ip(own, 0);
	struct sockaddr_ib from_any = ib(NULL, 0, 0), from_own = ib(mine, 0, 0);
	for (unsigned s = 1; s < 4; s++) {
		uint64_t service = (uint64_t)spaces[s] << 16 | 7010;
		resolves("its IPv4 address as GID", spaces[s], NULL, 0, ib(mine, service, ~0ull));
		resolves("another's as GID", spaces[s], NULL, 0, ib(foreign, service, ~0ull));
		resolves("any GID", spaces[s], NULL, 0, ib(NULL, service, ~0ull));
		resolves("a GID from an IPv4 address", spaces[s], &from, sizeof(from), ib(mine, service, ~0ull));
		resolves("a GID from any", spaces[s], &from_any, sizeof(from_any), ib(mine, service, ~0ull));
		resolves("a GID from a GID", spaces[s], &from_own, sizeof(from_own), ib(mine, service, ~0ull));
		renew();
	}

	/* An id of one family cannot resolve another. */
	uint32_t id = new_id(RDMA_PS_TCP, 2);
	struct sockaddr_ib wild = ib(NULL, SID_TCP | 7020, ~0ull);
	struct sockaddr_in peer = ip(own, 7021);
	printf("bind to IB any: %s", name_of(bind_to(id, &wild, sizeof(wild))));
	printf("; resolve IPv4: %s\n", name_of(resolve(id, NULL, 0, &peer, sizeof(peer))));
	uint32_t other = new_id(RDMA_PS_TCP, 2);
	struct sockaddr_in same = ip((struct in_addr){ 0 }, 7020);
	printf("bind to IPv4 any of the same port: %s\n", bind_to(other, &same, sizeof(same)) ? "refused" : "ok");
	close_id(other);
	other = new_id(RDMA_PS_TCP, 2);
	printf("bind to IB any of the same port: %s\n", bind_to(other, &wild, sizeof(wild)) ? "refused" : "ok");
	close_id(other);
	close_id(id);
	id = new_id(RDMA_PS_TCP, 2);
	printf("bind to IPv4: %s", name_of(bind_to(id, &from, sizeof(from))));
	printf("; resolve IB: %s\n", name_of(resolve(id, NULL, 0, &wild, sizeof(wild))));
	close_id(id);
	renew();

	struct sockaddr_in v4 = ip((struct in_addr){ 0 }, 7030);
	connects("space TCP, ECE", RDMA_PS_TCP, 2, &v4, sizeof(v4), 7030, ACCEPT, 0);
	connects("space TCP, commands without ECE", RDMA_PS_TCP, 2, &v4, sizeof(v4), 7030, ACCEPT_SHORT, 0);
	connects("space TCP", RDMA_PS_TCP, 2, &v4, sizeof(v4), 7030, REJECT, 0);
	connects("space TCP", RDMA_PS_TCP, 2, &v4, sizeof(v4), 7030, REJECT, 28);
	connects("space TCP", RDMA_PS_TCP, 2, &v4, sizeof(v4), 7030, REJECT, 35);
	connects("space TCP", RDMA_PS_TCP, 2, &v4, sizeof(v4), 7030, REJECT, 6);
	connects("space UDP, ECE", RDMA_PS_UDP, 4, &v4, sizeof(v4), 7030, ACCEPT, 0);
	connects("space IB, RC", RDMA_PS_IB, 2, &v4, sizeof(v4), 7030, ACCEPT, 0);
	connects("space IB, UC", RDMA_PS_IB, 3, &v4, sizeof(v4), 7030, ACCEPT, 0);
	connects("space IB, UD", RDMA_PS_IB, 4, &v4, sizeof(v4), 7030, ACCEPT, 0);
	struct sockaddr_ib listens = ib(NULL, SID_TCP | 7031, ~0ull);
	connects("space TCP, listener of IB any", RDMA_PS_TCP, 2, &listens, sizeof(listens), 7031, ACCEPT, 0);
	listens = ib(NULL, SID_IB | 7032, ~0ull);
	connects("space IB, listener of IB any", RDMA_PS_IB, 2, &listens, sizeof(listens), 7032, ACCEPT, 0);
	listens = ib(NULL, SID_UDP | 7033, ~0ull);
	connects("space UDP, listener of IB any", RDMA_PS_UDP, 4, &listens, sizeof(listens), 7033, ACCEPT, 0);
	printf("end\n");
	return 0;
}
