/* Where a block comes from that a GPU and a disk have: what brings it already is joined; else the GPU comes first, then the
 * disk. The tiers' books say which of them moves it. */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/tier.h"
#include "daemon/block/wait.h"
#include "daemon/call/bring.h"
#include "daemon/disk/state.h"
#include "daemon/vram/state.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <stdatomic.h>

enum { SLOTS = 16 };

struct world {
	struct rig_disks d;
	struct vram_rig v;
	struct block *b;
};

/* Key 0 is on the GPU and on the disk, and memory is full of blocks that are nowhere else. */
static void world_open(struct world *w)
{
	struct index_ident ident;
	uint8_t key[RIG_KEY_BYTES];
	enum status st;

	vr_disks_make(&w->d, 1, 64);
	vr_open(&w->v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = &w->d, .spill_milli = 1 });
	rig_restored(&w->v.r);
	ck_assert_uint_eq(vr_put(&w->v, 0, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&w->v.r, 0, 1, &st), STATUS_OK);
	for (uint64_t n = 1; n < 3 * SLOTS; n++) {
		ck_assert_uint_eq(vr_put(&w->v, CACHE_HOST, n, 1), 1);
		rig_quiet(&w->v.r);
	}
	ck_assert_str_eq(vr_tier(&w->v, 0), "gpu+disk");
	rig_key(key, 0);
	index_read_lock();
	cache_lock(w->v.r.c);
	block_ident(w->v.r.c->pools[0], key, sizeof(key), &ident);
	w->b = block_of(index_find(w->v.r.c->index, &ident));
}

static void check_moves(const struct world *w, uint32_t gpu, uint32_t disk)
{
	ck_assert_uint_eq(w->v.r.c->vram->move_count, gpu);
	ck_assert_uint_eq(w->v.r.c->tier->move_count, disk);
}

static void world_close(struct world *w, bool comes)
{
	cache_unlock(w->v.r.c);
	index_read_unlock();
	rig_quiet(&w->v.r);
	ck_assert_str_eq(vr_tier(&w->v, 0), comes ? "gpu+host+disk" : "gpu+disk");
	if (comes)
		ck_assert_uint_eq(vr_read_all(&w->v, CACHE_HOST, 0, 1), 1);
	rig_check_books(w->v.r.c);
	vr_close(&w->v);
	rig_disks_remove(&w->d);
}

START_TEST(a_gpu_comes_before_a_disk)
{
	struct world w;

	world_open(&w);
	ck_assert_int_eq(source_bring(w.v.r.c, w.b, RING_URGENT, NULL), STATUS_OK);
	check_moves(&w, 1, 0);
	world_close(&w, true);
}
END_TEST

/* With copies on GPUs tried in vain it is the disk; a later call joins that, though it would have taken the GPU. */
START_TEST(what_is_under_way_is_joined)
{
	const struct fetch_how from_disk = { .priority = RING_URGENT, .not_gpu = true }, plain = { .priority = RING_URGENT };
	struct world w;

	world_open(&w);
	ck_assert_int_eq(source_fetch(w.v.r.c, w.b, _i ? &plain : &from_disk, NULL), STATUS_OK);
	check_moves(&w, _i, !_i);
	ck_assert_int_eq(source_fetch(w.v.r.c, w.b, _i ? &from_disk : &plain, NULL), STATUS_OK);
	check_moves(&w, _i, !_i);
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
	check_moves(&w, 0, 0);
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
	check_moves(&w, !(_i & 1), _i & 1);
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
	tcase_add_test(t, a_gpu_comes_before_a_disk);
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
