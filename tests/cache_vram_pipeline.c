/* From a disk to a GPU: reads and copies, each as slow as a test can make them, go on beside each other. */
#include "tests/cache_vram_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* DELAY: a block's read, and its copy, unless the machine itself takes a tenth of that; never more than the longest. */
enum { BLOCKS = 48, DEPTH = 4, ROUNDS = 8, DELAY_US = 4000, DELAY_LONGEST_US = 100000, BLOCKS_PER_MIB = 4, MACHINE_TIMES = 10 };

static _Atomic uint32_t delay_us; /* 0: none */

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* On the disk's one thread: one read after the other. A machine that sleeps too long is made up for by the next ones. */
static int slowly(void *arg, const struct ring_request *q, uint32_t *most)
{
	static int64_t free_us;
	int64_t now = now_us();

	(void)arg;
	(void)most;
	if (q->op != RING_READ || !delay_us)
		return 0;
	free_us = (free_us < now - (int64_t)DEPTH * delay_us ? now : free_us) + delay_us;
	if (free_us > now)
		nanosleep(&(struct timespec){ (free_us - now) / 1000000, (free_us - now) % 1000000 * 1000 }, NULL);
	return 0;
}

static const struct ring_calls calls = { .fault = slowly };

static void open_on(struct vram_rig *v, const struct rig_disks *d, uint32_t host_slots)
{
	char copy[16];

	snprintf(copy, sizeof(copy), "%u", delay_us * BLOCKS_PER_MIB);
	setenv("SIM_GPU_US_PER_MIB", copy, 1);
	vr_open(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS + 16, .host_slots = host_slots, .disks = d, .spill_milli = 900,
					       .sum_threads = 2, .io_calls = &calls, .disk_depth = DEPTH });
	rig_restored(&v->r);
}

/* A disk with the blocks. */
static void prepare(struct rig_disks *d)
{
	struct vram_rig v;

	delay_us = 0;
	vr_disks_make(d, 1, 2 * BLOCKS);
	open_on(&v, d, BLOCKS + 16);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	vr_close(&v);
}

static double warm(struct vram_rig *v, int32_t gpu)
{
	const double since = (double)now_us() / 1e3;

	ck_assert_uint_eq(vr_warm(v, gpu, 0, BLOCKS), BLOCKS);
	return (double)now_us() / 1e3 - since;
}

static double least(double a, double b)
{
	return a < b ? a : b;
}

/* What the machine itself takes, for the reads, the checksums and the copies, is to be little beside the delays. */
static uint32_t delay_that_shows(const struct rig_disks *d)
{
	struct vram_rig v;
	double machine = 1e9, delay;

	for (int i = 0; i < 3; i++) {
		open_on(&v, d, BLOCKS + 16);
		machine = least(machine, warm(&v, 0));
		vr_close(&v);
	}
	delay = machine * 1e3 * MACHINE_TIMES / BLOCKS;
	return delay < DELAY_US ? DELAY_US : delay > DELAY_LONGEST_US ? DELAY_LONGEST_US : (uint32_t)delay;
}

/* The longer of the two and a chunk of the other, not the sum. */
static bool overlap(double reading, double copying, double both)
{
	return both < (reading > copying ? reading : copying) + least(reading, copying) / 4;
}

/* All of it, and what each of the two takes alone, at best; on a busy machine that takes a few rounds. `host_slots` of memory on the way. */
static void times(const struct rig_disks *d, uint32_t delay, uint32_t host_slots, double *reading, double *copying, double *both)
{
	struct vram_rig v;

	*reading = *copying = 1e9;
	*both = 1e10;
	for (int i = 0; i < ROUNDS && !overlap(*reading, *copying, *both); i++) {
		delay_us = delay;
		open_on(&v, d, BLOCKS + 16);
		*reading = least(*reading, warm(&v, CACHE_HOST));
		*copying = least(*copying, warm(&v, 0));
		vr_close(&v);
		open_on(&v, d, host_slots);
		*both = least(*both, warm(&v, 0));
		delay_us = 0;
		ck_assert_uint_eq(vr_read_all(&v, 0, 0, BLOCKS), BLOCKS);
		vr_close(&v);
	}
	printf("{\"blocks\": %d, \"delay_us\": %u, \"memory_slots\": %u, \"read_ms\": %.0f, \"copy_ms\": %.0f, \"read_and_copy_ms\": %.0f}\n",
	       BLOCKS, delay, host_slots, *reading, *copying, *both);
}

