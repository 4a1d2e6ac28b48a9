/* Gradient-boosted trees for the hazard of coming back: from a block's features and a bucket of age, the chance that
 * the block is asked for in that bucket if it was not before. All data are known at once and are read many times, which
 * a policy cannot do. offline.h measures the online model against it.
 */
#ifndef TERRACE_EVICTION_REPLAY_BOOST_H
#define TERRACE_EVICTION_REPLAY_BOOST_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/features.h"
#include "eviction/survival.h"

enum {
	BOOST_INPUTS = 1 + FEATURES, /* the bucket of age first */
	BOOST_BINS = 32,             /* each input is less than that; trees split by order */
	BOOST_TREES = 150,
	BOOST_DEPTH = 4,
	BOOST_LEAVES = 1 << BOOST_DEPTH,
};

/* All blocks that are alike: those that reached this age with these features. */
struct boost_cell {
	uint8_t x[BOOST_INPUTS];
	float weight;  /* weight of those that came back in the bucket or outgrew it */
	float hits;    /* weight of those that came back */
};

struct boost_tree {
	uint8_t input[BOOST_LEAVES], bin[BOOST_LEAVES]; /* node i goes on to 2i, or to 2i + 1 if x[input] > bin; 1 is
							 * the root */
	float leaf[BOOST_LEAVES];
};

struct boost {
	float base[SURVIVAL_BUCKETS]; /* log odds by age alone */
	struct boost_tree trees[BOOST_TREES];
};

/* Fits the trees to the cells; equal cells give equal trees. False: no memory. */
bool boost_fit(struct boost *m, const struct boost_cell *cells, uint32_t count);

/* The hazard in each bucket of age for these inputs (x[0] is not read), in [1e-6, 0.95]. */
void boost_predict(const struct boost *m, const uint8_t x[BOOST_INPUTS], float out[SURVIVAL_BUCKETS]);

#endif
