/* Blocks on GPUs: put, leased, copied down and up, evicted, deleted, looked at. */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/inspect.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/call/settle.h"
#include "daemon/call/source.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/session/end.h"
#include "daemon/session/watch.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/transfer.h"
#include "kernels/format.h"
#include "store/arena/arena.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"
#include "tests/store/arena/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double moved(struct vram_rig *v, const char *from, const char *to)
{
	char labels[48];

	rig_quiet(&v->r); /* the progress page knows of a copy before the accounting do */
	snprintf(labels, sizeof(labels), "from=%s,to=%s", from, to);
	return rig_stat(&v->r, "terrace_moved_bytes_total", labels) / VR_BLOCK_BYTES;
}

static const char *tier_of(struct vram_rig *v, uint64_t n, bool *checksum_ok)
{
	static struct cache_block_view view;
	uint8_t key[RIG_KEY_BYTES];
	uint32_t count;

	rig_key(key, n);
	ck_assert_int_eq(cache_inspect(v->r.c, &(struct cache_block_name){ .tenant = "", .key = key,
			.key_bytes = sizeof(key) }, v->r.now, &view, 1, &count, &v->r.why), STATUS_OK);
	if (checksum_ok)
		*checksum_ok = count && view.checksum_ok;
	return count ? view.tier : "";
}

START_TEST(what_is_put_on_a_gpu_is_there)
{
	struct cache_place p[4];
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	ck_assert_uint_eq(vr_state(&v, 3), 3);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, 0);
	for (uint64_t n = 0; n < 4; n++) {
		ck_assert(vr_on_gpu(&p[n], 0));
		ck_assert(vr_matches(&v, &p[n], n, 0));
	}
	vr_release(&v, &l);
	ck_assert_double_eq(moved(&v, "gpu", "host"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_dirty_blocks", "gpu=0"), 4);
	vr_close(&v);
}
END_TEST

/* A generation names a put, wherever it lies: memory's slots and the GPUs' never share one. */
START_TEST(no_two_puts_have_one_generation)
{
	uint64_t seen[30], ids[30];
	struct cache_place p;
	struct vram_rig v;
	enum status st;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32 });
	for (uint32_t i = 0; i < 30; i++) {
		ck_assert_int_eq(vr_reserve(&v, (int32_t)(i % 3) - 1, i, 1, &st, &ids[i], &p), STATUS_OK);
		ck_assert_int_eq(st, STATUS_OK);
		seen[i] = p.generation;
		for (uint32_t k = 0; k < i; k++)
			ck_assert_uint_ne(seen[k], seen[i]);
	}
	for (uint32_t i = 0; i < 30; i++)
		ck_assert_int_eq(cache_abort(v.r.c, v.r.s.id, ids[i]), STATUS_OK);
	vr_close(&v);
}
END_TEST

START_TEST(it_is_written_write_through)
{
	struct vram_rig v;
	bool ok;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 8), 8);
	rig_quiet(&v.r);
	for (uint64_t n = 0; n < 8; n++) {
		ck_assert_uint_eq(vr_state(&v, n), 1);
		ck_assert_str_eq(tier_of(&v, n, &ok), "gpu+host");
		ck_assert(ok);
	}
	ck_assert_double_eq(moved(&v, "gpu", "host"), 8);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_dirty_blocks", "gpu=0"), 0);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 8), 8);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 8), 8);
	ck_assert_double_eq(moved(&v, "host", "gpu"), 0);
	vr_close(&v);
}
END_TEST

static uint32_t extents_of(const struct vram_rig *v)
{
	struct arena_usage u;

	arena_usage(v->r.c->vram->gpu[0]->arena, &u);
	return u.extents;
}

