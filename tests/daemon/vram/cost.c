/* What the daemon itself costs a block on its way to a GPU, and from it: over a device whose copies cost nothing. With --measure [POLICY [KIB]]:
 * blocks of several sizes, calls of several lengths; each figure is the best of ROUNDS, on a GPU that is full of clean copies, each of
 * which makes place for another. With --stages [BLOCKS [ROUNDS]]: how far a lease from memory is on its way to the device, and when, with warm caches
 * and with cold ones, medians of ROUNDS. With --bus GB_S [BLOCKS [THREADS]]: what share of a bus that is so fast a Warm of blocks of 544 KiB gets, up
 * and down, with so many threads for sums, median and best of ROUNDS. Without: that a block of a long call
 * takes about as many steps as one of a short call. */
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/lease.h"
#include "daemon/call/warm.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/status.h"
#include "tests/daemon/vram/bus.h"
#include "tests/daemon/vram/rig.h"
#include "tests/daemon/vram/stages.h"
#include "tests/daemon/vram/steps.h"

#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <time.h>
#include <unistd.h>

enum { STAGE_ROUNDS = 48, STAGE_ROUNDS_MAX = 1024, STAGE_KIB = 544, SUM_THREADS = 2, COLD_BYTES = 64 << 20 };
enum { ROUNDS = 24, PUT_KEYS = 128, EXTENT_BYTES = 64 << 20, FEW = 256, MANY = 4096, MORE = 2 };
#define SET 10000ull            /* keys from one set to the next */
#define BYTES_MAX (1ull << 30) /* of all blocks of a call */

static _Atomic uint64_t first_copy_ns;
static uint32_t sum_threads = SUM_THREADS;
static double bus_gb_s;         /* 0: copies cost nothing */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Is over at once. */
static enum status copy_nothing(struct device *d, struct device_copy *c, const char **why)
{
	uint64_t none = 0;

	(void)d;
	(void)why;
	if (c->progress)
		stage_reached(STAGE_DEVICE);
	atomic_compare_exchange_strong(&first_copy_ns, &none, now_ns());
	if (c->progress)
		atomic_store((_Atomic uint32_t *)sim_at(c->progress), c->progress_base + c->parts);
	c->done(c, STATUS_OK);
	return STATUS_OK;
}

/* 16 tokens: a layer is 4 KiB a head at 16 bits; of 544 KiB, 32 layers of eight heads at four bits. */
static struct kv_layout layout_of(uint32_t kib)
{
	struct kv_layout l = vr_layout(0);

	l.block_tokens = 16;
	if (kib != 544) {
		l.layers = kib / 4 ? kib / 4 : 1;
		l.k_format = l.v_format = KV_F16;
		l.head_dim_k = l.head_dim_v = 64;
		return l;
	}
	l.layers = 32;
	l.heads = l.total_heads = 8;
	l.head_dim_k = l.head_dim_v = 128;
	l.k_format = l.v_format = KV_INT4_PTH;
	return l;
}

struct bench {
	struct vram_rig v;
	struct device_ops ops;
	uint32_t blocks, sets, next;    /* the set of the next call */
	bool as_daemon;                 /* what goes up is summed, and policies are told of a lease when it has been granted */
	struct cache_place *places;
	sem_t ready;
};

