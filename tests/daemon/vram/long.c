/* Calls of many blocks: the copies of their first blocks begin while they are still at their later ones, so that a list can fail, a GPU be lost, or
 * the call be given up in the middle. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/delete.h"
#include "daemon/call/reserve.h"
#include "daemon/call/warm.h"
#include "daemon/session/open.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/state.h"
#include "eviction/policy.h"
#include "kernels/format.h"
#include "store/device.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 1024, SECONDS_MAX = 10, PUT_KEYS = 128, GPU_BYTES = (8 << 20) + SIM_GRANULARITY }; /* the reserve is a granule */

struct long_rig {
	struct vram_rig v;
	struct cache_wait wait;
	struct cache_keys keys;
	sem_t ready;
	uint64_t block_bytes;
};

/* What the device is to do, and what it did. */
static struct {
	_Atomic uint32_t up, down;      /* lists begun */
	_Atomic uint32_t failing;       /* the list up, or down, with this number fails; 0: none */
	_Atomic bool shut;              /* lists wait before they begin */
	_Atomic uint32_t blocks_failed;
} device;

static struct {
	struct policy_ops ops;
	const struct policy_ops *own;
	struct gpu *gpu;
	uint64_t ups, first;            /* that had a place before the call made place for others */
	_Atomic bool waits, came;       /* for a list, in the middle of a call */
	struct cache *cache;
	_Atomic uint32_t inserted, alone; /* blocks that came to the GPU; of these, while others were on their way in no list */
} watched;

static bool until(const _Atomic uint32_t *lists)
{
	for (int ms = 0; ms < SECONDS_MAX * 1000; ms++) {
		if (*lists)
			return true;
		usleep(1000);
	}
	return false;
}

/* Place is made for the later blocks of the call: those before them are to be on their way. */
static bool walk_watched(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	if (watched.waits && watched.gpu->ups > watched.ups) {
		watched.first = watched.gpu->ups - watched.ups;
		watched.waits = false;
		watched.came = until(&device.up);
	}
	return watched.own->walk(p, visit, arg, max);
}

/* With the lock. */
static void insert_watched(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	watched.inserted++;
	watched.alone += watched.cache->vram->transfer_count > 1 && !vram_queued(watched.gpu, DEVICE_UP) &&
	    !gpu_copy_batches(watched.gpu, DEVICE_UP);
	watched.own->insert(p, n, e);
}

static enum status copy(struct device *d, struct device_copy *c, const char **why)
{
	_Atomic uint32_t *lists = c->way == DEVICE_UP ? &device.up : &device.down;
	const uint32_t number = atomic_fetch_add(lists, 1) + 1;

	for (int ms = 0; device.shut && ms < SECONDS_MAX * 1000; ms++)
		usleep(1000);
	if (number != device.failing)
		return terrace_device_ops()->copy(d, c, why);
	device.blocks_failed = c->count;
	c->done(c, STATUS_EXHAUSTED);
	return STATUS_OK;
}

/* What has begun ends, or some of it fails, before a call looks for its later blocks. */
static struct {
	struct cache *cache;            /* there; NULL: it may go on */
	const struct cache_wait *fails; /* this one's is to fail; NULL: to end */
	sem_t *ready;
	int told;                       /* times that the call was told by then */
} idles;

struct gpu *__real_vram_find_rest(struct cache *c, const struct vram_search *s, struct gpu *announced,
				  uint32_t from);
struct gpu *__wrap_vram_find_rest(struct cache *c, const struct vram_search *s, struct gpu *announced,
				  uint32_t from);

struct gpu *__wrap_vram_find_rest(struct cache *c, const struct vram_search *s, struct gpu *announced,
				  uint32_t from)
{
	for (int ms = 0, moving = 1; c == idles.cache && moving && ms < SECONDS_MAX * 1000; ms++) {
		usleep(1000);
		cache_lock(c);
		moving = idles.fails ? !idles.fails->shed : (int)c->vram->transfer_count;
		cache_unlock(c);
	}
	if (c == idles.cache)
		sem_getvalue(idles.ready, &idles.told);
	return __real_vram_find_rest(c, s, announced, from);
}

static void on_ready(void *arg)
{
	sem_post(arg);
}

static struct kv_layout small(void)
{
	struct kv_layout l = vr_layout(0);

	l.block_tokens = 16;
	l.layers = 2;
	l.k_format = l.v_format = KV_F16;
	l.head_dim_k = l.head_dim_v = 64;
	return l;
}

