/* Extend over tq2 blocks. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_TQ2, KV_TQ2>(const extend_args &, head_dims, cudaStream_t);
