/* /metrics and /healthz: the text, by names and labels that want to break it; over real sockets, the methods and pages, who asks slowly, who
 * takes all connections, and the stop meanwhile. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/http/metrics.h"
#include "daemon/http/metrics_text.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/part.h"
#include "daemon/process/stats.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "tests/asleep.h"
#include "tests/shell.h"
#include "tests/sim/device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { LIFE_US = 300000, LONG_US = 600000000, WAIT_MS = 60000, STOP_US = 60000000 };

/* ---- the text ---- */

static char *text_of(const char *labels, double value)
{
	struct metrics_text t = { .count = 0 };
	size_t n;

	metrics_text_row(&t, "m", labels, value, false, "h");
	char *text = metrics_text_make(&t, &n);

	ck_assert_ptr_nonnull(text);
	ck_assert_uint_eq(strlen(text), n);
	metrics_text_fini(&t);
	return text;
}

static const struct {
	const char *labels;
	double value;
	const char *sample;
} samples[] = {
	{ "", 0, "m 0\n" },
	{ "tier=host", 1, "m{tier=\"host\"} 1\n" },
	{ "disk=0,health=healthy", -2.5, "m{disk=\"0\",health=\"healthy\"} -2.5\n" },
	{ "a=,b=", 3, "m{a=\"\",b=\"\"} 3\n" },
	{ "a=b=c", 1, "m{a=\"b=c\"} 1\n" },
	{ "a=x\\,y=z,b=1", 1, "m{a=\"x,y=z\",b=\"1\"} 1\n" },
	{ "a=\"} 7,b=1", 1, "m{a=\"\\\"} 7\",b=\"1\"} 1\n" },
	{ "a=\\\\,b=1", 1, "m{a=\"\\\\\",b=\"1\"} 1\n" },
	{ "a=\\\\\\,,b=1", 1, "m{a=\"\\\\,\",b=\"1\"} 1\n" },
	{ "a=\\", 1, "m{a=\"\\\\\"} 1\n" },
	{ "a=1\nm 2", 1, "m{a=\"1\\nm 2\"} 1\n" },
	{ "a=\r\t\x1b\x7f\xff\xc3\xa4", 1, "m{a=\"???????\"} 1\n" },
	{ "", 1e-6, "m 1e-06\n" },
	{ "", 0.1 + 0.2, "m 0.30000000000000004\n" },
	{ "", 9007199254740992.0, "m 9007199254740992\n" },
	{ "", 281474976710655.0, "m 281474976710655\n" },
	{ "", (double)UINT64_MAX, "m 1.8446744073709552e+19\n" },
	{ "", __builtin_nan(""), "" },
	{ "", __builtin_inf(), "" },
};

START_TEST(sample)
{
	char *text = text_of(samples[_i].labels, samples[_i].value);
	static const char head[] = "# HELP m h\n# TYPE m gauge\n";

	ck_assert_int_eq(strncmp(text, head, strlen(head)), 0);
	ck_assert_str_eq(text + strlen(head), samples[_i].sample);
	free(text);
}
END_TEST

START_TEST(samples_of_a_metric_are_together)
{
	struct metrics_text t = { .count = 0 };
	size_t n;

	metrics_text_row(&t, "a_total", "way=local", 1, true, "calls \\ with\na \"line\"");
	metrics_text_row(&t, "b", "", 2, false, "b");
	metrics_text_row(&t, "a_total", "", 3, true, "said before");
	char *text = metrics_text_make(&t, &n);

	ck_assert_str_eq(text,
	    "# HELP a_total calls \\\\ with\\na \"line\"\n# TYPE a_total counter\na_total{way=\"local\"} 1\na_total 3\n"
			       "# HELP b b\n# TYPE b gauge\nb 2\n");
	free(text);
	metrics_text_fini(&t);
}
END_TEST

