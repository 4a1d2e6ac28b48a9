/* Ends of transfers to GPUs, of copy batches and of lists of sums: none runs inside the call that causes it, each wait
 * is told once, a hold of the lock runs no more than its bound, and batches that end together are followed by one pump.
 */
#include "daemon/block/ends.h"

#include "daemon/block/block.h"
#include "daemon/block/gpu_class.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/lost.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "daemon/vram/vram.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { SLOTS = 16, MANY = 320 };

static struct block *block_of_key(struct rig *r, uint64_t n)
{
	struct index_record *found;
	struct index_ident ident;
	uint8_t key[RIG_KEY_BYTES];

	rig_key(key, n);
	block_ident(r->c->pools[0], key, RIG_KEY_BYTES, &ident);
	index_read_lock();
	found = index_find(r->c->index, &ident);
	index_read_unlock();
	ck_assert_ptr_nonnull(found);
	return block_of(found);
}

static _Atomic bool shut;

static int pass_gate(void *arg, const struct ring_request *q, uint32_t *most)
{
	(void)arg;
	(void)most;
	while (q->op == RING_READ && atomic_load(&shut))
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	return 0;
}

static const struct ring_calls calls = { .fault = pass_gate };

/* An up waits for a load. Whatever the load's end is, the up goes on, or ends, when the lock is left. */
START_TEST(the_end_of_a_load_ends_no_up_inside_itself)
{
	static const enum status ends[] = { STATUS_UNAVAILABLE, STATUS_CORRUPT, STATUS_CANCELLED };
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct rig_disks d;
	struct vram_rig v;
	struct block *b;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = &d, .io_calls = &calls });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	vr_push_out(&v, 3 * SLOTS);
	ck_assert_str_eq(vr_tier(&v, 0), "disk");
	b = block_of_key(&v.r, 0);
	atomic_store(&shut, true);
	cache_lock(v.r.c);
	ck_assert_int_eq(vram_up(v.r.c, vram_gpu(v.r.c, 0), b, RING_URGENT, &w, true, false), STATUS_OK);
	ck_assert(b->awaited);
	vram_host_came(v.r.c, b, ends[_i]);
	ck_assert(!b->awaited);
	ck_assert_uint_eq(w.outstanding, 1);
	ck_assert_int_eq(called, 0);
	cache_unlock(v.r.c);
	ck_assert_int_eq(called, 1); /* at once, and by this thread */
	ck_assert_int_eq(w.worst, ends[_i]);
	atomic_store(&shut, false);
	rig_quiet(&v.r);
	ck_assert_int_eq(called, 1);
	cache_wait_end(v.r.c, &w);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), 1);
	vr_end(&v, &d);
}
END_TEST

/* With the lock: */
static struct {
	uint32_t (*left)(const struct cache *c); /* how many ends are to come */
	const struct cache_wait *wait;
	uint32_t before, most;         /* left after the last hold; the most that ran in one hold */
	uint32_t pumps, most_pumps;    /* of the GPUs, in this hold; in one hold */
} told;

static uint32_t outstanding(const struct cache *c)
{
	(void)c;
	return told.wait->outstanding;
}

static uint32_t sums_due(const struct cache *c)
{
	return c->vram->gpu[0]->classes->sums_due;
}

static void hold_over(struct cache *c)
{
	const uint32_t now = told.left(c);

	if (now < told.before && told.before - now > told.most)
		told.most = told.before - now;
	if (told.pumps > told.most_pumps)
		told.most_pumps = told.pumps;
	told.before = now;
	told.pumps = 0;
	vram_publish(c);
}

static void pump(struct cache *c)
{
	told.pumps++;
	gpu_tier.pump(c);
}

/* From now on each hold of the lock is counted, until count_end. */
static void count_begin(struct vram_rig *v, uint32_t (*left)(const struct cache *), const struct cache_wait *w)
{
	static struct tier_ops counted;

	counted = gpu_tier;
	counted.pump = pump;
	cache_lock(v->r.c);
	told.left = left;
	told.wait = w;
	told.before = told.most = told.pumps = told.most_pumps = 0;
	v->r.c->tiers[TIER_GPU] = &counted;
	v->r.c->publish = hold_over;
	cache_unlock(v->r.c);
}

static void count_end(struct vram_rig *v)
{
	cache_lock(v->r.c);
	v->r.c->tiers[TIER_GPU] = &gpu_tier;
	v->r.c->publish = vram_publish;
	cache_unlock(v->r.c);
}

static uint32_t under_way(struct gpu *g)
{
	uint32_t n;

	pthread_mutex_lock(&g->queue_lock);
	n = g->queue[DEVICE_UP].under_way;
	pthread_mutex_unlock(&g->queue_lock);
	return n;
}

enum { BATCHES = 4 };

