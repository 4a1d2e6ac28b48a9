/* Blocks of opaque layouts through all tiers: beside packed ones, whole and in layers, of one checked piece and of several of
 * which the last is short; over restarts; with damage in the last piece; to a GPU and back. */
#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/faults.h"
#include "daemon/call/lease.h"
#include "daemon/session/open.h"
#include "daemon/vram/state.h"
#include "kernels/format.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	KEYS = 24,
	UNEVEN_BYTES = 2 * 65536 + 18928, /* three pieces, the last one short */
	LAYERED_BYTES = 6 * 11120,
	SMALL_BYTES = 544,
	LAYOUTS = 4,
};

static struct kv_layout opaque(uint32_t n, uint32_t bytes, uint32_t layers)
{
	struct kv_layout l = {
		.fingerprint = { 3 }, .first_layer = n, .layers = layers, .block_tokens = RIG_TOKENS, .k_format = KV_OPAQUE,
		.layout_version = KV_LAYOUT_VERSION, .opaque_bytes = bytes, .opaque_name = "test/pages/1",
	};

	ck_assert_msg(!kv_layout_problem(&l), "%s", kv_layout_problem(&l));
	return l;
}

/* One of each kind, a packed one among them. */
static void layouts_fill(struct kv_layout l[LAYOUTS])
{
	l[0] = opaque(0, UNEVEN_BYTES, 0);
	l[1] = rig_layout(1, 0);
	l[2] = opaque(2, LAYERED_BYTES, 6);
	l[3] = opaque(3, SMALL_BYTES, 0);
}

static struct cache_options options_of(const struct rig_disks *d)
{
	struct cache_options o = d ? rig_disk_options(d, 1, 1) : rig_options(1);

	o.host_bytes = 16 << 20;
	o.extent_bytes = 4 << 20;
	if (d)
		o.slab_bytes = 2 << 20;
	return o;
}

static void open_over(struct rig *r, const struct rig_disks *d)
{
	const struct cache_options o = options_of(d);
	struct kv_layout l[LAYOUTS];

	layouts_fill(l);
	rig_open_layouts(r, &o, l, LAYOUTS);
	if (d)
		rig_restored(r);
}

static void disks_make(struct rig_disks *d)
{
	rig_disks_make(d, NULL, 1, (64 << 20) / RIG_SLOT_BYTES);
}

START_TEST(they_are_given_back_from_memory)
{
	struct rig r;

	open_over(&r, NULL);
	ck_assert_uint_eq(r.s.block_bytes[0], UNEVEN_BYTES);
	ck_assert_uint_eq(r.s.block_bytes[3], SMALL_BYTES);
	ck_assert_uint_eq(rig_put(&r, 0, KEYS), KEYS);
	ck_assert_uint_eq(rig_prefix(&r, 0, KEYS), KEYS);
	ck_assert_uint_eq(rig_read_all(&r, 0, KEYS), KEYS);
	rig_close(&r);
}
END_TEST

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

