/* The host tier over a device's memory (the simulated one): extents and their holds, places and addresses, the budget, and what the
 * device refuses. What does not depend on the memory is in store/host/host.c. */
#include "tests/store/host/rig.h"
#include "tests/sim/device.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1ull << 20)

enum { SLOT = 256 * 1000, GPU_IDS = 3 << 24 };

static const struct device_ops *ops;
static struct device *device;

static void device_begin(void)
{
	const char *why;

	ck_assert_int_eq(ops->open(0, &device, &why), STATUS_OK);
}

static struct host_tier *tier_of(uint64_t budget, uint64_t extent)
{
	return tier_with(&(struct host_options){ .budget_bytes = budget, .extent_bytes = extent, .first_extent_id = GPU_IDS, .ops = ops,
						 .device = device });
}

static uint64_t free_bytes(void)
{
	struct device_info i;
	const char *why;

	ck_assert_int_eq(ops->info(device, &i, &why), STATUS_OK);
	return i.free_bytes;
}

static uint32_t descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	uint32_t n = 0;

	ck_assert_ptr_nonnull(folder);
	while (readdir(folder))
		n++;
	closedir(folder);
	return n;
}

static struct host_slot taken(struct host_pool *p)
{
	struct host_slot s;

	ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
	return s;
}

static void end(struct host_tier *t)
{
	host_destroy(t);
	ops->close(device);
}

START_TEST(options_and_slots_have_bounds)
{
	struct host_options o = { .budget_bytes = SIM_GRANULARITY - 1, .extent_bytes = 4 * MIB, .ops = ops };
	struct host_pool *p;
	struct host_tier *t;

	device_begin();
	o.device = device;
	ck_assert_int_eq(host_create(&o, &t), STATUS_INVALID);
	t = tier_of(5 * MIB, 4 * MIB);
	ck_assert_int_eq(host_pool_get(t, 1, 1, 0, &p), STATUS_INVALID);
	ck_assert_int_eq(host_pool_get(t, 1, 1, 4096 + 128, &p), STATUS_INVALID);
	ck_assert_int_eq(host_pool_get(t, 1, 1, 4 * MIB + 256, &p), STATUS_INVALID); /* needs 6 MiB */
	ck_assert_int_eq(host_pool_get(t, 1, 1, 4 * MIB, &p), STATUS_OK);
	ck_assert_int_eq(host_pool_get(t, 1, 2, 256, &p), STATUS_OK);
	end(t);
}
END_TEST

/* A pool's extents lie side by side in its range, slots side by side in them; other pools have other ranges. */
START_TEST(slots_have_addresses)
{
	enum { EXTENTS = 4 };
	struct host_device_extent e;
	uint64_t first[2] = { 0, 0 }, range;
	struct host_pool *pools[2];
	struct host_tier *t;
	uint32_t ids[EXTENTS + 1];

	device_begin();
	t = tier_of(64 * MIB, 4 * MIB);
	for (int k = 0; k < 2; k++) {
		uint32_t slots = (uint32_t)(4 * MIB / SLOT), last = 0;

		pools[k] = pool_of(t, 1 + k, SLOT);
		for (uint32_t i = 0; i < EXTENTS * slots; i++) {
			struct host_slot s = taken(pools[k]);

			first[k] = first[k] ? first[k] : s.address;
			ck_assert_uint_eq(s.address, first[k] + i / slots * 4 * MIB + i % slots * SLOT);
			ck_assert_uint_eq(s.offset, i % slots * SLOT);
			ck_assert_ptr_null(s.at);
			ck_assert_uint_ge(s.extent, last);
			last = s.extent;
		}
		ck_assert_uint_eq(extents_of(pools[k], ids, EXTENTS + 1), EXTENTS);
	}
	ck_assert_uint_eq(ids[0], GPU_IDS + EXTENTS);
	range = first[0] < first[1] ? first[1] - first[0] : first[0] - first[1];
	ck_assert_int_eq(host_extent_device(t, ids[2], &e), STATUS_OK);
	ck_assert_uint_ge(e.range_bytes, 64 * MIB);
	ck_assert_uint_ge(range, e.range_bytes);
	ck_assert_uint_eq(e.at, 2 * 4 * MIB);
	ck_assert_uint_eq(e.bytes, 4 * MIB);
	ck_assert_uint_eq(e.address, first[1] + 2 * 4 * MIB);
	close(e.fd);
	end(t);
}
END_TEST

