/* The fd local socket against a real cache: the conversation of proto/fdsock.h, hostile packets, bounds, and the
 * end of processes. */
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/lease.h"
#include "daemon/call/stats.h"
#include "daemon/local/socket.h"
#include "daemon/process/daemon.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "tests/asleep.h"
#include "tests/daemon/local/socket_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

static void setup(void)
{
	fd_socket_rig_open(NULL);
}

static uint64_t leases(void)
{
	struct cache_load load;

	cache_load(shell.daemon.cache, &load);
	return load.leases;
}

static void no_leases(void)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	while (leases() && daemon_now_us() < end)
		usleep(5000);
	ck_assert_uint_eq(leases(), 0);
}

static uint64_t lease_one(uint64_t attachment, uint32_t *extent)
{
	struct cache_place places[2];
	struct cache_leased leased;
	struct cache_keys k = { (const uint8_t *)"key1", 1, 4 };
	const char *why = "";

	ck_assert_msg(cache_lease(shell.daemon.cache, &(struct cache_lease_call){ .session = shell.session.id,
			.keys = &k, .all = true, .on = &(struct cache_on){ .attachment = attachment,
			.gpu = CACHE_HOST }, .now_us = daemon_now_us(), .places = places, .places_max = 2 },
				  &leased, NULL, &why) == STATUS_OK, "%s", why);
	*extent = places[0].extent;
	return leased.lease;
}

START_TEST(conversation)
{
	struct fdsock_welcome w;
	struct fdsock_extent e;
	struct fdsock_release r = { .head = HEAD(FDSOCK_RELEASE), .count = 1 };
	int fd = greet(&w), got;
	uint32_t extent;
	struct stat st;

	shell_store(&shell, "key1");
	ck_assert_uint_eq(w.session, shell.session.id);
	ck_assert_uint_eq(w.epoch, cache_epoch(shell.daemon.cache));
	r.leases[0] = lease_one(w.attachment, &extent);

	struct fdsock_map m = { HEAD(FDSOCK_MAP), extent, 0 };

	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear(fd, &e, sizeof e, &got), sizeof e);
	ck_assert_uint_eq(e.status, STATUS_OK);
	ck_assert_int_ge(got, 0);
	ck_assert_int_eq(fstat(got, &st), 0);
	ck_assert_uint_eq((uint64_t)st.st_size, e.bytes);
	ck_assert_ptr_eq(mmap(NULL, e.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, got, 0), MAP_FAILED);
	uint8_t *at = mmap(NULL, e.bytes, PROT_READ, MAP_SHARED, got, 0);

	ck_assert_ptr_ne(at, MAP_FAILED);
	close(got);
	ck_assert_int_eq(send(fd, &r, offsetof(struct fdsock_release, leases) + 8, 0), 24);
	no_leases();

	m.extent = 9999;
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear(fd, &e, sizeof e, &got), sizeof e);
	ck_assert_uint_ne(e.status, STATUS_OK);
	ck_assert_int_eq(got, -1);
	munmap(at, st.st_size);

	struct fdsock_unmapped u = { HEAD(FDSOCK_UNMAPPED), extent, 0 };

	ck_assert_int_eq(send(fd, &u, sizeof u, 0), sizeof u);
	until("terrace_fd_socket_packets_total", 5);
	close(fd);
	until("terrace_fd_socket_connections", 0);
}
END_TEST

static int greet_before(struct fdsock_welcome *w)
{
	struct fdsock_hello h = { HEAD_BEFORE(FDSOCK_HELLO), { 0 } };
	int fd = dial();

	memcpy(h.token, shell.session.token, sizeof h.token);
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(hear(fd, w, sizeof *w, NULL), sizeof *w);
	return fd;
}

static void map_before(int fd, uint32_t extent, uint32_t write, struct fdsock_extent *e, int *got)
{
	const struct fdsock_map m = { HEAD_BEFORE(FDSOCK_MAP), extent, write };

	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear(fd, e, sizeof *e, got), sizeof *e);
	ck_assert_uint_eq(e->head.version, FDSOCK_VERSION_BEFORE);
}

static double quarantined(void)
{
	struct shell_stat w = { "terrace_ghost_sessions", "", -1 };

	cache_stats(shell.daemon.cache, daemon_now_us(), shell_find_stat, &w);
	return w.value;
}

