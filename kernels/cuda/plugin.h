/* What libterrace_cuda.so gives to a program that loads it at run time: a function that returns this table, the
 * kernels, and a function that returns the table of store/device.h, the GPUs' memory. So a program that was built
 * without CUDA runs where there is no GPU, and uses one where there is.
 *
 * Versions must be equal: the table is not meant to be used across releases.
 */
#ifndef TERRACE_KERNELS_CUDA_PLUGIN_H
#define TERRACE_KERNELS_CUDA_PLUGIN_H

#include "kernels/cuda/cuda_kernels.h"
#include "store/device.h"

#define KV_CUDA_PLUGIN_VERSION 6
#define KV_CUDA_PLUGIN_SYMBOL "kv_cuda_plugin"

struct kv_cuda_plugin {
	uint32_t version; /* KV_CUDA_PLUGIN_VERSION */
	uint32_t bytes;   /* of this struct */
	const char *(*problem)(void); /* kv_cuda_problem */
	/* The words for CUDA's last error on the calling thread, which is cleared. */
	const char *(*last_error)(void);
	bool (*attend_supported)(enum kv_format k, enum kv_format v);
	enum status (*attend_workspace)(const struct kv_cuda_attend *a, size_t *bytes);
	enum status (*attend_plan)(const struct kv_cuda_attend *a, struct CUstream_st *stream);
	enum status (*attend_run)(const struct kv_cuda_attend *a, struct CUstream_st *stream);
	enum status (*extend_workspace)(const struct kv_cuda_extend *e, size_t *bytes);
	enum status (*extend_run)(const struct kv_cuda_extend *e, struct CUstream_st *stream);
	enum status (*encode)(const struct kv_cuda_codec *c, struct CUstream_st *stream);
	enum status (*decode)(const struct kv_cuda_codec *c, struct CUstream_st *stream);
	enum status (*repack_from_pages)(const struct kv_cuda_repack *r, struct CUstream_st *stream);
	enum status (*repack_to_pages)(const struct kv_cuda_repack *r, struct CUstream_st *stream);
	enum status (*merge)(const struct kv_cuda_merge *m, struct CUstream_st *stream);
	enum status (*copy)(const struct kv_cuda_copy *c, struct CUstream_st *stream);
};

typedef const struct kv_cuda_plugin *kv_cuda_plugin_fn(void);

#ifdef __cplusplus
extern "C"
#endif
const struct kv_cuda_plugin *kv_cuda_plugin(void);

#ifdef __cplusplus
extern "C"
#endif
const struct device_ops *terrace_device_ops(void); /* DEVICE_OPS_SYMBOL */

#endif
