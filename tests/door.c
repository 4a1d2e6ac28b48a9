/* The fd door against a real cache: the conversation of proto/fdsock.h, hostile packets, bounds, and the
 * end of processes. */
#include "daemon/door.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "daemon/cache_private.h"
#include "daemon/workers.h"
#include "proto/fdsock.h"
#include "tests/shell.h"
#include "tests/sim_device.h"

enum { NET_S = 30 }; /* ends a wait for what does not come */

static struct shell s;
static struct door *door;

/* A driver that may hold up whoever has memory registered. */
static struct device_ops driver;
static atomic_bool driver_shut;
static atomic_int driver_holds;

static enum status register_slowly(struct device *d, void *memory, uint64_t bytes, bool write, uint64_t *address, const char **why)
{
	atomic_fetch_add(&driver_holds, 1);
	for (int ms = 0; driver_shut && ms < NET_S * 1000; ms++)
		usleep(1000);
	atomic_fetch_sub(&driver_holds, 1);
	return terrace_device_ops()->host_register(d, memory, bytes, write, address, why);
}

static void setup_over(const struct device_ops *ops)
{
	char why[256] = "";

	shell_open_all(&s, NULL, ops);
	ck_assert_int_eq(workers_create(1, 4, &s.daemon.workers), STATUS_OK);
	ck_assert_msg(door_create(&s.daemon, s.config.fd_socket, 0600, 4, &door, why, sizeof why) == STATUS_OK, "%s", why);
}

static void setup(void)
{
	setup_over(NULL);
}

static void setup_gpu(void)
{
	setenv("SIM_GPU_DEVICES", "1", 1);
	driver = *terrace_device_ops();
	driver.host_register = register_slowly;
	driver_shut = false;
	setup_over(&driver);
}

static void teardown(void)
{
	door_destroy(door);
	ck_assert_int_eq(driver_holds, 0);
	workers_destroy(s.daemon.workers);
	ck_assert_int_ne(access(s.config.fd_socket, F_OK), 0);
	shell_close(&s);
}

static int dial(void)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	strcpy(to.sun_path, s.config.fd_socket);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	return fd;
}

#define HEAD(kind) { FDSOCK_MAGIC, FDSOCK_VERSION, kind }

/* Receives one packet: its bytes, 0 at the end of the connection. got: descriptors that came
 * along, or -1: two of them. */
static ssize_t hear_two(int fd, void *packet, size_t size, int *got)
{
	char room[CMSG_SPACE(2 * sizeof(int))];
	struct iovec iov = { packet, size };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
	struct pollfd p = { fd, POLLIN, 0 };

	ck_assert_int_eq(poll(&p, 1, NET_S * 1000), 1);
	ssize_t n = recvmsg(fd, &m, 0);
	struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m);

	got[0] = got[1] = -1;
	if (c)
		memcpy(got, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
	return n < 0 && errno == ECONNRESET ? 0 : n;
}

static ssize_t hear(int fd, void *packet, size_t size, int *got)
{
	int two[2];
	ssize_t n = hear_two(fd, packet, size, two);

	ck_assert_int_eq(two[1], -1);
	if (got)
		*got = two[0];
	return n;
}

static int greet(struct fdsock_welcome *w)
{
	struct fdsock_hello h = { HEAD(FDSOCK_HELLO), { 0 } };
	int fd = dial();

	memcpy(h.token, s.session.token, sizeof h.token);
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(hear(fd, w, sizeof *w, NULL), sizeof *w);
	ck_assert_uint_eq(w->status, STATUS_OK);
	return fd;
}

static double stat_of(const char *name);

static void until(const char *name, double value)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	while (stat_of(name) != value && daemon_now_us() < end)
		usleep(5000);
	ck_assert_msg(stat_of(name) == value, "%s is %g, not %g", name, stat_of(name), value);
}

struct wanted {
	const char *name;
	double value;
};

static void find_stat(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	struct wanted *w = arg;

	(void)counter;
	ck_assert_ptr_nonnull(labels);
	ck_assert_ptr_nonnull(help);
	if (!strcmp(name, w->name))
		w->value = value;
}

