/* The path of a socket while daemons hand it over: a daemon that stops removes what is its own, in its turn, and while it still answers. */
#include "daemon/block/lock.h"
#include "daemon/http/metrics.h"
#include "daemon/local/socket.h"
#include "daemon/process/data_dir_lock.h"
#include "daemon/process/local_socket.h"
#include "daemon/process/part.h"
#include "daemon/rpc/listen.h"
#include "daemon/threads/pool.h"
#include "store/status.h"
#include "tests/shell.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { LOOKS = 20, LOOK_US = 10000, HANDOVERS = 200, PATIENCE = 6000 };

static struct shell s;
static char path[sizeof((struct sockaddr_un *)0)->sun_path];

/* A part of the daemon that has a socket of its own. */
struct act {
	const char *name;
	int type;
	void *(*start)(void);
	void (*stop)(void *part);
};

static void *listener_start(void)
{
	struct rpc_listener *l;
	char why[DATA_DIR_LOCK_WHY_MAX] = "";

	strcpy(s.config.socket, path);
	ck_assert_msg(!rpc_listen_create(&s.config, &l, why, sizeof why), "%s", why);
	return l;
}

static void listener_stop(void *part)
{
	rpc_listen_destroy(part);
}

static void *fd_socket_start(void)
{
	struct fd_socket *d;
	char why[DATA_DIR_LOCK_WHY_MAX] = "";

	ck_assert_msg(!fd_socket_create(&s.daemon, path, 0600, 8, &d, why, sizeof why), "%s", why);
	return d;
}

static void fd_socket_end(void *part)
{
	fd_socket_part.destroy(part);
}

static void *metrics_start(void)
{
	struct metrics *m;
	char why[DATA_DIR_LOCK_WHY_MAX] = "";

	snprintf(s.config.metrics_address, sizeof s.config.metrics_address, "unix:%s", path);
	ck_assert_msg(!metrics_create(&s.daemon, METRICS_LIFE_US, &m, why, sizeof why), "%s", why);
	metrics_serve(m);
	return m;
}

static void metrics_end(void *part)
{
	metrics_part.threads_stop(part, 60000000);
	metrics_part.destroy(part);
}

static const struct act parts[] = {
	{ "the gRPC listener", SOCK_STREAM, listener_start, listener_stop },
	{ "the door", SOCK_SEQPACKET, fd_socket_start, fd_socket_end },
	{ "the metrics", SOCK_STREAM, metrics_start, metrics_end },
};
enum { PARTS = sizeof(parts) / sizeof(parts[0]) };

static bool answers(int type)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, type, 0);
	bool answered;

	ck_assert_int_ge(fd, 0);
	strcpy(to.sun_path, path);
	answered = !connect(fd, (struct sockaddr *)&to, sizeof to);
	close(fd);
	return answered;
}

static bool exists(void)
{
	struct stat st;

	return !lstat(path, &st);
}

static void setup(void)
{
	shell_open(&s);
	ck_assert_int_eq(workers_create(1, 8, &s.daemon.workers), STATUS_OK);
	snprintf(path, sizeof path, "%s/handed", s.folder);
}

static void teardown(void)
{
	workers_destroy(s.daemon.workers);
	shell_close(&s);
}

START_TEST(a_path_comes_and_goes_with_its_part)
{
	const struct act *p = &parts[_i];
	void *part = p->start();

	ck_assert(answers(p->type));
	p->stop(part);
	ck_assert(!exists());
}
END_TEST

/* The path was removed by hand, and another daemon has bound it since: it is that one's. */
START_TEST(a_successor_keeps_its_path)
{
	const struct act *p = &parts[_i];
	void *first = p->start(), *second;

	ck_assert_int_eq(unlink(path), 0);
	second = p->start();
	p->stop(first);
	ck_assert_msg(answers(p->type), "%s has removed its successor's path", p->name);
	p->stop(second);
	ck_assert(!exists());
}
END_TEST

struct stopping {
	const struct act *part;
	void *which;
	atomic_bool ended;
};

static void *stop_main(void *arg)
{
	struct stopping *st = arg;

	cache_thread_enter();
	st->part->stop(st->which);
	cache_thread_leave();
	st->ended = true;
	return NULL;
}

