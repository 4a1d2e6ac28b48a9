/* The CUDA kernels, by a C interface: attention, encoding and decoding straight on packed blocks
 * (kernels/format.h).
 *
 * Every launcher checks its arguments, enqueues on `stream` and returns: it never allocates,
 * synchronises, prints or exits, and every grid is fixed by the shape alone, so that a launch may be
 * captured in a CUDA graph and replayed while lengths, tables and slots change in device memory. All
 * pointers are device addresses (or host memory mapped into the device) unless said otherwise. Any thread
 * may call; the current device must be the stream's.
 *
 * Status of all of them: OK; INVALID for an argument that is not allowed; UNSUPPORTED for a format, head
 * dim or device that this build has no kernel for; EXHAUSTED if the workspace is too small; INTERNAL if
 * CUDA refuses the launch (cudaGetLastError then says why).
 */
#ifndef TERRACE_KERNELS_CUDA_KERNELS_H
#define TERRACE_KERNELS_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/codec.h"
#include "store/status.h"

struct CUstream_st; /* *cudaStream_t */

/* Attention of a few queries a sequence over packed blocks. For query i of a sequence with n =
 * kv_tokens[sequence] tokens, at position n - queries + i, and query head h (KV head
 * h / (q_heads / layout->heads)):
 *     s_j = scale * q . k_j for j <= position
 *     out = sum_j softmax(s)_j v_j,   lse = ln sum_j exp(s_j)
 * A query that sees no token gets out = 0 and lse = -INFINITY. Bytes of tokens at or past n never reach a
 * result, whatever they hold. Within 2e-3 (relative, of a row's norm) of the exact result on the decoded
 * values; the same bits every time. */
struct kv_cuda_attend {
	const struct kv_layout *layout;     /* host; K and V of one format, tq4 or int4_pth, and of one
					     * head dim; no window */
	const struct kv_geometry *geometry; /* host; of that layout */
	uint32_t layer;                     /* 0 .. layout->layers - 1 */
	uint32_t sequences;                 /* at most 4096 */
	uint32_t queries;                   /* 1 .. 16 a sequence, the last tokens of it */
	uint32_t q_heads;                   /* a multiple of layout->heads */
	float scale;                        /* usually 1 / sqrt(head_dim); finite */
	const void *q; /* [sequences][queries][q_heads][head_dim], dense, 16-byte aligned, finite */
	enum kv_dtype q_dtype;
	const uint64_t *blocks; /* [sequences][blocks_stride] addresses of blocks, each 16-byte aligned;
				 * the first ceil(n / block_tokens) of a sequence are read */
	uint32_t blocks_stride;
	const uint32_t *kv_tokens; /* [sequences] */
	void *out;                 /* [sequences][queries][q_heads][head_dim], dense, 16-byte aligned */
	enum kv_dtype out_dtype;
	float *lse;      /* [sequences][queries][q_heads], natural logarithm; may be NULL */
	void *workspace; /* 256-byte aligned */
	size_t workspace_bytes;
	bool settled; /* A promise: all that is read was complete before the kernel that precedes this
		       * one in the stream began, but q and what is encoded of the last `queries`
		       * tokens of each sequence. Loads of blocks then overlap that kernel's end */
};

/* Bytes of workspace for this shape (sequences, queries, q_heads, layout) on the current device; 0 if it
 * is unsound or unsupported. Reads no device pointer. */
size_t kv_cuda_attend_workspace(const struct kv_cuda_attend *a);

/* Plans the split of the work from kv_tokens as they are when the stream gets here, into the workspace;
 * no other member but the shape is read. One plan serves every layer of a step: until kv_tokens change,
 * any number of kv_cuda_attend_run with the same shape may follow on the stream (never two at a time on
 * one workspace). */
enum status kv_cuda_attend_plan(const struct kv_cuda_attend *a, struct CUstream_st *stream);

/* Runs the planned attention of one layer. */
enum status kv_cuda_attend_run(const struct kv_cuda_attend *a, struct CUstream_st *stream);

/* Vectors of K and V in and out of packed blocks of one layer. Slot s of a token is token s %
 * block_tokens of block s / block_tokens; a token whose slot is -1, or past the last block, is skipped.
 */
struct kv_cuda_codec {
	const struct kv_layout *layout;     /* host; any formats */
	const struct kv_geometry *geometry; /* host; of that layout */
	uint32_t layer;
	uint32_t tokens;
	const int64_t *slots;   /* [tokens]; for encode no slot twice */
	const uint64_t *blocks; /* [block_count] addresses, each 16-byte aligned */
	uint32_t block_count;
	void *k, *v; /* [tokens][heads][head dim]; encode only reads. v is NULL if V is a view of K */
	size_t k_stride, v_stride; /* elements between tokens */
	enum kv_dtype dtype;
};

/* Encodes K and V of the tokens: the bytes are those of kv_encode, with the rotation, for every format.
 * Only bytes of these tokens are written. */
enum status kv_cuda_encode(const struct kv_cuda_codec *c, struct CUstream_st *stream);

/* Decodes them, rotated back; rows of skipped tokens stay as they are. The values are kv_decode's to
 * within rounding. */
enum status kv_cuda_decode(const struct kv_cuda_codec *c, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
