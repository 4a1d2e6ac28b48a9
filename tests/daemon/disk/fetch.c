/* The disks as a source (block/source.h): a run of blocks is read into slots that the test has reserved. Each piece
 * ends once, then the fetch, and the slots are the disks' until then, whatever comes between: a cancel, a delete, a
 * failure. The disk is held up, and fails, where the ring asks the kernel. */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/options.h"
#include "daemon/block/source.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/call/delete.h"
#include "daemon/call/source.h"
#include "daemon/disk/load.h"
#include "daemon/disk/state.h"
#include "store/clock.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HOST = 96, DISK = 512, RUN = 8 };

static struct gate {
	_Atomic bool shut;             /* reads wait there */
	_Atomic uint32_t come;
	_Atomic int error;             /* and fail with it */
} gate;

static int pass_gate(void *arg, const struct ring_request *q, uint32_t *most)
{
	(void)arg;
	(void)most;
	if (q->op != RING_READ)
		return 0;
	atomic_fetch_add(&gate.come, 1);
	while (atomic_load(&gate.shut))
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	return atomic_load(&gate.error);
}

static const struct ring_calls calls = { .fault = pass_gate };

/* Blocks 0 to HOST - 1 are on the disk alone; it does one transfer at a time. */
struct world {
	struct rig_disks d;
	struct rig r;
	struct fetch *f;
	uint32_t ends[RUN], ended;     /* with the lock */
	enum status status[RUN];
	_Atomic bool over;
};

static struct world w;

static struct block *block_of_key(uint64_t n)
{
	struct index_record *found;
	struct index_ident ident;
	uint8_t key[RIG_KEY_BYTES];

	rig_key(key, n);
	block_ident(w.r.c->pools[0], key, sizeof(key), &ident);
	index_read_lock();
	found = index_find(w.r.c->index, &ident);
	index_read_unlock();
	ck_assert_ptr_nonnull(found);
	return block_of(found);
}

static void piece_ended(struct cache *c, struct fetch *f, uint32_t i, enum status s)
{
	struct fetch_piece *p = &f->piece[i];

	ck_assert_uint_eq(w.ended, 0);
	w.ends[i]++;
	w.status[i] = s;
	span_held(p->slot.span, -1);
	if (!s && block_live(p->key.block))
		block_arrive(c, p->key.block, &p->slot, p->position);
	else
		memory_slot_give(&p->slot);
}

static void fetch_ended(struct cache *c, struct fetch *f)
{
	(void)c;
	ck_assert_ptr_eq(f, w.f);
	w.ended++;
	atomic_store(&w.over, true);
}

static void world_open(void)
{
	struct cache_options o;

	memset(&w, 0, sizeof(w));
	memset(&gate, 0, sizeof(gate));
	rig_disks_make(&w.d, NULL, 1, DISK);
	o = rig_disk_options(&w.d, 1, HOST);
	o.disk_depth = 1;
	o.io_calls = &calls;
	rig_open(&w.r, &o, 1);
	rig_restored(&w.r);
	for (uint64_t n = 0; n < 4 * HOST; n += 8) {
		ck_assert_uint_eq(rig_put(&w.r, n, 8), 8);
		rig_quiet(&w.r);
	}
	gate.come = 0;
}

static void world_close(void)
{
	rig_quiet(&w.r);
	rig_check_accounting(w.r.c);
	free(w.f);
	rig_close(&w.r);
	rig_disks_remove(&w.d);
}

static struct source *disks(void)
{
	return &disks_source;
}

/* Slots for keys 0 to RUN - 1, with the lock. */
static void reserve(void)
{
	w.f = calloc(1, sizeof(*w.f) + RUN * sizeof(w.f->piece[0]));
	ck_assert_ptr_nonnull(w.f);
	*w.f = (struct fetch){ .source = disks(), .piece_ended = piece_ended, .ended = fetch_ended, .count = RUN };
	for (uint32_t i = 0; i < RUN; i++) {
		struct fetch_piece *p = &w.f->piece[i];
		struct block *b = block_of_key(i);

		ck_assert_ptr_null(b->span);
		p->key = (struct run_key){ b->pool, block_name(b), b };
		ck_assert_int_eq(w.r.c->tiers[TIER_MEMORY]->take(w.r.c, b->pool->class, TAKE_ANY, &p->slot), STATUS_OK);
		memset(p->slot.at, 0x5a, RIG_SLOT_BYTES);
	}
}

static void begin(void)
{
	cache_lock(w.r.c);
	reserve();
	ck_assert_int_eq(disks()->ops->fetch(w.r.c, disks(), w.f), STATUS_OK);
	ck_assert_uint_eq(w.ended, 0);
	for (uint32_t i = 0; i < RUN; i++) {
		ck_assert_int_eq(w.f->piece[i].begun, STATUS_OK);
		ck_assert_uint_eq(w.ends[i], 0);
	}
	cache_unlock(w.r.c);
}

