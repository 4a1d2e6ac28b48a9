/* What is brought up to a GPU ahead of its lease: for whom, how much, into which slots, and what becomes of it. */
#include "daemon/advice/graph.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/delete.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCKS = 4, GPU = 0, PLENTY = 1 << 30 };

#define OF_BUDGET(bytes) (struct vram_rig_options){ .gpus = 1, .gpu_slots = 64, .host_slots = 32, .gpu_prefetch_bytes = (bytes) }
static const struct vram_rig_options usual = OF_BUDGET(PLENTY);

static double prefetch(struct vram_rig *v, const char *result)
{
	return rig_stat(&v->r, "terrace_prefetch_gpu_bytes_total", result) / VR_BLOCK_BYTES;
}

static double refused(struct vram_rig *v, const char *reason)
{
	return rig_stat(&v->r, "terrace_prefetch_gpu_refused_total", reason);
}

static double moved_up(struct vram_rig *v)
{
	return rig_stat(&v->r, "terrace_moved_bytes_total", "from=host,to=gpu") / VR_BLOCK_BYTES;
}

/* Asked for, and the cache has had its time. */
static void look_up(struct vram_rig *v, uint64_t first, uint32_t count)
{
	ck_assert_uint_eq(rig_prefix(&v->r, first, count), count);
	rig_tick(v->r.c, v->r.now += 1000);
	rig_quiet(&v->r);
}

