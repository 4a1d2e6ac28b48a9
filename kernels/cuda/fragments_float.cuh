/* Operands from fp8, fp16 and bf16: m16n8k16 in 16-bit floats. fp16 and bf16 are operands as they
 * stand; fp8 becomes fp16, two codes an instruction where there is one (compute capability 8.9), else
 * 2^-8 of it by moving bits, which is exact too. Codes past a sequence's end may be NaN, so V's are
 * masked.
 */
#ifndef TERRACE_KERNELS_CUDA_FRAGMENTS_FLOAT_CUH
#define TERRACE_KERNELS_CUDA_FRAGMENTS_FLOAT_CUH

#include "kernels/cuda/fragments.cuh"

struct fp16_type {
	static DEVICE uint32_t pack(float a, float b)
	{
		__half2 h = __floats2half2_rn(a, b);

		return *(uint32_t *)&h;
	}
	static DEVICE float round(float a)
	{
		return __half2float(__float2half_rn(a));
	}
	static DEVICE void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
			       uint32_t b1)
	{
		mma_f16(c, a0, a1, a2, a3, b0, b1);
	}
};

struct bf16_type {
	static DEVICE uint32_t pack(float a, float b)
	{
		__nv_bfloat162 h = __floats2bfloat162_rn(a, b);

		return *(uint32_t *)&h;
	}
	static DEVICE float round(float a)
	{
		return __bfloat162float(__float2bfloat16_rn(a));
	}
	static DEVICE void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
			       uint32_t b1)
	{
		mma_bf16(c, a0, a1, a2, a3, b0, b1);
	}
};

/* The query as 16-bit floats, scaled by a power of two so that what the low part misses is far below the
 * largest element. */
template <class T> struct float_query {
	static constexpr int ELEMENTS = 2;
	static constexpr bool PAIRED = false;

	static DEVICE float query_unit(float largest)
	{
		return exp2f(10 - ceilf(log2f(largest)));
	}

	template <int TILES> static DEVICE float query_term(int32_t, float)
	{
		return 0;
	}

	static DEVICE int32_t query_word(const float (&x)[ELEMENTS], uint32_t *high_word, uint32_t *low_word)
	{
		*high_word = T::pack(x[0], x[1]);
		*low_word = T::pack(x[0] - T::round(x[0]), x[1] - T::round(x[1]));
		return 0;
	}
};

template <class T> struct float_weights {
	typedef float sum_type;
	static constexpr bool INTEGER = false, ZEROS = false;

	/* {high, low} of a token; transposed, a lane has one column's tokens 2t and 2t + 1. */
	static DEVICE uint32_t operand(float weight)
	{
		return transpose_8x8(T::pack(weight, weight - T::round(weight)));
	}

	template <int TILES> static DEVICE uint32_t output_dim(int word, int r, uint32_t g)
	{
		return 16 * word + 8 * r + g;
	}
};

DEVICE uint32_t ones_if(bool b)
{
	return b ? 0xffffffff : 0;
}

template <int HEAD_DIM, class T> struct raw_keys : float_query<T> {
	typedef float sum_type;
	static constexpr int D = HEAD_DIM, BITS = 16, SCALE_BYTES = 0, SUMS = 2; /* even and odd steps */
	static constexpr bool ROTATED = false;
	template <int TILES> static constexpr float SCORE_UNIT = 1;
	template <int TILES> static constexpr bool IN_POWERS = false;

	static DEVICE uint32_t query_dim(uint32_t s, uint32_t r, uint32_t t, uint32_t i)
	{
		return 16 * s + 8 * r + 2 * t + i;
	}

	template <int TILES>
	static DEVICE void dot(uint32_t codes, uint32_t lane, const uint32_t (&q)[TILES][D / 8],
			       float (&sum)[TILES][SUMS][4])
	{
#pragma unroll
		for (int m = 0; m < D / 16; m++) {
			const uint4 a = load_shared_16(codes + m * 512 + lane * 16);

#pragma unroll
			for (int n = 0; n < TILES; n++)
				T::mma(sum[n][m % 2], a.x, a.y, a.z, a.w, q[n][2 * m], q[n][2 * m + 1]);
		}
	}

	template <int TILES> static DEVICE float score(const float (&sum)[SUMS][4], int r, float, float, const scale_pair &)
	{
		return (sum[0][2 * r] + sum[1][2 * r]) + (sum[0][2 * r + 1] + sum[1][2 * r + 1]);
	}

	static DEVICE scale_pair scales(uint32_t)
	{
		return {{1, 1}, {0, 0}};
	}
};

template <int HEAD_DIM, class T> struct raw_values : float_weights<T> {
	static constexpr int D = HEAD_DIM, BITS = 16, SCALE_BYTES = 0;
	static constexpr bool ROTATED = false;

	static DEVICE scale_pair scales(uint32_t)
	{
		return {{1, 1}, {0, 0}};
	}

	template <int TILES, class Release>
	static DEVICE void accumulate(uint32_t codes, uint32_t, uint32_t lane, const uint32_t (&p)[TILES][2],
				      float (&sum)[TILES][D / 16][4], uint32_t valid, Release release)
	{
		uint32_t mask[2] = {0xffffffff, 0xffffffff};

		if (valid < KV_ATOM_TOKENS)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const uint32_t token = lane % 4 * 2 + 8 * i;

				mask[i] = permute(ones_if(token < valid), ones_if(token + 1 < valid), 0x5410);
			}
#pragma unroll
		for (int m = 0; m < D / 16; m++) {
			const uint4 a = load_shared_16(codes + m * 512 + lane * 16);

			if (m == D / 16 - 1)
				release();
#pragma unroll
			for (int n = 0; n < TILES; n++)
				T::mma(sum[n][m], a.x & mask[0], a.y & mask[0], a.z & mask[1], a.w & mask[1],
				       p[n][0], p[n][1]);
		}
	}

	static DEVICE float output(float high, float low)
	{
		return high + low;
	}
};