/* A GPU that is being filled has its next 32 MiB before it is asked for them, and no more. */
START_TEST(extents_are_made_prefetch)
{
	const uint32_t prefetch = (uint32_t)(ARENA_PREALLOCATED_BYTES / SIM_GRANULARITY);
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 2 * prefetch * VR_EXTENT_SLOTS,
	    .host_slots = 32 });
	ck_assert_uint_eq(arena_extent_bytes(v.r.c->vram->gpu[0]->arena), SIM_GRANULARITY);
	for (uint32_t spans = 1; spans <= 3; spans++) {
		ck_assert_uint_eq(vr_put(&v, 0, 100 * spans, VR_EXTENT_SLOTS), VR_EXTENT_SLOTS);
		RIG_AWAIT(extents_of(&v) == spans + prefetch);
		rig_quiet(&v.r);
		ck_assert_uint_eq(extents_of(&v), spans + prefetch);
		ck_assert_uint_eq(vr_read_all(&v, 0, 100 * spans, VR_EXTENT_SLOTS), VR_EXTENT_SLOTS);
	}
	vr_close(&v);
}
END_TEST

START_TEST(what_is_in_memory_goes_up)
{
	struct cache_place p[8];
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 8), 8);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 8, true, true, p, &l), STATUS_OK);
	for (uint64_t n = 0; n < 8; n++)
		ck_assert(!vr_on_gpu(&p[n], 0));
	vr_release(&v, &l);
	ck_assert_double_eq(moved(&v, "host", "gpu"), 0);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 4), 4);
	ck_assert_double_eq(moved(&v, "host", "gpu"), 4);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 8, true, true, p, &l), STATUS_OK);
	for (uint64_t n = 0; n < 8; n++)
		ck_assert_int_eq(vr_on_gpu(&p[n], 0), n < 4);
	vr_release(&v, &l);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 8), 8);
	ck_assert_double_eq(moved(&v, "host", "gpu"), 8);
	vr_close(&v);
}
END_TEST

/* Without disks a GPU's victims stay in memory, and memory's on the GPU, as long as either has room. */
START_TEST(a_full_gpu_sends_down)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 64, .write_back = _i });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 40), 40);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 40), 40);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 40), 40);
	ck_assert_double_ge(rig_stat(&v.r, "terrace_evictions_total", "tier=gpu,reason=full"), 24);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_total", "tier=gpu,reason=shed"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	vr_close(&v);
}
END_TEST

/* Written back: half of the GPU stays free or clean, by the coldest that go down, and no more than that. */
START_TEST(a_share_is_kept_clean)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 64, .write_back = true, .spill_milli = 500 });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 8), 8);
	ck_assert_double_eq(moved(&v, "gpu", "host"), 0);
	ck_assert_uint_eq(vr_put(&v, 0, 8, 6), 6);
	rig_quiet(&v.r);
	rig_tick(v.r.c, v.r.now);
	ck_assert_double_eq(moved(&v, "gpu", "host"), 6);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_dirty_blocks", "gpu=0"), 8);
	for (uint64_t n = 0; n < 14; n++)
		ck_assert_uint_eq(vr_state(&v, n), n < 6 ? 1 : 3);
	vr_close(&v);
}
END_TEST

START_TEST(down_to_disk_and_back)
{
	struct rig_disks d;
	struct vram_rig v;
	bool ok;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .disks = &d, .spill_milli = 900 });
	rig_restored(&v.r);
	for (uint64_t n = 0; n < 64; n++) {
		ck_assert_uint_eq(vr_put(&v, 0, n, 1), 1);
		rig_quiet(&v.r);
	}
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_str_eq(tier_of(&v, 0, &ok), "disk");
	ck_assert(ok);
	ck_assert_uint_eq(vr_state(&v, 0), 2);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 64), 64);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 64), 64);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_corrupt_blocks_total", ""), 0);
	ck_assert_double_ge(moved(&v, "host", "disk"), 48);
	ck_assert_double_ge(moved(&v, "disk", "host"), 48);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Many at once: loads and ups run beside each other. */