static void put(struct long_rig *l, int32_t gpu, uint64_t first)
{
	for (uint32_t at = 0; at < BLOCKS; at += PUT_KEYS) {
		struct cache_place p[PUT_KEYS];
		enum status st[PUT_KEYS];
		uint64_t ids[PUT_KEYS];

		ck_assert_int_eq(vr_reserve(&l->v, gpu, first + at, PUT_KEYS, st, ids, p), STATUS_OK);
		for (uint32_t i = 0; i < PUT_KEYS; i++) {
			ck_assert_int_eq(st[i], STATUS_OK);
			rig_fill(vr_bytes(&l->v, &p[i]), l->block_bytes, first + at + i, 0);
		}
		ck_assert_int_eq(vr_commit(&l->v, ids, PUT_KEYS, st), STATUS_OK);
	}
}

/* A Warm's step, once what it waited for has come. */
static enum status step(struct long_rig *l, int32_t gpu, uint32_t *blocks)
{
	return cache_warm(l->v.r.c, &(struct cache_warm_call){ .session = l->v.r.s.id, .keys = &l->keys,
							       .gpu = gpu, .now_us = l->v.r.now }, &l->wait,
			  blocks, &l->v.r.why);
}

static void begin(struct long_rig *l, int32_t gpu, uint64_t first)
{
	uint32_t blocks;

	l->wait = (struct cache_wait){ .ready = on_ready, .arg = &l->ready };
	l->keys = rig_keys(first, BLOCKS);
	ck_assert_int_eq(step(l, gpu, &blocks), STATUS_BUSY);
}

static void end(struct long_rig *l)
{
	cache_wait_end(l->v.r.c, &l->wait);
	free((void *)l->keys.bytes);
}

/* How many blocks of the prefix came. */
static uint32_t finish(struct long_rig *l, int32_t gpu, enum status *s)
{
	uint32_t blocks = 0;

	do {
		struct timespec until_then;

		clock_gettime(CLOCK_REALTIME, &until_then);
		until_then.tv_sec += SECONDS_MAX;
		while (sem_trywait(&l->ready)) {
			struct timespec now;

			clock_gettime(CLOCK_REALTIME, &now);
			ck_assert_int_lt(now.tv_sec, until_then.tv_sec);
			rig_tick(l->v.r.c, l->v.r.now);
			usleep(1000);
		}
		*s = step(l, gpu, &blocks);
	} while (*s == STATUS_BUSY);
	end(l);
	return blocks;
}

static uint32_t warm(struct long_rig *l, int32_t gpu, uint64_t first)
{
	enum status s;
	uint32_t blocks;

	begin(l, gpu, first);
	blocks = finish(l, gpu, &s);
	ck_assert_int_eq(s, STATUS_OK);
	rig_quiet(&l->v.r);
	return blocks;
}

/* All that are leased have their bytes; how many there are. */
static uint32_t read_all(struct long_rig *l, int32_t gpu, uint64_t first)
{
	struct cache_place *p = calloc(BLOCKS, sizeof(*p));
	uint32_t there = 0;

	for (uint64_t n = first; n < first + BLOCKS; n++) {
		struct cache_leased leased;

		if (vr_lease(&l->v, gpu, n, 1, true, false, p, &leased))
			continue;
		vr_wait_layers(&l->v, &leased);
		ck_assert(rig_matches(vr_bytes(&l->v, p), l->block_bytes, n, 0));
		vr_release(&l->v, &leased);
		there++;
	}
	free(p);
	return there;
}

