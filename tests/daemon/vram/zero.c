/* What a block on a GPU has behind its valid tokens: zeroes, whatever was in the slot, before the block is known to
 * anybody, and in all formats. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/cache.h"
#include "daemon/call/commit.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "kernels/behind.h"
#include "kernels/format.h"
#include "store/arena/arena.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { GPU_SLOTS = 64, BYTES_MAX = 2 << 20 };

static const struct vram_rig_options options = { .gpus = 1, .gpu_slots = GPU_SLOTS, .host_slots = 64 };

static struct kv_layout layout_of(enum kv_format k, enum kv_format v, uint32_t dim, uint32_t heads, uint32_t tokens,
				  uint32_t layers)
{
	struct kv_layout l = vr_layout(0);

	l.k_format = k;
	l.v_format = v;
	l.head_dim_k = dim;
	l.head_dim_v = v == KV_NONE ? 0 : dim;
	l.heads = l.total_heads = heads;
	l.block_tokens = tokens;
	l.layers = layers;
	return l;
}

static void join(struct vram_rig *v, const struct vram_rig *of, const struct kv_layout *l)
{
	*v = *of;
	rig_join_layouts(&v->r, (struct rig *)&of->r, l, 1);
}

static uint64_t reserve(struct vram_rig *v, uint64_t key, uint32_t tokens, struct cache_place *place)
{
	const struct cache_on on = { .attachment = v->r.attachment, .gpu = 0 };
	const struct slot_info info = { .tokens = tokens };
	struct cache_keys k = rig_keys(key, 1);
	enum status status;
	uint64_t id;

	ck_assert_int_eq(cache_reserve(v->r.c, &(struct cache_reserve_call){ .session = v->r.s.id, .keys = &k, .info = &info,
			.on = &on, .may_grow = true, .now_us = v->r.now, .statuses = &status, .reservations = &id,
			.places = place, .places_max = 1 }, &v->r.why), STATUS_OK);
	ck_assert_int_eq(status, STATUS_OK);
	free((void *)k.bytes);
	return id;
}

static uint64_t slot_bytes(const struct vram_rig *v)
{
	const uint64_t unit = ARENA_DEVICE_UNIT;

	return (v->r.s.block_bytes[0] + unit - 1) / unit * unit;
}

/* What an engine leaves: its block, and ones behind it, as they were. Ones are NaNs in most formats. */
static void write_block(struct vram_rig *v, const struct cache_place *p, uint64_t key)
{
	uint8_t *at = vr_bytes(v, p);

	memset(at, 0xff, slot_bytes(v));
	rig_fill(at, v->r.s.block_bytes[0], key, 0);
}

static void check_block(struct vram_rig *v, const struct kv_layout *l, const struct cache_place *p, uint64_t key,
			uint32_t tokens)
{
	static uint8_t want[BYTES_MAX];
	const uint8_t *at = vr_bytes(v, p);
	struct kv_geometry g;

	kv_geometry_of(l, &g);
	ck_assert_uint_le(slot_bytes(v), sizeof(want));
	memset(want, 0, sizeof(want));
	rig_fill(want, g.block_bytes, key, 0);
	kv_zero_behind(l, &g, want, tokens);
	for (uint64_t i = 0; memcmp(at, want, slot_bytes(v)) && i < slot_bytes(v); i++)
		if (at[i] != want[i])
			ck_abort_msg("formats %d and %d, %u tokens of %u: byte %llu of %llu is %02x, not %02x",
				     l->k_format, l->v_format, tokens, l->block_tokens, (unsigned long long)i,
				     (unsigned long long)g.block_bytes, at[i], want[i]);
}

static void put(struct vram_rig *v, const struct kv_layout *l, uint64_t key, uint32_t tokens)
{
	struct cache_place p;
	const uint64_t id = reserve(v, key, tokens, &p);
	enum status status;

	write_block(v, &p, key);
	ck_assert_int_eq(vr_commit(v, &id, 1, &status), STATUS_OK);
	ck_assert_int_eq(status, STATUS_OK);
	check_block(v, l, &p, key, tokens);
}