START_TEST(a_long_prefix_from_disk)
{
	struct cache_place p[24];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 32, .host_slots = 32, .disks = &d, .spill_milli = 900 });
	rig_restored(&v.r);
	for (uint64_t n = 0; n < 80; n++) {
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, n, 1), 1);
		rig_quiet(&v.r);
	}
	ck_assert_uint_eq(vr_state(&v, 0), 2);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 24, true, false, p, &l), STATUS_OK);
	vr_wait_layers(&v, &l);
	for (uint64_t n = 0; n < 24; n++)
		ck_assert(vr_on_gpu(&p[n], 0) && vr_matches(&v, &p[n], n, 0));
	vr_release(&v, &l);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(deleted_on_a_gpu)
{
	struct cache_place p[4];
	struct cache_leased l;
	enum status st[4];
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = _i });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 2, true, false, p, &l), STATUS_OK);
	ck_assert_int_eq(rig_delete(&v.r, 0, 4, st), STATUS_OK);
	ck_assert_uint_eq(vr_state(&v, 0), 0);
	rig_quiet(&v.r);
	/* What is leased keeps its slot, and its bytes. */
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 2);
	ck_assert(vr_matches(&v, &p[1], 1, 0));
	vr_release(&v, &l);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 0);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 4), 4);
	vr_close(&v);
}
END_TEST

START_TEST(of_two_gpus)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32, .write_back = _i });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	ck_assert_uint_eq(vr_put(&v, 1, 4, 4), 4);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 8), 8);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 8), 8);
	rig_quiet(&v.r);
	ck_assert_double_eq(moved(&v, _i ? "gpu" : "host", "gpu"), 8);
	ck_assert_double_eq(moved(&v, _i ? "host" : "gpu", "gpu"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_blocks", "gpu=0"), 8);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_blocks", "gpu=1"), 8);
	vr_close(&v);
}
END_TEST

/* What is in memory, too, comes from the other GPU where that is the shorter way, unless a progress page is to tell of
 * its layers. */
START_TEST(the_shorter_way_to_a_gpu)
{
	const bool near = _i == 0;
	struct vram_rig v;

	if (!near)
		setenv("SIM_GPU_NO_PEERS", "1", 1);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32 });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 8), 8);
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), "gpu+host");
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 4), 4);
	rig_quiet(&v.r);
	ck_assert_double_eq(moved(&v, "host", "gpu"), 4);
	ck_assert_double_eq(moved(&v, "gpu", "gpu"), 0);
	ck_assert_uint_eq(vr_warm(&v, 1, 0, 8), 8);
	rig_quiet(&v.r);
	ck_assert_double_eq(moved(&v, "host", "gpu"), near ? 4 : 8);
	ck_assert_double_eq(moved(&v, "gpu", "gpu"), near ? 4 : 0);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 8), 8);
	vr_close(&v);
}
END_TEST

/* The same of what is on a GPU alone: it comes across, however. */
START_TEST(what_is_on_another_gpu_alone)
{
	struct vram_rig v;

	if (_i)
		setenv("SIM_GPU_NO_PEERS", "1", 1);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	ck_assert_uint_eq(vr_warm(&v, 1, 0, 4), 4);
	rig_quiet(&v.r);
	ck_assert_double_eq(moved(&v, "gpu", "gpu"), 4);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 4), 4);
	vr_close(&v);
}
END_TEST

/* What goes up needs the slots of what must go down first, for which memory gives up others than those that are to go up too. */
START_TEST(room_for_one_costs_no_other)
{
	struct cache_place p[2];
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 8, .host_slots = 15, .write_back = true });
	for (uint64_t n = 100; n < 140; n++) {
		v.r.now += 1000;
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, n, 1), 1);
	}
	/* The first eight go down for the others: neither tier can grow any more, and the GPU has only what is nowhere else. */
	ck_assert_uint_eq(vr_put(&v, 0, 0, 8), 8);
	rig_quiet(&v.r); /* all eight may go now, or those that have their sums would, and others of the next */
	ck_assert_uint_eq(vr_put(&v, 0, 8, 8), 8);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_dirty_blocks", "gpu=0"), 8);
	uint64_t coldest = 100;

	while (!vr_state(&v, coldest))
		coldest++;
	ck_assert_int_eq(vr_lease(&v, 0, coldest, 2, true, false, p, &l), STATUS_OK);
	vr_wait_layers(&v, &l);
	for (uint64_t i = 0; i < 2; i++)
		ck_assert(vr_on_gpu(&p[i], 0) && vr_matches(&v, &p[i], coldest + i, 0));
	vr_release(&v, &l);
	vr_close(&v);
}
END_TEST

