/* attend_lanes.h for AVX-512 with integer dot products (VNNI); an empty file where there can be none.
 *
 * It serves the formats of 4, 3 and 2 bits. A table of 16 turns codes into unsigned bytes (tq: the codebook's value +
 * 127.5, int4: the code). They are multiplied with the queries and the weights, which are 15-bit integers as two signed
 * bytes, high and low: 64 products an instruction. Four neighbouring bytes of a load are dims of one K token or tokens
 * of one V dim, and the instruction adds up such four products. The offset of the values is subtracted as an integer
 * times the sum of the other side, so it causes no error. The only error is the rounding of queries to 2^-15 of the
 * largest of a row, and of weights to 2^-15 of the largest of a tile. The other formats use the code of
 * attend_avx512.c.
 */
#if defined(__x86_64__)

#include "kernels/attend_lanes.h"
#include "kernels/codebook.h"
#include "kernels/lanes_avx512.h"

#include "kernels/attend_lanes_load.h"

#include <math.h>
#include <string.h>

enum { ROWS = 4, LARGEST = 32639 /* 127 * 256 + 127 */, SUMS = 16 };

/* High and low bytes of one field of a load, for one row. */
struct pair {
	int8_t high[64], low[64];
};

LANES_FN bool by_bytes(enum kv_format f)
{
	const enum kv_codes codes = kv_format_info(f)->codes;

	return codes == KV_CODES_ZERO_POINT || codes == KV_CODES_CODEBOOK;
}

/* Words of nibbles that a load has, and the nibbles' two fields: low, high. */
LANES_FN unsigned word_count(enum kv_format f)
{
	return two_bits(f) ? 2 : 1;
}

/* The value is the byte less offset / 2. */
LANES_FN int offset_of(enum kv_format f)
{
	return f == KV_INT4_PTH ? 16 : 255;
}

static __m512i table_of(enum kv_format f)
{
	const float *values = f == KV_INT4_PTH ? NULL : kv_codebook_values(f);
	unsigned n = 1u << kv_format_info(f)->code_bits;
	uint8_t bytes[16];

	for (unsigned i = 0; i < 16; i++)
		bytes[i] = (uint8_t)(values ? values[i % n] + 127.5f : (float)i);
	return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes));
}

/* The bytes of field 0 or 1 of a word of nibbles. */
LANES_FN __m512i bytes_of(__m512i table, __m512i nibbles, unsigned field)
{
	const __m512i low = _mm512_set1_epi8(15);
	__m512i at = field ? _mm512_srli_epi16(nibbles, 4) : nibbles;

	return _mm512_shuffle_epi8(table, _mm512_and_si512(at, low));
}

LANES_FN __m512i nibbles_of(enum kv_format f, const struct load *x, unsigned word)
{
	return !two_bits(f) ? x->w : word ? x->odd : x->even;
}

static void split(int value, int8_t *high, int8_t *low)
{
	*low = (int8_t)(uint8_t)((unsigned)value & 0xff);
	*high = (int8_t)((value - *low) / 256);
}

/* A query that is not finite makes its row NaN. */
static void row_integers(uint32_t d, const float *q, int *x, struct kv_lane_row *row)
{
	float largest = 0;
	bool finite = true;

	for (uint32_t i = 0; i < d; i++) {
		finite = finite && isfinite(q[i]);
		largest = fabsf(q[i]) > largest ? fabsf(q[i]) : largest;
	}
	*row = (struct kv_lane_row){.step = !finite ? NAN : largest > 1e-30f ? largest / LARGEST : 1};
	for (uint32_t i = 0; i < d; i++) {
		x[i] = finite && largest > 1e-30f ? (int)lrintf(q[i] / row->step) : 0;
		x[i] = x[i] > LARGEST ? LARGEST : x[i] < -LARGEST ? -LARGEST : x[i];
		row->whole += x[i];
	}
}

