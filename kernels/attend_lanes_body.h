/* The code of attend_lanes.h, for one kind of machine. attend_avx512.c and attend_avx2.c include it after their own
 * lanes. Every function is compiled separately for each format and number of rows. So the compiler knows what a load
 * becomes and which sums stay in registers.
 */
#include "kernels/attend_lanes_load.h"

#include <math.h>

enum {
	ROWS = 4,
	ROW_GROUP_SUMS = LANES_WIDE ? 16 : 4, /* sums that stay in registers */
};

/* E4M3 in the upper byte of a half, shifted by one, is the value / 256; its NaN is 480. */
LANES_FN words halves_of_bytes(words x)
{
	return words_and(words_sra16(x, 1), words_all(0xbf80bf80));
}

LANES_FN floats field_of(enum kv_format f, struct lookup t, const struct load *x, unsigned field)
{
	switch (f) {
	case KV_F16:
		return floats_half(x->at + LOAD_BYTES / 2 * field);
	case KV_BF16:
		return floats_of(field ? words_and(x->w, words_all(0xffff0000)) : words_shl(x->w, 16));
	case KV_FP8: {
		words h = halves_of_bytes(field / 2 ? x->w : words_shl16(x->w, 8));

		return field % 2 ? floats_half_high(h) : floats_half_low(h);
	}
	case KV_INT4_PTH:
		return lookup_int4(t, x->w, (int)field);
	case KV_TQ4:
		return lookup_signed4(t, x->w, (int)field);
	default:
		return lookup_3(t, field < 8 ? x->even : x->odd, (int)field % 8);
	}
}