static double stat_of(const char *name)
{
	struct wanted w = { name, -1 };

	door_stats(door, find_stat, &w);
	return w.value;
}

static uint64_t leases(void)
{
	struct cache_load load;

	cache_load(s.daemon.cache, &load);
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

	ck_assert_msg(cache_lease(s.daemon.cache, s.session.id, &k, true, attachment, daemon_now_us(), places, 2, &leased, NULL,
				  &why) == STATUS_OK,
		      "%s", why);
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

	shell_store(&s, "key1");
	ck_assert_uint_eq(w.session, s.session.id);
	ck_assert_uint_eq(w.epoch, cache_epoch(s.daemon.cache));
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
	until("terrace_door_packets_total", 5);
	close(fd);
	until("terrace_door_connections", 0);
}
END_TEST

/* The second layout's extent of the GPU that the reservation is on. */
static uint32_t reserve_one(const struct cache_on *on)
{
	struct cache_keys k = { (const uint8_t *)"key1", 1, 4 };
	struct cache_place places[2];
	uint64_t reservation;
	enum status status;
	const char *why = "";

	ck_assert_int_eq(cache_reserve_on(s.daemon.cache, s.session.id, &k, NULL, false, on, true, daemon_now_us(), &status,
					  &reservation, places, 2, &why), STATUS_OK);
	ck_assert_int_eq(status, STATUS_OK);
	return places[1].extent;
}

/* A GPU's memory comes with a hold, and there is a board; without GPUs there is none. */
START_TEST(memory_of_a_gpu)
{
	struct fdsock_welcome w;
	struct fdsock_extent e;
	int fd = greet(&w), got[2];
	struct stat st;

	struct fdsock_map m = { HEAD(FDSOCK_MAP), FDSOCK_EXTENT_BOARD, 1 };

	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear_two(fd, &e, sizeof e, got), sizeof e);
	ck_assert_uint_eq(e.status, STATUS_OK);
	ck_assert_uint_eq(e.gpu, FDSOCK_NO_GPU);
	ck_assert_uint_eq(e.bytes, FDSOCK_BOARD_WORDS * sizeof(uint32_t));
	ck_assert_int_ge(got[0], 0);
	ck_assert_int_eq(got[1], -1);
	uint32_t *board = mmap(NULL, e.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, got[0], 0);

	ck_assert_ptr_ne(board, MAP_FAILED);
	ck_assert_uint_eq(board[0], 0);
	close(got[0]);
	m.extent = reserve_one(&(struct cache_on){ .attachment = w.attachment, .gpu = 0 });
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear_two(fd, &e, sizeof e, got), sizeof e);
	ck_assert_uint_eq(e.status, STATUS_OK);
	ck_assert_uint_eq(e.gpu, 0);
	ck_assert_uint_eq(e.bytes, SIM_GRANULARITY);
	ck_assert_uint_eq(e.layout_id, s.session.layout_id[1]);
	ck_assert_uint_le(e.at + e.bytes, e.range);
	ck_assert_int_ge(got[0], 0);
	ck_assert_int_ge(got[1], 0);
	ck_assert_int_eq(fstat(got[0], &st), 0);
	ck_assert_int_eq(st.st_size, 4096);
	ck_assert_int_eq(fstat(got[1], &st), 0);
	ck_assert_int_eq(st.st_size, SIM_GRANULARITY);
	close(got[0]);
	close(got[1]);
	munmap(board, 4096);
	close(fd);
	until("terrace_door_connections", 0);
}
END_TEST

static bool is_watched(uint64_t number)
{
	const struct attachment *a;

	cache_lock(s.daemon.cache);
	a = attachment_find(s.daemon.cache, number);
	cache_unlock(s.daemon.cache);
	return a && a->pidfd >= 0;
}

