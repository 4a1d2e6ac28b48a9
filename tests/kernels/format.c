/* The format table: names, layouts and their ids, geometry, and the element order of an atom. */
#include "kernels/format.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define DIM(d) d,
static const uint32_t dims[] = {KV_HEAD_DIMS(DIM)};
#undef DIM

enum { DIMS = KV_HEAD_DIM_COUNT, ATOM_BYTES_MAX = 16 * KV_HEAD_DIM_MAX * 2 };

static struct kv_layout sound(void)
{
	struct kv_layout l = {
		.layers = 8,
		.heads = 2,
		.total_heads = 2,
		.head_dim_k = 128,
		.head_dim_v = 128,
		.block_tokens = 32,
		.k_format = KV_TQ4,
		.v_format = KV_TQ4,
		.rotation_version = KV_ROTATION_VERSION,
		.codebook_version = KV_CODEBOOK_VERSION,
		.layout_version = KV_LAYOUT_VERSION,
	};

	for (unsigned i = 0; i < KV_FINGERPRINT_BYTES; i++)
		l.fingerprint[i] = (uint8_t)i;
	return l;
}

START_TEST(names)
{
	enum kv_format f = KV_NONE;

	for (unsigned i = 0; i < KV_FORMAT_COUNT; i++) {
		ck_assert(kv_format_parse(kv_format_info((enum kv_format)i)->name, &f));
		ck_assert_uint_eq(f, i);
	}
	ck_assert(kv_format_parse("raw16", &f));
	ck_assert_uint_eq(f, KV_F16);
	f = KV_TQ2;
	ck_assert(!kv_format_parse("Opaque", &f));
	ck_assert(!kv_format_parse("TQ4", &f));
	ck_assert(!kv_format_parse("", &f));
	ck_assert_uint_eq(f, KV_TQ2);
	ck_assert(kv_format_parse("opaque", &f));
	ck_assert_uint_eq(f, KV_OPAQUE);
	ck_assert_str_eq(kv_format_info(KV_OPAQUE)->name, "opaque");
	ck_assert_ptr_null(kv_format_info(KV_FORMAT_COUNT));
	ck_assert_ptr_null(kv_format_info((enum kv_format)-1));
}
END_TEST

/* The ids of all layouts that there were before the rope part, folded into one number, are what they were. */
START_TEST(ids_of_old)
{
	enum { ALL = 8 * 8 * 8 * 8 * 2 * 2 };
	uint64_t sum = 0;
	unsigned sound_ones = 0;

	for (unsigned i = 0; i < ALL; i++) {
		const unsigned k = i / 2048, v = i / 256 % 8, a = i / 32 % 8, b = i / 4 % 8, r = i / 2 % 2, w = i % 2;
		struct kv_layout l = sound();

		l.layers = 8 + k;
		l.first_layer = a;
		l.total_heads = 4 + b;
		l.first_head = w;
		l.head_dim_k = dims[a];
		l.head_dim_v = dims[b];
		l.block_tokens = 16u << (v % 5);
		l.k_format = (enum kv_format)k;
		l.v_format = (enum kv_format)v;
		l.window = w * 4096;
		l.rotation_version = kv_rotation_version(l.head_dim_k, l.head_dim_v);
		l.int4_rounding = (enum kv_rounding)r;
		if (kv_layout_problem(&l))
			continue;
		sum = (sum << 1 | sum >> 63) ^ kv_layout_id(&l);
		sound_ones++;
	}
	ck_assert_uint_eq(sound_ones, 8512);
	ck_assert_uint_eq(sum, UINT64_C(0xf1481ba55c952411));
}
END_TEST

