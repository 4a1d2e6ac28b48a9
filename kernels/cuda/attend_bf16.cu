/* Attention from bf16 blocks. */
#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/fragments_float.cuh"

template enum status attend_launch<bf16_keys, bf16_values>(const attend_args &, const attend_plan &,
							head_dims, cudaStream_t);