/* Two sets in memory, of which the GPU has room for one, and is full of the second: the first is to come up next, a block in another's place. */
static void open_full(struct long_rig *l)
{
	static const uint32_t ordinals[1] = { 0 };
	static struct device_ops ops;
	const struct kv_layout layout = small();
	struct cache_options c = rig_options(1);
	struct kv_geometry g;

	memset(l, 0, sizeof(*l));
	memset(&device, 0, sizeof(device));
	kv_geometry_of(&layout, &g);
	l->block_bytes = g.block_bytes;
	ops = *terrace_device_ops();
	ops.copy = copy;
	strcpy(l->v.folder, "/tmp/terrace-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(l->v.folder));
	snprintf(l->v.hold, sizeof(l->v.hold), "%s/hold", l->v.folder);
	snprintf(l->v.lost, sizeof(l->v.lost), "%s/lost", l->v.folder);
	setenv("SIM_GPU_LOST_FILE", l->v.lost, 1);
	c.extent_bytes = 16 << 20;
	c.gpu_bytes = GPU_BYTES;
	c.host_bytes = 96 << 20;
	c.policy = "lru";
	c.device_ops = &ops;
	c.gpus = ordinals;
	c.gpu_count = 1;
	c.gpu_pinned_milli = 1000;
	c.gpu_verify_up = true;
	c.sum_threads = 2;
	sem_init(&l->ready, 0, 0);
	rig_open_layouts(&l->v.r, &c, &layout, 1);
	ck_assert_int_eq(cache_session_write_back(l->v.r.c, l->v.r.s.id), STATUS_OK);
	vr_progress_page(&l->v);
	put(l, CACHE_HOST, 0);
	put(l, CACHE_HOST, BLOCKS);
	ck_assert_uint_eq(warm(l, 0, 0), BLOCKS);
	ck_assert_uint_eq(warm(l, 0, BLOCKS), BLOCKS);
	device.up = device.down = 0;
}

/* The next call's first half is to be on its way before its second. */
static void watch(struct long_rig *l)
{
	struct cache *c = l->v.r.c;

	cache_lock(c);
	watched.cache = c;
	watched.own = c->policy;
	watched.ops = *c->policy;
	watched.ops.insert = insert_watched;
	watched.ops.walk = walk_watched;
	watched.gpu = vram_gpu(c, 0);
	watched.ups = watched.gpu->ups;
	watched.came = false;
	watched.inserted = watched.alone = 0;
	watched.waits = true;
	c->policy = &watched.ops;
	cache_unlock(c);
}

static void close_all(struct long_rig *l)
{
	rig_quiet(&l->v.r);
	rig_check_accounting(l->v.r.c);
	ck_assert_double_eq(rig_stat(&l->v.r, "terrace_pinned_bytes", "tier=host"), 0);
	vr_close(&l->v);
	sem_destroy(&l->ready);
}

START_TEST(first_copies_begin_before_the_last_have_a_place)
{
	struct long_rig l;

	open_full(&l);
	watch(&l);
	ck_assert_uint_eq(warm(&l, 0, 0), BLOCKS);
	ck_assert(!watched.waits); /* the call came there */
	ck_assert(watched.came);
	ck_assert_uint_eq(watched.first, BLOCKS / 4); /* and had not looked for all of them */
	/* A list is under way until all of its blocks are in the accounting: who wants memory meanwhile waits for what
	 * they hold of it. */
	ck_assert_uint_gt(watched.inserted, BLOCKS / 2);
	ck_assert_uint_eq(watched.alone, 0);
	ck_assert_uint_eq(read_all(&l, 0, 0), BLOCKS);
	close_all(&l);
}
END_TEST

/* Those that are there already are not what it begins with; what is there of its end is not to leave for its beginning. */
START_TEST(some_are_there)
{
	static const struct {
		uint64_t there, first;
	} of[] = { { 0, BLOCKS / 4 }, { 3 * BLOCKS / 4, BLOCKS / 2 } };

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		struct long_rig l;

		open_full(&l);
		ck_assert_uint_eq(vr_warm(&l.v, 0, of[i].there, BLOCKS / 4), BLOCKS / 4);
		rig_quiet(&l.v.r);
		watch(&l);
		ck_assert_uint_eq(warm(&l, 0, 0), BLOCKS);
		ck_assert_uint_eq(watched.first, of[i].first);
		ck_assert_uint_eq(watched.inserted, BLOCKS - BLOCKS / 4);
		ck_assert_uint_eq(read_all(&l, 0, 0), BLOCKS);
		close_all(&l);
	}
}
END_TEST

/* Of the lists, one comes to nothing: its blocks are missing from the answer, and in memory; those before and behind it are there. */
START_TEST(a_list_that_fails_in_the_middle)
{
	struct long_rig l;
	enum status s;
	uint32_t came;

	open_full(&l);
	watch(&l);
	device.failing = 2;
	begin(&l, 0, 0);
	came = finish(&l, 0, &s);
	ck_assert(watched.came);
	ck_assert_int_eq(s, STATUS_OK);
	rig_quiet(&l.v.r);
	ck_assert_uint_gt(came, 0);
	ck_assert_uint_lt(came, BLOCKS);
	ck_assert_uint_gt(device.blocks_failed, 0);
	ck_assert_double_eq(rig_stat(&l.v.r, "terrace_gpu_moves_failed_total", "to=gpu"), device.blocks_failed);
	device.failing = 0;
	ck_assert_uint_eq(read_all(&l, CACHE_HOST, 0), BLOCKS);
	ck_assert_uint_eq(warm(&l, 0, 0), BLOCKS);
	ck_assert_uint_eq(read_all(&l, 0, 0), BLOCKS);
	close_all(&l);
}
END_TEST