/* So many batches of so many blocks each, which the device has begun; they all end while this thread has the lock. */
static void batches_end_together(struct vram_rig *v, struct cache_wait *w, uint32_t each)
{
	struct gpu *g = vram_gpu(v->r.c, 0);

	vr_hold(v, 0, 1);
	for (uint32_t i = 0; i < BATCHES; i++) {
		cache_lock(v->r.c);
		for (uint32_t k = i * each; k < (i + 1) * each; k++)
			ck_assert_int_eq(vram_up(v->r.c, g, block_of_key(&v->r, k), RING_URGENT, w, true, false), STATUS_OK);
		cache_unlock(v->r.c);
		RIG_AWAIT(gpu_copy_batches(g, DEVICE_UP) == i + 1);
	}
	cache_lock(v->r.c);
	vr_go(v, 0);
	RIG_AWAIT(!under_way(g));
	ck_assert_uint_eq(w->outstanding, BATCHES * each);
	cache_unlock(v->r.c);
}

/* With blocks each that fit one hold in all, and that do not. */
START_TEST(batches_that_end_together_end_in_bounded_holds)
{
	static const uint32_t each[] = { ENDS_A_HOLD / BATCHES / 2, ENDS_A_HOLD / 2 };
	enum status deleted[BATCHES * ENDS_A_HOLD];
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BATCHES * ENDS_A_HOLD,
						.host_slots = BATCHES * ENDS_A_HOLD });
	/* The GPU's memory is made before: blocks that wait for it come up in pieces. */
	ck_assert_uint_eq(vr_put(&v, 0, MANY, BATCHES * each[_i]), BATCHES * each[_i]);
	rig_quiet(&v.r);
	ck_assert_int_eq(rig_delete(&v.r, MANY, BATCHES * each[_i], deleted), STATUS_OK);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BATCHES * each[_i]), BATCHES * each[_i]);
	rig_quiet(&v.r);
	count_begin(&v, outstanding, &w);
	batches_end_together(&v, &w, each[_i]);
	vr_await_called(&v, &called, 1);
	count_end(&v);
	ck_assert_uint_le(told.most, ENDS_A_HOLD);
	ck_assert_uint_eq(told.most_pumps, 1);
	if (!_i)
		ck_assert_uint_eq(told.most, BATCHES * each[_i]); /* one hold ended all of them */
	cache_wait_end(v.r.c, &w);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, BATCHES * each[_i]), BATCHES * each[_i]);
	rig_quiet(&v.r);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

START_TEST(sums_of_commits_end_in_bounded_holds)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = MANY, .host_slots = SLOTS, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, 0, MANY, 1), 1); /* now the GPU has a class */
	rig_quiet(&v.r);
	vr_sums_hold(&v, 0);
	count_begin(&v, sums_due, NULL);
	ck_assert_uint_eq(vr_put(&v, 0, 0, MANY - SLOTS), MANY - SLOTS);
	vr_sums_go(&v, 0);
	rig_quiet(&v.r);
	count_end(&v);
	ck_assert_uint_gt(told.most, 0);
	ck_assert_uint_le(told.most, ENDS_A_HOLD);
	ck_assert_uint_le(told.most_pumps, 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_commit_sums_total", "result=made"), MANY - SLOTS + 1);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* Hundreds of transfers, some of them begun, when their GPU is lost. */
START_TEST(a_lost_gpu_ends_its_transfers_in_bounded_holds)
{
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct vram_rig v;
	struct gpu *g;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = MANY, .host_slots = MANY + SLOTS });
	g = vram_gpu(v.r.c, 0);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, MANY), MANY);
	vr_hold(&v, 0, 1);
	count_begin(&v, outstanding, &w);
	cache_lock(v.r.c);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert_int_eq(vram_up(v.r.c, g, block_of_key(&v.r, i), RING_URGENT, &w, true, false), STATUS_OK);
	ck_assert_uint_eq(w.outstanding, MANY);
	cache_unlock(v.r.c);
	RIG_AWAIT(gpu_copy_batches(g, DEVICE_UP));
	cache_lock(v.r.c);
	ck_assert_uint_eq(w.outstanding, MANY);
	gpu_lost(g, NULL);
	ck_assert_uint_eq(w.outstanding, MANY);
	ck_assert_int_eq(called, 0);
	cache_unlock(v.r.c);
	vr_go(&v, 0);
	vr_await_called(&v, &called, 1);
	cache_lock(v.r.c);
	ck_assert_uint_eq(w.outstanding, 0);
	ck_assert_uint_gt(told.most, 0);
	ck_assert_uint_le(told.most, ENDS_A_HOLD);
	cache_unlock(v.r.c);
	count_end(&v);
	rig_quiet(&v.r);
	ck_assert_int_eq(called, 1);
	cache_wait_end(v.r.c, &w);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, MANY), MANY);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_ends");
	TCase *t = tcase_create("cache_vram_ends");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, the_end_of_a_load_ends_no_up_inside_itself, 0, 3);
	tcase_add_loop_test(t, batches_that_end_together_end_in_bounded_holds, 0, 2);
	tcase_add_test(t, sums_of_commits_end_in_bounded_holds);
	tcase_add_test(t, a_lost_gpu_ends_its_transfers_in_bounded_holds);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
