/* Operands from tq3's and tq2's codes.
 *
 * A nibble of a word has two codes' 2 low bits (tq3: of the magnitude; tq2: sign and magnitude).
 * Masked, it selects one of four bytes by PRMT; tq3's sign joins it as the selector's third bit, so
 * that eight bytes hold m and ~m, a value less 0.5. The sign plane has bit f of a byte where the
 * magnitudes have field f; a product with 20 (or 10) brings the signs of fields 0 and 2 (or 1 and 3) to
 * bits 2 and 6. Selectors of half a word then make a register of A of fields 0 and 2 by turns, or 1 and
 * 3: for K that is another order of dims, which the query follows; for V the weights are spread over
 * every other byte of B, once over the even ones and once over the odd.
 *
 * Where signs stand in another order (what is left of a lane's bytes: kernels/README.md), loading
 * brings them into this one.
 */
#ifndef TERRACE_KERNELS_CUDA_FRAGMENTS_TQ_CUH
#define TERRACE_KERNELS_CUDA_FRAGMENTS_TQ_CUH

#include "kernels/cuda/fragments.cuh"

/* Four bits at `n` to the lowest bits of four bytes. */
DEVICE uint32_t spread_bits(uint32_t n)
{
	return ((n & 15) * 0x00204081) & 0x01010101;
}

/* Sixteen signs of a token, group by group (four bits each), as a word of K's regular order: bit f of
 * byte e is group f, element e. */
DEVICE uint32_t regular_signs(uint32_t groups)
{
	return spread_bits(groups) | spread_bits(groups >> 4) << 1 | spread_bits(groups >> 8) << 2 |
	       spread_bits(groups >> 12) << 3;
}

template <int BITS> struct tq_codes {
	static constexpr uint32_t FIELDS = 0x33333333;

	/* Selectors of a word of 2-bit codes: of fields 0 and 2, and of fields 1 and 3. `signs`: of
	 * field f at bit f of every byte (BITS is 3). */
	static DEVICE void select(uint32_t word, uint32_t signs, uint32_t (&x)[2])
	{
		if constexpr (BITS == 3) {
			x[0] = choose_bits(FIELDS, word, (signs & 0x05050505) * 20);
			x[1] = choose_bits(FIELDS, word >> 2, (signs & 0x0a0a0a0a) * 10);
		} else {
			x[0] = word & FIELDS;
			x[1] = word >> 2 & FIELDS;
		}
	}

	/* Of the four selectors in the lower half. */
	static DEVICE uint32_t bytes(uint32_t selectors)
	{
		constexpr uint32_t tq3 = 12 | 38 << 8 | 68 << 16 | 109 << 24,
				   tq2 = 35 | 118 << 8 | (255 - 35) << 16 | (uint32_t)(255 - 118) << 24;

		return BITS == 3 ? permute(tq3, ~tq3, selectors) : permute(tq2, tq2, selectors);
	}
};

