/* The arena over a device's memory (the simulated one): ranges and addresses, holds, the budget, and what the device
 * refuses. What does not depend on the memory is in arena.c and model.c. */
#include "store/host/extent.h"
#include "tests/store/arena/rig.h"
#include "tests/sim/device.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GPU_IDS = 3 << 24 };

static const struct device_ops *ops;
static struct device *device;

static void device_begin(void)
{
	const char *why;

	ck_assert_int_eq(ops->open(0, &device, &why), STATUS_OK);
}

static struct arena *arena_of(uint64_t budget, uint64_t extent)
{
	return arena_with(&(struct arena_options){ .budget_bytes = budget, .extent_bytes = extent,
						   .first_extent_id = GPU_IDS, .ops = ops, .device = device });
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

static struct arena_device_extent extent_of(struct arena *a, uint32_t id)
{
	struct arena_device_extent e;

	ck_assert_int_eq(arena_extent_device(a, id, &e), STATUS_OK);
	ck_assert_int_eq(fcntl(e.fd, F_GETFD), FD_CLOEXEC);
	return e;
}

static void end(struct arena *a)
{
	arena_destroy(a);
	ops->close(device);
}

START_TEST(options_and_strides_have_bounds)
{
	struct arena_options o = { .budget_bytes = SIM_GRANULARITY - 1, .ops = ops };
	struct arena_class *k;
	struct arena *a;

	device_begin();
	o.device = device;
	ck_assert_int_eq(arena_create(&o, &a), STATUS_INVALID);
	a = arena_of(33 * MIB, 16 * MIB);
	ck_assert_uint_eq(arena_granule_bytes(a), SIM_GRANULARITY);
	ck_assert_int_eq(arena_class_for(a, 1, 16 * MIB + 256, &k), STATUS_PRECONDITION);
	class_of(a, 16 * MIB);
	class_of(a, 256);
	ck_assert_int_eq(arena_class_for(a, 1, 1000, &k), STATUS_OK);
	ck_assert_uint_eq(arena_class_stride(k), 1024);
	end(a);
}
END_TEST

/* All classes of a tenant are in one range, extents side by side in it; another tenant has another. */
START_TEST(a_tenant_has_one_range)
{
	struct arena_device_extent e[3];
	struct arena_class *k[3];
	struct arena_slot s, first;
	struct arena *a;

	device_begin();
	a = arena_of(64 * MIB, 8 * MIB);
	k[0] = class_of(a, 256 * 1000);
	k[1] = class_of(a, 8 * MIB);
	k[2] = class_of_tenant(a, 2, 256 * 1000);
	first = taken(k[0]);
	s = taken(k[0]);
	ck_assert_uint_eq(s.extent, GPU_IDS);
	ck_assert_uint_eq(s.address, first.address + 256 * 1000);
	ck_assert_uint_eq(s.offset, 256 * 1000);
	ck_assert_ptr_null(s.at);
	e[0] = extent_of(a, s.extent);
	ck_assert_uint_eq(s.address, e[0].address + s.offset);
	ck_assert_uint_eq(s.span->address, e[0].address);
	s = taken(k[1]);
	e[1] = extent_of(a, s.extent);
	ck_assert_uint_eq(e[1].at, e[0].at + 8 * MIB);
	ck_assert_uint_eq(e[1].address, e[0].address + 8 * MIB);
	ck_assert_uint_eq(e[1].bytes, 8 * MIB);
	ck_assert_uint_eq(e[1].range_bytes, e[0].range_bytes);
	ck_assert_uint_ge(e[0].range_bytes, 64 * MIB);
	s = taken(k[2]);
	e[2] = extent_of(a, s.extent);
	ck_assert_uint_eq(e[2].at, 0);
	ck_assert(e[2].address >= e[0].address + e[0].range_bytes || e[2].address + e[2].range_bytes <= e[0].address);
	ck_assert_uint_eq(arena_extent_size(a, s.extent), 8 * MIB);
	for (int i = 0; i < 3; i++)
		close(e[i].fd);
	end(a);
}
END_TEST

/* A budget that is no multiple of the granularity, as half of what a GPU has free may be. All of it is there at
 * once. */
START_TEST(the_budget_is_used_and_kept)
{
	struct arena_slot slots[70];
	struct arena_class *k;
	struct arena *a;
	uint64_t before;

	device_begin();
	before = free_bytes();
	a = arena_of(67 * MIB, 16 * MIB);
	k = class_of(a, 1 * MIB);
	ck_assert_uint_eq(take_all(k, slots, 70), 64); /* a granule is the reserve */
	ck_assert_int_eq(arena_take(class_of(a, 2 * MIB), true, &slots[69], NULL), STATUS_OK);
	ck_assert_uint_eq(usage_of(a).extent_bytes, 66 * MIB);
	ck_assert_uint_eq(usage_of(a).granules_free, 0);
	ck_assert_uint_eq(usage_of(a).open_failures, 0);
	ck_assert_uint_eq(before - free_bytes(), 66 * MIB);
	end(a);
}
END_TEST

START_TEST(growth_is_whole_extents)
{
	struct arena_growth g;
	struct arena *a;

	device_begin();
	a = arena_of(1024 * MIB, 0);
	ck_assert_int_eq(arena_preallocate(a, 1, &g), STATUS_OK);
	ck_assert(g.made && g.ready && !g.more);
	ck_assert_uint_eq(usage_of(a).granules_ready, 128);
	end(a);
}
END_TEST

static struct arena_class *watched;
static uint64_t room_meanwhile;

static enum status make_and_look(struct device *d, uint64_t at, uint64_t bytes, struct device_extent *out, int *fd,
				 const char **why)
{
	struct arena_class_usage u;

	arena_class_usage(watched, &u);
	room_meanwhile = u.room;
	return ops->extent_make(d, at, bytes, out, fd, why);
}

/* Who shares out the room must not see it shrink for the moment in which a thread makes an extent. */
START_TEST(room_counts_an_extent_that_is_being_made)
{
	struct device_ops looking = *ops;
	struct arena_class_usage u;
	struct arena_growth g;
	struct arena *a;

	device_begin();
	looking.extent_make = make_and_look;
	a = arena_with(&(struct arena_options){ .budget_bytes = 64 * MIB, .extent_bytes = 32 * MIB,
						.first_extent_id = GPU_IDS, .ops = &looking, .device = device });
	watched = class_of(a, 1 * MIB);
	arena_class_usage(watched, &u);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(arena_preallocate(a, 1, &g), STATUS_OK);
		for (int n = 0; n < 31; n++)
			taken(watched);
		ck_assert_uint_eq(room_meanwhile, u.room);
	}
	end(a);
}
END_TEST

