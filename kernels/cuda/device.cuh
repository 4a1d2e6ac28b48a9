/* What all kernels share beside the machine's instructions (machine.cuh): elements of unpacked vectors. */
#ifndef TERRACE_KERNELS_CUDA_DEVICE_CUH
#define TERRACE_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/machine.cuh"

constexpr uint32_t ALL_LANES = 0xffffffffu;

/* Element i of unpacked vectors. */
DEVICE float load_element(enum kv_dtype dtype, const void *p, size_t i)
{
	if (dtype == KV_DTYPE_F16)
		return __half2float(((const __half *)p)[i]);
	if (dtype == KV_DTYPE_BF16)
		return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
	return ((const float *)p)[i];
}

/* Results as fp16 and bf16: what passes the largest number, infinities too, is the largest number; a NaN stays one. */
DEVICE __half2 saturated(__half2 h)
{
	return __hmin2_nan(__hmax2_nan(h, __float2half2_rn(-KV_FINITE_MAX)), __float2half2_rn(KV_FINITE_MAX));
}

DEVICE __nv_bfloat162 saturated(__nv_bfloat162 h)
{
	return __hmin2_nan(__hmax2_nan(h, __float2bfloat162_rn(-KV_BF16_MAX)), __float2bfloat162_rn(KV_BF16_MAX));
}

DEVICE void store_element(enum kv_dtype dtype, void *p, size_t i, float x)
{
	if (dtype == KV_DTYPE_F16)
		((__half *)p)[i] = __low2half(saturated(__float2half2_rn(x)));
	else if (dtype == KV_DTYPE_BF16)
		((__nv_bfloat16 *)p)[i] = __low2bfloat16(saturated(__float2bfloat162_rn(x)));
	else if (dtype == KV_DTYPE_E4M3)
		((uint8_t *)p)[i] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
	else
		((float *)p)[i] = x;
}

#endif
