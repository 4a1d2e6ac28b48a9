/* Extend over blocks of fp8 keys and tq3 values. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_FP8, KV_TQ3>(const extend_args &, head_dims, cudaStream_t);