/* When there was no descriptor to watch a process with, it gets no memory of a GPU, and the next MAP tries again. */
START_TEST(who_borrows_of_a_gpu_is_watched)
{
	struct fdsock_map m = { HEAD(FDSOCK_MAP), 0, 1 };
	struct fdsock_welcome w;
	struct fdsock_extent e;
	struct rlimit limit, low;
	int fd = greet(&w), got[2];

	m.extent = reserve_one(&(struct cache_on){ .attachment = w.attachment, .gpu = 0 });
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = (struct rlimit){ 3, limit.rlim_max };
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear_two(fd, &e, sizeof e, got), sizeof e);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_eq(e.status, STATUS_EXHAUSTED);
	ck_assert(!is_watched(w.attachment));
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear_two(fd, &e, sizeof e, got), sizeof e);
	ck_assert_uint_eq(e.status, STATUS_OK);
	ck_assert(is_watched(w.attachment));
	close(got[0]);
	close(got[1]);
	close(fd);
	until("terrace_door_connections", 0);
}
END_TEST

static uint32_t lent_to(uint64_t number)
{
	const struct attachment *a;
	uint32_t n;

	cache_lock(s.daemon.cache);
	a = attachment_find(s.daemon.cache, number);
	ck_assert_ptr_nonnull(a);
	n = a->lent_count;
	cache_unlock(s.daemon.cache);
	return n;
}

static void lent_becomes(uint64_t number, uint32_t n)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	while (lent_to(number) != n && daemon_now_us() < end)
		usleep(1000);
	ck_assert_uint_eq(lent_to(number), n);
}

static uint64_t cache_now_us(void)
{
	uint64_t now_us;

	cache_lock(s.daemon.cache);
	now_us = s.daemon.cache->now_us;
	cache_unlock(s.daemon.cache);
	return now_us;
}

static void a_tick(void)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull, last_us = cache_now_us();

	while (cache_now_us() == last_us && daemon_now_us() < end)
		usleep(1000);
	ck_assert_uint_ne(cache_now_us(), last_us);
}

/* Who closes reads no more, and may take his time with a GPU's memory: neither what is wanted back nor an answer that cannot reach him keeps what
 * he says of it from being heard. What an answer would have lent he does not have. */
START_TEST(who_reads_no_more_is_still_heard)
{
	struct fdsock_unmapped u = { .head = HEAD(FDSOCK_UNMAPPED), .write = 1 };
	struct fdsock_map m = { HEAD(FDSOCK_MAP), 0, 1 };
	struct drain wanted_back = { .extent = 0 };
	struct fdsock_welcome w;
	struct fdsock_extent e;
	int fd = greet(&w), got[2];

	u.extent = wanted_back.extent = m.extent = reserve_one(&(struct cache_on){ .attachment = w.attachment, .gpu = 0 });
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear_two(fd, &e, sizeof e, got), sizeof e);
	ck_assert_uint_eq(e.status, STATUS_OK);
	close(got[0]);
	close(got[1]);
	ck_assert_uint_eq(lent_to(w.attachment), 1);
	ck_assert_int_eq(shutdown(fd, SHUT_RD), 0);
	cache_lock(s.daemon.cache);
	room_drain_tell(s.daemon.cache, &wanted_back);
	cache_unlock(s.daemon.cache);
	for (int i = 0; i < 3; i++)
		a_tick();
	ck_assert_int_eq(send(fd, &u, sizeof u, MSG_NOSIGNAL), sizeof u);
	lent_becomes(w.attachment, 0);
	ck_assert_int_eq(send(fd, &m, sizeof m, MSG_NOSIGNAL), sizeof m);
	until("terrace_door_packets_total", 4);
	lent_becomes(w.attachment, 0);
	ck_assert_double_eq(stat_of("terrace_door_connections"), 1);
	close(fd);
	until("terrace_door_connections", 0);
}
END_TEST

/* Asks for a board, which the driver holds up. */
static void board_is_held_up(int fd)
{
	const struct fdsock_map m = { HEAD(FDSOCK_MAP), FDSOCK_EXTENT_BOARD, 1 };
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	driver_shut = true;
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	while (driver_holds != 1 && daemon_now_us() < end)
		usleep(1000);
	ck_assert_int_eq(driver_holds, 1);
}

/* A GPU's driver that takes long over a board keeps the one who asked for it waiting, and nobody else: 0, who gets it in the end; 1, who has hung
 * up meanwhile; 2, whose session has been closed. */
