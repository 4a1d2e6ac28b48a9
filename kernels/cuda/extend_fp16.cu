/* Extend over fp16 blocks. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_F16, KV_F16>(const extend_args &, head_dims, cudaStream_t);
