/* The kernel of copy.cu over lists of store/device.h. Inside libterrace_cuda. */
#ifndef TERRACE_KERNELS_CUDA_COPY_PAIRS_H
#define TERRACE_KERNELS_CUDA_COPY_PAIRS_H

#include "kernels/cuda/cuda_kernels.h"
#include "store/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies of bytes [offset, offset + bytes) of each pair, which is in device memory; kv_cuda_copy otherwise. */
enum status kv_cuda_copy_pairs(const struct device_pair *pairs, uint32_t count, uint64_t offset, uint64_t bytes, uint32_t ctas,
			       struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
