/* bf16 as CUDA's header has it, as far as it is used. */
#ifndef TERRACE_TESTS_CUDA_CPU_CUDA_BF16_H
#define TERRACE_TESTS_CUDA_CPU_CUDA_BF16_H

#include "kernels/half.h"
#include "tests/cuda_cpu/cuda_runtime.h"

struct __nv_bfloat16 {
	unsigned short bits;
};

struct alignas(4) __nv_bfloat162 {
	__nv_bfloat16 x, y;
};

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
	return {bits};
}

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
	return h.bits;
}

inline float __bfloat162float(__nv_bfloat16 h)
{
	return float_from_bf16(h.bits);
}

inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
	return {bf16_from_float(f)};
}

inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
	return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}

inline __nv_bfloat162 __float2bfloat162_rn(float a)
{
	return __floats2bfloat162_rn(a, a);
}

inline float2 __bfloat1622float2(__nv_bfloat162 h)
{
	return {__bfloat162float(h.x), __bfloat162float(h.y)};
}

inline float __low2float(__nv_bfloat162 h)
{
	return __bfloat162float(h.x);
}

inline float __high2float(__nv_bfloat162 h)
{
	return __bfloat162float(h.y);
}

inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h)
{
	return h.x;
}

inline __nv_bfloat162 __lowhigh2highlow(__nv_bfloat162 h)
{
	return {h.y, h.x};
}

inline __nv_bfloat162 __habs2(__nv_bfloat162 h)
{
	return {{(unsigned short)(h.x.bits & 0x7fff)}, {(unsigned short)(h.y.bits & 0x7fff)}};
}

inline __nv_bfloat162 __hneg2(__nv_bfloat162 h)
{
	return {{(unsigned short)(h.x.bits ^ 0x8000)}, {(unsigned short)(h.y.bits ^ 0x8000)}};
}

template <class F> __nv_bfloat162 cuda_cpu_each_float(__nv_bfloat162 a, __nv_bfloat162 b, F f)
{
	return __floats2bfloat162_rn(f(__low2float(a), __low2float(b)), f(__high2float(a), __high2float(b)));
}

/* Of a NaN and a number the number, as of halves. */
inline __nv_bfloat162 __hmin2(__nv_bfloat162 a, __nv_bfloat162 b)
{
	return cuda_cpu_each_float(a, b, [](float x, float y) { return fminf(x, y); });
}

inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b)
{
	return cuda_cpu_each_float(a, b, [](float x, float y) { return fmaxf(x, y); });
}

inline __nv_bfloat162 __heq2(__nv_bfloat162 a, __nv_bfloat162 b)
{
	return cuda_cpu_each_float(a, b, [](float x, float y) { return x == y ? 1.0f : 0.0f; });
}

/* Rounded once as long as 24 bits hold product and sum, as where a is 0 or 1 and b a place of c. */
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c)
{
	return __floats2bfloat162_rn(fmaf(__low2float(a), __low2float(b), __low2float(c)),
				     fmaf(__high2float(a), __high2float(b), __high2float(c)));
}

/* NaN if one is. */
inline __nv_bfloat16 cuda_cpu_max_nan(__nv_bfloat16 x, __nv_bfloat16 y)
{
	const float p = __bfloat162float(x), q = __bfloat162float(y);

	return p != p || q != q ? __nv_bfloat16{0x7fff} : p < q ? y : x;
}

inline __nv_bfloat162 __hmax2_nan(__nv_bfloat162 a, __nv_bfloat162 b)
{
	return {cuda_cpu_max_nan(a.x, b.x), cuda_cpu_max_nan(a.y, b.y)};
}

inline __nv_bfloat16 cuda_cpu_min_nan(__nv_bfloat16 x, __nv_bfloat16 y)
{
	const float p = __bfloat162float(x), q = __bfloat162float(y);

	return p != p || q != q ? __nv_bfloat16{0x7fff} : p > q ? y : x;
}

inline __nv_bfloat162 __hmin2_nan(__nv_bfloat162 a, __nv_bfloat162 b)
{
	return {cuda_cpu_min_nan(a.x, b.x), cuda_cpu_min_nan(a.y, b.y)};
}

#endif
