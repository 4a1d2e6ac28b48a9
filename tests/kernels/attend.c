/* Attention over packed blocks: formats, lengths, masks, merging, and what is refused; everything once for each kind
 * of machine that this one can be (kernels/attend_rig.h has the reference).
 */
#include "tests/kernels/attend_rig.h"

#include "kernels/lane_order.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { RANDOM_CASES = 30, LONG_TOKENS = 8192, ROW_QUERIES = 3 };
#elif defined(TERRACE_TESTS_SMALL)
enum { RANDOM_CASES = 100, LONG_TOKENS = 32768, ROW_QUERIES = 7 };
#else
enum { RANDOM_CASES = 400, LONG_TOKENS = 131072, ROW_QUERIES = 19 };
#endif
static uint64_t random_count = RANDOM_CASES; /* `attend N`: so many */


START_TEST(every_format_and_head_dim)
{
	for (size_t f = 0; f < COUNT(formats); f++)
		for (size_t d = 0; d < COUNT(head_dims); d++) {
			struct spec s = {.k = formats[f], .v = formats[f], .dk = head_dims[d], .heads = 2,
					 .group = 2, .block_tokens = 32, .tokens = 77, .seed = f * 16 + d};

			check_spec(&s);
			s.queries = 9;
			s.causal = true;
			s.first_pos = 68;
			check_spec(&s);
			s.v = KV_NONE;
			check_spec(&s);
		}
}
END_TEST

START_TEST(every_pair_of_formats)
{
	for (size_t k = 0; k < COUNT(formats); k++)
		for (size_t v = 0; v <= COUNT(formats); v++) {
			struct spec s = {.k = formats[k], .v = v < COUNT(formats) ? formats[v] : KV_NONE,
					 .dk = 192, .dv = 128, .tokens = 40, .group = 5,
					 .seed = 100 + k * 16 + v};

			check_spec(&s);
		}
}
END_TEST

START_TEST(lengths_and_groups)
{
	static const uint32_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 4095}, groups[] = {1, 2, 3, 4, 8};

	for (size_t n = 0; n < COUNT(lengths); n++)
		for (size_t g = 0; g < COUNT(groups); g++) {
			struct spec s = {.k = KV_FP8, .v = KV_TQ4, .dk = 64, .group = groups[g],
					 .block_tokens = 64, .tokens = lengths[n], .seed = 200 + n * 16 + g};

			check_spec(&s);
		}
}
END_TEST

/* More rows than a pass, and each query sees its own prefix; once within a window. */
START_TEST(prefill)
{
	struct spec s = {.k = KV_F16, .v = KV_TQ3, .dk = 64, .group = 3, .block_tokens = 128, .tokens = 400,
			 .queries = 380, .causal = true, .first_pos = 20, .seed = 300};

	check_spec(&s);
	s.window = 100;
	check_spec(&s);
	s.causal = false;
	check_spec(&s);
	s.first_pos = 300; /* the last queries' windows begin after the last token */
	check_spec(&s);
}
END_TEST

START_TEST(long_sequences)
{
	struct spec s = {.k = KV_TQ4, .v = KV_TQ4, .dk = 64, .block_tokens = 128, .tokens = LONG_TOKENS,
			 .seed = 400};

	check_spec(&s);
	s.k = s.v = KV_FP8;
	s.v_mean = 1; /* sums that only grow */
	s.q_size = 6; /* and a maximum that does */
	check_spec(&s);
}
END_TEST

static struct spec random_spec(uint64_t seed)
{
	static const uint32_t groups[] = {1, 2, 3, 4, 8};
	struct spec s;

