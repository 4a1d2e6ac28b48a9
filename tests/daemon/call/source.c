/* Where a block comes from that a GPU and disks have: what brings it already is joined; else it comes from where it is
 * there the soonest, by what the sources keep of their queues and speeds, which these tests set. If that is the same it is
 * the GPU. The tiers' accounting say which of them moves it. And a run from a disk into slots that its caller has
 * reserved: whose the slots are until the end, whatever comes between. */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/rate.h"
#include "daemon/block/tier.h"
#include "daemon/block/wait.h"
#include "daemon/call/source.h"
#include "daemon/disk/state.h"
#include "daemon/vram/state.h"
#include "store/clock.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <stdatomic.h>

enum {
	SLOTS = 16, LIST = 2 * SOURCE_RUN,
	QUEUE = 64,                    /* reads that a disk of depth 1 lets wait */
	MORE = QUEUE + 1 + 7,          /* than it takes */
};

/* Reads of disks wait here while it is shut. */
static _Atomic bool shut;
static _Atomic uint32_t at_gate;   /* reads that have come there */

static int pass_gate(void *arg, const struct ring_request *q, uint32_t *most)
{
	(void)arg;
	(void)most;
	if (q->op == RING_READ && atomic_load(&shut))
		atomic_fetch_add(&at_gate, 1);
	while (q->op == RING_READ && atomic_load(&shut))
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	return 0;
}

static const struct ring_calls calls = { .fault = pass_gate };


struct world {
	struct rig_disks d;
	struct vram_rig v;
	struct block *b;
	struct rate *gpu, *disk;
};

/* So fast, with so much to do before. */
static void seems(struct rate *r, double us_a_block, uint64_t queued_blocks)
{
	*r = (struct rate){
		.us = us_a_block,
		.bytes = VR_SLOT_BYTES,
		.queued = queued_blocks * VR_SLOT_BYTES,
		.ended_us = clock_us(),
	};
}

static struct block *block_of_key(struct rig *r, uint64_t n)
{
	struct index_record *found;
	struct index_ident ident;
	uint8_t key[RIG_KEY_BYTES];

	rig_key(key, n);
	block_ident(r->c->pools[0], key, sizeof(key), &ident);
	found = index_find(r->c->index, &ident);
	return found ? block_of(found) : NULL;
}

/* Keys 0 to blocks - 1 are on the GPU and on a disk, and memory is full of blocks that are nowhere else. Locked. */
static void world_open_with(struct world *w, uint32_t blocks, uint32_t disks, uint32_t disk_depth)
{
	const uint32_t slots = blocks > SLOTS ? blocks : SLOTS;
	enum status st[MORE];

	vr_disks_make(&w->d, disks, 4 * slots);
	vr_open(&w->v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 2 * slots, .host_slots = slots,
						   .disks = &w->d, .disk_count = disks,
						   .disk_depth = disk_depth, .io_calls = &calls,
						   .spill_milli = 1, .by_cost = true });
	rig_restored(&w->v.r);
	ck_assert_uint_eq(vr_put(&w->v, 0, 0, blocks), blocks);
	ck_assert_int_eq(rig_flush(&w->v.r, 0, blocks, st), STATUS_OK);
	for (uint64_t n = blocks; n < blocks + 3 * slots; n++) {
		ck_assert_uint_eq(vr_put(&w->v, CACHE_HOST, n, 1), 1);
		rig_quiet(&w->v.r);
	}
	for (uint64_t n = 0; n < blocks; n++)
		ck_assert_str_eq(vr_tier(&w->v, n), "gpu+disk");
	w->gpu = w->v.r.c->vram->gpu[0]->down_rate;
	w->disk = &w->v.r.c->tier->units[0].reads;
	index_read_lock();
	cache_lock(w->v.r.c);
	w->b = block_of_key(&w->v.r, 0);
	ck_assert_ptr_nonnull(w->b);
	seems(w->gpu, 1000, 0);
	seems(w->disk, 1000, 0);
}

static void world_open(struct world *w)
{
	world_open_with(w, 1, 1, 0);
}

static void check_transfers(const struct world *w, uint32_t gpu, uint32_t disk)
{
	ck_assert_uint_eq(w->v.r.c->vram->transfer_count, gpu);
	ck_assert_uint_eq(w->v.r.c->tier->transfer_count, disk);
}

static void world_close(struct world *w, bool comes)
{
	cache_unlock(w->v.r.c);
	index_read_unlock();
	rig_quiet(&w->v.r);
	ck_assert_str_eq(vr_tier(&w->v, 0), comes ? "gpu+host+disk" : "gpu+disk");
	if (comes)
		ck_assert_uint_eq(vr_read_all(&w->v, CACHE_HOST, 0, 1), 1);
	rig_check_accounting(w->v.r.c);
	vr_close(&w->v);
	rig_disks_remove(&w->d);
}

