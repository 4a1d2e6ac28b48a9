/* Layouts of multi-head latent attention: a latent of 512 dims in any format, V a view of it, and a rope part of 64
 * dims of a key (kernels/format.h). What is said of other layouts in format.c, codec.c, attend.c and attend_features.c
 * holds of these: sizes, vectors in and out of blocks, attention against float64 over decoded values; everything once
 * for each kind of machine that this one can be.
 */
#include "tests/kernels/attend_rig.h"

#include <check.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { RANDOM_CASES = 20, GARBAGE_CASES = 20, LONG_TOKENS = 1000 };
#elif defined(TERRACE_TESTS_SMALL)
enum { RANDOM_CASES = 60, GARBAGE_CASES = 60, LONG_TOKENS = 4095 };
#else
enum { RANDOM_CASES = 200, GARBAGE_CASES = 100, LONG_TOKENS = 16384 };
#endif
static uint64_t random_count = RANDOM_CASES; /* `mla N`: so many */

enum { LATENT = KV_LATENT_DIM, ROPE = KV_ROPE_DIM, KEY = LATENT + ROPE, TOKENS = 48 };

static const enum kv_format ropes[] = {KV_F16, KV_BF16, KV_FP8};

/* Bytes a token, by format and rope format; engines keep 1,152 in 16 bits and 656 in vLLM's fp8 form. */
static const uint32_t token_bytes[COUNT(formats)][COUNT(ropes)] = {
	{1152, 1152, 1090}, /* fp16 */
	{1152, 1152, 1090}, /* bf16 */
	{642, 642, 580},    /* fp8 */
	{388, 388, 326},    /* int4_pth */
	{386, 386, 324},    /* tq4 */
	{322, 322, 260},    /* tq3 */
	{258, 258, 196},    /* tq2 */
};

static struct kv_layout layout_of(enum kv_format latent, enum kv_format rope)
{
	return (struct kv_layout){
		.fingerprint = {1, 2, 3}, .layers = 2, .heads = 1, .total_heads = 1, .head_dim_k = LATENT,
		.head_dim_v = LATENT, .block_tokens = TOKENS, .k_format = latent, .v_format = KV_NONE,
		.rotation_version = KV_ROTATION_VERSION_2, .codebook_version = KV_CODEBOOK_VERSION,
		.layout_version = KV_LAYOUT_VERSION, .rope_dim = ROPE, .rope_format = rope,
	};
}

START_TEST(bytes_a_token)
{
	for (size_t f = 0; f < COUNT(formats); f++)
		for (size_t r = 0; r < COUNT(ropes); r++) {
			const struct kv_layout l = layout_of(formats[f], ropes[r]);
			struct kv_geometry g;

			ck_assert_ptr_null(kv_layout_problem(&l));
			kv_geometry_of(&l, &g);
			if (kv_machine() == KV_MACHINE_PLAIN)
				printf("%8s latent, %s rope part: %4u bytes a token\n",
				       kv_format_info(formats[f])->name, kv_format_info(ropes[r])->name,
				       g.atom_bytes / KV_ATOM_TOKENS);
			ck_assert_uint_eq(g.atom_bytes, KV_ATOM_TOKENS * token_bytes[f][r]);
			ck_assert_uint_eq(g.block_bytes, 2 * TOKENS * (uint64_t)token_bytes[f][r]);
			ck_assert_uint_eq(g.v_codes + g.v_scales, 0);
			ck_assert_uint_eq(g.rope_codes_at, g.k_codes + g.k_scales);
			ck_assert_uint_eq(g.rope_scales_at, g.rope_codes_at + g.rope_codes);
			ck_assert_uint_eq(g.atom_bytes, g.rope_scales_at + g.rope_scales);
			ck_assert_uint_eq((g.k_scales_at | g.rope_codes_at | g.rope_scales_at | g.atom_bytes) % 16, 0);
		}
}
END_TEST

