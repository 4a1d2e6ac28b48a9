/* Encodes one vector with one lane, in its registers, to the bit as kernels/codec.c. For encode_tile.cu: fp8, and head
 * dims that encode_quad.cuh does not have. A vector's bytes leave as words of its row (codec_tile.cuh).
 */
#ifndef TERRACE_KERNELS_CUDA_ENCODE_LANE_CUH
#define TERRACE_KERNELS_CUDA_ENCODE_LANE_CUH

#include "kernels/cuda/codec_tile.cuh"
#include "kernels/cuda/encode_codes.cuh"

/* The rotation without its signs, as hadamard() of hadamard.cuh. */
template <int D> DEVICE void hadamard_lane(float (&x)[D])
{
	constexpr uint32_t M = D % 12 == 0 ? D / 12 : D;

	if constexpr (D % 12 == 0) {
#pragma unroll
		for (uint32_t k = 0; k < M; k++) {
			float in[12];

#pragma unroll
			for (uint32_t j = 0; j < 12; j++)
				in[j] = x[k + j * M];
#pragma unroll
			for (uint32_t r = 0; r < 12; r++) {
				float sum = 0;

#pragma unroll
				for (uint32_t j = 0; j < 12; j++)
					sum += h12_negative(r, j) ? -in[j] : in[j];
				x[k + r * M] = sum;
			}
		}
	}
#pragma unroll
	for (uint32_t h = 1; h < M; h *= 2) {
#pragma unroll
		for (uint32_t i = 0; i < D / 2; i++) {
			const uint32_t at = i / h * 2 * h + i % h;
			const float s = x[at] + x[at + h], d = x[at] - x[at + h];

			x[at] = s;
			x[at + h] = d;
		}
	}
}

/* The row's elements as floats, and the largest magnitude; NaN if there is one. */
template <int D> DEVICE float load_row(enum kv_dtype dtype, const uint8_t *row, float (&x)[D])
{
	float largest;

	if (dtype == KV_DTYPE_F16) {
		__half2 most = __float2half2_rn(0);

#pragma unroll
		for (int i = 0; i < D / 8; i++) {
			const uint4 piece = ((const uint4 *)row)[i];
			const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const __half2 h = *(const __half2 *)&words[j];

				most = __hmax2_nan(most, __habs2(h));
				x[8 * i + 2 * j] = __low2float(h);
				x[8 * i + 2 * j + 1] = __high2float(h);
			}
		}
		most = __hmax2_nan(most, __lowhigh2highlow(most));
		largest = __low2float(most);
	} else {
		__nv_bfloat162 most = __float2bfloat162_rn(0);

#pragma unroll
		for (int i = 0; i < D / 8; i++) {
			const uint4 piece = ((const uint4 *)row)[i];
			const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};

#pragma unroll
			for (int j = 0; j < 4; j++) {
				most = __hmax2_nan(most, __habs2(*(const __nv_bfloat162 *)&words[j]));
				x[8 * i + 2 * j] = __uint_as_float(words[j] << 16);
				x[8 * i + 2 * j + 1] = __uint_as_float(words[j] & 0xffff0000);
			}
		}
		most = __hmax2_nan(most, __lowhigh2highlow(most));
		largest = __low2float(most);
	}
	return largest;
}

/* load_row, cleaned; nearly all vectors need no cleaning. Returns the largest magnitude. */
template <int D> DEVICE float load_clean_row(enum kv_dtype dtype, const uint8_t *row, float (&x)[D])
{
	float largest = load_row(dtype, row, x);

	if (!(largest <= FINITE_MAX)) {
		largest = 0;
#pragma unroll
		for (int i = 0; i < D; i++) {
			x[i] = clean(x[i], FINITE_MAX);
			largest = fmaxf(largest, fabsf(x[i]));
		}
	}
	return largest;
}

/* int4_pth. Codes come from the low bits of 2^23 + code, which eight times 4 bits apart add up to the codes plus a
 * constant. */
