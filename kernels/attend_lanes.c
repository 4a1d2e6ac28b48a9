/* The code around attend_lanes_body.h: it brings queries into the order of lanes, and sums out of it. */
#include "kernels/attend_lanes.h"

#include <string.h>

/* Rows of a group interleaved, field by field: out[group][m * fields + f][row of the group][lane]. */
void kv_lane_queries(const struct kv_lane_order *k, enum kv_format format, uint32_t d, uint32_t rows,
		     const float *q, float *out, struct kv_lane_row *row)
{
	uint32_t all = kv_lane_rows(rows), fields = k->vectors * k->fields, n;

	(void)format;
	for (uint32_t first = 0; first < all; first += n) {
		n = all - first < 4 ? all - first : 4;
		for (uint32_t r = 0; r < n; r++) {
			const float *x = q + (size_t)(first + r) * d;
			float total = 0;

			for (uint32_t f = 0; f < fields; f++)
				for (uint32_t l = 0; l < KV_LANES; l++)
					out[(f * n + r) * KV_LANES + l] =
						first + r < rows ? x[k->k_dim[f][l]] : 0;
			for (uint32_t i = 0; i < d && first + r < rows; i++)
				total += x[i];
			row[first + r] = (struct kv_lane_row){.sum = total};
		}
		out += (size_t)n * fields * KV_LANES;
	}
}

void kv_lane_collect(const struct kv_lane_order *v, enum kv_format f, uint32_t d, float *sums, float *total)
{
	uint32_t n = v->vectors * 8 * v->sums;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t l = 0; l < KV_LANES; l++)
			total[v->v_dim[i][l]] += sums[i * KV_LANES + l];
	if (f == KV_INT4_PTH) {
		float zero = 0;

		for (uint32_t l = 0; l < KV_LANES; l++)
			zero += sums[n * KV_LANES + l];
		for (uint32_t i = 0; i < d; i++)
			total[i] += zero;
	}
	memset(sums, 0, sizeof(*sums) * kv_lane_sum_floats(v));
}
