/* Operands from int4_pth's codes, 0 .. 15: a mask makes them bytes, the high nibbles 16 times too
 * large. K's for several tiles are shifted as well, which costs less than a sum of their own.
 */
#ifndef TERRACE_KERNELS_CUDA_FRAGMENTS_INT4_CUH
#define TERRACE_KERNELS_CUDA_FRAGMENTS_INT4_CUH

#include "kernels/cuda/fragments.cuh"

DEVICE scale_pair int4_scales(uint32_t at)
{
	uint2 x = load_shared_8(at);

	return {{__uint_as_float(x.x & ~15u), __uint_as_float(x.y & ~15u)}, {x.x & 15, x.y & 15}};
}

template <int HEAD_DIM> struct int4_keys : integer_query {
	typedef int32_t sum_type;
	static constexpr int D = HEAD_DIM, BITS = 4, SCALE_BYTES = 4, SUMS = 2; /* low nibbles, high nibbles */
	static constexpr bool ROTATED = true;

	static DEVICE uint32_t query_dim(uint32_t s, uint32_t r, uint32_t t, uint32_t i)
	{
		return 64 * (s / 2) + 32 * (s % 2) + 16 * r + 4 * t + i;
	}

	template <int TILES> static constexpr bool SHIFTED = TILES > 1;

	template <int TILES> static DEVICE uint32_t high_nibbles(uint32_t w)
	{
		return SHIFTED<TILES> ? w >> 4 & 0x0f0f0f0f : w & 0xf0f0f0f0;
	}

	template <int TILES, class Q>
	static DEVICE void dot(uint32_t codes, uint32_t lane, const Q &q, int32_t (&sum)[TILES][SUMS][4])
	{
		constexpr int HIGH = SHIFTED<TILES> ? 0 : 1; /* whose sum */
		uint32_t w[D / 16];

		load_words(codes, lane, w);
#pragma unroll
		for (int v = 0; v < D / 64; v++) {
			uint32_t lo[4], hi[4];

#pragma unroll
			for (int r = 0; r < 4; r++) {
				lo[r] = w[4 * v + r] & 0x0f0f0f0f;
				hi[r] = high_nibbles<TILES>(w[4 * v + r]);
			}
#pragma unroll
			for (int n = 0; n < TILES; n++) {
				const uint4 x = query_words(q, n, v);

				mma_us(sum[n][0], lo[0], lo[1], lo[2], lo[3], x.x, x.y);
				mma_us(sum[n][HIGH], hi[0], hi[1], hi[2], hi[3], x.z, x.w);
			}
		}
		if constexpr (D % 64 ==
			      32) { /* low nibbles are the step's first 16 dims, high nibbles its last */
			uint32_t a = w[D / 16 - 2], b = w[D / 16 - 1];

#pragma unroll
			for (int n = 0; n < TILES; n++) {
				mma_us(sum[n][0], a & 0x0f0f0f0f, b & 0x0f0f0f0f, 0, 0,
				       q[n][D / 16 - 2], 0);
				mma_us(sum[n][HIGH], 0, 0, high_nibbles<TILES>(a), high_nibbles<TILES>(b), 0,
				       q[n][D / 16 - 1]);
			}
		}
	}

	/* If not shifted, 16 times the product, for the high nibbles' sake. The query's sum is what a zero point of 1
	 * takes away. */
	template <int TILES> static constexpr float SCORE_UNIT = SHIFTED<TILES> ? 1 : 1.0f / 16;
	template <int TILES> static constexpr bool IN_POWERS = false;

	template <int TILES> static DEVICE float query_term(int32_t total, float)
	{
		return (float)total / SCORE_UNIT<TILES>;
	}

	template <int TILES>
	static DEVICE float score(const int32_t (&sum)[SUMS][4], int r, float, float query_term, const scale_pair &k)
	{
		int32_t high = sum[0][2 * r], low = sum[0][2 * r + 1];

		if (!SHIFTED<TILES>) {
			high = high * 16 + sum[1][2 * r];
			low = low * 16 + sum[1][2 * r + 1];
		}
		return fmaf(-(float)k.zero[r], query_term, (float)(high * 256 + low));
	}

	static DEVICE scale_pair scales(uint32_t at)
	{
		return int4_scales(at);
	}
};

template <int HEAD_DIM> struct int4_values : integer_weights {
	static constexpr int D = HEAD_DIM, BITS = 4, SCALE_BYTES = 4;
	/* Weights times zeros are at most 65535 * 15 a token: 32 bits hold as many tokens as the sums
	 * do. */
	static constexpr bool ROTATED = true, ZEROS = true;

	static DEVICE scale_pair scales(uint32_t at)
	{
		scale_pair s = int4_scales(at);

		s.scale[0] = fmaxf(s.scale[0], SMALLEST_SCALE);
		s.scale[1] = fmaxf(s.scale[1], SMALLEST_SCALE);
		return s;
	}

	template <int TILES, class Release>
	static DEVICE void accumulate(uint32_t codes, uint32_t atom, uint32_t lane,
				      const uint32_t (&p)[TILES][2], int32_t (&sum)[TILES][D / 16][4],
				      uint32_t, Release release)
	{
		uint32_t a[D / 16], b[D / 16];

		load_words(codes, lane, a);
		load_words(codes + atom, lane, b);
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
	template <int TILES> static DEVICE float output(int64_t sum, int64_t weights, int r)
	{
		return r ? (float)(sum - 16 * weights) * 0.0625f : (float)(sum - weights);
	}
};

#endif