	random_state = seed;
	s = (struct spec){
		.k = formats[random_below(COUNT(formats))],
		.dk = head_dims[random_below(COUNT(head_dims))],
		.dv = head_dims[random_below(COUNT(head_dims))],
		.heads = 1 + random_below(3),
		.group = groups[random_below(COUNT(groups))],
		.block_tokens = 16u << random_below(4),
		.tokens = 1 + random_below(200),
		.queries = random_below(2) ? 1 : 1 + random_below(40),
		.causal = random_below(3) > 0,
		.window = random_below(2) ? 0 : 1 + random_below(120),
		.q_type = (enum kv_dtype)random_below(3),
		.out_type = (enum kv_dtype)random_below(3),
		.layers = 1 + random_below(3),
		.q_size = random_below(2) ? 1 : 5,
		.seed = seed,
	};
	s.layer = random_below(s.layers);
	s.first_pos = (int64_t)random_below(s.tokens + 60) - 30;
	s.v = random_below(5) ? formats[random_below(COUNT(formats))] : KV_NONE;
	if (s.v == KV_NONE && s.dv > s.dk)
		s.dv = s.dk;
	return s;
}

START_TEST(random_cases)
{
	for (uint64_t i = 0; i < random_count; i++) {
		struct spec s = random_spec(1000 + i);

		check_spec(&s);
	}
	check_worst_error();
}
END_TEST

/* The same tokens in blocks whose other bytes differ give the same bits. */
START_TEST(masked_tail_is_never_read)
{
	for (size_t i = 0; i < COUNT(formats) * COUNT(head_dims) * 2; i++) {
		struct spec s = {.k = formats[i % COUNT(formats)], .v = formats[(i + i / 7) % COUNT(formats)],
				 .dk = head_dims[i % COUNT(head_dims)], .heads = 2, .group = i % 2 ? 1 : 8,
				 .block_tokens = 64, .tokens = 1 + (uint32_t)(i * 13) % 80, .seed = 500 + i};

		s.v = i % 11 == 0 ? KV_NONE : s.v;
		check_other_bytes(&s);
	}
}
END_TEST

/* Sets every byte that holds something of the token to 0xff. */
static void ruin_side(struct bed *b, uint32_t token, enum kv_side side)
{
	const struct kv_geometry *g = &b->geometry;
	enum kv_format f = side == KV_SIDE_K ? b->spec.k : b->spec.v;
	uint32_t d = side == KV_SIDE_K ? b->spec.dk : b->spec.dv, size = b->spec.block_tokens;
	uint8_t *atom = (uint8_t *)b->block[token / size] + kv_atom_at(g, b->spec.layer, 0, token % size);

	if (f == KV_NONE)
		return;
	for (uint32_t i = 0; i < d; i++) {
		struct kv_place place[2];
		unsigned n = kv_code_places(f, side, d, token % KV_ATOM_TOKENS, i, place);

		while (n-- > 0)
			atom[(side == KV_SIDE_K ? g->k_codes_at : g->v_codes_at) + place[n].byte] = 0xff;
	}
	memset(atom + (side == KV_SIDE_K ? g->k_scales_at : g->v_scales_at) +
		       kv_scale_at(f, token % KV_ATOM_TOKENS), 0xff, kv_format_info(f)->scale_bytes);
}

/* Queries 168 .. 170 see tokens 101 .. 170. Others do not matter, NaN or not, and blocks of nothing else
 * may be missing. */