/* A budget that is no multiple of the granularity, as half of what a GPU has free may be: the last extent is as large as fits. */
START_TEST(the_budget_is_used)
{
	struct host_pool *p;
	struct host_tier *t;
	struct host_slot s;
	uint32_t n = 0;

	device_begin();
	t = tier_of(67 * MIB, 8 * MIB);
	p = pool_of(t, 1, 1 * MIB);
	while (slot_take(p, &s) == STATUS_OK)
		n++;
	ck_assert_uint_eq(n, 66);
	ck_assert_uint_eq(usage_of(t).extent_bytes, 66 * MIB);
	ck_assert_uint_eq(usage_of(t).open_failures, 0);
	end(t);
}
END_TEST

START_TEST(the_budget_is_kept)
{
	struct host_pool *p, *other;
	struct host_slot s, again;
	struct host_tier *t;
	uint64_t before;
	uint32_t n = 0;

	device_begin();
	before = free_bytes();
	t = tier_of(21 * MIB, 1 * MIB); /* an extent is 2 MiB all the same */
	p = pool_of(t, 1, SLOT);
	other = pool_of(t, 2, 3 * MIB);
	while (slot_take(p, &s) == STATUS_OK)
		n++;
	ck_assert_uint_eq(n, 10 * (2 * MIB / SLOT));
	ck_assert_int_eq(slot_take(other, &again), STATUS_EXHAUSTED);
	ck_assert_uint_eq(usage_of(t).extent_bytes, 20 * MIB);
	ck_assert_uint_eq(usage_of(t).slots_used, n);
	ck_assert_uint_eq(before - free_bytes(), 20 * MIB);
	ck_assert_uint_eq(usage_of(t).open_failures, 0);
	host_slot_give(&s);
	again = taken(p);
	ck_assert_uint_eq(again.address, s.address);
	ck_assert_uint_gt(again.generation, s.generation);
	end(t);
}
END_TEST

/* An extent that is held is neither freed nor its place given to another; then both are. */
START_TEST(holds_keep_extents)
{
	struct host_device_extent e, later;
	struct host_pool *p;
	struct host_slot s;
	struct host_tier *t;
	struct extent *hold;
	uint64_t before;
	int lent;

	device_begin();
	before = free_bytes();
	t = tier_of(64 * MIB, 4 * MIB);
	p = pool_of(t, 1, SLOT);
	s = taken(p);
	hold = host_extent(t, s.extent);
	ck_assert_ptr_nonnull(hold);
	ck_assert_uint_eq(hold->bytes, EXTENT_PAGE_BYTES);
	ck_assert_uint_eq(hold->id, s.extent);
	ck_assert_int_eq(extent_lend(hold, 7, false, &lent), STATUS_OK);
	ck_assert(extent_held(hold, 7));
	ck_assert_int_eq(host_extent_device(t, s.extent, &e), STATUS_OK);
	ck_assert_int_eq(fcntl(e.fd, F_GETFD), FD_CLOEXEC);
	close(e.fd);
	host_slot_give(&s);
	ck_assert_int_eq(host_extent_drain(t, s.extent), STATUS_OK);
	ck_assert_uint_eq(drain_poll(t), 0);
	ck_assert_uint_eq(usage_of(t).draining_bytes, 4 * MIB);
	s = taken(p);
	ck_assert_int_eq(host_extent_device(t, s.extent, &later), STATUS_OK);
	close(later.fd);
	ck_assert_uint_eq(later.at, 4 * MIB);
	close(lent);
	ck_assert_uint_eq(drain_poll(t), 1);
	ck_assert_ptr_null(host_extent(t, s.extent - 1));
	ck_assert_int_eq(host_extent_device(t, s.extent - 1, &later), STATUS_NOT_FOUND);
	ck_assert_uint_eq(usage_of(t).extent_bytes, 4 * MIB);
	ck_assert_uint_eq(before - free_bytes(), 4 * MIB);
	for (uint32_t n = usage_of(t).slots; n > 0; n--)
		s = taken(p);
	ck_assert_int_eq(host_extent_device(t, s.extent, &later), STATUS_OK);
	close(later.fd);
	ck_assert_uint_eq(later.at, 0); /* the old place */
	ck_assert_uint_eq(s.extent, GPU_IDS + 2); /* and a new number */
	end(t);
}
END_TEST

START_TEST(host_memory_is_no_device)
{
	struct host_options o = { .budget_bytes = MIB, .extent_bytes = MIB };
	struct host_device_extent e;
	struct host_tier *t;
	struct host_slot s;

	ck_assert_int_eq(host_create(&o, &t), STATUS_OK);
	s = taken(pool_of(t, 1, 4096));
	ck_assert_uint_eq(s.address, 0);
	ck_assert_ptr_nonnull(s.at);
	ck_assert_int_eq(host_extent_device(t, s.extent, &e), STATUS_NOT_FOUND);
	host_destroy(t);
}
END_TEST