/* _i 1: the catalog is lost each time, and the headers alone say what there is. */
START_TEST(they_are_given_back_over_a_restart)
{
	enum status st[KEYS];
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_over(&r, &d);
	ck_assert_uint_eq(rig_put(&r, 0, KEYS), KEYS);
	ck_assert_int_eq(rig_flush(&r, 0, KEYS, st), STATUS_OK);
	for (int i = 0; i < KEYS; i++)
		ck_assert_int_eq(st[i], STATUS_OK);
	for (int round = 0; round < 3; round++) {
		rig_close(&r);
		if (_i)
			ck_assert_int_eq(nftw(d.catalog, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
		open_over(&r, &d);
		ck_assert_uint_eq(rig_prefix(&r, 0, KEYS), KEYS);
		ck_assert_uint_eq(rig_read_all(&r, 0, KEYS), KEYS);
		rig_quiet(&r);
	}
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* More than memory holds: they are spilled, and come back. */
START_TEST(they_are_spilled_and_loaded)
{
	enum { MANY = 96 };
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_over(&r, &d);
	for (uint32_t i = 0; i < MANY; i += 8) {
		ck_assert_uint_eq(rig_put(&r, i, 8), 8);
		rig_quiet(&r);
	}
	ck_assert_uint_eq(rig_read_all(&r, 0, MANY), MANY);
	ck_assert_double_gt(rig_stat(&r, "terrace_moved_bytes_total", "from=disk,to=host"), 0);
	rig_quiet(&r);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- damage ---- */

static uint8_t wanted[UNEVEN_BYTES];
static int flipped;

/* Flips a bit of the last byte of the block that begins with the same bytes, wherever it lies in this file. */
static int flip_in(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	uint8_t *map;
	int fd;

	(void)at;
	if (kind != FTW_F || st->st_size < UNEVEN_BYTES)
		return 0;
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	map = mmap(NULL, (size_t)st->st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	for (off_t i = 0; i + UNEVEN_BYTES <= st->st_size; i += SLOT_HEADER_BYTES)
		if (!memcmp(map + i, wanted, UNEVEN_BYTES)) {
			map[i + UNEVEN_BYTES - 1] ^= 0x20;
			flipped++;
		}
	munmap(map, (size_t)st->st_size);
	close(fd);
	return 0;
}

/* In the last byte of the short piece, which no sum of a whole piece covers. */
START_TEST(a_flipped_bit_in_the_last_piece_on_disk_is_found)
{
	struct cache_place p[LAYOUTS];
	struct cache_leased leased;
	enum status st[KEYS];
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_over(&r, &d);
	ck_assert_uint_eq(rig_put(&r, 0, KEYS), KEYS);
	ck_assert_int_eq(rig_flush(&r, 0, KEYS, st), STATUS_OK);
	rig_close(&r);
	rig_fill(wanted, UNEVEN_BYTES, 5, 0);
	flipped = 0;
	ck_assert_int_eq(nftw(d.folder[0], flip_in, 16, FTW_PHYS), 0);
	ck_assert_int_eq(flipped, 1);
	open_over(&r, &d);
	ck_assert_int_eq(rig_lease_wait(&r, 5, 1, true, p, &leased), STATUS_MISS);
	ck_assert_uint_eq(rig_prefix(&r, 5, 1), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, KEYS), KEYS - 1);
	rig_quiet(&r);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- GPUs ---- */

enum { GPU_KEYS = 6 };

static void gpu_open(struct vram_rig *v, const struct kv_layout *l, uint32_t count, uint32_t sum_threads)
{
	vr_open(v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 48, .host_slots = 64, .own = l, .layouts = count, .sum_threads = sum_threads });
}

static void all_match(struct vram_rig *v, const struct cache_place *p, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count * v->r.s.layouts; i++)
		ck_assert_msg(rig_matches(vr_bytes(v, &p[i]), v->r.s.block_bytes[i % v->r.s.layouts], first + i / v->r.s.layouts, i % v->r.s.layouts),
			      "cell %u", i);
}

/* Declared layers come one by one; a block without layers is there with the last one. */
START_TEST(layers_come_to_a_gpu_in_their_order)
{
	const struct kv_layout l[] = { opaque(0, LAYERED_BYTES, 6), opaque(1, UNEVEN_BYTES, 0) };
	const uint32_t count = 1 + (uint32_t)_i % 2;
	struct cache_place p[2 * GPU_KEYS];
	struct cache_leased leased;
	struct vram_rig v;
	uint8_t whole[LAYERED_BYTES];

	gpu_open(&v, l, count, _i < 2 ? 0 : 2);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, GPU_KEYS), GPU_KEYS);
	ck_assert_uint_eq(vr_put(&v, 0, VR_PLACED, 1), 1); /* the GPU has an extent now */
	rig_quiet(&v.r);
	vr_hold(&v, 0, count == 1 ? 2 : 0);
	ck_assert_int_eq(vr_lease(&v, 0, 0, GPU_KEYS, true, false, p, &leased), STATUS_OK);
	ck_assert_uint_eq(leased.progress_page_layers, 6);
	if (count == 1) {
		RIG_AWAIT(vr_layer_there(&v, &leased, 1));
		ck_assert(!vr_layer_there(&v, &leased, 2));
		for (uint64_t n = 0; n < GPU_KEYS; n++) { /* two layers of each block, and of the others nothing */
			rig_fill(whole, LAYERED_BYTES, n, 0);
			ck_assert_mem_eq(vr_bytes(&v, &p[n]), whole, LAYERED_BYTES / 3);
			ck_assert_mem_ne(vr_bytes(&v, &p[n]) + LAYERED_BYTES / 3, whole + LAYERED_BYTES / 3, 64);
		}
	} else {
		usleep(20000);
		ck_assert(!vr_layer_there(&v, &leased, 0));
	}
	vr_go(&v, 0);
	vr_wait_layers(&v, &leased);
	all_match(&v, p, 0, GPU_KEYS);
	vr_release(&v, &leased);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 0);
	vr_close(&v);
}
END_TEST