/* A copy in memory that is leased for long keeps nothing on the GPU. */
START_TEST(a_lease_in_memory_holds_memory)
{
	struct cache_place p[16], q[8];
	struct cache_leased l, m;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 8, .host_slots = 32 });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 8), 8);
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 8, true, false, p, &l), STATUS_OK);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=0"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_pinned_bytes", "tier=host"), 8 * VR_SLOT_BYTES);
	rig_check_accounting(v.r.c);
	ck_assert_uint_eq(vr_put(&v, 0, 8, 8), 8);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_total", "tier=gpu,reason=full"), 8);
	for (uint64_t n = 0; n < 8; n++)
		ck_assert(vr_matches(&v, &p[n], n, 0));
	/* Deleted: what nobody holds goes at once. */
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 8, 8, true, false, q, &m), STATUS_OK);
	ck_assert_int_eq(rig_delete(&v.r, 8, 8, (enum status[8]){ 0 }), STATUS_OK);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_slots_used", "tier=host"), 16);
	for (uint64_t n = 0; n < 8; n++)
		ck_assert(vr_matches(&v, &q[n], 8 + n, 0));
	vr_release(&v, &l);
	vr_release(&v, &m);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_slots_used", "tier=host"), 8);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_pinned_bytes", "tier=host"), 0);
	vr_close(&v);
}
END_TEST

/* And one on the GPU nothing in memory. */
START_TEST(a_lease_on_a_gpu_holds_the_gpu)
{
	struct cache_place p[8];
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 8, .host_slots = 16 });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 8), 8);
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 8, true, false, p, &l), STATUS_OK);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_pinned_bytes", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=0"), 8 * VR_BLOCK_BYTES);
	for (uint64_t n = 100; n < 140; n++)
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, n, 1), 1);
	rig_quiet(&v.r);
	for (uint64_t n = 0; n < 8; n++) {
		ck_assert_str_eq(vr_tier(&v, n), "gpu");
		ck_assert(vr_matches(&v, &p[n], n, 0));
	}
	rig_check_accounting(v.r.c);
	vr_release(&v, &l);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 8), 8);
	vr_close(&v);
}
END_TEST

START_TEST(several_layouts_at_once)
{
	struct cache_place p[12];
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 48, .host_slots = 64, .layouts = 3 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	vr_hold(&v, 0, 0);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	ck_assert(!vr_layer_there(&v, &l, 0));
	vr_go(&v, 0);
	vr_wait_layers(&v, &l);
	for (uint32_t i = 0; i < 12; i++)
		ck_assert(vr_on_gpu(&p[i], 0) && vr_matches(&v, &p[i], i / 3, i % 3));
	vr_release(&v, &l);
	ck_assert_uint_eq(vr_put(&v, 0, 100, 4), 4);
	ck_assert_uint_eq(vr_read_all(&v, 0, 100, 4), 4);
	vr_close(&v);
}
END_TEST