/* The library of the release before has host memory, by packets of its version, and knows of no more. It does not say
 * what it unmaps when it hangs up: its lock alone counts. */
START_TEST(a_library_of_the_release_before_has_host_memory)
{
	struct fdsock_release r = { .head = HEAD_BEFORE(FDSOCK_RELEASE), .count = 1 };
	struct fdsock_welcome w;
	struct fdsock_extent e;
	int fd = greet_before(&w), got;
	uint32_t extent;

	shell_store(&shell, "key1");
	ck_assert_uint_eq(w.status, STATUS_OK);
	ck_assert_uint_eq(w.head.version, FDSOCK_VERSION_BEFORE);
	ck_assert_uint_eq(w.knows, 0);
	r.leases[0] = lease_one(w.attachment, &extent);
	map_before(fd, extent, 0, &e, &got);
	ck_assert_uint_eq(e.status, STATUS_OK);
	ck_assert_uint_eq(e.gpu, FDSOCK_NO_GPU);
	ck_assert_int_ge(got, 0);
	ck_assert_int_eq(send(fd, &r, offsetof(struct fdsock_release, leases) + 8, 0), 24);
	no_leases();
	close(fd);
	for (int i = 0; i < 3; i++) {
		usleep(60000); /* a tick */
		ck_assert_double_eq(quarantined(), 1);
	}
	close(got);
	for (int ms = 0; quarantined(); ms += 5) {
		ck_assert_int_lt(ms, NET_S * 1000);
		usleep(5000);
	}
}
END_TEST

/* One way, so nobody hears of it: the answer to a MAP says that the packet before it has been dealt with. */
static void release_and_wait(int fd, const uint64_t *leases, uint32_t count)
{
	struct fdsock_release r = { .head = HEAD(FDSOCK_RELEASE), .count = count };
	const size_t size = offsetof(struct fdsock_release, leases) + count * sizeof leases[0];
	struct fdsock_map m = { HEAD(FDSOCK_MAP), 9999, 0 };
	struct fdsock_extent e;

	memcpy(r.leases, leases, count * sizeof leases[0]);
	ck_assert_int_eq(send(fd, &r, size, 0), (ssize_t)size);
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear(fd, &e, sizeof e, NULL), sizeof e);
}

