/* The CUDA kernels, by a C interface: attention, encoding and decoding straight on packed blocks
 * (kernels/format.h).
 *
 * Every launcher checks its arguments, enqueues on `stream` and returns: it never allocates,
 * synchronises, prints or exits, and every grid is fixed by the shape alone, so that a launch may be
 * captured in a CUDA graph and replayed while lengths, tables and slots change in device memory. All
 * pointers are device addresses (or host memory mapped into the device) unless said otherwise, aligned to
 * their elements if no more is asked for. Any thread may call; the current device must be the stream's.
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

#include "kernels/attend_features.h"
#include "kernels/codec.h"
#include "kernels/repack.h"
#include "store/status.h"

struct CUstream_st; /* *cudaStream_t */

/* NULL if the current device runs the kernels of this build; else a sentence that says why not, good until the
 * thread's next call. Cheap once a device has been found good. */
const char *kv_cuda_problem(void);

/* True if attention has kernels for blocks with these formats of K and V: equal ones, and fp8/tq4, fp8/tq3
 * and tq4/tq3. Touches no device. */
bool kv_cuda_attend_supported(enum kv_format k, enum kv_format v);

/* Attention of a few queries a sequence over packed blocks. For query i of a sequence with n =
 * kv_tokens[sequence] tokens, at position n - queries + i, and query head h (KV head
 * h / (q_heads / layout->heads)):
 *     s_j = scale * q . k_j for j <= position
 *     out = sum_j softmax(s)_j v_j,   lse = ln sum_j exp(s_j)
 * and what `features` add to that (kernels/attend_features.h). A query that sees no token gets out = 0 and
 * lse = -INFINITY (or the sink's logit). Bytes of tokens at or past n never reach a result, whatever they
 * hold. Within 2e-3 (relative, of a row's norm) of the exact result on the decoded values, before that is
 * rounded to out_dtype; the same bits every time. Weights of fp16 values are kept to 2^-36 of a row's
 * largest, which is more than that where a token of so little weight has values 2^27 times as long as the
 * row's result. */
struct kv_cuda_attend {
	const struct kv_layout *layout;     /* host; head dims of K and V as in ATTEND_DIMS (arguments.cuh) */
	const struct kv_geometry *geometry; /* host; of that layout */
	uint32_t layer;                     /* 0 .. layout->layers - 1 */
	uint32_t sequences;                 /* at most 4096 */
	uint32_t queries;                   /* 1 .. 16 a sequence, the last tokens of it */
	uint32_t q_heads;                   /* a multiple of layout->heads, at most 65536 */
	float scale;                        /* usually 1 / sqrt(K's head dim); finite */
	const void *q; /* [sequences][queries][q_heads][K's head dim], dense, 16-byte aligned, finite */
	enum kv_dtype q_dtype; /* not E4M3 */
	const uint64_t *blocks; /* [sequences][blocks_stride] addresses of blocks, each 16-byte aligned;
				 * the first ceil(n / block_tokens) of a sequence are read, but none
				 * that lies before what its queries see */
	uint32_t blocks_stride; /* the atoms that the table has room for, with up to 128 more a sequence, times
				 * layout->heads and a KV head's tiles of 4 to 16 queries, are fewer than
				 * 2^32 (else INVALID) */
	const uint32_t *kv_tokens; /* [sequences] */
	struct kv_attend_features features; /* device pointers; all zeroes: none */
	void *out;                 /* [sequences][queries][q_heads][V's head dim], dense, 16-byte aligned */
	enum kv_dtype out_dtype;
	float *lse;      /* [sequences][queries][q_heads], natural logarithm; may be NULL */
	void *workspace; /* 256-byte aligned */
	size_t workspace_bytes;
	/* 0: how the work is split follows the batch, and with it the last bits of a result. Else a multiple of 32, 512
	 * at least: sequences are cut at multiples of so many tokens, or 16 tokens before them. Parts at the begin of a
	 * window and at the end of a sequence that would be shorter than half of that are left with their neighbours.
	 * The bits of a sequence's outputs and log-sum-exps then depend on nothing that is not its own (with one shape,
	 * on one kind of device). Each part more of a sequence costs as much as the reading of some 1000 tokens; a
	 * sequence by itself keeps no more CTAs at work than its KV heads have parts. */
	uint32_t split_tokens;
	bool settled; /* A promise: all that is read was complete before the kernel that precedes this
		       * one in the stream began, but q and what is encoded of the last `queries`
		       * tokens of each sequence. Loads of blocks then overlap that kernel's end */
};

/* Bytes of workspace for this shape (sequences, queries, q_heads, layout; with split_tokens also that and
 * blocks_stride: a place for each part that sequences as long as the table may have) on the current device. Reads no
 * device pointer. Features change nothing, but unsound ones are INVALID as in a run. */
enum status kv_cuda_attend_workspace(const struct kv_cuda_attend *a, size_t *bytes);

