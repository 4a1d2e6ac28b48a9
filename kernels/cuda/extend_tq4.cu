/* Extend over tq4 blocks. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_TQ4, KV_TQ4>(const extend_args &, head_dims, cudaStream_t);