START_TEST(a_release_is_of_ones_own_leases)
{
	struct fdsock_hello h = { HEAD(FDSOCK_HELLO), { 0 } };
	const struct kv_layout layout = shell_layout(1);
	struct cache_session_view other;
	struct fdsock_welcome w;
	const char *why = "";
	uint32_t extent;
	int fd = greet(&w), stranger = dial();
	uint64_t lease;

	shell_store(&shell, "key1");
	lease = lease_one(w.attachment, &extent);
	ck_assert_int_eq(cache_session_open(shell.daemon.cache, &(struct cache_open_call){ .tenant = "",
			.layouts = &layout, .layout_count = 1, .engine = "other", .now_us = daemon_now_us() },
					    &other, &why), STATUS_OK);
	memcpy(h.token, other.token, sizeof h.token);
	ck_assert_int_eq(send(stranger, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(hear(stranger, &w, sizeof w, NULL), sizeof w);
	ck_assert_uint_eq(w.session, other.id);
	release_and_wait(stranger, (const uint64_t[]){ lease, shell.session.id, 0, 1, lease }, 5);
	ck_assert_uint_eq(leases(), 1);
	release_and_wait(fd, (const uint64_t[]){ 0, lease + 1, lease }, 3);
	ck_assert_uint_eq(leases(), 0);
	close(stranger);
	close(fd);
}
END_TEST

START_TEST(without_a_gpu_there_is_no_progress_page)
{
	struct fdsock_map m = { HEAD(FDSOCK_MAP), FDSOCK_EXTENT_PROGRESS_PAGE, 1 };
	struct fdsock_welcome w;
	struct fdsock_extent e;
	int fd = greet(&w), got;

	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear(fd, &e, sizeof e, &got), sizeof e);
	ck_assert_uint_eq(e.status, STATUS_NOT_FOUND);
	ck_assert_uint_eq(e.gpu, FDSOCK_NO_GPU);
	ck_assert_int_eq(got, -1);
	close(fd);
}
END_TEST

START_TEST(unknown_token_is_refused)
{
	struct fdsock_hello h = { HEAD(FDSOCK_HELLO), "not the token!!" };
	struct fdsock_welcome w;
	int fd = dial();

	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(hear(fd, &w, sizeof w, NULL), sizeof w);
	ck_assert_uint_ne(w.status, STATUS_OK);
	ck_assert_uint_eq(w.attachment, 0);
	ck_assert_int_eq(hear(fd, &w, sizeof w, NULL), 0);
	close(fd);
}
END_TEST

/* Packets that end the connection, before and after a hello. */
static const struct {
	struct fdsock_head head;
	size_t bytes;
	uint32_t word; /* what follows the head: a RELEASE's count */
} hostile[] = {
	{ { 0 }, 0, 0 },
	{ HEAD(FDSOCK_MAP), 1, 0 },
	{ HEAD(FDSOCK_MAP), sizeof(struct fdsock_head), 0 },
	{ HEAD(FDSOCK_MAP), sizeof(struct fdsock_map) - 1, 0 },
	{ HEAD(FDSOCK_MAP), sizeof(struct fdsock_map) + 1, 0 },
	{ HEAD(FDSOCK_WELCOME), sizeof(struct fdsock_welcome), 0 },
	{ HEAD(FDSOCK_EXTENT), sizeof(struct fdsock_extent), 0 },
	{ HEAD(7), sizeof(struct fdsock_unmapped), 0 }, /* which was a daemon's */
	{ HEAD(FDSOCK_PREMAP), sizeof(struct fdsock_premap) - 1, 0 },
	{ HEAD(FDSOCK_PREMAP), sizeof(struct fdsock_premap) + 1, 0 },
	{ HEAD(FDSOCK_LISTEN), sizeof(struct fdsock_head) + 1, 0 },
	{ HEAD(FDSOCK_RETIRE), sizeof(struct fdsock_retire), 0 },
	{ HEAD(FDSOCK_OFFER), offsetof(struct fdsock_offer, extents), 0 },
	{ HEAD(0), 16, 0 },
	{ HEAD(77), 16, 0 },
	{ HEAD(FDSOCK_UNMAPPED), 8, 0 },
	{ HEAD(FDSOCK_HELLO), 24, 0 }, /* after a hello: a second one */
	{ { FDSOCK_MAGIC + 1, FDSOCK_VERSION, FDSOCK_MAP }, 16, 0 },
	{ { FDSOCK_MAGIC, FDSOCK_VERSION + 1, FDSOCK_MAP }, 16, 0 },
	{ { FDSOCK_MAGIC, FDSOCK_VERSION_BEFORE - 1, FDSOCK_MAP }, 16, 0 },
	{ HEAD_BEFORE(FDSOCK_MAP), 16, 0 }, /* another version than its hello's */
	{ HEAD_BEFORE(FDSOCK_PREMAP), 16, 0 },
	{ HEAD_BEFORE(FDSOCK_CALLER), 24, 0 },
	{ HEAD(FDSOCK_RELEASE), 16, 1 },
	{ HEAD(FDSOCK_RELEASE), 24, 0 },
	{ HEAD(FDSOCK_RELEASE), 16, 0xffffffff },
	{ HEAD(FDSOCK_RELEASE), 16 + 65 * 8, 65 },
	{ HEAD(FDSOCK_RELEASE), 16 + 64 * 8, 65 },
	{ HEAD(FDSOCK_RELEASE), 4000, 500 },
};

START_TEST(hostile_packets_hang_up)
{
	char packet[4096] = { 0 };
	struct fdsock_welcome w;
	int keeper = greet(&w), fd = greet(&w); /* a session ends with its last process */

	memcpy(packet, &hostile[_i].head, sizeof hostile[_i].head);
	memcpy(packet + sizeof hostile[_i].head, &hostile[_i].word, sizeof hostile[_i].word);
	ck_assert_int_eq(send(fd, packet, hostile[_i].bytes, MSG_NOSIGNAL), (ssize_t)hostile[_i].bytes);
	ck_assert_int_eq(hear(fd, packet, sizeof packet, NULL), 0);
	close(fd);
	/* And the local socket is still open. */
	close(greet(&w));
	close(keeper);
}
END_TEST

START_TEST(hello_comes_first_and_soon)
{
	struct fdsock_map m = { HEAD(FDSOCK_MAP), 0, 0 };
	char byte;
	int fd = dial(), silent = dial();

	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear(fd, &byte, 1, NULL), 0);
	ck_assert_int_eq(hear(silent, &byte, 1, NULL), 0); /* closed after 2 s */
	close(fd);
	close(silent);
}
END_TEST

