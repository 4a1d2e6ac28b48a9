/* Attention from tq3 blocks. */
#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/fragments_tq.cuh"

template enum status attend_launch<tq3_keys, tq3_values>(const attend_args &, const attend_plan &,
							head_dims, cudaStream_t);
