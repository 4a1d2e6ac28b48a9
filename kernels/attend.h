/* Attention straight from packed blocks, on the CPU: the reference for every kernel, and fast where the machine is.
 *
 * For each query i, at position p = first_pos + i, and query head h (KV head h / (q_heads / heads)):
 *     s_j = scale * q . k_j   for j < kv_tokens; causal: j <= p; a layout with a window: j > p - window
 *     out = sum_j softmax(s)_j v_j,   lse = ln sum_j exp(s_j)
 * and what attend_features.h adds. In a layout with a rope part k_j is the latent and then the rope part, q has as
 * many elements, and v_j is the latent. Where the machine has AVX2 or AVX-512 the rows (queries x heads of the
 * group) of a KV head read the codes as they are, else tiles of four atoms are decoded, once for up to 512
 * rows, into the core's cache; q is rotated once and the output rotated back once. Tokens past kv_tokens and
 * tokens that no query of the call sees are masked by position: their bytes may be read with those beside
 * them, but never reach a result, whatever they hold. A query that sees no token gets out = 0 and
 * lse = -INFINITY. One that holds a NaN or an infinity, or has a score that is NaN, gets NaN for both. Outputs of
 * 16 and 8 bits saturate at their type's largest number; a NaN stays one.
 *
 * Sums are fp32 and blocked: the result is within about 1e-5 (relative, of a row's norm) of the exact one
 * on the decoded values, however many tokens there are. On a machine with AVX-512 VNNI the formats of 4, 3 and
 * 2 bits meet queries and weights of 15 bits: within 5e-4 for scores up to about 100. Either way the same bits
 * every time on one kind of machine (kernels/machine.h, kernels/simd.h).
 */
#ifndef TERRACE_KERNELS_ATTEND_H
#define TERRACE_KERNELS_ATTEND_H

#include "kernels/attend_features.h"
#include "kernels/codec.h"

struct kv_attend {
	const struct kv_layout *layout;
	const struct kv_geometry *geometry; /* of that layout */
	uint32_t layer;                     /* 0 .. layout->layers - 1 */
	uint32_t queries, q_heads;          /* q_heads is a multiple of layout->heads */
	const void *q;                      /* [queries][q_heads][kv_key_dims], dense, aligned elements */
	enum kv_dtype q_dtype;
	float scale;                        /* usually 1/sqrt(head_dim); finite */
	const void *const *blocks;          /* [ceil(kv_tokens / block_tokens)] packed blocks, 16-byte aligned,
	                                     * or NULL where no query sees one */
	uint32_t kv_tokens;                 /* valid tokens over all blocks */
	bool causal;
	int64_t first_pos;                  /* of query 0, relative to token 0 of blocks[0]; within +-2^62 */
	void *out;                          /* [queries][q_heads][head_dim_v], dense; overlaps nothing else */
	enum kv_dtype out_dtype;
	float *lse;                         /* [queries][q_heads], natural logarithm; may be NULL */
	struct kv_attend_features features; /* all zeroes: none */
};

/* Bytes of scratch that kv_attend_run wants for these parameters (at most about 4 MiB); reads the shape
 * alone, so that the data pointers may still be NULL. 0 if the shape is unsound: kv_attend_run will say
 * why. */
size_t kv_attend_scratch(const struct kv_attend *a);

/* Runs it on the calling thread; any number of threads may, each with its own scratch. Returns NULL, or a
 * fixed sentence that says what is wrong with the parameters (then nothing was written). No queries:
 * nothing is done. scratch: kv_attend_scratch bytes, 64-byte aligned, of any content, may be reused at
 * once afterwards. */
const char *kv_attend_run(const struct kv_attend *a, void *scratch);

/* Merges a second partial result into the first by log-sum-exp: rows of d floats with one lse each.
 * out_a/lse_a <- merge(a, b). A row whose lse is infinite, with either sign, has seen nothing: it counts for
 * nothing, whatever its floats; if both have, the result is zeros and -INFINITY. A NaN as an lse makes
 * the row and its lse NaN. */
void kv_merge(uint32_t rows, uint32_t d, float *out_a, float *lse_a, const float *out_b, const float *lse_b);

#endif