/* Plans the split of the work from kv_tokens as they are when the stream gets here, into the workspace;
 * no other member but the shape and, with a window, the ranges is read. One plan serves every layer of a
 * step: until kv_tokens change, any number of kv_cuda_attend_run with the same shape, window and ranges may
 * follow on the stream (never two at a time on one workspace). There is no plan on the host: a graph that is
 * replayed while lengths grow on the device would keep the split of the lengths that it was captured with, and
 * the host knows those of a step only by waiting for the one before. */
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
	uint32_t tokens;        /* times layout->heads fewer than 2^32 */
	const int64_t *slots;   /* [tokens]; for encode no slot twice */
	const uint64_t *blocks; /* [block_count] addresses, each 16-byte aligned */
	uint32_t block_count;   /* at most 2^32 - 1 atoms in all of them, of one head and layer */
	void *k, *v; /* [tokens][heads][head dim], of K with a rope part [tokens][kv_key_dims]: the latent's elements,
		      * then the rope part's; encode only reads. v is NULL if V is a view of K. Fastest when
		      * 16-byte aligned, elements of 16 bits, and strides multiples of 8 */
	size_t k_stride, v_stride; /* elements between tokens, at least those of one */
	enum kv_dtype dtype;       /* F32, F16 or BF16 */
	const int64_t *rows; /* [tokens], decode alone: token i's vectors go to row rows[i] of k and v, any number of
			      * strides from their begin, as into an engine's own pages; -1: nowhere. No row twice.
			      * NULL: row i */
};

/* Encodes K and V of the tokens: the bytes are those of kv_encode, with the rotation, for every format.
 * Only bytes of these tokens are written. INVALID also if there are rows. */
enum status kv_cuda_encode(const struct kv_cuda_codec *c, struct CUstream_st *stream);

/* Decodes them, rotated back; rows of skipped tokens, and those that no token has, stay as they are. The values are
 * kv_decode's to within rounding. */
enum status kv_cuda_decode(const struct kv_cuda_codec *c, struct CUstream_st *stream);

/* Codes and scales of int4_pth between packed blocks and an engine's own pages, of one layer and all its heads
 * (kernels/repack.h): moved, never recomputed. */
struct kv_cuda_repack {
	const struct kv_layout *layout;     /* host; a side that is not left out is int4_pth, else UNSUPPORTED */
	const struct kv_geometry *geometry; /* host; of that layout */
	uint32_t layer;
	uint32_t tokens;           /* times layout->heads fewer than 2^32 */
	const int64_t *slots;      /* [tokens] as in kv_cuda_codec; fastest where tokens 16i .. 16i + 15 fill an atom */
	const int64_t *page_slots; /* [tokens] token s % page_tokens of page s / page_tokens; a token whose page slot
				    * is negative, or past the last page, is skipped */
	const uint64_t *blocks;    /* [block_count] addresses, each 16-byte aligned */
	uint32_t block_count;      /* at most 2^32 - 1 atoms in all of them, of one head and layer */
	uint32_t page_tokens;
	uint64_t page_count;
	struct kv_pages_side side[2]; /* by enum kv_side; device addresses, any alignment. Fastest when codes and
				       * scales are neighbours, heads follow each other without a gap, and tokens
				       * and pages begin at multiples of 16 bytes */
};

/* Pages to blocks. Writes these tokens' bytes of the blocks and no other; no slot twice. Any head dim in every build.
 * Blocks and pages must not overlap. */
enum status kv_cuda_repack_from_pages(const struct kv_cuda_repack *r, struct CUstream_st *stream);

/* Blocks to pages. Writes these tokens' codes and scales in the pages and no other byte; no page slot twice. */
enum status kv_cuda_repack_to_pages(const struct kv_cuda_repack *r, struct CUstream_st *stream);

enum { KV_CUDA_MERGE_PARTS = 16 };

/* Partial attentions of the same queries over disjoint tokens, merged by log-sum-exp as kv_merge
 * (kernels/attend.h) does it: a row of a part whose lse is -INFINITY counts for nothing, whatever its
 * elements; if all parts are such, the row is zeros and its lse -INFINITY. Within 1e-6 (relative, of a
 * row's norm) of the exact result before it is rounded to out_dtype. */
struct kv_cuda_merge {
	uint32_t parts;                        /* 1 .. KV_CUDA_MERGE_PARTS; the arrays are on the host */
	const void *out[KV_CUDA_MERGE_PARTS];  /* each [rows][d], dense, aligned to its elements; fastest when
						* 16-byte aligned and d is a multiple of 8 */
	const float *lse[KV_CUDA_MERGE_PARTS]; /* each [rows], natural logarithm */
	uint32_t rows, d;
	enum kv_dtype in_dtype, out_dtype; /* F32, F16 or BF16 */
	void *merged;      /* [rows][d]; may be out[0] if the dtypes are equal, else overlaps no part (INVALID) */
	float *merged_lse; /* [rows]; may be lse[0], else overlaps no part; may be NULL */
};