/* Each is refused with a sentence that names it. */
START_TEST(what_is_no_layout)
{
	static const struct {
		size_t at;
		uint32_t value;
		const char *says;
	} bad[] = {
		{offsetof(struct kv_layout, rope_dim), 32, "rope_dim must be 64"},
		{offsetof(struct kv_layout, rope_dim), 128, "rope_dim must be 64"},
		{offsetof(struct kv_layout, rope_dim), UINT32_MAX, "rope_dim must be 64"},
		{offsetof(struct kv_layout, rope_dim), 0, "rope_format must be none"},
		{offsetof(struct kv_layout, rope_format), KV_NONE, "rope_format must be fp16, bf16 or fp8"},
		{offsetof(struct kv_layout, rope_format), KV_TQ4, "rope_format must be fp16, bf16 or fp8"},
		{offsetof(struct kv_layout, rope_format), KV_INT4_PTH, "rope_format must be fp16, bf16 or fp8"},
		{offsetof(struct kv_layout, rope_format), KV_FORMAT_COUNT, "rope_format must be fp16, bf16 or fp8"},
		{offsetof(struct kv_layout, rope_format), UINT32_MAX, "rope_format must be fp16, bf16 or fp8"},
		{offsetof(struct kv_layout, v_format), KV_BF16, "v_format must be none"},
		{offsetof(struct kv_layout, v_format), KV_TQ4, "v_format must be none"},
		{offsetof(struct kv_layout, head_dim_v), 256, "head_dim_v must be 512"},
		{offsetof(struct kv_layout, total_heads), 2, "heads and total_heads must be 1"},
		{offsetof(struct kv_layout, k_format), KV_NONE, "k_format"},
		{offsetof(struct kv_layout, rotation_version), KV_ROTATION_VERSION, "rotation_version"},
	};
	struct kv_layout l;

	for (size_t i = 0; i < COUNT(bad); i++) {
		l = layout_of(KV_TQ4, KV_BF16);
		memcpy((char *)&l + bad[i].at, &bad[i].value, sizeof(bad[i].value));
		ck_assert_msg(kv_layout_problem(&l) != NULL, "case %zu is accepted", i);
		ck_assert_msg(strstr(kv_layout_problem(&l), bad[i].says) != NULL, "case %zu says: %s", i,
			      kv_layout_problem(&l));
	}
	l = layout_of(KV_TQ4, KV_BF16);
	l.head_dim_k = l.head_dim_v = 256;
	l.rotation_version = KV_ROTATION_VERSION;
	ck_assert_ptr_nonnull(strstr(kv_layout_problem(&l), "head_dim_k must be 512"));
}
END_TEST

/* Their ids are promises as those of other layouts are, and none is that of the layout without the rope part. */
START_TEST(ids)
{
	struct kv_layout l = layout_of(KV_TQ4, KV_BF16);
	uint64_t id = kv_layout_id(&l);

	ck_assert_uint_eq(id, UINT64_C(0x5df6739d63a85303));
	for (size_t at = 0; at < offsetof(struct kv_layout, opaque_bytes); at += at < KV_FINGERPRINT_BYTES ? 1 : 4) {
		l = layout_of(KV_TQ4, KV_BF16);
		((uint8_t *)&l)[at] ^= 1;
		ck_assert_msg(kv_layout_id(&l) != id, "byte %zu does not count", at);
	}
	l = layout_of(KV_TQ4, KV_BF16);
	l.rope_dim = 0;
	l.rope_format = KV_NONE;
	ck_assert_ptr_null(kv_layout_problem(&l));
	ck_assert_uint_ne(kv_layout_id(&l), id);
}
END_TEST

/* ---- vectors in and out of blocks ---- */

static void encode_key(const struct kv_layout *l, const struct kv_geometry *g, void *block, uint32_t first, uint32_t n,
		       const float *x)
{
	kv_encode(l, g, block, 1, 0, KV_SIDE_K, first, n, x, KV_DTYPE_F32, KEY);
	kv_encode(l, g, block, 1, 0, KV_SIDE_V, first, n, x, KV_DTYPE_F32, KEY);
	kv_encode(l, g, block, 1, 0, KV_SIDE_ROPE, first, n, x + LATENT, KV_DTYPE_F32, KEY);
}

