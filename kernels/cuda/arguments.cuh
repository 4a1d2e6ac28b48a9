/* What launchers check on the host: the arguments, which code the device runs, and the result of a launch. */
#ifndef TERRACE_KERNELS_CUDA_ARGUMENTS_CUH
#define TERRACE_KERNELS_CUDA_ARGUMENTS_CUH

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <initializer_list>

#include "kernels/cuda/cuda_kernels.h"

constexpr uint32_t RANGES_MAX = 64;
constexpr float SOFT_CAP_ROUGH = 256; /* up to that one formula will do, good to the cap times 2^-21 */
constexpr float SOFT_CAP_MAX = 1e30f; /* above that a cap changes no score, and what is made of it would overflow */
constexpr float SOFT_CAP_MIN = 1e-20f; /* below that it leaves nothing of any score, and its inverse would overflow */

/* Whether the current device runs this build's code for devices without bulk copies. UNSUPPORTED: it runs none
 * (code.cu). INTERNAL: CUDA does not tell; why stays for cudaGetLastError. */
enum status code_is_portable(bool *portable);

/* True if all are multiples of n; NULL is one. */
static inline bool aligned_to(size_t n, std::initializer_list<const void *> pointers)
{
	uintptr_t all = 0;

	for (const void *p : pointers)
		all |= (uintptr_t)p;
	return all % n == 0;
}

/* A caller's dtype as a number: by the C interface any may come, which C++ has no such enum for. */
static inline uint32_t dtype_number(const enum kv_dtype &t)
{
	uint32_t n;

	static_assert(sizeof(n) == sizeof(t), "an enum is an int");
	memcpy(&n, &t, sizeof(n));
	return n;
}

/* True of vectors' elements that are read; E4M3 is for outputs alone. */
static inline bool dtype_read(const enum kv_dtype &t)
{
	const uint32_t n = dtype_number(t);

	return n == KV_DTYPE_F32 || n == KV_DTYPE_F16 || n == KV_DTYPE_BF16;
}

static inline bool dtype_written(const enum kv_dtype &t)
{
	return dtype_read(t) || dtype_number(t) == KV_DTYPE_E4M3;
}

/* Head dims of which vectors are coded, a warp each, but not attended. */
#if defined(TERRACE_CUDA_ALL) && !defined(TERRACE_CUDA_CODEC_DIMS)
#define TERRACE_CUDA_CODEC_DIMS
#endif

/* Head dims of K and V that attention has kernels for, X(k, v) each. */
#ifdef TERRACE_CUDA_ALL
#define ATTEND_DIMS(X) X(128, 128) X(64, 64) X(96, 96) X(192, 192) X(256, 256) X(192, 128) X(128, 64)
#else
#define ATTEND_DIMS(X) X(128, 128)
#endif

struct head_dims {
	uint32_t k, v;
};

static inline bool attend_dims_built(head_dims d)
{
#define ATTEND_DIMS_ARE(K, V) \
	if (d.k == K && d.v == V) \
		return true;
	ATTEND_DIMS(ATTEND_DIMS_ARE)
#undef ATTEND_DIMS_ARE
	return false;
}

/* True if the build has kernels for vectors of d elements. */
static inline bool head_dim_built(uint32_t d)
{
#ifdef TERRACE_CUDA_ALL
	return d == 64 || d == 96 || d == 128 || d == 192 || d == 256;
#else
	return d == 128;
#endif
}

/* True if the build can encode and decode vectors of d elements. */
static inline bool codec_dim_built(uint32_t d)
{
#ifdef TERRACE_CUDA_CODEC_DIMS
	if (d == 80 || d == 112 || d == 512)
		return true;
#endif
	return head_dim_built(d);
}

/* True if a layout and its geometry are there and sound, and it is not opaque. */
static inline bool layout_sound(const struct kv_layout *l, const struct kv_geometry *g)
{
	return l && g && !kv_is_opaque(l) && !kv_layout_problem(l) && g->atoms == l->block_tokens / KV_ATOM_TOKENS;
}

static inline bool features_sound(const struct kv_attend_features *f)
{
	return f->softcap >= 0 && f->softcap < INFINITY && f->ranges_max <= RANGES_MAX && (f->ranges_max == 0 || f->ranges) &&
	       aligned_to(4, {f->sinks, f->alibi, f->tree_bias, f->ranges, f->out_scale});
}

static inline float soft_cap_of(const struct kv_attend_features *f)
{
	return f->softcap > 0 ? fminf(fmaxf(f->softcap, SOFT_CAP_MIN), SOFT_CAP_MAX) : 0;
}

/* What came of a call's launches. Why CUDA refuses one stays for the caller's cudaGetLastError. */
static inline enum status launched()
{
	switch (cudaPeekAtLastError()) {
	case cudaSuccess:
		return STATUS_OK;
	case cudaErrorNoKernelImageForDevice:
	case cudaErrorInvalidDeviceFunction:
		cudaGetLastError();
		return STATUS_UNSUPPORTED;
	default:
		return STATUS_INTERNAL;
	}
}

/* What came of asking for a kernel's shared memory, which CUDA refused: UNSUPPORTED if the device has not so much. */
static inline enum status shared_memory_refused()
{
	if (cudaPeekAtLastError() != cudaErrorInvalidValue)
		return launched();
	cudaGetLastError();
	return STATUS_UNSUPPORTED;
}

#endif
