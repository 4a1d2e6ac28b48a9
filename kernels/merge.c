/* Merging two partial attentions over disjoint tokens: each row's softmax was taken over its own tokens,
 * and the lse says how much weight they had together. */
#include "kernels/attend.h"

#include <math.h>
#include <string.h>

static void merge_row(uint32_t d, float *a, float *lse_a, const float *b, float lse_b)
{
	double max = fmax((double)*lse_a, (double)lse_b);
	double wa = exp((double)*lse_a - max), wb = exp((double)lse_b - max);
	double share_a = wa / (wa + wb), share_b = wb / (wa + wb);

	for (uint32_t i = 0; i < d; i++)
		a[i] = (float)(share_a * (double)a[i] + share_b * (double)b[i]);
	*lse_a = (float)(max + log(wa + wb));
}

void kv_merge(uint32_t rows, uint32_t d, float *out_a, float *lse_a, const float *out_b, const float *lse_b)
{
	for (uint32_t r = 0; r < rows; r++) {
		float *a = out_a + (size_t)r * d;
		const float *b = out_b + (size_t)r * d;

		if (lse_a[r] != -INFINITY && lse_b[r] != -INFINITY) {
			merge_row(d, a, &lse_a[r], b, lse_b[r]);
		} else if (lse_b[r] != -INFINITY) {
			memcpy(a, b, d * sizeof(*a));
			lse_a[r] = lse_b[r];
		} else if (lse_a[r] == -INFINITY) {
			memset(a, 0, d * sizeof(*a));
		}
	}
}
