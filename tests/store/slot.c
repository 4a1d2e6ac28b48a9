/* Slot headers: what is sealed matches, and nothing else does. */
#include "store/slot.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 5, LAYER_BYTES = 700, BLOCK_BYTES = LAYERS * LAYER_BYTES };

static _Alignas(4096) uint8_t slot[SLOT_HEADER_BYTES + 4096];
static const uint8_t key[SLOT_KEY_MAX] = "a key of up to sixty-four bytes, of which most tests take twenty";
static const struct slot_ident ident = {
	.tenant = "default",
	.layout_id = 0x1122334455667788ull,
	.key = key,
	.key_bytes = 20,
	.block_bytes = BLOCK_BYTES,
	.layer_bytes = LAYER_BYTES,
	.layers = LAYERS,
	.layout = "how this layout is described",
	.layout_bytes = 28,
};

static uint64_t rng = 0x9e3779b97f4a7c15ull;

static uint64_t rnd(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng;
}

static struct slot_header *sealed(void)
{
	struct slot_info info = { .parent_bytes = 3, .parent = "abc", .role = 2, .turn = 7, .tokens = 16,
				  .position = 4096 };

	memset(slot, 0xa5, sizeof(slot));
	for (size_t i = 0; i < BLOCK_BYTES; i++)
		slot[SLOT_HEADER_BYTES + i] = (uint8_t)rnd();
	slot_seal(slot, &ident, &info, 42, 1234567);
	return (struct slot_header *)slot;
}

/* Makes the header's own CRC right again after a change. */
static void recrc(struct slot_header *h)
{
	h->header_crc = 0;
	h->header_crc = slot_crc32c(0, h, sizeof(*h));
}

/* Of any length, from any address on, whatever is behind it: as of its bytes one by one. */
START_TEST(crc32c_of_long_data)
{
	enum { MOST = 40000, TIMES = 200 };
	static uint8_t bytes[MOST + 64];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)rnd();
	for (int t = 0; t < TIMES; t++) {
		const size_t n = rnd() % (t % 2 ? MOST : 3000), from = rnd() % 64;
		const void *const next[] = { NULL, bytes, bytes + from + n, NULL };
		uint32_t want = 0;

		for (size_t i = 0; i < n; i++)
			want = slot_crc32c(want, bytes + from + i, 1);
		ck_assert_uint_eq(slot_crc32c_next(0, bytes + from, n, next[t % 4]), want);
		ck_assert_uint_eq(slot_crc32c(slot_crc32c(0, bytes + from, n / 3), bytes + from + n / 3, n - n / 3), want);
	}
}
END_TEST

START_TEST(crc32c_is_castagnoli_and_chains)
{
	const char *text = "123456789";
	uint8_t zeros[32] = { 0 };

	ck_assert_uint_eq(slot_crc32c(0, text, 9), 0xe3069283u);
	ck_assert_uint_eq(slot_crc32c(0, zeros, 32), 0x8a9136aau); /* RFC 3720, B.4 */
	ck_assert_uint_eq(slot_crc32c(0, text, 0), 0);
	for (size_t cut = 0; cut <= 9; cut++)
		ck_assert_uint_eq(slot_crc32c(slot_crc32c(0, text, cut), text + cut, 9 - cut),
				  0xe3069283u);
}
END_TEST

