/* Attention from tq4 blocks. */
#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/fragments_tq4.cuh"

template enum status attend_launch<tq4_keys, tq4_values>(const attend_args &, const attend_plan &,
							head_dims, cudaStream_t);
