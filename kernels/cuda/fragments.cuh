/* From packed codes to tensor-core operands, one struct a format.
 *
 * Both products are m16n8k32 in integers with KV as operand A, and a lane's 16-byte vector of an atom is
 * what it needs of it (kernels/README.md draws the order). g = lane / 4, t = lane % 4. K: rows are
 * tokens, k runs over dims. V: rows are dims, k runs over tokens. Operand B has two columns a query
 * column, the high and the low byte of a 16-bit integer, so that four query columns fill N = 8. What does
 * not depend on the code (zero points, the half of the half-integer codebooks) is added after the sums.
 *
 * Each struct says:
 *   SCALE_BYTES, SUMS    bytes of a scale; accumulators of a score
 *   query_dim            which dim of the query is at byte i of register r of k step s, lane column t
 *   dot                  adds K's products of one atom
 *   score                the dot product of a whole 16-bit query, without K's scale
 *   scales               K's or V's scales of tokens g and g + 8, `zero` their zero points
 *   weigh                what a weight adds to the running sum that `output` needs
 *   accumulate           adds V's products of two atoms; calls `release` once their codes are loaded
 *   output, output_dim   the sum of accumulator `word`, row half r, in the weights' unit; its dim
 */
#ifndef TERRACE_KERNELS_CUDA_FRAGMENTS_CUH
#define TERRACE_KERNELS_CUDA_FRAGMENTS_CUH

#include "kernels/cuda/device.cuh"

constexpr float QUERY_MAX = 32500.0f; /* of a query's integers: both bytes stay within -128 .. 127 */

struct scale_pair {
	float scale[2];
	uint32_t zero[2];
};

/* `words` 4-byte words of a lane, from a side's codes at `at`; `words` is even. */
template <int WORDS> DEVICE void load_words(uint32_t at, uint32_t lane, uint32_t (&w)[WORDS])
{
#pragma unroll
	for (int v = 0; v < WORDS / 4; v++) {
		uint4 x = load_shared_16(at + v * 512 + lane * 16);

		w[4 * v] = x.x;
		w[4 * v + 1] = x.y;
		w[4 * v + 2] = x.z;
		w[4 * v + 3] = x.w;
	}
	if constexpr (WORDS % 4 == 2) {
		uint2 x = load_shared_8(at + WORDS / 4 * 512 + lane * 8);

		w[WORDS - 2] = x.x;
		w[WORDS - 1] = x.y;
	}
}