static void each_count(const struct vram_rig *of, const struct kv_layout *l)
{
	const uint32_t counts[] = { 1, 15, 16, 17, l->block_tokens - 1, l->block_tokens };
	struct vram_rig v;

	if (kv_layout_problem(l)) /* not all formats are K's alone */
		return;
	join(&v, of, l);
	for (uint32_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		if (counts[i] <= l->block_tokens)
			put(&v, l, i, counts[i]);
}

static void one_count(const struct vram_rig *of, const struct kv_layout *l, uint32_t tokens)
{
	struct vram_rig v;

	ck_assert_ptr_null(kv_layout_problem(l));
	join(&v, of, l);
	put(&v, l, 0, tokens);
}

START_TEST(the_rest_is_zero_in_all_formats)
{
	struct vram_rig v;

	vr_open(&v, &options);
	for (int f = 0; f < KV_FORMAT_COUNT; f++) {
		struct kv_layout l;

		if (f == KV_NONE)
			continue;
		l = layout_of((enum kv_format)f, (enum kv_format)f, 64, 3, 48, 2);
		each_count(&v, &l);
		l = layout_of((enum kv_format)f, KV_NONE, 128, 1, 16, 1);
		each_count(&v, &l);
	}
	rig_quiet(&v.r);
	vr_close(&v);
}
END_TEST

/* More chunks than a list has pairs; chunks of which one fills half of the memory; more atoms than that has room for.
 */
START_TEST(large_blocks_go_in_several_lists)
{
	const struct kv_layout many = layout_of(KV_TQ2, KV_TQ2, 64, 8, 32, 130);
	const struct kv_layout long_chunks = layout_of(KV_F16, KV_F16, 256, 1, 256, 4);
	const struct kv_layout large_atoms = layout_of(KV_F16, KV_F16, 256, 4, 32, 6);
	struct vram_rig v;

	vr_open(&v, &options);
	one_count(&v, &many, 3);
	one_count(&v, &long_chunks, 17);
	one_count(&v, &large_atoms, 5);
	rig_quiet(&v.r);
	vr_close(&v);
}
END_TEST

/* A slot that was another layout's, which another engine's block follows: nothing of the first is seen, on the GPU, in
 * host memory after the way down, or through the checksum. */
START_TEST(a_slot_that_is_cut_anew_shows_nothing_of_before)
{
	const struct kv_layout before = vr_layout(0), after = layout_of(KV_TQ3, KV_TQ3, 96, 2, 64, 7);
	struct cache_leased leased;
	struct vram_rig v, w;
	struct cache_place p;
	uint32_t n;

	vr_open(&v, &options);
	for (n = 0; n < GPU_SLOTS; n++)
		put(&v, &before, n, 256);
	for (uint64_t key = 0; key < n; key++) {
		struct cache_keys k = rig_keys(key, 1);
		enum status st;

		ck_assert_int_eq(cache_delete(v.r.c, v.r.s.id, &k, &st, NULL, &v.r.why), STATUS_OK);
		free((void *)k.bytes);
	}
	rig_quiet(&v.r);
	join(&w, &v, &after);
	for (uint64_t key = 0; key < 40; key++) {
		const uint32_t tokens = 1 + (uint32_t)key % 64;
		const uint64_t id = reserve(&w, key, tokens, &p);
		enum status status;

		rig_fill(vr_bytes(&w, &p), w.r.s.block_bytes[0], key, 0);
		ck_assert_int_eq(vr_commit(&w, &id, 1, &status), STATUS_OK);
		check_block(&w, &after, &p, key, tokens);
	}
	rig_quiet(&w.r);
	for (uint64_t key = 0; key < 40; key++) {
		static uint8_t want[BYTES_MAX];
		struct kv_geometry g;

		kv_geometry_of(&after, &g);
		ck_assert_int_eq(vr_lease(&w, CACHE_HOST, key, 1, true, false, &p, &leased), STATUS_OK);
		ck_assert_uint_eq(p.tokens, 1 + key % 64);
		rig_fill(want, g.block_bytes, key, 0);
		kv_zero_behind(&after, &g, want, p.tokens);
		ck_assert_int_eq(memcmp(rig_block(&w.r, &p), want, g.block_bytes), 0);
		vr_release(&w, &leased);
	}
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 0);
	vr_close(&v);
}
END_TEST