/* Every field, set wrong, is refused; what is left alone is sound. */
START_TEST(layout_problems)
{
	static const struct {
		size_t at;
		uint32_t value;
		const char *says;
	} bad[] = {
		{offsetof(struct kv_layout, layers), 0, "layers"},
		{offsetof(struct kv_layout, layers), KV_LAYERS_MAX + 1, "layers"},
		{offsetof(struct kv_layout, first_layer), UINT32_MAX, "overflows"},
		{offsetof(struct kv_layout, heads), 0, "heads"},
		{offsetof(struct kv_layout, heads), 3, "total_heads"},
		{offsetof(struct kv_layout, heads), UINT32_MAX, "heads"},
		{offsetof(struct kv_layout, first_head), 1, "total_heads"},
		{offsetof(struct kv_layout, first_head), UINT32_MAX, "total_heads"},
		{offsetof(struct kv_layout, total_heads), UINT32_MAX, "total_heads"},
		{offsetof(struct kv_layout, head_dim_k), 48, "head_dim_k"},
		{offsetof(struct kv_layout, head_dim_v), 0, "head_dim_v"},
		{offsetof(struct kv_layout, block_tokens), 0, "block_tokens"},
		{offsetof(struct kv_layout, block_tokens), 24, "block_tokens"},
		{offsetof(struct kv_layout, block_tokens), 272, "block_tokens"},
		{offsetof(struct kv_layout, k_format), KV_NONE, "k_format"},
		{offsetof(struct kv_layout, k_format), KV_FORMAT_COUNT, "k_format"},
		{offsetof(struct kv_layout, v_format), 77, "v_format"},
		{offsetof(struct kv_layout, v_format), KV_OPAQUE, "v_format"},
		{offsetof(struct kv_layout, opaque_bytes), 64, "opaque_bytes"},
		{offsetof(struct kv_layout, opaque_name), 'a', "opaque_name"},
		{offsetof(struct kv_layout, opaque_name) + 60, 1, "opaque_name"},
		{offsetof(struct kv_layout, rotation_version), 0, "rotation_version"},
		{offsetof(struct kv_layout, codebook_version), 2, "codebook_version"},
		{offsetof(struct kv_layout, layout_version), 2, "layout_version"},
		{offsetof(struct kv_layout, int4_rounding), KV_ROUND_BF16, "int4_pth alone"},
		{offsetof(struct kv_layout, int4_rounding), 2, "int4_rounding"},
		{offsetof(struct kv_layout, int4_rounding), UINT32_MAX, "int4_rounding"},
	};
	struct kv_layout l = sound();

	ck_assert_ptr_null(kv_layout_problem(&l));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		l = sound();
		memcpy((char *)&l + bad[i].at, &bad[i].value, 4);
		ck_assert_msg(kv_layout_problem(&l) != NULL, "case %zu is accepted", i);
		ck_assert_msg(strstr(kv_layout_problem(&l), bad[i].says) != NULL, "case %zu says: %s", i,
			      kv_layout_problem(&l));
	}
	l = sound();
	l.v_format = KV_NONE;
	ck_assert_ptr_null(kv_layout_problem(&l));
	l.head_dim_v = 192;
	ck_assert_ptr_nonnull(kv_layout_problem(&l));
}
END_TEST

/* Layouts with a head dim of the second version have that version, others the first one, and no other is taken. */
START_TEST(rotation_versions)
{
	static const uint32_t first[] = {64, 96, 128, 192, 256}, second[] = {80, 112, 512};

	for (size_t i = 0; i < DIMS * DIMS; i++) {
		struct kv_layout l = sound();
		bool later = false;

		l.head_dim_k = dims[i % DIMS];
		l.head_dim_v = dims[i / DIMS];
		for (size_t j = 0; j < 3; j++)
			later |= l.head_dim_k == second[j] || l.head_dim_v == second[j];
		for (l.rotation_version = 0; l.rotation_version < 4; l.rotation_version++)
			ck_assert((kv_layout_problem(&l) == NULL) == (l.rotation_version == (later ? 2 : 1)));
		ck_assert_uint_eq(kv_rotation_version(l.head_dim_k, l.head_dim_v), later ? 2 : 1);
	}
	for (size_t j = 0; j < 5; j++)
		ck_assert(kv_head_dim_ok(first[j]));
	for (uint32_t d = 0, n = 0; d < 1100; d++) {
		ck_assert_uint_eq(kv_head_dim_index(d), kv_head_dim_ok(d) ? n : KV_HEAD_DIM_COUNT);
		n += kv_head_dim_ok(d);
	}
}
END_TEST

