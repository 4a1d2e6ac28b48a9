/* Newton steps on the logarithmic loss (Friedman, 2001; leaves and gains as in Chen and Guestrin, 2016), each tree on a
 * random half of the cells. A cell stands for all blocks that are alike, so a pass costs as much as there are different
 * cells.
 */
#include "eviction/replay/boost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"

#define RATE 0.1f
#define LEAN 20.0              /* on a leaf's second derivatives, and on the base */
#define LEAF_LEAST 20.0        /* of them on either side of a split */
#define HAZARD_FIRST 0.002
#define HAZARD_MIN 1e-6f
#define HAZARD_MAX 0.95f

struct slope {
	float first, second;   /* derivatives of the loss, the first negated */
};

struct sum {
	double first, second;
};

struct fit {
	const struct boost_cell *cells;
	uint32_t count;
	float *odds;           /* of each cell, so far */
	struct slope *slopes;
	uint8_t *node;         /* that it is in; 0: not in this tree */
	struct sum (*sums)[BOOST_INPUTS][BOOST_BINS]; /* of a level's nodes */
};

static float chance(float odds)
{
	return 1 / (1 + expf(-odds));
}

static void base_fit(struct boost *m, const struct fit *f)
{
	double weight[SURVIVAL_BUCKETS] = { 0 }, hits[SURVIVAL_BUCKETS] = { 0 }, before = HAZARD_FIRST;

	for (uint32_t i = 0; i < f->count; i++) {
		weight[f->cells[i].x[0]] += (double)f->cells[i].weight;
		hits[f->cells[i].x[0]] += (double)f->cells[i].hits;
	}
	for (int b = 0; b < SURVIVAL_BUCKETS; b++) {
		before = (hits[b] + LEAN * before) / (weight[b] + LEAN);
		m->base[b] = (float)log(before / (1 - before));
	}
}

static void begin_tree(struct fit *f, uint64_t number)
{
	for (uint32_t i = 0; i < f->count; i++) {
		const struct boost_cell *c = &f->cells[i];
		float p = chance(f->odds[i]);

		f->slopes[i] = (struct slope){ c->hits - c->weight * p, c->weight * p * (1 - p) };
		f->node[i] = (uint8_t)(hash_mix((number << 32) + i) >> 63);
	}
}

static void sum_level(struct fit *f, uint32_t first)
{
	memset(f->sums, 0, first * sizeof(f->sums[0]));
	for (uint32_t i = 0; i < f->count; i++) {
		struct sum (*at)[BOOST_BINS];

		if (!f->node[i])
			continue;
		at = f->sums[f->node[i] - first];
		for (int k = 0; k < BOOST_INPUTS; k++) {
			at[k][f->cells[i].x[k]].first += (double)f->slopes[i].first;
			at[k][f->cells[i].x[k]].second += (double)f->slopes[i].second;
		}
	}
}

static double score(double first, double second)
{
	return first * first / (second + LEAN);
}

/* The split of a node that gains most; one that gains nothing sends all to the left. */
static void split(struct boost_tree *t, uint32_t node, struct sum (*sums)[BOOST_BINS])
{
	struct sum all = { 0 };
	double best;

	for (int b = 0; b < BOOST_BINS; b++) {
		all.first += sums[0][b].first;
		all.second += sums[0][b].second;
	}
	best = score(all.first, all.second) + 1e-9;
	t->input[node] = 0;
	t->bin[node] = BOOST_BINS;
	for (int k = 0; k < BOOST_INPUTS; k++) {
		struct sum left = { 0 };

		for (int b = 0; b + 1 < BOOST_BINS; b++) {
			double gain;

			left.first += sums[k][b].first;
			left.second += sums[k][b].second;
			if (sums[k][b].second == 0 || left.second < LEAF_LEAST || all.second - left.second < LEAF_LEAST)
				continue;
			gain = score(left.first, left.second) + score(all.first - left.first, all.second - left.second);
			if (gain <= best)
				continue;
			best = gain;
			t->input[node] = (uint8_t)k;
			t->bin[node] = (uint8_t)b;
		}
	}
}

static uint32_t next_of(const struct boost_tree *t, uint32_t node, const uint8_t x[BOOST_INPUTS])
{
	return 2 * node + (x[t->input[node]] > t->bin[node]);
}

static uint32_t leaf_of(const struct boost_tree *t, const uint8_t x[BOOST_INPUTS])
{
	uint32_t node = 1;

	while (node < BOOST_LEAVES)
		node = next_of(t, node, x);
	return node - BOOST_LEAVES;
}

static void leaves_fit(struct fit *f, struct boost_tree *t)
{
	struct sum sums[BOOST_LEAVES] = { 0 };

	for (uint32_t i = 0; i < f->count; i++) {
		if (!f->node[i])
			continue;
		sums[f->node[i] - BOOST_LEAVES].first += (double)f->slopes[i].first;
		sums[f->node[i] - BOOST_LEAVES].second += (double)f->slopes[i].second;
	}
	for (int l = 0; l < BOOST_LEAVES; l++)
		t->leaf[l] = RATE * (float)(sums[l].first / (sums[l].second + LEAN));
	for (uint32_t i = 0; i < f->count; i++)
		f->odds[i] += t->leaf[leaf_of(t, f->cells[i].x)];
}

static void tree_fit(struct fit *f, struct boost_tree *t, uint64_t number)
{
	begin_tree(f, number);
	for (uint32_t first = 1; first < BOOST_LEAVES; first *= 2) {
		sum_level(f, first);
		for (uint32_t node = first; node < 2 * first; node++)
			split(t, node, f->sums[node - first]);
		for (uint32_t i = 0; i < f->count; i++)
			if (f->node[i])
				f->node[i] = (uint8_t)next_of(t, f->node[i], f->cells[i].x);
	}
	leaves_fit(f, t);
}

bool boost_fit(struct boost *m, const struct boost_cell *cells, uint32_t count)
{
	struct fit f = { .cells = cells, .count = count };
	bool ok;

	f.odds = calloc(count + 1u, sizeof(f.odds[0]));
	f.slopes = calloc(count + 1u, sizeof(f.slopes[0]));
	f.node = calloc(count + 1u, sizeof(f.node[0]));
	f.sums = calloc(BOOST_LEAVES / 2, sizeof(f.sums[0]));
	ok = f.odds && f.slopes && f.node && f.sums;
	if (ok) {
		base_fit(m, &f);
		for (uint32_t i = 0; i < count; i++)
			f.odds[i] = m->base[cells[i].x[0]];
		for (uint32_t t = 0; t < BOOST_TREES; t++)
			tree_fit(&f, &m->trees[t], t);
	}
	free(f.odds);
	free(f.slopes);
	free(f.node);
	free(f.sums);
	return ok;
}

void boost_predict(const struct boost *m, const uint8_t x[BOOST_INPUTS], float out[SURVIVAL_BUCKETS])
{
	uint8_t at[BOOST_INPUTS];

	memcpy(at, x, sizeof(at));
	for (int b = 0; b < SURVIVAL_BUCKETS; b++) {
		float odds = m->base[b], p;

		at[0] = (uint8_t)b;
		for (int t = 0; t < BOOST_TREES; t++)
			odds += m->trees[t].leaf[leaf_of(&m->trees[t], at)];
		p = chance(odds);
		out[b] = p < HAZARD_MIN ? HAZARD_MIN : p > HAZARD_MAX ? HAZARD_MAX : p;
	}
}
