/* Extend over blocks of 16 and 8 bits, and of mixed formats, without products of warpgroups. */
#include "kernels/cuda/extend_portable.cuh"

template enum status extend_portable<KV_F16, KV_F16>(const extend_args &, head_dims, cudaStream_t);
template enum status extend_portable<KV_BF16, KV_BF16>(const extend_args &, head_dims, cudaStream_t);
template enum status extend_portable<KV_FP8, KV_FP8>(const extend_args &, head_dims, cudaStream_t);
template enum status extend_portable<KV_FP8, KV_TQ4>(const extend_args &, head_dims, cudaStream_t);
template enum status extend_portable<KV_FP8, KV_TQ3>(const extend_args &, head_dims, cudaStream_t);
template enum status extend_portable<KV_TQ4, KV_TQ3>(const extend_args &, head_dims, cudaStream_t);