START_TEST(a_sealed_slot_matches_and_tells_all)
{
	struct slot_header *h = sealed();

	ck_assert_ptr_null(slot_header_problem(h));
	ck_assert_int_eq(slot_header_match(h, &ident, 42), STATUS_OK);
	ck_assert_int_eq(slot_header_match(h, &ident, 0), STATUS_OK);
	ck_assert_int_eq(slot_layers_check(slot, 0, LAYERS), STATUS_OK);
	ck_assert_uint_eq(h->stored_unix_ms, 1234567);
	ck_assert_uint_eq(h->position, 4096);
	ck_assert_uint_eq(h->tokens, 16);
	ck_assert_uint_eq(h->turn, 7);
	ck_assert_uint_eq(h->role, 2);
	ck_assert_uint_eq(h->parent_bytes, 3);
	ck_assert_mem_eq(h->parent, "abc\0\0", 5);
	ck_assert_mem_eq(h->key, key, 20);
	ck_assert_uint_eq(h->key[20], 0);
	ck_assert_uint_eq(h->version, SLOT_VERSION);
	ck_assert_uint_eq(h->layout_bytes, 28);
	ck_assert_mem_eq(h->layout, "how this layout is described\0", 29);
	/* The header's CRC is that of the page with the field 0. */
	uint32_t crc = h->header_crc;
	recrc(h);
	ck_assert_uint_eq(h->header_crc, crc);
}
END_TEST

/* ---- headers of older versions ---- */

enum {
	OLD_KEY = 80,
	OLD_PARENT = 112,
	OLD_TENANT = 144,
	OLD_CRCS = 208,
	OLD_LAYOUT_BYTES = 2256,
	OLD_LAYOUT = 2260,
	OLD_RESERVED = 2516
};

/* The header as version 1 or 2 wrote it: key and parent had 32 bytes each, and version 1 had no layout. */
static void old_form(struct slot_header *h, uint32_t version)
{
	uint8_t old[SLOT_HEADER_BYTES] = { 0 };
	const uint8_t *new = (const uint8_t *)h;

	memcpy(old, new, OLD_KEY);
	memcpy(old + OLD_KEY, h->key, 32);
	memcpy(old + OLD_PARENT, h->parent, 32);
	memcpy(old + OLD_TENANT, h->tenant, sizeof(h->tenant));
	memcpy(old + OLD_CRCS, h->layer_crc, sizeof(h->layer_crc));
	if (version == 2) {
		memcpy(old + OLD_LAYOUT_BYTES, &h->layout_bytes, sizeof(h->layout_bytes));
		memcpy(old + OLD_LAYOUT, h->layout, sizeof(h->layout));
	}
	memcpy(h, old, sizeof(old));
	h->version = version;
	recrc(h);
}

static struct slot_header *sealed_old(uint32_t version)
{
	struct slot_header *h = sealed();

	old_form(h, version);
	return h;
}

START_TEST(an_old_header_says_the_same_when_renewed)
{
	const uint32_t version = (uint32_t)_i;
	struct slot_header *h = sealed(), want = *h;

	if (version == 1) {
		want.layout_bytes = 0;
		memset(want.layout, 0, sizeof(want.layout));
		recrc(&want);
	}
	slot_header_renew(h);
	ck_assert_mem_eq(h->key, want.key, sizeof(want.key)); /* a present one stays as it is */
	old_form(h, version);
	ck_assert_ptr_nonnull(slot_header_problem(h));
	slot_header_renew(h);
	ck_assert_mem_eq(h, &want, sizeof(want));
	ck_assert_ptr_null(slot_header_problem(h));
	ck_assert_int_eq(slot_header_match(h, &ident, 42), STATUS_OK);
	ck_assert_int_eq(slot_layers_check(slot, 0, LAYERS), STATUS_OK);
}
END_TEST

START_TEST(an_old_tombstone_stays_one)
{
	struct slot_header *h = sealed();

	slot_tombstone(h, h, 99);
	old_form(h, (uint32_t)_i);
	slot_header_renew(h);
	ck_assert_ptr_null(slot_header_problem(h));
	ck_assert_int_eq(h->tombstone, 1);
	ck_assert_uint_eq(h->generation, 42);
	ck_assert_int_eq(slot_header_match(h, &ident, 42), STATUS_STALE);
}
END_TEST