/* What int4_pth is rounded to is of layouts that have it, on either side. */
START_TEST(rounding_is_int4s)
{
	struct kv_layout l = sound();
	uint64_t id;

	l.v_format = KV_INT4_PTH;
	id = kv_layout_id(&l);
	ck_assert_uint_eq(id, UINT64_C(0xe92fe07554e8efcf)); /* as before there was a rounding */
	l.int4_rounding = KV_ROUND_BF16;
	ck_assert_ptr_null(kv_layout_problem(&l));
	ck_assert_uint_eq(kv_layout_id(&l), UINT64_C(0xd0931ec56a020bc7));
	l.k_format = KV_INT4_PTH;
	l.v_format = KV_FP8;
	ck_assert_ptr_null(kv_layout_problem(&l));
}
END_TEST

/* The id is a promise between machines: a fixed layout has a fixed id, and every field counts. */
START_TEST(layout_id)
{
	struct kv_layout l = sound();
	uint64_t id = kv_layout_id(&l);

	ck_assert_uint_eq(id, UINT64_C(0xf1d56c081b6a573c));
	ck_assert_uint_eq(kv_layout_id(&l), id);
	for (size_t at = 0; at < offsetof(struct kv_layout, opaque_bytes); at += at < KV_FINGERPRINT_BYTES ? 1 : 4) {
		l = sound();
		((uint8_t *)&l)[at] ^= 1;
		ck_assert_msg(kv_layout_id(&l) != id, "byte %zu does not count", at);
	}
}
END_TEST

/* Ids of packed layouts, as they were before there were opaque ones. */
START_TEST(recorded_ids)
{
	static const struct {
		enum kv_format k, v;
		uint32_t dk, dv, layers, heads, tokens, window;
		enum kv_rounding rounding;
		uint64_t id, need;
	} known[] = {
		{KV_F16, KV_F16, 128, 128, 32, 8, 16, 0, KV_ROUND_F16, UINT64_C(0x8ad1772bdc994532), 2101248},
		{KV_BF16, KV_NONE, 512, 512, 61, 1, 64, 0, KV_ROUND_F16, UINT64_C(0xc3ff7b0d3e15aa2b), 4001792},
		{KV_FP8, KV_FP8, 96, 96, 1, 1, 256, 0, KV_ROUND_F16, UINT64_C(0x0cc6b9744ba23b23), 57344},
		{KV_INT4_PTH, KV_INT4_PTH, 128, 128, 36, 8, 32, 0, KV_ROUND_BF16, UINT64_C(0x77f51d488b97da84), 1257472},
		{KV_TQ4, KV_TQ3, 256, 256, 26, 4, 16, 512, KV_ROUND_F16, UINT64_C(0xabacc88aad357c58), 385024},
		{KV_TQ2, KV_TQ2, 64, 64, 512, 1024, 256, 0, KV_ROUND_F16, UINT64_C(0xe61259d96285cec2), UINT64_C(4831842304)},
		{KV_TQ3, KV_TQ3, 80, 112, 3, 2, 48, 1024, KV_ROUND_F16, UINT64_C(0xa1861c55fccc0f51), 28672},
	};

	for (uint32_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		struct kv_layout l = {
			.first_layer = i, .layers = known[i].layers, .heads = known[i].heads, .total_heads = known[i].heads,
			.head_dim_k = known[i].dk, .head_dim_v = known[i].dv, .block_tokens = known[i].tokens,
			.k_format = known[i].k, .v_format = known[i].v, .window = known[i].window,
			.rotation_version = kv_rotation_version(known[i].dk, known[i].dv), .codebook_version = 1,
			.layout_version = 1, .int4_rounding = known[i].rounding,
		};
		struct kv_geometry g;

		for (uint32_t j = 0; j < KV_FINGERPRINT_BYTES; j++)
			l.fingerprint[j] = (uint8_t)(j * 7 + i);
		ck_assert_ptr_null(kv_layout_problem(&l));
		kv_geometry_of(&l, &g);
		ck_assert_msg(kv_layout_id(&l) == known[i].id, "layout %u has the id %llx", i, (unsigned long long)kv_layout_id(&l));
		ck_assert_uint_eq(g.need_bytes, known[i].need);
		ck_assert_uint_eq(g.pieces, l.layers);
		ck_assert_uint_eq(g.steps, l.layers);
		ck_assert_uint_eq(g.piece_bytes, g.layer_bytes);
	}
}
END_TEST