/* Another's mapping sees the slots at their offsets. */
START_TEST(extents_can_be_imported)
{
	struct device_extent imported;
	struct host_device_extent e;
	struct host_tier *t;
	struct host_slot s;
	struct device *theirs;
	const char *why;
	uint64_t range;

	device_begin();
	t = tier_of(64 * MIB, 4 * MIB);
	s = taken(pool_of(t, 1, SLOT));
	s = taken(s.pool);
	memset(sim_at(s.address), 0x3c, SLOT);
	ck_assert_int_eq(host_extent_device(t, s.extent, &e), STATUS_OK);
	ck_assert_int_eq(ops->open(0, &theirs, &why), STATUS_OK);
	ck_assert_int_eq(ops->range_reserve(theirs, e.range_bytes, &range, &why), STATUS_OK);
	ck_assert_int_eq(ops->extent_import(theirs, e.fd, range + e.at, e.bytes, false, &imported, &why), STATUS_OK);
	close(e.fd);
	ck_assert_int_eq(memcmp(sim_at(range + e.at + s.offset), sim_at(s.address), SLOT), 0);
	end(t);
	ck_assert_uint_eq(*(uint8_t *)sim_at(range + e.at + s.offset), 0x3c); /* theirs still */
	ops->close(theirs);
}
END_TEST

/* The device has less than the budget says: nothing is lost by asking, and what comes free is used. */
START_TEST(a_device_without_memory_is_exhausted)
{
	struct host_slot slots[16], s;
	struct host_device_extent e;
	struct host_pool *p, *other;
	struct host_tier *t;
	struct host_usage u;
	uint32_t open_before;

	setenv("SIM_GPU_FREE", "8388608", 1);
	device_begin();
	t = tier_of(64 * MIB, 4 * MIB);
	p = pool_of(t, 1, MIB);
	for (int i = 0; i < 8; i++)
		slots[i] = taken(p);
	open_before = descriptors();
	other = pool_of(t, 2, MIB);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(slot_take(other, &s), STATUS_EXHAUSTED);
	ck_assert_uint_eq(descriptors(), open_before);
	u = usage_of(t);
	ck_assert_uint_eq(u.extent_bytes, 8 * MIB);
	ck_assert_uint_eq(u.open_failures, 3);
	ck_assert_int_eq(u.open_error, 0);
	ck_assert_str_ne(u.open_why, "");
	ck_assert_int_eq(host_extent_drain(t, slots[0].extent), STATUS_OK);
	for (int i = 0; i < 4; i++)
		host_slot_give(&slots[i]);
	ck_assert_uint_eq(drain_poll(t), 1);
	s = taken(other);
	ck_assert_uint_eq(s.extent, GPU_IDS + 2);
	ck_assert_int_eq(host_extent_device(t, s.extent, &e), STATUS_OK);
	ck_assert_uint_eq(e.at, 0);
	close(e.fd);
	end(t);
}
END_TEST

START_TEST(a_device_that_cannot_share_is_unsupported)
{
	struct host_pool *p;
	struct host_tier *t;
	struct host_slot s;
	uint32_t id;

	setenv("SIM_GPU_NO_EXPORT", "1", 1);
	device_begin();
	t = tier_of(64 * MIB, 4 * MIB);
	p = pool_of(t, 1, MIB);
	ck_assert_int_eq(slot_take(p, &s), STATUS_UNSUPPORTED);
	ck_assert_int_eq(host_pool_prepare(p, 1, &id), STATUS_UNSUPPORTED);
	ck_assert_uint_eq(usage_of(t).extent_bytes, 0);
	ck_assert_str_ne(usage_of(t).open_why, "");
	end(t);
}
END_TEST

static void lose(void)
{
	char name[80];
	int fd;

	snprintf(name, sizeof(name), "%s.0", getenv("SIM_GPU_LOST_FILE"));
	fd = open(name, O_WRONLY | O_CREAT, 0600);
	ck_assert_int_ge(fd, 0);
	close(fd);
	ck_assert(ops->lost(device));
	unlink(name);
}