/* What each seems to do, and which is to bring the block. */
static const struct cost_row {
	double gpu_us, disk_us;        /* a block */
	uint64_t gpu_queue, disk_queue; /* blocks */
	bool disk;
} cost_rows[] = {
	{ 1000, 1000, 0, 0, false },   /* the same: the GPU, as it is registered first */
	{ 1000, 800, 0, 0, false },    /* no quarter is saved */
	{ 100, 30, 0, 0, false },      /* nor 100 us */
	{ 1000, 700, 0, 0, true },
	{ 1000, 9000, 0, 0, false },
	{ 1000, 9000, 8, 1, false },   /* 9 ms against 18 */
	{ 1000, 9000, 30, 1, true },
	{ 1000, 1000, 3, 0, true },    /* the queue alone */
	{ 1000, 1000, 3, 9, false },
};

START_TEST(the_cheaper_brings_it)
{
	const struct cost_row *row = &cost_rows[_i];
	struct world w;

	world_open(&w);
	seems(w.gpu, row->gpu_us, row->gpu_queue);
	seems(w.disk, row->disk_us, row->disk_queue);
	ck_assert_int_eq(source_bring(w.v.r.c, w.b, RING_URGENT, NULL), STATUS_OK);
	check_transfers(&w, !row->disk, row->disk);
	w.gpu->queued -= row->gpu_queue * VR_SLOT_BYTES;
	w.disk->queued -= row->disk_queue * VR_SLOT_BYTES;
	world_close(&w, true);
}
END_TEST

/* A device that has work and has ended none of it for a while is not what it was. */
START_TEST(one_that_stalls_is_dear)
{
	struct world w;

	world_open(&w);
	seems(w.gpu, 1, 1);
	w.gpu->ended_us -= 1000 * 1000;
	ck_assert_int_eq(source_bring(w.v.r.c, w.b, RING_URGENT, NULL), STATUS_OK);
	check_transfers(&w, 0, 1);
	w.gpu->queued -= VR_SLOT_BYTES;
	world_close(&w, true);
}
END_TEST

/* What the cheaper one refuses the other brings: a disk that has a full queue, or whose slab is being given up. */
START_TEST(what_one_refuses_the_other_brings)
{
	_Atomic int called = 0;
	struct cache_wait wait = { .ready = vr_count, .arg = &called };
	struct block *block[MORE];
	struct world w;

	world_open_with(&w, MORE, 1, 1);
	seems(w.disk, 1e-9, 0);
	for (uint64_t n = 0; n < MORE; n++)
		block[n] = block_of_key(&w.v.r, n);
	if (_i)
		block[0]->slab_map->sealed = true;
	atomic_store(&shut, true);
	ck_assert_uint_eq(source_bring_run(w.v.r.c, 1, block, RING_URGENT, &wait), 0);
	check_transfers(&w, _i, !_i);
	if (!_i) {
		cache_unlock(w.v.r.c);
		RIG_AWAIT(at_gate == 1);
		cache_lock(w.v.r.c);
		seems(w.disk, 1e-9, 1); /* however long that took */
		ck_assert_uint_eq(source_bring_run(w.v.r.c, MORE, block, RING_URGENT, &wait), 0);
		check_transfers(&w, MORE - 1 - QUEUE, 1 + QUEUE);
	}
	block[0]->slab_map->sealed = false;
	atomic_store(&shut, false);
	cache_unlock(w.v.r.c);
	RIG_AWAIT(called == 1);
	ck_assert_uint_eq(wait.shed, 0);
	cache_wait_end(w.v.r.c, &wait);
	cache_lock(w.v.r.c);
	world_close(&w, true);
}
END_TEST

/* With a fast and a slow disk the GPU is between them. */
START_TEST(each_disk_has_its_own_speed)
{
	struct unit *u;
	struct world w;
	uint32_t on_fast = 0;

	world_open_with(&w, SLOTS, 2, 0);
	u = w.v.r.c->tier->units;
	seems(&u[0].reads, 100, 0);
	seems(&u[1].reads, 100000, 0);
	for (uint64_t n = 0; n < SLOTS; n++) {
		struct block *b = block_of_key(&w.v.r, n);
		const uint32_t gpu = w.v.r.c->vram->transfer_count, disk = w.v.r.c->tier->transfer_count;
		const bool fast = b->slab_map->class->unit == &u[0];

		seems(w.gpu, 1000, w.gpu->queued / VR_SLOT_BYTES);
		w.gpu->bytes *= (double)(w.gpu->queued / VR_SLOT_BYTES + 1); /* whatever it has to do already */
		seems(&u[0].reads, 1, u[0].reads.queued / VR_SLOT_BYTES);
		ck_assert_int_eq(source_bring(w.v.r.c, b, RING_URGENT, NULL), STATUS_OK);
		check_transfers(&w, gpu + !fast, disk + fast);
		on_fast += fast;
	}
	ck_assert_uint_gt(on_fast, 0);
	ck_assert_uint_lt(on_fast, SLOTS);
	world_close(&w, true);
}
END_TEST