/* int4_pth: codes 0 .. 15; a mask makes them bytes, the high nibbles 16 times too large. */
template <int D> struct int4_fragments {
	static constexpr int SCALE_BYTES = 4, SUMS = 2; /* low nibbles, high nibbles */

	static DEVICE uint32_t query_dim(uint32_t s, uint32_t r, uint32_t t, uint32_t i)
	{
		return 64 * (s / 2) + 32 * (s % 2) + 16 * r + 4 * t + i;
	}

	template <int TILES>
	static DEVICE void dot(uint32_t codes, uint32_t lane, const uint32_t (&q)[TILES][D / 32][2],
			       int32_t (&sum)[TILES][SUMS][4])
	{
		uint32_t w[D / 16];

		load_words(codes, lane, w);
#pragma unroll
		for (int v = 0; v < D / 64; v++) {
			uint32_t lo[4], hi[4];

#pragma unroll
			for (int r = 0; r < 4; r++) {
				lo[r] = w[4 * v + r] & 0x0f0f0f0f;
				hi[r] = w[4 * v + r] & 0xf0f0f0f0;
			}
#pragma unroll
			for (int n = 0; n < TILES; n++) {
				mma_us(sum[n][0], lo[0], lo[1], lo[2], lo[3], q[n][2 * v][0],
				       q[n][2 * v][1]);
				mma_us(sum[n][1], hi[0], hi[1], hi[2], hi[3], q[n][2 * v + 1][0],
				       q[n][2 * v + 1][1]);
			}
		}
		if constexpr (D % 64 ==
			      32) { /* low nibbles are the step's first 16 dims, high nibbles its last */
			uint32_t a = w[D / 16 - 2], b = w[D / 16 - 1];

#pragma unroll
			for (int n = 0; n < TILES; n++) {
				mma_us(sum[n][0], a & 0x0f0f0f0f, b & 0x0f0f0f0f, 0, 0,
				       q[n][D / 32 - 1][0], 0);
				mma_us(sum[n][1], 0, 0, a & 0xf0f0f0f0, b & 0xf0f0f0f0, 0,
				       q[n][D / 32 - 1][1]);
			}
		}
	}

	/* 16 times the product, for the high nibbles' sake; `query_sum` is 16 times the sum of the
	 * query's integers. */
	static constexpr float SCORE_UNIT = 1.0f / 16, QUERY_SUM_UNIT = 16;

	static DEVICE float score(const int32_t (&sum)[SUMS][4], int r, float query_sum,
				  const scale_pair &k)
	{
		int32_t high = sum[0][2 * r] * 16 + sum[1][2 * r],
			low = sum[0][2 * r + 1] * 16 + sum[1][2 * r + 1];

		return fmaf(-(float)k.zero[r], query_sum, (float)(high * 256 + low));
	}

	static DEVICE scale_pair scales(uint32_t at, uint32_t g)
	{
		uint2 x = load_shared_8(at + g * 8);

		return {{__uint_as_float(x.x & ~15u), __uint_as_float(x.y & ~15u)}, {x.x & 15, x.y & 15}};
	}

	/* At most 65535 * 15 a token: a lane's 32 bits hold as many tokens as the accumulators do. */
	static DEVICE uint32_t weigh(uint32_t weight, uint32_t zero)
	{
		return weight * zero;
	}

	template <int TILES, class Release>
	static DEVICE void accumulate(uint32_t codes_a, uint32_t codes_b, uint32_t lane,
				      const uint32_t (&p)[TILES][2], int32_t (&sum)[TILES][D / 16][4],
				      Release release)
	{
		uint32_t a[D / 16], b[D / 16];

		load_words(codes_a, lane, a);
		load_words(codes_b, lane, b);
		release();
#pragma unroll
		for (int j = 0; j < D / 16; j++) {
#pragma unroll
			for (int n = 0; n < TILES; n++)
				mma_uu(sum[n][j], a[j] & 0x0f0f0f0f, a[j] & 0xf0f0f0f0, b[j] & 0x0f0f0f0f,
				       b[j] & 0xf0f0f0f0, p[n][0], p[n][1]);
		}
	}

	template <int TILES> static DEVICE uint32_t output_dim(int word, int r, uint32_t g)
	{
		return 16 * word + 8 * r + g;
	}

	/* sum - weights, of which row half 1 has 16 times the sum; exact up to the conversion. */
	static DEVICE float output(int64_t sum, int64_t weights, int r)
	{
		return r ? (float)(sum - 16 * weights) * 0.0625f : (float)(sum - weights);
	}
};

/* tq4: sign and 3 bits of magnitude, values +-(m + 0.5). A code's value less 0.5 is m or ~m, a signed
 * byte, which PRMT makes in two tables: one gives m + 1 for codes without the sign and 0 for the others,
 * one gives ~m for codes with the sign and -1 for the others (the selector's top bit replicates the
 * table's sign). Both are multiplied, which the tensor cores do for free, rather than added. Four
 * selectors stand in half a word, so that a register of A has the codes of half a word: for K that is
 * another order of dims, which the query follows. */
