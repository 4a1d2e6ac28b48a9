/* Extend over fp8 blocks. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_FP8, KV_FP8>(const extend_args &, head_dims, cudaStream_t);
