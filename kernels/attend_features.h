/* What attention may do besides softmax(q k) v. All zeroes: nothing. The CPU (kernels/attend.h) and CUDA
 * (kernels/cuda/cuda_kernels.h) take the same struct; pointers are host addresses for the one and device
 * addresses for the other.
 *
 * With query i at position p, key j at position j (token 0 of the first block is position 0), query head h,
 * and s = scale * q . k_j, the order is
 *     s <- softcap * tanh(s / softcap)                              if softcap > 0
 *     s <- s + alibi[h] * (j - p)   or   s - alibi[h] * sqrt(p - j) if alibi, the latter with alibi_sqrt
 *     s <- s + tree_bias[i][j - (n - queries)]                      if tree_bias and j >= n - queries
 *     masked                                                        unless visible(p, j)
 *     out = sum_j e^s_j v_j / (e^sinks[h] + sum_j e^s_j)            the sink's term only if sinks
 *     lse = ln of that denominator
 * where visible(p, j) is: j <= p (for causal calls) and p - j < window (if window; the smaller of the
 * layout's and this one's), or p and j lie in one range of `ranges`. A query that sees no token gets out = 0
 * and lse = -INFINITY, or the sink's logit if there are sinks. alibi beyond p (a range's later tokens) uses
 * |p - j|.
 *
 * tree_bias is for speculative trees: the last `queries` tokens of the sequence are the queries themselves, and
 * entry [i][c] is added where query i looks at query c; -INFINITY masks. Causality still holds: a tree is laid out with
 * parents before children.
 */
#ifndef TERRACE_KERNELS_ATTEND_FEATURES_H
#define TERRACE_KERNELS_ATTEND_FEATURES_H

#include <stdbool.h>
#include <stdint.h>

struct kv_attend_features {
	uint32_t window;         /* tokens a query sees, itself included; 0: all */
	float softcap;           /* 0: none; finite, not negative */
	const float *sinks;      /* [q_heads], finite or -INFINITY; NULL: none */
	const float *alibi;      /* [q_heads] slopes, finite; NULL: none */
	bool alibi_sqrt;
	const float *tree_bias;  /* [queries][queries] (CUDA: [sequences][queries][queries]), finite or -INFINITY */
	const int32_t *ranges;   /* [ranges_max][2] (CUDA: [sequences][ranges_max][2]): first and last position of
	                          * spans whose tokens all see each other (images); last < first: none */
	uint32_t ranges_max;     /* at most 64; 0 where ranges is NULL */
	const float *out_scale;  /* KV_DTYPE_E4M3 outputs hold e4m3(out / *out_scale), saturated; NULL: 1. Finite, >
				  * 0 */
};

#endif