START_TEST(reads_and_copies_overlap)
{
	double reading, copying, both;
	struct rig_disks d;
	uint32_t delay;

	prepare(&d);
	delay = delay_that_shows(&d);
	times(&d, delay, _i ? BLOCKS / 3 : BLOCKS + 16, &reading, &copying, &both);
	ck_assert_double_gt(reading, BLOCKS * delay / 1e3 * 0.9);
	ck_assert_double_gt(copying, BLOCKS * delay / 1e3 * 0.9);
	ck_assert(overlap(reading, copying, both));
	rig_disks_remove(&d);
}
END_TEST

/* One read after the other, of which so many may begin. */
static _Atomic uint32_t reads_left;

static int paced(void *arg, const struct ring_request *q, uint32_t *most)
{
	(void)arg;
	(void)most;
	if (q->op != RING_READ)
		return 0;
	nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
	while (!reads_left)
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	reads_left--;
	return 0;
}

static const struct ring_calls paced_calls = { .fault = paced };

static _Atomic bool ticking;

/* As the daemon's door: every 50 ms. */
static void *ticks(void *rig)
{
	struct vram_rig *v = rig;

	cache_thread_enter();
	while (ticking) {
		rig_tick(v->r.c, v->r.now);
		usleep(50000);
	}
	cache_thread_leave();
	return NULL;
}

static void *warm_all(void *rig)
{
	cache_thread_enter();
	ck_assert_uint_eq(vr_warm(rig, 0, 0, BLOCKS), BLOCKS);
	cache_thread_leave();
	return NULL;
}

/* Of a disk that is slower than the GPU each block would be a list of its own. But what has come is copied, whatever becomes of the rest. */
START_TEST(blocks_of_a_disk_are_copied_together)
{
	enum { OTHERS = 1000, BEGIN = BLOCKS - 16 - 3 };
	pthread_t ticker, warmer;
	double lists, moved;
	struct rig_disks d;
	struct vram_rig v;

	prepare(&d);
	unsetenv("SIM_GPU_US_PER_MIB");
	reads_left = 1000;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS + 16, .host_slots = BLOCKS + 16, .disks = &d, .spill_milli = 900,
						.sum_threads = 2, .io_calls = &paced_calls, .disk_depth = 1 });
	rig_restored(&v.r);
	/* Memory and GPU are full, and nobody waits for either. */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, OTHERS, BLOCKS + 16), BLOCKS + 16);
	ck_assert_uint_eq(vr_warm(&v, 0, OTHERS, BLOCKS + 16), BLOCKS + 16);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	lists = rig_stat(&v.r, "terrace_gpu_lists_total", "gpu=0,list=up");
	moved = rig_stat(&v.r, "terrace_moved_bytes_total", "from=host,to=gpu");
	reads_left = BEGIN + 1; /* the next one, which waits, holds up the end of the last */
	v.r.served = ticking = true;
	ck_assert_int_eq(pthread_create(&ticker, NULL, ticks, &v), 0);
	ck_assert_int_eq(pthread_create(&warmer, NULL, warm_all, &v), 0);
	RIG_AWAIT(rig_stat(&v.r, "terrace_moved_bytes_total", "from=host,to=gpu") == moved + BEGIN * (double)VR_BLOCK_BYTES);
	reads_left = 1000;
	pthread_join(warmer, NULL);
	ck_assert_double_lt(rig_stat(&v.r, "terrace_gpu_lists_total", "gpu=0,list=up"), lists + BLOCKS * 2 / 3);
	ticking = false;
	pthread_join(ticker, NULL);
	v.r.served = false;
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, BLOCKS), BLOCKS);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_pipeline");
	TCase *t = tcase_create("cache_vram_pipeline");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, reads_and_copies_overlap, 0, 2);
	tcase_add_test(t, blocks_of_a_disk_are_copied_together);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
