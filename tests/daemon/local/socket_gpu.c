/* The fd local socket of a cache with a GPU: memory of it, progress pages that its driver holds up, and what is offered
 * of both tiers. */
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/call/reserve.h"
#include "daemon/local/socket.h"
#include "daemon/memory/evict.h"
#include "daemon/process/daemon.h"
#include "daemon/memory/grow.h"
#include "daemon/process/part.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/offer.h"
#include "daemon/threads/pool.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/arena/arena.h"
#include "store/device.h"
#include "store/status.h"
#include "tests/daemon/local/socket_rig.h"
#include "tests/sim/device.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

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

static void setup_gpu(void)
{
	setenv("SIM_GPU_DEVICES", "1", 1);
	driver = *terrace_device_ops();
	driver.host_register = register_slowly;
	driver_shut = false;
	fd_socket_rig_open(&driver);
}

static void teardown(void)
{
	fd_socket_rig_close();
	ck_assert_int_eq(driver_holds, 0);
}

/* The second layout's extent of the GPU that the reservation is on. */
static uint32_t reserve_one(const struct cache_on *on)
{
	struct cache_keys k = { (const uint8_t *)"key1", 1, 4 };
	struct cache_place places[2];
	uint64_t reservation;
	enum status status;
	const char *why = "";

	ck_assert_int_eq(cache_reserve(shell.daemon.cache, &(struct cache_reserve_call){
			.session = shell.session.id, .keys = &k, .on = on, .may_grow = true,
			.now_us = daemon_now_us(), .statuses = &status, .reservations = &reservation,
			.places = places, .places_max = 2 }, &why), STATUS_OK);
	ck_assert_int_eq(status, STATUS_OK);
	return places[1].extent;
}

/* A GPU's memory comes with a hold, and there is a progress page; without GPUs there is none. */
START_TEST(memory_of_a_gpu)
{
	struct fdsock_welcome w;
	struct fdsock_extent e;
	int fd = greet(&w), got[2];
	struct stat st;

	struct fdsock_map m = { HEAD(FDSOCK_MAP), FDSOCK_EXTENT_PROGRESS_PAGE, 1 };

	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear_two(fd, &e, sizeof e, got), sizeof e);
	ck_assert_uint_eq(e.status, STATUS_OK);
	ck_assert_uint_eq(e.gpu, FDSOCK_NO_GPU);
	ck_assert_uint_eq(e.bytes, FDSOCK_PROGRESS_PAGE_WORDS * sizeof(uint32_t));
	ck_assert_int_ge(got[0], 0);
	ck_assert_int_eq(got[1], -1);
	uint32_t *progress_page = mmap(NULL, e.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, got[0], 0);

	ck_assert_ptr_ne(progress_page, MAP_FAILED);
	ck_assert_uint_eq(progress_page[0], 0);
	close(got[0]);
	m.extent = reserve_one(&(struct cache_on){ .attachment = w.attachment, .gpu = 0 });
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear_two(fd, &e, sizeof e, got), sizeof e);
	ck_assert_uint_eq(e.status, STATUS_OK);
	ck_assert_uint_eq(e.gpu, 0);
	ck_assert_uint_eq(e.bytes, SIM_GRANULARITY);
	ck_assert_uint_le(e.at + e.bytes, e.range);
	ck_assert_int_ge(got[0], 0);
	ck_assert_int_ge(got[1], 0);
	ck_assert_int_eq(fstat(got[0], &st), 0);
	ck_assert_int_eq(st.st_size, 4096);
	ck_assert_int_eq(fstat(got[1], &st), 0);
	ck_assert_int_eq(st.st_size, SIM_GRANULARITY);
	close(got[0]);
	close(got[1]);
	munmap(progress_page, 4096);
	close(fd);
	until("terrace_fd_socket_connections", 0);
}
END_TEST

static bool is_watched(uint64_t number)
{
	const struct attachment *a;

	cache_lock(shell.daemon.cache);
	a = attachment_find(shell.daemon.cache, number);
	cache_unlock(shell.daemon.cache);
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
	until("terrace_fd_socket_connections", 0);
}
END_TEST

