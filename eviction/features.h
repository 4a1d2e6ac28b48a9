/* What the graph knows of a block at an access, rounded into a few steps each and packed into one word:
 * what the model of reuse (hazard.h) sees.
 */
#ifndef TERRACE_EVICTION_FEATURES_H
#define TERRACE_EVICTION_FEATURES_H

#include <stdbool.h>
#include <stdint.h>

enum feature {
	FEATURE_TURN,
	FEATURE_GAP,
	FEATURE_FRESH,
	FEATURE_COUNT,
	FEATURE_USES,
	FEATURE_CHILDREN,
	FEATURE_HINT,
	FEATURE_ROLE,
	FEATURE_WISH,
	FEATURE_PACE,
	FEATURES,
};

enum { FEATURE_STEPS_MAX = 12, FEATURE_STEPS_ALL = 74 };

struct features {
	uint32_t fresh;    /* blocks of the request that were not remembered */
	uint32_t count;    /* blocks of the request; 0: not known */
	uint32_t ttl_s;    /* as the client wishes; 0: no wish */
	uint8_t uses;      /* of the block, this one too, at least 1 */
	uint8_t children;  /* chains that went on from it */
	uint8_t turn;      /* of the chain, 1: its first; 0: not known */
	uint8_t gap;       /* since the chain was used before, an age bucket of survival.h + 1; 0: never */
	uint8_t hint;      /* enum policy_hint */
	uint8_t role;      /* enum policy_role */
	uint8_t priority;  /* enum policy_priority */
	uint8_t pace;      /* features_pace() of the chain after such a hint; 0: not known */
};

/* The steps of all features; 0 for what is not known. */
uint32_t features_pack(const struct features *f);

/* How long a chain waits for its next request as a rule: the mean of the logarithms of those times, of late ones the most, in sixteenths
 * of an octave from a quarter of a second on; 0: none yet. Returns it after one more time. */
uint8_t features_pace(uint8_t pace, uint32_t ms);

/* What is told of the pace of a chain, one of two, by the hint that the wait begins with; NULL: nothing. Without hints it told no more than the last wait
 * does. */
uint8_t *features_pace_after(uint8_t pace[2], uint32_t hint);

/* Of packed features, one's step, less than features_steps[] of it. */
uint32_t features_step(uint32_t packed, enum feature which);

/* Whether it is what features_pack() may give. */
bool features_are_packed(uint32_t packed);

extern const uint8_t features_steps[FEATURES];

#endif
