/*
 * A program that never acknowledges a completion event and destroys the completion queue, for whose events libibverbs waits. Argument:
 *
 *	forgets		it just forgets to: it waits for ever, as everywhere
 *	interrupted	a command was interrupted by a signal whose handler is without SA_RESTART, and so it did not come to it
 *	thread		the same, and another thread acknowledges later: it is waited for
 */
#include "ends.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static struct end a, b;
static volatile sig_atomic_t alarms;
static volatile int *answered, acknowledged;

static void handler(int signum)
{
	(void)signum;
	alarms++;
}

static void patience_ends(int signum)
{
	(void)signum;
	static const char said[] = "waits\n";
	_exit(write(1, said, sizeof said - 1) < 0 ? 2 : 3);
}

/* A command that is interrupted before it has begun: whoever would answer it, the parent of this process, is stopped, and goes on when the
 * command has ended. A thread of his may stop too late: when it has answered, or when it has begun, and then no signal ends the command. */
static int interrupted_once(void)
{
	pid_t self = getpid(), supervisor = getppid();
	*answered = 0;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		kill(supervisor, SIGSTOP);
		usleep(20000);
		*answered = 1;
		for (int i = 0; i < 50 && *answered == 1; i++, usleep(10000))
			kill(self, SIGALRM);
		kill(supervisor, SIGCONT);
		_exit(0);
	}
	while (!*answered)
		usleep(1000);
	int err = ibv_req_notify_cq(a.cq, 0);
	*answered = 2;
	while (waitpid(child, NULL, 0) != child)
		;
	return err;
}

static void interrupted_command(void)
{
	struct sigaction on_alarm = {.sa_handler = handler};
	CHECK(!sigaction(SIGALRM, &on_alarm, NULL));
	answered = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK((void *)answered != MAP_FAILED);
	int err = 0;
	for (int i = 0; i < 100 && !err; i++)
		err = interrupted_once();
	printf("%s, interrupted: %d\n", strerror(err), alarms > 0);
}

static void *late(void *cq)
{
	usleep(300000);
	acknowledged = 1;
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	open_pair(&a, &b, 0);
	CHECK(!ibv_req_notify_cq(a.cq, 0));
	post_write(&a, 100, (uintptr_t)b.buf, b.mr->rkey);
	struct ibv_cq *cq;
	void *arg;
	CHECK(!ibv_get_cq_event(a.channel, &cq, &arg) && cq == a.cq);
	CHECK(completion(&a).status == IBV_WC_SUCCESS);
	if (strcmp(what, "forgets"))
		interrupted_command();
	fflush(stdout);
	signal(SIGALRM, patience_ends);
	alarm(strcmp(what, "forgets") ? 60 : 2);
	pthread_t thread;
	if (!strcmp(what, "thread"))
		CHECK(!pthread_create(&thread, NULL, late, a.cq));
	close_end(&a);
	CHECK(strcmp(what, "thread") || acknowledged);
	close_end(&b);
	printf("ok\n");
	return 0;
}
