/* The stop while something hangs: who does not has ended before it is over, and nobody's work is cut. */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/local/socket.h"
#include "daemon/process/daemon.h"
#include "daemon/process/part.h"
#include "daemon/process/stats.h"
#include "daemon/process/stop.h"
#include "daemon/threads/pool.h"
#include "proto/fdsock.h"
#include "store/device.h"
#include "store/status.h"
#include "tests/shell.h"
#include "tests/sim/device.h"

#include <check.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Of a stop that leaves something behind no thread is joined. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "report_thread_leaks=0";
}

enum { STOP_MS = 20, WORK_MS = 200, END_S = 60 }; /* who does not hang has two seconds more */

static struct shell s;

/* A driver that does not return from having memory registered. */
static struct device_ops driver;
static atomic_bool hangs, inside;

static void hang_here(void)
{
	inside = hangs;
	for (int ms = 0; hangs && ms < END_S * 1000; ms++)
		usleep(1000);
}

static enum status register_hangs(struct device *d, void *memory, uint64_t bytes, bool write, uint64_t *address, const char **why)
{
	hang_here();
	return terrace_device_ops()->host_register(d, memory, bytes, write, address, why);
}

static void progress_page_ask(void)
{
	struct fdsock_hello h = { { FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_HELLO }, { 0 } };
	const struct fdsock_map m = { { FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_MAP }, FDSOCK_EXTENT_PROGRESS_PAGE, 1 };
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct fdsock_welcome w;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	strcpy(to.sun_path, s.config.fd_socket);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	memcpy(h.token, s.session.token, sizeof h.token);
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(recv(fd, &w, sizeof w, 0), sizeof w);
	ck_assert_uint_eq(w.status, STATUS_OK);
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
}

static struct {
	struct work work;
	atomic_bool begun, over;
} job;

static void job_run(struct work *w)
{
	struct cache_load load;

	(void)w;
	job.begun = true;
	usleep(WORK_MS * 1000);
	cache_load(s.daemon.cache, &load);
	job.over = true;
}

static void await(const atomic_bool *what)
{
	for (int ms = 0; !*what && ms < END_S * 1000; ms++)
		usleep(1000);
	ck_assert(*what);
}

static void setup(void)
{
	char why[256] = "";
	struct fd_socket *fd_socket;

	setenv("SIM_GPU_DEVICES", "1", 1);
	driver = *terrace_device_ops();
	driver.host_register = register_hangs;
	shell_open_all(&s, NULL, &driver);
	s.config.stop_timeout_ms = STOP_MS;
	ck_assert_int_eq(workers_create(2, 4, &s.daemon.workers), STATUS_OK);
	ck_assert_msg(fd_socket_create(&s.daemon, s.config.fd_socket, 0600, 4, &fd_socket, why,
		      sizeof why) == STATUS_OK,
		      "%s", why);
	daemon_add(&s.daemon, &fd_socket_part, fd_socket);
}

START_TEST(who_does_not_hang_comes_to_an_end)
{
	sigset_t none;

	sigemptyset(&none);
	hangs = true;
	progress_page_ask();
	await(&inside);
	job.work.run = job_run;
	ck_assert_int_eq(workers_submit(s.daemon.workers, &job.work), STATUS_OK);
	await(&job.begun);
	ck_assert(!stop_daemon(&s.daemon, false, &none));
	ck_assert(job.over);
	ck_assert_int_ne(access(s.config.fd_socket, F_OK), 0);
	nftw(s.folder, shell_remove, 8, FTW_DEPTH | FTW_PHYS);
}
END_TEST

START_TEST(what_does_not_hang_ends)
{
	sigset_t none;

	sigemptyset(&none);
	job.work.run = job_run;
	ck_assert_int_eq(workers_submit(s.daemon.workers, &job.work), STATUS_OK);
	s.config.stop_timeout_ms = END_S * 1000;
	ck_assert(stop_daemon(&s.daemon, false, &none));
	ck_assert(job.over);
	nftw(s.folder, shell_remove, 8, FTW_DEPTH | FTW_PHYS);
}
END_TEST