template <int HEAD_DIM, int CODE_BITS> struct tq_keys : integer_query, tq_codes<CODE_BITS> {
	using tq_codes<CODE_BITS>::select;
	using tq_codes<CODE_BITS>::bytes;
	typedef int32_t sum_type;
	static constexpr int D = HEAD_DIM, BITS = CODE_BITS, SCALE_BYTES = 2, SUMS = 1;
	static constexpr bool ROTATED = true, PAIRED = true;
	static constexpr int PAIRS = D / 64; /* words of token g and of token g + 8, for 64 dims */

	static DEVICE uint32_t query_dim(uint32_t s, uint32_t r, uint32_t t, uint32_t i)
	{
		if (D % 64 == 32 && s == D / 32 - 1)
			return 64 * (s / 2) + 16 * (i / 2) + 4 * t + i % 2 * 2 + r;
		return 64 * (s / 2) + 16 * (i % 2 * 2 + s % 2) + 4 * t + 2 * r + i / 2;
	}

	/* signs[p][h]: of pair p, token g + 8h, each in bits 0 .. 3 of its bytes; the rest above them
	 * may be anything. The last entry of D = 96 has byte b of token g + 8h, group 4 + b, at byte 2h
	 * + b. */
	static DEVICE void load_signs(uint32_t at, uint32_t lane, uint32_t (&signs)[(D + 32) / 64][2])
	{
		if constexpr (D == 64) {
			const uint32_t w = load_shared_4(at + lane * 4);

			signs[0][0] = regular_signs(w);
			signs[0][1] = regular_signs(w >> 16);
		} else if constexpr (D == 96) {
			const uint32_t a = load_shared_2(at + lane * 6), b = load_shared_2(at + lane * 6 + 2),
				       c = load_shared_2(at + lane * 6 + 4);
			const uint32_t first = a | b << 16, second = b >> 8 | c << 8;

			signs[0][0] = regular_signs(first);
			signs[0][1] = regular_signs(second);
			signs[1][0] = signs[1][1] = (first >> 16 & 15) | (first >> 20 & 15) << 8 |
						    (second >> 16 & 15) << 16 | (second >> 20 & 15) << 24;
		} else {
			constexpr int REGULAR = D / 128 * 2; /* words */
			uint32_t w[D / 64];

			load_words(at, lane, w);
#pragma unroll
			for (int p = 0; p < REGULAR; p++)
#pragma unroll
				for (int h = 0; h < 2; h++)
					signs[p][h] = p % 2 ? w[p / 2 * 2 + h] >> 4 : w[p / 2 * 2 + h];
			if constexpr (D == 192) {
				signs[2][0] = regular_signs(w[2]);
				signs[2][1] = regular_signs(w[2] >> 16);
			}
		}
	}

	template <int TILES, class Q>
	static DEVICE void dot(uint32_t codes, uint32_t lane, const Q &q, int32_t (&sum)[TILES][SUMS][4])
	{
		uint32_t w[D / 32], signs[(D + 32) / 64][2] = {};

		load_words(codes, lane, w);
		if constexpr (BITS == 3)
			load_signs(codes + 4 * D, lane, signs);
#pragma unroll
		for (int p = 0; p < PAIRS; p++) {
			uint32_t x[2], y[2];

			select(w[2 * p], signs[p][0], x);
			select(w[2 * p + 1], signs[p][1], y);
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const uint32_t a = bytes(x[h]), b = bytes(y[h]), c = bytes(upper_half(x[h])),
					       d = bytes(upper_half(y[h]));

#pragma unroll
				for (int n = 0; n < TILES; n++) {
					const uint4 b4 = query_words(q, n, p);

					mma_ss(sum[n][0], a, b, c, d, h ? b4.z : b4.x, h ? b4.w : b4.y);
				}
			}
		}
		if constexpr (D % 64 == 32)
			dot_rest(w, signs, q, sum);
	}

	/* Half a word a token: elements in dim order. */
	template <int TILES, class Q>
	static DEVICE void dot_rest(const uint32_t (&w)[D / 32], const uint32_t (&signs)[(D + 32) / 64][2], const Q &q,
				    int32_t (&sum)[TILES][SUMS][4])
	{
		uint32_t x[2];

		select(w[D / 32 - 1], signs[PAIRS][0], x);
		const uint32_t a = bytes(x[0]), b = bytes(upper_half(x[0])), c = bytes(x[1]), d = bytes(upper_half(x[1]));

#pragma unroll
		for (int n = 0; n < TILES; n++)
			mma_ss(sum[n][0], a, b, c, d, q[n][D / 16 - 2], q[n][D / 16 - 1]);
	}

	/* Those of two atoms by turns, so that neither waits for its own products. */
	template <class Q>
	static DEVICE void dot_pair(uint32_t first, uint32_t second, uint32_t lane, const Q &q, int32_t (&sums)[2][1][SUMS][4])
	{
		uint32_t w[2][D / 32], signs[2][(D + 32) / 64][2] = {};

		load_words(first, lane, w[0]);
		load_words(second, lane, w[1]);
		if constexpr (BITS == 3) {
			load_signs(first + 4 * D, lane, signs[0]);
			load_signs(second + 4 * D, lane, signs[1]);
		}
#pragma unroll
		for (int p = 0; p < PAIRS; p++) {
			const uint4 b4 = query_words(q, 0, p);

#pragma unroll
			for (int i = 0; i < 4; i++) {
				const int of = i % 2, h = i / 2;
				uint32_t x[2], y[2];

				select(w[of][2 * p], signs[of][p][0], x);
				select(w[of][2 * p + 1], signs[of][p][1], y);
				mma_ss(sums[of][0][0], bytes(x[h]), bytes(y[h]), bytes(upper_half(x[h])), bytes(upper_half(y[h])),
				       h ? b4.z : b4.x, h ? b4.w : b4.y);
			}
		}
		if constexpr (D % 64 == 32)
#pragma unroll
			for (int i = 0; i < 2; i++)
				dot_rest(w[i], signs[i], q, sums[i]);
	}

	template <int TILES> static constexpr float SCORE_UNIT = 1;
	template <int TILES> static constexpr bool IN_POWERS = true;

	template <int TILES> static DEVICE float query_term(int32_t total, float unit)
	{
		return (float)total * 0.5f * unit;
	}

	template <int TILES>
	static DEVICE float score(const int32_t (&sum)[SUMS][4], int r, float unit, float query_term, const scale_pair &)
	{
		return fmaf((float)(sum[0][2 * r] * 256 + sum[0][2 * r + 1]), unit, query_term);
	}

	static DEVICE scale_pair scales(uint32_t at)
	{
		return half_scales(at);
	}
};

