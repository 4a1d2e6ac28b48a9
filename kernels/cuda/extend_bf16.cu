/* Extend over bf16 blocks. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_BF16, KV_BF16>(const extend_args &, head_dims, cudaStream_t);