static void lease_all_there(struct vram_rig *v, uint32_t count)
{
	struct cache_place p[BLOCKS];
	struct cache_leased l;

	ck_assert_int_eq(vr_lease(v, GPU, 0, count, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, 0); /* nothing to wait for */
	for (uint32_t n = 0; n < count; n++)
		ck_assert(vr_on_gpu(&p[n], GPU) && vr_matches(v, &p[n], n, 0));
	vr_release(v, &l);
}

/* What a Lookup found in memory is on the GPU when its Lease comes, which then has nothing to wait for. */
START_TEST(what_a_lookup_found)
{
	struct vram_rig v;

	vr_open_filled(&v, &usual, BLOCKS);
	look_up(&v, 0, BLOCKS);
	ck_assert_double_eq(prefetch(&v, "result=copied"), BLOCKS);
	ck_assert_double_eq(moved_up(&v), BLOCKS);
	lease_all_there(&v, BLOCKS);
	ck_assert_double_eq(prefetch(&v, "result=used"), BLOCKS);
	ck_assert_double_eq(moved_up(&v), BLOCKS);
	lease_all_there(&v, BLOCKS);
	ck_assert_double_eq(prefetch(&v, "result=used"), BLOCKS);
	ck_assert_double_eq(prefetch(&v, "result=wasted"), 0);
	vr_close(&v);
}
END_TEST

/* Of a layout with a window a Lease needs the last blocks alone, and no others are copied ahead of it. */
START_TEST(of_a_window_the_end)
{
	const struct vram_rig_options o = { .gpus = 1, .gpu_slots = 64, .host_slots = 32, .gpu_prefetch_bytes = PLENTY,
					    .window = 2 * 256 + 1 };
	struct cache_place p[BLOCKS];
	struct cache_leased l;
	struct vram_rig v;

	vr_open_filled(&v, &o, BLOCKS);
	look_up(&v, 0, BLOCKS);
	ck_assert_double_eq(prefetch(&v, "result=copied"), 2);
	ck_assert_int_eq(vr_lease(&v, GPU, 0, BLOCKS, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, 0);
	ck_assert_double_eq(prefetch(&v, "result=used"), 2);
	ck_assert_double_eq(moved_up(&v), 2);
	vr_release(&v, &l);
	vr_close(&v);
}
END_TEST

/* Without being asked for it, and for a session that works in memory or on two GPUs, nothing is copied. */
START_TEST(nothing_for_others)
{
	const struct vram_rig_options o = { .gpus = 2, .gpu_slots = 64, .host_slots = 32, .gpu_prefetch_bytes = _i ? PLENTY : 0 };
	struct vram_rig v;

	if (_i == 1) {
		vr_open(&v, &o);
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
		rig_quiet(&v.r);
	} else {
		vr_open_filled(&v, &o, BLOCKS);
	}
	if (_i == 2)
		ck_assert_uint_eq(vr_put(&v, 1, 2000, 1), 1);
	look_up(&v, 0, BLOCKS);
	ck_assert_double_eq(prefetch(&v, "result=copied"), 0);
	ck_assert_double_eq(moved_up(&v), 0);
	ck_assert_uint_eq(vr_read_all(&v, GPU, 0, BLOCKS), BLOCKS);
	rig_quiet(&v.r);
	ck_assert_double_eq(moved_up(&v), BLOCKS);
	vr_close(&v);
}
END_TEST

/* The Lease that comes at once: what has begun is late, what has not is dropped, and nothing is copied twice. */
START_TEST(what_is_late)
{
	struct cache_place p[BLOCKS];
	struct cache_leased l;
	struct vram_rig v;

	vr_open_filled(&v, &OF_BUDGET(4 * VR_BLOCK_BYTES * 2), BLOCKS);
	vr_hold(&v, GPU, 1);
	ck_assert_uint_eq(rig_prefix(&v.r, 0, BLOCKS), BLOCKS);
	rig_tick(v.r.c, v.r.now += 1000000); /* a quarter of what a second brings: two */
	ck_assert_double_eq(prefetch(&v, "result=copied"), 2);
	ck_assert_int_eq(vr_lease(&v, GPU, 0, BLOCKS, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	ck_assert_double_eq(prefetch(&v, "result=late"), 2);
	ck_assert_double_eq(refused(&v, "reason=late"), 2);
	vr_go(&v, GPU);
	vr_wait_layers(&v, &l);
	for (uint32_t n = 0; n < BLOCKS; n++)
		ck_assert(vr_on_gpu(&p[n], GPU) && vr_matches(&v, &p[n], n, 0));
	rig_quiet(&v.r);
	ck_assert_double_eq(moved_up(&v), BLOCKS);
	vr_release(&v, &l);
	vr_close(&v);
}
END_TEST

/* So much a second. */
START_TEST(the_budget)
{
	struct vram_rig v;

	vr_open_filled(&v, &OF_BUDGET(VR_BLOCK_BYTES), BLOCKS);
	look_up(&v, 0, BLOCKS);
	for (uint32_t n = 1; n < BLOCKS; n++) {
		ck_assert_double_le(prefetch(&v, "result=copied"), n);
		rig_tick(v.r.c, v.r.now += 1000000);
		rig_quiet(&v.r);
	}
	ck_assert_double_eq(prefetch(&v, "result=copied"), BLOCKS);
	ck_assert_double_ge(refused(&v, "reason=budget"), 1);
	vr_close(&v);
}
END_TEST

/* A full GPU gives up what nobody has used for a while, and that alone. */
START_TEST(only_what_is_cold_goes_for_it)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 56, .host_slots = 128, .gpu_prefetch_bytes = PLENTY });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_put(&v, GPU, 100, 56), 56);
	rig_quiet(&v.r);
	v.r.now += 11 * 1000 * 1000;
	ck_assert_uint_eq(vr_read_all(&v, GPU, 100, 54), 54); /* two are cold */
	look_up(&v, 0, BLOCKS);
	for (int i = 0; i < 8; i++) {
		rig_tick(v.r.c, v.r.now += 1000);
		rig_quiet(&v.r);
	}
	ck_assert_double_eq(prefetch(&v, "result=copied"), 2);
	ck_assert_double_ge(refused(&v, "reason=room"), 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_total", "tier=gpu,reason=full"), 2);
	ck_assert_str_eq(vr_tier(&v, 154), "host");
	ck_assert_str_eq(vr_tier(&v, 153), "gpu+host");
	vr_close(&v);
}
END_TEST

/* Nor do the slots that are kept free for leases: of 64 one. */
START_TEST(what_is_kept_free_is_not_for_it)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 64, .host_slots = 128, .gpu_prefetch_bytes = PLENTY });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_put(&v, GPU, 100, 64), 64);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_total", "tier=gpu,reason=full"), 1);
	look_up(&v, 0, BLOCKS);
	rig_tick(v.r.c, v.r.now += 1000);
	rig_quiet(&v.r);
	ck_assert_double_eq(prefetch(&v, "result=copied"), 0);
	ck_assert_double_ge(refused(&v, "reason=room"), 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_total", "tier=gpu,reason=full"), 1);
	vr_close(&v);
}
END_TEST