/* What is on a GPU alone comes down for those who want to see its bytes. */
START_TEST(looked_at)
{
	struct cache_verified sum = { .blocks = 0 };
	enum status statuses[4];
	uint64_t cursor = 0;
	struct rig_disks d;
	struct vram_rig v;
	bool ok;

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = true, .disks = &d });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	ck_assert_str_eq(tier_of(&v, 0, &ok), "gpu");
	ck_assert(ok);
	ck_assert_str_eq(tier_of(&v, 0, &ok), "gpu+host");
	ck_assert_uint_eq(cache_verify_blocks(v.r.c), 4);
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_step(v.r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	ck_assert_uint_eq(sum.blocks, 4);
	ck_assert_uint_eq(sum.corrupt, 0);
	ck_assert_uint_eq(vr_put(&v, 0, 4, 4), 4);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 4, 2), 2);
	ck_assert_int_eq(rig_flush(&v.r, 4, 4, statuses), STATUS_OK);
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(statuses[i], STATUS_OK);
	ck_assert_str_eq(tier_of(&v, 7, &ok), "gpu+host+disk");
	ck_assert_uint_eq(vr_put(&v, 0, 8, 4), 4);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	ck_assert_str_eq(tier_of(&v, 11, &ok), "gpu+host+disk");
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* The lease of a commit is on the GPU; of a key that another wrote first, where that lies, if it can be leased. */
START_TEST(committed_and_leased)
{
	struct cache_commit_item item[3] = { { .reservation = 0 } };
	struct cache_place p[3], places[3];
	struct cache_leased l;
	enum status st[3];
	struct vram_rig v;
	uint64_t id[3];

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32, .write_back = true });
	ck_assert_int_eq(vr_reserve(&v, 0, 0, 3, st, id, p), STATUS_OK);
	for (int i = 0; i < 3; i++) {
		rig_fill(vr_bytes(&v, &p[i]), VR_BLOCK_BYTES, (uint64_t)i, 0);
		item[i].reservation = id[i];
	}
	ck_assert_int_eq(cache_commit(v.r.c, &(struct cache_commit_call){ .session = v.r.s.id, .items = item,
			.count = 3, .want_lease = true, .on = &(struct cache_on){ .attachment = v.r.attachment,
			.gpu = CACHE_HOST }, .now_us = v.r.now, .unix_ms = 1, .statuses = st, .places = places,
			.places_max = 3 }, &l, &v.r.why), 0);
	ck_assert_uint_ne(l.lease, 0);
	for (uint64_t n = 0; n < 3; n++) {
		ck_assert_int_eq(st[n], STATUS_OK);
		ck_assert(vr_on_gpu(&places[n], 0) && vr_matches(&v, &places[n], n, 0));
	}
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=0"), 3 * VR_BLOCK_BYTES);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_pinned_bytes", "tier=host"), 0);
	vr_release(&v, &l);
	rig_quiet(&v.r); /* the GPU has summed them */
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=0"), 0);
	vr_close(&v);
}
END_TEST

START_TEST(an_open_block_grows_on_a_gpu)
{
	const struct slot_info info = { .tokens = 0 };
	const struct cache_keys nameless = { NULL, 1, 1 };
	struct cache_commit_item item = { .tokens = 100, .keep_open = true };
	struct cache_on on = { .gpu = 0 };
	struct cache_place p;
	struct vram_rig v;
	enum status st;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	on.attachment = v.r.attachment;
	ck_assert_int_eq(cache_reserve(v.r.c, &(struct cache_reserve_call){ .session = v.r.s.id,
			.keys = &nameless, .info = &info, .open = true, .on = &on, .may_grow = true,
			.now_us = v.r.now, .statuses = &st, .reservations = &item.reservation, .places = &p,
			.places_max = 1 }, &v.r.why), STATUS_OK);
	ck_assert(vr_on_gpu(&p, 0));
	rig_fill(vr_bytes(&v, &p), VR_BLOCK_BYTES, 5, 0);
	ck_assert_int_eq(cache_commit(v.r.c, &(struct cache_commit_call){ .session = v.r.s.id, .items = &item,
			.count = 1, .now_us = v.r.now, .unix_ms = 1, .statuses = &st }, NULL, &v.r.why), 0);
	ck_assert_int_eq(st, STATUS_OK);
	item.tokens = 256;
	item.keep_open = false;
	item.key_bytes = RIG_KEY_BYTES;
	rig_key(item.key, 5);
	ck_assert_int_eq(cache_commit(v.r.c, &(struct cache_commit_call){ .session = v.r.s.id, .items = &item,
			.count = 1, .now_us = v.r.now, .unix_ms = 1, .statuses = &st }, NULL, &v.r.why), 0);
	ck_assert_int_eq(st, STATUS_OK);
	ck_assert_uint_eq(vr_read_all(&v, 0, 5, 1), 1);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 5, 1), 1);
	vr_close(&v);
}
END_TEST

