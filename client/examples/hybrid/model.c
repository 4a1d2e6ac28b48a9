/* See model.h. */
#include "model.h"

#include <math.h>
#include <string.h>

/* A number of -1 to 1 that depends on both arguments. */
static float noise(uint32_t a, uint32_t b)
{
	uint32_t x = a * 2654435761u ^ (b + 1) * 2246822519u;

	x = (x ^ x >> 15) * 2246822507u;
	x = (x ^ x >> 13) * 3266489909u;
	return (float)(x >> 8) / (float)(1 << 23) - 1;
}

bool model_is_full(uint32_t layer)
{
	return layer % FULL_EVERY == FULL_EVERY - 1;
}

void model_query(uint32_t layer, float q[DIM])
{
	for (uint32_t d = 0; d < DIM; d++)
		q[d] = 6 * noise(layer, d);
}

void model_compute(struct sequence *s, uint32_t from)
{
	for (uint32_t t = from; t < s->count; t++)
		for (uint32_t d = 0; d < DIM; d++) {
			const float before = t ? s->state[t - 1].x[d] : 0;

			s->state[t].x[d] = .99f * before + .1f * noise(s->tokens[t], d);
			for (uint32_t l = 0; l < LAYERS; l++) {
				s->k[l][t][d] = noise(s->tokens[t] + l, DIM + d) + before;
				s->v[l][t][d] = noise(s->tokens[t] + l, 2 * DIM + d) + before;
			}
		}
}

static void attend_layer(const struct sequence *s, uint32_t layer, uint32_t from, float out[DIM], float *lse)
{
	float q[DIM], score[TOKENS_MAX], top = -INFINITY, sum = 0;

	model_query(layer, q);
	memset(out, 0, DIM * sizeof(float));
	if (!model_is_full(layer) && s->count > WINDOW && from < s->count - WINDOW)
		from = s->count - WINDOW;
	for (uint32_t t = from; t < s->count; t++) {
		score[t] = 0;
		for (uint32_t d = 0; d < DIM; d++)
			score[t] += q[d] * s->k[layer][t][d] / sqrtf(DIM);
		top = fmaxf(top, score[t]);
	}
	for (uint32_t t = from; t < s->count; t++) {
		sum += expf(score[t] - top);
		for (uint32_t d = 0; d < DIM; d++)
			out[d] += expf(score[t] - top) * s->v[layer][t][d];
	}
	for (uint32_t d = 0; d < DIM && sum > 0; d++)
		out[d] /= sum;
	*lse = sum > 0 ? top + logf(sum) : -INFINITY;
}

void model_attend(const struct sequence *s, uint32_t from, struct result *r)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		attend_layer(s, l, from, r->out[l], &r->lse[l]);
}
