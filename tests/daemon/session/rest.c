/* What an engine leaves unwritten in its slots. Every slot is full of 0xff before it is taken, which is a NaN of most
 * formats. */
#include "daemon/block/values.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stream.h"
#include "daemon/session/session.h"
#include "kernels/codec.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 16, DIM = 64, BLOCK_BYTES = 576 };

/* Takes all slots there are, and gives them back so. */
static void slots_spoil(struct rig *r)
{
	struct cache_keys k = rig_keys(100000, SLOTS);
	struct cache_place places[SLOTS];
	enum status st[SLOTS];
	uint64_t id[SLOTS];

	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = r->s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r->now, .statuses = st, .reservations = id,
			.places = places, .places_max = SLOTS }, &r->why), STATUS_OK);
	for (int i = 0; i < SLOTS; i++) {
		ck_assert_int_eq(st[i], STATUS_OK);
		memset(rig_block(r, &places[i]) - SLOT_HEADER_BYTES, 0xff, RIG_SLOT_BYTES);
		ck_assert_int_eq(cache_abort(r->c, r->s.id, id[i]), STATUS_OK);
	}
	free((void *)k.bytes);
}

static void encode(uint8_t *block, uint32_t first, uint32_t tokens)
{
	const struct kv_layout l = rig_layout(0, 0);
	struct kv_geometry g;
	float x[RIG_TOKENS * DIM];

	for (uint32_t i = 0; i < RIG_TOKENS * DIM; i++)
		x[i] = (float)(i * 7919 % 1000) / 500 - 1;
	kv_geometry_of(&l, &g);
	for (int side = KV_SIDE_K; side <= KV_SIDE_V; side++)
		kv_encode(&l, &g, block, 0, 0, (enum kv_side)side, first, tokens, x + first * DIM, KV_DTYPE_F32, DIM);
}

/* The block has so many tokens, and zeroes behind them, to the end of its slot. */
static void slot_check(struct rig *r, const struct cache_place *p, uint32_t tokens)
{
	uint8_t want[RIG_SLOT_BYTES - SLOT_HEADER_BYTES] = { 0 };

	encode(want, 0, tokens);
	ck_assert_mem_eq(rig_block(r, p), want, sizeof(want));
}

static uint64_t reserve(struct rig *r, uint64_t n, bool open, const struct slot_info *info, struct cache_place *p)
{
	struct cache_keys k = rig_keys(n, 1);
	enum status st;
	uint64_t id = 0;

	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = r->s.id, .keys = &k,
			.info = info, .open = open, .on = &(struct cache_on){ .attachment = r->attachment,
			.gpu = CACHE_HOST }, .may_grow = true, .now_us = r->now, .statuses = &st,
			.reservations = &id, .places = p, .places_max = 1 }, &r->why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	free((void *)k.bytes);
	return id;
}

static void commit(struct rig *r, const struct cache_commit_item *item)
{
	enum status st;

	ck_assert_int_eq(cache_commit(r->c, &(struct cache_commit_call){ .session = r->s.id, .items = item,
			.count = 1, .now_us = r->now, .unix_ms = 1, .statuses = &st }, NULL, &r->why),
			 STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
}

START_TEST(the_rest_of_a_partial_block_is_zeroed)
{
	const struct cache_options o = rig_options(SLOTS);
	struct cache_place p, leased;
	struct cache_leased lease;
	struct rig r;

	rig_open(&r, &o, 1);
	for (uint32_t tokens = 1; tokens <= RIG_TOKENS; tokens++) {
		const struct slot_info info = { .tokens = tokens };

		slots_spoil(&r);
		const struct cache_commit_item item = { .reservation = reserve(&r, tokens, false, &info, &p) };

		encode(rig_block(&r, &p), 0, tokens);
		commit(&r, &item);
		ck_assert_int_eq(rig_lease(&r, tokens, 1, true, &leased, &lease), STATUS_OK);
		ck_assert_uint_eq(leased.offset, p.offset);
		slot_check(&r, &leased, tokens);
		ck_assert_int_eq(cache_release(r.c, r.s.id, lease.lease), STATUS_OK);
	}
	rig_close(&r);
}
END_TEST

/* It is zeroed when it gets its key, and not while its engine may be writing the next token. */
START_TEST(an_open_block_grows_first)
{
	const struct cache_options o = rig_options(SLOTS);
	struct cache_commit_item item = { .keep_open = true };
	struct cache_place p;
	struct rig r;

	rig_open(&r, &o, 1);
	slots_spoil(&r);
	item.reservation = reserve(&r, 1, true, NULL, &p);
	for (uint32_t tokens = 1; tokens <= 9; tokens += 2) {
		encode(rig_block(&r, &p), tokens - 1, 2);
		item.tokens = tokens;
		commit(&r, &item);
	}
	item.tokens = 10;
	item.keep_open = false;
	item.key_bytes = RIG_KEY_BYTES;
	rig_key(item.key, 1);
	commit(&r, &item);
	slot_check(&r, &p, 10);
	rig_close(&r);
}
END_TEST

/* A stream brings all bytes of its block, which are its client's own: they come back as they were. */
START_TEST(a_stream_keeps_its_bytes)
{
	const struct cache_options o = rig_options(SLOTS);
	const struct slot_info info = { .tokens = 3 };
	uint8_t key[RIG_KEY_BYTES], block[BLOCK_BYTES], rest[RIG_SLOT_BYTES - SLOT_HEADER_BYTES - BLOCK_BYTES] = { 0 };
	struct cache_write w;
	struct cache_place p;
	struct cache_leased lease;
	struct rig r;

	rig_open(&r, &o, 1);
	slots_spoil(&r);
	rig_key(key, 1);
	for (size_t i = 0; i < sizeof(block); i++)
		block[i] = (uint8_t)(i * 31 + 7);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .key = key,
			.key_bytes = RIG_KEY_BYTES, .info = &info, .now_us = r.now }, &w, &r.why), STATUS_OK);
	memcpy(w.block, block, sizeof(block));
	ck_assert_int_eq(cache_write_end(r.c, r.s.id, &w, true, r.now, 1), STATUS_OK);
	ck_assert_int_eq(rig_lease(&r, 1, 1, true, &p, &lease), STATUS_OK);
	ck_assert_mem_eq(rig_block(&r, &p), block, sizeof(block));
	ck_assert_mem_eq(rig_block(&r, &p) + sizeof(block), rest, sizeof(rest));
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { the_rest_of_a_partial_block_is_zeroed, an_open_block_grows_first,
				       a_stream_keeps_its_bytes };

	return rig_main("cache_rest", tests, sizeof(tests) / sizeof(tests[0]));
}
