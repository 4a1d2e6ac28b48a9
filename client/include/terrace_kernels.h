/* libterrace: packed blocks. Encodes, decodes, repacks and attends, on the processor and on a GPU. Part of terrace.h,
 * which includes it and whose conventions hold here. */
#ifndef TERRACE_KERNELS_H
#define TERRACE_KERNELS_H

#include "terrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- packed blocks: encode, decode, attend
 * ------------------------------------------------------------------------ */

/* Packs `n` tokens, from token first_token of the block on, of one layer and KV head. layer and head count from the
 * layout's first. block: block_bytes bytes, 16-byte aligned (slots are). k, v: n vectors of head_dim elements (k with a
 * rope part: 576), k_stride and v_stride elements apart, aligned to them; NULL: that side is left alone. Writes only
 * those tokens' bytes, so a block can grow token by token, one writer a (layer, head). NaN is stored as 0. What passes
 * the largest number that the format is given, infinities too, is stored as that number: 65504, and in a bf16 block
 * 3.39e38. An fp16 or bf16 block keeps every finite element of its own type to the bit, and rounds others to the
 * nearest (1e6 is 999424 in bf16). v is not looked at if V is a view of K. TERRACE_INVALID. */
TERRACE_API enum terrace_status terrace_encode(const struct terrace_layout *layout, void *block, uint32_t layer, uint32_t head, uint32_t first_token,
					       uint32_t n, const void *k, size_t k_stride, const void *v, size_t v_stride, enum terrace_dtype dtype);

/* The inverse: n vectors to k and v (NULL: not wanted), which must not overlap. fp16 and bf16 elements saturate as
 * those of terrace_attend() do: a block may hold what an fp16 element does not, such as a bf16 number, or 65504 that
 * rounding has made a little larger. TERRACE_INVALID. */
TERRACE_API enum terrace_status terrace_decode(const struct terrace_layout *layout, const void *block, uint32_t layer,
					       uint32_t head, uint32_t first_token, uint32_t n, void *k, size_t k_stride,
					       void *v, size_t v_stride, enum terrace_dtype dtype);

/* One side (K or V) of an engine's pages of int4_pth codes. A page has page_tokens tokens, a token the layout's
 * heads, and a head of a token head_dim / 2 bytes of codes, low nibble = even dim, and a scale of 4 bytes, an fp32
 * with the zero point in its 4 low bits. The strides, in bytes, say where: from page to page, token to token and
 * head to head, of any sign and alignment. vLLM's int4_per_token_head page has, a head and token, [K | scale | V |
 * scale]: then all of K and V have the same strides, and V's addresses are head_dim_k / 2 + 4 bytes after K's. Its
 * views of scales by themselves are arrays with strides of their own. */
struct terrace_pages {
	void *codes;  /* of page 0, token 0, head 0; NULL: this side is left out, and the rest of it is not looked at */
	void *scales; /* of the same */
	int64_t code_page, code_token, code_head;
	int64_t scale_page, scale_token, scale_head;
};

/* A list of tokens of one layer, of all its heads. */
struct terrace_repack_options {
	size_t size;
	uint32_t layer, tokens;
	const int64_t *slots;      /* [tokens] token s % block_tokens of block s / block_tokens; negative: skipped */
	const int64_t *page_slots; /* [tokens] token s % page_tokens of page s / page_tokens; negative: skipped */
	void *const *blocks;       /* [block_count] each 16-byte aligned; those that no slot names may be NULL */
	uint32_t block_count, page_tokens;
	uint64_t page_count;
	struct terrace_pages k, v;
};
#define TERRACE_REPACK_OPTIONS_INIT TERRACE_SIZED_(struct terrace_repack_options)

/* Moves int4_pth codes and scales from an engine's pages into blocks, and the other way; nothing is computed, so
 * that there and back is the identity. Each writes the bytes of the list's tokens and no other; no destination may
 * be twice in the list, and blocks and pages must not overlap. On the calling thread, which owns blocks and pages
 * meanwhile; nothing is kept. Lists in which 16 tokens in a row fill a group of 16 of a block are quick, wherever
 * their pages are. Checked before anything is written: TERRACE_INVALID (a layer, slot or block that is not there),
 * TERRACE_UNSUPPORTED (a side that is given is not int4_pth, or the layout has a rope part).
 * vLLM's turboquant_* and fp8 pages hold other codes
 * than any format here: they go through terrace_decode() and terrace_encode(). */