template <int D, bool BF16> struct lane_int4 {
	using two = kept_two<BF16>;
	typename two::type h[D / 2]; /* the rotated vector, as vLLM keeps it */
	float inverse, zero;
	uint32_t scale;

	DEVICE void quantise(float (&x)[D])
	{
		typename two::type low2, high2;

#pragma unroll
		for (int i = 0; i < D / 2; i++) {
			h[i] = two::of(x[2 * i], x[2 * i + 1]);
			low2 = i ? __hmin2(low2, h[i]) : h[0];
			high2 = i ? __hmax2(high2, h[i]) : h[0];
		}
		if constexpr (!BF16) /* which holds any sum of D finite halves */
			if (__hisinf(__low2half(high2)) | __hisinf(__high2half(high2)) | __hisinf(__low2half(low2)) |
			    __hisinf(__high2half(low2))) {
				clamp(-FINITE_MAX, FINITE_MAX);
				low2 = __hmax2(low2, __float2half2_rn(-FINITE_MAX));
				high2 = __hmin2(high2, __float2half2_rn(FINITE_MAX));
			}
		const float low = fminf(__low2float(low2), __high2float(low2)),
			    high = fmaxf(__low2float(high2), __high2float(high2));
		const float step = fmaxf(__fmul_rn(__fadd_rn(high, -low), 1.0f / 15.0f), 1e-6f);

		inverse = reciprocal_fast(step);
		const uint32_t point = int4_rounded(-low, inverse, 0);

		zero = (float)point;
		scale = (__float_as_uint(step) & ~15u) | point;
		/* Codes must not leave 0 .. 15: only where the range does not hold 0, or by rounding. The
		 * middles of the outermost steps have those steps' codes. */
		if (!(place(low) >= 0 && place(high) < 16))
			clamp(-zero * step, (15 - zero) * step);
	}

	DEVICE void clamp(float low, float high)
	{
		const typename two::type low2 = two::of(low, low), high2 = two::of(high, high);

#pragma unroll
		for (int i = 0; i < D / 2; i++)
			h[i] = __hmin2(__hmax2(h[i], low2), high2);
	}

	DEVICE float place(float v) const
	{
		return __fadd_rn(__fmaf_rn(v, inverse, zero), 0.5f);
	}

	template <enum kv_side SIDE> DEVICE void pack(uint32_t *words)
	{
		using P = plane_row<D, 4, SIDE>;

#pragma unroll
		for (uint32_t i = 0; i < P::BYTES / 4; i++) {
			uint32_t w = 0u - 0xfb000000u; /* 0x4b000000 + (0x4b000000 << 4), modulo 2^32 */

#pragma unroll
			for (uint32_t n = 0; n < 8; n++) {
				const uint32_t dim = P::dim_of(4 * i + n / 2, n % 2);
				const float v = dim % 2 ? __high2float(h[dim / 2]) : __low2float(h[dim / 2]);

				w += __float_as_uint(__fadd_rz(place(v), 0x1p23f)) << (4 * n);
			}
			words[i] = w;
		}
	}
};

/* fp8. x / step, correctly rounded where it matters: x has 11 bits and step too, so that a quotient comes no
 * nearer than 2^-16 to a code's boundary unless it is the boundary; and such a tie is met exactly, for inverse +
 * rest is 1 / step to 2^-47. Neither is negative, so that -0 stays what it is. */
template <int D> struct lane_fp8 {
	float inverse, rest;
	uint32_t scale;

	DEVICE void quantise(float largest)
	{
		const float wanted = __fdiv_rn(largest, KV_FP8_TOP(D));
		__half up = __float2half_rn(wanted);

		if (__half2float(up) < wanted)
			up = __ushort_as_half((uint16_t)(__half_as_ushort(up) + 1));
		const float step = __half_as_ushort(up) ? __half2float(up) : 1;

		inverse = __frcp_rd(step);
		rest = __fmul_rn(__fmaf_rn(-inverse, step, 1.0f), inverse);
		scale = __half_as_ushort(up);
	}

	DEVICE float quotient(float v) const
	{
		return __fmaf_rn(v, inverse, __fmul_rn(v, rest));
	}

	template <enum kv_side SIDE> DEVICE void pack(const float (&x)[D], uint32_t *words) const
	{
		using P = plane_row<D, 8, SIDE>;

#pragma unroll
		for (uint32_t i = 0; i < P::BYTES / 4; i++) {
			uint32_t half[2];

#pragma unroll
			for (uint32_t j = 0; j < 2; j++)
				half[j] = __nv_cvt_float2_to_fp8x2(
					make_float2(quotient(x[P::dim_of(4 * i + 2 * j, 0)]),
						    quotient(x[P::dim_of(4 * i + 2 * j + 1, 0)])),
					__NV_SATFINITE, __NV_E4M3);
			words[i] = permute(half[0], half[1], 0x5410);
		}
	}
};

