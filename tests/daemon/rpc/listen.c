/* The sockets of gRPC's clients: where they are, who may come, what happens to those who say nothing, and without descriptors; and that the server
 * uses them. */
#include "daemon/cache.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/part.h"
#include "daemon/rpc/listen.h"
#include "daemon/rpc/peers.h"
#include "daemon/rpc/roles.h"
#include "daemon/rpc/server.h"
#include "daemon/threads/pool.h"
#include "tests/shell.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { SILENT_MS = 50, SILENT_MAX = 256, PEERS_MAX = 1024 };
#define FOREVER_US (3600 * 1000000ull)

static struct shell s;
static struct rpc_listener *listener;
static struct rpc_peers *peers;
static struct rpc_roles roles;
static atomic_int taken;

static void setup(void)
{
	shell_open(&s);
	s.config.socket_mode = 0640;
	strcpy(s.config.listen, "127.0.0.1:0");
}

static void teardown(void)
{
	rpc_listen_destroy(listener);
	rpc_peers_destroy(peers);
	rpc_roles_fini(&roles);
	shell_close(&s);
}

/* What comes by TCP is not to wait for more. */
static void take(void *arg, int fd)
{
	struct sockaddr_storage at;
	socklen_t n = sizeof at, size = sizeof(int);
	int no_delay = 1;
	char byte;

	(void)arg;
	if (!getsockname(fd, (struct sockaddr *)&at, &n) && at.ss_family == AF_INET)
		getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &size);
	if (no_delay && read(fd, &byte, 1) == 1 && fcntl(fd, F_GETFL) & O_NONBLOCK && fcntl(fd, F_GETFD) & FD_CLOEXEC)
		taken++;
	shutdown(fd, SHUT_RDWR); /* as gRPC does */
	close(fd);
}

static void start(uint64_t silent_us)
{
	char why[256] = "";

	ck_assert_msg(rpc_listen_create(&s.config, &listener, why, sizeof why) == STATUS_OK, "%s", why);
	ck_assert_int_eq(rpc_peers_create(cache_quota(s.daemon.cache), PEERS_MAX, &peers), STATUS_OK);
	ck_assert_int_eq(rpc_roles_init(&roles, &s.config), STATUS_OK);
	ck_assert_int_eq(rpc_listen_start(listener, &(struct rpc_listen_parts){ .peers = peers, .roles = &roles }, silent_us, take, NULL), STATUS_OK);
}

static int local(void)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strcpy(to.sun_path, s.config.socket);
	ck_assert_int_ge(fd, 0);
	if (!connect(fd, (struct sockaddr *)&to, sizeof to))
		return fd;
	close(fd);
	return -1;
}

static int tcp(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) },
				  .sin_port = htons((uint16_t)rpc_listen_port(listener)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	return fd;
}

static int spoken(int fd)
{
	ck_assert_int_eq(write(fd, "P", 1), 1);
	return fd;
}

/* Until the listener has closed it. */
static void hang_up(int fd)
{
	char byte;

	ck_assert_int_eq(read(fd, &byte, 1), 0);
	close(fd);
}