TERRACE_API enum terrace_status terrace_repack_from_pages(const struct terrace_layout *layout,
							  const struct terrace_repack_options *options);
TERRACE_API enum terrace_status terrace_repack_to_pages(const struct terrace_layout *layout,
							const struct terrace_repack_options *options);

/* What attention does besides softmax(q k) v; all optional. With query i at position p = first_pos + i, key j at position j, query
 * head h and s = scale * q . k_j, in this order:
 *     s <- softcap * tanh(s / softcap)
 *     s <- s - alibi[h] * |p - j|, or with alibi_sqrt s - alibi[h] * sqrt(|p - j|)
 *     s <- s + tree_bias[i][j - (kv_tokens - queries)] for the last `queries` tokens
 *     seen: j <= p (causal calls) and p - j < window, or p and j in one of `ranges`
 *     out = sum_j e^s_j v_j / (e^sinks[h] + sum_j e^s_j), lse = ln of that denominator
 * Arrays are read during the call only. */
struct terrace_attend_features {
	size_t size;
	uint32_t window;         /* tokens a query sees, itself included, if fewer than the layout's window; 0: no bound */
	float softcap;           /* 0: none */
	const float *sinks;      /* [q_heads] logits, finite or -INFINITY; NULL: none */
	const float *alibi;      /* [q_heads] slopes; NULL: none */
	const float *tree_bias;  /* [queries][queries], finite or -INFINITY (masked), for drafts whose tokens end the sequence; NULL */
	const int32_t *ranges;   /* [range_count][2] first and last position of spans whose tokens all see each other, such as images;
				  * last < first: none */
	uint32_t range_count;    /* at most 64; 0 where ranges is NULL */
	float out_scale;         /* TERRACE_E4M3 outputs hold out / out_scale, saturated at 448; 0: 1 */
	bool alibi_sqrt;
	uint8_t reserved[7];
};
#define TERRACE_ATTEND_FEATURES_INIT TERRACE_SIZED_(struct terrace_attend_features)

struct terrace_attend_options {
	size_t size;
	uint32_t layer;            /* counted from the layout's first */
	uint32_t queries, q_heads; /* q_heads: a multiple of the layout's heads */
	enum terrace_dtype q_dtype;
	const void *q;             /* [queries][q_heads][head_dim_k + rope_dim] */
	const void *const *blocks; /* [block_count] packed blocks in order of position, 16-byte aligned; those before every
				    * query's window may be NULL */
	uint32_t block_count;
	uint32_t kv_tokens;        /* valid tokens over all blocks; the rest is never looked at */
	int64_t first_pos;         /* position of query 0, counted from token 0 of the first block */
	void *out;                 /* [queries][q_heads][head_dim_v] */
	enum terrace_dtype out_dtype;
	float scale;               /* 0: 1/sqrt(head_dim_k); with a rope part not 0, but the model's (DeepSeek V3:
				    * 1/sqrt(192) times what its rope scaling adds) */
	float *lse;                /* [queries][q_heads], natural log of the sum of exponentials; may be NULL */
	const struct terrace_attend_features *features; /* NULL: none */
	bool causal;               /* query i sees tokens up to first_pos + i */
	uint8_t reserved[7];
};
#define TERRACE_ATTEND_OPTIONS_INIT TERRACE_SIZED_(struct terrace_attend_options)

/* Softmax attention straight from packed blocks, on the calling thread, with scratch memory of its own: threads may
 * share the blocks of one lease. A query that sees no token gets out 0 and lse -INFINITY (or its sink). A query that
 * sees one, and holds a NaN or an infinity or has a score that is NaN, gets NaN in out and lse, and no other query
 * does. fp16 and bf16 outputs saturate: what passes their largest number (65504, 3.39e38), infinities too, is that
 * number; a NaN stays one (as E4M3 it is 0x7f). TERRACE_INVALID, TERRACE_EXHAUSTED (no scratch). */
TERRACE_API enum terrace_status terrace_attend(const struct terrace_layout *layout, const struct terrace_attend_options *options);

