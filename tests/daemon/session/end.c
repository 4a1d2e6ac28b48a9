/* What becomes of memory whose borrowers die: real processes that map real extents, killed with SIGKILL. */
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/reserve.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* An engine, whose process is that of the attachment: maps the extent that it is sent and scribbles over one block
 * until it is killed. With an heir it first forks a child that keeps the mapping. Or it unmaps the extent, and lives
 * on. */
enum life { SCRIBBLES, HAS_AN_HEIR, UNMAPS };

struct engine {
	pid_t pid, heir;
};

static _Noreturn void rest(void)
{
	for (;;)
		pause();
}

static _Noreturn void scribble(uint8_t *block)
{
	for (unsigned i = 0;; i++)
		block[i % 576] = (uint8_t)i;
}

/* It says by the socket that it has begun: its heir's pid, or 0. */
static _Noreturn void engine_run(int socket, uint64_t offset, enum life life)
{
	const int fd = rig_fd_take(socket);
	const size_t bytes = (size_t)lseek(fd, 0, SEEK_END);
	uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	pid_t child = 0;

	if (base == MAP_FAILED)
		_exit(1);
	close(fd);
	if (life == HAS_AN_HEIR) {
		child = fork();
		if (child == 0)
			rest();
	}
	if (life == UNMAPS && munmap(base, bytes))
		_exit(1);
	if (write(socket, &child, sizeof(child)) != sizeof(child))
		_exit(1);
	if (life == UNMAPS)
		rest();
	scribble(base + offset + SLOT_HEADER_BYTES);
}

static struct engine engine_start(struct rig *r, const struct cache_place *p, enum life life)
{
	struct engine e = { 0, 0 };
	struct cache_lent lent;
	int sockets[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	e.pid = fork();
	if (e.pid == 0)
		engine_run(sockets[1], p->offset, life);
	rig_watch(r, e.pid);
	ck_assert_int_eq(cache_attach_lend(r->c, r->attachment, p->extent, true, &lent), STATUS_OK);
	rig_fd_send(sockets[0], lent.fd);
	close(lent.fd);
	ck_assert_int_eq(read(sockets[0], &e.heir, sizeof(e.heir)), sizeof(e.heir));
	close(sockets[0]);
	close(sockets[1]);
	return e;
}

static void reap(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static uint64_t reserve(struct rig *r, uint64_t n, struct cache_place *p)
{
	struct cache_keys k = rig_keys(n, 1);
	enum status st;
	uint64_t id = 0;

	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = r->s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r->now, .statuses = &st, .reservations = &id, .places = p,
			.places_max = 1 }, &r->why), 0);
	ck_assert_int_eq(st, STATUS_OK);
	free((void *)k.bytes);
	return id;
}

START_TEST(slots_of_the_killed_come_back)
{
	const struct cache_options o = rig_options(16);
	struct cache_place half, places[4];
	struct cache_leased leased;
	struct rig keeper, r;

	rig_open(&keeper, &o, 1);
	rig_put(&keeper, 0, 4);
	for (int i = 0; i < RIG_ROUNDS(200); i++) {
		struct engine e;

		rig_join(&r, &keeper, 1);
		ck_assert_int_eq(rig_lease(&r, 0, 4, true, places, &leased), STATUS_OK);
		reserve(&r, 1000, &half);
		e = engine_start(&r, &half, SCRIBBLES);
		reap(e.pid);
		cache_attach_gone(r.c, r.attachment, r.now, NULL);
		/* No tick was needed; nothing half-written is visible, nothing is held. */
		ck_assert_double_eq(rig_stat(&r, "terrace_ghost_sessions", ""), 0);
		ck_assert_double_eq(rig_stat(&r, "terrace_leases", ""), 0);
		ck_assert_double_eq(rig_stat(&r, "terrace_slots_used", "tier=host"), 4);
		ck_assert_uint_eq(rig_prefix(&keeper, 1000, 1), 0);
		ck_assert_uint_eq(rig_prefix(&keeper, 0, 4), 4);
	}
	rig_close(&keeper);
}
END_TEST

