/* Attention from blocks of tq4 keys and tq3 values. */
#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/fragments_tq.cuh"
#include "kernels/cuda/fragments_tq4.cuh"

template enum status attend_launch<tq4_keys, tq3_values>(const attend_args &, const attend_plan &,
							head_dims, cudaStream_t);