/* Merges partial attention results by their LSE: rows of d floats. (out_a, lse_a) <- merge of both. An LSE is the natural logarithm of a sum of
 * exponentials of scores; it says what its row weighs.
 *   -INFINITY or +INFINITY: the row saw no token. It weighs nothing, and its floats are not looked at. Two such rows give 0 and -INFINITY.
 *   NaN: the row and its LSE become NaN. A NaN never counts as a row that saw nothing.
 * What PyTorch 2.11 gives for a row that is masked altogether: its flash attention +inf and cuDNN's -inf, which may be merged as they are; its
 * memory-efficient kernel 0.0, which is a weight like any other: the caller must put -INFINITY in its place. An LSE to the base 2 is to be
 * multiplied by ln 2 first. terrace_cuda_merge has the same rules. */
TERRACE_API enum terrace_status terrace_merge(uint32_t rows, uint32_t d, float *out_a, float *lse_a, const float *out_b, const float *lse_b);

/* ---- packed blocks on a GPU
 * ---------------------------------------------------------------------------------------- */

/* Head dims 80, 112 and 512, and layouts with a rope part, are encoded and decoded on CUDA, but not attended yet:
 * TERRACE_UNSUPPORTED; so are head dims of K and V that differ, but for 192 with 128 and 128 with 64. */

/* The calls named terrace_cuda_... do on a GPU what the calls above do on the CPU, straight from packed blocks in
 * device memory or in host memory that is mapped into the device. The library itself needs no CUDA: the first of these
 * calls loads libterrace_cuda.so.0. All pointers in the options are device addresses unless said otherwise, and their
 * contents are read when the stream gets there. Calls enqueue on `stream` (a cudaStream_t of the current device) and
 * return. They allocate nothing and wait for nothing, so that they may be captured in a CUDA graph and replayed while
 * lengths, tables and slots change. Besides what is said below: TERRACE_UNSUPPORTED (no plugin, no device of compute
 * capability 8.0 or more, no code for the current one, no kernel for these formats, head dims or so little shared
 * memory), TERRACE_INVALID (also of pointers that are not aligned, to their elements at least), TERRACE_INTERNAL (CUDA
 * refuses the launch). */

/* Loads the plugin from a path, NULL: by the loader's search. TERRACE_OK also if it is loaded already and the current
 * device will do. */
TERRACE_API enum terrace_status terrace_cuda_load(const char *path);

/* terrace_attend_features with device addresses; tree_bias and ranges have one more dimension in front: the
 * sequences. */
struct terrace_cuda_features {
	size_t size;
	uint32_t window;
	float softcap;
	const float *sinks, *alibi;
	const float *tree_bias;  /* [sequences][queries][queries] */
	const int32_t *ranges;   /* [sequences][range_count][2] */
	const float *out_scale;  /* one float; NULL: 1 */
	uint32_t range_count;
	bool alibi_sqrt;
	uint8_t reserved[3];
};
#define TERRACE_CUDA_FEATURES_INIT TERRACE_SIZED_(struct terrace_cuda_features)

/* Attention of the last 1 to 16 tokens of each sequence: decode steps, drafts. */
struct terrace_cuda_attend_options {
	size_t size;
	uint32_t layer;             /* counted from the layout's first */
	uint32_t sequences;         /* at most 4096 */
	uint32_t queries;           /* a sequence */
	uint32_t q_heads;           /* a multiple of the layout's heads, at most 65536 */
	float scale;                /* 0: 1/sqrt(head_dim_k) */
	enum terrace_dtype q_dtype, out_dtype;
	uint32_t blocks_stride;     /* few enough: sequences * queries * q_heads * blocks_stride * block_tokens below 2^35 */
	const void *q;              /* [sequences][queries][q_heads][head_dim_k], 16-byte aligned */
	const uint64_t *blocks;     /* [sequences][blocks_stride] addresses of blocks by position, each 16-byte aligned; 0 will do before all windows */
	const uint32_t *kv_tokens;  /* [sequences], the queries' own tokens included */
	const struct terrace_cuda_features *features; /* on the host; NULL: none */
	void *out;                  /* [sequences][queries][q_heads][head_dim_v], 16-byte aligned */
	float *lse;                 /* [sequences][queries][q_heads]; may be NULL */
	void *workspace;            /* 256-byte aligned */
	size_t workspace_bytes;
	bool settled;               /* a promise: all that is read was complete before the kernel that precedes this one in the
				     * stream began, but q and what is encoded of the queries' own tokens */
	uint8_t reserved[3];
	uint32_t split_tokens;      /* 0: fastest. Else a multiple of 32, 512 at least: a sequence is cut at multiples
				     * of so many tokens, or 16 before them, and the bits of its results do not depend
				     * on what else is in the batch. Workspace, plan and run of a step want the same
				     * number. 8192 costs batches of many sequences least; few long sequences want
				     * less, such as 2048 */
};
#define TERRACE_CUDA_ATTEND_OPTIONS_INIT TERRACE_SIZED_(struct terrace_cuda_attend_options)