/* A turn of the background. */
static bool all_are_copied(struct vram_rig *v, uint32_t blocks)
{
	rig_tick(v->r.c, v->r.now += 1000);
	rig_quiet(&v->r);
	return prefetch(v, "result=copied") >= blocks;
}

/* Of a GPU an eighth may hold what is not used yet. After half a minute it is wasted, and when much is wasted little is wished for. */
START_TEST(what_nobody_wants)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 512 - VR_EXTENT_SLOTS, .host_slots = 512, .gpu_prefetch_bytes = PLENTY });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 256), 256);
	ck_assert_uint_eq(vr_put(&v, GPU, 1000, 1), 1);
	ck_assert_uint_eq(vr_put(&v, GPU, 2000, 200), 200); /* there are extents */
	rig_quiet(&v.r);
	ck_assert_uint_eq(rig_prefix(&v.r, 0, 64), 64);
	RIG_AWAIT(all_are_copied(&v, 64)); /* the completion thread makes the extents for them */
	ck_assert_uint_eq(rig_prefix(&v.r, 64, 64), 64);
	for (int i = 0; i < 20; i++)
		ck_assert(!all_are_copied(&v, 65)); /* these wait */
	ck_assert_double_eq(prefetch(&v, "result=copied"), 64);
	ck_assert_double_ge(refused(&v, "reason=room"), 1);
	v.r.now += 31 * 1000 * 1000;
	rig_tick(v.r.c, v.r.now);
	ck_assert_double_eq(prefetch(&v, "result=wasted"), 64);
	for (uint64_t first = 128; first < 256; first += 8) {
		ck_assert_uint_eq(rig_prefix(&v.r, first, 8), 8);
		rig_tick(v.r.c, v.r.now += 1000);
		rig_quiet(&v.r);
	}
	ck_assert_double_ge(refused(&v, "reason=doubted"), 14 * 8);
	ck_assert_double_le(prefetch(&v, "result=copied"), 64 + 2 * 8);
	vr_close(&v);
}
END_TEST

/* What the graph leads to from a prompt comes up too, if memory has it. */
START_TEST(what_the_graph_expects)
{
	struct vram_rig v;

	vr_open_filled(&v, &usual, BLOCKS);
	for (int i = 0; i < 3; i++) { /* the prompt, and then the longer one */
		struct cache_place p[BLOCKS];
		struct cache_leased l;

		ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 2, true, false, p, &l), STATUS_OK);
		vr_release(&v, &l);
		ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, BLOCKS, true, false, p, &l), STATUS_OK);
		vr_release(&v, &l);
		rig_tick(v.r.c, v.r.now += 40 * 1000 * 1000);
	}
	advisor_pass(v.r.c);
	ck_assert_uint_eq(vr_put(&v, GPU, 3000, 1), 1);
	look_up(&v, 0, 2);
	ck_assert_double_eq(prefetch(&v, "result=copied"), BLOCKS);
	lease_all_there(&v, BLOCKS);
	vr_close(&v);
}
END_TEST