static void idle_first(struct long_rig *l)
{
	idles.cache = l->v.r.c;
	idles.fails = NULL;
	idles.ready = &l->ready;
	idles.told = -1;
}

/* The first ones are there before the call goes on: it is not told until all are. */
START_TEST(the_first_come_at_once)
{
	struct long_rig l;
	enum status s;

	open_full(&l);
	idle_first(&l);
	begin(&l, 0, 0);
	idles.cache = NULL;
	ck_assert_uint_ge(device.up, 1);
	ck_assert_int_eq(idles.told, 0);
	ck_assert_uint_eq(finish(&l, 0, &s), BLOCKS);
	ck_assert_int_eq(s, STATUS_OK);
	close_all(&l);
}
END_TEST

/* The same when they come to nothing: nor is it told then, as it ends at once. */
START_TEST(one_of_the_first_fails_at_once)
{
	uint32_t blocks = UINT32_MAX;
	struct long_rig l;

	open_full(&l);
	idle_first(&l);
	device.failing = 1;
	l.wait = (struct cache_wait){ .ready = on_ready, .arg = &l.ready };
	l.keys = rig_keys(0, BLOCKS);
	ck_assert_int_eq(step(&l, 0, &blocks), STATUS_OK);
	ck_assert_uint_eq(blocks, 0);
	ck_assert_int_eq(idles.told, 0);
	idles.cache = NULL;
	device.failing = 0;
	end(&l);
	ck_assert_uint_eq(warm(&l, 0, 0), BLOCKS);
	ck_assert_uint_eq(read_all(&l, 0, 0), BLOCKS);
	close_all(&l);
}
END_TEST

/* The second of their lists, while the first is under way: that is waited for, and is the answer. */
START_TEST(one_of_the_first_fails_while_another_comes)
{
	enum { KEYS = 256, LIST = (8 << 20) / VR_BLOCK_BYTES };
	struct device_ops ops = *terrace_device_ops();
	struct long_rig l = { .block_bytes = VR_BLOCK_BYTES };
	struct cache_place p[KEYS];
	enum status s, st[KEYS];
	uint64_t ids[KEYS];
	uint32_t blocks = 0;

	memset(&device, 0, sizeof(device));
	sem_init(&l.ready, 0, 0);
	ops.copy = copy;
	vr_open(&l.v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = KEYS, .host_slots = KEYS, .no_verify = true, .ops = &ops });
	ck_assert_uint_eq(vr_put(&l.v, CACHE_HOST, 0, KEYS), KEYS);
	for (uint32_t i = 0; i < KEYS; i++) /* there are extents */
		ck_assert_int_eq(vr_reserve(&l.v, 0, 1000 + i, 1, &st[i], &ids[i], &p[i]), STATUS_OK);
	for (uint32_t i = 0; i < KEYS; i++)
		ck_assert_int_eq(cache_abort(l.v.r.c, l.v.r.s.id, ids[i]), STATUS_OK);
	rig_quiet(&l.v.r);
	idle_first(&l);
	idles.fails = &l.wait;
	device.failing = 2;
	vr_hold(&l.v, 0, 0);
	l.wait = (struct cache_wait){ .ready = on_ready, .arg = &l.ready };
	l.keys = rig_keys(0, KEYS);
	ck_assert_int_eq(step(&l, 0, &blocks), STATUS_BUSY);
	ck_assert_uint_eq(blocks, KEYS / 4); /* as far as it has looked */
	idles.cache = NULL;
	ck_assert_uint_gt(l.wait.shed, 0);
	device.failing = 0;
	vr_go(&l.v, 0);
	ck_assert_uint_eq(finish(&l, 0, &s), LIST);
	ck_assert_int_eq(s, STATUS_OK);
	ck_assert_uint_eq(device.blocks_failed, LIST);
	close_all(&l);
}
END_TEST

/* Who gives up stops nothing, and holds nothing. */
START_TEST(given_up_in_the_middle)
{
	struct long_rig l;

	open_full(&l);
	watch(&l);
	device.shut = true;
	begin(&l, 0, 0);
	ck_assert(watched.came);
	end(&l);
	device.shut = false;
	rig_quiet(&l.v.r);
	ck_assert_double_eq(rig_stat(&l.v.r, "terrace_gpu_held_bytes", "gpu=0"), 0);
	ck_assert_uint_eq(read_all(&l, 0, 0), BLOCKS);
	close_all(&l);
}
END_TEST

