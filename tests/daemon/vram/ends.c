/* Ends of transfers to GPUs: none runs inside the call that brings it about, each wait is told once, and a hold of the
 * lock tells of no more than its bound. */
#include "daemon/block/ends.h"

#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/lost.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

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
	struct cache_wait *wait;
	uint32_t before, most;         /* of the wait's outstanding: at the end of the last hold; told in one hold */
} told;

static void hold_over(struct cache *c)
{
	const uint32_t now = told.wait->outstanding;

	if (now < told.before && told.before - now > told.most)
		told.most = told.before - now;
	told.before = now;
	vram_publish(c);
}

/* Hundreds of transfers, some of them begun, when their GPU is lost. A hold of the completion thread's may end 64 of a
 * list besides. */
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
	cache_lock(v.r.c);
	told.wait = &w;
	v.r.c->publish = hold_over;
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
	ck_assert_uint_le(told.most, 2 * ENDS_A_HOLD);
	v.r.c->publish = vram_publish;
	cache_unlock(v.r.c);
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
	tcase_add_test(t, a_lost_gpu_ends_its_transfers_in_bounded_holds);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