/* The progress page of a process that is gone is kept until no copy tells it anything. */
START_TEST(the_holder_goes_while_it_is_copied)
{
	struct cache_place p[4];
	struct cache_leased l;
	struct vram_rig v, keeper;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	vr_join(&keeper, &v, 0, "keeper");
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	ck_assert_uint_eq(vr_put(&v, 0, 50, 1), 1);
	rig_quiet(&v.r);
	vr_hold(&v, 0, 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	cache_attach_gone(v.r.c, v.r.attachment, v.r.now, NULL);
	for (int i = 0; i < 5; i++)
		rig_tick(v.r.c, v.r.now += 50000);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_leases", ""), 0);
	vr_go(&v, 0);
	rig_quiet(&v.r);
	rig_tick(v.r.c, v.r.now);
	ck_assert_uint_eq(vr_read_all(&keeper, 0, 0, 4), 4);
	vr_close(&v);
}
END_TEST

/* Before the daemon stops, what is on GPUs alone goes to the disks. */
START_TEST(an_orderly_stop_keeps_it)
{
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .write_back = true, .disks = &d });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 12), 12);
	v.r.served = true;
	for (int i = 0; i < 100 && !cache_settle(v.r.c, 100000, NULL); i++)
		rig_tick(v.r.c, v.r.now);
	vr_close(&v);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .disks = &d });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 12), 12);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* A block that a GPU and a disk have comes to memory once, whoever begins to bring it. */
START_TEST(two_ways_to_memory_at_once)
{
	struct index_ident ident;
	uint8_t key[RIG_KEY_BYTES];
	struct rig_disks d;
	struct vram_rig v;
	struct block *b;
	enum status st;

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .disks = &d, .spill_milli = 900 });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&v.r, 0, 1, &st), STATUS_OK);
	for (uint64_t n = 1; n < 40; n++) {
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, n, 1), 1);
		rig_quiet(&v.r);
	}
	ck_assert_str_eq(tier_of(&v, 0, NULL), "gpu+disk");
	ck_assert_uint_eq(vr_state(&v, 0), 3);
	rig_key(key, 0);
	index_read_lock();
	cache_lock(v.r.c);
	block_ident(v.r.c->pools[0], key, sizeof(key), &ident);
	b = block_of(index_find(v.r.c->index, &ident));
	if (_i) {
		ck_assert_int_eq(source_bring(v.r.c, b, RING_URGENT, NULL), STATUS_OK);
		ck_assert_int_eq(vram_down(v.r.c, b, false, NULL), STATUS_OK);
	} else {
		ck_assert_int_eq(vram_down(v.r.c, b, false, NULL), STATUS_OK);
		ck_assert_int_eq(source_bring(v.r.c, b, RING_URGENT, NULL), STATUS_OK);
	}
	ck_assert_uint_eq(v.r.c->vram->transfer_count + v.r.c->tier->transfer_count, 1);
	cache_unlock(v.r.c);
	index_read_unlock();
	rig_quiet(&v.r);
	rig_check_accounting(v.r.c);
	ck_assert_str_eq(tier_of(&v, 0, NULL), "gpu+host+disk");
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 1);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Put on a GPU, one by its key and one as an open block that gets its key at the commit; brought down, each is found by
 * its whole key. */
