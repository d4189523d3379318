/*
 * A verbs program that does to its process what programs do: executes another
 * one, forks, dies, takes signals. Argument: what to do.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static struct ibv_context *ctx;
static char buf[4096];

/* Four objects: a protection domain, a region, a completion queue, a queue pair. */
static void objects(int destroy)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	if (!pd)
		die("alloc_pd");
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		die("reg_mr");
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, NULL, 0);
	if (!cq)
		die("create_cq");
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		die("create_qp");
	if (destroy && (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd)))
		die("destroy");
}

/* An ioctl that the device answers, and nothing else: no such method. */
static void alive(int fd)
{
	struct ib_uverbs_ioctl_hdr hdr = {.length = sizeof hdr, .method_id = 99, .driver_id = RDMA_DRIVER_RXE};
	if (ioctl(fd, RDMA_VERBS_IOCTL, &hdr) != -1 || errno != EPROTONOSUPPORT)
		die("the inherited descriptor is not the device");
}

static volatile int alarms;
static void on_alarm(int sig) { (void)sig; alarms++; }

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "second")) {
		alive(atoi(argv[2]));
		return 0;
	}
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (!list || n != 1 || !(ctx = ibv_open_device(list[0])))
		die("open");
	if (strcmp(what, "signals"))
		objects(0);
	if (!strcmp(what, "exec")) {
		execlp("true", "true", (char *)NULL);
		die("exec");
	} else if (!strcmp(what, "exec-keep")) {
		char fd[16];
		snprintf(fd, sizeof fd, "%d", ctx->cmd_fd);
		fcntl(ctx->cmd_fd, F_SETFD, 0);
		execl("/proc/self/exe", argv[0], "second", fd, (char *)NULL);
		die("exec");
	} else if (!strcmp(what, "fork")) {
		pid_t child = fork();
		if (child == 0) { /* the same open file: the same context */
			objects(0);
			_exit(0);
		}
		int status;
		if (waitpid(child, &status, 0) != child || status)
			die("child");
		objects(1);
	} else if (!strcmp(what, "kill")) {
		kill(getpid(), SIGKILL);
	} else if (!strcmp(what, "signals")) {
		struct itimerval ms = {{0, 1000}, {0, 1000}};
		signal(SIGALRM, on_alarm);
		setitimer(ITIMER_REAL, &ms, NULL);
		for (int i = 0; i < 1500; i++)
			objects(1);
		if (alarms < 100)
			die("hardly any signal came");
	}
	return 0;
}