/* Memory has room for all sets, the GPU for so few of them that nothing of the next one is there any more. */
static void bench_open(struct bench *b, uint32_t kib, uint32_t blocks, const char *policy, bool as_daemon)
{
	static const uint32_t ordinals[1] = { 0 };
	const struct kv_layout l = layout_of(kib);
	struct cache_options c = rig_options(1);
	struct kv_geometry g;

	memset(b, 0, sizeof(*b));
	setenv("SIM_GPU_DEVICES", "1", 1);
	setenv("SIM_GPU_BYTES", "4294967296", 1);
	kv_geometry_of(&l, &g);
	b->ops = *terrace_device_ops();
	b->ops.copy = bus_gb_s > 0 ? bus_copy : copy_nothing;
	b->blocks = blocks;
	b->as_daemon = as_daemon;
	c.extent_bytes = EXTENT_BYTES;
	c.gpu_bytes = (blocks * g.block_bytes * 5 / 4 + SIM_GRANULARITY - 1) / SIM_GRANULARITY * SIM_GRANULARITY;
	b->sets = (uint32_t)(c.gpu_bytes / g.block_bytes / blocks) + 2;
	c.host_bytes = (b->sets + 1) * blocks * g.need_bytes * 5 / 4 + 2 * EXTENT_BYTES;
	c.policy = policy;
	c.device_ops = &b->ops;
	c.gpus = ordinals;
	c.gpu_count = 1;
	c.gpu_pinned_milli = 4000;
	c.gpu_verify_up = as_daemon;
	c.sum_threads = as_daemon ? sum_threads : 0;
	rig_open_layouts(&b->v.r, &c, &l, 1);
	ck_assert_int_eq(cache_session_write_back(b->v.r.c, b->v.r.s.id), STATUS_OK);
	cache_attach_watch(b->v.r.c, b->v.r.attachment, pidfd_open(getpid(), 0)); /* as the local socket does */
	vr_progress_page(&b->v);
	b->places = calloc(blocks, sizeof(*b->places));
	sem_init(&b->ready, 0, 0);
}

static void bench_close(struct bench *b)
{
	rig_quiet(&b->v.r);
	rig_close(&b->v.r);
	munmap((void *)b->v.progress_page, EXTENT_PAGE_BYTES);
	free(b->places);
	sem_destroy(&b->ready);
}

/* Stores keys, of whatever bytes. */
static void store(struct bench *b, int32_t gpu, uint64_t first)
{
	for (uint32_t at = 0; at < b->blocks; at += PUT_KEYS) {
		const uint32_t n = b->blocks - at < PUT_KEYS ? b->blocks - at : PUT_KEYS;
		enum status statuses[PUT_KEYS];
		uint64_t ids[PUT_KEYS];

		ck_assert_int_eq(vr_reserve(&b->v, gpu, first + at, n, statuses, ids, b->places), STATUS_OK);
		ck_assert_int_eq(vr_commit(&b->v, ids, n, statuses), STATUS_OK);
		for (uint32_t i = 0; i < n; i++)
			ck_assert_int_eq(statuses[i], STATUS_OK);
	}
}

static void on_ready(void *arg)
{
	sem_post(arg);
}

/* Until the step has another answer than BUSY; ten seconds at most a step. */
static void wait_step(struct bench *b)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	while (sem_timedwait(&b->ready, &until))
		rig_tick(b->v.r.c, b->v.r.now);
}

static void least(double *best, uint64_t since_ns, uint64_t until_ns)
{
	const double us = (double)(until_ns - since_ns) / 1e3;

	if (us < *best)
		*best = us;
}

/* Microseconds: of the call, and until the device had the first of it. */
static void lease(struct bench *b, double *call, double *to_copy)
{
	const uint64_t first = (uint64_t)(b->next++ % b->sets) * SET;
	const struct cache_on on = { .attachment = b->v.r.attachment, .gpu = 0, .deferred = b->as_daemon };
	struct cache_keys k = rig_keys(first, b->blocks);
	struct cache_wait w = { .ready = on_ready, .arg = &b->ready };
	struct cache_leased l;
	enum status s;
	uint64_t since;

	atomic_store(&first_copy_ns, 0);
	stages_begin(b->blocks);
	since = now_ns();
	while ((s = cache_lease(b->v.r.c, &(struct cache_lease_call){ .session = b->v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = b->v.r.now, .places = b->places,
			.places_max = b->blocks }, &l, &w, &b->v.r.why)) == STATUS_BUSY)
		wait_step(b);
	stage_reached(STAGE_GRANTED);
	cache_wait_end(b->v.r.c, &w);
	least(call, since, now_ns());
	cache_leases_notify(b->v.r.c);
	ck_assert_int_eq(s, STATUS_OK);
	ck_assert_uint_eq(l.blocks, b->blocks);
	vr_release(&b->v, &l);
	rig_quiet(&b->v.r);
	least(to_copy, since, atomic_load(&first_copy_ns));
	free((void *)k.bytes);
}