static uint32_t lent_to(uint64_t number)
{
	const struct attachment *a;
	uint32_t n;

	cache_lock(shell.daemon.cache);
	a = attachment_find(shell.daemon.cache, number);
	ck_assert_ptr_nonnull(a);
	n = a->lent_count;
	cache_unlock(shell.daemon.cache);
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

	cache_lock(shell.daemon.cache);
	now_us = shell.daemon.cache->now_us;
	cache_unlock(shell.daemon.cache);
	return now_us;
}

static void a_tick(void)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull, last_us = cache_now_us();

	while (cache_now_us() == last_us && daemon_now_us() < end)
		usleep(1000);
	ck_assert_uint_ne(cache_now_us(), last_us);
}

/* ---- offers ---- */

static void ask_premap(int fd, uint32_t gpu)
{
	const struct fdsock_premap a = { .head = HEAD(FDSOCK_PREMAP), .gpu = gpu };

	ck_assert_int_eq(send(fd, &a, sizeof a, 0), sizeof a);
}

/* The next OFFER, of that tier: how many it offers. */
static uint32_t hear_offer(int fd, uint32_t gpu, struct fdsock_offer *o)
{
	const ssize_t n = hear(fd, o, sizeof *o, NULL);

	ck_assert_int_ge(n, (ssize_t)offsetof(struct fdsock_offer, extents));
	ck_assert_uint_eq(o->head.type, FDSOCK_OFFER);
	ck_assert_uint_eq(o->gpu, gpu);
	ck_assert_uint_le(o->count, FDSOCK_OFFERS_MAX);
	ck_assert_uint_eq((size_t)n, offsetof(struct fdsock_offer, extents) + o->count * sizeof o->extents[0]);
	return o->count;
}

static bool silent(int fd)
{
	struct pollfd p = { fd, POLLIN, 0 };

	return !poll(&p, 1, 0);
}

/* The extents of all parts of an answer. */
static uint32_t hear_all(int fd, uint32_t gpu)
{
	struct fdsock_offer o;
	uint32_t n = 0;

	do
		n += hear_offer(fd, gpu, &o);
	while (o.more);
	return n;
}

/* Who asks is told what there is, and what comes, once; who does not ask hears nothing. Nothing is lent by it. */
START_TEST(extents_are_offered)
{
	enum { GPU_EXTENTS = 16 }; /* all of 32 MiB, which are made ahead of need */
	const uint32_t wanted = _i ? FDSOCK_NO_GPU : 0;
	struct fdsock_welcome w, other;
	struct fdsock_offer o;
	uint32_t n;
	int fd = greet(&w), quiet = greet(&other), late;

	for (int i = 0; i < 3; i++) /* what is made ahead is there */
		a_tick();

	ck_assert_uint_eq(w.knows, FDSOCK_KNOWS_PREMAP | FDSOCK_KNOWS_CALLER);
	ask_premap(fd, 7); /* which it has not */
	ck_assert_uint_eq(hear_offer(fd, 7, &o), 0);
	ask_premap(fd, DEVICES_MAX);
	ck_assert_uint_eq(hear_offer(fd, DEVICES_MAX, &o), 0);
	ask_premap(fd, wanted);
	n = hear_all(fd, wanted);
	if (_i)
		ck_assert_uint_ge(n, 1); /* the first is there before anybody can ask */
	else
		reserve_one(&(struct cache_on){ .attachment = w.attachment, .gpu = 0 });
	while (n < (_i ? 1u : GPU_EXTENTS))
		n += hear_all(fd, wanted);
	ck_assert_uint_eq(lent_to(w.attachment), 0);
	for (int i = 0; i < 3; i++)
		a_tick();
	ck_assert(silent(fd) && silent(quiet));
	late = greet(&other);
	ask_premap(late, wanted);
	ck_assert_uint_eq(hear_all(late, wanted), n);
	ask_premap(late, wanted); /* and what he was told, he is not told again */
	ck_assert_uint_eq(hear_offer(late, wanted, &o), 0);
	close(late);
	close(quiet);
	close(fd);
	until("terrace_fd_socket_connections", 0);
	ck_assert_double_eq(stat_of("terrace_fd_socket_offers_total"), 2 * n);
}
END_TEST

