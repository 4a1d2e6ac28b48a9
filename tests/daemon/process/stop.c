/* The stop while something hangs: who does not has ended before it is over, and nobody's work is cut. */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/local/socket.h"
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

static void board_ask(void)
{
	struct fdsock_hello h = { { FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_HELLO }, { 0 } };
	const struct fdsock_map m = { { FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_MAP }, FDSOCK_EXTENT_BOARD, 1 };
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

	setenv("SIM_GPU_DEVICES", "1", 1);
	driver = *terrace_device_ops();
	driver.host_register = register_hangs;
	shell_open_all(&s, NULL, &driver);
	s.config.stop_timeout_ms = STOP_MS;
	ck_assert_int_eq(workers_create(2, 4, &s.daemon.workers), STATUS_OK);
	ck_assert_msg(door_create(&s.daemon, s.config.fd_socket, 0600, 4, &s.daemon.door, why, sizeof why) == STATUS_OK, "%s", why);
}

START_TEST(who_does_not_hang_comes_to_an_end)
{
	sigset_t none;

	sigemptyset(&none);
	hangs = true;
	board_ask();
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

int main(void)
{
	Suite *suite = suite_create("stop");
	TCase *t = tcase_create("stop");
	SRunner *r;

	tcase_add_checked_fixture(t, setup, NULL);
	tcase_set_timeout(t, 100);
	tcase_add_test(t, who_does_not_hang_comes_to_an_end);
	tcase_add_test(t, what_does_not_hang_ends);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
