/* Memory that is written over after its commit, beside GPUs: what goes up to one is what was committed, and what a GPU has beside is right still. Each
 * loop runs with threads for sums (_i 1) and without.
 */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/scribble_rig.h"
#include "tests/daemon/vram/rig.h"

#include <string.h>

enum { SLOTS = 16 };

static void open_with(struct vram_rig *v, const struct rig_disks *d, int threads, bool no_verify)
{
	vr_open(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = d, .spill_milli = 1,
					       .sum_threads = 2 * (uint32_t)threads, .no_verify = no_verify });
	if (d)
		rig_restored(&v->r);
}

/* The block's slot in memory, as an engine knows it by a lease. */
static uint8_t *slot_of(struct vram_rig *v, uint64_t n)
{
	struct cache_leased l;
	struct cache_place p;

	ck_assert_int_eq(vr_lease(v, CACHE_HOST, n, 1, true, false, &p, &l), STATUS_OK);
	vr_release(v, &l);
	return vr_bytes(v, &p) - SLOT_HEADER_BYTES;
}

static void change_and_reseal(uint8_t *slot)
{
	struct slot_header *h = (struct slot_header *)slot;

	slot[SLOT_HEADER_BYTES + VR_BLOCK_BYTES / 2] ^= 1;
	scribble_reseal(slot, h->generation);
}

static double found(struct vram_rig *v, const char *label)
{
	return rig_stat(&v->r, "terrace_memory_corrupt_blocks_total", label);
}

/* Sums of its own that are right do not make it the block: neither where all layers are summed on their way up, nor where the header alone is looked at. */
static void resealed(int threads, bool no_verify)
{
	struct cache_leased l;
	struct vram_rig v;
	struct cache_place p;

	open_with(&v, NULL, threads, no_verify);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 2), 2);
	change_and_reseal(slot_of(&v, 0));
	for (int i = 0; i < 3 && vr_lease(&v, 0, 0, 1, true, false, &p, &l) == STATUS_OK; i++) { /* granted ahead of its copy */
		vr_wait_layers(&v, &l);
		vr_release(&v, &l);
		rig_quiet(&v.r);
	}
	ck_assert_double_eq(found(&v, "found=gpu"), 1);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	ck_assert_uint_eq(vr_read_all(&v, 0, 1, 1), 1);
	vr_close(&v);
}

START_TEST(resealed_and_brought_up)
{
	resealed(_i, false);
	resealed(_i, true);
}
END_TEST

/* The disk's copy, which was acknowledged, goes with it. */
START_TEST(resealed_beside_a_disk)
{
	enum status st;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, _i, false);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&v.r, 0, 1, &st), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	change_and_reseal(slot_of(&v, 0));
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 1), 0);
	ck_assert_double_eq(found(&v, "found=gpu"), 1);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	vr_end(&v, &d);
}
END_TEST

/* Put on a GPU, and come down: memory's copy is written over before the disk has it. The block is a miss to the Flush, and the GPU's copy goes too. */
START_TEST(written_over_below_a_gpu)
{
	enum status st;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, _i, false);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), "gpu+host");
	slot_of(&v, 0)[SLOT_HEADER_BYTES + VR_BLOCK_BYTES - 1] ^= 1;
	ck_assert_int_eq(rig_flush(&v.r, 0, 1, &st), STATUS_OK);
	ck_assert_int_eq(st, STATUS_MISS);
	ck_assert_double_eq(found(&v, "found=spill"), 1);
	rig_check_accounting(v.r.c);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	vr_close(&v);
	open_with(&v, &d, _i, false);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 0);
	vr_end(&v, &d);
}
END_TEST

/* An earlier version's header, which is made anew when the block comes down from a GPU: the copy on the disk is as sound as before. */
START_TEST(down_beside_an_old_copy_on_disk)
{
	enum status st[2];
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, _i, false);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 2), 2);
	ck_assert_int_eq(rig_flush(&v.r, 0, 2, st), STATUS_OK);
	vr_close(&v);
	for (uint64_t n = 0; n < 2; n++)
		ck_assert_int_eq(scribble_on_disk(d.folder[0], VR_SLOT_BYTES, n, scribble_old, 0), 1);
	open_with(&v, &d, _i, false);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 2), 2);
	vr_push_out(&v, 2 * SLOTS);
	ck_assert_str_eq(vr_tier(&v, 0), "gpu+disk");
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 1); /* from the GPU, with a header of today's */
	ck_assert_str_eq(vr_tier(&v, 0), "gpu+host+disk");
	vr_push_out(&v, 2 * SLOTS);
	for (uint64_t n = 100; *vr_tier(&v, 0) == 'g'; n++) {
		vr_put(&v, 0, n, 1);
		rig_quiet(&v.r);
	}
	vr_push_out(&v, 2 * SLOTS);
	ck_assert_str_eq(vr_tier(&v, 0), "disk");
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 2), 2);
	vr_end(&v, &d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_scribble");
	TCase *t = tcase_create("scribble");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, resealed_and_brought_up, 0, 2);
	tcase_add_loop_test(t, resealed_beside_a_disk, 0, 2);
	tcase_add_loop_test(t, written_over_below_a_gpu, 0, 2);
	tcase_add_loop_test(t, down_beside_an_old_copy_on_disk, 0, 2);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