/* Without layers anywhere a lease has one: all or nothing. */
START_TEST(a_block_without_layers_is_one)
{
	const struct kv_layout l = opaque(1, UNEVEN_BYTES, 0);
	struct cache_place p[GPU_KEYS];
	struct cache_leased leased;
	struct vram_rig v;

	gpu_open(&v, &l, 1, _i ? 2 : 0);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, GPU_KEYS), GPU_KEYS);
	ck_assert_uint_eq(vr_put(&v, 0, VR_PLACED, 1), 1);
	rig_quiet(&v.r);
	vr_hold(&v, 0, 0);
	ck_assert_int_eq(vr_lease(&v, 0, 0, GPU_KEYS, true, false, p, &leased), STATUS_OK);
	ck_assert_uint_eq(leased.progress_page_layers, 1);
	ck_assert(!vr_layer_there(&v, &leased, 0));
	vr_go(&v, 0);
	vr_wait_layers(&v, &leased);
	all_match(&v, p, 0, GPU_KEYS);
	vr_release(&v, &leased);
	vr_close(&v);
}
END_TEST

/* Put on a GPU, which sums all pieces, the short one too: they come down to memory, and go across to another GPU. */
START_TEST(they_come_down_and_go_across)
{
	struct kv_layout l[LAYOUTS];
	struct cache_place p[LAYOUTS * GPU_KEYS];
	struct cache_leased leased;
	struct vram_rig v;

	layouts_fill(l);
	gpu_open(&v, l, LAYOUTS, _i ? 2 : 0);
	ck_assert_uint_eq(vr_put(&v, 0, 0, GPU_KEYS), GPU_KEYS);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, GPU_KEYS), GPU_KEYS);
	ck_assert_uint_eq(rig_stat(&v.r, "terrace_gpu_commit_sums_total", "result=made"), GPU_KEYS * LAYOUTS);
	ck_assert_int_eq(vr_lease(&v, 1, 0, GPU_KEYS, true, false, p, &leased), STATUS_OK);
	vr_wait_layers(&v, &leased);
	all_match(&v, p, 0, GPU_KEYS);
	vr_release(&v, &leased);
	rig_quiet(&v.r);
	ck_assert_double_eq(vr_corrupt(&v, "to=host") + vr_corrupt(&v, "to=gpu"), 0);
	vr_sound(&v);
	vr_close(&v);
}
END_TEST

/* A bit of the short piece: of what a GPU has, before it came down; of what memory has, before it went up. */
START_TEST(a_flipped_bit_on_either_side_is_found)
{
	const struct kv_layout l = opaque(1, UNEVEN_BYTES, 0);
	const uint32_t last = UNEVEN_BYTES - 1;
	struct cache_leased leased;
	struct cache_place p;
	struct vram_rig v;

	gpu_open(&v, &l, 1, _i ? 2 : 0);
	ck_assert_int_eq(cache_session_write_back(v.r.c, v.r.s.id), STATUS_OK); /* nothing comes down by itself */
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	rig_quiet(&v.r);
	vr_flip(&v, 0, 0, last);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, &p, &leased), STATUS_MISS);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);

	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 1, 1), 1);
	vr_flip(&v, CACHE_HOST, 1, last);
	for (int i = 0; i < 3 && vr_lease(&v, 0, 1, 1, true, false, &p, &leased) == STATUS_OK; i++) { /* granted ahead of its copy */
		vr_wait_layers(&v, &leased);
		vr_release(&v, &leased);
		rig_quiet(&v.r);
	}
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	vr_close(&v);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_opaque");
	TCase *t = tcase_create("opaque");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, they_are_given_back_from_memory);
	tcase_add_loop_test(t, they_are_given_back_over_a_restart, 0, 2);
	tcase_add_test(t, they_are_spilled_and_loaded);
	tcase_add_test(t, a_flipped_bit_in_the_last_piece_on_disk_is_found);
	tcase_add_loop_test(t, layers_come_to_a_gpu_in_their_order, 0, 4);
	tcase_add_loop_test(t, a_block_without_layers_is_one, 0, 2);
	tcase_add_loop_test(t, they_come_down_and_go_across, 0, 2);
	tcase_add_loop_test(t, a_flipped_bit_on_either_side_is_found, 0, 2);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