/* A part that writes down what it is asked for. Its calls end when they are asked for the second time. */
static struct {
	char line[512];
	size_t bytes;
	atomic_bool threads;           /* a part's threads were stopped */
} diary;

static void note(const char *part, const char *what)
{
	const size_t left = sizeof diary.line - diary.bytes;

	diary.bytes += (size_t)snprintf(diary.line + diary.bytes, left, "%s %s%s, ", part, what,
					job.over ? " after the worker" : "");
}

struct noted {
	const char *name;
	uint32_t waits;
};

static void noted_calls_stop(void *part, uint64_t grace_us)
{
	(void)grace_us;
	note(((struct noted *)part)->name, "calls");
}

static bool noted_calls_wait(void *part, uint64_t wait_us)
{
	(void)wait_us;
	note(((struct noted *)part)->name, "wait");
	return ((struct noted *)part)->waits++;
}

static bool noted_threads_stop(void *part, uint64_t wait_us)
{
	(void)wait_us;
	note(((struct noted *)part)->name, "threads");
	diary.threads = true;
	return true;
}

static void noted_destroy(void *part)
{
	note(((struct noted *)part)->name, "destroy");
}

static void noted_stats(void *part, cache_stat_fn *emit, void *arg)
{
	emit(arg, ((struct noted *)part)->name, "", 7, false, "a row of the part's");
}

/* A worker is at work until the first part's threads were stopped. */
static void job_lasts(struct work *w)
{
	(void)w;
	job.begun = true;
	await(&diary.threads);
	job.over = true;
}

START_TEST(parts_end_in_order_and_have_their_rows)
{
	const struct part_ops calls = {
		.name = "calls",
		.calls_stop = noted_calls_stop,
		.calls_wait = noted_calls_wait,
		.destroy = noted_destroy,
		.stats = noted_stats,
	};
	const struct part_ops apart = { .name = "apart", .threads_stop = noted_threads_stop, .destroy = noted_destroy };
	const struct part_ops uses = {
		.name = "uses",
		.uses_workers = true,
		.threads_stop = noted_threads_stop,
		.destroy = noted_destroy,
	};
	struct noted noted[] = { { "calls", 0 }, { "apart", 0 }, { "uses", 0 } };
	struct shell_stat w = { .name = "calls", .labels = "" };
	sigset_t none;

	sigemptyset(&none);
	daemon_add(&s.daemon, &calls, &noted[0]);
	daemon_add(&s.daemon, &apart, &noted[1]);
	daemon_add(&s.daemon, &uses, &noted[2]);
	daemon_stats(&s.daemon, daemon_now_us(), shell_find_stat, &w);
	ck_assert_double_eq(w.value, 7);
	job.work.run = job_lasts;
	ck_assert_int_eq(workers_submit(s.daemon.workers, &job.work), STATUS_OK);
	await(&job.begun);
	s.config.stop_timeout_ms = END_S * 1000;
	ck_assert(stop_daemon(&s.daemon, true, &none));
	ck_assert_str_eq(diary.line, "calls calls, calls wait, calls wait, uses threads, apart threads after the worker, "
				     "uses destroy after the worker, apart destroy after the worker, calls destroy after the worker, ");
	nftw(s.folder, shell_remove, 8, FTW_DEPTH | FTW_PHYS);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("stop");
	TCase *t = tcase_create("stop");
	SRunner *r;

	tcase_add_checked_fixture(t, setup, NULL);
	tcase_set_timeout(t, 100);
	tcase_add_test(t, who_does_not_hang_comes_to_an_end);
	tcase_add_test(t, what_does_not_hang_ends);
	tcase_add_test(t, parts_end_in_order_and_have_their_rows);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