START_TEST(both_are_heard)
{
	struct stat st;

	start(FOREVER_US);
	ck_assert_int_eq(lstat(s.config.socket, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0640);
	for (int i = 0; i < 3; i++) {
		hang_up(spoken(local()));
		hang_up(spoken(tcp()));
	}
	ck_assert_int_eq(taken, 6);
	rpc_listen_stop(listener);
	ck_assert_int_ne(lstat(s.config.socket, &st), 0);
	ck_assert_int_lt(local(), 0);
}
END_TEST

START_TEST(what_is_taken_is_told)
{
	struct config other;
	struct rpc_listener *second;
	char why[256] = "";

	start(FOREVER_US);
	ck_assert_int_eq(rpc_listen_create(&s.config, &second, why, sizeof why), STATUS_BUSY);
	ck_assert_msg(strstr(why, s.config.socket) && strstr(why, "another daemon answers at"), "%s", why);
	hang_up(spoken(local())); /* the first one's, still */
	other = s.config;
	snprintf(other.socket, sizeof other.socket, "%s/other.sock", s.folder);
	snprintf(other.listen, sizeof other.listen, "127.0.0.1:%d", rpc_listen_port(listener));
	ck_assert_int_eq(rpc_listen_create(&other, &second, why, sizeof why), STATUS_IO);
	ck_assert_msg(strstr(why, other.listen) && strstr(why, strerror(EADDRINUSE)), "%s", why);
	ck_assert_int_ne(access(other.socket, F_OK), 0);
	memset(other.socket, 'x', 200);
	other.socket[200] = 0;
	ck_assert_int_eq(rpc_listen_create(&other, &second, why, sizeof why), STATUS_IO);
}
END_TEST

static double silent_closed(void)
{
	struct shell_stat w = { .name = "terrace_rpc_silent_closed_total", .labels = "" };

	rpc_listen_stats(listener, shell_find_stat, &w);
	return w.value;
}

/* Nobody else is waited for, whoever is silent meanwhile. */
START_TEST(who_says_nothing_is_closed_in_time)
{
	uint64_t began_us;
	int silent[2];

	start(SILENT_MS * 1000);
	began_us = daemon_now_us();
	silent[0] = local();
	silent[1] = tcp();
	hang_up(spoken(local()));
	close(local());
	hang_up(silent[0]);
	hang_up(silent[1]);
	ck_assert_uint_ge(daemon_now_us() - began_us, SILENT_MS * 1000);
	hang_up(spoken(tcp()));
	ck_assert_int_eq(taken, 2);
	ck_assert(silent_closed() == 2);
}
END_TEST

START_TEST(of_too_many_silent_ones_the_oldest_leaves)
{
	enum { MANY = SILENT_MAX + 8 };
	int fd[MANY];

	start(FOREVER_US);
	for (int i = 0; i < MANY; i++)
		fd[i] = local();
	for (int i = 0; i < MANY - SILENT_MAX; i++)
		hang_up(fd[i]);
	for (int i = MANY - 1; i >= MANY - SILENT_MAX; i--)
		hang_up(spoken(fd[i]));
	ck_assert_int_eq(taken, SILENT_MAX);
	ck_assert(silent_closed() == MANY - SILENT_MAX);
	fd[0] = local();
	rpc_listen_stop(listener);
	hang_up(fd[0]);
}
END_TEST

static double stat_of(const char *name)
{
	struct shell_stat w = { .name = name, .labels = "" };

	rpc_part.stats(s.daemon.rpc, shell_find_stat, &w);
	return w.value;
}

/* gRPC's own listener would hear nobody any more. Some numbers may be free below the limit, and be taken. */
START_TEST(a_lack_of_descriptors_is_waited_out)
{
	enum { MANY = 16 };
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct rlimit limit, low;
	char why[256] = "";
	int fd[MANY];

	ck_assert_int_eq(workers_create(2, 16, &s.daemon.workers), STATUS_OK);
	ck_assert_msg(rpc_server_create(&s.daemon, why, sizeof why) == STATUS_OK, "%s", why);
	strcpy(to.sun_path, s.config.socket);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	low.rlim_cur = 0;
	for (int i = 0; i < MANY; i++) {
		fd[i] = socket(AF_UNIX, SOCK_STREAM, 0);
		low.rlim_cur = (rlim_t)fd[i] + 1 > low.rlim_cur ? (rlim_t)fd[i] + 1 : low.rlim_cur;
	}
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	for (int i = 0; i < MANY; i++)
		ck_assert_int_eq(connect(fd[i], (struct sockaddr *)&to, sizeof to), 0);
	while (stat_of("terrace_rpc_accepts_failed_total") < 3) /* it asks again, now and then */
		usleep(1000);
	ck_assert(stat_of("terrace_rpc_accepts_failed_total") < 100);
	ck_assert(stat_of("terrace_rpc_accepted_total") < MANY);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	close(local());
	while (stat_of("terrace_rpc_accepted_total") < MANY + 1)
		usleep(1000);
	for (int i = 0; i < MANY; i++)
		close(fd[i]);
	rpc_part.calls_stop(s.daemon.rpc, 0);
	ck_assert(rpc_part.calls_wait(s.daemon.rpc, 60000000));
	rpc_part.destroy(s.daemon.rpc);
	workers_destroy(s.daemon.workers);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc_listen");
	TCase *t = tcase_create("rpc_listen");
	SRunner *r;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, both_are_heard);
	tcase_add_test(t, what_is_taken_is_told);
	tcase_add_test(t, who_says_nothing_is_closed_in_time);
	tcase_add_test(t, of_too_many_silent_ones_the_oldest_leaves);
	tcase_add_test(t, a_lack_of_descriptors_is_waited_out);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
