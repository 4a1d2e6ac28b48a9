/* Operands from tq4's codes: sign and 3 bits of magnitude, values +-(m + 0.5). A code's value less 0.5 is m or ~m, a
 * signed byte, which PRMT makes in two tables: one gives m + 1 for codes without the sign and 0 for the others, one
 * gives ~m for codes with the sign and -1 for the others (the selector's top bit replicates the table's sign). The
 * second is asked with the code's complement, so it stands in reverse; complements and upper halves are products, for
 * the pipe that looks up is the busiest. For one tile both are multiplied by the tensor cores rather than added. For
 * more an addition costs less than its products: m or 0, less m + 1 or 0, and 128, so that no byte borrows from the
 * next; codes are then bytes without a sign, 128 too large. Four selectors stand in half a word, so that a register of
 * A has the codes of half a word: for K that is another order of dims, which the query follows.
 */
#ifndef TERRACE_KERNELS_CUDA_FRAGMENTS_TQ4_CUH
#define TERRACE_KERNELS_CUDA_FRAGMENTS_TQ4_CUH

#include "kernels/cuda/fragments.cuh"

struct tq4_codes {
	static constexpr uint32_t ONES = 0x01010101; /* in every byte */
	/* Magnitudes, and in the order of complements. */
	static constexpr uint32_t m0 = 5 | 16 << 8 | 27 << 16 | 39 << 24, m1 = 52 | 67 << 8 | 86 << 16 | 114 << 24;
	static constexpr uint32_t r0 = 114u | 86u << 8 | 67u << 16 | 52u << 24, r1 = 39u | 27u << 8 | 16u << 16 | 5u << 24;

	/* Of a word's lower and upper half. */
	struct bytes {
		uint32_t positive[2], negative[2];
	};
	struct sums {
		uint32_t half[2];
	};

	template <int TILES> static constexpr bool ADDED = TILES > 1;

	static DEVICE bytes decode(uint32_t w)
	{
		return {{permute(m0 + ONES, m1 + ONES, w), permute(m0 + ONES, m1 + ONES, upper_half(w))},
			{permute(~r0, ~r1, complement(w, minus_one())), permute(~r0, ~r1, upper_half_complement(w))}};
	}

	static DEVICE sums decode_added(uint32_t w)
	{
		const uint32_t lower = permute(r0 + ONES, r1 + ONES, complement(w, minus_one())),
			       upper = permute(r0 + ONES, r1 + ONES, upper_half_complement(w));

		return {{permute(m0, m1, w) + 128 * ONES - lower, permute(m0, m1, upper_half(w)) + 128 * ONES - upper}};
	}
};

