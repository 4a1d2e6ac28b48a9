/* The steps are logarithmic: it matters whether a turn is the first or the second, not whether it is the 31st or the
 * 32nd.
 */
#include "eviction/features.h"

#include <math.h>
#include <stddef.h>

#include "eviction/policy.h"

enum { PACE_FINE = 16, PACE_LEAST = 1 + PACE_FINE * 7 / 2 };

#define PACE_RATE 0.2f          /* the weight of the last time */

const uint8_t features_steps[FEATURES] = {
	[FEATURE_TURN] = 6, [FEATURE_GAP] = 9, [FEATURE_FRESH] = 8, [FEATURE_COUNT] = 8, [FEATURE_USES] = 6,
	[FEATURE_CHILDREN] = 4, [FEATURE_HINT] = POLICY_HINTS, [FEATURE_ROLE] = POLICY_ROLES, [FEATURE_WISH] = 12, [FEATURE_PACE] = 12,
};

static const uint8_t shifts[FEATURES] = { 0, 3, 7, 10, 13, 16, 18, 20, 23, 27 };

/* The number of thresholds that the value reaches. */
static uint32_t step(uint32_t value, const uint32_t *thresholds, size_t count)
{
	uint32_t reached = 0;

	while (reached < count && value >= thresholds[reached])
		reached++;
	return reached;
}

static uint32_t log2_cut(uint32_t value, uint32_t max)
{
	uint32_t log = 31 - (uint32_t)__builtin_clz(value + 1 ? value + 1 : value);

	return log < max ? log : max;
}

/* A step is three buckets, that is one octave and a half. All gaps below three seconds are one step. */
static uint32_t step_of_gap(uint32_t gap)
{
	if (gap == 0)
		return 0;
	return gap <= 6 ? 1 : gap >= 26 ? 8 : (gap - 4) / 3 + 1;
}

/* A value that the enum does not have counts as not known. */
static uint32_t known(uint8_t value, uint32_t end)
{
	return value < end ? value : 0;
}

static uint32_t step_of_wish(const struct features *f)
{
	static const uint32_t ttl[] = { 1, 60, 600 };

	return known(f->priority, POLICY_PRIORITIES) * 4 + step(f->ttl_s, ttl, 3);
}

uint8_t features_pace(uint8_t pace, uint32_t ms)
{
	const float octaves = log2f((float)(ms > 250 ? ms : 250) / 250);
	const float now = fminf(1 + PACE_FINE * octaves, UINT8_MAX);

	return (uint8_t)lrintf(pace ? (float)pace + PACE_RATE * (now - (float)pace) : now);
}

uint8_t *features_pace_after(uint8_t pace[2], uint32_t hint)
{
	return hint == POLICY_HINT_TOOL || hint == POLICY_HINT_TURN ? &pace[hint - POLICY_HINT_TOOL] : NULL;
}

/* A step is three quarters of an octave. The first step ends at five seconds; the last begins at eight minutes. */
static uint32_t step_of_pace(uint8_t pace)
{
	const uint32_t step = pace < PACE_LEAST ? 1 : 1 + (pace - PACE_LEAST) / (PACE_FINE * 3 / 4);

	return !pace ? 0 : step < 11 ? step : 11;
}

uint32_t features_pack(const struct features *f)
{
	static const uint32_t turns[] = { 2, 3, 4, 6, 10 }, uses[] = { 2, 3, 5, 9, 33 }, children[] = { 1, 2, 3 };
	uint32_t count = log2_cut(f->count, 8);
	uint32_t out = 0;

	out |= step(f->turn, turns, 5) << shifts[FEATURE_TURN];
	out |= step_of_gap(f->gap) << shifts[FEATURE_GAP];
	out |= log2_cut(f->fresh, 7) << shifts[FEATURE_FRESH];
	out |= (count ? count - 1 : 0) << shifts[FEATURE_COUNT];
	out |= step(f->uses, uses, 5) << shifts[FEATURE_USES];
	out |= step(f->children, children, 3) << shifts[FEATURE_CHILDREN];
	out |= known(f->hint, POLICY_HINTS) << shifts[FEATURE_HINT];
	out |= known(f->role, POLICY_ROLES) << shifts[FEATURE_ROLE];
	out |= step_of_wish(f) << shifts[FEATURE_WISH];
	out |= step_of_pace(f->pace) << shifts[FEATURE_PACE];
	return out;
}

uint32_t features_step(uint32_t packed, enum feature which)
{
	uint32_t next = which + 1 < FEATURES ? shifts[which + 1] : shifts[which] + 4u;

	return packed >> shifts[which] & ((1u << (next - shifts[which])) - 1);
}

bool features_are_packed(uint32_t packed)
{
	uint32_t all = 0;

	for (int f = 0; f < FEATURES; f++) {
		if (features_step(packed, (enum feature)f) >= features_steps[f])
			return false;
		all |= features_step(packed, (enum feature)f) << shifts[f];
	}
	return all == packed;
}
