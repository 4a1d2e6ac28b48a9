/* Extend over blocks of tq4 keys and tq3 values. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_TQ4, KV_TQ3>(const extend_args &, head_dims, cudaStream_t);