/* A metric that was renamed is there under both names, whole families each, whatever comes between. */
START_TEST(former_names_are_there_too)
{
	struct metrics_text t = { .count = 0 };
	size_t n;

	metrics_text_row(&t, "terrace_local_refused_total", "reason=memory", 1, true, "refused");
	metrics_text_row(&t, "terrace_fd_socket_connections", "", 2, false, "connected");
	metrics_text_row(&t, "terrace_locality", "", 3, false, "another");
	metrics_text_row(&t, "terrace_local_refused_total", "reason=bound", 4, true, "refused");
	char *text = metrics_text_make(&t, &n);

	ck_assert_str_eq(text,
			 "# HELP terrace_local_refused_total refused\n# TYPE terrace_local_refused_total counter\n"
			 "terrace_local_refused_total{reason=\"memory\"} 1\n"
			 "terrace_local_refused_total{reason=\"bound\"} 4\n"
			 "# HELP terrace_near_refused_total former name of terrace_local_refused_total, for this version "
			 "only\n# TYPE terrace_near_refused_total counter\n"
			 "terrace_near_refused_total{reason=\"memory\"} 1\n"
			 "terrace_near_refused_total{reason=\"bound\"} 4\n"
			 "# HELP terrace_fd_socket_connections connected\n# TYPE terrace_fd_socket_connections gauge\n"
			 "terrace_fd_socket_connections 2\n"
			 "# HELP terrace_door_connections former name of terrace_fd_socket_connections, for this version "
			 "only\n# TYPE terrace_door_connections gauge\nterrace_door_connections 2\n"
			 "# HELP terrace_locality another\n# TYPE terrace_locality gauge\nterrace_locality 3\n");
	free(text);
	metrics_text_fini(&t);
}
END_TEST

/* What does not fit is told as a whole, not cut. */
START_TEST(too_much)
{
	struct metrics_text t = { .count = 0 };
	char name[120];
	size_t n;

	for (uint32_t i = 0; i < STATS_MAX; i++) {
		snprintf(name, sizeof name, "m_%u", i % 700);
		metrics_text_row(&t, name, "", i, false, "h");
	}
	char *text = metrics_text_make(&t, &n);

	ck_assert_ptr_nonnull(text);
	free(text);
	metrics_text_row(&t, "m_0", "", 1, false, "h");
	ck_assert_ptr_null(metrics_text_make(&t, &n));
	metrics_text_fini(&t);
	memset(name, 'm', sizeof name - 1);
	name[sizeof name - 1] = 0;
	metrics_text_row(&t, name, "", 1, false, "h");
	ck_assert_ptr_null(metrics_text_make(&t, &n));
	metrics_text_fini(&t);
}
END_TEST

/* ---- over sockets ---- */

static struct shell s;
static struct metrics *m;

static void open_at(const char *address, uint64_t life_us)
{
	char why[256] = "";

	shell_open(&s);
	snprintf(s.config.metrics_address, sizeof s.config.metrics_address, "%s", address);
	ck_assert_msg(metrics_create(&s.daemon, life_us, &m, why, sizeof why) == STATUS_OK, "%s", why);
}

static void serve(uint64_t life_us)
{
	open_at("127.0.0.1:0", life_us);
	metrics_serve(m);
}

static void stop(void)
{
	ck_assert(metrics_part.threads_stop(m, STOP_US));
	metrics_part.destroy(m);
	shell_close(&s);
}