/* Bytes of workspace for this shape; pointers are not looked at. TERRACE_INVALID: not an allowed one. */
TERRACE_API enum terrace_status terrace_cuda_attend_workspace(const struct terrace_layout *layout,
							      const struct terrace_cuda_attend_options *options, size_t *bytes);
/* Plans the split of the work by kv_tokens into the workspace: once a step, for all its layers. */
TERRACE_API enum terrace_status terrace_cuda_attend_plan(const struct terrace_layout *layout,
							 const struct terrace_cuda_attend_options *options, void *stream);
/* Runs the planned attention of one layer. TERRACE_EXHAUSTED: the workspace is too small. */
TERRACE_API enum terrace_status terrace_cuda_attend(const struct terrace_layout *layout,
						    const struct terrace_cuda_attend_options *options, void *stream);

/* Attention of the many new tokens of each sequence over its packed prefix and over themselves, not packed yet: the
 * prefill after a prefix hit. The new tokens of sequence s are query_starts[s] .. query_starts[s + 1] - 1, their
 * positions begin at prefix_tokens[s]. */
struct terrace_cuda_extend_options {
	size_t size;
	uint32_t layer, sequences;     /* at most 4096 sequences */
	uint32_t total_queries, q_heads; /* new tokens of all sequences; a multiple of the layout's heads; their product below 2^28 */
	float scale;                   /* 0: 1/sqrt(head_dim_k) */
	enum terrace_dtype q_dtype, out_dtype, kv_dtype; /* kv_dtype: TERRACE_F16 or TERRACE_BF16 */
	const uint32_t *query_starts;  /* [sequences + 1], ascending from 0 */
	const uint32_t *prefix_tokens; /* [sequences] */
	const void *q;                 /* [total_queries][q_heads][head_dim_k], 16-byte aligned */
	const void *k, *v;             /* [total_queries][heads][head_dim], 16-byte aligned: the new tokens'. A NaN counts as 0, and here and in
					* blocks of bf16 what passes 65504 as 65504 */
	size_t k_stride, v_stride;     /* elements between tokens, multiples of 8, at least those of one token */
	const uint64_t *blocks;        /* [sequences][blocks_stride], as above, of the prefix; NULL with a stride of 0: no prefixes */
	uint32_t blocks_stride;
	uint32_t tree_stride;          /* with a tree_bias, of new token i to new token c of its sequence: at least the most of one */
	const struct terrace_cuda_features *features; /* on the host; tree_bias: [total_queries][tree_stride]; NULL: none */
	void *out;                     /* [total_queries][q_heads][head_dim_v], 16-byte aligned */
	float *lse;                    /* [total_queries][q_heads]; may be NULL */
	void *workspace;               /* 256-byte aligned */
	size_t workspace_bytes;
};
#define TERRACE_CUDA_EXTEND_OPTIONS_INIT TERRACE_SIZED_(struct terrace_cuda_extend_options)

TERRACE_API enum terrace_status terrace_cuda_extend_workspace(const struct terrace_layout *layout,
							      const struct terrace_cuda_extend_options *options, size_t *bytes);
/* A tree_bias, ranges or a soft cap over 256 cost speed. TERRACE_EXHAUSTED: the workspace is too small. */
TERRACE_API enum terrace_status terrace_cuda_extend(const struct terrace_layout *layout,
						    const struct terrace_cuda_extend_options *options, void *stream);

/* K and V of tokens of one layer, into blocks and out of them. Slot s: token s % block_tokens of block s /
 * block_tokens; -1: skipped. */
