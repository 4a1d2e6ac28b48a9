/* Extend over int4_pth blocks. */
#include "kernels/cuda/extend_launch.cuh"

template enum status extend_launch<KV_INT4_PTH, KV_INT4_PTH>(const extend_args &, head_dims,
							     cudaStream_t);
