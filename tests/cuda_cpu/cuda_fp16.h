/* fp16 as CUDA's header has it, as far as it is used: operations by float64, rounded once. */
#ifndef TERRACE_TESTS_CUDA_CPU_CUDA_FP16_H
#define TERRACE_TESTS_CUDA_CPU_CUDA_FP16_H

#include "kernels/half.h"
#include "tests/cuda_cpu/cuda_runtime.h"

struct __half_raw {
	unsigned short x;
};

struct __half2_raw {
	unsigned short x, y;
};

struct __half {
	unsigned short bits;

	__half() = default;
	__half(float f) : bits(half_from_float(f))
	{
	}
	__half(__half_raw r) : bits(r.x)
	{
	}
};

struct alignas(4) __half2 {
	__half x, y;
};

inline __half __ushort_as_half(unsigned short bits)
{
	return __half(__half_raw{bits});
}

inline unsigned short __half_as_ushort(__half h)
{
	return h.bits;
}

inline float __half2float(__half h)
{
	return float_from_half(h.bits);
}

inline __half __float2half_rn(float f)
{
	return __half(f);
}

inline __half __float2half(float f)
{
	return __half(f);
}

inline __half2 __floats2half2_rn(float a, float b)
{
	return {__half(a), __half(b)};
}

inline __half2 __float2half2_rn(float a)
{
	return {__half(a), __half(a)};
}

inline __half2 __half2half2(__half a)
{
	return {a, a};
}

inline float2 __half22float2(__half2 h)
{
	return {__half2float(h.x), __half2float(h.y)};
}

inline __half __low2half(__half2 h)
{
	return h.x;
}

inline __half __high2half(__half2 h)
{
	return h.y;
}

inline float __low2float(__half2 h)
{
	return __half2float(h.x);
}

inline float __high2float(__half2 h)
{
	return __half2float(h.y);
}

inline __half2 __lowhigh2highlow(__half2 h)
{
	return {h.y, h.x};
}

inline int __hisinf(__half h)
{
	return (h.bits & 0x7fff) == 0x7c00;
}

/* By way of a float that remembers in its last bit that something is missing. */
inline __half cuda_cpu_half(double x)
{
	float f = (float)x;

	if ((double)f != x && x == x && fabs(x) < 1e6) {
		uint32_t bits = float_bits(f);

		if (fabs((double)f) > fabs(x))
			bits--;
		f = float_of_bits(bits | 1);
	}
	return __half(f);
}

template <class F> __half2 cuda_cpu_each(__half2 a, __half2 b, F f)
{
	return {f(a.x, b.x), f(a.y, b.y)};
}

inline __half2 __hadd2(__half2 a, __half2 b)
{
	return cuda_cpu_each(a, b, [](__half x, __half y) { return cuda_cpu_half((double)__half2float(x) + __half2float(y)); });
}

inline __half2 __hmul2(__half2 a, __half2 b)
{
	return cuda_cpu_each(a, b, [](__half x, __half y) { return cuda_cpu_half((double)__half2float(x) * __half2float(y)); });
}

inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
	const auto one = [](__half x, __half y, __half z) {
		return cuda_cpu_half((double)__half2float(x) * __half2float(y) + __half2float(z));
	};

	return {one(a.x, b.x, c.x), one(a.y, b.y, c.y)};
}

/* Within 0 .. 1. */
inline __half2 __hfma2_sat(__half2 a, __half2 b, __half2 c)
{
	const auto one = [](__half x, __half y, __half z) {
		const double r = (double)__half2float(x) * __half2float(y) + __half2float(z);

		return cuda_cpu_half(r > 0 ? r < 1 ? r : 1 : 0);
	};

	return {one(a.x, b.x, c.x), one(a.y, b.y, c.y)};
}

inline __half2 __hneg2(__half2 a)
{
	return {__ushort_as_half(a.x.bits ^ 0x8000), __ushort_as_half(a.y.bits ^ 0x8000)};
}

inline __half2 __habs2(__half2 a)
{
	return {__ushort_as_half(a.x.bits & 0x7fff), __ushort_as_half(a.y.bits & 0x7fff)};
}

inline __half2 __hmax2(__half2 a, __half2 b)
{
	return cuda_cpu_each(a, b, [](__half x, __half y) { return __half(fmaxf(__half2float(x), __half2float(y))); });
}

inline __half2 __hmin2(__half2 a, __half2 b)
{
	return cuda_cpu_each(a, b, [](__half x, __half y) { return __half(fminf(__half2float(x), __half2float(y))); });
}

/* NaN if one is. */
inline __half2 __hmax2_nan(__half2 a, __half2 b)
{
	return cuda_cpu_each(a, b, [](__half x, __half y) {
		const float p = __half2float(x), q = __half2float(y);

		return p != p || q != q ? __ushort_as_half(0x7fff) : __half(fmaxf(p, q));
	});
}

inline __half2 __hmin2_nan(__half2 a, __half2 b)
{
	return cuda_cpu_each(a, b, [](__half x, __half y) {
		const float p = __half2float(x), q = __half2float(y);

		return p != p || q != q ? __ushort_as_half(0x7fff) : __half(fminf(p, q));
	});
}

inline __half2 __heq2(__half2 a, __half2 b)
{
	return cuda_cpu_each(a, b, [](__half x, __half y) { return __half(__half2float(x) == __half2float(y) ? 1.0f : 0.0f); });
}

inline __half2 __hge2(__half2 a, __half2 b)
{
	return cuda_cpu_each(a, b, [](__half x, __half y) { return __half(__half2float(x) >= __half2float(y) ? 1.0f : 0.0f); });
}

#endif