struct terrace_cuda_codec_options {
	size_t size;
	uint32_t layer, tokens;
	const int64_t *slots;      /* [tokens]; encode: no slot twice */
	const uint64_t *blocks;    /* [block_count] addresses, each 16-byte aligned */
	uint32_t block_count;
	enum terrace_dtype dtype;  /* of k and v */
	void *k, *v;               /* [tokens][heads][head_dim], k with a rope part [tokens][576]; encode only reads */
	size_t k_stride, v_stride; /* elements between tokens, at least those of one */
	const int64_t *rows;       /* [tokens], decode alone: token i's row of k and v, as in an engine's pages; -1: none. NULL: row i */
};
#define TERRACE_CUDA_CODEC_OPTIONS_INIT TERRACE_SIZED_(struct terrace_cuda_codec_options)

/* The bytes are those of terrace_encode. Writes only these tokens' bytes. TERRACE_INVALID also if there are rows. */
TERRACE_API enum terrace_status terrace_cuda_encode(const struct terrace_layout *layout,
						    const struct terrace_cuda_codec_options *options, void *stream);
TERRACE_API enum terrace_status terrace_cuda_decode(const struct terrace_layout *layout,
						    const struct terrace_cuda_codec_options *options, void *stream);

/* int4_pth between blocks and an engine's own pages, as terrace_repack_from_pages() and terrace_repack_to_pages() move
 * it, with the same bytes; pointers are device addresses. */
struct terrace_cuda_repack_options {
	size_t size;
	uint32_t layer, tokens;
	const int64_t *slots;      /* [tokens]; fastest where tokens 16i .. 16i + 15 fill a group of 16 of a block */
	const int64_t *page_slots; /* [tokens]. A token with a slot that is negative, or past the last block or page, is
				    * skipped */
	const uint64_t *blocks;    /* [block_count] addresses, each 16-byte aligned */
	uint32_t block_count, page_tokens;
	uint64_t page_count;
	struct terrace_pages k, v; /* the structs are on the host */
};
#define TERRACE_CUDA_REPACK_OPTIONS_INIT TERRACE_SIZED_(struct terrace_cuda_repack_options)

/* Writes these tokens' bytes and no other; no destination twice, and blocks and pages must not overlap.
 * TERRACE_UNSUPPORTED also if a side that is given is not int4_pth. */
TERRACE_API enum terrace_status terrace_cuda_repack_from_pages(const struct terrace_layout *layout,
							       const struct terrace_cuda_repack_options *options,
							       void *stream);
TERRACE_API enum terrace_status terrace_cuda_repack_to_pages(const struct terrace_layout *layout,
							     const struct terrace_cuda_repack_options *options,
							     void *stream);

/* Partial results of the same queries over disjoint tokens, merged by their LSE: an infinite one, of either sign, is of
 * a row that saw no token, and a NaN makes the row NaN, as for terrace_merge(), which says what to do with the LSEs of
 * other libraries. */
struct terrace_cuda_merge_options {
	size_t size;
	uint32_t parts;            /* 1 to 16 */
	uint32_t rows, d, reserved;
	enum terrace_dtype in_dtype, out_dtype;
	const void *const *out;    /* [parts], the array on the host: each [rows][d] */
	const float *const *lse;   /* [parts], the array on the host: each [rows] */
	void *merged;              /* [rows][d]; may be out[0] if the dtypes are equal, else overlaps no part */
	float *merged_lse;         /* [rows]; may be lse[0]; may be NULL */
};
#define TERRACE_CUDA_MERGE_OPTIONS_INIT TERRACE_SIZED_(struct terrace_cuda_merge_options)
TERRACE_API enum terrace_status terrace_cuda_merge(const struct terrace_cuda_merge_options *options, void *stream);

/* Copies of blocks from address to address: forks of a sequence, copy on write, gather and scatter between device
 * memory and mapped host memory. Pairs with a zero address are skipped. */
struct terrace_cuda_copy_options {
	size_t size;
	uint32_t count;
	uint32_t ctas;             /* at most so many thread blocks; 0: as many as fill the device */
	const uint64_t *from, *to; /* [count] addresses, each 16-byte aligned; no destination overlaps another or any source */
	const uint32_t *tokens;    /* [count]: only the groups of 16 that hold a block's first so many tokens; NULL: whole blocks */
};
#define TERRACE_CUDA_COPY_OPTIONS_INIT TERRACE_SIZED_(struct terrace_cuda_copy_options)
TERRACE_API enum terrace_status terrace_cuda_copy(const struct terrace_layout *layout, const struct terrace_cuda_copy_options *options, void *stream);

#ifdef __cplusplus
}
#endif
#endif
