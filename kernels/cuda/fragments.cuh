/* From packed codes to tensor-core operands: what the formats share. One struct a format and side, for
 * K and for V, in fragments_*.cuh.
 *
 * Both products have KV as operand A: m16n8k32 in integers for 4 bits and less, m16n8k16 in 16-bit
 * floats for the rest. A lane's 16-byte vector of an atom is what it needs of it (kernels/README.md
 * draws the order). g = lane / 4, t = lane % 4. K: rows are tokens, k runs over dims. V: rows are dims,
 * k runs over tokens. Operand B has two columns a query column, the high and the low part of a number:
 * two bytes of a 16-bit integer, or a 16-bit float and what it misses; so four query columns fill N =
 * 8. What does not depend on the code (zero points, the half of the half-integer codebooks) is added
 * after the sums.
 *
 * A struct of K says:
 *   BITS, SCALE_BYTES    of a code, of a scale
 *   sum_type, SUMS       accumulators of a score
 *   ELEMENTS             of a word of operand B; B has D / (4 * ELEMENTS) words a lane and tile
 *   query_dim            which dim of the query is element i of register r of k step s, lane column t
 *   query_unit           what a query whose largest element is `largest` is multiplied by
 *   query_word           the high and low parts of a word's elements; returns the sum of its integers
 *   dot                  adds K's products of one atom
 *   PAIRED               dot_pair does it instead for one tile, of two atoms at a time
 *   query_term           what a score wants of the sum of the query's integers, as bits of a float
 *   score                the dot product of a whole query, without K's scale, in SCORE_UNIT; or, IN_POWERS, in powers of 2,
 *                        by `unit`, what one in SCORE_UNIT counts, which costs nothing beside an addition of query_term
 * a struct of V:
 *   INTEGER              weights are integers, two atoms a step; else floats, one atom
 *   ZEROS                there are zero points: `output` needs the sum of weights times them, else
 *                        of weights
 *   OFFSET               (INTEGER) what each code is too large by in the sums
 *   operand              the weight of a token as a part of B; INTEGER: `pack`, of the integers of tokens g and
 *                        g + 8, is that once it is transposed
 *   accumulate           adds V's products of a step, of which `valid` tokens are of the sequence; calls
 *                        `release` once the codes are loaded
 *   output, output_dim   the sum of accumulator `word`, row half r, in the weights' unit; its dim
 * and both:
 *   ROTATED              the vectors are rotated
 *   scales               scales of tokens g and g + 8, from the lane's place, `zero` their zero points
 */
#ifndef TERRACE_KERNELS_CUDA_FRAGMENTS_CUH
#define TERRACE_KERNELS_CUDA_FRAGMENTS_CUH

#include "kernels/cuda/device.cuh"

struct scale_pair {
	float scale[2];
	uint32_t zero[2];
};

/* A tile's query as operand B stands in shared memory, 16 bytes a lane at a time: where code decoded once for several tiles takes
 * the registers. */
template <int WORDS> struct query_in_shared {
	uint32_t at; /* of the lane */
};

/* Words 4v .. 4v + 3 of tile n. */
template <int WORDS> DEVICE uint4 query_words(const query_in_shared<WORDS> &q, int n, int v)
{
	return load_shared_16(q.at + (uint32_t)(n * (WORDS / 4) + v) * 512);
}

template <int TILES, int WORDS> DEVICE uint4 query_words(const uint32_t (&q)[TILES][WORDS], int n, int v)
{
	return {q[n][4 * v], q[n][4 * v + 1], q[n][4 * v + 2], q[n][4 * v + 3]};
}

/* `WORDS` 4-byte words of a lane, from a plane of codes at `at`. */
template <int WORDS> DEVICE void load_words(uint32_t at, uint32_t lane, uint32_t (&w)[WORDS])
{
	constexpr int REST = WORDS % 4;

#pragma unroll
	for (int v = 0; v < WORDS / 4; v++) {
		uint4 x = load_shared_16(at + v * 512 + lane * 16);

		w[4 * v] = x.x;
		w[4 * v + 1] = x.y;
		w[4 * v + 2] = x.z;
		w[4 * v + 3] = x.w;
	}
	if constexpr (REST == 2) {
		uint2 x = load_shared_8(at + WORDS / 4 * 512 + lane * 8);

		w[WORDS - 2] = x.x;
		w[WORDS - 1] = x.y;
	} else {
#pragma unroll
		for (int i = 0; i < REST; i++)
			w[WORDS - REST + i] =
				load_shared_4(at + WORDS / 4 * 512 + lane * 4 * REST + 4 * i);
	}
}

/* Scales of V are taken as at least this, the smallest fp16, so that no weight of a token becomes nothing
 * beside a score without bounds. */
constexpr float SMALLEST_SCALE = 0x1p-24f;

/* fp16 scales. */
DEVICE scale_pair half_scales(uint32_t at)
{
	uint32_t x = load_shared_4(at);
	float2 f = __half22float2(*(const __half2 *)&x);

	return {{f.x, f.y}, {0, 0}};
}

DEVICE scale_pair half_scales_of_v(uint32_t at)
{
	const uint32_t x = load_shared_4(at);
	const __half2 least = __half2half2(__ushort_as_half(1));
	const float2 f = __half22float2(__hmax2(*(const __half2 *)&x, least));

	return {{f.x, f.y}, {0, 0}};
}

/* The query as 16-bit integers, both bytes within -128 .. 127. */
struct integer_query {
	static constexpr int ELEMENTS = 4;
	static constexpr bool PAIRED = false;
	static constexpr float LARGEST = 32500.0f;

	static DEVICE float query_unit(float largest)
	{
		return LARGEST / largest;
	}

	static DEVICE int32_t query_word(const float (&x)[ELEMENTS], uint32_t *high_word, uint32_t *low_word)
	{
		int32_t total = 0;

		*high_word = *low_word = 0;
#pragma unroll
		for (int i = 0; i < ELEMENTS; i++) {
			int32_t v = __float2int_rn(x[i]), high = (v + 128) >> 8, low = v - high * 256;

			*high_word |= (uint32_t)(high & 255) << (8 * i);
			*low_word |= (uint32_t)(low & 255) << (8 * i);
			total += v;
		}
		return total;
	}
};

/* Weights as 16-bit integers. */
struct integer_weights {
	typedef int32_t sum_type;
	static constexpr bool INTEGER = true, ZEROS = false; /* zero points */
	template <int TILES> static constexpr int OFFSET = 0;

	/* Bytes {low g, low g + 8, high g, high g + 8}; transposed, a lane has one column's tokens 2t,
	 * 2t + 8, 2t + 1, 2t + 9. */
	static DEVICE uint32_t pack(uint32_t weight, uint32_t weight_8)
	{
		return permute(weight, weight_8, 0x5140);
	}
};

#endif
