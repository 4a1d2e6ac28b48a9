/* Sessions with a grid on a GPU: what a prefix needs comes up and nothing else, and partial blocks are written
 * there. */
#include "daemon/block/grid.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "kernels/behind.h"
#include "tests/daemon/vram/rig.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT = 64, UNITS = 4, GPU_SLOTS = 32, KEYS_MAX = 8 };

/* All of the first layout's blocks, and the last of the second's: both of 256 tokens, and maybe partial. */
static void join_hybrid(struct vram_rig *v, const struct vram_rig *of)
{
	const struct kv_layout layouts[2] = { vr_layout(10), vr_layout(11) };
	const struct grid_wish wishes[2] = { { .partial = true }, { .last = 1, .partial = true, .sparse = true } };
	const struct cache_open_call q = { .tenant = "",
					   .layouts = layouts,
					   .layout_count = 2,
					   .unit = UNIT,
					   .wishes = wishes,
					   .engine = "test",
					   .now_us = of->r.now };
	uint64_t session;

	*v = *of;
	ck_assert_int_eq(cache_session_open(v->r.c, &q, &v->r.s, &v->r.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(v->r.c, v->r.s.token, 1, v->r.now, &v->r.attachment, &session, &v->r.why),
			 STATUS_OK);
}

/* Keys from that position on; cells NULL: what is full. How many are stored by it. */
static uint32_t put(struct vram_rig *v, int32_t gpu, uint32_t first, uint32_t count, const uint64_t *cells)
{
	const struct cache_on on = { .attachment = v->r.attachment, .gpu = gpu };
	struct cache_keys k = rig_keys(first, count);
	struct cache_place p[2 * KEYS_MAX];
	enum status st[KEYS_MAX], done;
	uint64_t ids[KEYS_MAX];
	uint32_t stored = 0;
	const struct cache_reserve_call q = { .session = v->r.s.id,
					      .keys = &k,
					      .cells = cells,
					      .on = &on,
					      .may_grow = true,
					      .now_us = v->r.now,
					      .statuses = st,
					      .reservations = ids,
					      .places = p,
					      .places_max = 2 * KEYS_MAX };

	k.first = first;
	ck_assert_int_eq(cache_reserve(v->r.c, &q, &v->r.why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++) {
		ck_assert_int_eq(st[i], ids[i] ? STATUS_OK : STATUS_EXISTS);
		for (uint32_t l = 0; l < 2; l++)
			if (p[2 * i + l].extent != (uint32_t)CACHE_EXTENT_NONE)
				rig_fill(vr_bytes(v, &p[2 * i + l]), VR_BLOCK_BYTES, first + i, l);
		if (!ids[i])
			continue;
		ck_assert_int_eq(vr_commit(v, &ids[i], 1, &done), STATUS_OK);
		stored += done == STATUS_OK;
	}
	free((void *)k.bytes);
	return stored;
}

static double brought_up(struct vram_rig *v)
{
	rig_quiet(&v->r);
	return rig_stat(&v->r, "terrace_moved_bytes_total", "from=host,to=gpu") / VR_BLOCK_BYTES;
}

static void check_places(struct vram_rig *v, const struct cache_place *p, uint32_t keys, bool on_gpu)
{
	for (uint32_t i = 0; i < keys; i++)
		for (uint32_t l = 0; l < 2; l++) {
			const bool full = i % UNITS == UNITS - 1, needed = l ? i + 1 == keys : full || i + 1 == keys;
			const struct cache_place *at = &p[2 * i + l];

			ck_assert_int_eq(at->extent != (uint32_t)CACHE_EXTENT_NONE, needed);
			if (!needed)
				continue;
			ck_assert_int_eq(vr_on_gpu(at, 0), on_gpu);
			ck_assert_uint_eq(at->tokens, (i % UNITS + 1) * UNIT);
			if (full)
				ck_assert(vr_matches(v, at, i, l));
		}
}

START_TEST(what_a_prefix_needs_comes_up)
{
	struct vram_rig v, h;
	struct cache_place p[2 * 8];
	struct cache_leased l;

	vr_open(&v,
		&(struct vram_rig_options){ .gpus = 1, .gpu_slots = GPU_SLOTS, .host_slots = 64,
		.no_progress_page = true });
	join_hybrid(&h, &v);
	ck_assert_uint_eq(put(&h, CACHE_HOST, 0, 8, NULL), 2);
	ck_assert_int_eq(vr_lease(&h, 0, 0, 8, true, false, p, &l), STATUS_OK);
	check_places(&h, p, 8, true);
	vr_release(&h, &l);
	ck_assert_double_eq(brought_up(&v), 3);
	ck_assert_uint_eq(vr_warm(&h, 0, 0, 7), 4); /* the second layout's first block is needed for that */
	ck_assert_double_eq(brought_up(&v), 4);
	ck_assert_int_eq(vr_lease(&h, CACHE_HOST, 0, 6, false, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.blocks, 4);
	check_places(&h, p, 4, false);
	vr_release(&h, &l);
	rig_quiet(&v.r);
	vr_close(&v);
}
END_TEST

/* What is behind the valid tokens is zeroes. */
static bool is_partial(struct vram_rig *v, const struct cache_place *p, uint64_t n, uint32_t layout)
{
	const struct kv_layout l = vr_layout(10 + layout);
	uint8_t *want = malloc(VR_BLOCK_BYTES);
	struct kv_geometry g;
	bool same;

	kv_geometry_of(&l, &g);
	rig_fill(want, VR_BLOCK_BYTES, n, layout);
	kv_zero_behind(&l, &g, want, p->tokens);
	same = !memcmp(vr_bytes(v, p), want, VR_BLOCK_BYTES);
	free(want);
	return same;
}

START_TEST(a_partial_block_is_put_on_a_gpu)
{
	static const uint64_t cells[2] = { 0, 3 };
	struct vram_rig v, h;
	struct cache_place p[2 * 6];
	struct cache_leased l;

	vr_open(&v,
		&(struct vram_rig_options){ .gpus = 1, .gpu_slots = GPU_SLOTS, .host_slots = 64,
		.no_progress_page = true });
	join_hybrid(&h, &v);
	ck_assert_uint_eq(put(&h, 0, 0, 4, NULL), 1);
	ck_assert_uint_eq(put(&h, 0, 4, 2, cells), 1);
	rig_quiet(&v.r); /* it is in memory, too */
	for (int32_t gpu = CACHE_HOST; gpu <= 0; gpu++) {
		ck_assert_int_eq(vr_lease(&h, gpu, 0, 6, true, false, p, &l), STATUS_OK);
		check_places(&h, p, 6, gpu == 0);
		ck_assert(is_partial(&h, &p[10], 5, 0));
		ck_assert(is_partial(&h, &p[11], 5, 1));
		vr_release(&h, &l);
	}
	rig_quiet(&v.r);
	vr_close(&v);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { what_a_prefix_needs_comes_up, a_partial_block_is_put_on_a_gpu };

	return rig_main("cache_vram_units", tests, sizeof(tests) / sizeof(tests[0]));
}