/* Beside the memory there is a page of the host, which is lent and asked about in its place. */
START_TEST(an_extent_has_a_hold)
{
	struct arena_slot s;
	struct extent *hold;
	struct arena *a;
	uint64_t before;
	int lent;

	device_begin();
	before = free_bytes();
	a = arena_of(64 * MIB, 4 * MIB);
	s = taken(class_of(a, 4 * MIB));
	hold = arena_extent(a, s.extent);
	ck_assert_uint_eq(hold->bytes, EXTENT_PAGE_BYTES);
	ck_assert_uint_eq(hold->id, s.extent);
	ck_assert_uint_eq(before - free_bytes(), 4 * MIB);
	ck_assert_int_eq(extent_lend(hold, 7, false, &lent), STATUS_OK);
	ck_assert(extent_held(hold, 7));
	close(lent);
	ck_assert(!extent_held(hold, 7));
	end(a);
}
END_TEST

START_TEST(host_memory_is_no_device)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = MIB });
	struct arena_device_extent e;
	struct arena_slot s = taken(class_of(a, 4096));

	ck_assert_uint_eq(s.address, 0);
	ck_assert_ptr_nonnull(s.at);
	ck_assert_int_eq(arena_extent_device(a, s.extent, &e), STATUS_NOT_FOUND);
	arena_destroy(a);
}
END_TEST

/* Another process's mapping sees the slots at their offsets. */
START_TEST(extents_can_be_imported)
{
	struct device_extent imported;
	struct arena_device_extent e;
	struct device *theirs;
	struct arena_slot s;
	struct arena *a;
	const char *why;
	uint64_t range;

	device_begin();
	a = arena_of(64 * MIB, 4 * MIB);
	s = taken(class_of(a, 256 * 1000));
	s = taken(s.class);
	memset(sim_at(s.address), 0x3c, 256 * 1000);
	e = extent_of(a, s.extent);
	ck_assert_int_eq(ops->open(0, &theirs, &why), STATUS_OK);
	ck_assert_int_eq(ops->range_reserve(theirs, e.range_bytes, &range, &why), STATUS_OK);
	ck_assert_int_eq(ops->extent_import(theirs, e.fd, range + e.at, e.bytes, false, &imported, &why), STATUS_OK);
	close(e.fd);
	ck_assert_int_eq(memcmp(sim_at(range + e.at + s.offset), sim_at(s.address), 256 * 1000), 0);
	end(a);
	ck_assert_uint_eq(*(uint8_t *)sim_at(range + e.at + s.offset), 0x3c); /* theirs still */
	ops->close(theirs);
}
END_TEST