START_TEST(any_flipped_bit_of_an_old_header_is_seen)
{
	struct slot_header *h = sealed_old((uint32_t)_i), was = *h, now;

	for (size_t bit = 0; bit < SLOT_HEADER_BYTES * 8; bit++) {
		slot[bit / 8] ^= (uint8_t)(1u << bit % 8);
		now = *h;
		slot_header_renew(h);
		ck_assert_mem_eq(h, &now, sizeof(now));
		ck_assert_msg(slot_header_problem(h) != NULL, "bit %zu", bit);
		*h = was;
	}
}
END_TEST

/* Bytes of an old page that are false under a right checksum. */
static const struct {
	uint32_t version;
	size_t at;
	uint8_t value;
} false_bytes[] = {
	{ 2, 77, 33 },                    /* key bytes: more than the version had */
	{ 2, 77, 0 },
	{ 2, 78, 33 },                    /* parent bytes */
	{ 2, OLD_KEY + 20, 1 },
	{ 2, OLD_PARENT + 3, 1 },
	{ 2, 79, 2 },                     /* tombstone */
	{ 2, OLD_TENANT, ' ' },
	{ 2, OLD_CRCS + 4 * LAYERS, 1 },
	{ 2, OLD_LAYOUT_BYTES + 1, 2 },
	{ 2, OLD_LAYOUT + 28, 1 },
	{ 1, OLD_LAYOUT_BYTES, 1 },
	{ 1, OLD_LAYOUT, 1 },
	{ 1, OLD_RESERVED, 1 },
	{ 2, OLD_RESERVED, 1 },
	{ 2, SLOT_HEADER_BYTES - 1, 1 },
	{ 2, 32, 1 },                     /* block bytes */
	{ 2, 69, 0xff },                  /* tokens */
	{ 2, 64, LAYERS + 1 },            /* layers */
};

START_TEST(a_false_byte_of_an_old_header_is_seen)
{
	struct slot_header *h = sealed_old(false_bytes[_i].version);

	slot[false_bytes[_i].at] = false_bytes[_i].value;
	recrc(h);
	slot_header_renew(h);
	ck_assert_uint_eq(h->version, false_bytes[_i].version);
	ck_assert_ptr_nonnull(slot_header_problem(h));
}
END_TEST

START_TEST(a_slot_may_have_no_layout)
{
	struct slot_info info = { .tokens = 16 };
	struct slot_ident plain = ident;
	struct slot_header *h = sealed();

	plain.layout = NULL;
	plain.layout_bytes = 0;
	slot_seal(slot, &plain, &info, 42, 1);
	ck_assert_ptr_null(slot_header_problem(h));
	ck_assert_uint_eq(h->layout_bytes, 0);
	ck_assert_int_eq(slot_header_match(h, &ident, 42), STATUS_OK); /* a layout is not compared */
}
END_TEST

START_TEST(a_tombstone_keeps_names_and_generation)
{
	struct slot_header *h = sealed(), page, was = *h;

	if (_i > 0) { /* of an old header that was renewed */
		old_form(h, (uint32_t)_i);
		slot_header_renew(h);
		was = *h;
	}
	memset(&page, 0xa5, sizeof(page));
	slot_tombstone(&page, h, 99);
	ck_assert_mem_eq(h, &was, sizeof(was));
	slot_tombstone(h, h, 99); /* in place */
	ck_assert_mem_eq(h, &page, sizeof(page));
	ck_assert_ptr_null(slot_header_problem(h));
	ck_assert_int_eq(h->tombstone, 1);
	ck_assert_uint_eq(h->generation, 42);
	ck_assert_uint_eq(h->stored_unix_ms, 99);
	ck_assert_mem_eq(h->key, was.key, sizeof(was.key));
	ck_assert_mem_eq(h->tenant, was.tenant, sizeof(was.tenant));
	ck_assert_uint_eq(h->layout_bytes, was.layout_bytes);
	ck_assert_int_eq(slot_header_match(h, &ident, 42), STATUS_STALE);
	ck_assert_int_eq(slot_layers_check(slot, 0, 1), STATUS_CORRUPT);
	slot_tombstone(&page, h, 99); /* of a tombstone: the same */
	ck_assert_mem_eq(&page, h, sizeof(page));
}
END_TEST