START_TEST(an_heir_keeps_the_slots_quarantined)
{
	const struct cache_options o = rig_options(16);
	struct cache_place half, places[4], mine;
	struct cache_leased leased;
	struct engine e;
	struct rig keeper, r;

	rig_open(&keeper, &o, 1);
	rig_put(&keeper, 0, 2);
	rig_join(&r, &keeper, 1);
	ck_assert_int_eq(rig_lease(&r, 0, 2, true, places, &leased), STATUS_OK);
	reserve(&r, 1000, &half);
	e = engine_start(&r, &half, HAS_AN_HEIR);
	reap(e.pid);
	cache_attach_gone(r.c, r.attachment, r.now, NULL);
	for (int i = 0; i < 20; i++) {
		r.now += 50000;
		rig_tick(r.c, r.now);
	}
	ck_assert_double_eq(rig_stat(&r, "terrace_quarantined_slots", "tier=host"), 3);
	ck_assert_double_eq(rig_stat(&r, "terrace_quarantined_bytes", "tier=host"), 3 * RIG_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&r, "terrace_ghost_sessions", ""), 1);
	/* The key stays claimed, the slot is nobody else's, however full it gets. */
	ck_assert_uint_eq(rig_put(&keeper, 1000, 1), 0);
	for (uint64_t n = 2000; n < 2200; n++) {
		ck_assert_uint_eq(rig_put(&keeper, n, 1), 1);
		reserve(&keeper, 5000 + n, &mine);
		ck_assert(mine.extent != half.extent || mine.offset != half.offset);
		if (n < 2196)
			cache_session_close(keeper.c, keeper.s.id, keeper.now, &keeper.why);
		if (n < 2196)
			rig_join(&keeper, &keeper, 1);
	}
	ck_assert_uint_eq(rig_prefix(&keeper, 0, 2), 2);
	kill(e.heir, SIGKILL); /* init's child now: wait for the kernel to drop its mapping */
	for (int ms = 0; rig_stat(&r, "terrace_ghost_sessions", ""); ms++) {
		ck_assert_int_lt(ms, 10000);
		usleep(1000);
		r.now += 50000;
		rig_tick(r.c, r.now);
	}
	ck_assert_double_eq(rig_stat(&r, "terrace_quarantined_slots", "tier=host"), 0);
	ck_assert_uint_eq(rig_put(&keeper, 1000, 1), 1);
	rig_close(&keeper);
}
END_TEST

START_TEST(a_closed_session_waits_for_its_living_process)
{
	const struct cache_options o = rig_options(16);
	struct cache_place half;
	struct engine e;
	struct rig r;
	struct cache_lent lent;
	uint64_t id;

	rig_open(&r, &o, 1);
	id = reserve(&r, 1000, &half);
	e = engine_start(&r, &half, SCRIBBLES);
	ck_assert_int_eq(cache_session_close(r.c, r.s.id, r.now, &r.why), STATUS_OK);
	cache_attach_unmapped(r.c, r.attachment, half.extent); /* a lie */
	rig_tick(r.c, r.now);
	ck_assert_double_eq(rig_stat(&r, "terrace_quarantined_slots", "tier=host"), 1);
	ck_assert_int_eq(cache_attach_lend(r.c, r.attachment, half.extent, true, &lent), STATUS_DENIED);
	/* Its own word frees it, process or not. */
	ck_assert_int_eq(cache_abort(r.c, r.s.id, id), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_quarantined_slots", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_slots_used", "tier=host"), 0);
	reap(e.pid);
	cache_attach_gone(r.c, r.attachment, r.now, NULL);
	ck_assert_double_eq(rig_stat(&r, "terrace_ghost_sessions", ""), 0);
	rig_close(&r);
}
END_TEST

