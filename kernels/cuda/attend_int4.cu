/* Attention from int4_pth blocks. */
#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/fragments_int4.cuh"

template enum status attend_launch<int4_keys, int4_values>(const attend_args &, const attend_plan &,
							head_dims, cudaStream_t);
