/* What the graph knows of a block at an access: each feature rounded to a few steps, and all packed into one word. The
 * model of reuse (hazard.h) reads that word.
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
	uint32_t fresh;    /* blocks of the request that the graph did not remember */
	uint32_t count;    /* blocks of the request; 0: not known */
	uint32_t ttl_s;    /* the client's wish; 0: no wish */
	uint8_t uses;      /* uses of the block, this one included; at least 1 */
	uint8_t children;  /* chains that went on from the block */
	uint8_t turn;      /* the chain's turn; 1: its first; 0: not known */
	uint8_t gap;       /* time since the chain was used before: an age bucket of survival.h + 1; 0: it never was */
	uint8_t hint;      /* enum policy_hint */
	uint8_t role;      /* enum policy_role */
	uint8_t priority;  /* enum policy_priority */
	uint8_t pace;      /* features_pace() of the chain after a hint like this one; 0: not known */
};

/* Packs the steps of all features; a feature that is not known has step 0. */
uint32_t features_pack(const struct features *f);

/* The pace of a chain: how long it usually waits for its next request. It is the mean of the logarithms of these times,
 * with more weight on late ones, in sixteenths of an octave above a quarter of a second; 0: none yet. Returns the pace
 * after one more time. */
uint8_t features_pace(uint8_t pace, uint32_t ms);

/* The one of a chain's two paces that belongs to the hint with which a wait begins; NULL: no pace belongs to it. Waits
 * after other hints are not recorded: they said no more than the last wait does. */
uint8_t *features_pace_after(uint8_t pace[2], uint32_t hint);

/* The step of one feature of a packed word; less than features_steps[which]. */
uint32_t features_step(uint32_t packed, enum feature which);

/* Whether the word is one that features_pack() can return. */
bool features_are_packed(uint32_t packed);

extern const uint8_t features_steps[FEATURES];

#endif