START_TEST(unseen_tokens_are_never_read)
{
	for (size_t i = 0; i < COUNT(formats) * 4; i++) {
		struct spec s = {.k = formats[i / 4], .v = i % 2 ? KV_NONE : formats[i / 4], .dk = 128,
				 .group = i % 4 < 2 ? 8 : 1, .block_tokens = 32, .tokens = 300, .queries = 3,
				 .causal = true, .first_pos = 168, .window = 68, .seed = 600 + i};
		struct bed b;
		float *before;

		bed_init(&b, &s);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		before = allocate(b.out_bytes);
		memcpy(before, b.out, b.out_bytes);
		for (uint32_t t = 0; t < s.tokens; t++)
			if (t < 101 || t > 170) {
				ruin_side(&b, t, KV_SIDE_K);
				ruin_side(&b, t, KV_SIDE_V);
			}
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
	size_t wrong = 0;

	part.kv_tokens = split * b->spec.block_tokens;
	poison(b);
	ck_assert_ptr_null(kv_attend_run(&part, b->scratch));
	part.blocks = b->a.blocks + split;
	part.kv_tokens = b->spec.tokens - split * b->spec.block_tokens;
	part.first_pos = b->a.first_pos - split * b->spec.block_tokens;
	part.out = out;
	part.lse = lse;
	ck_assert_ptr_null(kv_attend_run(&part, b->scratch));
	kv_merge((uint32_t)b->rows, b->spec.dv, b->out, b->lse, out, lse);
	for (size_t i = 0; i < b->rows * b->spec.dv; i++)
		wrong += !(fabsf(((float *)b->out)[i] - whole[i]) <= 1e-5f);
	for (size_t i = 0; i < b->rows; i++)
		wrong += b->lse[i] != whole_lse[i] && !(fabsf(b->lse[i] - whole_lse[i]) <= 1e-5f);
	ck_assert_uint_eq(wrong, 0);
	free(out);
	free(lse);
}

START_TEST(merged_parts_equal_the_whole)
{
	for (size_t f = 0; f < COUNT(formats) * 2; f++) {
		struct spec s = {.k = formats[f / 2], .v = formats[f / 2], .dk = 64, .heads = 2, .group = 2,
				 .tokens = 150, .block_tokens = 16, .queries = 20, .causal = true,
				 .first_pos = -4, .window = f % 2 ? 30 : 0, .seed = 700 + f};
		struct bed b;
		float *whole, *lse;

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

/* A query that is not finite makes its own rows NaN, lse too, and no other; with a soft cap, and where it sees nothing it is as any other. */
START_TEST(bad_queries_stay_alone)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};

	for (size_t f = 0; f < COUNT(formats) * COUNT(bad) * 2; f++) {
		const enum kv_format format = formats[f / 2 / COUNT(bad)];
		struct spec s = {.k = format, .v = format, .dk = 128, .group = 4, .tokens = 50, .softcap = f % 2 ? 20 : 0, .seed = 740 + f};
		struct bed b;

		bed_init(&b, &s);
		((float *)b.q)[128 + 3] = bad[f / 2 % COUNT(bad)];
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		for (size_t r = 0; r < b.rows; r++) {
			ck_assert((r == 1) == isnan(((float *)b.out)[r * 128]));
			ck_assert((r == 1) == isnan(b.lse[r]));
		}
		b.a.kv_tokens = 0;
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		ck_assert(((float *)b.out)[128] == 0 && b.lse[1] == -INFINITY);
		bed_fini(&b);
	}
}
END_TEST

/* V near fp16's largest number, all of one sign: results of 16 bits are those of 32, saturated. */
START_TEST(outputs_saturate)
{
	enum { D = 128, TOKENS = 40 };

	for (size_t f = 0; f < COUNT(formats); f++) {
		struct spec s = {.k = formats[f], .v = formats[f], .dk = D, .tokens = TOKENS, .block_tokens = 48, .queries = 3, .seed = 790 + f};
		uint16_t halves[3 * D], others[3 * D];
		float v[D];
		struct bed b;
		size_t wrong = 0, largest = 0;

		bed_init(&b, &s);
		for (uint32_t t = 0; t < TOKENS; t++) {
			for (uint32_t i = 0; i < D; i++)
				v[i] = (i % 3 ? 65504.0f : 65000.0f) * (i % 5 ? 1 : -1);
			kv_encode(&b.layout, &b.geometry, b.block[0], 0, 0, KV_SIDE_V, t, 1, v, KV_DTYPE_F32, D);
		}
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		for (int type = KV_DTYPE_F16; type <= KV_DTYPE_BF16; type++) {
			struct kv_attend a = b.a;

			a.out = type == KV_DTYPE_F16 ? halves : others;
			a.out_dtype = (enum kv_dtype)type;
			ck_assert_ptr_null(kv_attend_run(&a, b.scratch));
		}
		for (uint32_t i = 0; i < 3 * D; i++) {
			const float x = ((float *)b.out)[i], most = fmaxf(fminf(x, KV_FINITE_MAX), -KV_FINITE_MAX);

			wrong += halves[i] != kv_half_from(most) || others[i] != kv_bf16_from(x);
			largest += (halves[i] & 0x7fff) == 0x7bff;
		}
		ck_assert_uint_eq(wrong, 0);
		ck_assert(largest > 0 || formats[f] == KV_INT4_PTH); /* which keeps the rotated vector in fp16: nothing so large comes back */
		bed_fini(&b);
	}
}
END_TEST

/* A query gets the same bits alone as among others, whatever these see. */
START_TEST(rows_do_not_matter)
{
	for (size_t f = 0; f < COUNT(formats) * 4; f++) {
		struct spec s = {.k = formats[f / 4], .v = formats[f / 4], .dk = f % 4 == 3 ? 96 : 128, .group = f % 4 == 2 ? 4 : 1 + f % 3,
				 .tokens = 2200, .block_tokens = 32, .queries = ROW_QUERIES, .causal = true,
				 .first_pos = 2188 - ROW_QUERIES, .window = f % 4 == 1 ? 77 : 0, .seed = 750 + f};
		struct bed b;
		uint8_t *whole;

		bed_init(&b, &s);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		whole = allocate(b.out_bytes);
		memcpy(whole, b.out, b.out_bytes);
		poison(&b);
		for (uint32_t i = 0; i < s.queries; i++) {
			struct kv_attend one = b.a;
			size_t floats = s.group * (size_t)s.dk;

			one.queries = 1;
			one.q = (const float *)b.q + i * floats;
			one.first_pos += i;
			one.out = (float *)b.out + i * floats;
			one.lse = NULL;
			ck_assert_ptr_null(kv_attend_run(&one, b.scratch));
		}
		ck_assert_mem_eq(b.out, whole, b.out_bytes);
		free(whole);
		bed_fini(&b);
	}
}
END_TEST

START_TEST(merge_of_empty_rows)
{
	float a[] = {NAN, NAN, 1, 2, NAN, NAN, 3, 5}, lse_a[] = {-INFINITY, 0.5f, -INFINITY, 1000};
	const float b[] = {7, 8, NAN, NAN, NAN, NAN, 5, 9}, lse_b[] = {-3, -INFINITY, -INFINITY, 1000};
	const float want[] = {7, 8, 1, 2, 0, 0, 4, 7};

	kv_merge(4, 2, a, lse_a, b, lse_b);
	ck_assert_mem_eq(a, want, sizeof(want));
	ck_assert(lse_a[0] == -3 && lse_a[1] == 0.5f && lse_a[2] == -INFINITY);
	ck_assert_float_eq_tol(lse_a[3], 1000.6931f, 1e-3f);
}
END_TEST

START_TEST(rows_that_see_nothing)
{
	struct spec s = {.k = KV_TQ4, .v = KV_TQ4, .dk = 128, .group = 3, .tokens = 20, .queries = 7,
			 .causal = true, .first_pos = -3, .seed = 800};
	struct bed b;
	size_t wrong = 0;

	check_spec(&s);
	bed_init(&b, &s);
	b.a.kv_tokens = 0;
	b.a.blocks = NULL;
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	check_guards(&b);
	for (size_t i = 0; i < b.rows * s.dk; i++)
		wrong += ((float *)b.out)[i] != 0;
	for (size_t i = 0; i < b.rows; i++)
		wrong += b.lse[i] != -INFINITY;
	ck_assert_uint_eq(wrong, 0);
	b.a.lse = NULL;
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	b.a.queries = 0;
	poison(&b);
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	ck_assert(isnan(((float *)b.out)[0]));
	bed_fini(&b);
}
END_TEST

/* What is refused, and that nothing was written. */
static void refused(const struct bed *b, const struct kv_attend *a, const void *scratch)
{
	const uint8_t *out = b->out, *lse = (const uint8_t *)b->lse;
	size_t written = 0;

	ck_assert_ptr_nonnull(kv_attend_run(a, (void *)(uintptr_t)scratch));
	for (size_t i = 0; i < b->out_bytes; i++)
		written += out[i] != 0xff;
	for (size_t i = 0; i < b->rows * sizeof(float); i++)
		written += lse[i] != 0xff;
	ck_assert_uint_eq(written, 0);
}

#define REFUSED(field, value)                          \
	do {                                           \
		struct kv_attend bad = b.a;            \
		bad.field = (value);                   \
		refused(&b, &bad, b.scratch);          \
	} while (0)

START_TEST(bad_parameters_are_refused)
{
	struct spec s = {.k = KV_FP8, .v = KV_TQ4, .dk = 64, .heads = 2, .group = 2, .tokens = 40,
			 .layers = 3, .queries = 3, .causal = true, .first_pos = 31, .seed = 900};
	struct bed b;
	struct kv_layout layout;
	const void *blocks[3];

	bed_init(&b, &s);
	layout = b.layout;
	layout.head_dim_k = 65;
	refused(&b, NULL, b.scratch);
	ck_assert_uint_eq(kv_attend_scratch(NULL), 0);
	REFUSED(layout, NULL);
	REFUSED(layout, &layout);
	REFUSED(geometry, NULL);
	REFUSED(layer, 3);
	REFUSED(q_heads, 0);
	REFUSED(q_heads, 3);
	REFUSED(q, NULL);
	REFUSED(q, (const uint8_t *)b.q + 1);
	REFUSED(q_dtype, KV_DTYPE_E4M3);
	REFUSED(q_dtype, (enum kv_dtype)4);
	REFUSED(out_dtype, (enum kv_dtype)7);
	REFUSED(out, NULL);
	REFUSED(out, (uint8_t *)b.out + 2);
	REFUSED(lse, (float *)((uintptr_t)b.lse + 1));
	REFUSED(blocks, NULL);
	REFUSED(first_pos, INT64_MAX);
	REFUSED(first_pos, INT64_MIN);
	REFUSED(scale, NAN);
	refused(&b, &b.a, NULL);
	refused(&b, &b.a, (uint8_t *)b.scratch + 32);
	for (uint32_t i = 0; i < 3; i++) {
		memcpy(blocks, b.block, sizeof(blocks));
		blocks[i] = NULL;
		REFUSED(blocks, blocks);
		blocks[i] = (const uint8_t *)b.block[i] + 8;
		REFUSED(blocks, blocks);
	}
	bed_fini(&b);
}
END_TEST

/* What attend_vnni.c takes for granted: the bytes of a word of V's nibbles are tokens at four positions in a row. */
START_TEST(lanes_are_in_order)
{
	static const enum kv_format nibbles[] = {KV_INT4_PTH, KV_TQ4, KV_TQ3, KV_TQ2};

	for (size_t f = 0; f < COUNT(nibbles); f++) {
		const struct kv_lane_order *o = kv_lane_order(nibbles[f], KV_SIDE_V, 128);

		ck_assert_uint_eq(o->classes, 4);
		for (uint32_t c = 0; c < o->classes; c++)
			for (uint32_t l = 0; l < KV_LANES; l++)
				ck_assert_uint_eq(o->v_token[c][l], l / 4 * 4 + c);
	}
	ck_assert_ptr_null(kv_lane_order(KV_TQ4, KV_SIDE_K, 96));
	ck_assert_ptr_null(kv_lane_order(KV_TQ3, KV_SIDE_V, 64));
	ck_assert_ptr_null(kv_lane_order(KV_NONE, KV_SIDE_V, 128));
}
END_TEST

static void tests_add(TCase *tc)
{
	tcase_add_test(tc, every_format_and_head_dim);
	tcase_add_test(tc, every_pair_of_formats);
	tcase_add_test(tc, lengths_and_groups);
	tcase_add_test(tc, prefill);
	tcase_add_test(tc, long_sequences);
	tcase_add_test(tc, random_cases);
	tcase_add_test(tc, masked_tail_is_never_read);
	tcase_add_test(tc, unseen_tokens_are_never_read);
	tcase_add_test(tc, outputs_saturate);
	tcase_add_test(tc, merged_parts_equal_the_whole);
	tcase_add_test(tc, bad_queries_stay_alone);
	tcase_add_test(tc, rows_do_not_matter);
	tcase_add_test(tc, merge_of_empty_rows);
	tcase_add_test(tc, rows_that_see_nothing);
	tcase_add_test(tc, bad_parameters_are_refused);
	tcase_add_test(tc, lanes_are_in_order);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		random_count = strtoull(argv[1], NULL, 10);
	return on_every_machine("attend", tests_add);
}