START_TEST(atom_sizes)
{
	static const struct {
		enum kv_format f;
		uint32_t d, atom;
	} known[] = {
		{KV_TQ4, 128, 2112}, {KV_INT4_PTH, 128, 2176}, {KV_F16, 128, 8192},
		{KV_BF16, 64, 4096}, {KV_FP8, 128, 4160},      {KV_TQ3, 128, 1600},
		{KV_TQ2, 128, 1088}, {KV_TQ3, 96, 1216},       {KV_TQ4, 256, 4160},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		struct kv_layout l = sound();
		struct kv_geometry g;

		l.k_format = l.v_format = known[i].f;
		l.head_dim_k = l.head_dim_v = known[i].d;
		kv_geometry_of(&l, &g);
		ck_assert_uint_eq(g.atom_bytes, known[i].atom);
	}
}
END_TEST

/* All pairs of formats and head dims: parts follow each other, aligned, and offsets cover the block
 * without overlap. */
START_TEST(geometry)
{
	for (unsigned c = 0; c < KV_FORMAT_COUNT * KV_FORMAT_COUNT * DIMS * DIMS; c++) {
		struct kv_layout l = sound();
		struct kv_geometry g;

		l.k_format = (enum kv_format)(c % KV_FORMAT_COUNT);
		l.v_format = (enum kv_format)(c / KV_FORMAT_COUNT % KV_FORMAT_COUNT);
		l.head_dim_k = dims[c / KV_FORMAT_COUNT / KV_FORMAT_COUNT % DIMS];
		l.head_dim_v = dims[c / KV_FORMAT_COUNT / KV_FORMAT_COUNT / DIMS];
		if (kv_layout_problem(&l))
			continue;
		kv_geometry_of(&l, &g);
		ck_assert_uint_eq(g.k_codes, 2 * l.head_dim_k * kv_format_info(l.k_format)->code_bits);
		ck_assert_uint_eq(g.v_codes, 2 * l.head_dim_v * kv_format_info(l.v_format)->code_bits);
		ck_assert_uint_eq(g.k_scales, 16 * kv_format_info(l.k_format)->scale_bytes);
		ck_assert_uint_eq(g.k_codes_at, 0);
		ck_assert_uint_eq(g.k_scales_at, g.k_codes);
		ck_assert_uint_eq(g.v_codes_at, g.k_scales_at + g.k_scales);
		ck_assert_uint_eq(g.v_scales_at, g.v_codes_at + g.v_codes);
		ck_assert_uint_eq(g.atom_bytes, g.v_scales_at + g.v_scales);
		ck_assert_uint_eq((g.k_scales_at | g.v_codes_at | g.v_scales_at | g.atom_bytes) % 16, 0);
		ck_assert_uint_eq(g.chunk_bytes, 2 * g.atom_bytes);
		ck_assert_uint_eq(g.block_bytes, 8 * 2 * 2 * (uint64_t)g.atom_bytes);
		ck_assert_uint_eq(g.need_bytes % KV_SLOT_ALIGN, 0);
		ck_assert_uint_ge(g.need_bytes, g.block_bytes + KV_SLOT_ALIGN);
		ck_assert_uint_lt(g.need_bytes, g.block_bytes + 2 * KV_SLOT_ALIGN);
		uint64_t at = 0, wrong = 0;

		for (uint32_t layer = 0; layer < 8; layer++)
			for (uint32_t head = 0; head < 2; head++)
				for (uint32_t token = 0; token < 32; token += 16, at += g.atom_bytes)
					wrong += kv_atom_at(&g, layer, head, token + 7) != at;
		ck_assert_uint_eq(wrong, 0);
		ck_assert_uint_eq(at, g.block_bytes);
	}
}
END_TEST