/* The device has less than the budget says: nothing is lost by asking, what comes free is used, and the reserve is of
 * what there is. */
START_TEST(a_device_without_memory_is_exhausted)
{
	struct arena_slot slots[9], s;
	struct arena_class *k;
	struct arena_usage u;
	struct arena *a;
	uint32_t before;

	setenv("SIM_GPU_FREE", "8388608", 1);
	device_begin();
	a = arena_of(64 * MIB, 4 * MIB);
	k = class_of(a, 1 * MIB);
	for (int i = 0; i < 8; i++)
		slots[i] = taken(k);
	before = descriptors();
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(slot_take(k, false, &s), STATUS_EXHAUSTED);
	ck_assert_uint_eq(descriptors(), before);
	u = usage_of(a);
	ck_assert_uint_eq(u.extent_bytes, 8 * MIB);
	ck_assert_uint_eq(u.open_failures, 3);
	ck_assert_int_eq(u.open_error, 0);
	ck_assert_str_ne(u.open_why, "");
	ck_assert_uint_eq(u.reserve, 1);
	for (int i = 6; i < 8; i++)
		arena_give(&slots[i], NULL);
	ck_assert_int_eq(arena_take(k, false, &s, NULL), STATUS_MISS); /* it is the last granule that there is */
	for (int i = 6; i < 8; i++)
		ck_assert_int_eq(arena_take(k, true, &slots[i], NULL), STATUS_OK);
	end(a);
}
END_TEST

static bool all(void *arg, uint32_t extent)
{
	(void)arg;
	(void)extent;
	return true;
}

static void give_all_of(uint32_t extent, const struct arena_slot *slots, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (slots[i].extent == extent)
			arena_give(&slots[i], NULL);
}

static bool is_zero(const uint8_t *at, uint64_t bytes)
{
	return !*at && !memcmp(at, at + 1, bytes - 1);
}

/* What one tenant gives back is freed on the device, and the other tenant's is new and zeroed, in its own range. The
 * first one's range has its place again, many times over. */
START_TEST(an_extent_goes_to_another_tenant)
{
	struct arena_device_extent e;
	struct arena_class *k[2];
	struct arena_slot slots[64], s;
	struct arena_extent *gone;
	struct arena *a;
	uint32_t n, extent, open;
	uint64_t free;

	device_begin();
	a = arena_with(&(struct arena_options){ .budget_bytes = 32 * MIB, .extent_bytes = 4 * MIB, .tenants = 2,
						.first_extent_id = GPU_IDS, .ops = ops, .device = device });
	ck_assert_int_eq(arena_tenant_bounds(a, 1, 0, 32 * MIB), STATUS_OK);
	ck_assert_int_eq(arena_tenant_bounds(a, 2, 0, 8 * MIB), STATUS_OK);
	k[0] = class_of_tenant(a, 1, MIB);
	k[1] = class_of_tenant(a, 2, MIB);
	for (n = 0; n < 64 && slot_take(k[0], true, &slots[n]) == STATUS_OK; n++)
		memset(sim_at(slots[n].address), 0xff, MIB);
	ck_assert_uint_eq(n, 32);
	ck_assert_uint_eq(arena_class_unused(k[1]), 0);
	open = descriptors();
	for (int i = 0; i < 2; i++) {
		extent = arena_retire_find(k[1], all, NULL);
		ck_assert_uint_ge(extent, GPU_IDS);
		ck_assert_int_eq(arena_retire(a, extent), STATUS_OK);
		ck_assert_int_eq(arena_extent_remove(a, extent, &gone), STATUS_BUSY);
		give_all_of(extent, slots, n);
		free = free_bytes();
		ck_assert_int_eq(arena_extent_remove(a, extent, &gone), STATUS_OK);
		ck_assert_ptr_null(arena_extent(a, extent));
		ck_assert_uint_eq(arena_class_unused(k[1]), 0); /* it is there as yet */
		arena_extent_free(a, gone);
		ck_assert_uint_eq(free_bytes(), free + 4 * MIB);
		ck_assert_uint_eq(arena_class_unused(k[1]), 4 * MIB);
		for (int j = 0; j < 4; j++) {
			ck_assert_int_eq(slot_take(k[1], true, &s), STATUS_OK);
			ck_assert(is_zero(sim_at(s.address), MIB));
		}
		ck_assert_uint_eq(descriptors(), open);
	}
	ck_assert(!arena_lacks(k[1])); /* it is at its bound */
	e = extent_of(a, s.extent);
	close(e.fd);
	ck_assert_uint_eq(e.range_bytes, 16 * MIB); /* and needs no larger range */
	end(a);
}
END_TEST

