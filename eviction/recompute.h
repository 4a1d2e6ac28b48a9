/* What it costs to compute a block again that is not there, as against one at the head of a chain: the model's linear layers cost each token the
 * same, attention as much more as there are tokens before it.
 *
 *     cost of a token behind p others  ~  2 x parameters + 4 x layers x hidden x p  ~  1 + p / growth,   growth = parameters / (2 x layers x hidden)
 *
 * (Kaplan et al., Scaling laws for neural language models, 2020, table 1; hidden: query heads x head dim). 30,600 tokens for Llama 3 8B, 37,900 for Qwen 2.5 7B, 53,800
 * for Llama 3 70B. Where experts are chosen, only the parameters that a token goes through count.
 */
#ifndef TERRACE_EVICTION_RECOMPUTE_H
#define TERRACE_EVICTION_RECOMPUTE_H

#include <stdint.h>

/* Of a token with so many before it, as against the first; growth 0: all cost the same. */
static inline double recompute_cost(double before, double growth)
{
	return growth > 0 ? 1 + before / growth : 1;
}

/* No token is taken to cost more than so many times what the first one does. */
#define RECOMPUTE_MAX 64.0f

static inline float recompute_cost_bounded(double before, double growth)
{
	const float cost = (float)recompute_cost(before, growth);

	return cost < RECOMPUTE_MAX ? cost : RECOMPUTE_MAX;
}

/* That as a float's exponent and first two mantissa bits, quarters of an octave near enough, and back. */
enum { RECOMPUTE_SHIFT = 23 - 2, RECOMPUTE_FIRST = 127 << 2 /* of 1 */ };

static inline uint32_t recompute_step(double before, double growth)
{
	const union { float cost; uint32_t bits; } u = { .cost = recompute_cost_bounded(before, growth) };

	return u.bits >> RECOMPUTE_SHIFT;
}

static inline float recompute_step_cost(uint32_t step)
{
	const union { uint32_t bits; float cost; } u = { .bits = step << RECOMPUTE_SHIFT };

	return u.cost;
}

/* Of all tokens of a prompt, or of its first ones, in first tokens. */
static inline double recompute_cost_of_first(double tokens, double growth)
{
	return tokens * recompute_cost(tokens / 2, growth);
}

#endif
