/* Each weight has its own step size, which falls as the weight is learned (AdaGrad: Duchi, Hazan and Singer, 2011). At
 * ages that no block has reached yet, the hazard of a bucket is that of the bucket before. Since buckets grow with age,
 * worth falls with age then, and the order is that of LRU.
 */
#include "eviction/hazard.h"

#include <math.h>
#include <string.h>

#include "eviction/policy.h"

#define RATE 0.01f
#define SQUARES_FIRST HAZARD_SQUARES_FIRST
#define HAZARD_FIRST 0.01f
#define END_FIRST -3.0f         /* log odds: about one of twenty sessions that are said to be over goes on, until the
				 * model has learned otherwise */
#define HAZARD_MIN 1e-6f
#define HAZARD_MAX 0.95f
#define BASE_LEAN 300.0f        /* events */
#define LOSS_ENOUGH 300.0f
#define LOSS_MAX 10000.0f
#define LOSS_GOOD 0.9f
#define EVENTS_MAX 4e6f         /* events of a bucket, after which its counts are halved */

enum { ACTIVE_MAX = FEATURES * (FEATURES + 1) / 2 };

static float log_odds(float p)
{
	return logf(p / (1 - p));
}

/* The cell of two steps, numbered among all features' steps; a is not less than b. */
static uint32_t cell_of(uint32_t a, uint32_t b)
{
	return a * (a + 1) / 2 + b;
}

void hazard_init(struct hazard *m)
{
	uint16_t first = 0;

	memset(m, 0, sizeof(*m));
	for (int f = 0; f < FEATURES; f++) {
		m->first[f] = first;
		first = (uint16_t)(first + features_steps[f]);
	}
	for (int c = 0; c < HAZARD_CELLS; c++) {
		m->cells[c].any_squares = SQUARES_FIRST;
		for (int o = 0; o < HAZARD_OCTAVES; o++)
			m->cells[c].at_squares[o] = SQUARES_FIRST;
	}
	m->cells[cell_of(m->first[FEATURE_HINT] + POLICY_HINT_END, m->first[FEATURE_HINT] + POLICY_HINT_END)].any = END_FIRST;
	for (int b = 0; b < SURVIVAL_BUCKETS; b++)
		m->base[b] = log_odds(HAZARD_FIRST);
}

/* Whether the pair has a weight. The pace has pairs only with itself, the gap and the hint: others would say little,
 * and all would have to be learned. */
static bool is_pair(enum feature a, enum feature b)
{
	return a != FEATURE_PACE || b == FEATURE_PACE || b == FEATURE_GAP || b == FEATURE_HINT;
}

/* Lists the cells of these features. A feature that was always 0 is left out: it says nothing. */
static uint32_t cells_of(const struct hazard *m, uint32_t features, uint16_t out[ACTIVE_MAX])
{
	uint32_t steps[FEATURES], n = 0, count = 0;
	enum feature which[FEATURES];

	for (int f = 0; f < FEATURES; f++)
		if (m->seen >> f & 1) {
			which[n] = (enum feature)f;
			steps[n++] = m->first[f] + features_step(features, (enum feature)f);
		}
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k <= i; k++)
			if (is_pair(which[i], which[k]))
				out[count++] = (uint16_t)cell_of(steps[i], steps[k]);
	return count;
}

static void see(struct hazard *m, uint32_t features)
{
	for (int f = 0; f < FEATURES; f++)
		if (features_step(features, (enum feature)f))
			m->seen |= 1u << f;
}

static float chance(float odds)
{
	return 1 / (1 + expf(-odds));
}

static void base_learn(struct hazard *m, uint32_t bucket, bool came, uint32_t blocks)
{
	float before = bucket ? chance(m->base[bucket - 1]) : HAZARD_FIRST;

	m->hits[bucket] += came ? (float)blocks : 0;
	m->events[bucket] += (float)blocks;
	if (m->events[bucket] > EVENTS_MAX) {
		m->hits[bucket] /= 2;
		m->events[bucket] /= 2;
	}
	m->base[bucket] = log_odds((m->hits[bucket] + BASE_LEAN * before) / (m->events[bucket] + BASE_LEAN));
	for (uint32_t b = bucket + 1; b < SURVIVAL_BUCKETS && m->events[b] == 0; b++)
		m->base[b] = m->base[bucket];
}

/* Makes one step for all blocks that learn the same. The step size falls as if each block had made a step. */
static void move(float *weight, float *squares, float gradient, float blocks)
{
	*squares += gradient * gradient / blocks;
	*weight += RATE * gradient / sqrtf(*squares);
}

static void judge(struct hazard *m, float base, float own, bool came, float weight)
{
	m->base_loss -= weight * logf(came ? base : 1 - base);
	m->loss -= weight * logf(fmaxf(came ? own : 1 - own, HAZARD_MIN));
	if (m->base_loss > LOSS_MAX) {
		m->base_loss /= 2;
		m->loss /= 2;
	}
}

bool hazard_is_good(const struct hazard *m)
{
	return m->base_loss > LOSS_ENOUGH && m->loss < LOSS_GOOD * m->base_loss;
}

void hazard_learn(struct hazard *m, uint32_t features, uint32_t bucket, bool came, float weight, uint32_t blocks)
{
	uint32_t octave = bucket / 2, count;
	uint16_t cells[ACTIVE_MAX];
	float odds, gradient;

	see(m, features);
	count = cells_of(m, features, cells);
	odds = m->base[bucket];
	for (uint32_t i = 0; i < count; i++)
		odds += m->cells[cells[i]].any + m->cells[cells[i]].at[octave];
	judge(m, chance(m->base[bucket]), chance(odds), came, weight);
	gradient = weight * ((float)came - chance(odds));
	for (uint32_t i = 0; i < count; i++) {
		struct hazard_cell *c = &m->cells[cells[i]];

		move(&c->any, &c->any_squares, gradient, (float)blocks);
		move(&c->at[octave], &c->at_squares[octave], gradient, (float)blocks);
	}
	base_learn(m, bucket, came, blocks);
}

void hazard_predict(const struct hazard *m, uint32_t features, float out[SURVIVAL_BUCKETS])
{
	float at[HAZARD_OCTAVES] = { 0 }, any = 0;
	uint16_t cells[ACTIVE_MAX];
	uint32_t count = cells_of(m, features, cells);

	for (uint32_t i = 0; i < count; i++) {
		const struct hazard_cell *c = &m->cells[cells[i]];

		any += c->any;
		for (int o = 0; o < HAZARD_OCTAVES; o++)
			at[o] += c->at[o];
	}
	for (int b = 0; b < SURVIVAL_BUCKETS; b++) {
		float p = chance(m->base[b] + any + at[b / 2]);

		out[b] = p < HAZARD_MIN ? HAZARD_MIN : p > HAZARD_MAX ? HAZARD_MAX : p;
	}
}