/* Who has said HELLO is not sent away because the local socket was kept from hearing it. */
START_TEST(a_late_fd_socket_has_heard_the_hello)
{
	struct fdsock_hello h = { HEAD(FDSOCK_HELLO), { 0 } };
	struct fdsock_welcome w;
	uint64_t began;
	int fd;

	memcpy(h.token, shell.session.token, sizeof h.token);
	for (;;) {
		began = daemon_now_us();
		fd = dial();
		while (stat_of("terrace_fd_socket_connections") != 1 && daemon_now_us() - began < 1000000)
			usleep(5000);
		cache_lock(shell.daemon.cache);
		usleep(200000); /* its tick waits for the lock */
		if (daemon_now_us() - began < 1300000)
			break; /* else it may have been for too long without a HELLO */
		cache_unlock(shell.daemon.cache);
		close(fd);
		until("terrace_fd_socket_connections", 0);
	}
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	usleep(2000000);
	cache_unlock(shell.daemon.cache);
	ck_assert_int_eq(hear(fd, &w, sizeof w, NULL), sizeof w);
	ck_assert_uint_eq(w.status, STATUS_OK);
	close(fd);
}
END_TEST

static int logged; /* a file for what is logged from now on */

static void log_here(void)
{
	logged = memfd_create("log", 0);
	ck_assert_int_ge(logged, 0);
	ck_assert_int_ge(dup2(logged, STDERR_FILENO), 0);
}

static int lines_of(const char *event)
{
	char text[65536];
	ssize_t n = pread(logged, text, sizeof text - 1, 0);
	int lines = 0;

	text[n > 0 ? n : 0] = 0;
	for (const char *at = text; (at = strstr(at, event)); at++)
		lines++;
	return lines;
}

START_TEST(connections_are_bounded)
{
	enum { SILENT = 40 }; /* more than the local socket keeps to tell them */
	int fd[FD_SOCKET_SHARE], silent[SILENT];
	struct fdsock_welcome w;
	char byte;

	log_here();
	for (int i = 0; i < FD_SOCKET_SHARE; i++)
		fd[i] = greet(&w);
	for (int i = 0; i < 4; i++) { /* a process that comes again and again is told each time, and logged once */
		int over = greet_any(&w);

		ck_assert_uint_eq(w.status, STATUS_EXHAUSTED);
		ck_assert_uint_eq(w.attachment, 0);
		ck_assert_int_eq(hear(over, &byte, 1, NULL), 0);
		close(over);
	}
	until("terrace_fd_socket_refused_total", 4);
	ck_assert_int_eq(lines_of("event=fd_socket_full connections=4 pid="), 1);
	ck_assert_int_eq(lines_of("reason=\"too many connections to fd_socket: process "), 1);
	ck_assert_int_eq(lines_of(" holds 4 of 6, and the 2 free ones are kept for others: close some, or raise connections_max\""), 1);
	ck_assert_int_eq(lines_of("event=fd_socket_full"), 1);
	for (int i = 0; i < SILENT; i++)
		silent[i] = dial();
	for (int i = 0; i < SILENT; i++) { /* of those that say nothing some are closed at once, the others in time */
		ck_assert_int_eq(hear(silent[i], &byte, 1, NULL), 0);
		close(silent[i]);
	}
	close(fd[3]);
	until("terrace_fd_socket_connections", 3);
	fd[3] = greet(&w);
	for (int i = 0; i < FD_SOCKET_SHARE; i++)
		close(fd[i]);
	until("terrace_fd_socket_connections", 0);
	ck_assert_uint_eq(quota_used(cache_quota(shell.daemon.cache), QUOTA_ATTACHMENTS), 0);
}
END_TEST