/* How many pieces have ended, each once; so is their status. */
static uint32_t ends_of(enum status s)
{
	uint32_t n = 0;

	cache_lock(w.r.c);
	for (uint32_t i = 0; i < RUN; i++) {
		ck_assert_uint_le(w.ends[i], 1);
		n += w.ends[i] && w.status[i] == s;
	}
	cache_unlock(w.r.c);
	return n;
}

START_TEST(each_piece_ends_and_then_the_fetch)
{
	world_open();
	gate.shut = true;
	begin();
	RIG_AWAIT(gate.come == 1);
	ck_assert_uint_eq(ends_of(STATUS_OK), 0);
	gate.shut = false;
	RIG_AWAIT(w.over);
	ck_assert_uint_eq(ends_of(STATUS_OK), RUN);
	ck_assert_uint_eq(w.ended, 1);
	for (uint64_t n = 0; n < RUN; n++)
		ck_assert_ptr_nonnull(block_of_key(n)->span);
	gate.error = EIO; /* nothing of it is read again */
	ck_assert_uint_eq(rig_read_all(&w.r, 0, RUN), RUN);
	gate.error = 0;
	world_close();
}
END_TEST

/* What waits ends CANCELLED; what the kernel has belongs to it, and with it the fetch, until it is done. Nothing that
 * is taken meanwhile is that slot. */
START_TEST(a_cancelled_fetch_ends_all_the_same)
{
	struct memory_slot kept;

	world_open();
	gate.shut = true;
	begin();
	RIG_AWAIT(gate.come == 1);
	cache_lock(w.r.c);
	kept = w.f->piece[0].slot;
	for (int twice = 0; twice < 2; twice++)
		disks()->ops->cancel(w.r.c, disks(), w.f);
	ck_assert_uint_eq(w.ended, 0);
	for (uint32_t i = 0; i < RUN; i++)
		ck_assert_uint_eq(w.ends[i], 0); /* not from inside */
	cache_unlock(w.r.c);
	ck_assert_uint_eq(rig_put(&w.r, 10000, RUN), RUN);
	ck_assert(!w.over);
	cache_lock(w.r.c);
	ck_assert_uint_eq(w.ends[0], 0);
	ck_assert_ptr_null(kept.span->at[kept.index]);
	for (uint32_t i = 0; i < RIG_SLOT_BYTES; i++)
		ck_assert_uint_eq(kept.at[i], 0x5a);
	cache_unlock(w.r.c);
	gate.shut = false;
	RIG_AWAIT(w.over);
	ck_assert_uint_eq(ends_of(STATUS_OK), 1);
	ck_assert_uint_eq(ends_of(STATUS_CANCELLED), RUN - 1);
	ck_assert_uint_eq(rig_read_all(&w.r, 0, RUN), RUN);
	world_close();
}
END_TEST

static void set(void *arg)
{
	atomic_store((_Atomic bool *)arg, true);
}

/* A call joined the last piece: that one is read for it. */
START_TEST(what_others_want_is_not_cancelled)
{
	_Atomic bool ready = false;
	struct cache_wait wait = { .ready = set, .arg = (void *)&ready };

	world_open();
	gate.shut = true;
	begin();
	RIG_AWAIT(gate.come == 1);
	cache_lock(w.r.c);
	ck_assert_int_eq(source_bring(w.r.c, w.f->piece[RUN - 1].key.block, RING_URGENT, &wait), STATUS_OK);
	disks()->ops->cancel(w.r.c, disks(), w.f);
	cache_unlock(w.r.c);
	gate.shut = false;
	RIG_AWAIT(ready && w.over);
	ck_assert_uint_eq(ends_of(STATUS_OK), 2);
	ck_assert_uint_eq(ends_of(STATUS_CANCELLED), RUN - 2);
	ck_assert_int_eq(wait.worst, STATUS_OK);
	cache_wait_end(w.r.c, &wait);
	world_close();
}
END_TEST

/* A block that is deleted meanwhile is not brought back, and its piece ends like the others. */
START_TEST(what_is_deleted_meanwhile_stays_so)
{
	enum status status = STATUS_OK;
	struct cache_keys k = rig_keys(1, 1);

	world_open();
	gate.shut = true;
	begin();
	RIG_AWAIT(gate.come == 1);
	ck_assert_int_eq(cache_delete(w.r.c, w.r.s.id, &k, &status, NULL, &w.r.why), STATUS_OK);
	gate.shut = false;
	RIG_AWAIT(w.over);
	ck_assert_uint_eq(w.ends[1], 1);
	rig_quiet(&w.r);
	ck_assert_uint_eq(rig_read_all(&w.r, 0, RUN), RUN - 1);
	free((void *)k.bytes);
	world_close();
}
END_TEST