START_TEST(largest_block_fits)
{
	struct kv_layout l = sound();
	struct kv_geometry g;

	l.layers = KV_LAYERS_MAX;
	l.heads = l.total_heads = KV_HEADS_MAX;
	l.head_dim_k = l.head_dim_v = KV_HEAD_DIM_MAX;
	l.rotation_version = KV_ROTATION_VERSION_2;
	l.block_tokens = KV_BLOCK_TOKENS_MAX;
	l.k_format = l.v_format = KV_F16;
	ck_assert_ptr_null(kv_layout_problem(&l));
	kv_geometry_of(&l, &g);
	ck_assert_uint_eq(g.block_bytes, UINT64_C(512) * 1024 * 256 * 2 * 1024);
}
END_TEST

/* Every bit of the codes part is one bit of one code, every code is complete, no byte is shared by
 * two tokens. */
static void check_bijection(enum kv_format f, enum kv_side side, uint32_t d)
{
	uint32_t bits = kv_format_info(f)->code_bits, size = 2 * d * bits, wrong = 0;
	static uint8_t used[ATOM_BYTES_MAX], owner[ATOM_BYTES_MAX];

	memset(used, 0, sizeof(used));
	memset(owner, 0xff, sizeof(owner));
	for (uint32_t token = 0; token < KV_ATOM_TOKENS; token++) {
		for (uint32_t dim = 0; dim < d; dim++) {
			struct kv_place p[2];
			unsigned n = kv_code_places(f, side, d, token, dim, p);
			uint32_t covered = 0;

			wrong += n != (bits == 16 || bits == 3 ? 2 : 1);
			for (unsigned i = 0; i < n; i++) {
				uint8_t mask = (uint8_t)(((1u << p[i].bits) - 1) << p[i].shift);

				if (p[i].byte >= size || p[i].shift + p[i].bits > 8)
					ck_abort_msg("byte %u shift %u", p[i].byte, p[i].shift);
				wrong += (used[p[i].byte] & mask) != 0;
				wrong += owner[p[i].byte] != 0xff && owner[p[i].byte] != token;
				used[p[i].byte] |= mask;
				owner[p[i].byte] = (uint8_t)token;
				covered |= ((1u << p[i].bits) - 1) << p[i].code_shift;
			}
			wrong += covered != (1u << bits) - 1;
		}
	}
	for (uint32_t k = 0; k < size; k++)
		wrong += used[k] != 0xff;
	ck_assert_msg(wrong == 0, "%s side %d d %u: %u wrong", kv_format_info(f)->name, side, d, wrong);
}

START_TEST(places_are_a_bijection)
{
	for (unsigned f = KV_F16; f < KV_FORMAT_COUNT; f++)
		for (unsigned i = 0; i < DIMS; i++)
			check_bijection((enum kv_format)f, (enum kv_side)_i, dims[i]);
}
END_TEST