LANES_FN struct lookup lookup_of(enum kv_format f)
{
	static const float int4[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

	if (f == KV_INT4_PTH)
		return lookup_make(int4, 16);
	if (f == KV_TQ4 || f == KV_TQ3 || f == KV_TQ2)
		return lookup_make(kv_codebook_values(f), 1u << kv_format_info(f)->code_bits);
	return lookup_make((const float[]){0}, 1);
}

LANES_FN void score_atom(enum kv_format f, unsigned rows, const struct kv_lane_scores *a, struct lookup t,
			 const struct kv_lane_atom *atom, const float *q, const struct kv_lane_row *row, float *s)
{
	const unsigned fields = kv_lane_fields(f);
	const unsigned loads = ROW_GROUP_SUMS / rows < LOADS ? ROW_GROUP_SUMS / rows : LOADS;
	floats dot[ROWS][LOADS], zero = floats_zero(), scale = scales_of(f, atom->scales, &zero);

	for (unsigned g = 0; g < LOADS; g += loads) {
		floats sum[LOADS][ROWS];

		UNROLL for (unsigned i = 0; i < loads; i++)
			UNROLL for (unsigned r = 0; r < rows; r++)
				sum[i][r] = floats_zero();
		for (uint32_t m = 0; m < a->order->vectors; m++) {
			const float *queries = q + (size_t)m * fields * rows * KV_LANES;
			struct load x[LOADS];

			UNROLL for (unsigned i = 0; i < loads; i++) {
				x[i] = load_codes(f, KV_SIDE_K, a->d, atom->codes, m, g + i);
				_mm_prefetch((const char *)atom->ahead + m * VECTOR_BYTES + (g + i) * LOAD_BYTES,
					     _MM_HINT_T0);
			}
			UNROLL for (unsigned j = 0; j < fields; j++) {
				floats v[LOADS];

				UNROLL for (unsigned i = 0; i < loads; i++)
					v[i] = field_of(f, t, &x[i], j);
				UNROLL for (unsigned r = 0; r < rows; r++) {
					floats y = floats_load(queries + (j * rows + r) * KV_LANES);

					UNROLL for (unsigned i = 0; i < loads; i++)
						sum[i][r] = floats_fma(v[i], y, sum[i][r]);
				}
			}
		}
		UNROLL for (unsigned i = 0; i < loads; i++)
			UNROLL for (unsigned r = 0; r < rows; r++)
				dot[r][g + i] = sum[i][r];
	}
	for (unsigned r = 0; r < rows; r++) {
		floats x = floats_sums(dot[r], f != KV_F16 && f != KV_FP8);

		if (f == KV_INT4_PTH)
			x = floats_fma(zero, floats_all(row[r].sum), x);
		floats_store(s + r * KV_LANE_TOKENS, scaled(f) ? floats_mul(x, scale) : x);
	}
}

LANES_FN void score_rows(enum kv_format f, unsigned rows, const struct kv_lane_scores *a, uint32_t first)
{
	struct lookup t = lookup_of(f);

	for (uint32_t i = 0; i < a->atoms; i++)
		score_atom(f, rows, a, t, &a->atom[i], a->q + (size_t)first * 2 * a->d, a->row + first,
			   a->s + (size_t)first * KV_LANE_TOKENS + i * KV_ATOM_TOKENS);
}

/* exp(x) for x <= 0, to a unit in the last place; 0 below exp(-87), NaN for NaN (which the second operand of a maximum
 * passes on). As in attend_weight.c. */
LANES_FN floats exp_nonpositive(floats x)
{
	const floats magic = floats_all(12582912.0f), least = floats_all(-87.0f);
	floats bounded = floats_max(least, x), shifted = floats_fma(bounded, floats_all(1.44269504f), magic);
	floats n = floats_sub(shifted, magic), f = floats_fma(n, floats_all(-0.693359375f), bounded);
	floats p = floats_all(1.0f / 5040);
	words power = words_shl(words_add(words_of(shifted), words_all(127 - 0x4b400000u)), 23);

	f = floats_fma(n, floats_all(2.12194440e-4f), f);
	p = floats_fma(p, f, floats_all(1.0f / 720));
	p = floats_fma(p, f, floats_all(1.0f / 120));
	p = floats_fma(p, f, floats_all(1.0f / 24));
	p = floats_fma(p, f, floats_all(1.0f / 6));
	p = floats_fma(p, f, floats_all(0.5f));
	p = floats_fma(floats_mul(p, f), f, floats_add(f, floats_all(1)));
	return floats_keep(floats_not_below(x, least), floats_mul(p, floats_of(power)));
}

static float soften(uint32_t n, float *s, float *max)
{
	floats top = floats_load(s), sum = floats_zero(), base;
	float largest;

	for (uint32_t i = 1; i < n; i++)
		top = floats_max(top, floats_load(s + i * KV_LANES));
	largest = floats_greatest(top);
	*max = largest > *max ? largest : *max;
	base = floats_all(*max == -INFINITY ? 0 : *max);
	for (uint32_t i = 0; i < n; i++) {
		floats x = exp_nonpositive(floats_sub(floats_load(s + i * KV_LANES), base));

		floats_store(s + i * KV_LANES, x);
		sum = floats_add(sum, x);
	}
	return floats_sum(sum);
}

/* The weights of a group of rows, with scales, in the order of lanes. */
struct spread {
	float p[KV_LANE_ATOMS][KV_LANE_CLASSES_MAX][ROWS][KV_LANES] __attribute__((aligned(64)));
};

LANES_FN void spread_weights(enum kv_format f, unsigned rows, const struct kv_lane_weighing *a, uint32_t first,
			     struct spread *to)
{
	const unsigned classes = kv_lane_fields(f) / kv_lane_sums(f);
	size_t row_floats = kv_lane_sum_floats(a->order);

	for (uint32_t i = 0; i < a->atoms; i++) {
		floats zero = floats_zero(), scale = scales_of(f, a->atom[i].scales, &zero);

		for (unsigned r = 0; r < rows; r++) {
			floats p = floats_load(a->w + (size_t)(first + r) * KV_LANE_TOKENS + i * KV_ATOM_TOKENS);

			if (scaled(f))
				p = floats_keep(words_chosen(words_of(p)), floats_mul(p, scale));
			if (f == KV_INT4_PTH) {
				float *at = a->sums + (first + r + 1) * row_floats - KV_LANES;

				floats_store(at, floats_fma(p, zero, floats_load(at)));
			}
			for (unsigned c = 0; c < classes; c++)
				floats_store(to->p[i][c][r], floats_permuted(p, words_load(a->order->v_token[c])));
		}
	}
}

/* The sums of `loads` loads from (m, g) on. */
LANES_FN void weigh_loads(enum kv_format f, unsigned rows, unsigned loads, const struct kv_lane_weighing *a,
			  struct lookup t, const struct spread *weights, uint32_t m, uint32_t g, float *sums)
{
	const unsigned fields = kv_lane_fields(f), each = kv_lane_sums(f);
	size_t row_floats = kv_lane_sum_floats(a->order);
	floats sum[LOADS][4][ROWS];

	sums += (size_t)(m * LOADS + g) * each * KV_LANES;
	UNROLL for (unsigned i = 0; i < loads; i++)
		UNROLL for (unsigned k = 0; k < each; k++)
			UNROLL for (unsigned r = 0; r < rows; r++)
				sum[i][k][r] = floats_load(sums + r * row_floats + (i * each + k) * KV_LANES);
	for (uint32_t atom = 0; atom < a->atoms; atom++) {
		struct load x[LOADS];

		UNROLL for (unsigned i = 0; i < loads; i++) {
			x[i] = load_codes(f, KV_SIDE_V, a->d, a->atom[atom].codes, m, g + i);
			_mm_prefetch((const char *)a->atom[atom].ahead + m * VECTOR_BYTES + (g + i) * LOAD_BYTES,
				     _MM_HINT_T0);
		}
		UNROLL for (unsigned j = 0; j < fields; j++) {
			unsigned k = kv_lane_sum(f, j);
			floats v[LOADS];

			UNROLL for (unsigned i = 0; i < loads; i++)
				v[i] = field_of(f, t, &x[i], j);
			UNROLL for (unsigned r = 0; r < rows; r++) {
				floats p = floats_load(weights->p[atom][kv_lane_class(f, j)][r]);

				UNROLL for (unsigned i = 0; i < loads; i++)
					sum[i][k][r] = floats_fma(v[i], p, sum[i][k][r]);
			}
		}
	}
	UNROLL for (unsigned i = 0; i < loads; i++)
		UNROLL for (unsigned k = 0; k < each; k++)
			UNROLL for (unsigned r = 0; r < rows; r++)
				floats_store(sums + r * row_floats + (i * each + k) * KV_LANES, sum[i][k][r]);
}

LANES_FN void weigh_rows(enum kv_format f, unsigned rows, const struct kv_lane_weighing *a, uint32_t first)
{
	const unsigned each = kv_lane_sums(f) * rows;
	const unsigned loads = ROW_GROUP_SUMS / each < LOADS ? ROW_GROUP_SUMS / each : LOADS;
	struct lookup t = lookup_of(f);
	struct spread weights;

	spread_weights(f, rows, a, first, &weights);
	for (uint32_t m = 0; m < a->order->vectors; m++)
		for (uint32_t g = 0; g < LOADS; g += loads)
			weigh_loads(f, rows, loads, a, t, &weights, m, g,
				    a->sums + first * (size_t)kv_lane_sum_floats(a->order));
}

FORMAT_FUNCTIONS(fp16, KV_F16, ROW_GROUP_SUMS / kv_lane_sums(KV_F16))
FORMAT_FUNCTIONS(bf16, KV_BF16, ROW_GROUP_SUMS / kv_lane_sums(KV_BF16))
FORMAT_FUNCTIONS(fp8, KV_FP8, ROW_GROUP_SUMS / kv_lane_sums(KV_FP8))
FORMAT_FUNCTIONS(int4, KV_INT4_PTH, ROW_GROUP_SUMS / kv_lane_sums(KV_INT4_PTH))
FORMAT_FUNCTIONS(tq4, KV_TQ4, ROW_GROUP_SUMS / kv_lane_sums(KV_TQ4))
FORMAT_FUNCTIONS(tq3, KV_TQ3, ROW_GROUP_SUMS / kv_lane_sums(KV_TQ3))
FORMAT_FUNCTIONS(tq2, KV_TQ2, ROW_GROUP_SUMS / kv_lane_sums(KV_TQ2))

static void score(const struct kv_lane_scores *a)
{
	static void (*const by_format[KV_FORMAT_COUNT])(const struct kv_lane_scores *) = {
		[KV_F16] = score_fp16, [KV_BF16] = score_bf16, [KV_FP8] = score_fp8, [KV_INT4_PTH] = score_int4,
		[KV_TQ4] = score_tq4,  [KV_TQ3] = score_tq3,   [KV_TQ2] = score_tq2,
	};

	by_format[a->format](a);
}

static void weigh(const struct kv_lane_weighing *a)
{
	static void (*const by_format[KV_FORMAT_COUNT])(const struct kv_lane_weighing *) = {
		[KV_F16] = weigh_fp16, [KV_BF16] = weigh_bf16, [KV_FP8] = weigh_fp8, [KV_INT4_PTH] = weigh_int4,
		[KV_TQ4] = weigh_tq4,  [KV_TQ3] = weigh_tq3,   [KV_TQ2] = weigh_tq2,
	};

	by_format[a->format](a);
}