/* [group][m][word][field][row of the group] pairs. */
static void queries(const struct kv_lane_order *k, enum kv_format f, uint32_t d, uint32_t rows, const float *q,
		    float *out, struct kv_lane_row *row)
{
	uint32_t all = kv_lane_rows(rows), n, count = word_count(f);
	struct pair *to = (struct pair *)out;
	int x[KV_LANE_DIM_MAX];

	if (!by_bytes(f)) {
		kv_lane_queries(k, f, d, rows, q, out, row);
		return;
	}
	for (uint32_t first = 0; first < all; first += n) {
		n = all - first < ROWS ? all - first : ROWS;
		for (uint32_t r = 0; r < n; r++) {
			if (first + r < rows) {
				row_integers(d, q + (size_t)(first + r) * d, x, &row[first + r]);
			} else {
				memset(x, 0, sizeof(x));
				row[first + r] = (struct kv_lane_row){.step = 1};
			}
			for (uint32_t i = 0; i < k->vectors * count * 2; i++)
				for (uint32_t b = 0; b < 64; b++) {
					uint32_t field = i / 2 % count * 8 + b % 4 * 2 + i % 2;
					uint32_t at = i / 2 / count * k->fields + field;

					split(x[k->k_dim[at][b / 4]], &to[i * n + r].high[b],
					      &to[i * n + r].low[b]);
				}
		}
		to += (size_t)n * k->vectors * count * 2;
	}
}

/* ---- scores ---- */

LANES_FN __m512i joined(__m512i high, __m512i low)
{
	return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

/* floats_sums of integers whose lanes alternate between the two tokens. */
LANES_FN __m512i integer_sums(const __m512i x[8])
{
	__m512i half[4], quarter[2];

	for (int i = 0; i < 4; i++) {
		__m512i a = x[i / 2 + i % 2 * 4], b = x[i / 2 + i % 2 * 4 + 2];

		half[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
	}
	for (int i = 0; i < 2; i++)
		quarter[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(half[2 * i], half[2 * i + 1], 0x88),
					      _mm512_shuffle_i32x4(half[2 * i], half[2 * i + 1], 0xdd));
	return _mm512_add_epi32(_mm512_unpacklo_epi64(quarter[0], quarter[1]),
				_mm512_unpackhi_epi64(quarter[0], quarter[1]));
}

/* The sums of an atom's tokens, of one row, become scores. */
LANES_FN void store_scores(enum kv_format f, const struct kv_lane_row *row, __m512i sum, const uint8_t *scales,
			   float *s)
{
	floats zero = floats_zero(), scale = scales_of(f, scales, &zero), x;
	int less = offset_of(f) / 2 * row->whole;

	x = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(less)));
	if (f == KV_INT4_PTH)
		x = floats_fma(zero, floats_all((float)row->whole), x);
	else
		x = floats_sub(x, floats_all(.5f * (float)row->whole));
	floats_store(s, floats_mul(floats_mul(x, scale), floats_all(row->step)));
}

LANES_FN void score_atom(enum kv_format f, unsigned rows, const struct kv_lane_scores *a, __m512i table,
			 const struct kv_lane_atom *atom, const struct pair *q, const struct kv_lane_row *row, float *s)
{
	const unsigned count = word_count(f), loads = SUMS / 2 / rows < LOADS ? SUMS / 2 / rows : LOADS;
	__m512i dot[ROWS][LOADS];

	for (unsigned g = 0; g < LOADS; g += loads) {
		__m512i high[LOADS][ROWS], low[LOADS][ROWS];

		UNROLL for (unsigned i = 0; i < loads; i++)
			UNROLL for (unsigned r = 0; r < rows; r++)
				high[i][r] = low[i][r] = _mm512_setzero_si512();
		for (uint32_t m = 0; m < a->order->vectors; m++) {
			const struct pair *y = q + (size_t)m * count * 2 * rows;
			struct load x[LOADS];

			UNROLL for (unsigned i = 0; i < loads; i++) {
				x[i] = load_codes(f, KV_SIDE_K, a->d, atom->codes, m, g + i);
				_mm_prefetch((const char *)atom->ahead + m * VECTOR_BYTES + (g + i) * LOAD_BYTES,
					     _MM_HINT_T0);
			}
			UNROLL for (unsigned j = 0; j < count * 2; j++) {
				__m512i v[LOADS];

				UNROLL for (unsigned i = 0; i < loads; i++)
					v[i] = bytes_of(table, nibbles_of(f, &x[i], j / 2), j % 2);
				UNROLL for (unsigned r = 0; r < rows; r++) {
					__m512i up = words_load(y[j * rows + r].high),
						down = words_load(y[j * rows + r].low);

					UNROLL for (unsigned i = 0; i < loads; i++) {
						high[i][r] = _mm512_dpbusd_epi32(high[i][r], v[i], up);
						low[i][r] = _mm512_dpbusd_epi32(low[i][r], v[i], down);
					}
				}
			}
		}
		UNROLL for (unsigned i = 0; i < loads; i++)
			UNROLL for (unsigned r = 0; r < rows; r++)
				dot[r][g + i] = joined(high[i][r], low[i][r]);
	}
	for (unsigned r = 0; r < rows; r++)
		store_scores(f, &row[r], integer_sums(dot[r]), atom->scales, s + r * KV_LANE_TOKENS);
}