/* Places of hand-computed codes, K and V, so that the order itself cannot drift. */
START_TEST(known_places)
{
	static const struct {
		enum kv_format f;
		enum kv_side side;
		uint32_t d, token, dim, byte, shift;
	} known[] = {
		/* K, 4 bits, d 128: lane 4 * (token % 8) + dim / 4 % 4; word (dim / 64) * 4 + dim /
		 * 16 % 2 * 2 + token / 8 */
		{KV_TQ4, KV_SIDE_K, 128, 0, 0, 0, 0},
		{KV_TQ4, KV_SIDE_K, 128, 0, 32, 0, 4},
		{KV_TQ4, KV_SIDE_K, 128, 0, 16, 8, 0},
		{KV_INT4_PTH, KV_SIDE_K, 128, 8, 0, 4, 0},
		{KV_TQ4, KV_SIDE_K, 128, 3, 64 + 32 + 16 + 4 * 2 + 1, 512 + 14 * 16 + 2 * 4 + 1, 4},
		/* d 96: the last 32 dims stand in 8 bytes a lane */
		{KV_TQ4, KV_SIDE_K, 96, 9, 64 + 16 + 7, 512 + 5 * 8 + 4 + 3, 4},
		{KV_FP8, KV_SIDE_K, 64, 15, 63, 512 + 31 * 16 + 15, 0},
		{KV_TQ2, KV_SIDE_K, 128, 1, 64 + 48 + 5, 5 * 16 + 8 + 1, 6},
		/* 2 bits at d 96: 12 bytes a lane; the last four are two of token g, two of token g
		 * + 8 */
		{KV_TQ2, KV_SIDE_K, 96, 9, 64 + 16 + 4 + 2, 5 * 12 + 8 + 2 + 1, 4},
		{KV_F16, KV_SIDE_K, 64, 8, 16 + 8 + 3, 512 + 16 + 12 + 2, 0},
		/* V, 4 bits: word dim / 16, byte e = tokens 2t + {0, 8, 1, 9} */
		{KV_TQ4, KV_SIDE_V, 128, 0, 8, 0, 4},
		{KV_TQ4, KV_SIDE_V, 128, 8, 0, 1, 0},
		{KV_TQ4, KV_SIDE_V, 128, 15, 127, 512 + 31 * 16 + 12 + 3, 4},
		{KV_FP8, KV_SIDE_V, 64, 3, 8, 16 + 4 + 2, 0},
		{KV_TQ2, KV_SIDE_V, 64, 5, 40, 2 * 8 + 4 + 2, 2},
		{KV_F16, KV_SIDE_V, 64, 9, 24, 512 + 12 + 2, 0},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		struct kv_place p[2];

		kv_code_places(known[i].f, known[i].side, known[i].d, known[i].token, known[i].dim, p);
		ck_assert_msg(p[0].byte == known[i].byte && p[0].shift == known[i].shift,
			      "case %zu: byte %u shift %u", i, p[0].byte, p[0].shift);
	}
	struct kv_place p[2];

	/* tq3's sign plane, V at d 96: one word a lane, then the dims from 64 token by token */
	kv_code_places(KV_TQ3, KV_SIDE_V, 96, 9, 8, p);
	ck_assert_uint_eq(p[1].byte, 384 + 3);
	ck_assert_uint_eq(p[1].shift, 1);
	ck_assert_uint_eq(p[1].code_shift, 2);
	kv_code_places(KV_TQ3, KV_SIDE_V, 96, 5, 64 + 11, p);
	ck_assert_uint_eq(p[1].byte, 384 + 128 + 5 * 4 + 1);
	ck_assert_uint_eq(p[1].shift, 3);
}
END_TEST

START_TEST(scales_pair_tokens)
{
	bool seen[16] = {false};

	for (uint32_t token = 0; token < 16; token++) {
		ck_assert_uint_lt(kv_scale_at(KV_TQ4, token), 32);
		ck_assert(!seen[kv_scale_at(KV_TQ4, token) / 2]);
		seen[kv_scale_at(KV_TQ4, token) / 2] = true;
	}
	ck_assert_uint_eq(kv_scale_at(KV_TQ4, 8), kv_scale_at(KV_TQ4, 0) + 2);
	ck_assert_uint_eq(kv_scale_at(KV_INT4_PTH, 9), 12);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("format");
	TCase *t = tcase_create("format");

	tcase_add_test(t, names);
	tcase_add_test(t, layout_problems);
	tcase_add_test(t, rotation_versions);
	tcase_add_test(t, rounding_is_int4s);
	tcase_add_test(t, layout_id);
	tcase_add_test(t, recorded_ids);
	tcase_add_test(t, ids_of_old);
	tcase_add_test(t, atom_sizes);
	tcase_add_test(t, geometry);
	tcase_add_test(t, largest_block_fits);
	tcase_add_loop_test(t, places_are_a_bijection, 0, 2);
	tcase_add_test(t, known_places);
	tcase_add_test(t, scales_pair_tokens);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);

	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
