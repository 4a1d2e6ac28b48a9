/* Bytes that a disk brings back wrong: torn writes and flipped bits. What is judged sound is the block
 * that was asked for, whole; everything else is stale or corrupt.
 */
#include "tests/store/slab/rig.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TERRACE_SANITIZED
enum { SCALE = 10 };
#elif defined(TERRACE_TESTS_SMALL)
enum { SCALE = 4 };
#else
enum { SCALE = 1 };
#endif

enum { SECTOR = 512, SECTORS = RIG_SLOT / SECTOR, USED = SLOT_HEADER_BYTES + RIG_LAYERS * RIG_LAYER_BYTES };

struct tear {
	struct rig rig;
	struct disk_place place;
	uint8_t *old, *new, *mixed, *back;
	uint64_t old_n, new_n;     /* blocks; the same: written again, of a new generation */
};

static void tear_begin(struct tear *t, int engine, uint64_t old_n, uint64_t new_n)
{
	rig_begin(&t->rig, rig_engines[engine], NULL);
	rig_open(&t->rig);
	t->place = rig_take(&t->rig, RIG_SLOT);
	t->old = rig_pages(RIG_SLOT);
	t->new = rig_pages(RIG_SLOT);
	t->mixed = rig_pages(RIG_SLOT);
	t->back = rig_pages(RIG_SLOT);
	t->old_n = old_n;
	t->new_n = new_n;
	rig_block(t->old, old_n, 1);
	rig_block(t->new, new_n, 2);
}

static void tear_end(struct tear *t)
{
	rig_end(&t->rig);
	free(t->old);
	free(t->new);
	free(t->mixed);
	free(t->back);
}