/* The disk dies of the first read: all pieces end, with what it said or as cancelled, and none arrives. */
START_TEST(a_disk_that_dies_ends_all_pieces)
{
	world_open();
	gate.shut = true;
	gate.error = EIO;
	begin();
	RIG_AWAIT(gate.come == 1);
	gate.shut = false;
	RIG_AWAIT(w.over);
	ck_assert_uint_ge(ends_of(STATUS_IO), 1);
	ck_assert_uint_eq(ends_of(STATUS_IO) + ends_of(STATUS_CANCELLED), RUN);
	cache_lock(w.r.c);
	free(w.f);
	reserve();
	ck_assert_int_eq(disks()->ops->fetch(w.r.c, disks(), w.f), STATUS_UNAVAILABLE);
	for (uint32_t i = 0; i < RUN; i++) {
		ck_assert_int_eq(w.f->piece[i].begun, STATUS_UNAVAILABLE);
		span_held(w.f->piece[i].slot.span, -1);
		memory_slot_give(&w.f->piece[i].slot);
	}
	cache_unlock(w.r.c);
	world_close();
}
END_TEST

/* What moves already is not begun again; the other pieces are. */
START_TEST(what_transfers_already_is_said)
{
	world_open();
	gate.shut = true;
	cache_lock(w.r.c);
	ck_assert_int_eq(source_bring(w.r.c, block_of_key(2), RING_URGENT, NULL), STATUS_OK);
	reserve();
	ck_assert_int_eq(disks()->ops->fetch(w.r.c, disks(), w.f), STATUS_OK);
	for (uint32_t i = 0; i < RUN; i++)
		ck_assert_int_eq(w.f->piece[i].begun, i == 2 ? STATUS_BUSY : STATUS_OK);
	ck_assert_uint_eq(w.f->outstanding, RUN - 1);
	span_held(w.f->piece[2].slot.span, -1);
	memory_slot_give(&w.f->piece[2].slot);
	cache_unlock(w.r.c);
	gate.shut = false;
	RIG_AWAIT(w.over);
	ck_assert_uint_eq(ends_of(STATUS_OK), RUN - 1);
	ck_assert_uint_eq(w.ends[2], 0);
	world_close();
}
END_TEST

/* What the disks say of themselves: what they have, how long it takes, and that a queue costs. */
START_TEST(the_estimate_counts_the_queue)
{
	struct source_cost idle, busy;
	struct run_key key[RUN];
	struct key_run run = { RUN, key };
	uint8_t word[RUN];

	world_open();
	cache_lock(w.r.c);
	for (uint32_t i = 0; i < RUN; i++) {
		struct block *b = block_of_key(i);

		key[i] = (struct run_key){ b->pool, block_name(b), b };
	}
	disks()->ops->known(w.r.c, disks(), &run, word);
	for (uint32_t i = 0; i < RUN; i++)
		ck_assert_uint_eq(word[i], SOURCE_HAS);
	key[0] = (struct run_key){ key[1].pool, key[1].name, NULL };
	disks()->ops->known(w.r.c, disks(), &run, word);
	ck_assert_uint_eq(word[0], SOURCE_NOT);
	ck_assert(!disks()->ops->estimate(w.r.c, disks(), &run, &idle));
	run = (struct key_run){ RUN - 1, key + 1 };
	w.r.c->tier->units[0].reads = (struct rate){ .us = 1000, .bytes = RIG_SLOT_BYTES };
	ck_assert(disks()->ops->estimate(w.r.c, disks(), &run, &idle));
	ck_assert_uint_eq(idle.first_us, 1000);
	ck_assert_uint_eq(idle.last_us, 1000 * (RUN - 1));
	w.r.c->tier->units[0].reads.queued = 2 * RIG_SLOT_BYTES;
	w.r.c->tier->units[0].reads.ended_us = clock_us();
	ck_assert(disks()->ops->estimate(w.r.c, disks(), &run, &busy));
	ck_assert_uint_ge(busy.first_us, 3000);
	w.r.c->tier->units[0].reads.queued = 0;
	cache_unlock(w.r.c);
	world_close();
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		each_piece_ends_and_then_the_fetch,
		a_cancelled_fetch_ends_all_the_same,
		what_others_want_is_not_cancelled,
		what_is_deleted_meanwhile_stays_so,
		a_disk_that_dies_ends_all_pieces,
		what_transfers_already_is_said,
		the_estimate_counts_the_queue,
	};

	return rig_main("cache_disk_fetch", tests, sizeof(tests) / sizeof(tests[0]));
}
