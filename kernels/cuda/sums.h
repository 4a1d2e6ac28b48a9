/* The kernel of sums.cu over lists of store/device.h. Inside libterrace_cuda. */
#ifndef TERRACE_KERNELS_CUDA_SUMS_H
#define TERRACE_KERNELS_CUDA_SUMS_H

#include "kernels/cuda/cuda_kernels.h"
#include "store/device.h"

struct kv_cuda_sums {
	const uint64_t *at;    /* [count] in device memory: addresses, multiples of 16 */
	uint32_t count, parts; /* as in struct device_sums */
	uint64_t part_bytes;
	uint32_t *sums;        /* [count * parts] in device memory, all 0 before the launch */
};

#ifdef __cplusplus
extern "C" {
#endif

/* One launch for the whole list. INVALID: numbers that are not allowed. UNSUPPORTED, INTERNAL: CUDA does not launch
 * it. */
enum status kv_cuda_sums(const struct kv_cuda_sums *s, struct CUstream_st *stream);

/* Brings the kernel's code to the current context's GPU, which else the first launch waits for. UNSUPPORTED, INTERNAL:
 * CUDA has no such code for the GPU, or no memory there for it: *why, which stays. */
enum status kv_cuda_sums_load(const char **why);

#ifdef __cplusplus
}
#endif

#endif