/* A list that both have is split, as each run stands in a queue when the next one is chosen for. */
START_TEST(a_long_list_is_split)
{
	_Atomic int called = 0;
	struct cache_wait wait = { .ready = vr_count, .arg = &called };
	struct block *block[LIST];
	struct world w;

	world_open_with(&w, LIST, 1, 0);
	for (uint64_t n = 0; n < LIST; n++)
		block[n] = block_of_key(&w.v.r, n);
	ck_assert_uint_eq(source_bring_run(w.v.r.c, LIST, block, RING_URGENT, &wait), 0);
	check_transfers(&w, SOURCE_RUN, LIST - SOURCE_RUN);
	cache_unlock(w.v.r.c);
	RIG_AWAIT(called == 1);
	cache_wait_end(w.v.r.c, &wait);
	cache_lock(w.v.r.c);
	world_close(&w, true);
}
END_TEST

/* With copies on GPUs tried in vain it is the disk; a later call joins that, though it would have taken the GPU. */
START_TEST(what_is_under_way_is_joined)
{
	const struct fetch_how from_disk = { .priority = RING_URGENT, .not_gpu = true };
	const struct fetch_how plain = { .priority = RING_URGENT };
	struct world w;

	world_open(&w);
	ck_assert_int_eq(source_fetch(w.v.r.c, w.b, _i ? &plain : &from_disk, NULL), STATUS_OK);
	check_transfers(&w, _i, !_i);
	ck_assert_int_eq(source_fetch(w.v.r.c, w.b, _i ? &from_disk : &plain, NULL), STATUS_OK);
	check_transfers(&w, _i, !_i);
	world_close(&w, true);
}
END_TEST

/* Memory has nothing to spare: a disk is not asked for what a GPU could not bring down for that. */
START_TEST(no_room_is_no_room_for_any)
{
	const struct fetch_how spare = { .priority = RING_URGENT, .effort = TAKE_SPARE };
	struct world w;

	world_open(&w);
	ck_assert_int_eq(source_fetch(w.v.r.c, w.b, &spare, NULL), STATUS_BUSY);
	check_transfers(&w, 0, 0);
	world_close(&w, false);
}
END_TEST

/* Links of waits come along, to whatever brings the block, begun or joined (_i & 2), and hear of its end. */
START_TEST(links_are_told_of_the_end)
{
	struct fetch_how how = { .priority = RING_URGENT, .not_gpu = _i & 1 };
	_Atomic int called = 0;
	struct cache_wait wait = { .ready = vr_count, .arg = &called };
	struct world w;

	world_open(&w);
	if (_i & 2)
		ck_assert_int_eq(source_fetch(w.v.r.c, w.b, &how, NULL), STATUS_OK);
	how.links = wait_link(w.v.r.c, &wait, w.b);
	ck_assert_ptr_nonnull(how.links);
	ck_assert_int_eq(source_fetch(w.v.r.c, w.b, &how, NULL), STATUS_OK);
	check_transfers(&w, !(_i & 1), _i & 1);
	ck_assert_int_eq(called, 0);
	cache_unlock(w.v.r.c);
	RIG_AWAIT(called == 1);
	ck_assert_uint_eq(wait.outstanding, 0);
	ck_assert_int_eq(wait.worst, STATUS_OK);
	cache_wait_end(w.v.r.c, &wait);
	cache_lock(w.v.r.c);
	world_close(&w, true);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_source");
	TCase *t = tcase_create("cache_source");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, the_cheaper_brings_it, 0, (int)(sizeof(cost_rows) / sizeof(cost_rows[0])));
	tcase_add_test(t, one_that_stalls_is_dear);
	tcase_add_loop_test(t, what_one_refuses_the_other_brings, 0, 2);
	tcase_add_test(t, each_disk_has_its_own_speed);
	tcase_add_test(t, a_long_list_is_split);
	tcase_add_loop_test(t, what_is_under_way_is_joined, 0, 2);
	tcase_add_test(t, no_room_is_no_room_for_any);
	tcase_add_loop_test(t, links_are_told_of_the_end, 0, 4);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
