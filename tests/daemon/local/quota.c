/* Connections for local calls when they are scarce: a process has no more than its share (daemon/block/quota.h), by one
 * session or by several, and gives all back when it ends. */
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/local/local_calls.h"
#include "daemon/local/socket.h"
#include "daemon/process/daemon.h"
#include "daemon/process/part.h"
#include "daemon/session/open.h"
#include "daemon/threads/pool.h"
#include "kernels/format.h"
#include "proto/fdsock.h"
#include "store/status.h"
#include "tests/shell.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { NET_S = 60, CONNECTIONS = 16, DOORS = 64, PROCESSES = 4, SESSIONS = 4, STEPS = 300 };

static struct shell s;
static struct fd_socket *fd_socket;
static struct cache_session_view session[SESSIONS];

static struct process {
	pid_t pid;
	int pipe;                            /* it does what is written there, and answers with a status */
	uint32_t count;
	uint8_t of[CONNECTIONS];             /* the session of each */
} process[PROCESSES];

struct order {
	uint8_t session;
	int8_t drop;                         /* the number of one to be closed, which the last takes; -1: one more for the session */
};

static uint32_t call(const uint8_t token[16], int *fd)
{
	struct fdsock_hello h = { .head = { FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_CALLER } };
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct fdsock_welcome w;

	memcpy(h.token, token, sizeof h.token);
	strcpy(to.sun_path, s.config.fd_socket);
	*fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	if (connect(*fd, (struct sockaddr *)&to, sizeof to) || send(*fd, &h, sizeof h, 0) != sizeof h ||
	    recv(*fd, &w, sizeof w, 0) != sizeof w)
		return UINT32_MAX;
	if (w.status)
		close(*fd);
	return w.status;
}

static void obey(int pipe)
{
	int fd[CONNECTIONS], count = 0;
	struct order o;

	while (read(pipe, &o, sizeof o) == sizeof o) {
		uint32_t status = STATUS_OK;

		if (o.drop < 0) {
			status = call(session[o.session].token, &fd[count]);
			count += status == STATUS_OK;
		} else {
			close(fd[o.drop]);
			fd[o.drop] = fd[--count];
		}
		if (write(pipe, &status, sizeof status) != sizeof status)
			break;
	}
	_exit(0);
}

static void setup(void)
{
	const struct kv_layout layout = shell_layout(1);
	char why[256] = "";
	const char *said;

	shell_open(&s);
	s.config.connections_max = CONNECTIONS;
	for (int i = 0; i < SESSIONS; i++)
		ck_assert_int_eq(cache_session_open(s.daemon.cache, &(struct cache_open_call){ .tenant = "",
				.layouts = &layout, .layout_count = 1, .engine = "test",
				.now_us = daemon_now_us() }, &session[i], &said), STATUS_OK);
	for (int i = 0; i < PROCESSES; i++) {
		int ends[2];

		ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
		process[i] = (struct process){ .pid = fork(), .pipe = ends[0] };
		if (!process[i].pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (int other = 0; other <= i; other++)
				close(other < i ? process[other].pipe : ends[0]);
			obey(ends[1]);
		}
		close(ends[1]);
	}
	ck_assert_int_eq(workers_create(1, 16, &s.daemon.workers), STATUS_OK);
	ck_assert_msg(local_create(&s.daemon, &s.daemon.local, why, sizeof why) == STATUS_OK, "%s", why);
	ck_assert_msg(fd_socket_create(&s.daemon, s.config.fd_socket, 0600, DOORS, &fd_socket, why,
	    sizeof why) == STATUS_OK, "%s", why);
}

static void teardown(void)
{
	for (int i = 0; i < PROCESSES; i++) {
		close(process[i].pipe);
		waitpid(process[i].pid, NULL, 0);
	}
	local_part.calls_stop(s.daemon.local, 0);
	ck_assert(local_part.calls_wait(s.daemon.local, NET_S * 1000000ull));
	fd_socket_part.destroy(fd_socket);
	ck_assert(workers_stop(s.daemon.workers, NET_S * 1000000ull));
	local_part.destroy(s.daemon.local);
	workers_destroy(s.daemon.workers);
	shell_close(&s);
}

static double stat_of(const char *name, const char *labels)
{
	struct shell_stat w = { name, labels, -1 };

	local_part.stats(s.daemon.local, shell_find_stat, &w);
	quota_stats(cache_quota(s.daemon.cache), shell_find_stat, &w);
	return w.value;
}

static uint32_t order(struct process *p, struct order o)
{
	uint32_t status;

	ck_assert_int_eq(write(p->pipe, &o, sizeof o), sizeof o);
	ck_assert_int_eq(read(p->pipe, &status, sizeof status), sizeof status);
	return status;
}

