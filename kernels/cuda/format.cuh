/* The format table (kernels/format.h) for code that cannot read its array: a device's code, and values that are known
 * at compile time. For a number that is no format everything here is 0.
 */
#ifndef TERRACE_KERNELS_CUDA_FORMAT_CUH
#define TERRACE_KERNELS_CUDA_FORMAT_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/format.h"

/* NAME(f): the fact of a row that FACT picks, as a case of a switch. */
#define FORMAT_FACT(type, name, fact)                          \
	__host__ __device__ constexpr type name(int f)         \
	{                                                      \
		switch (f) {                                   \
			KV_FORMAT_ROWS(fact)                   \
		default:                                       \
			return (type)0;                        \
		}                                              \
	}

#define FACT_BITS(format, name, bits, scale, rotated, codes, codec) \
	case format:                                         \
		return bits;
#define FACT_SCALE(format, name, bits, scale, rotated, codes, codec) \
	case format:                                          \
		return scale;
#define FACT_ROTATED(format, name, bits, scale, rotated, codes, codec) \
	case format:                                            \
		return rotated;
#define FACT_CODES(format, name, bits, scale, rotated, codes, codec) \
	case format:                                          \
		return codes;

FORMAT_FACT(uint32_t, format_bits, FACT_BITS)
FORMAT_FACT(uint32_t, format_scale_bytes, FACT_SCALE)
FORMAT_FACT(bool, format_rotated, FACT_ROTATED)
FORMAT_FACT(enum kv_codes, format_codes, FACT_CODES)

#undef FACT_BITS
#undef FACT_SCALE
#undef FACT_ROTATED
#undef FACT_CODES
#undef FORMAT_FACT

/* kv_format_rounds. */
__host__ __device__ constexpr bool format_rounds(int f)
{
	return format_codes(f) == KV_CODES_ZERO_POINT;
}

/* Codes that attention multiplies as integers. */
__host__ __device__ constexpr bool format_integer(int f)
{
	return format_codes(f) == KV_CODES_ZERO_POINT || format_codes(f) == KV_CODES_CODEBOOK;
}

#endif
