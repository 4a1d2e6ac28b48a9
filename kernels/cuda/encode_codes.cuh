/* The codebooks in the form in which lanes need them for codes in halves, two at a time: for encode_lane.cuh and
 * encode_quad.cuh.
 */
#ifndef TERRACE_KERNELS_CUDA_ENCODE_CODES_CUH
#define TERRACE_KERNELS_CUDA_ENCODE_CODES_CUH

#include <type_traits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/encode_vector.cuh"

DEVICE __half2 half2_of(uint32_t bits)
{
	return *(const __half2 *)&bits;
}

DEVICE uint32_t bits_of(__half2 h)
{
	return *(const uint32_t *)&h;
}

/* Two numbers of the dtype in which int4_pth's rotated vectors are kept: fp16, or bf16. */
template <bool BF16> struct kept_two {
	using type = std::conditional_t<BF16, __nv_bfloat162, __half2>;

	DEVICE static type of(float a, float b)
	{
		if constexpr (BF16)
			return __floats2bfloat162_rn(a, b);
		else
			return __floats2half2_rn(a, b);
	}

	DEVICE static type of_bits(uint32_t bits)
	{
		return *(const type *)&bits;
	}

	DEVICE static uint32_t bits(type two)
	{
		return *(const uint32_t *)&two;
	}

	DEVICE static float rounded(float x)
	{
		return __low2float(of(x, x));
	}

	/* The number above x, which is one of that dtype. */
	DEVICE static float above(float x)
	{
		const uint32_t own = bits(of(x, x)) & 0xffff;

		return __low2float(of_bits(x < 0 ? own - 1 : own + 1));
	}
};

/* Magnitudes go by k = floor(2 |x| / step), for the thresholds are whole halves of a step. */
template <int FORMAT> struct codebook_codes {
	static constexpr float PER_UNIT = FORMAT == KV_TQ4 ? 41.86f : FORMAT == KV_TQ3 ? 50.90f : 78.45f;
	static constexpr uint32_t W = FORMAT == KV_TQ4 ? 4 : 2; /* of the plane with the magnitudes */
	/* What is added to two codes in halves: they are not below 1024, where halves have fractions. */
	static constexpr uint32_t BIAS = FORMAT == KV_TQ4 ? 0x64106410 : 0x64006400;
	static constexpr uint32_t SIGNS = FORMAT == KV_TQ4 ? 0x00080008 : FORMAT == KV_TQ2 ? 0x00020002 : 0;

	/* Two magnitudes, in halves with BIAS, from 1024 + k. tq4: a cubic that rounds to it for every integer k from 0
	 * to 1023, tq3: a square (found by search, checked one by one). */
	DEVICE static __half2 magnitudes(__half2 k)
	{
		if (FORMAT == KV_TQ4) {
			const __half2 at =
				__hfma2_sat(k, half2_of(0x1d5c1d5c), half2_of(0xc56bc56b)); /* (k - 11) / 191 */
			__half2 p = __hfma2(half2_of(0xbc02bc02), at, half2_of(0xbe7cbe7c));

			p = __hfma2(p, at, half2_of(0x48944894));
			return __hfma2(p, at, half2_of(BIAS));
		}
		if (FORMAT == KV_TQ3) { /* thresholds 51, 107, 178 halves of a step */
			const __half2 at =
				__hfma2_sat(k, half2_of(0x1c321c32), half2_of(0xc44dc44d)); /* (k - 25.5) / 244 */
			const __half2 p = __hfma2(half2_of(0xbf06bf06), at, half2_of(0x451d451d));

			return __hfma2(p, at, half2_of(BIAS));
		}
		return __hadd2(__hge2(k, half2_of(0x649a649a)), half2_of(BIAS));
	}

	/* Four times the sum of the squares of a word's magnitudes. */
	DEVICE static uint32_t squares_of(uint32_t w, uint32_t squares)
	{
		const uint32_t low = w & 0x55555555, high = w >> 1 & 0x55555555;

		if (FORMAT == KV_TQ4) {
			const uint32_t few = 11 | 33 << 8 | 55 << 16 | 79 << 24,
				       many = 105 | 135 << 8 | 173 << 16 | 229u << 24;
			const uint32_t index = w & 0x77777777, first = permute(few, many, index),
				       second = permute(few, many, index >> 16);

			return __dp4a(second, second, __dp4a(first, first, squares));
		}
		if constexpr (FORMAT == KV_TQ3)
			return squares + 16 * 25 * 25 + __popc(low & ~high) * (77 * 77 - 25 * 25) +
			       __popc(high & ~low) * (137 * 137 - 25 * 25) +
			       __popc(low & high) * (219 * 219 - 25 * 25);
		return squares + 16 * 71 * 71 + __popc(low) * (237 * 237 - 71 * 71);
	}
};

#endif