template <int D> struct tq4_fragments {
	static constexpr int SCALE_BYTES = 2, SUMS = 1;
	static constexpr uint32_t SIGNS = 0x88888888;

	struct bytes {
		uint32_t positive[2], negative[2]; /* of the word's lower and upper half */
	};

	static DEVICE bytes decode(uint32_t w)
	{
		constexpr uint32_t m0 = 5 | 16 << 8 | 27 << 16 | 39 << 24,
				   m1 = 52 | 67 << 8 | 86 << 16 | 114 << 24;
		uint32_t x = w ^ SIGNS;

		return {{permute(m0 + 0x01010101, m1 + 0x01010101, w),
			 permute(m0 + 0x01010101, m1 + 0x01010101, w >> 16)},
			{permute(~m0, ~m1, x), permute(~m0, ~m1, x >> 16)}};
	}

	static DEVICE uint32_t query_dim(uint32_t s, uint32_t r, uint32_t t, uint32_t i)
	{
		if (D % 64 == 32 && s == D / 32 - 1)
			return 64 * (s / 2) + 16 * (i % 2) + 2 * r + 4 * t + i / 2;
		return 64 * (s / 2) + 32 * (i % 2) + 2 * (s % 2) + 16 * r + 4 * t + i / 2;
	}

	template <int TILES>
	static DEVICE void dot(uint32_t codes, uint32_t lane, const uint32_t (&q)[TILES][D / 32][2],
			       int32_t (&sum)[TILES][SUMS][4])
	{
		uint32_t w[D / 16];

		load_words(codes, lane, w);
#pragma unroll
		for (int v = 0; v < D / 64; v++) {
			bytes a = decode(w[4 * v]), b = decode(w[4 * v + 1]), c = decode(w[4 * v + 2]),
			      d = decode(w[4 * v + 3]);

#pragma unroll
			for (int n = 0; n < TILES; n++) {
#pragma unroll
				for (int h = 0; h < 2; h++) {
					const uint32_t(&b01)[2] = q[n][2 * v + h];

					mma_ss(sum[n][0], a.positive[h], b.positive[h], c.positive[h],
					       d.positive[h], b01[0], b01[1]);
					mma_ss(sum[n][0], a.negative[h], b.negative[h], c.negative[h],
					       d.negative[h], b01[0], b01[1]);
				}
			}
		}
		if constexpr (D % 64 == 32) {
			bytes a = decode(w[D / 16 - 2]), b = decode(w[D / 16 - 1]);

#pragma unroll
			for (int n = 0; n < TILES; n++) {
				const uint32_t(&b01)[2] = q[n][D / 32 - 1];

				mma_ss(sum[n][0], a.positive[0], b.positive[0], a.positive[1],
				       b.positive[1], b01[0], b01[1]);
				mma_ss(sum[n][0], a.negative[0], b.negative[0], a.negative[1],
				       b.negative[1], b01[0], b01[1]);
			}
		}
	}

	/* `query_sum` is half the sum of the query's integers. */
	static constexpr float SCORE_UNIT = 1, QUERY_SUM_UNIT = 0.5f;

	static DEVICE float score(const int32_t (&sum)[SUMS][4], int r, float query_sum,
				  const scale_pair &)
	{
		return (float)(sum[0][2 * r] * 256 + sum[0][2 * r + 1]) + query_sum;
	}

	static DEVICE scale_pair scales(uint32_t at, uint32_t g)
	{
		uint32_t x = load_shared_4(at + g * 4);
		float2 f = __half22float2(*(const __half2 *)&x);

		return {{f.x, f.y}, {0, 0}};
	}

	static DEVICE uint32_t weigh(uint32_t weight, uint32_t)
	{
		return weight;
	}

	/* V has two dims by turns in a half word, 8 apart. With registers and tensor cores to spare the
	 * weights are spread over every other byte of B, once over the even ones and once over the odd:
	 * twice the products, but no operation spent on sorting, and rows g and g + 8 of A are two words.
	 * Otherwise nibbles of two atoms are sorted by dim first. */
	template <int TILES> static constexpr bool SORTED = TILES > 1 || D > 128;

	template <int TILES, class Release>
	static DEVICE void accumulate_spread(uint32_t codes, uint32_t lane, const uint32_t (&p)[TILES][2],
					     int atom, int32_t (&sum)[TILES][D / 16][4],
				      Release release)
	{
		uint32_t w[D / 16], even[TILES][2], odd[TILES][2];

		load_words(codes, lane, w);
		release();
#pragma unroll
		for (int n = 0; n < TILES; n++) {
			even[n][0] = permute(p[n][atom], 0, 0x4140);
			even[n][1] = permute(p[n][atom], 0, 0x4342);
			odd[n][0] = even[n][0] * 256;
			odd[n][1] = even[n][1] * 256;
		}
#pragma unroll
		for (int j = 0; j < D / 16; j += 2) {
			bytes a = decode(w[j]), b = decode(w[j + 1]);

#pragma unroll
			for (int n = 0; n < TILES; n++) {
				mma_su(sum[n][j], a.positive[0], b.positive[0], a.positive[1],
				       b.positive[1], even[n][0], even[n][1]);
				mma_su(sum[n][j + 1], a.positive[0], b.positive[0], a.positive[1],
				       b.positive[1], odd[n][0], odd[n][1]);
				mma_su(sum[n][j], a.negative[0], b.negative[0], a.negative[1],
				       b.negative[1], even[n][0], even[n][1]);
				mma_su(sum[n][j + 1], a.negative[0], b.negative[0], a.negative[1],
				       b.negative[1], odd[n][0], odd[n][1]);
			}
		}
	}

	/* Byte e of a sorted word is token {2t, 2t + 8, 2t + 1, 2t + 9}[e] of the first atom (low nibble)
	 * and of the second. */
	template <int TILES, class Release>
	static DEVICE void accumulate_sorted(uint32_t codes_a, uint32_t codes_b, uint32_t lane,
					     const uint32_t (&p)[TILES][2],
					     int32_t (&sum)[TILES][D / 16][4],
				      Release release)
	{
		uint32_t a[D / 16], b[D / 16], weights[TILES][2];

		load_words(codes_a, lane, a);
		load_words(codes_b, lane, b);
		release();
#pragma unroll
		for (int n = 0; n < TILES; n++) {
			weights[n][0] = permute(p[n][0], p[n][1], 0x5140);
			weights[n][1] = permute(p[n][0], p[n][1], 0x7362);
		}
#pragma unroll
		for (int j = 0; j < D / 16; j++) {
			bytes lo = decode((a[j] & 0x0f0f0f0f) | (b[j] * 16 & 0xf0f0f0f0));
			bytes hi = decode((a[j] >> 4 & 0x0f0f0f0f) | (b[j] & 0xf0f0f0f0));

#pragma unroll
			for (int n = 0; n < TILES; n++) {
				mma_su(sum[n][j], lo.positive[0], hi.positive[0], lo.positive[1],
				       hi.positive[1], weights[n][0], weights[n][1]);
				mma_su(sum[n][j], lo.negative[0], hi.negative[0], lo.negative[1],
				       hi.negative[1], weights[n][0], weights[n][1]);
			}
		}
	}

	template <int TILES, class Release>
	static DEVICE void accumulate(uint32_t codes_a, uint32_t codes_b, uint32_t lane,
				      const uint32_t (&p)[TILES][2], int32_t (&sum)[TILES][D / 16][4],
				      Release release)
	{
		if constexpr (SORTED<TILES>) {
			accumulate_sorted(codes_a, codes_b, lane, p, sum, release);
		} else {
			accumulate_spread(codes_a, lane, p, 0, sum, [] {});
			accumulate_spread(codes_b, lane, p, 1, sum, release);
		}
	}

	template <int TILES> static DEVICE uint32_t output_dim(int word, int r, uint32_t g)
	{
		if (SORTED<TILES>)
			return 16 * word + 8 * r + g;
		return 16 * (word / 2 * 2 + r) + 8 * (word % 2) + g;
	}

	static DEVICE float output(int64_t sum, int64_t weights, int)
	{
		return (float)(2 * sum + weights) * 0.5f;
	}
};

#endif