/* Both parts are what the format makes of a vector by itself, token by token as all at once, and nothing else is
 * written. */
START_TEST(keys_in_and_out)
{
	static float x[TOKENS * KEY], y[TOKENS * KEY], v[TOKENS * LATENT];

	for (size_t c = 0; c < COUNT(formats) * COUNT(ropes); c++) {
		const struct kv_layout l = layout_of(formats[c / COUNT(ropes)], ropes[c % COUNT(ropes)]);
		struct kv_geometry g;
		uint8_t *whole, *grown, bytes[2 * KV_HEAD_DIM_MAX];
		float want[KV_HEAD_DIM_MAX];

		kv_geometry_of(&l, &g);
		whole = allocate(g.block_bytes);
		grown = allocate(g.block_bytes);
		memset(whole, 0xff, g.block_bytes);
		memset(grown, 0xff, g.block_bytes);
		random_state = c;
		for (uint32_t i = 0; i < TOKENS * KEY; i++)
			x[i] = random_gaussian();
		encode_key(&l, &g, whole, 0, 37, x);
		for (uint32_t t = 0; t < 37; t++)
			encode_key(&l, &g, grown, t, 1, x + t * KEY);
		ck_assert_mem_eq(whole, grown, g.block_bytes);
		for (uint64_t i = 0; i < g.layer_bytes; i++)
			ck_assert_msg(whole[i] == 0xff, "byte %llu of the other layer", (unsigned long long)i);
		kv_decode(&l, &g, whole, 1, 0, KV_SIDE_K, 0, 37, false, y, KV_DTYPE_F32, KEY);
		kv_decode(&l, &g, whole, 1, 0, KV_SIDE_ROPE, 0, 37, false, y + LATENT, KV_DTYPE_F32, KEY);
		kv_decode(&l, &g, whole, 1, 0, KV_SIDE_V, 0, 37, false, v, KV_DTYPE_F32, LATENT);
		for (uint32_t t = 0; t < 37; t++) {
			kv_linear_encode(l.k_format, KV_ROUND_F16, LATENT, false, x + t * KEY, bytes);
			kv_linear_decode(l.k_format, LATENT, false, bytes, want);
			ck_assert_mem_eq(y + t * KEY, want, sizeof(float) * LATENT);
			ck_assert_mem_eq(v + t * LATENT, want, sizeof(float) * LATENT);
			kv_linear_encode(l.rope_format, KV_ROUND_F16, ROPE, false, x + t * KEY + LATENT, bytes);
			kv_linear_decode(l.rope_format, ROPE, false, bytes, want);
			ck_assert_mem_eq(y + t * KEY + LATENT, want, sizeof(float) * ROPE);
		}
		free(whole);
		free(grown);
	}
}
END_TEST

/* A layout without a rope part has no such side, and what is asked of it does nothing. */
START_TEST(no_rope_part)
{
	struct kv_layout l = layout_of(KV_TQ4, KV_BF16);
	struct kv_geometry g;
	float x[LATENT] = {0}, y[2] = {5, 7};
	uint8_t *block, byte = 0xff;

	l.rope_dim = 0;
	l.rope_format = KV_NONE;
	kv_geometry_of(&l, &g);
	block = allocate(g.block_bytes);
	memset(block, 0xff, g.block_bytes);
	kv_encode(&l, &g, block, 0, 0, KV_SIDE_ROPE, 0, 16, x, KV_DTYPE_F32, 0);
	kv_decode(&l, &g, block, 0, 0, KV_SIDE_ROPE, 0, 16, false, y, KV_DTYPE_F32, 0);
	for (uint64_t i = 0; i < g.block_bytes; i++)
		byte &= block[i];
	ck_assert(byte == 0xff && y[0] == 5 && y[1] == 7);
	free(block);
}
END_TEST

