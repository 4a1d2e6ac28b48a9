/* Attention from blocks of fp8 keys and tq3 values. */
#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/fragments_float.cuh"
#include "kernels/cuda/fragments_tq.cuh"

template enum status attend_launch<fp8_keys, tq3_values>(const attend_args &, const attend_plan &,
							head_dims, cudaStream_t);