START_TEST(any_flipped_bit_of_the_header_is_seen)
{
	struct slot_header *h = sealed();

	for (size_t bit = 0; bit < SLOT_HEADER_BYTES * 8; bit++) {
		slot[bit / 8] ^= (uint8_t)(1u << bit % 8);
		ck_assert_msg(slot_header_problem(h) != NULL, "bit %zu", bit);
		ck_assert_int_eq(slot_header_match(h, &ident, 42), STATUS_CORRUPT);
		slot[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	ck_assert_ptr_null(slot_header_problem(h));
}
END_TEST

START_TEST(a_damaged_layer_is_seen_alone)
{
	for (int round = 0; round < 200; round++) {
		sealed();
		uint32_t bad = (uint32_t)(rnd() % LAYERS);
		uint8_t *layer = slot + SLOT_HEADER_BYTES + bad * LAYER_BYTES;

		layer[rnd() % LAYER_BYTES] ^= (uint8_t)(1u << rnd() % 8);
		for (uint32_t i = 0; i < LAYERS; i++)
			ck_assert_int_eq(slot_layers_check(slot, i, 1), i == bad ? STATUS_CORRUPT : STATUS_OK);
		ck_assert_int_eq(slot_layers_check(slot, 0, LAYERS), STATUS_CORRUPT);
		ck_assert_int_eq(slot_layers_check(slot, 0, bad), STATUS_OK);
	}
}
END_TEST

START_TEST(layers_outside_the_header_are_refused)
{
	sealed();
	ck_assert_int_eq(slot_layers_check(slot, LAYERS, 0), STATUS_OK);
	ck_assert_int_eq(slot_layers_check(slot, 0, LAYERS + 1), STATUS_CORRUPT);
	ck_assert_int_eq(slot_layers_check(slot, LAYERS, 1), STATUS_CORRUPT);
	ck_assert_int_eq(slot_layers_check(slot, LAYERS + 1, 0), STATUS_CORRUPT);
	ck_assert_int_eq(slot_layers_check(slot, 1, UINT32_MAX), STATUS_CORRUPT);
}
END_TEST

START_TEST(another_blocks_slot_is_stale)
{
	struct slot_header *h = sealed();
	struct slot_ident other;

	ck_assert(slot_header_names(h, &ident, 42) && slot_header_names(h, &ident, 0) && !slot_header_names(h, &ident, 43));
	ck_assert_int_eq(slot_header_match(h, &ident, 43), STATUS_STALE);
	other = ident, other.tenant = "defaul";
	ck_assert_int_eq(slot_header_match(h, &other, 0), STATUS_STALE);
	other = ident, other.tenant = "default2";
	ck_assert_int_eq(slot_header_match(h, &other, 0), STATUS_STALE);
	other = ident, other.layout_id++;
	ck_assert_int_eq(slot_header_match(h, &other, 0), STATUS_STALE);
	other = ident, other.key_bytes = 19;
	ck_assert_int_eq(slot_header_match(h, &other, 0), STATUS_STALE);
	other = ident, other.key = key + 1;
	ck_assert_int_eq(slot_header_match(h, &other, 0), STATUS_STALE);
	other = ident, other.layers = 1, other.layer_bytes = BLOCK_BYTES;
	ck_assert_int_eq(slot_header_match(h, &other, 0), STATUS_STALE);
	h->tombstone = 1;
	recrc(h);
	ck_assert_ptr_null(slot_header_problem(h));
	ck_assert_int_eq(slot_header_match(h, &ident, 42), STATUS_STALE);
}
END_TEST

/* A header of fewer layers that is sound but for what the caller changes next. */
static void fewer_layers(struct slot_header *h, uint32_t layers)
{
	h->layers = layers;
	memset(h->layer_crc + layers, 0, (LAYERS - layers) * sizeof(h->layer_crc[0]));
}

/* Each row breaks one field of a sound header whose CRC is then made right. */
static void break_magic(struct slot_header *h)
{
	h->magic++;
}

static void break_version(struct slot_header *h)
{
	h->version = SLOT_VERSION + 1;
}

static void zero_version(struct slot_header *h)
{
	h->version = 0;
}

static void old_version(struct slot_header *h)
{
	h->version = SLOT_VERSION - 1;
}

static void long_layout(struct slot_header *h)
{
	h->layout_bytes = SLOT_LAYOUT_MAX + 1;
}

static void dirty_layout(struct slot_header *h)
{
	h->layout[SLOT_LAYOUT_MAX - 1] = 1;
}

static void no_layers(struct slot_header *h)
{
	fewer_layers(h, 0);
	h->block_bytes = 0;
}

static void many_layers(struct slot_header *h)
{
	h->layers = 513;
	h->block_bytes = 513 * h->layer_bytes;
}

static void no_layer_bytes(struct slot_header *h)
{
	h->layer_bytes = 0;
	h->block_bytes = 0;
	h->tokens = 0;
}

static void huge_layer(struct slot_header *h)
{
	fewer_layers(h, 2);
	h->layer_bytes = 1ull << 63;
	h->block_bytes = 0;
}

static void uneven_block(struct slot_header *h)
{
	h->block_bytes++;
}

/* The last layer would begin behind the block. */
static void empty_layer(struct slot_header *h)
{
	h->block_bytes = (LAYERS - 1) * LAYER_BYTES;
}

static void huge_block(struct slot_header *h)
{
	fewer_layers(h, 1);
	h->block_bytes = h->layer_bytes = 1 << 30;
}

static void no_tokens(struct slot_header *h)
{
	h->tokens = 0;
}

static void many_tokens(struct slot_header *h)
{
	h->tokens = SLOT_TOKENS_MAX + 1;
}

static void no_key(struct slot_header *h)
{
	h->key_bytes = 0;
}

static void long_key(struct slot_header *h)
{
	h->key_bytes = SLOT_KEY_MAX + 1;
}

static void dirty_key(struct slot_header *h)
{
	h->key[SLOT_KEY_MAX - 1] = 1;
}

static void long_parent(struct slot_header *h)
{
	h->parent_bytes = SLOT_KEY_MAX + 1;
}

static void dirty_parent(struct slot_header *h)
{
	h->parent[3] = 1;
}

static void no_tenant(struct slot_header *h)
{
	memset(h->tenant, 0, sizeof(h->tenant));
}

static void open_tenant(struct slot_header *h)
{
	memset(h->tenant, 'a', sizeof(h->tenant));
}

static void odd_tenant(struct slot_header *h)
{
	h->tenant[2] = '\n';
}

static void high_tenant(struct slot_header *h)
{
	h->tenant[2] = (char)0xc3;
}

static void delete_in_tenant(struct slot_header *h)
{
	h->tenant[2] = 0x7f;
}

static void dirty_tenant(struct slot_header *h)
{
	h->tenant[63 - 1] = 'x';
}

static void odd_tombstone(struct slot_header *h)
{
	h->tombstone = 2;
}

static void dirty_crcs(struct slot_header *h)
{
	h->layer_crc[LAYERS] = 1;
}

static void dirty_reserve(struct slot_header *h)
{
	h->reserved[sizeof(h->reserved) - 1] = 1;
}

static void (*const breakers[])(struct slot_header *) = {
	break_magic, break_version, no_layers, many_layers, no_layer_bytes, huge_layer, uneven_block,
	empty_layer,
	huge_block, no_tokens, many_tokens, no_key, long_key, dirty_key, long_parent, dirty_parent,
	no_tenant, open_tenant, odd_tenant, high_tenant, delete_in_tenant, dirty_tenant,
	odd_tombstone, dirty_crcs, dirty_reserve, zero_version, old_version, long_layout, dirty_layout,
};

START_TEST(a_false_field_under_a_right_crc_is_refused)
{
	struct slot_header *h = sealed();

	breakers[_i](h);
	recrc(h);
	ck_assert_msg(slot_header_problem(h) != NULL, "row %d", _i);
	ck_assert_int_eq(slot_header_match(h, &ident, 0), STATUS_CORRUPT);
}
END_TEST

/* Blocks that are not their layers' multiple: the last one is what is left, and has a sum of its own. */
START_TEST(the_last_layer_may_be_short)
{
	static const uint32_t layers[] = { 1, 2, 5, 5, 5 }, bytes[] = { 16, 716, 2816, 3499, 3500 };
	struct slot_info info = { .tokens = 60000 }; /* more than bytes: a state may stand for many tokens */
	struct slot_ident uneven = ident;
	struct slot_header *h = sealed(), mine;
	uint8_t *block = slot + SLOT_HEADER_BYTES;
	static uint8_t copy[BLOCK_BYTES + 1];

	uneven.layers = layers[_i];
	uneven.block_bytes = bytes[_i];
	uneven.layer_bytes = _i ? LAYER_BYTES : 16;
	slot_seal(slot, &uneven, &info, 42, 1);
	mine = *h;
	ck_assert_ptr_null(slot_header_problem(h));
	ck_assert_int_eq(slot_header_match(h, &uneven, 42), STATUS_OK);
	ck_assert_uint_eq(slot_block_crc(&mine), slot_crc32c(0, block, bytes[_i]));
	ck_assert_uint_eq(h->layer_crc[layers[_i] - 1],
			  slot_crc32c(0, block + (layers[_i] - 1) * uneven.layer_bytes, bytes[_i] - (layers[_i] - 1) * uneven.layer_bytes));
	block[bytes[_i]] ^= 1; /* behind the block: no business of its sums */
	copy[bytes[_i]] = 0x77;
	ck_assert_int_eq(slot_layers_check(slot, 0, layers[_i]), STATUS_OK);
	ck_assert_int_eq(slot_block_check(&mine, block), STATUS_OK);
	ck_assert_int_eq(slot_block_check_leave(&mine, block), STATUS_OK);
	ck_assert_int_eq(slot_block_copy(&mine, block, copy), STATUS_OK);
	ck_assert_mem_eq(copy, block, bytes[_i]);
	ck_assert_uint_eq(copy[bytes[_i]], 0x77);
	for (uint32_t at = bytes[_i] - 1; at + 20 > bytes[_i] && at < bytes[_i]; at--) {
		block[at] ^= 0x10;
		ck_assert_int_eq(slot_layers_check(slot, layers[_i] - 1, 1), at >= (layers[_i] - 1) * uneven.layer_bytes ? STATUS_CORRUPT : STATUS_OK);
		ck_assert_int_eq(slot_layers_check(slot, 0, layers[_i]), STATUS_CORRUPT);
		ck_assert_int_eq(slot_block_check(&mine, block), STATUS_CORRUPT);
		ck_assert_int_eq(slot_block_copy(&mine, block, copy), STATUS_CORRUPT);
		block[at] ^= 0x10;
	}
	uneven.block_bytes -= 16; /* another size is another block */
	ck_assert_int_eq(slot_header_match(h, &uneven, 42), STATUS_STALE);
}
END_TEST

/* By a header in the caller's memory: whatever the slot's own says. */
START_TEST(a_block_is_held_against_a_header_elsewhere)
{
	static uint8_t copy[BLOCK_BYTES];
	struct slot_header *h = sealed(), mine = *h;
	uint8_t *block = slot + SLOT_HEADER_BYTES;

	ck_assert(slot_header_is(&mine, mine.header_crc));
	ck_assert(!slot_header_is(&mine, mine.header_crc + 1));
	ck_assert_uint_eq(slot_block_crc(&mine), slot_crc32c(0, block, BLOCK_BYTES));
	h->layers = UINT32_MAX;
	h->layer_bytes = UINT64_MAX;
	recrc(h);
	ck_assert(!slot_header_is(h, mine.header_crc));
	ck_assert_int_eq(slot_block_copy(&mine, block, copy), STATUS_OK);
	ck_assert_mem_eq(copy, block, BLOCK_BYTES);
	for (size_t i = 0; i < BLOCK_BYTES; i += 97) {
		block[i] ^= 4;
		ck_assert_int_eq(slot_block_check(&mine, block), STATUS_CORRUPT);
		ck_assert_int_eq(slot_block_check_leave(&mine, block), STATUS_CORRUPT);
		ck_assert_int_eq(slot_block_copy(&mine, block, copy), STATUS_CORRUPT);
		block[i] ^= 4;
	}
	ck_assert_int_eq(slot_block_check(&mine, block), STATUS_OK);
	ck_assert_int_eq(slot_block_check_leave(&mine, block), STATUS_OK);
}
END_TEST

/* A bit of the copy makes another header of it, its CRC's own bits too. */
START_TEST(a_header_is_known_by_its_crc)
{
	const uint32_t crc = sealed()->header_crc;
	struct slot_header *h = (struct slot_header *)slot;

	for (size_t bit = 0; bit < 8 * SLOT_HEADER_BYTES; bit += 1 + rnd() % 7) {
		slot[bit / 8] ^= (uint8_t)(1u << bit % 8);
		ck_assert_msg(!slot_header_is(h, crc), "bit %zu", bit);
		slot[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	ck_assert(slot_header_is(h, crc));
}
END_TEST

START_TEST(garbage_under_a_right_crc_never_crashes)
{
	struct slot_header *h = (struct slot_header *)slot;

	for (int round = 0; round < 2000; round++) {
		sealed();
		for (int n = 0; n < 3; n++)
			slot[16 + rnd() % 256] = (uint8_t)rnd();
		recrc(h);
		(void)slot_header_problem(h);
		if (slot_header_match(h, &ident, 42) == STATUS_OK)
			ck_assert_int_eq(slot_layers_check(slot, 0, LAYERS), STATUS_OK);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_slot");
	TCase *tc = tcase_create("slot");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, crc32c_is_castagnoli_and_chains);
	tcase_add_test(tc, crc32c_of_long_data);
	tcase_add_test(tc, a_block_is_held_against_a_header_elsewhere);
	tcase_add_test(tc, a_header_is_known_by_its_crc);
	tcase_add_loop_test(tc, the_last_layer_may_be_short, 0, 5);
	tcase_add_test(tc, a_sealed_slot_matches_and_tells_all);
	tcase_add_loop_test(tc, an_old_header_says_the_same_when_renewed, 1, SLOT_VERSION);
	tcase_add_loop_test(tc, an_old_tombstone_stays_one, 1, SLOT_VERSION);
	tcase_add_loop_test(tc, any_flipped_bit_of_an_old_header_is_seen, 1, SLOT_VERSION);
	tcase_add_loop_test(tc, a_false_byte_of_an_old_header_is_seen, 0, sizeof(false_bytes) / sizeof(false_bytes[0]));
	tcase_add_test(tc, a_slot_may_have_no_layout);
	tcase_add_loop_test(tc, a_tombstone_keeps_names_and_generation, 0, SLOT_VERSION);
	tcase_add_test(tc, any_flipped_bit_of_the_header_is_seen);
	tcase_add_test(tc, a_damaged_layer_is_seen_alone);
	tcase_add_test(tc, layers_outside_the_header_are_refused);
	tcase_add_test(tc, another_blocks_slot_is_stale);
	tcase_add_loop_test(tc, a_false_field_under_a_right_crc_is_refused, 0,
			    sizeof(breakers) / sizeof(breakers[0]));
	tcase_add_test(tc, garbage_under_a_right_crc_never_crashes);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