/* Of a Warm that waits, until it answers. */
static void warm(struct bench *b, int32_t gpu, uint64_t first, double *call)
{
	struct cache_keys k = rig_keys(first, b->blocks);
	struct cache_wait w = { .ready = on_ready, .arg = &b->ready };
	uint32_t blocks = 0;
	enum status s;
	uint64_t since = now_ns();

	while ((s = cache_warm(b->v.r.c, &(struct cache_warm_call){ .session = b->v.r.s.id, .keys = &k,
			.gpu = gpu, .now_us = b->v.r.now }, &w, &blocks, &b->v.r.why)) == STATUS_BUSY)
		wait_step(b);
	cache_wait_end(b->v.r.c, &w);
	least(call, since, now_ns());
	ck_assert_int_eq(s, STATUS_OK);
	ck_assert_uint_eq(blocks, b->blocks);
	rig_quiet(&b->v.r);
	free((void *)k.bytes);
}

/* All sets are in memory, and the GPU is full of what went up last. */
static void bench_fill(struct bench *b)
{
	for (uint32_t i = 0; i < b->sets; i++)
		store(b, CACHE_HOST, i * SET);
	for (uint32_t i = 0; i < b->sets; i++)
		warm(b, 0, (b->next++ % b->sets) * SET, &(double){ 1e9 });
}

static void forget(struct bench *b, uint64_t first)
{
	for (uint32_t at = 0; at < b->blocks; at += PUT_KEYS) {
		enum status statuses[PUT_KEYS];

		ck_assert_int_eq(rig_delete(&b->v.r, first + at, b->blocks - at < PUT_KEYS ? b->blocks - at : PUT_KEYS, statuses), STATUS_OK);
	}
}

struct costs {
	double lease, to_copy, warm, down;
};

static void measure_one(uint32_t kib, uint32_t blocks, const char *policy, int rounds, struct costs *out)
{
	struct bench b;

	*out = (struct costs){ 1e9, 1e9, 1e9, 1e9 };
	bench_open(&b, kib, blocks, policy, false);
	bench_fill(&b);
	for (int i = 0; i < rounds; i++) {
		lease(&b, &out->lease, &out->to_copy);
		warm(&b, 0, (b.next++ % b.sets) * SET, &out->warm);
	}
	for (int i = 0; i < rounds / 4 + 1; i++) {
		const uint64_t first = (uint64_t)(b.sets + (uint32_t)i) * SET;

		store(&b, 0, first);
		warm(&b, CACHE_HOST, first, &out->down);
		forget(&b, first);
	}
	bench_close(&b);
}

static const char *policy_wanted = "lru";
static uint32_t kib_wanted; /* 0: all sizes */

START_TEST(measure)
{
	static const uint32_t kib[] = { 4, 16, 64, 544 }, blocks[] = { 128, 1024, 4096 };

	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 3; k++) {
			const double n = blocks[k];
			struct costs c;

			if ((uint64_t)kib[i] * 1024 * blocks[k] > BYTES_MAX || (kib_wanted && kib[i] != kib_wanted))
				continue;
			measure_one(kib[i], blocks[k], policy_wanted, ROUNDS, &c);
			printf("{\"block_kib\": %3u, \"blocks\": %4u, \"lease_us\": %7.0f, \"lease_us_block\": %5.2f, \"to_copy_us\": %7.0f, "
			       "\"to_copy_us_block\": %5.2f, \"warm_us\": %7.0f, \"warm_us_block\": %5.2f, \"down_us_block\": %6.2f}\n",
			       kib[i], blocks[k], c.lease, c.lease / n, c.to_copy, c.to_copy / n, c.warm, c.warm / n, c.down / n);
			fflush(stdout);
		}
}
END_TEST