template <int HEAD_DIM> struct tq4_keys : integer_query, tq4_codes {
	typedef int32_t sum_type;
	static constexpr int D = HEAD_DIM, BITS = 4, SCALE_BYTES = 2, SUMS = 1;
	static constexpr bool ROTATED = true, PAIRED = true;

	static DEVICE uint32_t query_dim(uint32_t s, uint32_t r, uint32_t t, uint32_t i)
	{
		if (D % 64 == 32 && s == D / 32 - 1)
			return 64 * (s / 2) + 16 * (i % 2) + 2 * r + 4 * t + i / 2;
		return 64 * (s / 2) + 32 * (i % 2) + 2 * (s % 2) + 16 * r + 4 * t + i / 2;
	}

	template <int TILES, class Q>
	static DEVICE void dot_rest(const uint32_t (&w)[D / 16], const Q &q, int32_t (&sum)[TILES][SUMS][4])
	{
		const bytes a = decode(w[D / 16 - 2]), b = decode(w[D / 16 - 1]);

#pragma unroll
		for (int n = 0; n < TILES; n++) {
			const uint32_t b0 = q[n][D / 16 - 2], b1 = q[n][D / 16 - 1];

			mma_ss(sum[n][0], a.positive[0], b.positive[0], a.positive[1], b.positive[1], b0, b1);
			mma_ss(sum[n][0], a.negative[0], b.negative[0], a.negative[1], b.negative[1], b0, b1);
		}
	}

	/* Of two atoms by turns, so that neither waits for its own products. Both look-ups go to the tensor cores. */
	template <class Q>
	static DEVICE void dot_pair(uint32_t first, uint32_t second, uint32_t lane, const Q &q, int32_t (&sums)[2][1][SUMS][4])
	{
		uint32_t w[2][D / 16];

		load_words(first, lane, w[0]);
		load_words(second, lane, w[1]);
#pragma unroll
		for (int v = 0; v < D / 64; v++) {
			const uint4 x = query_words(q, 0, v);

#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint32_t(&of)[D / 16] = w[i % 2];
				const bytes a = decode(of[4 * v]), b = decode(of[4 * v + 1]), c = decode(of[4 * v + 2]),
					    d = decode(of[4 * v + 3]);
				const int h = i / 2;
				const uint32_t b0 = h ? x.z : x.x, b1 = h ? x.w : x.y;

				mma_ss(sums[i % 2][0][0], a.positive[h], b.positive[h], c.positive[h], d.positive[h], b0, b1);
				mma_ss(sums[i % 2][0][0], a.negative[h], b.negative[h], c.negative[h], d.negative[h], b0, b1);
			}
		}
		if constexpr (D % 64 == 32)
#pragma unroll
			for (int i = 0; i < 2; i++)
				dot_rest(w[i], q, sums[i]);
	}

	template <int TILES, class Q>
	static DEVICE void dot_added(const uint32_t (&w)[D / 16], const Q &q, int32_t (&sum)[TILES][SUMS][4])
	{
#pragma unroll
		for (int v = 0; v < D / 64; v++) {
			const sums a = decode_added(w[4 * v]), b = decode_added(w[4 * v + 1]), c = decode_added(w[4 * v + 2]),
				   d = decode_added(w[4 * v + 3]);

#pragma unroll
			for (int n = 0; n < TILES; n++) {
				const uint4 x = query_words(q, n, v);

				mma_us(sum[n][0], a.half[0], b.half[0], c.half[0], d.half[0], x.x, x.y);
				mma_us(sum[n][0], a.half[1], b.half[1], c.half[1], d.half[1], x.z, x.w);
			}
		}
		if constexpr (D % 64 == 32) {
			const sums a = decode_added(w[D / 16 - 2]), b = decode_added(w[D / 16 - 1]);

#pragma unroll
			for (int n = 0; n < TILES; n++)
				mma_us(sum[n][0], a.half[0], b.half[0], a.half[1], b.half[1], q[n][D / 16 - 2],
				       q[n][D / 16 - 1]);
		}
	}

	template <int TILES, class Q>
	static DEVICE void dot(uint32_t codes, uint32_t lane, const Q &q, int32_t (&sum)[TILES][SUMS][4])
	{
		uint32_t w[D / 16];

		static_assert(ADDED<TILES>, "one tile's are paired");
		load_words(codes, lane, w);
		dot_added(w, q, sum);
	}

	/* A code is half a step above what is multiplied, or 127 1/2 below: half the sum of the query's integers is to
	 * be added; or, of twice the score, 255 times the sum taken away, as integers, which can be larger than a float
	 * holds. */
	template <int TILES> static constexpr float SCORE_UNIT = ADDED<TILES> ? 0.5f : 1;
	template <int TILES> static constexpr bool IN_POWERS = !ADDED<TILES>;

	template <int TILES> static DEVICE float query_term(int32_t total, float unit)
	{
		return ADDED<TILES> ? __uint_as_float((uint32_t)(-255 * total)) : (float)total * 0.5f * unit;
	}

	template <int TILES>
	static DEVICE float score(const int32_t (&sum)[SUMS][4], int r, float unit, float query_term, const scale_pair &)
	{
		if (ADDED<TILES>)
			return (float)(sum[0][2 * r] * 512 + (sum[0][2 * r + 1] * 2 + (int32_t)__float_as_uint(query_term)));
		return fmaf((float)(sum[0][2 * r] * 256 + sum[0][2 * r + 1]), unit, query_term);
	}

	static DEVICE scale_pair scales(uint32_t at)
	{
		return half_scales(at);
	}
};

template <int HEAD_DIM> struct tq4_values : integer_weights, tq4_codes {
	static constexpr int D = HEAD_DIM, BITS = 4, SCALE_BYTES = 2;
	template <int TILES> static constexpr int OFFSET = ADDED<TILES> ? 128 : 0;
	static constexpr bool ROTATED = true;

	static DEVICE scale_pair scales(uint32_t at)
	{
		return half_scales_of_v(at);
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
			const uint32_t low = (a[j] & 0x0f0f0f0f) | (b[j] * 16 & 0xf0f0f0f0),
				       high = (a[j] >> 4 & 0x0f0f0f0f) | (b[j] & 0xf0f0f0f0);

			if constexpr (ADDED<TILES>) {
				const sums lo = decode_added(low), hi = decode_added(high);

#pragma unroll
				for (int n = 0; n < TILES; n++)
					mma_uu(sum[n][j], lo.half[0], hi.half[0], lo.half[1], hi.half[1], weights[n][0],
					       weights[n][1]);
			} else {
				const bytes lo = decode(low), hi = decode(high);

#pragma unroll
				for (int n = 0; n < TILES; n++) {
					mma_su(sum[n][j], lo.positive[0], hi.positive[0], lo.positive[1], hi.positive[1],
					       weights[n][0], weights[n][1]);
					mma_su(sum[n][j], lo.negative[0], hi.negative[0], lo.negative[1], hi.negative[1],
					       weights[n][0], weights[n][1]);
				}
			}
		}
	}

	template <int TILES, class Release>
	static DEVICE void accumulate(uint32_t codes, uint32_t atom, uint32_t lane,
				      const uint32_t (&p)[TILES][2], int32_t (&sum)[TILES][D / 16][4],
				      uint32_t, Release release)
	{
		if constexpr (SORTED<TILES>) {
			accumulate_sorted(codes, codes + atom, lane, p, sum, release);
		} else {
			accumulate_spread(codes, lane, p, 0, sum, [] {});
			accumulate_spread(codes + atom, lane, p, 1, sum, release);
		}
	}

	template <int TILES> static DEVICE uint32_t output_dim(int word, int r, uint32_t g)
	{
		if (SORTED<TILES>)
			return 16 * word + 8 * r + g;
		return 16 * (word / 2 * 2 + r) + 8 * (word % 2) + g;
	}

	template <int TILES> static DEVICE float output(int64_t sum, int64_t weights, int)
	{
		return (float)(2 * sum + (1 - 2 * OFFSET<TILES>) * weights) * 0.5f;
	}
};

#endif