START_TEST(a_slow_driver_keeps_no_others_waiting)
{
	struct fdsock_welcome w, v;
	struct fdsock_extent e;
	const char *why = "";
	int fd = greet(&w), other, got = -1;

	board_is_held_up(fd);
	other = greet(&v);
	a_tick();
	if (_i == 1) {
		close(fd);
		until("terrace_door_connections", 1);
	} else if (_i == 2) {
		ck_assert_int_eq(cache_session_close(s.daemon.cache, s.session.id, daemon_now_us(), &why), STATUS_OK);
		a_tick();
		ck_assert_uint_eq(lent_to(w.attachment), 0); /* it lasts until its board is made */
	}
	driver_shut = false;
	if (_i != 1) {
		ck_assert_int_eq(hear(fd, &e, sizeof e, &got), sizeof e);
		ck_assert_uint_eq(e.status, _i ? STATUS_DENIED : STATUS_OK);
		ck_assert_int_eq(got >= 0, !_i);
		close(fd);
	}
	if (got >= 0)
		close(got);
	close(other);
	until("terrace_door_connections", 0);
}
END_TEST

/* The socket is gone all the same, and so are the engines. */
START_TEST(a_stop_while_a_board_is_lent)
{
	struct fdsock_welcome w;
	int fd = greet(&w);

	board_is_held_up(fd);
	ck_assert(!door_stop(door, 50 * 1000));
	ck_assert(!workers_stop(s.daemon.workers, 0));
	ck_assert_int_ne(access(s.config.fd_socket, F_OK), 0);
	until("terrace_door_connections", 0);
	driver_shut = false;
	ck_assert(door_stop(door, NET_S * 1000000ull));
	ck_assert(workers_stop(s.daemon.workers, NET_S * 1000000ull));
	close(fd);
}
END_TEST

START_TEST(without_a_gpu_there_is_no_board)
{
	struct fdsock_map m = { HEAD(FDSOCK_MAP), FDSOCK_EXTENT_BOARD, 1 };
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
	{ HEAD(FDSOCK_RETIRE), sizeof(struct fdsock_unmapped), 0 },
	{ HEAD(0), 16, 0 },
	{ HEAD(77), 16, 0 },
	{ HEAD(FDSOCK_UNMAPPED), 8, 0 },
	{ HEAD(FDSOCK_HELLO), 24, 0 }, /* after a hello: a second one */
	{ { FDSOCK_MAGIC + 1, FDSOCK_VERSION, FDSOCK_MAP }, 16, 0 },
	{ { FDSOCK_MAGIC, FDSOCK_VERSION + 1, FDSOCK_MAP }, 16, 0 },
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
	/* And the door is still open. */
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

/* Who has said HELLO is not sent away because the door was kept from hearing it. */
START_TEST(a_late_door_has_heard_the_hello)
{
	struct fdsock_hello h = { HEAD(FDSOCK_HELLO), { 0 } };
	struct fdsock_welcome w;
	uint64_t began;
	int fd;

	memcpy(h.token, s.session.token, sizeof h.token);
	for (;;) {
		began = daemon_now_us();
		fd = dial();
		while (stat_of("terrace_door_connections") != 1 && daemon_now_us() - began < 1000000)
			usleep(5000);
		cache_lock(s.daemon.cache);
		usleep(200000); /* its tick waits for the lock */
		if (daemon_now_us() - began < 1300000)
			break; /* else it may have been for too long without a HELLO */
		cache_unlock(s.daemon.cache);
		close(fd);
		until("terrace_door_connections", 0);
	}
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	usleep(2000000);
	cache_unlock(s.daemon.cache);
	ck_assert_int_eq(hear(fd, &w, sizeof w, NULL), sizeof w);
	ck_assert_uint_eq(w.status, STATUS_OK);
	close(fd);
}
END_TEST

START_TEST(connections_are_bounded)
{
	struct fdsock_welcome w;
	int fd[4];
	char byte;

	for (int i = 0; i < 4; i++)
		fd[i] = greet(&w);
	int over = dial();

	ck_assert_int_eq(hear(over, &byte, 1, NULL), 0);
	close(over);
	until("terrace_door_refused_total", 1);
	close(fd[3]);
	until("terrace_door_connections", 3);
	fd[3] = greet(&w);
	for (int i = 0; i < 4; i++)
		close(fd[i]);
	until("terrace_door_connections", 0);
}
END_TEST

START_TEST(deaf_client_is_disconnected)
{
	struct fdsock_map m = { HEAD(FDSOCK_MAP), 9999, 0 };
	struct fdsock_welcome w;
	int fd = greet(&w);

	for (int i = 0; i < 20000 && send(fd, &m, sizeof m, MSG_NOSIGNAL) > 0; i++)
		;
	until("terrace_door_connections", 0);
	close(fd);
}
END_TEST

/* A killed process detaches though its forked child keeps the socket open. */
START_TEST(death_is_seen_through_a_child)
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
	until("terrace_door_connections", 1);
	kill(engine, SIGKILL);
	until("terrace_door_connections", 0);
	waitpid(engine, NULL, 0);
	close(hold[1]);
}
END_TEST

