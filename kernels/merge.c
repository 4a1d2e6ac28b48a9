/* Merges two partial attentions over disjoint tokens. Each row's softmax was taken over the tokens of its part only,
 * and the lse says how much weight these had together.
 */
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

/* A part that has seen nothing: both infinities are in use as its mark. A NaN is not one. */
static bool is_empty(float lse)
{
	return isinf(lse);
}

/* a <- b, the one part that counts. */
static void take_row(uint32_t d, float *a, float *lse_a, const float *b, float lse_b)
{
	for (uint32_t i = 0; i < d; i++)
		a[i] = isnan(lse_b) ? lse_b : b[i];
	*lse_a = lse_b;
}

void kv_merge(uint32_t rows, uint32_t d, float *out_a, float *lse_a, const float *out_b, const float *lse_b)
{
	for (uint32_t r = 0; r < rows; r++) {
		float *a = out_a + (size_t)r * d;
		const float *b = out_b + (size_t)r * d;

		if (!is_empty(lse_a[r]) && !is_empty(lse_b[r])) {
			merge_row(d, a, &lse_a[r], b, lse_b[r]);
		} else if (!is_empty(lse_b[r])) {
			take_row(d, a, &lse_a[r], b, lse_b[r]);
		} else if (!is_empty(lse_a[r])) {
			take_row(d, a, &lse_a[r], a, lse_a[r]);
		} else {
			memset(a, 0, d * sizeof(*a));
			lse_a[r] = -INFINITY;
		}
	}
}