/* Places in the range are used again. */
START_TEST(a_range_does_not_run_out)
{
	struct arena_slot s;
	struct arena_extent *gone;
	struct arena *a;

	device_begin();
	a = arena_with(&(struct arena_options){ .budget_bytes = 8 * MIB, .extent_bytes = 4 * MIB, .tenants = 2,
						.first_extent_id = GPU_IDS, .ops = ops, .device = device });
	for (uint32_t i = 0; i < 32; i++) {
		s = taken(class_of_tenant(a, 1 + i % 2, 4 * MIB));
		ck_assert_int_eq(arena_retire(a, s.extent), STATUS_OK);
		arena_give(&s, NULL);
		ck_assert_int_eq(arena_extent_remove(a, s.extent, &gone), STATUS_OK);
		arena_extent_free(a, gone);
	}
	ck_assert_uint_eq(arena_class_unused(class_of(a, 4 * MIB)), 8 * MIB);
	end(a);
}
END_TEST

START_TEST(a_device_that_cannot_share_is_unsupported)
{
	struct arena_growth g;
	struct arena_slot s;
	struct arena *a;

	setenv("SIM_GPU_NO_EXPORT", "1", 1);
	device_begin();
	a = arena_of(64 * MIB, 4 * MIB);
	ck_assert_int_eq(slot_take(class_of(a, MIB), true, &s), STATUS_UNSUPPORTED);
	ck_assert_int_eq(arena_preallocate(a, 1, &g), STATUS_UNSUPPORTED);
	ck_assert_uint_eq(usage_of(a).extent_bytes, 0);
	ck_assert_str_ne(usage_of(a).open_why, "");
	end(a);
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

/* What has slots goes on giving them, which harms nothing; it grows no more, and dies in peace. */
START_TEST(a_lost_device_is_unavailable)
{
	struct arena_options o = { .budget_bytes = 64 * MIB, .ops = ops };
	char folder[] = "/tmp/terrace-test-XXXXXX", prefix[64];
	struct arena *a, *another;
	struct arena_slot slots[8], s;
	struct arena_class *k;

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(prefix, sizeof(prefix), "%s/lost", folder);
	setenv("SIM_GPU_LOST_FILE", prefix, 1);
	device_begin();
	o.device = device;
	a = arena_of(64 * MIB, 4 * MIB);
	k = class_of(a, MIB);
	for (int i = 0; i < 8; i++)
		slots[i] = taken(k);
	lose();
	rmdir(folder);
	ck_assert_int_eq(slot_take(k, true, &s), STATUS_UNAVAILABLE);
	ck_assert_int_eq(arena_create(&o, &another), STATUS_UNAVAILABLE);
	arena_give(&slots[7], NULL);
	ck_assert_int_eq(arena_take(k, false, &s, NULL), STATUS_OK);
	end(a);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("device");

	ops = terrace_device_ops();
	tcase_add_test(tc, options_and_strides_have_bounds);
	tcase_add_test(tc, a_tenant_has_one_range);
	tcase_add_test(tc, the_budget_is_used_and_kept);
	tcase_add_test(tc, growth_is_whole_extents);
	tcase_add_test(tc, room_counts_an_extent_that_is_being_made);
	tcase_add_test(tc, an_extent_has_a_hold);
	tcase_add_test(tc, host_memory_is_no_device);
	tcase_add_test(tc, extents_can_be_imported);
	tcase_add_test(tc, a_device_without_memory_is_exhausted);
	tcase_add_test(tc, a_device_that_cannot_share_is_unsupported);
	tcase_add_test(tc, an_extent_goes_to_another_tenant);
	tcase_add_test(tc, a_range_does_not_run_out);
	tcase_add_test(tc, a_lost_device_is_unavailable);
	return run_cases("store_arena_device", &tc, 1);
}