/* What other sessions of the tenant have filled will hold this one's blocks, too. */
START_TEST(extents_of_other_layouts_are_offered)
{
	struct fdsock_hello h = { HEAD(FDSOCK_HELLO), { 0 } };
	const struct kv_layout layout = shell_layout(5);
	struct cache_session_view other;
	struct fdsock_welcome w;
	struct fdsock_extent e;
	struct fdsock_offer o;
	const char *why = "";
	int fd = dial(), got;

	shell_store(&shell, "key1");
	ck_assert_int_eq(cache_session_open(shell.daemon.cache, &(struct cache_open_call){ .tenant = "",
			.layouts = &layout, .layout_count = 1, .engine = "other", .now_us = daemon_now_us() },
					    &other, &why), STATUS_OK);
	memcpy(h.token, other.token, sizeof h.token);
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(hear(fd, &w, sizeof w, NULL), sizeof w);
	ck_assert_uint_eq(w.session, other.id);
	ask_premap(fd, FDSOCK_NO_GPU);
	ck_assert_uint_ge(hear_offer(fd, FDSOCK_NO_GPU, &o), 1);
	for (uint32_t i = 0; i < 1; i++) {
		struct fdsock_map m = { HEAD(FDSOCK_MAP), o.extents[i], 0 };

		ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
		ck_assert_int_eq(hear(fd, &e, sizeof e, &got), sizeof e);
		ck_assert_uint_eq(e.status, STATUS_OK);
		close(got);
	}
	close(fd);
	until("terrace_fd_socket_connections", 0);
}
END_TEST

/* The local socket's clock; there is no other in this process. every_ms 0: it stands still. */
static void clock_set(long every_ms)
{
	const struct itimerspec every = { { 0, every_ms * 1000000 }, { 0, every_ms * 1000000 } };
	char path[32], name[32];
	int found = 0;

	for (int fd = 0; fd < 256; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		memset(name, 0, sizeof name);
		if (readlink(path, name, sizeof name - 1) > 0 && !strcmp(name, "anon_inode:[timerfd]"))
			found += !timerfd_settime(fd, 0, &every, NULL);
	}
	ck_assert_int_eq(found, 1);
}

/* As soon as it is made, and not by the next tick: there is none. */
START_TEST(new_extents_are_offered_at_once)
{
	struct fdsock_welcome w;
	struct fdsock_offer o;
	int fd = greet(&w);

	ask_premap(fd, 0);
	ck_assert_uint_eq(hear_offer(fd, 0, &o), 0); /* the first use makes the first */
	clock_set(0);
	reserve_one(&(struct cache_on){ .attachment = w.attachment, .gpu = 0 });
	ck_assert_uint_ge(hear_offer(fd, 0, &o), 1);
	ck_assert_ptr_nonnull(arena_extent(shell.daemon.cache->vram->gpu[0]->arena, o.extents[0]));
	clock_set(50);
	close(fd);
	until("terrace_fd_socket_connections", 0);
}
END_TEST

/* What is too much at a time comes in parts; and each attachment is told of all. */
START_TEST(offers_come_in_parts)
{
	enum { EXTENTS = 64 };
	struct cache *c = shell.daemon.cache;
	struct fdsock_welcome w;
	uint32_t extents[EXTENTS], others[EXTENTS], n;
	int fd = greet(&w), late;
	bool more;

	clock_set(0);
	room_preallocate(c);
	room_preallocate(c);
	ck_assert_uint_eq(cache_attach_offers(c, w.attachment, CACHE_HOST, extents, 2, &more), 0);
	ck_assert_int_eq(cache_attach_premap(c, w.attachment, CACHE_HOST), STATUS_OK);
	ck_assert_int_eq(cache_attach_premap(c, w.attachment, 1), STATUS_INVALID);
	ck_assert_int_eq(cache_attach_premap(c, w.attachment, -7), STATUS_INVALID);
	ck_assert_int_eq(cache_attach_premap(c, w.attachment + 1, CACHE_HOST), STATUS_DENIED);
	ck_assert_uint_eq(cache_attach_offers(c, w.attachment, 1, extents, 2, &more), 0);
	ck_assert_uint_eq(cache_attach_offers(c, w.attachment, CACHE_HOST, extents, 1, &more), 1);
	ck_assert(more);
	n = 1 + cache_attach_offers(c, w.attachment, CACHE_HOST, extents + 1, EXTENTS - 1, &more);
	ck_assert_uint_gt(n, 1);
	ck_assert(!more && extents[0] != extents[1]);
	late = greet(&w);
	ck_assert_int_eq(cache_attach_premap(c, w.attachment, CACHE_HOST), STATUS_OK);
	ck_assert_uint_eq(cache_attach_offers(c, w.attachment, CACHE_HOST, others, EXTENTS, &more), n);
	ck_assert_mem_eq(others, extents, n * sizeof(others[0]));
	clock_set(50);
	close(late);
	close(fd);
	until("terrace_fd_socket_connections", 0);
}
END_TEST

