/* Attention from blocks of fp8 keys and tq4 values. */
#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/fragments_float.cuh"
#include "kernels/cuda/fragments_tq4.cuh"

template enum status attend_launch<fp8_keys, tq4_values>(const attend_args &, const attend_plan &,
							head_dims, cudaStream_t);