struct fp8_codes {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
	static constexpr float UNIT = 1;

	static DEVICE uint32_t halves(uint32_t w, int h)
	{
		return halves_of_e4m3(w, h);
	}
#else
	static constexpr float UNIT = 256;

	static DEVICE uint32_t halves(uint32_t w, int h)
	{
		const uint32_t x = permute(w, 0, h == 0 ? 0x1404 : 0x3424);

		return (x & 0x80008000) | (x >> 1 & 0x3f803f80);
	}
#endif
};

template <int HEAD_DIM> struct fp8_keys : float_query<fp16_type>, fp8_codes {
	typedef float sum_type;
	static constexpr int D = HEAD_DIM, BITS = 8, SCALE_BYTES = 2, SUMS = 2;
	static constexpr bool ROTATED = false;
	template <int TILES> static constexpr float SCORE_UNIT = UNIT;
	template <int TILES> static constexpr bool IN_POWERS = false;

	/* A lane's four elements of a group of 16 dims are next to each other. */
	static DEVICE uint32_t query_dim(uint32_t s, uint32_t r, uint32_t t, uint32_t i)
	{
		return 16 * s + 4 * t + 2 * r + i;
	}

	template <int TILES>
	static DEVICE void dot(uint32_t codes, uint32_t lane, const uint32_t (&q)[TILES][D / 8],
			       float (&sum)[TILES][SUMS][4])
	{
#pragma unroll
		for (int v = 0; v < D / 32; v++) {
			const uint4 w = load_shared_16(codes + v * 512 + lane * 16);

#pragma unroll
			for (int i = 0; i < 2; i++) {
				const uint32_t x = i ? w.z : w.x, y = i ? w.w : w.y;
				const uint32_t a = halves(x, 0), b = halves(y, 0), c = halves(x, 1),
					       d = halves(y, 1);

#pragma unroll
				for (int n = 0; n < TILES; n++)
					mma_f16(sum[n][i], a, b, c, d, q[n][4 * v + 2 * i],
						q[n][4 * v + 2 * i + 1]);
			}
		}
	}

	template <int TILES> static DEVICE float score(const float (&sum)[SUMS][4], int r, float, float, const scale_pair &)
	{
		return (sum[0][2 * r] + sum[1][2 * r]) + (sum[0][2 * r + 1] + sum[1][2 * r + 1]);
	}

	static DEVICE scale_pair scales(uint32_t at)
	{
		return half_scales(at);
	}
};

template <int HEAD_DIM> struct fp8_values : float_weights<fp16_type>, fp8_codes {
	static constexpr int D = HEAD_DIM, BITS = 8, SCALE_BYTES = 2;
	static constexpr bool ROTATED = false;

	static DEVICE scale_pair scales(uint32_t at)
	{
		return half_scales_of_v(at);
	}

	/* Half a word has tokens 2t and 2t + 8, or 2t + 1 and 2t + 9; so B is put in that order. */
	template <int TILES, class Release>
	static DEVICE void accumulate(uint32_t codes, uint32_t, uint32_t lane, const uint32_t (&p)[TILES][2],
				      float (&sum)[TILES][D / 16][4], uint32_t valid, Release release)
	{
		uint32_t mask = 0xffffffff, b[TILES][2];

		if (valid < KV_ATOM_TOKENS) {
			const uint32_t token = lane % 4 * 2;

			mask = permute(permute(ones_if(token < valid), ones_if(token + 8 < valid), 0x5410),
				       permute(ones_if(token + 1 < valid), ones_if(token + 9 < valid), 0x5410),
				       0x6420);
		}
#pragma unroll
		for (int n = 0; n < TILES; n++) {
			b[n][0] = permute(p[n][0], p[n][1], 0x5410);
			b[n][1] = permute(p[n][0], p[n][1], 0x7632);
		}
#pragma unroll
		for (int v = 0; v < D / 32; v++) {
			const uint4 w = load_shared_16(codes + v * 512 + lane * 16);

			if (v == D / 32 - 1)
				release();
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const uint32_t x = (i ? w.z : w.x) & mask, y = (i ? w.w : w.y) & mask;
				const uint32_t a0 = halves(x, 0), a1 = halves(y, 0), a2 = halves(x, 1),
					       a3 = halves(y, 1);

#pragma unroll
				for (int n = 0; n < TILES; n++)
					mma_f16(sum[n][2 * v + i], a0, a1, a2, a3, b[n][0], b[n][1]);
			}
		}
	}

	static DEVICE float output(float high, float low)
	{
		return (high + low) * UNIT;
	}
};

template <int D> using fp16_keys = raw_keys<D, fp16_type>;
template <int D> using fp16_values = raw_values<D, fp16_type>;
template <int D> using bf16_keys = raw_keys<D, bf16_type>;
template <int D> using bf16_values = raw_values<D, bf16_type>;

#endif
