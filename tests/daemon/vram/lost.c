/* GPUs that are lost while what they alone have is being copied from them: what has come is kept, as far as it is known to be the block. */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/lease.h"
#include "daemon/memory/evict.h"
#include "daemon/threads/checksum_pool.h"
#include "daemon/vram/lost.h"
#include "daemon/vram/state.h"
#include "store/device.h"
#include "store/index.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 16 };

/* What the device says of lists down, and whether a bit of their first block has not come. */
static struct {
	enum status says;
	bool torn;
	_Atomic uint32_t ended;
	void (*_Atomic done)(struct device_copy *c, enum status s);
} down;

static void down_ended(struct device_copy *c, enum status s)
{
	if (down.torn)
		((uint8_t *)sim_at(c->pairs[0].to))[VR_BLOCK_BYTES - 1] ^= 1;
	atomic_load(&down.done)(c, s ? s : down.says); /* it may be gone */
	atomic_fetch_add(&down.ended, 1);
}

static enum status copy_told(struct device *d, struct device_copy *c, const char **why)
{
	if (c->way == DEVICE_DOWN && c->done != down_ended) {
		down.done = c->done; /* always the same */
		c->done = down_ended;
	}
	return terrace_device_ops()->copy(d, c, why);
}

static bool is_swept(struct vram_rig *v, uint32_t gpu)
{
	cache_lock(v->r.c);
	const bool is = vram_gpu(v->r.c, gpu)->swept;

	cache_unlock(v->r.c);
	return is;
}

static void lose(struct vram_rig *v, uint32_t gpu)
{
	vr_lose(v, gpu);
	RIG_AWAIT(is_swept(v, gpu));
}

/* The device itself goes on with the list that it has. */
static void lose_busy(struct vram_rig *v)
{
	struct gpu *g = vram_gpu(v->r.c, 0);

	RIG_AWAIT(gpu_copy_batches(g, DEVICE_DOWN) == 1);
	cache_lock(v->r.c);
	gpu_lost(g, NULL);
	cache_unlock(v->r.c);
	RIG_AWAIT(is_swept(v, 0));
}

/* Block 0 on the GPU alone; `summed`: with its sum, as it was in memory before. */
static void put_alone(struct vram_rig *v, bool summed)
{
	ck_assert_uint_eq(vr_put(v, summed ? CACHE_HOST : 0, 0, 1), 1);
	if (summed) {
		ck_assert_uint_eq(vr_read_all(v, 0, 0, 1), 1);
		vr_push_out(v, 3 * SLOTS);
	}
	ck_assert_str_eq(vr_tier(v, 0), "gpu");
}

/* Its bytes are in memory, and not summed yet, when its GPU is lost and swept. Whoever waits has it when they are the block's, as the device or the sum
 * says, which is memory's or the commit's, else a miss; by threads for sums, or (_i & 1) the completion thread. */
