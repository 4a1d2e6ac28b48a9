/* Extend over tq3 blocks. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_TQ3, KV_TQ3>(const extend_args &, head_dims, cudaStream_t);
