/* See plugin.h. */
#include "kernels/cuda/plugin.h"
#include "kernels/cuda/device_memory.h"

#include <cuda_runtime.h>

static const char *last_error(void)
{
	return cudaGetErrorString(cudaGetLastError());
}

extern "C" __attribute__((visibility("default"))) const struct kv_cuda_plugin *kv_cuda_plugin(void)
{
	static const struct kv_cuda_plugin table = {
		KV_CUDA_PLUGIN_VERSION, sizeof(struct kv_cuda_plugin), kv_cuda_problem, last_error, kv_cuda_attend_supported,
		kv_cuda_attend_workspace, kv_cuda_attend_plan, kv_cuda_attend_run, kv_cuda_extend_workspace, kv_cuda_extend_run,
		kv_cuda_encode, kv_cuda_decode, kv_cuda_repack_from_pages, kv_cuda_repack_to_pages,
		kv_cuda_merge, kv_cuda_copy,
	};

	return &table;
}

extern "C" __attribute__((visibility("default"))) const struct device_ops *terrace_device_ops(void)
{
	return kv_cuda_device_ops();
}