LANES_FN void score_rows(enum kv_format f, unsigned rows, const struct kv_lane_scores *a, uint32_t first)
{
	size_t row_pairs = (size_t)a->order->vectors * word_count(f) * 2;
	__m512i table = table_of(f);

	for (uint32_t i = 0; i < a->atoms; i++)
		score_atom(f, rows, a, table, &a->atom[i], (const struct pair *)a->q + first * row_pairs, a->row + first,
			   a->s + (size_t)first * KV_LANE_TOKENS + i * KV_ATOM_TOKENS);
}

/* ---- weights times V ---- */

/* The weights of a tile as integers, high and low bytes: dword t of an atom is tokens 2t, 2t + 8, 2t + 1 and 2t + 9,
 * repeated for the four words of a lane. start: what the sums begin with. */
struct spread {
	__m512i high[KV_LANE_ATOMS][ROWS], low[KV_LANE_ATOMS][ROWS], start[ROWS];
	float step[ROWS];
};

LANES_FN void spread_row(enum kv_format f, const struct kv_lane_weighing *a, uint32_t first, unsigned r,
			 struct spread *to)
{
	const __m512i lane_word = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
	const __m512i ones = _mm512_set1_epi8(1);
	__m512i high = _mm512_setzero_si512(), low = high;
	float *zeroes = a->sums + (first + r + 1) * (size_t)kv_lane_sum_floats(a->order) - KV_LANES;
	floats p[KV_LANE_ATOMS], top = floats_zero(), inverse;
	float largest;

	for (uint32_t i = 0; i < a->atoms; i++) {
		floats zero = floats_zero(), scale = scales_of(f, a->atom[i].scales, &zero);

		p[i] = floats_load(a->w + (size_t)(first + r) * KV_LANE_TOKENS + i * KV_ATOM_TOKENS);
		p[i] = floats_keep(words_chosen(words_of(p[i])), floats_mul(p[i], scale));
		if (f == KV_INT4_PTH)
			floats_store(zeroes, floats_fma(p[i], zero, floats_load(zeroes)));
		top = floats_max(top, _mm512_abs_ps(p[i]));
	}
	largest = floats_greatest(top);
	to->step[r] = largest > 1e-30f ? largest / LARGEST : 0;
	inverse = floats_all(largest > 1e-30f ? LARGEST / largest : 0);
	for (uint32_t i = 0; i < a->atoms; i++) {
		__m512i x = _mm512_cvtps_epi32(floats_mul(p[i], inverse));
		__m512i bottom = _mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24);
		__m512i upper = _mm512_srai_epi32(_mm512_sub_epi32(x, bottom), 8);

		to->high[i][r] = _mm512_permutexvar_epi32(lane_word,
							  _mm512_castsi128_si512(_mm512_cvtepi32_epi8(upper)));
		to->low[i][r] = _mm512_permutexvar_epi32(lane_word,
							 _mm512_castsi128_si512(_mm512_cvtepi32_epi8(bottom)));
		high = _mm512_dpbusd_epi32(high, ones, to->high[i][r]);
		low = _mm512_dpbusd_epi32(low, ones, to->low[i][r]);
	}
	to->start[r] = _mm512_srai_epi32(_mm512_mullo_epi32(joined(high, low), _mm512_set1_epi32(-offset_of(f))), 1);
}