/* ---- attention ---- */

static struct spec spec_of(enum kv_format latent, enum kv_format rope, uint64_t seed)
{
	return (struct spec){.k = latent, .v = KV_NONE, .rope = rope, .dk = LATENT, .heads = 1, .group = 16,
			     .block_tokens = 64, .tokens = 77, .seed = seed};
}

START_TEST(every_pair_of_formats)
{
	for (size_t c = 0; c < COUNT(formats) * COUNT(ropes); c++) {
		struct spec s = spec_of(formats[c / COUNT(ropes)], ropes[c % COUNT(ropes)], c);

		check_spec(&s);
		s.queries = 9;
		s.group = 3;
		s.causal = true;
		s.first_pos = 68;
		check_spec(&s);
		s.q_size = 5;
		check_spec(&s);
	}
}
END_TEST

START_TEST(lengths_and_groups)
{
	static const uint32_t lengths[] = {1, 15, 16, 17, 63, 64, 65, LONG_TOKENS}, groups[] = {1, 16, 128};

	for (size_t n = 0; n < COUNT(lengths); n++)
		for (size_t g = 0; g < COUNT(groups); g++) {
			struct spec s = spec_of(formats[(n + g) % COUNT(formats)], ropes[n % COUNT(ropes)],
						100 + n * 8 + g);

			s.group = lengths[n] > 1000 ? 1 + groups[g] / 32 : groups[g];
			s.tokens = lengths[n];
			check_spec(&s);
		}
}
END_TEST

/* More rows than a pass has. */
START_TEST(prefill)
{
	struct spec s = spec_of(KV_TQ4, KV_BF16, 200);

	s.group = 4;
	s.tokens = 200;
	s.queries = 180;
	s.causal = true;
	s.first_pos = 20;
	check_spec(&s);
	s.window = 50;
	check_spec(&s);
}
END_TEST

static struct spec random_spec(uint64_t seed)
{
	struct spec s;

	random_state = seed;
	s = spec_of(formats[random_below(COUNT(formats))], ropes[random_below(COUNT(ropes))], seed);
	s.group = 1 + random_below(20);
	s.block_tokens = 16u << random_below(4);
	s.tokens = 1 + random_below(200);
	s.queries = 1 + random_below(random_below(4) ? 4 : 40);
	s.causal = random_below(3) > 0;
	s.first_pos = random_below(2) ? (int64_t)s.tokens - s.queries : (int64_t)random_below(s.tokens + 60) - 30;
	s.window = random_below(3) ? 0 : 1 + random_below(120);
	s.q_type = (enum kv_dtype)random_below(3);
	s.out_type = (enum kv_dtype)random_below(4);
	s.layers = 1 + random_below(3);
	s.layer = random_below(s.layers);
	s.q_size = random_below(2) ? 1 : 5;
	s.with = random_below(32);
	s.own_window = random_below(3) ? 0 : 1 + random_below(120);
	s.softcap = random_below(2) ? 0 : .5f + (float)random_below(50);
	s.out_scale = random_below(2) ? 0 : .01f;
	return s;
}

/* Soft caps, sinks, ALiBi, tree biases, ranges, windows and output types, alone and together. */
START_TEST(features)
{
	static const unsigned alone[] = {WITH_SINKS, WITH_ALIBI, WITH_ALIBI_SQRT, WITH_TREE, WITH_RANGES};

	for (size_t i = 0; i < COUNT(alone) * COUNT(formats); i++) {
		struct spec s = spec_of(formats[i / COUNT(alone)], ropes[i % COUNT(ropes)], 300 + i);

		s.queries = 4;
		s.causal = true;
		s.first_pos = s.tokens - 4;
		s.with = alone[i % COUNT(alone)];
		check_spec(&s);
		s.with = 0;
		s.softcap = 1.5f;
		check_spec(&s);
	}
	for (uint64_t i = 0; i < random_count; i++) {
		struct spec s = random_spec(1000 + i);

		check_spec(&s);
	}
}
END_TEST

