/* From a disk to a GPU: reads and copies go on beside each other, whichever of the two a test holds up. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "store/ring/ring.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCKS = 48, DEPTH = 4 };

/* One read after the other, of which so many may begin. */
static _Atomic uint32_t reads_left, reads_made;

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
	reads_made++;
	return 0;
}

static const struct ring_calls paced_calls = { .fault = paced };

static void open_on(struct vram_rig *v, const struct rig_disks *d, uint32_t host_slots, uint32_t depth)
{
	vr_open(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS + 16, .host_slots = host_slots, .disks = d, .spill_milli = 900,
					       .sum_threads = 2, .io_calls = &paced_calls, .disk_depth = depth });
	rig_restored(&v->r);
}

/* A disk with the blocks. */
static void prepare(struct rig_disks *d)
{
	struct vram_rig v;

	reads_left = 100000;
	vr_disks_make(d, 1, 2 * BLOCKS);
	open_on(&v, d, BLOCKS + 16, DEPTH);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	vr_close(&v);
}

static _Atomic bool ticking;

/* As the daemon's local socket: every 50 ms. */
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

struct running {
	pthread_t ticker, warmer;
};

/* A Warm of all blocks, as an engine asks for it. */
static void warm_begin(struct vram_rig *v, struct running *run)
{
	v->r.served = ticking = true;
	ck_assert_int_eq(pthread_create(&run->ticker, NULL, ticks, v), 0);
	ck_assert_int_eq(pthread_create(&run->warmer, NULL, warm_all, v), 0);
}

static void warm_end(struct vram_rig *v, struct running *run)
{
	pthread_join(run->warmer, NULL);
	ticking = false;
	pthread_join(run->ticker, NULL);
	v->r.served = false;
}

static double moved_up(struct vram_rig *v)
{
	return rig_stat(&v->r, "terrace_moved_bytes_total", "from=host,to=gpu");
}

/* Reads go on while copies do not: until all is read, or (_i) memory on the way is full of what waits for its copy. */
START_TEST(reads_go_on_beside_copies)
{
	const uint32_t host_slots = _i ? BLOCKS / 3 : BLOCKS + 16, wanted = _i ? BLOCKS / 3 - DEPTH : BLOCKS;
	struct running run;
	struct rig_disks d;
	struct vram_rig v;

	prepare(&d);
	open_on(&v, &d, host_slots, DEPTH);
	vr_hold(&v, 0, 1);
	reads_made = 0;
	warm_begin(&v, &run);
	RIG_AWAIT(reads_made >= wanted);
	ck_assert_double_eq(moved_up(&v), 0);
	vr_go(&v, 0);
	warm_end(&v, &run);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, BLOCKS), BLOCKS);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Copies go on while reads do not: of all that is read, with memory for all and (_i) for a part. terrace-bench vram has what that is worth: blocks
 * come to a GPU as fast as to memory. */
START_TEST(copies_go_on_beside_reads)
{
	const uint32_t host_slots = _i ? BLOCKS / 3 : BLOCKS + 16, some = BLOCKS / 6;
	struct running run;
	struct rig_disks d;
	struct vram_rig v;

	prepare(&d);
	open_on(&v, &d, host_slots, 1);
	reads_left = some + 1; /* the next one, which waits, holds up the end of the last */
	warm_begin(&v, &run);
	RIG_AWAIT(moved_up(&v) >= some * (double)VR_BLOCK_BYTES);
	reads_left = 1000;
	warm_end(&v, &run);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, BLOCKS), BLOCKS);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Whether the blocks of a disk that is slower than the GPU were copied in fewer lists than there are blocks. What has come is copied, whatever becomes of
 * the rest. */
static bool is_copied_together(void)
{
	enum { OTHERS = 1000, BEGIN = BLOCKS - 16 - 3 };
	double lists, moved;
	struct running run;
	struct rig_disks d;
	struct vram_rig v;
	bool together;

	prepare(&d);
	open_on(&v, &d, BLOCKS + 16, 1);
	/* Memory and GPU are full, and nobody waits for either. */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, OTHERS, BLOCKS + 16), BLOCKS + 16);
	ck_assert_uint_eq(vr_warm(&v, 0, OTHERS, BLOCKS + 16), BLOCKS + 16);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	lists = rig_stat(&v.r, "terrace_gpu_lists_total", "gpu=0,list=up");
	moved = moved_up(&v);
	reads_left = BEGIN + 1; /* the next one, which waits, holds up the end of the last */
	warm_begin(&v, &run);
	RIG_AWAIT(moved_up(&v) == moved + BEGIN * (double)VR_BLOCK_BYTES);
	reads_left = 1000;
	warm_end(&v, &run);
	together = rig_stat(&v.r, "terrace_gpu_lists_total", "gpu=0,list=up") < lists + BLOCKS * 2 / 3;
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, BLOCKS), BLOCKS);
	vr_close(&v);
	rig_disks_remove(&d);
	return together;
}

/* The cache waits for more blocks for a bounded time only, which a busy machine may let pass between any two: then once more. */
START_TEST(blocks_of_a_disk_are_copied_together)
{
	enum { TRIES = 20 };
	int tries = 0;

	while (!is_copied_together())
		ck_assert_int_lt(++tries, TRIES);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_pipeline");
	TCase *t = tcase_create("cache_vram_pipeline");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, reads_go_on_beside_copies, 0, 2);
	tcase_add_loop_test(t, copies_go_on_beside_reads, 0, 2);
	tcase_add_test(t, blocks_of_a_disk_are_copied_together);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