/* Its GPU may still be copying to where it had memory mapped: that ends with the process. */
START_TEST(a_living_process_keeps_what_it_has_unmapped)
{
	const struct cache_options o = rig_options(16);
	struct cache_place half;
	struct engine e;
	struct rig keeper, r;

	rig_open(&keeper, &o, 1);
	rig_join(&r, &keeper, 1);
	reserve(&r, 1000, &half);
	e = engine_start(&r, &half, UNMAPS);
	cache_attach_gone(r.c, r.attachment, r.now, NULL); /* its socket was closed */
	for (int i = 0; i < 20; i++)
		rig_tick(r.c, r.now += 50000);
	ck_assert_double_eq(rig_stat(&r, "terrace_quarantined_slots", "tier=host"), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_ghost_sessions", ""), 1);
	reap(e.pid);
	rig_tick(r.c, r.now += 50000);
	ck_assert_double_eq(rig_stat(&r, "terrace_ghost_sessions", ""), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_slots_used", "tier=host"), 0);
	rig_close(&keeper);
}
END_TEST

/* Unless it says that it has unmapped everything: its own word, and the kernel's. */
START_TEST(the_word_of_a_living_process_counts_when_the_kernel_agrees)
{
	const struct cache_options o = rig_options(16);
	struct cache_place half;
	struct engine e;
	struct rig keeper, r;

	rig_open(&keeper, &o, 1);
	for (int honest = 0; honest < 2; honest++) {
		rig_join(&r, &keeper, 1);
		reserve(&r, 1000, &half);
		e = engine_start(&r, &half, honest ? UNMAPS : SCRIBBLES);
		cache_attach_unmapped(r.c, r.attachment, (uint32_t)CACHE_EXTENT_NONE);
		cache_attach_gone(r.c, r.attachment, r.now, NULL);
		rig_tick(r.c, r.now += 50000);
		ck_assert_double_eq(rig_stat(&r, "terrace_ghost_sessions", ""), !honest);
		reap(e.pid);
		rig_tick(r.c, r.now += 50000);
		ck_assert_double_eq(rig_stat(&r, "terrace_ghost_sessions", ""), 0);
	}
	rig_close(&keeper);
}
END_TEST

START_TEST(one_of_two_processes_dies)
{
	const struct cache_options o = rig_options(16);
	struct cache_place half, places[2];
	struct cache_leased leased;
	uint64_t second, session, id, held = 0;
	struct engine e;
	struct rig r;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, 2);
	ck_assert_int_eq(rig_lease(&r, 0, 2, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_attach(r.c, r.s.token, 2, r.now, &second, &session, &r.why), STATUS_OK);
	id = reserve(&r, 1000, &half); /* without one it could not write */
	e = engine_start(&r, &half, SCRIBBLES);
	ck_assert_int_eq(cache_abort(r.c, r.s.id, id), STATUS_OK);
	reap(e.pid);
	ck_assert(!cache_attach_gone(r.c, r.attachment, r.now, &held));
	ck_assert_uint_eq(held, 0);
	rig_tick(r.c, r.now);
	/* The session lives, and so do its leases: the other process may be using them. */
	ck_assert_double_eq(rig_stat(&r, "terrace_leases", ""), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_attachments", ""), 1);
	ck_assert_uint_eq(cache_session_layouts(r.c, r.s.id), 1);
	ck_assert(cache_attach_gone(r.c, second, r.now, &held));
	ck_assert_uint_eq(held, 2 * RIG_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&r, "terrace_leases", ""), 0);
	ck_assert_uint_eq(cache_session_layouts(r.c, r.s.id), 0);
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { slots_of_the_killed_come_back, an_heir_keeps_the_slots_quarantined,
				       a_closed_session_waits_for_its_living_process,
				       a_living_process_keeps_what_it_has_unmapped,
				       the_word_of_a_living_process_counts_when_the_kernel_agrees,
				       one_of_two_processes_dies };

	return rig_main("cache_ghost", tests, sizeof(tests) / sizeof(tests[0]));
}