/* The length of x, as codebook.c sums it. */
template <int D> DEVICE float length_lane(const float (&x)[D])
{
	float part[16], sum = 0;

#pragma unroll
	for (int j = 0; j < 16; j++)
		part[j] = __fmul_rn(x[j], x[j]);
#pragma unroll
	for (int i = 16; i < D; i++)
		part[i % 16] = __fadd_rn(part[i % 16], __fmul_rn(x[i], x[i]));
#pragma unroll
	for (int j = 0; j < 16; j++)
		sum = __fadd_rn(sum, part[j]);
	return sqrtf(sum);
}

DEVICE uint32_t codebook_scale(float length, uint32_t squares)
{
	const float scale = __fdiv_rn(length, sqrtf((float)squares) / 2);

	return __half_as_ushort(__float2half_rn(scale > FINITE_MAX ? FINITE_MAX : scale));
}

/* Codebooks. The thresholds are whole halves of a step, so that a code depends on floor(2 x / step) alone, which
 * pairs of elements carry in halves: 1024 + the integer, up to 1023. What lies so near a boundary that the
 * reciprocal's rounding could decide makes the vector `doubtful`: it is to be done again by encode_vector, as is one
 * so small that this is not good for it. */
template <int D, int FORMAT> struct lane_codebook {
	using codes = codebook_codes<FORMAT>;
	static constexpr uint32_t W = codes::W;
	float length, less, more; /* just below and above 2 / step */
	uint32_t doubtful;

	/* The errors of 2 / step and of a threshold's rounding are at most 2^-24 each. */
	DEVICE void measure(const float (&x)[D], float largest)
	{
		length = length_lane(x);
		const float step = __fdiv_rn(__fdiv_rn(length, sqrtf((float)D)), codes::PER_UNIT),
			    twice = largest > 0 ? __fdiv_rn(2.0f, step) : 0;

		less = __fmul_rn(twice, 1 - 0x1p-22f);
		more = __fmul_rn(twice, 1 + 0x1p-22f);
		doubtful = step <= 0x1p-60f && largest > 0;
	}

	/* floor(2 x / step) in the low 16 bits. */
	DEVICE uint32_t floored(float v)
	{
		const uint32_t a = __float_as_uint(__fmaf_rd(v, less, 12582912.0f));

		doubtful |= a ^ __float_as_uint(__fmaf_rd(v, more, 12582912.0f));
		return a;
	}

	/* The codes of a and b with codes::BIAS; of tq3 their magnitudes. */
	DEVICE uint32_t two_codes(float a, float b)
	{
		const uint32_t whole = permute(floored(a), floored(b), 0x5410);
		const uint32_t sign = permute(whole, 0, 0xbb99); /* each half's sign, 16 times */

		return bits_of(codes::magnitudes(half2_of((whole ^ sign) | 0x64006400))) | (sign & codes::SIGNS);
	}

	/* Words of the row; returns four times the sum of the squares of the magnitudes. */
	template <enum kv_side SIDE> DEVICE uint32_t pack(const float (&x)[D], float largest, uint32_t *words)
	{
		using P = plane_row<D, W, SIDE>;
		constexpr uint32_t PAIRS = 16 / W; /* of a word */
		uint32_t squares = 0;

		if constexpr (FORMAT == KV_TQ3)
			pack_signs<SIDE>(x, largest, words + D * 2 / 32);
#pragma unroll
		for (uint32_t i = 0; i < P::BYTES / 4; i++) {
			uint32_t w = 0u - codes::BIAS * (W == 4 ? 0x1111u : 0x5555u);

#pragma unroll
			for (uint32_t n = 0; n < PAIRS; n++) {
				const uint32_t byte = 4 * i + n / P::FIELDS, q = n % P::FIELDS;

				w += two_codes(x[P::dim_of(byte, q)], x[P::dim_of(byte + 2, q)]) << (W * n);
			}
			words[i] = w;
			squares = codes::squares_of(w, squares);
		}
		return squares;
	}

	/* tq3's plane of signs. An element is -0 only if all are 0. */
	template <enum kv_side SIDE> DEVICE void pack_signs(const float (&x)[D], float largest, uint32_t *words)
	{
		using P = plane_row<D, 1, SIDE>;

#pragma unroll
		for (uint32_t i = 0; i < P::BYTES / 4; i++) {
			uint32_t w = 0;

#pragma unroll
			for (uint32_t n = 32; n-- > 0;)
				w = __funnelshift_l(__float_as_uint(x[P::dim_of(4 * i + n / 8, n % 8)]), w, 1);
			words[i] = largest > 0 ? w : 0;
		}
	}
};

#endif
