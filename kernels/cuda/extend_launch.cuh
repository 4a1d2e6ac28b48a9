/* The launcher of the extend kernel for a pair of formats, a switch over head dims. */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_LAUNCH_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_LAUNCH_CUH

#include "kernels/cuda/extend_kernel.cuh"

#ifdef TERRACE_CUDA_90A
template <int FK, int FV, int D, bool FINE> enum status extend_launch_one(const extend_args &a, cudaStream_t stream)
{
	using S = extend_shape<FK, FV, D, FINE>;

	if (cudaFuncSetAttribute(extend_kernel<FK, FV, D, FINE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
				 S::BYTES) != cudaSuccess)
		return shared_memory_refused();
	launch_kernel(extend_kernel<FK, FV, D, FINE>, a.ctas, EXTEND_THREADS, S::BYTES, stream, a);
	return launched();
}
#endif

template <int FK, int FV, int D> enum status extend_launch_dim(const extend_args &a, cudaStream_t stream)
{
#ifdef TERRACE_CUDA_90A
	enum status status = extend_launch_one<FK, FV, D, false>(a, stream);

	if constexpr (format_fine(FK))
		if (status == STATUS_OK)
			status = extend_launch_one<FK, FV, D, true>(a, stream);
	return status;
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
