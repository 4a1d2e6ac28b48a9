/* The kernel of copy.cu over lists of store/device.h. Inside libterrace_cuda. */
#ifndef TERRACE_KERNELS_CUDA_COPY_PAIRS_H
#define TERRACE_KERNELS_CUDA_COPY_PAIRS_H

#include "kernels/cuda/cuda_kernels.h"
#include "store/device.h"

enum { KV_COPY_COUNTS = 2 }; /* numbers in `counts`, besides one a part */

struct kv_cuda_pairs {
	const struct device_pair *pairs; /* in device memory, multiples of 16 */
	uint32_t count, parts;           /* as in struct device_copy */
	uint64_t part_bytes;
	uint32_t ctas;                   /* at most so many */
	uint32_t *counts;                /* in device memory, KV_COPY_COUNTS + parts of them, all 0, for this launch
					  * alone; NULL: no word is written */
	uint32_t *word, base;            /* with counts: base + p + 1 is written there when parts 0 .. p are complete
					  * and visible to all */
};

#ifdef __cplusplus
extern "C" {
#endif

/* One launch for the whole list, in the order of its parts. INVALID: numbers that are not allowed. UNSUPPORTED,
 * INTERNAL: CUDA does not launch it. */
enum status kv_cuda_copy_pairs(const struct kv_cuda_pairs *c, struct CUstream_st *stream);

/* Brings the kernel's code to the current context's GPU, which else the first launch waits for. UNSUPPORTED, INTERNAL:
 * CUDA has no such code for the GPU, or no memory there for it: *why, which stays. */
enum status kv_cuda_copy_load(const char **why);

#ifdef __cplusplus
}
#endif

#endif