/* The slot as the disk has it when only the sectors in `new` were written; and what is made of it. */
static void tear_at(struct tear *t, uint64_t new)
{
	bool is_old, is_new;

	for (uint32_t i = 0; i < SECTORS; i++)
		memcpy(t->mixed + i * SECTOR, (new >> i & 1 ? t->new : t->old) + i * SECTOR, SECTOR);
	ck_assert_int_eq(rig_write(&t->rig, t->place, t->mixed, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_read(&t->rig, t->place, t->back, RIG_SLOT), STATUS_OK);
	is_old = memcmp(t->back, t->old, USED) == 0;
	is_new = memcmp(t->back, t->new, USED) == 0;
	ck_assert_int_eq(rig_judge(t->back, t->old_n, 1) == STATUS_OK, is_old);
	ck_assert_int_eq(rig_judge(t->back, t->new_n, 2) == STATUS_OK, is_new);
	/* A reader that does not know the generation gets one of the two, whole. */
	if (rig_judge(t->back, t->old_n, 0) == STATUS_OK || rig_judge(t->back, t->new_n, 0) == STATUS_OK)
		ck_assert(is_old || is_new);
	ck_assert_int_ne(rig_judge(t->back, 999, 0), STATUS_OK);
}

static const uint64_t pairs[][2] = { { 1, 2 }, { 1, 1 } };

START_TEST(a_torn_write_is_never_taken_for_a_block)
{
	for (int engine = rig_engine_first(); engine < 2; engine++) {
		uint64_t rng = 0x5eed + (uint64_t)_i;
		struct tear t;

		tear_begin(&t, engine, pairs[_i][0], pairs[_i][1]);
		for (uint32_t cut = 0; cut <= SECTORS; cut++) {
			tear_at(&t, (1ull << cut) - 1);          /* from the front */
			tear_at(&t, ~((1ull << cut) - 1));       /* from the back */
		}
		for (int i = 0; i < 300; i++)                    /* in any order */
			tear_at(&t, rig_next(&rng));
		for (uint32_t i = 0; i < SECTORS; i++) {         /* one lost, one come */
			tear_at(&t, 1ull << i);
			tear_at(&t, ~(1ull << i));
		}
		tear_end(&t);
	}
}
END_TEST

/* A tombstone is one page: torn, it leaves the old header, the tombstone, or a damaged header. */
START_TEST(a_torn_tombstone_names_no_other_block)
{
	for (int engine = rig_engine_first(); engine < 2; engine++) {
		struct tear t;

		tear_begin(&t, engine, 1, 1);
		ck_assert_int_eq(rig_write(&t.rig, t.place, t.old, RIG_SLOT), STATUS_OK);
		slot_tombstone((struct slot_header *)t.new, (struct slot_header *)t.old, 5);
		for (uint32_t sectors = 0; sectors < 256; sectors++) {
			const struct slot_header *h = (struct slot_header *)t.back;

			for (uint32_t i = 0; i < 8; i++)
				memcpy(t.mixed + i * SECTOR, (sectors >> i & 1 ? t.new : t.old) + i * SECTOR, SECTOR);
			ck_assert_int_eq(rig_tombstone(&t.rig, t.place, t.mixed), STATUS_OK);
			ck_assert_int_eq(rig_read(&t.rig, t.place, t.back, RIG_SLOT), STATUS_OK);
			if (memcmp(t.back, t.old, SLOT_HEADER_BYTES) == 0)
				ck_assert_int_eq(rig_judge(t.back, 1, 1), STATUS_OK);
			else
				ck_assert_int_ne(rig_judge(t.back, 1, 0), STATUS_OK);
			if (slot_header_problem(h) == NULL)
				ck_assert_mem_eq(h->key, ((struct slot_header *)t.old)->key, SLOT_KEY_MAX);
		}
		tear_end(&t);
	}
}
END_TEST

/* ---- flipped bits ---- */

enum { BLOCKS = 10000 / SCALE, WINDOW = 50 };

static void write_all(struct rig *r, struct disk_place *places, uint8_t *slots)
{
	static struct rig_wait w[WINDOW];

	for (uint64_t n = 0; n < BLOCKS; n += WINDOW) {
		for (uint64_t i = 0; i < WINDOW; i++) {
			places[n + i] = rig_take(r, RIG_SLOT);
			rig_block(slots + i * RIG_SLOT, n + i, 1);
			rig_wait_begin(&w[i]);
			ck_assert_int_eq(disk_write(r->disk, places[n + i], slots + i * RIG_SLOT, RIG_SLOT, RING_NONE,
						    RING_IDLE, &w[i].q), STATUS_OK);
		}
		for (uint64_t i = 0; i < WINDOW; i++)
			ck_assert_int_eq(rig_wait_end(&w[i]), STATUS_OK);
	}
	ck_assert_int_eq(rig_sync(r), STATUS_OK);
}

/* Flips one bit of each block on the disk, in [from, to) of its slot; again: back. */
static void flip_all(struct rig *r, const struct disk_place *places, uint64_t seed, uint64_t from, uint64_t to)
{
	char name[32];
	int fd = -1;

	for (uint64_t n = 0; n < BLOCKS; n++) {
		uint64_t dice = rig_next(&seed);
		off_t at = (off_t)(4096 + (uint64_t)places[n].slot * RIG_SLOT + from + (dice >> 3) % (to - from));
		uint8_t byte;

		if (n == 0 || places[n].slab != places[n - 1].slab) {
			if (fd >= 0)
				close(fd);
			snprintf(name, sizeof(name), "slab-%06u.trc", places[n].slab);
			fd = open(rig_path(r, name), O_RDWR);
			ck_assert_int_ge(fd, 0);
		}
		ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
		byte ^= (uint8_t)(1u << (dice & 7));
		ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	}
	close(fd);
}

static uint64_t count_sound(struct rig *r, const struct disk_place *places, uint8_t *slots)
{
	static struct rig_wait w[WINDOW];
	uint64_t sound = 0;

	for (uint64_t n = 0; n < BLOCKS; n += WINDOW) {
		for (uint64_t i = 0; i < WINDOW; i++) {
			rig_wait_begin(&w[i]);
			ck_assert_int_eq(disk_read(r->disk, places[n + i], slots + i * RIG_SLOT, RIG_SLOT, RING_NONE,
						   RING_URGENT, &w[i].q), STATUS_OK);
		}
		for (uint64_t i = 0; i < WINDOW; i++) {
			enum status s = rig_wait_end(&w[i]);

			ck_assert_int_eq(s, STATUS_OK);
			s = rig_judge(slots + i * RIG_SLOT, n + i, 1);
			if (s != STATUS_CORRUPT)
				ck_assert_int_eq(s, STATUS_OK);
			sound += s == STATUS_OK;
		}
	}
	return sound;
}

START_TEST(every_flipped_bit_is_seen)
{
	struct disk_place *places = calloc(BLOCKS, sizeof(*places));
	uint8_t *slots = rig_pages(WINDOW * RIG_SLOT);
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	r.options.budget_bytes = 256 << 20;
	r.options.slab_bytes = 64 << 20;
	rig_open(&r);
	write_all(&r, places, slots);
	ck_assert_uint_eq(count_sound(&r, places, slots), BLOCKS);
	flip_all(&r, places, 11, SLOT_HEADER_BYTES, USED);
	ck_assert_uint_eq(count_sound(&r, places, slots), 0);
	flip_all(&r, places, 11, SLOT_HEADER_BYTES, USED);
	ck_assert_uint_eq(count_sound(&r, places, slots), BLOCKS);
	flip_all(&r, places, 12, 0, SLOT_HEADER_BYTES);
	ck_assert_uint_eq(count_sound(&r, places, slots), 0);
	disk_note_corrupt(r.disk, BLOCKS);
	ck_assert_uint_eq(rig_look(&r).corrupt, BLOCKS);
	ck_assert_int_eq(rig_look(&r).health, DISK_HEALTHY);
	rig_end(&r);
	free(slots);
	free(places);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_disk_bytes");
	TCase *tc = tcase_create("bytes");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_loop_test(tc, a_torn_write_is_never_taken_for_a_block, 0, 2);
	tcase_add_test(tc, a_torn_tombstone_names_no_other_block);
	tcase_add_loop_test(tc, every_flipped_bit_is_seen, rig_engine_first(), 2);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