template <int HEAD_DIM, int CODE_BITS> struct tq_values : integer_weights, tq_codes<CODE_BITS> {
	using tq_codes<CODE_BITS>::select;
	using tq_codes<CODE_BITS>::bytes;
	static constexpr int D = HEAD_DIM, BITS = CODE_BITS, SCALE_BYTES = 2;
	static constexpr bool ROTATED = true;

	static DEVICE scale_pair scales(uint32_t at)
	{
		return half_scales_of_v(at);
	}

	/* Signs of every word of magnitudes, in bits 0 .. 3 of their bytes. */
	static DEVICE void load_signs(uint32_t at, uint32_t lane, uint32_t (&signs)[D / 32])
	{
		uint32_t w[D / 64];

		load_words(at, lane, w);
#pragma unroll
		for (int i = 0; i < D / 64 * 2; i++)
			signs[i] = i % 2 ? w[i / 2] >> 4 : w[i / 2];
		if constexpr (D == 96) { /* dims 64 .. 95 token by token, byte q for dims 64 + 8q + g */
			const uint32_t g = lane / 4, t = lane % 4;

			signs[2] = 0;
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const uint32_t token = 2 * t + e / 2 + e % 2 * 8;
				const uint32_t bits =
					load_shared_4(at + 128 + token * 4) >> g & 0x01010101;

				signs[2] |= (bits * 0x01020408 >> 24 & 15) << (8 * e);
			}
		}
	}

	template <int TILES>
	static DEVICE void accumulate_atom(const uint32_t (&w)[D / 32], const uint32_t (&signs)[D / 32],
					   const uint32_t (&p)[TILES][2], int atom,
					   int32_t (&sum)[TILES][D / 16][4])
	{
		uint32_t even[TILES][2], odd[TILES][2];

#pragma unroll
		for (int n = 0; n < TILES; n++) {
			even[n][0] = permute(p[n][atom], 0, 0x4140);
			even[n][1] = permute(p[n][atom], 0, 0x4342);
			odd[n][0] = even[n][0] * 256;
			odd[n][1] = even[n][1] * 256;
		}
#pragma unroll
		for (int j = 0; j < D / 32; j++) {
			uint32_t x[2];

			select(w[j], signs[j], x);
			const uint32_t a = bytes(x[0]), b = bytes(x[1]), c = bytes(upper_half(x[0])),
				       d = bytes(upper_half(x[1]));

#pragma unroll
			for (int n = 0; n < TILES; n++) {
				mma_su(sum[n][2 * j], a, b, c, d, even[n][0], even[n][1]);
				mma_su(sum[n][2 * j + 1], a, b, c, d, odd[n][0], odd[n][1]);
			}
		}
	}

	template <int TILES, class Release>
	static DEVICE void accumulate(uint32_t codes, uint32_t atom, uint32_t lane,
				      const uint32_t (&p)[TILES][2], int32_t (&sum)[TILES][D / 16][4],
				      uint32_t, Release release)
	{
#pragma unroll
		for (int a = 0; a < 2; a++) {
			uint32_t w[D / 32], signs[D / 32] = {};

			load_words(codes + a * atom, lane, w);
			if constexpr (BITS == 3)
				load_signs(codes + a * atom + 4 * D, lane, signs);
			if (a == 1)
				release();
			accumulate_atom(w, signs, p, a, sum);
		}
	}

	template <int TILES> static DEVICE uint32_t output_dim(int word, int r, uint32_t g)
	{
		return 16 * word + 8 * r + g;
	}

	template <int TILES> static DEVICE float output(int64_t sum, int64_t weights, int)
	{
		return (float)(2 * sum + weights) * 0.5f;
	}
};

template <int D> using tq3_keys = tq_keys<D, 3>;
template <int D> using tq3_values = tq_values<D, 3>;
template <int D> using tq2_keys = tq_keys<D, 2>;
template <int D> using tq2_values = tq_values<D, 2>;

#endif