/* What a socket takes: answers to as many questions, until an engine that reads none of them is cut off. */
static uint32_t socket_takes(void)
{
	const struct fdsock_premap ask = { .head = HEAD(FDSOCK_PREMAP), .gpu = FDSOCK_NO_GPU };
	struct fdsock_welcome w;
	struct fdsock_offer o;
	int fd = greet(&w), error;
	socklen_t bytes = sizeof(error);
	uint32_t n = 0;

	while (send(fd, &ask, sizeof ask, MSG_NOSIGNAL) == sizeof ask)
		continue;
	until("terrace_fd_socket_connections", 1);
	/* That the daemon left questions unread would be told before its answers. */
	ck_assert_int_eq(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes), 0);
	while (hear(fd, &o, sizeof o, NULL) > 0)
		n++;
	close(fd);
	return n;
}

/* An engine may be stopped for hours: offers that its socket does not take are no reason to cut it off. */
START_TEST(an_engine_that_never_reads_is_not_cut_off)
{
	struct fdsock_welcome w;
	struct fdsock_offer o;
	int fd = greet(&w); /* without one the session would end */
	const uint32_t full = socket_takes();
	double heard;

	ck_assert_uint_gt(full, 1);
	heard = stat_of("terrace_fd_socket_packets_total");
	ask_premap(fd, 0);
	for (uint32_t i = 1; i < full; i++)
		ask_premap(fd, FDSOCK_NO_GPU);
	until("terrace_fd_socket_packets_total", heard + full);
	reserve_one(&(struct cache_on){ .attachment = w.attachment, .gpu = 0 });
	for (int i = 0; i < 3; i++)
		a_tick();
	ck_assert_double_eq(stat_of("terrace_fd_socket_connections"), 1);
	ck_assert_uint_eq(hear_offer(fd, 0, &o), 0);
	for (uint32_t i = 1; i < full; i++)
		hear_offer(fd, FDSOCK_NO_GPU, &o);
	ask_premap(fd, FDSOCK_NO_GPU);
	hear_offer(fd, FDSOCK_NO_GPU, &o);
	close(fd);
	until("terrace_fd_socket_connections", 0);
}
END_TEST

/* The library of the release before has none of it, whatever it asks for. */
START_TEST(a_library_of_the_release_before_has_no_gpu)
{
	struct fdsock_hello h = { HEAD_BEFORE(FDSOCK_HELLO), { 0 } };
	struct fdsock_map m = { HEAD_BEFORE(FDSOCK_MAP), FDSOCK_EXTENT_PROGRESS_PAGE, 1 };
	struct fdsock_welcome w;
	struct fdsock_extent e;
	int fd = dial(), got[2];

	memcpy(h.token, shell.session.token, sizeof h.token);
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(hear(fd, &w, sizeof w, NULL), sizeof w);
	ck_assert_uint_eq(w.status, STATUS_OK);
	for (int i = 0; i < 2; i++) {
		if (i)
			m.extent = reserve_one(&(struct cache_on){ .attachment = w.attachment, .gpu = 0 });
		ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
		ck_assert_int_eq(hear_two(fd, &e, sizeof e, got), sizeof e);
		ck_assert_uint_eq(e.status, STATUS_UNSUPPORTED);
		ck_assert_uint_eq(e.head.version, FDSOCK_VERSION_BEFORE);
		ck_assert_int_eq(got[0], -1);
	}
	close(fd);
}
END_TEST

/* An engine that closes reads no more, and may take its time with a GPU's memory: an answer that cannot reach it does not keep what
 * it says of that from being heard. What an answer would have lent it does not have. */