/* The same tokens in blocks whose other bytes differ give the same bits. */
START_TEST(garbage_is_never_read)
{
	for (uint64_t i = 0; i < GARBAGE_CASES; i++) {
		struct spec s = random_spec(5000 + i);

		check_other_bytes(&s);
	}
}
END_TEST

/* Sets every byte that holds something of the token to 0xff. */
static void ruin_token(struct bed *b, uint32_t token)
{
	uint32_t size = b->spec.block_tokens, in_atom = token % KV_ATOM_TOKENS;
	uint8_t *atom = (uint8_t *)b->block[token / size] + kv_atom_at(&b->geometry, b->spec.layer, 0, token % size);

	for (int side = KV_SIDE_K; side <= KV_SIDE_ROPE; side++) {
		const struct kv_part p = kv_part_of(&b->layout, &b->geometry, (enum kv_side)side);

		for (uint32_t i = 0; i < p.d && p.format != KV_NONE; i++) {
			struct kv_place place[2];
			unsigned n = kv_code_places(p.format, p.order, p.d, in_atom, i, place);

			while (n-- > 0)
				atom[p.codes_at + place[n].byte] = 0xff;
		}
		memset(atom + p.scales_at + kv_scale_at(p.format, in_atom), 0xff,
		       kv_format_info(p.format)->scale_bytes);
	}
}

/* Queries 168 .. 170 see tokens 101 .. 170. Others do not matter, NaN or not, and blocks of nothing else may be
 * missing. */
START_TEST(unseen_tokens_are_never_read)
{
	for (size_t i = 0; i < COUNT(formats) * COUNT(ropes); i++) {
		struct spec s = spec_of(formats[i / COUNT(ropes)], ropes[i % COUNT(ropes)], 600 + i);
		struct bed b;
		float *before;

		s.block_tokens = 32;
		s.tokens = 300;
		s.queries = 3;
		s.causal = true;
		s.first_pos = 168;
		s.window = 68;
		bed_init(&b, &s);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		before = allocate(b.out_bytes);
		memcpy(before, b.out, b.out_bytes);
		for (uint32_t t = 0; t < s.tokens; t++)
			if (t < 101 || t > 170)
				ruin_token(&b, t);
		for (uint32_t k = 0; k < b.blocks; k++)
			if (k < 101 / 32 || k > 170 / 32) {
				free(b.block[k]);
				b.block[k] = NULL;
			}
		poison(&b);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		ck_assert_mem_eq(b.out, before, b.out_bytes);
		free(before);
		bed_fini(&b);
	}
}
END_TEST

static void merge_at(struct bed *b, uint32_t split, const float *whole, const float *whole_lse)
{
	struct kv_attend part = b->a;
	float *out = allocate(b->out_bytes), *lse = allocate(b->rows * sizeof(float));

	part.kv_tokens = split * b->spec.block_tokens;
	poison(b);
	ck_assert_ptr_null(kv_attend_run(&part, b->scratch));
	part.blocks = b->a.blocks + split;
	part.kv_tokens = b->spec.tokens - split * b->spec.block_tokens;
	part.first_pos = b->a.first_pos - split * b->spec.block_tokens;
	part.out = out;
	part.lse = lse;
	ck_assert_ptr_null(kv_attend_run(&part, b->scratch));
	kv_merge((uint32_t)b->rows, LATENT, b->out, b->lse, out, lse);
	for (size_t i = 0; i < b->rows * LATENT; i++)
		if (!(fabsf(((float *)b->out)[i] - whole[i]) <= 1e-5f))
			ck_abort_msg("split %u element %zu: %g, not %g", split, i, (double)((float *)b->out)[i],
				     (double)whole[i]);
	for (size_t i = 0; i < b->rows; i++)
		ck_assert(b->lse[i] == whole_lse[i] || fabsf(b->lse[i] - whole_lse[i]) <= 1e-5f);
	free(out);
	free(lse);
}

