/* Extend over blocks of fp8 keys and tq4 values. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_FP8, KV_TQ4>(const extend_args &, head_dims, cudaStream_t);