START_TEST(deaf_client_is_disconnected)
{
	struct fdsock_map m = { HEAD(FDSOCK_MAP), 9999, 0 };
	struct fdsock_welcome w;
	int fd = greet(&w);

	for (int i = 0; i < 20000 && send(fd, &m, sizeof m, MSG_NOSIGNAL) > 0; i++)
		;
	until("terrace_fd_socket_connections", 0);
	close(fd);
}
END_TEST

/* A killed process detaches though its forked child keeps the socket open. */
START_TEST(death_is_seen_write_through_a_child)
{
	struct fdsock_welcome w;
	int ready[2], hold[2];
	char byte = 0;

	ck_assert_int_eq(pipe(ready), 0);
	ck_assert_int_eq(pipe(hold), 0);
	pid_t engine = fork();

	if (!engine) {
		close(hold[1]);
		greet(&w);
		if (!fork()) { /* the child: lives until the test lets go of `hold` */
			if (write(ready[1], &byte, 1) == 1 && read(hold[0], &byte, 1) == 0)
				_exit(0);
			_exit(1);
		}
		pause();
	}
	close(hold[0]);
	ck_assert_int_eq(read(ready[0], &byte, 1), 1);
	until("terrace_fd_socket_connections", 1);
	kill(engine, SIGKILL);
	until("terrace_fd_socket_connections", 0);
	waitpid(engine, NULL, 0);
	close(hold[1]);
}
END_TEST

START_TEST(random_packets_are_classified)
{
	uint8_t packet[sizeof(struct fdsock_release) + 8];

	srand48(7);
	for (int i = 0; i < 200000; i++) {
		const uint16_t version = lrand48() % 2 ? FDSOCK_VERSION : FDSOCK_VERSION_BEFORE;
		struct fdsock_head h = { FDSOCK_MAGIC, version, (uint16_t)(lrand48() % 10) };
		size_t n = (size_t)(lrand48() % (long)sizeof packet);

		for (size_t k = 0; k < sizeof packet; k += 4)
			memcpy(packet + k, (const int32_t[]){ (int32_t)mrand48() }, 4);
		if (lrand48() % 4)
			memcpy(packet, &h, sizeof h);
		if (lrand48() % 2)
			memcpy(packet + 8, (const uint32_t[]){ (uint32_t)(lrand48() % 70) }, 4);
		int type = fd_socket_packet_type(packet, n);

		ck_assert(!type || type == FDSOCK_HELLO || type == FDSOCK_MAP || type == FDSOCK_UNMAPPED ||
			  type == FDSOCK_RELEASE || type == FDSOCK_CALLER);
		ck_assert(!type || n >= 16);
	}
}
END_TEST

/* Of this process, the local socket's thread included, that lead to the same file. */
static uint32_t descriptors_of(const struct stat *file)
{
	struct stat st;
	uint32_t n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += !fstat(fd, &st) && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
	return n;
}

/* Those that a peer sends along are dropped, and the packet counts as it is. */
START_TEST(sent_descriptors_are_not_kept)
{
	struct fdsock_hello h = { HEAD(FDSOCK_HELLO), { 0 } };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(16 * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { &h, sizeof h };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			    .msg_controllen = sizeof control };
	struct fdsock_welcome w;
	int fd = dial();
	struct stat sent;

	memcpy(h.token, shell.session.token, sizeof h.token);
	control.head = (struct cmsghdr){ CMSG_LEN(16 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
	for (int i = 0; i < 16; i++)
		memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &fd, sizeof fd);
	ck_assert_int_eq(fstat(fd, &sent), 0);
	ck_assert_int_eq(sendmsg(fd, &m, 0), sizeof h);
	ck_assert_int_eq(hear(fd, &w, sizeof w, NULL), sizeof w);
	ck_assert_uint_eq(w.status, STATUS_OK);
	ck_assert_uint_eq(descriptors_of(&sent), 1);
	close(fd);
}
END_TEST

static _Atomic bool too_many;

/* The daemon's too. A process that may all is spared this. */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	if (!too_many || !m->msg_controllen)
		return syscall(SYS_sendmsg, fd, m, flags);
	errno = ETOOMANYREFS;
	return -1;
}