/* No cache of any processor has anything of the daemon's. */
static void caches_cool(uint8_t *bytes)
{
	cpu_set_t before, one;

	ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (!CPU_ISSET(i, &before))
			continue;
		CPU_ZERO(&one);
		CPU_SET(i, &one);
		ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
		for (size_t at = 0; at < COLD_BYTES; at += 64)
			bytes[at]++;
	}
	ck_assert_int_eq(sched_setaffinity(0, sizeof(before), &before), 0);
}

static uint32_t stage_rounds = STAGE_ROUNDS, stage_blocks; /* 0: several */

static int by_size(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void stages_print(uint32_t blocks, bool cold, uint64_t (*ns)[STAGE_ROUNDS_MAX])
{
#define STAGE_WORD(name, word) word,
	static const char *const words[] = { STAGE_MAP(STAGE_WORD) };
#undef STAGE_WORD

	printf("{\"blocks\": %4u, \"caches\": \"%s\"", blocks, cold ? "cold" : "warm");
	for (int s = 0; s < STAGE_COUNT; s++) {
		qsort(ns[s], stage_rounds, sizeof(ns[s][0]), by_size);
		printf(", \"%s_us\": %5.1f", words[s], (double)ns[s][stage_rounds / 2] / 1e3);
	}
	printf("}\n");
	fflush(stdout);
}

static void measure_stages(uint32_t blocks, bool cold)
{
	static uint64_t ns[STAGE_COUNT][STAGE_ROUNDS_MAX];
	uint8_t *const bytes = calloc(1, COLD_BYTES);
	struct bench b;

	bench_open(&b, STAGE_KIB, blocks, policy_wanted, true);
	bench_fill(&b);
	for (uint32_t i = 0; i < stage_rounds; i++) {
		if (cold)
			caches_cool(bytes);
		lease(&b, &(double){ 1e9 }, &(double){ 1e9 });
		for (int s = 0; s < STAGE_COUNT; s++)
			ns[s][i] = stage_ns((enum stage)s);
	}
	stages_print(blocks, cold, ns);
	bench_close(&b);
	free(bytes);
}

START_TEST(stages)
{
	static const uint32_t blocks[] = { 128, 1024 };

	ck_assert(stage_rounds && stage_rounds <= STAGE_ROUNDS_MAX);
	for (int i = 0; i < (stage_blocks ? 1 : 2); i++)
		for (int cold = 0; cold < 2; cold++)
			measure_stages(stage_blocks ? stage_blocks : blocks[i], cold);
}
END_TEST

static void share_print(const char *way, uint32_t blocks, double ideal_us, const double *us)
{
	uint64_t ns[ROUNDS];

	for (int i = 0; i < ROUNDS; i++)
		ns[i] = (uint64_t)(1e3 * us[i]);
	qsort(ns, ROUNDS, sizeof(ns[0]), by_size);
	printf("{\"way\": \"%s\", \"blocks\": %u, \"gb_s\": %.1f, \"threads\": %u, \"bus_us\": %.0f, \"median_us\": %.0f, \"best_us\": %.0f, \"ratio\": %.3f}\n", way,
	       blocks, bus_gb_s, sum_threads, ideal_us, (double)ns[ROUNDS / 2] / 1e3, (double)ns[0] / 1e3, ideal_us / ((double)ns[ROUNDS / 2] / 1e3));
	fflush(stdout);
}

START_TEST(share_of_a_bus)
{
	const uint32_t blocks = stage_blocks ? stage_blocks : 128;
	double up[ROUNDS], down[ROUNDS];
	struct kv_geometry g;
	const struct kv_layout l = layout_of(STAGE_KIB);
	struct bench b;

	ck_assert(bus_gb_s > 0);
	kv_geometry_of(&l, &g);
	bus_open(bus_gb_s);
	bench_open(&b, STAGE_KIB, blocks, policy_wanted, true);
	bench_fill(&b);
	for (int i = 0; i < ROUNDS; i++) {
		const uint64_t first = (uint64_t)(b.sets + (uint32_t)i) * SET;

		up[i] = down[i] = 1e9;
		warm(&b, 0, (b.next++ % b.sets) * SET, &up[i]);
		store(&b, 0, first);
		warm(&b, CACHE_HOST, first, &down[i]);
		forget(&b, first);
	}
	share_print("up", blocks, (double)(blocks * g.block_bytes) / bus_gb_s / 1e3, up);
	share_print("down", blocks, (double)(blocks * g.block_bytes) / bus_gb_s / 1e3, down);
	bench_close(&b);
	bus_close();
}
END_TEST

/* Steps a block: of a lease, of a Warm up, of one down. */
struct steps {
	double lease, warm, down;
};

static struct steps count_steps(uint32_t blocks)
{
	const double n = blocks;
	struct steps s;
	struct bench b;

	bench_open(&b, 4, blocks, "lru", false);
	bench_fill(&b);
	steps_begin();
	lease(&b, &(double){ 1e9 }, &(double){ 1e9 });
	s.lease = (double)steps_taken() / n;
	steps_begin();
	warm(&b, 0, (b.next++ % b.sets) * SET, &(double){ 1e9 });
	s.warm = (double)steps_taken() / n;
	store(&b, 0, b.sets * SET);
	steps_begin();
	warm(&b, CACHE_HOST, b.sets * SET, &(double){ 1e9 });
	s.down = (double)steps_taken() / n;
	bench_close(&b);
	return s;
}

/* What a block costs does not rise with their number: in steps, which no other work on the machine changes. What costs a block more for each other
 * block of its call costs MANY / FEW times as much. terrace-bench lists has the time. */
START_TEST(it_does_not_rise_with_their_number)
{
	const struct steps few = count_steps(FEW), many = count_steps(MANY);

	printf("steps a block of few, of many: lease %.2f %.2f, warm %.2f %.2f, down %.2f %.2f\n", few.lease, many.lease, few.warm, many.warm, few.down,
	       many.down);
	fflush(stdout);
	ck_assert_double_gt(few.lease, 1); /* they are counted */
	ck_assert_double_gt(few.warm, 1);
	ck_assert_double_gt(few.down, 1);
	ck_assert_double_lt(many.lease, MORE * few.lease);
	ck_assert_double_lt(many.warm, MORE * few.warm);
	ck_assert_double_lt(many.down, MORE * few.down);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *suite = suite_create("cache_vram_cost");
	TCase *t = tcase_create("cache_vram_cost");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 240);
	const bool measures = argc > 1 && !strcmp(argv[1], "--measure"), tells = argc > 1 && !strcmp(argv[1], "--stages"),
		   shares = argc > 2 && !strcmp(argv[1], "--bus");

	if (measures && argc > 2)
		policy_wanted = argv[2];
	if (measures && argc > 3)
		kib_wanted = (uint32_t)atoi(argv[3]);
	if (tells && argc > 2)
		stage_blocks = (uint32_t)atoi(argv[2]);
	if (tells && argc > 3)
		stage_rounds = (uint32_t)atoi(argv[3]);
	if (shares)
		bus_gb_s = atof(argv[2]);
	if (shares && argc > 3)
		stage_blocks = (uint32_t)atoi(argv[3]);
	if (shares && argc > 4)
		sum_threads = (uint32_t)atoi(argv[4]);
	if (measures)
		tcase_add_test(t, measure);
	else if (shares)
		tcase_add_test(t, share_of_a_bus);
	else if (tells)
		tcase_add_test(t, stages);
	else
		tcase_add_test(t, it_does_not_rise_with_their_number);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
