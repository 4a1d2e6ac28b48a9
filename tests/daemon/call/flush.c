/* Flush of everything sees each block once, wherever the block moves meanwhile: between memory, a GPU and the disk. */
#include "daemon/call/flush.h"

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/disk/scrub.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 18, LAST = BLOCKS - 1, NEW = 500, HOST_SLOTS = 24 }; /* of which an extent's rest takes a quarter */

static void nothing(void *arg)
{
	(void)arg;
}

/* Writes that the flush waits for. */
static uint32_t waits_for(struct vram_rig *v, const struct cache_wait *w)
{
	uint32_t n;

	cache_lock(v->r.c);
	n = w->outstanding;
	cache_unlock(v->r.c);
	return n;
}

static void flush_goes_on(struct vram_rig *v, struct cache_wait *w)
{
	ck_assert_int_eq(cache_flush(v->r.c, v->r.s.id, NULL, v->r.now, w, NULL, &v->r.why), STATUS_BUSY);
}

/* Goes on with the flush until it waits for some writes, and has more blocks to write: slabs are made one at a time. The disk writes
 * nothing more until `vr_writes` is unlocked. */
static void flush_begins(struct vram_rig *v, struct cache_wait *w)
{
	pthread_mutex_lock(&vr_writes);
	for (int i = 0; flush_goes_on(v, w), !waits_for(v, w); i++) {
		ck_assert_int_lt(i, 10000);
		pthread_mutex_unlock(&vr_writes);
		rig_tick(v->r.c, v->r.now);
		pthread_mutex_lock(&vr_writes);
	}
	ck_assert_uint_lt(waits_for(v, w), BLOCKS / 2);
}

static enum status flush_ends(struct vram_rig *v, struct cache_wait *w)
{
	enum status s;

	for (int i = 0; (s = cache_flush(v->r.c, v->r.s.id, NULL, v->r.now, w, NULL, &v->r.why)) == STATUS_BUSY; i++) {
		ck_assert_int_lt(i, 60000);
		rig_tick(v->r.c, v->r.now);
		usleep(1000);
	}
	cache_wait_end(v->r.c, w);
	return s;
}