START_TEST(long_keys)
{
	enum { BYTES = 64 };
	const struct cache_on on = { .gpu = 0 };
	struct cache_commit_item item = { .tokens = 0 };
	uint8_t bytes[2][BYTES] = { { 1 }, { 1 } };
	struct cache_keys k[2] = { { bytes[0], 1, BYTES }, { bytes[1], 1, BYTES } }, none = { NULL, 1, 0 };
	struct cache_leased l;
	struct cache_place p;
	struct vram_rig v;
	enum status st;

	bytes[1][BYTES - 1] = 1;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = true });
	for (uint32_t i = 0; i < 2; i++) {
		struct cache_on mine = on;

		mine.attachment = v.r.attachment;
		ck_assert_int_eq(cache_reserve(v.r.c,
					       &(struct cache_reserve_call){ .session = v.r.s.id,
									     .keys = i ? &none : &k[0],
									     .open = i,
									     .on = &mine,
									     .may_grow = true,
									     .now_us = v.r.now,
									     .statuses = &st,
									     .reservations = &item.reservation,
									     .places = &p,
									     .places_max = 1 },
					       &v.r.why),
				 STATUS_OK);
		ck_assert_int_eq(st, STATUS_OK);
		rig_fill(vr_bytes(&v, &p), v.r.s.block_bytes[0], i, 0);
		memcpy(item.key, bytes[i], i ? BYTES : 0);
		item.key_bytes = i ? BYTES : 0;
		item.tokens = i ? v.r.s.layout[0].block_tokens : 0;
		ck_assert_int_eq(cache_commit(v.r.c,
					      &(struct cache_commit_call){ .session = v.r.s.id,
									   .items = &item,
									   .count = 1,
									   .on = &mine,
									   .now_us = v.r.now,
									   .unix_ms = 1,
									   .statuses = &st },
					      NULL, &v.r.why),
				 STATUS_OK);
		ck_assert_int_eq(st, STATUS_OK);
	}
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(rig_lease_keys(&v.r, &k[i], &p, &l), STATUS_OK);
		ck_assert_uint_eq(l.blocks, 1);
		ck_assert(rig_matches(rig_block(&v.r, &p), v.r.s.block_bytes[0], i, 0));
		ck_assert_int_eq(cache_release(v.r.c, v.r.s.id, l.lease), STATUS_OK);
	}
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

START_TEST(watched)
{
	struct cache_watch_event e;
	struct cache_watch *w;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	ck_assert_int_eq(cache_watch_open(v.r.c, v.r.s.id, false, NULL, NULL, &w, &v.r.why), STATUS_OK);
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
	ck_assert_int_eq(e.kind, CACHE_STORED);
	ck_assert_str_eq(e.tier, "gpu");
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
	ck_assert_int_eq(e.kind, CACHE_SYNCED);
	ck_assert_uint_eq(vr_put(&v, 0, 1, 1), 1);
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
	ck_assert_str_eq(e.tier, "gpu");
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 1, 1), 1);
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
	ck_assert_int_eq(e.kind, CACHE_MOVED);
	ck_assert_str_eq(e.tier, "gpu+host");
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 2, 1), 1);
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
	ck_assert_str_eq(e.tier, "host");
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_MISS);
	cache_watch_close(w);
	vr_close(&v);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram");
	TCase *t = tcase_create("cache_vram");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, what_is_put_on_a_gpu_is_there);
	tcase_add_test(t, no_two_puts_have_one_generation);
	tcase_add_test(t, it_is_written_write_through);
	tcase_add_test(t, extents_are_made_prefetch);
	tcase_add_test(t, what_is_in_memory_goes_up);
	tcase_add_loop_test(t, a_full_gpu_sends_down, 0, 2);
	tcase_add_test(t, a_share_is_kept_clean);
	tcase_add_test(t, down_to_disk_and_back);
	tcase_add_test(t, a_long_prefix_from_disk);
	tcase_add_loop_test(t, deleted_on_a_gpu, 0, 2);
	tcase_add_loop_test(t, of_two_gpus, 0, 2);
	tcase_add_loop_test(t, the_shorter_way_to_a_gpu, 0, 2);
	tcase_add_loop_test(t, what_is_on_another_gpu_alone, 0, 2);
	tcase_add_test(t, room_for_one_costs_no_other);
	tcase_add_test(t, a_lease_in_memory_holds_memory);
	tcase_add_test(t, a_lease_on_a_gpu_holds_the_gpu);
	tcase_add_test(t, several_layouts_at_once);
	tcase_add_test(t, looked_at);
	tcase_add_test(t, committed_and_leased);
	tcase_add_test(t, an_open_block_grows_on_a_gpu);
	tcase_add_test(t, the_holder_goes_while_it_is_copied);
	tcase_add_test(t, an_orderly_stop_keeps_it);
	tcase_add_loop_test(t, two_ways_to_memory_at_once, 0, 2);
	tcase_add_test(t, watched);
	tcase_add_test(t, long_keys);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
