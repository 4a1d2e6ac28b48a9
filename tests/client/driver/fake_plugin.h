/* What the plugin of tests/client/driver/plugin.c notes. */
#ifndef TERRACE_TESTS_CLIENT_GPU_FAKE_PLUGIN_H
#define TERRACE_TESTS_CLIENT_GPU_FAKE_PLUGIN_H

#include "kernels/cuda/plugin.h"

struct client_cuda_noted {
	/* To be answered: */
	const char *problem;
	size_t workspace;
	enum status answer;
	/* Noted: */
	unsigned calls;
	unsigned float_mode; /* MXCSR on x86, but for its flags; else 0 */
	struct kv_layout layout;
	struct kv_geometry geometry;
	struct CUstream_st *stream;
	struct kv_cuda_attend attend;
	struct kv_cuda_extend extend;
	struct kv_cuda_codec codec;
	struct kv_cuda_repack repack;
	bool to_pages;
	struct kv_cuda_merge merge;
	struct kv_cuda_copy copy;
};
struct client_cuda_noted *client_cuda_noted(void);

#endif
