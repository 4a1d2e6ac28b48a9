/* Slabs that are given up while GPUs have what lies there: it is brought down and keeps a copy on disk, whatever memory has room for. */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/compact.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <stdlib.h>
#include <string.h>

enum { GPU = 16, HOST = 16, DISK = 96, GONE = 14, ON_GPU = 24, BLOCKS = 40, OTHERS = 16 };

static uint32_t compact(struct vram_rig *v, uint64_t bytes)
{
	uint32_t slabs = 0;

	for (int tries = 0; tries < 100; tries++) {
		uint64_t freed;
		enum status s = cache_compact_step(v->r.c, 0, bytes, &freed);

		if (s == STATUS_MISS)
			return slabs;
		ck_assert(s == STATUS_OK || s == STATUS_BUSY);
		slabs += s == STATUS_OK;
		rig_quiet(&v->r);
	}
	ck_abort_msg("compaction never ends");
}

/* Flushed blocks: the first on disk alone, then GPU that a GPU has, and no more memory; and others, in memory. */
static void fill(struct vram_rig *v)
{
	for (uint64_t n = 0; n < BLOCKS; n++) {
		ck_assert_uint_eq(vr_put(v, 0, n, 1), 1);
		rig_quiet(&v->r);
	}
	for (uint64_t n = 100; n < 100 + OTHERS; n++) {
		ck_assert_uint_eq(vr_put(v, CACHE_HOST, n, 1), 1);
		rig_quiet(&v->r);
	}
	ck_assert_int_eq(rig_flush(&v->r, 0, 0, NULL), STATUS_OK);
	for (uint64_t n = ON_GPU; n < BLOCKS; n++)
		ck_assert_str_eq(vr_tier(v, n), "gpu+disk");
}

/* An eighth of the disk. */
static uint64_t eighth(const struct rig_disks *d)
{
	return d->disk[0].bytes / 8;
}

/* There is room for what GPU and memory have, and not for all. Memory is no larger than what the GPU has. */
START_TEST(what_a_gpu_has_stays_durable)
{
	struct cache_place p[4];
	struct cache_leased l = { .lease = 0 };
	enum status st[ON_GPU];
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, DISK);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = GPU, .host_slots = HOST, .disks = &d, .spill_milli = 900 });
	rig_restored(&v.r);
	fill(&v);
	ck_assert_int_eq(rig_delete(&v.r, GONE, ON_GPU - GONE, st), STATUS_OK); /* a slab has little beside what the GPU has */
	ck_assert_uint_ge(compact(&v, 3 * eighth(&d)), 1);
	rig_check_accounting(v.r.c);
	ck_assert_double_lt(rig_stat(&v.r, "terrace_disk_blocks", "disk=0"), BLOCKS + OTHERS);
	for (uint64_t n = ON_GPU; n < BLOCKS; n++)
		ck_assert_msg(strstr(vr_tier(&v, n), "gpu") && strstr(vr_tier(&v, n), "disk"), "block %u: %s", (unsigned)n, vr_tier(&v, n));
	ck_assert_uint_eq(vr_read_all(&v, 0, ON_GPU, BLOCKS - ON_GPU), BLOCKS - ON_GPU);
	ck_assert_int_eq(vr_lease(&v, 0, ON_GPU, 4, true, false, p, &l), STATUS_OK);
	vr_release(&v, &l);
	vr_close(&v);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = GPU, .host_slots = HOST, .disks = &d });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, ON_GPU, BLOCKS - ON_GPU), BLOCKS - ON_GPU);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Nothing goes for it that memory alone has. On the slabs that stay there is room for all. */
START_TEST(what_memory_alone_has_stays)
{
	enum { BESIDE = 3 };
	enum status st[BESIDE * GPU];
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, DISK);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = GPU, .host_slots = HOST, .disks = &d, .spill_milli = 1 });
	rig_restored(&v.r);
	for (uint64_t n = 0; n < GPU; n++) { /* some in each slab */
		ck_assert_uint_eq(vr_put(&v, 0, n, 1), 1);
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 100 + BESIDE * n, BESIDE), BESIDE);
		ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	}
	ck_assert_int_eq(rig_delete(&v.r, 100, BESIDE * GPU, st), STATUS_OK);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 200, HOST), HOST);
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), "gpu+disk");
	ck_assert_str_eq(vr_tier(&v, 200), "host");
	ck_assert_uint_ge(compact(&v, 3 * eighth(&d)), 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, GPU), GPU);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 200, HOST), HOST);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Memory that is all leased takes none of it: the slab stays, until there is room. */
START_TEST(without_room_in_memory_the_slab_stays)
{
	struct cache_place p[HOST];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;
	uint64_t freed;

	vr_disks_make(&d, 1, DISK);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = GPU, .host_slots = HOST, .disks = &d, .spill_milli = 900 });
	rig_restored(&v.r);
	fill(&v);
	uint32_t held = 0;

	for (uint64_t n = 100 + OTHERS; n-- > 100;) {
		if (strcmp(vr_tier(&v, n), "host+disk"))
			break;
		held++;
	}
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 100 + OTHERS - held, held, true, false, p, &l), STATUS_OK);
	for (int i = 0; i < 4; i++)
		cache_compact_step(v.r.c, 0, 2 * eighth(&d), &freed);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, 0, ON_GPU, BLOCKS - ON_GPU), BLOCKS - ON_GPU);
	vr_release(&v, &l);
	compact(&v, 3 * eighth(&d));
	ck_assert_uint_eq(vr_read_all(&v, 0, ON_GPU, BLOCKS - ON_GPU), BLOCKS - ON_GPU);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* A disk without another place for it: it is evicted from the GPU as well, rather than served without being durable. */
START_TEST(without_a_place_it_is_evicted)
{
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, DISK);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = GPU, .host_slots = HOST, .disks = &d, .spill_milli = 900 });
	rig_restored(&v.r);
	fill(&v);
	compact(&v, 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_disk_blocks", "disk=0"), 0);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, BLOCKS), 0);
	rig_check_accounting(v.r.c);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 4), 4);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { what_a_gpu_has_stays_durable, what_memory_alone_has_stays, without_room_in_memory_the_slab_stays, without_a_place_it_is_evicted };

	return rig_main("cache_vram_compact", tests, sizeof(tests) / sizeof(tests[0]));
}