START_TEST(come_down_and_not_summed)
{
	static const struct {
		bool summed, by_commit, torn;
		enum status says;
		bool kept;
	} row[] = {
		{ false, false, false, STATUS_OK, true },           { true, false, false, STATUS_OK, true },
		{ true, false, false, STATUS_UNAVAILABLE, true },   { true, false, true, STATUS_UNAVAILABLE, false },
		{ false, false, false, STATUS_UNAVAILABLE, false }, { true, false, true, STATUS_OK, false },
		{ false, true, false, STATUS_UNAVAILABLE, true },   { false, true, true, STATUS_UNAVAILABLE, false },
	};
	const bool threads = !(_i & 1), kept = row[_i / 2].kept;
	struct vr_gate gate = { .work = { .run = vr_gate_run }, .lock = PTHREAD_MUTEX_INITIALIZER };
	struct device_ops ops = *terrace_device_ops();
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_keys k = rig_keys(0, 1);
	struct cache_on on = { .gpu = CACHE_HOST };
	struct cache_place p;
	struct cache_leased l;
	struct vram_rig v;

	ops.copy = copy_told;
	ops.sums = row[_i / 2].by_commit ? ops.sums : NULL;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .write_back = true, .sum_threads = threads,
						.ops = &ops });
	on.attachment = v.r.attachment;
	put_alone(&v, row[_i / 2].summed);
	rig_quiet(&v.r);
	down.says = row[_i / 2].says;
	down.torn = row[_i / 2].torn;
	down.ended = 0;
	if (threads) {
		pthread_mutex_lock(&gate.lock);
		ck_assert(sums_submit(v.r.c->sums, &gate.work));
	} else {
		vr_hold(&v, 0, VR_LAYERS - 1);
	}
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), STATUS_BUSY);
	if (threads) {
		RIG_AWAIT(down.ended);
		lose(&v, 0);
		pthread_mutex_unlock(&gate.lock);
	} else {
		lose_busy(&v);
		vr_go(&v, 0);
	}
	vr_await_called(&v, &called, 1);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), kept ? STATUS_OK : STATUS_MISS);
	if (kept) {
		ck_assert(vr_matches(&v, &p, 0, 0));
		vr_release(&v, &l);
	}
	cache_wait_end(v.r.c, &w);
	free((void *)k.bytes);
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), kept ? "host" : "");
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), row[_i / 2].torn && !row[_i / 2].says);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_blocks", "gpu=0"), 0);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), kept);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), !kept);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* Deleted before that is over, it stays so. */
START_TEST(deleted_on_its_way)
{
	struct vram_rig v;
	enum status st;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .write_back = true });
	put_alone(&v, false);
	vr_hold(&v, 0, 1);
	vr_warm_begin(&v, CACHE_HOST, 0, 1);
	lose_busy(&v);
	ck_assert_int_eq(rig_delete(&v.r, 0, 1, &st), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	vr_go(&v, 0);
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	ck_assert_double_eq(rig_stat(&v.r, "terrace_slots_used", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 0);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* On its way to another GPU: it is that one's when the list ends well, else (_i) gone. */
START_TEST(lost_on_its_way_across)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = SLOTS, .host_slots = SLOTS, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, 1, 50, 1), 1); /* there is an extent */
	put_alone(&v, false);
	vr_hold(&v, 1, VR_LAYERS - 1);
	vr_warm_begin(&v, 1, 0, 1);
	RIG_AWAIT(gpu_copy_batches(vram_gpu(v.r.c, 1), DEVICE_ACROSS) == 1);
	lose(&v, 0);
	if (_i)
		lose(&v, 1);
	vr_go(&v, 1);
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), _i ? "" : "gpu");
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), !_i);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_blocks", "gpu=0"), 0);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* Of two copies one is found wrong while it is read for another GPU, and then the other one's GPU is lost: that goes when the read ends, and the key is
 * free again. */
START_TEST(left_for_a_copy_that_was_wrong)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 3, .gpu_slots = SLOTS, .host_slots = SLOTS, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, 2, 50, 1), 1); /* there is an extent */
	put_alone(&v, true);
	ck_assert_uint_eq(vr_warm(&v, 1, 0, 1), 1);
	vr_flip(&v, 1, 0, 0);
	vr_hold(&v, 0, 0);
	vr_hold(&v, 2, VR_LAYERS - 1);
	vr_warm_begin(&v, 2, 0, 1);
	RIG_AWAIT(gpu_copy_batches(vram_gpu(v.r.c, 2), DEVICE_ACROSS) == 1);
	vr_warm_begin(&v, CACHE_HOST, 0, 1);
	RIG_AWAIT(gpu_copy_batches(vram_gpu(v.r.c, 0), DEVICE_DOWN) == 1);
	lose(&v, 0);
	vr_go(&v, 0);
	RIG_AWAIT(!gpu_copy_batches(vram_gpu(v.r.c, 0), DEVICE_DOWN));
	vr_go(&v, 2);
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_blocks", "gpu=0"), 0);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* Of what memory gives up before the sweep has been there the copy on the lost GPU goes, and counts, too. */
START_TEST(given_up_before_the_sweep)
{
	struct index_ident ident;
	struct index_record *r;
	uint8_t key[RIG_KEY_BYTES];
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 2), 2);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 2), 2);
	rig_quiet(&v.r);
	rig_key(key, 0);
	index_read_lock();
	cache_lock(v.r.c);
	gpu_lost(vram_gpu(v.r.c, 0), NULL);
	block_ident(v.r.c->pools[0], key, sizeof(key), &ident);
	r = index_find(v.r.c->index, &ident);
	ck_assert_ptr_nonnull(r);
	room_evict(v.r.c, block_of(r), COUNTER_EVICTED_FULL);
	cache_unlock(v.r.c);
	index_read_unlock();
	RIG_AWAIT(is_swept(&v, 0));
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	ck_assert_str_eq(vr_tier(&v, 1), "host");
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_total", "tier=gpu,reason=lost"), 2);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_loss");
	TCase *t = tcase_create("cache_vram_loss");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, come_down_and_not_summed, 0, 16);
	tcase_add_test(t, deleted_on_its_way);
	tcase_add_loop_test(t, lost_on_its_way_across, 0, 2);
	tcase_add_test(t, left_for_a_copy_that_was_wrong);
	tcase_add_test(t, given_up_before_the_sweep);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