START_TEST(merged_parts_equal_the_whole)
{
	for (size_t i = 0; i < COUNT(formats); i++) {
		struct spec s = spec_of(formats[i], ropes[i % COUNT(ropes)], 700 + i);
		struct bed b;
		float *whole, *lse;

		s.block_tokens = 16;
		s.group = 4;
		s.queries = 5;
		s.causal = true;
		s.first_pos = s.tokens - 5;
		s.window = i % 2 ? 30 : 0;
		bed_init(&b, &s);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		whole = allocate(b.out_bytes);
		lse = allocate(b.rows * sizeof(float));
		memcpy(whole, b.out, b.out_bytes);
		memcpy(lse, b.lse, b.rows * sizeof(float));
		for (uint32_t split = 0; split <= s.tokens / 16; split++)
			merge_at(&b, split, whole, lse);
		free(whole);
		free(lse);
		bed_fini(&b);
	}
}
END_TEST

/* A query that is not finite, in its latent's or its rope part's elements, makes its own rows NaN and no other. */
START_TEST(bad_queries_stay_alone)
{
	static const uint32_t at[] = {0, LATENT - 1, LATENT, KEY - 1};

	for (size_t i = 0; i < COUNT(at) * COUNT(formats); i++) {
		struct spec s = spec_of(formats[i / COUNT(at)], ropes[i % COUNT(ropes)], 800 + i);
		struct bed b;

		s.group = 4;
		bed_init(&b, &s);
		((float *)b.q)[KEY + at[i % COUNT(at)]] = i % 2 ? NAN : INFINITY;
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		for (size_t r = 0; r < b.rows; r++) {
			ck_assert((r == 1) == isnan(((float *)b.out)[r * LATENT]));
			ck_assert((r == 1) == isnan(b.lse[r]));
		}
		bed_fini(&b);
	}
}
END_TEST

/* A query gets the same bits alone as among others. */
START_TEST(rows_do_not_matter)
{
	for (size_t f = 0; f < COUNT(formats); f++) {
		struct spec s = spec_of(formats[f], ropes[f % COUNT(ropes)], 900 + f);
		struct bed b;
		uint8_t *whole;

		s.tokens = 700;
		s.group = 1 + f % 3;
		s.queries = 5;
		s.causal = true;
		s.first_pos = 690;
		bed_init(&b, &s);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		whole = allocate(b.out_bytes);
		memcpy(whole, b.out, b.out_bytes);
		poison(&b);
		for (uint32_t i = 0; i < s.queries; i++) {
			struct kv_attend one = b.a;

			one.queries = 1;
			one.q = (const float *)b.q + (size_t)i * s.group * KEY;
			one.first_pos += i;
			one.out = (float *)b.out + (size_t)i * s.group * LATENT;
			one.lse = NULL;
			ck_assert_ptr_null(kv_attend_run(&one, b.scratch));
		}
		ck_assert_mem_eq(b.out, whole, b.out_bytes);
		free(whole);
		bed_fini(&b);
	}
}
END_TEST

static void tests_add(TCase *tc)
{
	tcase_add_test(tc, bytes_a_token);
	tcase_add_test(tc, what_is_no_layout);
	tcase_add_test(tc, ids);
	tcase_add_test(tc, keys_in_and_out);
	tcase_add_test(tc, no_rope_part);
	tcase_add_test(tc, every_pair_of_formats);
	tcase_add_test(tc, lengths_and_groups);
	tcase_add_test(tc, prefill);
	tcase_add_test(tc, features);
	tcase_add_test(tc, garbage_is_never_read);
	tcase_add_test(tc, unseen_tokens_are_never_read);
	tcase_add_test(tc, merged_parts_equal_the_whole);
	tcase_add_test(tc, bad_queries_stay_alone);
	tcase_add_test(tc, rows_do_not_matter);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		random_count = strtoull(argv[1], NULL, 10);
	return on_every_machine("mla", tests_add);
}