/* Blocks that leave before they are used, of whatever cause, are in no list any more. */
START_TEST(deleted_before_it_is_used)
{
	struct cache_keys k = rig_keys(0, BLOCKS);
	enum status st[BLOCKS];
	struct vram_rig v;

	vr_open_filled(&v, &usual, BLOCKS);
	look_up(&v, 0, BLOCKS);
	ck_assert_double_eq(prefetch(&v, "result=copied"), BLOCKS);
	ck_assert_int_eq(cache_delete(v.r.c, v.r.s.id, &k, st, NULL, &v.r.why), STATUS_OK);
	rig_quiet(&v.r);
	ck_assert_double_eq(prefetch(&v, "result=wasted"), BLOCKS);
	rig_tick(v.r.c, v.r.now += 31 * 1000 * 1000);
	ck_assert_double_eq(prefetch(&v, "result=wasted"), BLOCKS);
	free((void *)k.bytes);
	vr_close(&v);
}
END_TEST

static double ms_of_lease(struct vram_rig *v, uint64_t first, uint32_t count)
{
	struct cache_place *p = calloc(count, sizeof(*p));
	struct timespec t0, t1;
	struct cache_leased l;

	ck_assert_uint_eq(rig_prefix(&v->r, first, count), count);
	for (int i = 0; i < 15; i++) { /* the engine's queue */
		rig_tick(v->r.c, v->r.now += 10000);
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	clock_gettime(CLOCK_MONOTONIC, &t0);
	ck_assert_int_eq(vr_lease(v, GPU, first, count, true, false, p, &l), STATUS_OK);
	vr_wait_layers(v, &l);
	clock_gettime(CLOCK_MONOTONIC, &t1);
	for (uint32_t n = 0; n < count; n++)
		ck_assert(vr_on_gpu(&p[n], GPU) && vr_matches(v, &p[n], first + n, 0));
	vr_release(v, &l);
	free(p);
	return (double)(t1.tv_sec - t0.tv_sec) * 1e3 + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-6;
}

/* Of a GPU that has nothing of it yet. */
static double ms_of_first_lease(bool prefetch)
{
	struct vram_rig v;
	double ms;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 256, .host_slots = 64,
	    .gpu_prefetch_bytes = prefetch ? PLENTY : 0 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 16), 16);
	ck_assert_uint_eq(vr_put(&v, GPU, 1000, 32), 32);
	rig_quiet(&v.r);
	ms = ms_of_lease(&v, 0, 16);
	vr_close(&v);
	return ms;
}

/* What it is for: a Lease 150 ms after its Lookup waits for the copies of 16 blocks, 10 ms a MiB, or for none. A busy machine may have it wait for
 * something else: the least of a few counts. */
START_TEST(a_lease_that_waits_less)
{
	enum { COPIES_MS = 40 };
	double without, with = 1e9;

	setenv("SIM_GPU_US_PER_MIB", "10000", 1);
	without = ms_of_first_lease(false);
	for (int tries = 0; tries < 10 && with >= COPIES_MS / 2; tries++)
		with = ms_of_first_lease(true);
	printf("until all of 16 blocks are there: %.1f ms, brought up ahead %.1f ms\n", without, with);
	ck_assert_double_ge(without, COPIES_MS);
	ck_assert_double_lt(with, COPIES_MS / 2);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_ahead");
	TCase *t = tcase_create("cache_vram_ahead");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, what_a_lookup_found);
	tcase_add_test(t, of_a_window_the_end);
	tcase_add_loop_test(t, nothing_for_others, 0, 3);
	tcase_add_test(t, what_is_late);
	tcase_add_test(t, the_budget);
	tcase_add_test(t, only_what_is_cold_goes_for_it);
	tcase_add_test(t, what_is_kept_free_is_not_for_it);
	tcase_add_test(t, what_nobody_wants);
	tcase_add_test(t, what_the_graph_expects);
	tcase_add_test(t, deleted_before_it_is_used);
	tcase_add_test(t, a_lease_that_waits_less);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
