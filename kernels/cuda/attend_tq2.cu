/* Attention from tq2 blocks. */
#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/fragments_tq.cuh"

template enum status attend_launch<tq2_keys, tq2_values>(const attend_args &, const attend_plan &,
							head_dims, cudaStream_t);