/* The sums of `loads` loads from (m, g) on and of one of their words. */
LANES_FN void weigh_loads(enum kv_format f, unsigned rows, unsigned loads, const struct kv_lane_weighing *a,
			  __m512i table, const struct spread *p, uint32_t m, uint32_t g, unsigned word, float *sums)
{
	const unsigned each = kv_lane_sums(f);
	size_t row_floats = kv_lane_sum_floats(a->order);
	__m512i high[LOADS][2][ROWS], low[LOADS][2][ROWS];

	sums += (size_t)(m * LOADS + g) * each * KV_LANES;
	UNROLL for (unsigned i = 0; i < loads; i++)
		UNROLL for (unsigned k = 0; k < 2; k++)
			UNROLL for (unsigned r = 0; r < rows; r++) {
				high[i][k][r] = _mm512_setzero_si512();
				low[i][k][r] = p->start[r];
			}
	for (uint32_t atom = 0; atom < a->atoms; atom++)
		UNROLL for (unsigned i = 0; i < loads; i++) {
			struct load x = load_codes(f, KV_SIDE_V, a->d, a->atom[atom].codes, m, g + i);

			_mm_prefetch((const char *)a->atom[atom].ahead + m * VECTOR_BYTES + (g + i) * LOAD_BYTES,
				     _MM_HINT_T0);
			UNROLL for (unsigned k = 0; k < 2; k++) {
				__m512i v = bytes_of(table, nibbles_of(f, &x, word), k);

				UNROLL for (unsigned r = 0; r < rows; r++) {
					high[i][k][r] = _mm512_dpbusd_epi32(high[i][k][r], v, p->high[atom][r]);
					low[i][k][r] = _mm512_dpbusd_epi32(low[i][k][r], v, p->low[atom][r]);
				}
			}
		}
	UNROLL for (unsigned i = 0; i < loads; i++)
		UNROLL for (unsigned k = 0; k < 2; k++)
			UNROLL for (unsigned r = 0; r < rows; r++) {
				float *at = sums + r * row_floats + (i * each + kv_lane_sum(f, word * 8 + k)) * KV_LANES;
				floats x = _mm512_cvtepi32_ps(joined(high[i][k][r], low[i][k][r]));

				floats_store(at, floats_fma(x, floats_all(p->step[r]), floats_load(at)));
			}
}

LANES_FN void weigh_rows(enum kv_format f, unsigned rows, const struct kv_lane_weighing *a, uint32_t first)
{
	const unsigned loads = SUMS / 4 / rows;
	float *sums = a->sums + first * (size_t)kv_lane_sum_floats(a->order);
	__m512i table = table_of(f);
	struct spread p;

	for (unsigned r = 0; r < rows; r++)
		spread_row(f, a, first, r, &p);
	for (uint32_t m = 0; m < a->order->vectors; m++)
		for (uint32_t g = 0; g < LOADS; g += loads)
			for (unsigned word = 0; word < word_count(f); word++)
				weigh_loads(f, rows, loads, a, table, &p, m, g, word, sums);
}

FORMAT_FUNCTIONS(int4, KV_INT4_PTH, ROWS)
FORMAT_FUNCTIONS(tq4, KV_TQ4, ROWS)
FORMAT_FUNCTIONS(tq3, KV_TQ3, ROWS)
FORMAT_FUNCTIONS(tq2, KV_TQ2, ROWS)

static void score(const struct kv_lane_scores *a)
{
	switch (a->format) {
	case KV_INT4_PTH:
		score_int4(a);
		break;
	case KV_TQ4:
		score_tq4(a);
		break;
	case KV_TQ3:
		score_tq3(a);
		break;
	case KV_TQ2:
		score_tq2(a);
		break;
	default:
		kv_lane_code_avx512.score(a);
	}
}

static void weigh(const struct kv_lane_weighing *a)
{
	switch (a->format) {
	case KV_INT4_PTH:
		weigh_int4(a);
		break;
	case KV_TQ4:
		weigh_tq4(a);
		break;
	case KV_TQ3:
		weigh_tq3(a);
		break;
	case KV_TQ2:
		weigh_tq2(a);
		break;
	default:
		kv_lane_code_avx512.weigh(a);
	}
}

static float soften(uint32_t n, float *s, float *max)
{
	return kv_lane_code_avx512.soften(n, s, max);
}

const struct kv_lane_code kv_lane_code_vnni = {
	.queries = queries, .score = score, .soften = soften, .weigh = weigh};

#else

typedef int nothing_here;

#endif
