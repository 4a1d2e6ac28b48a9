/* Extend over blocks of 4 bits and less without products of warpgroups. */
#include "kernels/cuda/extend_portable.cuh"

template enum status extend_portable<KV_INT4_PTH, KV_INT4_PTH>(const extend_args &, head_dims, cudaStream_t);
template enum status extend_portable<KV_TQ4, KV_TQ4>(const extend_args &, head_dims, cudaStream_t);
template enum status extend_portable<KV_TQ3, KV_TQ3>(const extend_args &, head_dims, cudaStream_t);
template enum status extend_portable<KV_TQ2, KV_TQ2>(const extend_args &, head_dims, cudaStream_t);