/* The rest is with the submission thread, in a queue, or has no place yet: nobody waits for it for ever, and memory has
 * all. */
START_TEST(a_gpu_lost_in_the_middle)
{
	struct long_rig l;
	enum status s;

	open_full(&l);
	watch(&l);
	device.shut = true;
	begin(&l, 0, 0);
	ck_assert(watched.came);
	vr_lose(&l.v, 0);
	RIG_AWAIT((rig_tick(l.v.r.c, l.v.r.now), rig_stat(&l.v.r, "terrace_gpu_lost", "gpu=0")));
	device.shut = false;
	finish(&l, 0, &s);
	ck_assert_int_eq(s, STATUS_UNAVAILABLE);
	ck_assert_uint_eq(read_all(&l, CACHE_HOST, 0), BLOCKS);
	close_all(&l);
}
END_TEST

/* What is deleted while the call waits is not in its answer, though its copy was well. */
START_TEST(one_deleted_meanwhile)
{
	struct cache_keys k = rig_keys(BLOCKS / 2, 1);
	struct long_rig l;
	enum status s, st;

	open_full(&l);
	device.shut = true;
	begin(&l, 0, 0);
	ck_assert_int_eq(cache_delete(l.v.r.c, l.v.r.s.id, &k, &st, NULL, &l.v.r.why), STATUS_OK);
	device.shut = false;
	ck_assert_uint_eq(finish(&l, 0, &s), BLOCKS / 2);
	ck_assert_int_eq(s, STATUS_OK);
	free((void *)k.bytes);
	close_all(&l);
}
END_TEST

/* The same of one that was there before the call: it is pinned, and so in memory still. */
START_TEST(one_deleted_that_was_there)
{
	struct cache_keys k = rig_keys(2 * BLOCKS + 10, 1);
	struct long_rig l;
	enum status s, st;

	open_full(&l);
	put(&l, 0, 2 * BLOCKS);
	ck_assert_uint_eq(vr_warm(&l.v, CACHE_HOST, 2 * BLOCKS, BLOCKS / 2), BLOCKS / 2);
	device.shut = true;
	begin(&l, CACHE_HOST, 2 * BLOCKS);
	ck_assert_int_eq(cache_delete(l.v.r.c, l.v.r.s.id, &k, &st, NULL, &l.v.r.why), STATUS_OK);
	device.shut = false;
	ck_assert_uint_eq(finish(&l, CACHE_HOST, &s), 10);
	ck_assert_int_eq(s, STATUS_OK);
	free((void *)k.bytes);
	close_all(&l);
}
END_TEST

/* The same way down: what failed stays on the GPU, and comes with the next call. */
START_TEST(a_list_down_that_fails_in_the_middle)
{
	struct long_rig l;
	enum status s;
	uint32_t came;

	open_full(&l);
	put(&l, 0, 2 * BLOCKS);
	rig_quiet(&l.v.r);
	device.down = 0;
	device.failing = 2;
	begin(&l, CACHE_HOST, 2 * BLOCKS);
	came = finish(&l, CACHE_HOST, &s);
	ck_assert_int_eq(s, STATUS_OK);
	rig_quiet(&l.v.r);
	ck_assert_uint_gt(came, 0);
	ck_assert_uint_lt(came, BLOCKS);
	device.failing = 0;
	ck_assert_double_eq(rig_stat(&l.v.r, "terrace_gpu_moves_failed_total", "to=host"), device.blocks_failed);
	ck_assert_uint_eq(warm(&l, CACHE_HOST, 2 * BLOCKS), BLOCKS);
	ck_assert_uint_eq(read_all(&l, CACHE_HOST, 2 * BLOCKS), BLOCKS);
	close_all(&l);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		first_copies_begin_before_the_last_have_a_place,
		some_are_there,
		the_first_come_at_once,
		one_of_the_first_fails_at_once,
		one_of_the_first_fails_while_another_comes,
		a_list_that_fails_in_the_middle,
		given_up_in_the_middle,
		a_gpu_lost_in_the_middle,
		one_deleted_meanwhile,
		one_deleted_that_was_there,
		a_list_down_that_fails_in_the_middle,
	};

	return rig_main("cache_vram_long", tests, sizeof(tests) / sizeof(tests[0]));
}