static uint32_t taken(void)
{
	uint32_t n = 0;

	for (int i = 0; i < PROCESSES; i++)
		n += process[i].count;
	return n;
}

/* The daemon knows what was opened and closed: it welcomes a caller, and hears of his end, a little before it counts. */
static void counted(void)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	while (stat_of("terrace_local_connections", "") != taken() && daemon_now_us() < end)
		usleep(200);
	ck_assert_double_eq(stat_of("terrace_local_connections", ""), taken());
}

static enum status open_one(int by, uint8_t of)
{
	const uint32_t status = order(&process[by], (struct order){ of, -1 });

	ck_assert(status == STATUS_OK || status == STATUS_EXHAUSTED);
	if (status == STATUS_OK)
		process[by].of[process[by].count++] = of;
	counted();
	return (enum status)status;
}

static void close_one(int by, uint32_t which)
{
	struct process *p = &process[by];

	ck_assert_uint_eq(order(p, (struct order){ .drop = (int8_t)which }), STATUS_OK);
	p->of[which] = p->of[--p->count];
	counted();
}

/* Whatever a process does, by one session or by all, a sixteenth is left to others of its user, and one more to other users. */
START_TEST(one_process_leaves_room)
{
	for (int i = 0; i < 2 * CONNECTIONS; i++)
		open_one(0, _i ? i % SESSIONS : 0);
	ck_assert_uint_eq(taken(), CONNECTIONS - 2);
	ck_assert_double_eq(stat_of("terrace_quota_refused_total", "thing=local_connections,reason=process"),
	    CONNECTIONS + 2);
	for (int i = 0; i < CONNECTIONS; i++)
		open_one(1, 1);
	ck_assert_uint_eq(process[1].count, 1);
	close_one(0, 1); /* if it has several, one of this session */
	ck_assert_int_eq(open_one(0, 1), STATUS_EXHAUSTED);
	ck_assert_int_eq(open_one(2, 1), STATUS_OK);
}
END_TEST

/* All processes of one user leave one to other users, and a process that is killed gives back all that it had. */
START_TEST(one_user_leaves_room)
{
	for (int i = 0; i < PROCESSES * CONNECTIONS; i++)
		open_one(i / CONNECTIONS, (uint8_t)(i / CONNECTIONS));
	ck_assert_uint_eq(taken(), CONNECTIONS - 1);
	ck_assert_double_ge(stat_of("terrace_quota_refused_total", "thing=local_connections,reason=user"), CONNECTIONS);
	ck_assert_double_eq(stat_of("terrace_quota_refused_total", "thing=local_connections,reason=full"), 0);
	kill(process[0].pid, SIGKILL);
	process[0].count = 0;
	counted();
	while (open_one(3, 0) == STATUS_OK)
		;
	ck_assert_uint_eq(process[3].count, CONNECTIONS - 2 - process[1].count - process[2].count);
}
END_TEST

static uint32_t kept(uint32_t held)
{
	return held < 1 ? held : 1; /* a sixteenth of CONNECTIONS */
}

/* Opened and closed at random: each is granted or refused as the rule says, and nothing is left in the accounting. */
START_TEST(by_the_rule)
{
	uint64_t refused = 0;

	srand(_i + 1);
	for (int step = 0; step < STEPS; step++) {
		const int by = rand() % PROCESSES, of = rand() % SESSIONS;
		const uint32_t all = taken();

		if (rand() % 4 == 0 && process[by].count) {
			close_one(by, (uint32_t)rand() % process[by].count);
			continue;
		}
		const bool may = all < CONNECTIONS && CONNECTIONS - all - 1 >= kept(all) + kept(process[by].count);

		ck_assert_int_eq(open_one(by, (uint8_t)of), may ? STATUS_OK : STATUS_EXHAUSTED);
		refused += !may;
	}
	ck_assert_uint_gt(refused, STEPS / 20);
	ck_assert_double_eq(stat_of("terrace_quota_refused_total", "thing=local_connections,reason=process") +
				    stat_of("terrace_quota_refused_total", "thing=local_connections,reason=user"),
			    refused);
	for (int i = 0; i < PROCESSES; i++)
		while (process[i].count)
			close_one(i, 0);
	for (int i = 0; i < CONNECTIONS - 2; i++)
		ck_assert_int_eq(open_one(0, 0), STATUS_OK);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("near_share");
	TCase *t = tcase_create("near_share");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, one_process_leaves_room, 0, 2);
	tcase_add_test(t, one_user_leaves_room);
	tcase_add_loop_test(t, by_the_rule, 0, 4);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