/* A daemon that starts is just looking at the path: until that is over the path stays, and answers, so that what the starter sees stays true. */
START_TEST(a_stop_waits_for_another_ones_turn)
{
	struct stopping st = { .part = &parts[_i], .which = parts[_i].start() };
	char why[DATA_DIR_LOCK_WHY_MAX];
	pthread_t thread;
	int turn;

	ck_assert_int_eq(data_dir_lock_turn(path, &turn, why, sizeof why), STATUS_OK);
	ck_assert_int_eq(pthread_create(&thread, NULL, stop_main, &st), 0);
	for (int i = 0; i < LOOKS; i++) {
		ck_assert_msg(exists() && answers(st.part->type), "%s is gone in another's turn", st.part->name);
		ck_assert(!st.ended);
		usleep(LOOK_US);
	}
	ck_assert_int_eq(data_dir_lock_path(path, why, sizeof why), STATUS_BUSY); /* the starter's answer */
	data_dir_lock_turn_end(path, turn);
	pthread_join(thread, NULL);
	ck_assert(!exists());
}
END_TEST

/* The lock cannot be made: the stop leaves nothing behind all the same. */
START_TEST(a_turn_that_cannot_be_had)
{
	void *part = parts[_i].start();
	char lock[sizeof path + 8];

	snprintf(lock, sizeof lock, "%s.lock", path);
	ck_assert_int_eq(mkdir(lock, 0700), 0); /* instead of a file */
	parts[_i].stop(part);
	ck_assert(!exists());
	ck_assert_int_eq(rmdir(lock), 0);
}
END_TEST

/* Binds as soon as it can. */
static void *successor_main(void *arg)
{
	struct local_socket *next = arg;
	char why[DATA_DIR_LOCK_WHY_MAX];
	enum status status = STATUS_BUSY;

	for (int i = 0; i < PATIENCE && status == STATUS_BUSY; i++) {
		status = local_socket_open(next, path, SOCK_STREAM, 0600, 8, why, sizeof why);
		if (status == STATUS_BUSY)
			usleep(100);
	}
	return status ? next : NULL;
}

START_TEST(handed_over_again_and_again)
{
	struct local_socket now, next;
	char why[DATA_DIR_LOCK_WHY_MAX];

	ck_assert_int_eq(local_socket_open(&now, path, SOCK_STREAM, 0600, 8, why, sizeof why), STATUS_OK);
	for (int i = 0; i < HANDOVERS; i++) {
		pthread_t thread;
		void *failed;

		ck_assert_int_eq(pthread_create(&thread, NULL, successor_main, &next), 0);
		local_socket_close(&now);
		pthread_join(thread, &failed);
		ck_assert_ptr_null(failed);
		ck_assert_msg(answers(SOCK_STREAM), "handover %d", i);
		now = next;
	}
	local_socket_close(&now);
	ck_assert(!exists());
}
END_TEST

START_TEST(what_cannot_be_bound)
{
	struct local_socket l;
	char why[DATA_DIR_LOCK_WHY_MAX], far[300];

	memset(far, 'x', sizeof far);
	far[0] = '/';
	far[sizeof far - 1] = 0;
	ck_assert_int_eq(local_socket_open(&l, far, SOCK_STREAM, 0600, 8, why, sizeof why), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(why, "too long"));
	ck_assert_int_eq(l.fd, -1);
	local_socket_close(&l);
	ck_assert_int_eq(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
	ck_assert_int_eq(local_socket_open(&l, path, SOCK_STREAM, 0600, 8, why, sizeof why), STATUS_BUSY);
	ck_assert_ptr_nonnull(strstr(why, "is no socket"));
	local_socket_close(&l);
	ck_assert(exists());
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("local_socket");
	TCase *tc = tcase_create("paths");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, a_path_comes_and_goes_with_its_part, 0, PARTS);
	tcase_add_loop_test(tc, a_successor_keeps_its_path, 0, PARTS);
	tcase_add_loop_test(tc, a_stop_waits_for_another_ones_turn, 0, PARTS);
	tcase_add_loop_test(tc, a_turn_that_cannot_be_had, 0, PARTS);
	tcase_add_test(tc, handed_over_again_and_again);
	tcase_add_test(tc, what_cannot_be_bound);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