START_TEST(who_reads_no_more_is_still_heard)
{
	struct fdsock_unmapped u = { .head = HEAD(FDSOCK_UNMAPPED), .write = 1 };
	struct fdsock_map m = { HEAD(FDSOCK_MAP), 0, 1 };
	struct fdsock_welcome w;
	struct fdsock_extent e;
	int fd = greet(&w), got[2];

	u.extent = m.extent = reserve_one(&(struct cache_on){ .attachment = w.attachment, .gpu = 0 });
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	ck_assert_int_eq(hear_two(fd, &e, sizeof e, got), sizeof e);
	ck_assert_uint_eq(e.status, STATUS_OK);
	close(got[0]);
	close(got[1]);
	ck_assert_uint_eq(lent_to(w.attachment), 1);
	ck_assert_int_eq(shutdown(fd, SHUT_RD), 0);
	ck_assert_int_eq(send(fd, &u, sizeof u, MSG_NOSIGNAL), sizeof u);
	lent_becomes(w.attachment, 0);
	ck_assert_int_eq(send(fd, &m, sizeof m, MSG_NOSIGNAL), sizeof m);
	until("terrace_fd_socket_packets_total", 4);
	lent_becomes(w.attachment, 0);
	ck_assert_double_eq(stat_of("terrace_fd_socket_connections"), 1);
	close(fd);
	until("terrace_fd_socket_connections", 0);
}
END_TEST

/* Asks for a progress page, which the driver holds up. */
static void progress_page_is_held_up(int fd)
{
	const struct fdsock_map m = { HEAD(FDSOCK_MAP), FDSOCK_EXTENT_PROGRESS_PAGE, 1 };
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	driver_shut = true;
	ck_assert_int_eq(send(fd, &m, sizeof m, 0), sizeof m);
	while (driver_holds != 1 && daemon_now_us() < end)
		usleep(1000);
	ck_assert_int_eq(driver_holds, 1);
}

/* A GPU's driver that takes long over a progress page keeps the one who asked for it waiting, and nobody else: 0, who
 * gets it in the end; 1, who has hung up meanwhile; 2, whose session has been closed. */
START_TEST(a_slow_driver_keeps_no_others_waiting)
{
	struct fdsock_welcome w, v;
	struct fdsock_extent e;
	const char *why = "";
	int fd = greet(&w), other, got = -1;

	progress_page_is_held_up(fd);
	other = greet(&v);
	a_tick();
	if (_i == 1) {
		close(fd);
		until("terrace_fd_socket_connections", 1);
	} else if (_i == 2) {
		ck_assert_int_eq(cache_session_close(shell.daemon.cache, shell.session.id, daemon_now_us(), &why), STATUS_OK);
		a_tick();
		ck_assert_uint_eq(lent_to(w.attachment), 0); /* it lasts until its progress page is made */
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
	until("terrace_fd_socket_connections", 0);
}
END_TEST

/* The socket is gone all the same, and so are the engines. */
START_TEST(a_stop_while_a_progress_page_is_lent)
{
	struct fdsock_welcome w;
	int fd = greet(&w);

	progress_page_is_held_up(fd);
	ck_assert(!fd_socket_part.threads_stop(fd_socket, 50 * 1000));
	ck_assert(!workers_stop(shell.daemon.workers, 0));
	ck_assert_int_ne(access(shell.config.fd_socket, F_OK), 0);
	until("terrace_fd_socket_connections", 0);
	driver_shut = false;
	ck_assert(fd_socket_part.threads_stop(fd_socket, NET_S * 1000000ull));
	ck_assert(workers_stop(shell.daemon.workers, NET_S * 1000000ull));
	close(fd);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("door_gpu");
	TCase *t = tcase_create("gpu");
	SRunner *r;

	tcase_add_checked_fixture(t, setup_gpu, teardown);
	tcase_set_timeout(t, 100);
	tcase_add_test(t, memory_of_a_gpu);
	tcase_add_loop_test(t, extents_are_offered, 0, 2);
	tcase_add_test(t, extents_of_other_layouts_are_offered);
	tcase_add_test(t, new_extents_are_offered_at_once);
	tcase_add_test(t, offers_come_in_parts);
	tcase_add_test(t, who_borrows_of_a_gpu_is_watched);
	tcase_add_test(t, who_reads_no_more_is_still_heard);
	tcase_add_test(t, a_library_of_the_release_before_has_no_gpu);
	tcase_add_test(t, an_engine_that_never_reads_is_not_cut_off);
	tcase_add_loop_test(t, a_slow_driver_keeps_no_others_waiting, 0, 3);
	tcase_add_test(t, a_stop_while_a_progress_page_is_lent);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