/* An open block that became a stored one has the zeroes too, behind the tokens that it has in the end. */
START_TEST(open_blocks_end_with_zeroes)
{
	const struct cache_keys none = { NULL, 1, 0 };
	const struct slot_info info = { .tokens = 3 };
	struct cache_commit_item item = { .tokens = 20, .key_bytes = RIG_KEY_BYTES };
	const struct kv_layout l = vr_layout(0);
	struct cache_on on = { .gpu = 0 };
	struct cache_place p;
	struct vram_rig v;
	enum status status;

	vr_open(&v, &options);
	on.attachment = v.r.attachment;
	ck_assert_int_eq(cache_reserve(v.r.c, &(struct cache_reserve_call){ .session = v.r.s.id, .keys = &none, .info = &info,
			.open = true, .on = &on, .may_grow = true, .now_us = v.r.now, .statuses = &status,
			.reservations = &item.reservation, .places = &p, .places_max = 1 }, &v.r.why), STATUS_OK);
	ck_assert_int_eq(status, STATUS_OK);
	write_block(&v, &p, 9);
	rig_key(item.key, 9);
	ck_assert_int_eq(cache_commit(v.r.c, &(struct cache_commit_call){ .session = v.r.s.id, .items = &item, .count = 1,
			.now_us = v.r.now, .unix_ms = 1, .statuses = &status }, NULL, &v.r.why), STATUS_OK);
	ck_assert_int_eq(status, STATUS_OK);
	check_block(&v, &l, &p, 9, 20);
	rig_quiet(&v.r);
	vr_close(&v);
}
END_TEST

/* ---- in which order ---- */

struct committing {
	struct vram_rig rig;           /* a copy: the sentence in it is the thread's */
	uint64_t id;
	enum status status;
	atomic_bool over;
};

static void *commit_it(void *arg)
{
	struct committing *c = arg;

	cache_thread_enter();
	ck_assert_int_eq(vr_commit(&c->rig, &c->id, 1, &c->status), STATUS_OK);
	cache_thread_leave();
	atomic_store(&c->over, true);
	return NULL;
}

/* As long as the GPU has not written the zeroes no call finds the block, and nothing of it is on its way down. */
START_TEST(nobody_finds_it_before)
{
	const struct kv_layout l = vr_layout(0);
	struct committing c = { .status = STATUS_INTERNAL };
	struct cache_place p;
	struct vram_rig v;
	pthread_t t;

	vr_open(&v, &options);
	c.rig = v;
	c.id = reserve(&v, 3, 100, &p);
	write_block(&v, &p, 3);
	vr_hold(&v, 0, 0);
	pthread_create(&t, NULL, commit_it, &c);
	usleep(50000);
	ck_assert(!atomic_load(&c.over));
	ck_assert_uint_eq(rig_prefix(&v.r, 3, 1), 0);
	vr_go(&v, 0);
	RIG_AWAIT(atomic_load(&c.over));
	pthread_join(t, NULL);
	ck_assert_int_eq(c.status, STATUS_OK);
	check_block(&v, &l, &p, 3, 100);
	rig_quiet(&v.r);
	vr_close(&v);
}
END_TEST

/* The GPU is lost meanwhile: the commit says so, and nothing is stored. */
START_TEST(a_gpu_that_is_lost_meanwhile)
{
	struct committing c = { .status = STATUS_INTERNAL };
	struct cache_place p;
	struct vram_rig v;
	pthread_t t;

	vr_open(&v, &options);
	c.rig = v;
	c.id = reserve(&v, 3, 100, &p);
	vr_hold(&v, 0, 0);
	pthread_create(&t, NULL, commit_it, &c);
	usleep(20000);
	vr_lose(&v, 0);
	RIG_AWAIT(atomic_load(&c.over));
	pthread_join(t, NULL);
	ck_assert_int_eq(c.status, STATUS_UNAVAILABLE);
	ck_assert_uint_eq(rig_prefix(&v.r, 3, 1), 0);
	vr_close(&v);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		the_rest_is_zero_in_all_formats, large_blocks_go_in_several_lists,
		a_slot_that_is_cut_anew_shows_nothing_of_before, open_blocks_end_with_zeroes, nobody_finds_it_before, a_gpu_that_is_lost_meanwhile,
	};

	return rig_main("cache_vram_zero", tests, sizeof(tests) / sizeof(tests[0]));
}