START_TEST(random_packets_are_classified)
{
	uint8_t packet[sizeof(struct fdsock_release) + 8];

	srand48(7);
	for (int i = 0; i < 200000; i++) {
		struct fdsock_head h = { FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)(lrand48() % 10) };
		size_t n = (size_t)(lrand48() % (long)sizeof packet);

		for (size_t k = 0; k < sizeof packet; k += 4)
			memcpy(packet + k, (const int32_t[]){ (int32_t)mrand48() }, 4);
		if (lrand48() % 4)
			memcpy(packet, &h, sizeof h);
		if (lrand48() % 2)
			memcpy(packet + 8, (const uint32_t[]){ (uint32_t)(lrand48() % 70) }, 4);
		int type = door_packet_type(packet, n);

		ck_assert(!type || type == FDSOCK_HELLO || type == FDSOCK_MAP || type == FDSOCK_UNMAPPED ||
			  type == FDSOCK_RELEASE || type == FDSOCK_CALLER);
		ck_assert(!type || n >= 16);
	}
}
END_TEST

/* Of this process, the door's thread included, that lead to the same file. */
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

	memcpy(h.token, s.session.token, sizeof h.token);
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

static uint64_t cpu_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Without descriptors the door waits, rather than asks again and again, and then goes on. */
START_TEST(a_lack_of_descriptors_is_waited_out)
{
	struct rlimit limit, low;
	struct fdsock_welcome w;
	uint64_t began;
	int fd;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	low = limit;
	low.rlim_cur = (rlim_t)fd;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	struct sockaddr_un to = { .sun_family = AF_UNIX };

	strcpy(to.sun_path, s.config.fd_socket);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	began = cpu_us();
	usleep(600000);
	ck_assert_uint_lt(cpu_us() - began, 300000);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	close(fd);
	close(greet(&w));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("door");
	TCase *t = tcase_create("door");
	SRunner *r;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 100);
	tcase_add_test(t, conversation);
	tcase_add_test(t, without_a_gpu_there_is_no_board);
	tcase_add_test(t, unknown_token_is_refused);
	tcase_add_loop_test(t, hostile_packets_hang_up, 0, sizeof hostile / sizeof hostile[0]);
	tcase_add_test(t, hello_comes_first_and_soon);
	tcase_add_test(t, a_late_door_has_heard_the_hello);
	tcase_add_test(t, connections_are_bounded);
	tcase_add_test(t, deaf_client_is_disconnected);
	tcase_add_test(t, death_is_seen_through_a_child);
	tcase_add_test(t, random_packets_are_classified);
	tcase_add_test(t, sent_descriptors_are_not_kept);
	tcase_add_test(t, a_lack_of_descriptors_is_waited_out);
	suite_add_tcase(suite, t);
	t = tcase_create("gpu");
	tcase_add_checked_fixture(t, setup_gpu, teardown);
	tcase_set_timeout(t, 100);
	tcase_add_test(t, memory_of_a_gpu);
	tcase_add_test(t, who_borrows_of_a_gpu_is_watched);
	tcase_add_test(t, who_reads_no_more_is_still_heard);
	tcase_add_loop_test(t, a_slow_driver_keeps_no_others_waiting, 0, 3);
	tcase_add_test(t, a_stop_while_a_board_is_lent);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
