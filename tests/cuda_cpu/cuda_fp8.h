/* E4M3 as CUDA's header has it, as far as it is used. */
#ifndef TERRACE_TESTS_CUDA_CPU_CUDA_FP8_H
#define TERRACE_TESTS_CUDA_CPU_CUDA_FP8_H

#include "tests/cuda_cpu/cuda_fp16.h"

typedef uint8_t __nv_fp8_storage_t;
typedef uint16_t __nv_fp8x2_storage_t;
enum __nv_saturation_t { __NV_SATFINITE = 1 };
enum __nv_fp8_interpretation_t { __NV_E4M3 = 0 };

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t, __nv_fp8_interpretation_t)
{
	return e4m3_from_float(x);
}

inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t, __nv_fp8_interpretation_t)
{
	return (uint16_t)(e4m3_from_float(x.x) | e4m3_from_float(x.y) << 8);
}

inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t)
{
	return {half_from_float(float_from_e4m3(x))};
}

inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t)
{
	return {half_from_float(float_from_e4m3((uint8_t)x)), half_from_float(float_from_e4m3((uint8_t)(x >> 8)))};
}

#endif
