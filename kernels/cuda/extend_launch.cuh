/* The launcher of the extend kernel for a pair of formats, a switch over head dims. */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_LAUNCH_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_LAUNCH_CUH

#include "kernels/cuda/extend_kernel.cuh"

template <int FK, int FV, int D> enum status extend_launch_dim(const extend_args &a, cudaStream_t stream)
{
#ifdef TERRACE_CUDA_90A
	using S = extend_shape<FK, FV, D>;

	if (cudaFuncSetAttribute(extend_kernel<FK, FV, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
				 S::BYTES) != cudaSuccess)
		return STATUS_UNSUPPORTED;
	launch_kernel(extend_kernel<FK, FV, D>, a.ctas, EXTEND_THREADS, S::BYTES, stream, a);
	return cudaGetLastError() == cudaSuccess ? STATUS_OK : STATUS_INTERNAL;
#else
	(void)a;
	(void)stream;
	return STATUS_UNSUPPORTED;
#endif
}

template <int FK, int FV>
enum status extend_launch(const extend_args &a, uint32_t d, cudaStream_t stream)
{
	switch (d) {
	case 128:
		return extend_launch_dim<FK, FV, 128>(a, stream);
#ifdef TERRACE_CUDA_ALL
	case 64:
		return extend_launch_dim<FK, FV, 64>(a, stream);
	case 96:
		return extend_launch_dim<FK, FV, 96>(a, stream);
	case 192:
		return extend_launch_dim<FK, FV, 192>(a, stream);
	case 256:
		return extend_launch_dim<FK, FV, 256>(a, stream);
#endif
	default:
		return STATUS_UNSUPPORTED;
	}
}

#endif
