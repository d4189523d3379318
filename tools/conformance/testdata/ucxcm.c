/* UCX endpoints by address: ucxcm server PORT, ucxcm client ADDRESS PORT. The client's messages come back, and are compared. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <ucp/api/ucp.h>

static ucp_worker_h worker;
static ucp_conn_request_h request;
static int failed;
static const size_t sizes[] = { 1, 100, 5000, 70000, 1 << 20 };
static uint8_t out[1 << 20], in[1 << 20];

static void must(ucs_status_t s, const char *what)
{
	if (s != UCS_OK) {
		printf("%s: %s\n", what, ucs_status_string(s));
		exit(1);
	}
}

static void asked(ucp_conn_request_h r, void *arg)
{
	(void)arg;
	request = r;
}

static void error(void *arg, ucp_ep_h ep, ucs_status_t s)
{
	(void)arg;
	(void)ep;
	if (s != UCS_ERR_CONNECTION_RESET)
		printf("endpoint: %s\n", ucs_status_string(s));
	failed = s == UCS_ERR_CONNECTION_RESET ? 1 : 2;
}

static void wait_for(void *req, const char *what)
{
	if (!req)
		return;
	if (UCS_PTR_IS_ERR(req))
		must(UCS_PTR_STATUS(req), what);
	ucs_status_t s;
	while ((s = ucp_request_check_status(req)) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
	ucp_request_free(req);
	must(s, what);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	int server = !strcmp(argv[1], "server");
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_config_t *config;
	ucp_context_h context;
	ucp_ep_h ep;
	setvbuf(stdout, NULL, _IOLBF, 0);
	must(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
	must(ucp_init(&params, config, &context), "ucp_init");
	must(ucp_worker_create(context, &wp, &worker), "ucp_worker_create");
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[server ? 2 : 3])) };
	ucp_ep_params_t ap = { .field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER, .err_handler.cb = error };
	if (server) {
		ucp_listener_params_t lp = { .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
			.sockaddr = { (struct sockaddr *)&addr, sizeof addr }, .conn_handler.cb = asked };
		ucp_listener_h listener;
		must(ucp_listener_create(worker, &lp, &listener), "ucp_listener_create");
		printf("listening\n");
		while (!request)
			ucp_worker_progress(worker);
		ap.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
		ap.conn_request = request;
	} else {
		inet_pton(AF_INET, argv[2], &addr.sin_addr);
		ap.field_mask |= UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS;
		ap.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
		ap.sockaddr = (ucs_sock_addr_t){ (struct sockaddr *)&addr, sizeof addr };
	}
	must(ucp_ep_create(worker, &ap, &ep), "ucp_ep_create");
	ucp_request_param_t none = { 0 };
	for (int n = 0; n < 5; n++) {
		for (size_t i = 0; i < sizes[n]; i++)
			out[i] = (uint8_t)(i * 13 + (i >> 8) + n * 57);
		memset(in, 0, sizeof in);
		if (!server)
			wait_for(ucp_tag_send_nbx(ep, out, sizes[n], n, &none), "ucp_tag_send_nbx");
		wait_for(ucp_tag_recv_nbx(worker, in, sizes[n], n, -1, &none), "ucp_tag_recv_nbx");
		if (memcmp(in, out, sizes[n])) {
			printf("other bytes than were sent, of %zu\n", sizes[n]);
			return 1;
		}
		if (server)
			wait_for(ucp_tag_send_nbx(ep, in, sizes[n], n, &none), "ucp_tag_send_nbx");
	}
	if (server) {
		while (!failed) /* the client ends first, and with it the endpoint */
			ucp_worker_progress(worker);
	} else {
		ucp_ep_print_info(ep, stdout);
		wait_for(ucp_ep_close_nbx(ep, &none), "ucp_ep_close_nbx");
	}
	printf("all right\n");
	return failed == 2;
}
