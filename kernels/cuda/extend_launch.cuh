/* The launcher of the extend kernel for a pair of formats, for any head dims built. */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_LAUNCH_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_LAUNCH_CUH

#include "kernels/cuda/extend_kernel.cuh"

#ifdef TERRACE_CUDA_90A
template <int FK, int FV, int DK, int DV, bool FINE>
enum status extend_launch_one(const extend_args &a, cudaStream_t stream)
{
	using S = extend_shape<FK, FV, DK, DV, FINE>;

	if (cudaFuncSetAttribute(extend_kernel<FK, FV, DK, DV, FINE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
				 S::BYTES) != cudaSuccess)
		return shared_memory_refused();
	launch_kernel(extend_kernel<FK, FV, DK, DV, FINE>, a.ctas, EXTEND_THREADS, S::BYTES, stream, a);
	return launched();
}
#endif

template <int FK, int FV, int DK, int DV> enum status extend_launch_dims(const extend_args &a, cudaStream_t stream)
{
#ifdef TERRACE_CUDA_90A
	enum status status = extend_launch_one<FK, FV, DK, DV, false>(a, stream);

	if constexpr (format_fine(FK))
		if (status == STATUS_OK)
			status = extend_launch_one<FK, FV, DK, DV, true>(a, stream);
	return status;
#else
	(void)a;
	(void)stream;
	return STATUS_UNSUPPORTED;
#endif
}

template <int FK, int FV>
enum status extend_launch(const extend_args &a, head_dims d, cudaStream_t stream)
{
#define EXTEND_LAUNCH(DK, DV) \
	if (d.k == DK && d.v == DV) \
		return extend_launch_dims<FK, FV, DK, DV>(a, stream);
	ATTEND_DIMS(EXTEND_LAUNCH)
#undef EXTEND_LAUNCH
	return STATUS_UNSUPPORTED;
}

#endif