static int reach_by(int fd)
{
	const struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(metrics_port(m)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	ck_assert_int_eq(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
	return fd;
}

static int reach(void)
{
	return reach_by(socket(AF_INET, SOCK_STREAM, 0));
}

static void say(int fd, const char *text)
{
	ck_assert_int_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* All that comes until the other side ends it. */
static const char *hear(int fd)
{
	static char text[1 << 20];
	struct pollfd p = { .fd = fd, .events = POLLIN };
	size_t n = 0;
	ssize_t got = 0;

	do {
		ck_assert_int_eq(poll(&p, 1, WAIT_MS), 1);
		got = recv(fd, text + n, sizeof text - 1 - n, 0);
		n += got > 0 ? (size_t)got : 0;
	} while (got > 0);
	text[n] = 0;
	close(fd);
	return text;
}

static const char *ask(const char *request)
{
	const int fd = reach();

	say(fd, request);
	return hear(fd);
}

#define REST " HTTP/1.1\r\nHost: x\r\n\r\n"

/* With the end of what is said behind it, too. */
static const char *ask_and_end(const char *request)
{
	const int fd = reach();

	say(fd, request);
	shutdown(fd, SHUT_WR);
	return hear(fd);
}

static const struct {
	const char *request, *status, *has;
} asked[] = {
	{ "GET /metrics" REST, "HTTP/1.1 200 ", "\r\n\r\n# HELP terrace_build_info" },
	{ "GET /metrics?name=x" REST, "HTTP/1.1 200 ", "\nterrace_sessions 1\n" },
	{ "GET /metrics HTTP/1.0\r\n\r\n", "HTTP/1.", "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" },
	{ "GET /healthz" REST, "HTTP/1.1 200 ", "\r\n\r\nserving\n" },
	{ "GET /" REST, "HTTP/1.1 404 ", "/metrics" },
	{ "GET /metrics/" REST, "HTTP/1.1 404 ", "" },
	{ "PUT /other" REST, "HTTP/1.1 404 ", "" },
	{ "DELETE /metrics" REST, "HTTP/1.1 405 ", "\r\nAllow: GET, HEAD\r\n" },
	{ "get /metrics" REST, "HTTP/1.1 405 ", "" },
	{ "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nabc", "HTTP/1.1 405 ", "" },
};

START_TEST(pages)
{
	serve(LONG_US);
	for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
		const char *answer = ask(asked[i].request);

		ck_assert_msg(!strncmp(answer, asked[i].status, strlen(asked[i].status)), "%s: %.60s", asked[i].request, answer);
		ck_assert_msg(strstr(answer, asked[i].has) != NULL, "%s: %s", asked[i].request, answer);
	}
	stop();
}
END_TEST

START_TEST(head_has_no_body)
{
	size_t bytes = 0;
	const char *answer;

	serve(LONG_US);
	answer = ask("HEAD /metrics" REST);
	ck_assert_int_eq(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
	ck_assert_str_eq(strstr(answer, "\r\n\r\n"), "\r\n\r\n");
	ck_assert_int_eq(sscanf(strstr(answer, "Content-Length: "), "Content-Length: %zu", &bytes), 1);
	ck_assert_uint_gt(bytes, 1000);
	stop();
}
END_TEST

START_TEST(health)
{
	serve(LONG_US);
	cache_drain(s.daemon.cache, true);
	ck_assert_int_eq(strncmp(ask("GET /healthz" REST), "HTTP/1.1 503 ", 13), 0);
	ck_assert_ptr_nonnull(strstr(ask("GET /metrics" REST), "\nterrace_draining 1\n"));
	cache_drain(s.daemon.cache, false);
	ck_assert_int_eq(strncmp(ask("HEAD /healthz" REST), "HTTP/1.1 200 ", 13), 0);
	stop();
}
END_TEST

/* Random bytes, and requests that are too long: an answer or none, and the next is served. */
START_TEST(nonsense)
{
	static char bytes[64 << 10];

	serve(LONG_US);
	srand(7);
	for (int round = 0; round < 20; round++) {
		const int fd = reach();

		for (size_t i = 0; i < sizeof bytes; i++)
			bytes[i] = (char)(round % 2 ? rand() : 'a');
		memcpy(bytes, "GET /metrics HTTP/1.1\r\nX: ", round % 3 * 13);
		(void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
		hear(fd);
	}
	ck_assert_int_eq(strncmp(ask("GET /healthz" REST), "HTTP/1.1 200 ", 13), 0);
	stop();
}
END_TEST

static bool is_answered(int fd)
{
	return poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 0) > 0;
}

/* Clients that say nothing, or a byte now and then, as many as a process may have at a time, are cut when their time is up. False: the threads were not seen
 * asleep meanwhile. */
static bool slow_ones_have_their_time(uint64_t life_us)
{
	enum { SLOW = METRICS_CONNECTIONS / 2 };
	int slow[SLOW];
	struct asleep threads;
	uint64_t begun;
	bool slept;

	serve(life_us);
	asleep_begin(&threads);
	begun = daemon_now_us();
	for (int i = 0; i < SLOW; i++) {
		slow[i] = reach();
		if (i % 2)
			say(slow[i], "GET /metrics HTTP/1.1\r\n");
	}
	for (int i = 0; i < 100; i++) {
		(void)!send(slow[0], "G", 1, MSG_NOSIGNAL);
		usleep(1000);
	}
	slept = asleep_within(&threads, (int)(life_us / 2000)) && !is_answered(slow[1]);
	for (int i = 0; i < SLOW; i++)
		ck_assert_str_eq(hear(slow[i]), "");
	ck_assert_uint_ge(daemon_now_us() - begun, life_us);
	asleep_end(&threads);
	stop();
	return slept;
}

/* And no processor is busy with them. Again with more time, if a busy machine did not let that be seen. */
START_TEST(slow_ones_are_cut)
{
	uint64_t life_us = LIFE_US;

	while (!slow_ones_have_their_time(life_us)) {
		life_us *= 2;
		ck_assert_uint_lt(life_us, WAIT_MS * 1000ull);
	}
}
END_TEST

static double refused(const char *reason)
{
	struct shell_stat w = { .name = "terrace_quota_refused_total" };
	char labels[64];

	snprintf(labels, sizeof labels, "thing=metrics_connections,reason=%s", reason);
	w.labels = labels;
	quota_stats(cache_quota(s.daemon.cache), shell_find_stat, &w);
	return w.value;
}

/* However many slow connections there are, a probe is answered at once: it takes the place of the oldest of its user's, and no more than
 * that user's share is ever taken. */
START_TEST(a_probe_is_answered_beside_slow_ones)
{
	enum { SLOW = 2 * METRICS_CONNECTIONS };
	const uint64_t share = METRICS_CONNECTIONS - METRICS_CONNECTIONS / 16;
	int slow[SLOW];

	serve(LONG_US);
	for (int i = 0; i < SLOW; i++) {
		slow[i] = reach();
		say(slow[i], i % 2 ? "GET /metrics HTTP/1.1\r\n" : "G");
	}
	for (int i = 0; i < 2 * METRICS_CONNECTIONS; i++)
		ck_assert_int_eq(strncmp(ask("GET /healthz" REST), "HTTP/1.1 200 ", 13), 0);
	ck_assert_uint_le(quota_used(cache_quota(s.daemon.cache), QUOTA_METRICS), share);
	for (uint64_t i = 0; i < SLOW - share; i++)
		ck_assert_str_eq(hear(slow[i]), ""); /* the oldest have been cut, and those alone */
	ck_assert_double_ge(refused("user"), SLOW - share);
	ck_assert(refused("full") == 0);
	ck_assert_int_eq(poll(&(struct pollfd){ .fd = slow[SLOW - 1], .events = POLLIN }, 1, 0), 0);
	for (uint64_t i = SLOW - share; i < SLOW; i++)
		close(slow[i]);
	for (int i = 0; quota_used(cache_quota(s.daemon.cache), QUOTA_METRICS); i++) {
		ck_assert_int_lt(i, WAIT_MS);
		usleep(1000);
	}
	stop();
}
END_TEST

/* Who goes in the middle of a question leaves no connection behind; who says that it has asked all is answered. */
START_TEST(half_a_question)
{
	serve(LONG_US);
	for (int i = 0; i < 2 * METRICS_CONNECTIONS; i++) {
		const int fd = reach();

		say(fd, "GET /metrics HTTP/1.1\r\n");
		close(fd);
	}
	ck_assert_int_eq(strncmp(ask_and_end("GET /metrics" REST), "HTTP/1.1 200 ", 13), 0);
	stop();
}
END_TEST

/* Who cannot be accepted waits, and no processor is busy with him; then he is answered. */
START_TEST(no_descriptors)
{
	static int taken[4096];
	const struct rlimit few = { 256, 256 };
	struct asleep threads;
	int n = 0, fd;

	serve(LONG_US);
	asleep_begin(&threads);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	while ((taken[n] = dup(0)) >= 0)
		n++;
	ck_assert_int_eq(errno, EMFILE);
	reach_by(fd);
	say(fd, "GET /healthz" REST);
	ck_assert_int_eq(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 300), 0);
	ck_assert(asleep_within(&threads, WAIT_MS));
	asleep_end(&threads);
	while (n)
		close(taken[--n]);
	ck_assert_int_eq(strncmp(hear(fd), "HTTP/1.1 200 ", 13), 0);
	stop();
}
END_TEST

/* The stop waits for nobody: not for slow ones, not for those in the kernel, not if nobody was served ever. */
START_TEST(stops_at_once)
{
	int fds[2 * METRICS_CONNECTIONS];
	uint64_t begun;

	if (_i)
		serve(LONG_US);
	else
		open_at("[::1]:0", LIFE_US);
	for (int i = 0; i < 2 * METRICS_CONNECTIONS && _i; i++) {
		fds[i] = reach();
		say(fds[i], "GET /metrics HTTP/1.1\r\n");
	}
	begun = daemon_now_us();
	ck_assert(metrics_part.threads_stop(m, STOP_US));
	if (_i)
		ck_assert_uint_lt(daemon_now_us() - begun, STOP_US / 2);
	for (int i = 0; i < 2 * METRICS_CONNECTIONS && _i; i++)
		close(fds[i]);
	metrics_part.destroy(m);
	shell_close(&s);
}
END_TEST

static struct sockaddr_un serve_unix(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char why[256];

	shell_open(&s);
	snprintf(at.sun_path, sizeof at.sun_path, "%s/m.sock", s.folder);
	snprintf(s.config.metrics_address, sizeof s.config.metrics_address, "unix:%s", at.sun_path);
	ck_assert_msg(metrics_create(&s.daemon, LONG_US, &m, why, sizeof why) == STATUS_OK, "%s", why);
	metrics_serve(m);
	return at;
}

static int reach_unix(const struct sockaddr_un *at)
{
	const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	ck_assert_int_eq(connect(fd, (const struct sockaddr *)at, sizeof *at), 0);
	say(fd, "GET /metrics" REST);
	return fd;
}

START_TEST(unix_socket)
{
	const struct sockaddr_un at = serve_unix();
	struct metrics *other = NULL;
	char why[256];
	struct stat st;

	ck_assert_int_eq(stat(at.sun_path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0660);
	ck_assert_uint_eq(metrics_port(m), 0);
	ck_assert_int_eq(strncmp(hear(reach_unix(&at)), "HTTP/1.1 200 ", 13), 0);
	ck_assert_int_eq(metrics_create(&s.daemon, LONG_US, &other, why, sizeof why), STATUS_BUSY);
	ck_assert_msg(strstr(why, "another daemon answers at") != NULL, "%s", why);
	ck_assert(metrics_part.threads_stop(m, STOP_US));
	ck_assert_int_eq(stat(at.sun_path, &st), -1);
	metrics_part.destroy(m);
	shell_close(&s);
}
END_TEST

/* An answer that hangs keeps the stop no longer than that waits for it. */
START_TEST(hangs)
{
	const struct sockaddr_un at = serve_unix();
	int fd, unread;

	cache_lock(s.daemon.cache);
	fd = reach_unix(&at);
	do
		ck_assert_int_eq(ioctl(fd, SIOCOUTQ, &unread), 0);
	while (unread);
	ck_assert(!metrics_part.threads_stop(m, 20000));
	cache_unlock(s.daemon.cache);
	stop();
	close(fd);
}
END_TEST

START_TEST(port_is_taken)
{
	struct metrics *other = NULL;
	char why[256];

	serve(LONG_US);
	snprintf(s.config.metrics_address, sizeof s.config.metrics_address, "127.0.0.1:%u", metrics_port(m));
	ck_assert_int_eq(metrics_create(&s.daemon, LIFE_US, &other, why, sizeof why), STATUS_IO);
	ck_assert_msg(strstr(why, "cannot listen on 127.0.0.1:") != NULL, "%s", why);
	stop();
}
END_TEST

/* ---- what a scrape costs: --measure ---- */

enum { FULL_GPUS = 8, ROUNDS = 1000 };

static void ignore(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	(void)name;
	(void)labels;
	(void)value;
	(void)counter;
	(void)help;
	++*(uint32_t *)arg;
}

static int by_size(const void *a, const void *b)
{
	return *(const uint64_t *)a < *(const uint64_t *)b ? -1 : *(const uint64_t *)a > *(const uint64_t *)b;
}

static void tell(const char *what, uint64_t us[ROUNDS])
{
	qsort(us, ROUNDS, sizeof us[0], by_size);
	printf("%-40s median %4llu us, 99 %% %4llu, most %4llu\n", what, (unsigned long long)us[ROUNDS / 2],
	       (unsigned long long)us[ROUNDS * 99 / 100], (unsigned long long)us[ROUNDS - 1]);
}

static int cannot(const char *why)
{
	fprintf(stderr, "metrics: %s\n", why);
	return 1;
}

/* Sessions of four layouts each; eight GPUs, one disk. The cache's lock is held for less than the rows take. */
static int measure(uint32_t sessions)
{
	static uint64_t rows_us[ROUNDS], text_us[ROUNDS];
	static const uint32_t gpus[FULL_GPUS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	struct kv_layout layouts[4] = { shell_layout(1), shell_layout(2), shell_layout(3), shell_layout(4) };
	struct cache_session_view session;
	struct metrics_text t = { .count = 0 };
	struct cache_disk_options disk = { .bytes = 64 << 20 };
	struct cache_options o = {
		.host_bytes = 64 << 20, .extent_bytes = 1 << 20, .policy = "lru", .pinned_bytes_max = 48 << 20, .sessions_max = 1024,
		.leases_max = 1024, .open_blocks_max = 64, .session_idle_ms = 600000, .lease_ttl_ms = 60000, .reservation_ttl_ms = 60000,
		.watch_queue = 64, .disks = &disk, .disk_count = 1, .slab_bytes = 1 << 20, .disk_depth = 8, .disk_slow_ms = 60000,
		.disk_policy = "lru", .device_ops = terrace_device_ops(), .gpus = gpus, .gpu_count = FULL_GPUS, .gpu_bytes = 32 << 20,
	};
	char catalog[80], folder[80];
	const char *why = "";
	uint32_t rows = 0;
	size_t bytes = 0;

	setenv("SIM_GPU_DEVICES", "8", 1);
	strcpy(s.folder, "/tmp/terrace-test-ttt");
	if (!mkdtemp(s.folder))
		return cannot("make a folder");
	snprintf(catalog, sizeof catalog, "%s/catalog", s.folder);
	snprintf(folder, sizeof folder, "%s/disk", s.folder);
	o.catalog_folder = catalog;
	disk.folder = folder;
	log_setup(LOG_ERROR, LOG_LOGFMT);
	cache_thread_enter();
	if (cache_create(&o, daemon_now_us(), &s.daemon.cache, &why))
		return cannot(why);
	for (uint32_t i = 0; i < sessions; i++) {
		for (int k = 0; k < 4; k++)
			memcpy(layouts[k].fingerprint, &i, sizeof i);
		if (cache_session_open(s.daemon.cache, &(struct cache_open_call){ .tenant = "",
				.layouts = layouts, .layout_count = 4, .engine = "test",
				.now_us = daemon_now_us() }, &session, &why))
			return cannot(why);
	}
	for (int i = 0; i < ROUNDS; i++) {
		const uint64_t begun = daemon_now_us();

		rows = 0;
		daemon_stats(&s.daemon, begun, ignore, &rows);
		rows_us[i] = daemon_now_us() - begun;
		daemon_stats(&s.daemon, begun, metrics_text_row, &t);
		free(metrics_text_make(&t, &bytes));
		metrics_text_fini(&t);
		text_us[i] = daemon_now_us() - begun - rows_us[i];
	}
	printf("%u sessions, %u layouts, %d GPUs: %u rows, %zu bytes\n", sessions, 4 * sessions, FULL_GPUS, rows, bytes);
	tell("the rows", rows_us);
	tell("the rows and their text", text_us);
	shell_close(&s);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "--measure"))
		return measure(16) || measure(1024); /* as many sessions as by default, as many layouts as there may be */
	Suite *suite = suite_create("metrics");
	TCase *t = tcase_create("metrics");

	tcase_add_loop_test(t, sample, 0, (int)(sizeof samples / sizeof samples[0]));
	tcase_add_test(t, samples_of_a_metric_are_together);
	tcase_add_test(t, former_names_are_there_too);
	tcase_add_test(t, too_much);
	tcase_add_test(t, pages);
	tcase_add_test(t, head_has_no_body);
	tcase_add_test(t, health);
	tcase_add_test(t, nonsense);
	tcase_add_test(t, slow_ones_are_cut);
	tcase_add_test(t, a_probe_is_answered_beside_slow_ones);
	tcase_add_test(t, half_a_question);
	tcase_add_test(t, no_descriptors);
	tcase_add_loop_test(t, stops_at_once, 0, 2);
	tcase_add_test(t, hangs);
	tcase_add_test(t, unix_socket);
	tcase_add_test(t, port_is_taken);
	suite_add_tcase(suite, t);
	SRunner *runner = srunner_create(suite);

	srunner_run_all(runner, CK_NORMAL);
	int failed = srunner_ntests_failed(runner);

	srunner_free(runner);
	return failed != 0;
}
