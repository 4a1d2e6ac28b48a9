/* The cost to recompute a block's tokens, relative to the first token of a chain. The model's linear layers cost the
 * same for each token. Attention costs more the more tokens are before it.
 *
 *     cost of a token behind p others  ~  2 x parameters + 4 x layers x hidden x p  ~  1 + p / growth,
 *     growth = parameters / (2 x layers x hidden)
 *
 * (Kaplan et al., Scaling laws for neural language models, 2020, table 1; hidden: query heads x head dim.) The growth
 * is 30,600 tokens for Llama 3 8B, 37,900 for Qwen 2.5 7B, 53,800 for Llama 3 70B. In a mixture of experts only the
 * parameters that a token uses count.
 */
#ifndef TERRACE_EVICTION_RECOMPUTE_H
#define TERRACE_EVICTION_RECOMPUTE_H

#include <stdint.h>

/* The cost of a token behind `before` others, in units of the first token's. growth 0: all tokens cost the same. */
static inline double recompute_cost(double before, double growth)
{
	return growth > 0 ? 1 + before / growth : 1;
}

/* The bound of recompute_cost_bounded. */
#define RECOMPUTE_MAX 64.0f

static inline float recompute_cost_bounded(double before, double growth)
{
	const float cost = (float)recompute_cost(before, growth);

	return cost < RECOMPUTE_MAX ? cost : RECOMPUTE_MAX;
}

/* The bounded cost as a small number and back: a float's exponent and its first two mantissa bits, about quarters of an
 * octave. */
enum { RECOMPUTE_SHIFT = 23 - 2, RECOMPUTE_FIRST = 127 << 2 /* the step of cost 1 */ };

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

/* The cost of the first `tokens` tokens of a prompt, in units of the first token's. */
static inline double recompute_cost_of_first(double tokens, double growth)
{
	return tokens * recompute_cost(tokens / 2, growth);
}

#endif