/* What has slots goes on giving them, which harms nobody; it grows no more, drains and dies in peace. */
START_TEST(a_lost_device_is_unavailable)
{
	struct host_options o = { .budget_bytes = 64 * MIB, .extent_bytes = 4 * MIB, .ops = ops };
	struct host_tier *t, *another;
	struct host_slot slots[8], s;
	struct host_pool *p;
	char folder[] = "/tmp/terrace-test-XXXXXX", prefix[64];

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(prefix, sizeof(prefix), "%s/lost", folder);
	setenv("SIM_GPU_LOST_FILE", prefix, 1);
	device_begin();
	o.device = device;
	t = tier_of(64 * MIB, 4 * MIB);
	p = pool_of(t, 1, MIB);
	for (int i = 0; i < 8; i++)
		slots[i] = taken(p);
	lose();
	rmdir(folder);
	ck_assert_int_eq(slot_take(p, &s), STATUS_UNAVAILABLE);
	ck_assert_int_eq(slot_take(pool_of(t, 2, MIB), &s), STATUS_UNAVAILABLE);
	ck_assert_int_eq(host_create(&o, &another), STATUS_UNAVAILABLE);
	host_slot_give(&slots[7]);
	ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
	ck_assert_int_eq(host_extent_drain(t, slots[0].extent), STATUS_OK);
	for (int i = 0; i < 4; i++)
		host_slot_give(&slots[i]);
	ck_assert_uint_eq(drain_poll(t), 1);
	end(t);
}
END_TEST

/* ---- many takes, gives and drains -------------------------------------------------------------------------------- */

enum { MODEL_SLOTS = 400, MODEL_STEPS = 6000 };

static void stamp(const struct host_slot *s)
{
	*(uint64_t *)sim_at(s->address) = s->generation;
}

static void give_stamped(struct host_slot *s)
{
	ck_assert_uint_eq(*(uint64_t *)sim_at(s->address), s->generation);
	host_slot_give(s);
}

struct worker {
	struct host_tier *tier;
	struct host_pool *pools[3];
	uint64_t rng;
};

/* Takes and gives stamped slots of three pools, drains extents now and then: nobody else's stamp is in a slot of one's own. */
static void *work(void *arg)
{
	struct worker *w = arg;
	struct host_slot held[MODEL_SLOTS];
	uint32_t count = 0, id;

	for (int i = 0; i < MODEL_STEPS; i++) {
		uint64_t r = next(&w->rng);
		struct host_pool *p = w->pools[r / 64 % 3];

		if (r % 64 == 0 && extents_of(p, &id, 1) > 0) {
			ck_assert_int_ne(host_extent_drain(w->tier, id), STATUS_INVALID);
		} else if (r % 64 == 1) {
			drain_poll(w->tier);
		} else if (r % 64 < 33 && count < MODEL_SLOTS) {
			if (slot_take(p, &held[count]) == STATUS_OK)
				stamp(&held[count++]);
		} else if (count > 0) {
			uint32_t k = (uint32_t)(r >> 32) % count;

			give_stamped(&held[k]);
			held[k] = held[--count];
		}
	}
	while (count > 0)
		give_stamped(&held[--count]);
	return NULL;
}

START_TEST(threads_take_and_drain)
{
	enum { THREADS = 4 };
	struct worker workers[THREADS];
	pthread_t threads[THREADS];
	struct host_usage u;
	struct host_tier *t;
	uint64_t before;
	uint32_t ids[64], open_before;

	device_begin();
	before = free_bytes();
	open_before = descriptors();
	t = tier_of(96 * MIB, 8 * MIB);
	for (uint32_t i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .tier = t, .rng = 77 + i };
		for (uint32_t k = 0; k < 3; k++)
			workers[i].pools[k] = pool_of(t, k, 256 * (501 + 900 * k));
		ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t k = 0; k < 3; k++)
		for (uint32_t n = extents_of(workers[0].pools[k], ids, 64); n > 0; n--)
			host_extent_drain(t, ids[n - 1]);
	drain_poll(t);
	u = usage_of(t);
	ck_assert_uint_eq(u.slots_used, 0);
	ck_assert_uint_eq(u.extent_bytes, 0);
	ck_assert_uint_eq(u.extents, 0);
	ck_assert_uint_eq(free_bytes(), before);
	ck_assert_uint_eq(descriptors(), open_before);
	end(t);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_host_device");
	TCase *tc = tcase_create("device");
	SRunner *runner;
	int failed;

	ops = terrace_device_ops();
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, options_and_slots_have_bounds);
	tcase_add_test(tc, slots_have_addresses);
	tcase_add_test(tc, the_budget_is_used);
	tcase_add_test(tc, the_budget_is_kept);
	tcase_add_test(tc, holds_keep_extents);
	tcase_add_test(tc, host_memory_is_no_device);
	tcase_add_test(tc, extents_can_be_imported);
	tcase_add_test(tc, a_device_without_memory_is_exhausted);
	tcase_add_test(tc, a_device_that_cannot_share_is_unsupported);
	tcase_add_test(tc, a_lost_device_is_unavailable);
	tcase_add_test(tc, threads_take_and_drain);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