/* Memory is full and each block is in it alone, but for the last one, which is on the GPU too. */
static void opened(struct vram_rig *v, struct rig_disks *d)
{
	struct cache_place p;
	struct cache_leased l;

	vr_disks_make(d, 1, 2 * BLOCKS);
	vr_open(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = HOST_SLOTS, .disks = d, .spill_milli = 1,
					       .io_calls = &vr_held_writes });
	rig_restored(&v->r);
	ck_assert_uint_eq(vr_put(v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	ck_assert_str_eq(vr_tier(v, 0), "host");
	ck_assert_int_eq(vr_lease(v, 0, LAST, 1, true, false, &p, &l), STATUS_OK);
	vr_wait_layers(v, &l);
	vr_release(v, &l);
	rig_quiet(&v->r);
	ck_assert_str_eq(vr_tier(v, LAST), "gpu+host");
}

/* New blocks take what room there is, then the slot of the last one, which then is on the GPU alone. */
static void falls_back_to_the_gpu(struct vram_rig *v)
{
	for (uint64_t n = NEW; !strcmp(vr_tier(v, LAST), "gpu+host"); n++) {
		ck_assert_uint_lt(n, NEW + BLOCKS);
		v->r.now += 1000;
		ck_assert_uint_eq(vr_put(v, CACHE_HOST, n, 1), 1);
	}
	ck_assert_str_eq(vr_tier(v, LAST), "gpu");
}

static struct cache_place place_of(struct vram_rig *v, uint64_t n)
{
	struct cache_leased l;
	struct cache_place p;

	ck_assert_int_eq(vr_lease(v, CACHE_HOST, n, 1, true, false, &p, &l), STATUS_OK);
	vr_release(v, &l);
	return p;
}

static bool same_place(const struct cache_place *a, const struct cache_place *b)
{
	return a->extent == b->extent && a->offset == b->offset;
}

/* Deletes the one of the new blocks that has this place. */
static void place_clear(struct vram_rig *v, const struct cache_place *place)
{
	struct cache_place p;
	uint64_t n = NEW - 1;
	enum status st;

	do
		p = place_of(v, ++n);
	while (!same_place(&p, place));
	ck_assert_int_eq(rig_delete(&v->r, n, 1, &st), STATUS_OK);
}

/* The last block is on the GPU alone, and comes back, to a slot that the flush has been at. Until the flush goes on
 * it keeps what it has written. */
static void comes_down_to_an_earlier_place(struct vram_rig *v, struct cache_wait *w)
{
	const struct cache_place first = place_of(v, 0);
	struct cache_place now;
	enum status st;

	rig_quiet(&v->r);
	ck_assert_int_eq(rig_delete(&v->r, 0, 1, &st), STATUS_OK);
	pthread_mutex_lock(&vr_writes);
	flush_goes_on(v, w);
	pthread_mutex_unlock(&vr_writes);
	rig_quiet(&v->r);
	ck_assert_str_eq(vr_tier(v, LAST), "gpu+host");
	falls_back_to_the_gpu(v);
	place_clear(v, &first);
	now = place_of(v, LAST);
	ck_assert(same_place(&now, &first));
	ck_assert_str_eq(vr_tier(v, LAST), "gpu+host");
}

/* _i: it comes down meanwhile, or stays on the GPU alone. */
START_TEST(a_block_transfers_while_all_is_flushed)
{
	struct cache_wait w = { .ready = nothing };
	struct rig_disks d;
	struct vram_rig v;

	opened(&v, &d);
	flush_begins(&v, &w);
	if (_i == 1)
		falls_back_to_the_gpu(&v);
	pthread_mutex_unlock(&vr_writes);
	if (_i == 0)
		comes_down_to_an_earlier_place(&v, &w);
	ck_assert_int_eq(flush_ends(&v, &w), STATUS_OK);
	ck_assert_str_eq(vr_tier(&v, LAST), "gpu+host+disk");
	vr_end(&v, &d);
}
END_TEST

/* Flips a byte of each block in the first disk's slab files. */
static void disks_rot(const struct rig_disks *d)
{
	DIR *dir = opendir(d->folder[0]);
	char path[512];

	ck_assert_ptr_nonnull(dir);
	for (struct dirent *e; (e = readdir(dir));) {
		FILE *f;

		if (strncmp(e->d_name, "slab-", 5))
			continue;
		snprintf(path, sizeof(path), "%s/%s", d->folder[0], e->d_name);
		f = fopen(path, "r+");
		ck_assert_ptr_nonnull(f);
		for (long at = 4096 + 2 * SLOT_HEADER_BYTES; !fseek(f, at, SEEK_SET) && fgetc(f) != EOF; at += VR_SLOT_BYTES) {
			fseek(f, at, SEEK_SET);
			fputc(0xa5, f);
			fflush(f);
		}
		fclose(f);
	}
	closedir(dir);
}

/* The only copy on a disk proves wrong behind the walk: memory's is written anew before the flush answers. */
START_TEST(a_copy_on_the_disk_is_lost_while_all_is_flushed)
{
	struct cache_verified sum = { .blocks = 0 };
	struct cache_wait w = { .ready = nothing };
	uint64_t cursor = 0;
	struct rig_disks d;
	struct vram_rig v;

	opened(&v, &d);
	flush_begins(&v, &w);
	pthread_mutex_unlock(&vr_writes);
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), "host+disk");
	disks_rot(&d);
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_disk_step(v.r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	ck_assert_uint_gt(sum.corrupt, 0);
	ck_assert_str_eq(vr_tier(&v, 0), "host");
	ck_assert_int_eq(flush_ends(&v, &w), STATUS_OK);
	for (uint64_t n = 0; n < LAST; n++)
		ck_assert_str_eq(vr_tier(&v, n), "host+disk");
	vr_end(&v, &d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_flush");
	TCase *t = tcase_create("cache_flush");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, a_block_transfers_while_all_is_flushed, 0, 2);
	tcase_add_test(t, a_copy_on_the_disk_is_lost_while_all_is_flushed);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