/* Who does not read what was sent to him keeps others from getting descriptors; not more than that. */
START_TEST(others_leave_their_descriptors_unread)
{
	struct fdsock_map m = { HEAD(FDSOCK_MAP), 0, 0 };
	struct fdsock_welcome w;
	struct fdsock_extent e;
	int fd = greet(&w), got;

	shell_store(&shell, "key1");
	lease_one(w.attachment, &m.extent);
	for (int i = 0; i < 2; i++) {
		too_many = i == 0;
		ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
		ck_assert_int_eq(hear(fd, &e, sizeof e, &got), sizeof e);
		ck_assert_uint_eq(e.status, too_many ? STATUS_EXHAUSTED : STATUS_OK);
		ck_assert_uint_eq(e.extent, m.extent);
		ck_assert((got < 0) == too_many);
	}
	close(got);
	close(fd);
	until("terrace_fd_socket_connections", 0);
}
END_TEST

/* Without descriptors the local socket waits, rather than asks again and again, and then goes on. */
START_TEST(a_lack_of_descriptors_is_waited_out)
{
	struct rlimit limit, low;
	struct fdsock_welcome w;
	struct asleep threads;
	int fd;

	log_here();
	asleep_begin(&threads);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	low = limit;
	low.rlim_cur = (rlim_t)fd;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	struct sockaddr_un to = { .sun_family = AF_UNIX };

	strcpy(to.sun_path, shell.config.fd_socket);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	for (int ms = 0; !lines_of("event=fd_socket_accept") && ms < NET_S * 1000; ms++)
		usleep(1000);
	ck_assert(asleep_within(&threads, NET_S * 1000));
	asleep_end(&threads);
	ck_assert_int_eq(lines_of("event=fd_socket_accept reason=\"Too many open files\" held_back=0\n"), 1);
	ck_assert_int_eq(lines_of("event=fd_socket_accept"), 1);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	close(fd);
	close(greet(&w));
}
END_TEST

/* One for the socket, none for the process. */
START_TEST(who_has_no_descriptor_for_his_process_is_refused)
{
	enum { MORE = 16, MOST = 4 * MORE };
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct rlimit limit, low;
	struct fdsock_welcome w;
	int fd, taken[MOST], n = 0;
	char byte;

	log_here();
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	low = limit;
	low.rlim_cur = (rlim_t)fd + MORE;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	while (n < MOST && (taken[n] = dup(fd)) >= 0) /* also what another thread had and has no more, below */
		n++;
	ck_assert(n > 0 && n < MOST);
	close(taken[--n]);
	strcpy(to.sun_path, shell.config.fd_socket);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	ck_assert_int_eq(hear(fd, &byte, 1, NULL), 0);
	until("terrace_fd_socket_refused_total", 1);
	ck_assert_int_eq(lines_of("event=fd_socket_accept reason=\"Too many open files\" held_back=0\n"), 1);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while (n > 0)
		close(taken[--n]);
	close(fd);
	close(greet(&w));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("door");
	TCase *t = tcase_create("door");
	SRunner *r;

	tcase_add_checked_fixture(t, setup, fd_socket_rig_close);
	tcase_set_timeout(t, 100);
	tcase_add_test(t, conversation);
	tcase_add_test(t, a_library_of_the_release_before_has_host_memory);
	tcase_add_test(t, a_release_is_of_ones_own_leases);
	tcase_add_test(t, without_a_gpu_there_is_no_progress_page);
	tcase_add_test(t, unknown_token_is_refused);
	tcase_add_loop_test(t, hostile_packets_hang_up, 0, sizeof hostile / sizeof hostile[0]);
	tcase_add_test(t, hello_comes_first_and_soon);
	tcase_add_test(t, a_late_fd_socket_has_heard_the_hello);
	tcase_add_test(t, connections_are_bounded);
	tcase_add_test(t, deaf_client_is_disconnected);
	tcase_add_test(t, death_is_seen_write_through_a_child);
	tcase_add_test(t, random_packets_are_classified);
	tcase_add_test(t, sent_descriptors_are_not_kept);
	tcase_add_test(t, others_leave_their_descriptors_unread);
	tcase_add_test(t, a_lack_of_descriptors_is_waited_out);
	tcase_add_test(t, who_has_no_descriptor_for_his_process_is_refused);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