enum status kv_cuda_merge(const struct kv_cuda_merge *m, struct CUstream_st *stream);

/* Copies of blocks from address to address: forks of a sequence, copy on write, gather and scatter between
 * mapped pinned host memory and the device. A pair with a zero address is skipped, so that a list may be
 * shorter than it was when the launch was captured. */
struct kv_cuda_copy {
	uint32_t count;           /* pairs */
	const uint64_t *from, *to; /* [count] addresses, each 16-byte aligned. No destination overlaps another
				    * or any source */
	uint64_t block_bytes;     /* of each pair, a multiple of 16; that of the geometry if there are tokens */
	const uint32_t *tokens;   /* [count]: only the atoms that hold a block's first so many tokens are
				   * copied (bytes of later tokens of the last of them come along); NULL:
				   * whole blocks */
	const struct kv_layout *layout;     /* host; read only if there are tokens */
	const struct kv_geometry *geometry; /* host; of that layout */
	uint32_t ctas; /* at most so many CTAs, to leave the device to others while the bus is slow anyway;
			* 0: as many as fill it */
};

enum status kv_cuda_copy(const struct kv_cuda_copy *c, struct CUstream_st *stream);

/* Attention of long queries, the new tokens of each sequence, over its packed prefix and over the new
 * tokens themselves, whose K and V are not packed yet: the prefill after a prefix hit. Sequence s has
 * the new tokens query_starts[s] .. query_starts[s + 1] - 1, at positions from prefix_tokens[s] on; each
 * sees the prefix and the new tokens up to itself. Otherwise as kv_cuda_attend: softmax(scale * q . k) v
 * and its log-sum-exp; the same bits every time. Results are within 2e-3 of the exact ones on the decoded
 * prefix and the new K and V (outputs relative to a row's norm and before they are rounded to out_dtype,
 * log-sum-exps as they are). Products are of fp16 numbers, summed in float32; where a head's queries and
 * keys in a sequence are so long that this would show in scores, it is multiplied more finely, at about
 * 1.6 times the time, which the device decides. Float32 queries beside an unrotated prefix are rounded to
 * fp16 first. Magnitudes of the new K and V beside an unrotated prefix, and of a bf16 prefix, saturate at
 * 65504. */
struct kv_cuda_extend {
	const struct kv_layout *layout;     /* host; head dims as those of kv_cuda_attend */
	const struct kv_geometry *geometry; /* host; of that layout */
	uint32_t layer;                     /* 0 .. layout->layers - 1 */
	uint32_t sequences;                 /* at most 4096 */
	uint32_t total_queries;       /* new tokens of all sequences, at least query_starts[sequences] */
	uint32_t q_heads;             /* a multiple of layout->heads; times total_queries fewer than 2^28 */
	float scale;                  /* usually 1 / sqrt(K's head dim); finite */
	const uint32_t *query_starts; /* [sequences + 1], ascending, the first is 0 */
	const uint32_t *prefix_tokens; /* [sequences]; any number, 0 too */
	const void *q;         /* [total_queries][q_heads][K's head dim], dense, 16-byte aligned, finite */
	enum kv_dtype q_dtype; /* not E4M3 */
	const void *k,
		*v; /* the new tokens': [total_queries][heads][head dim], 16-byte aligned, finite */
	size_t k_stride, v_stride; /* elements between tokens, multiples of 8, at least those of one token */
	enum kv_dtype own_dtype;   /* of k and v: F16 or BF16 */
	const uint64_t *blocks; /* [sequences][blocks_stride] addresses of blocks, each 16-byte aligned;
				 * the first ceil(prefix_tokens / block_tokens) of a sequence are read,
				 * but none that lies before what its queries see; NULL if blocks_stride is 0
				 * and there are no prefixes */
	uint32_t blocks_stride;
	struct kv_attend_features features; /* device pointers; tree_bias is [total_queries][tree_stride]: entry [i][c]
					     * where new token i looks at new token c of its own sequence. It, ranges
					     * and soft caps over 256 cost speed: their calls take the code for devices
					     * without products of warpgroups */
	uint32_t tree_stride; /* at least the new tokens of every sequence, if there is a tree_bias */
	void *out; /* [total_queries][q_heads][V's head dim], dense, 16-byte aligned */
	enum kv_dtype out_dtype;
	float *lse;      /* [total_queries][q_heads], natural logarithm; may be NULL */
	void *workspace; /* 256-byte aligned */
	size_t workspace_bytes;
};

/* Bytes of workspace for this shape (sequences, total_queries, q_heads, layout) on the current device. Reads
 * no device pointer; of scale and features it looks whether they are sound. */
enum status kv_cuda_extend_workspace(const struct kv_cuda_extend *e, size_t *bytes);

/* Runs one layer. The formats of kv_cuda_attend_supported. */
enum status kv_cuda_extend_run(const struct kv_cuda_extend *e, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
