/* Of the features, the turn and the number of new blocks say most: a conversation that has gone on goes
 * on, and a long new prompt is mostly asked once. For blocks that several chains share it is their own
 * use that counts.
 */
#include "eviction/class.h"

#include "eviction/policy.h"

enum kind { FIRST_TURN, GOES_ON_SOON, GOES_ON_LATE, TURN_ENDED, TOOL_CALLED, SHARED_TOOL, SHARED, ENDED };

enum { GAP_SOON = 15 /* 64 s */ };

static uint32_t cut(uint32_t value, uint32_t max)
{
	return value < max ? value : max;
}

static enum kind kind_of(const struct class_features *f)
{
	if (f->children >= 2)
		return f->hint == POLICY_HINT_TOOL ? SHARED_TOOL : SHARED;
	if (f->hint == POLICY_HINT_END)
		return ENDED;
	if (f->hint == POLICY_HINT_TOOL)
		return TOOL_CALLED;
	if (f->hint == POLICY_HINT_TURN)
		return TURN_ENDED;
	if (f->turn <= 1 || f->gap == 0)
		return FIRST_TURN;
	return f->gap <= GAP_SOON ? GOES_ON_SOON : GOES_ON_LATE;
}

/* Four steps each. */
static uint32_t step_of_fresh(uint32_t fresh_log)
{
	return fresh_log <= 1 ? 0 : fresh_log <= 2 ? 1 : fresh_log <= 4 ? 2 : 3;
}

static uint32_t step_of_turn(uint32_t turn)
{
	return turn <= 2 ? 0 : turn <= 3 ? 1 : turn <= 5 ? 2 : 3;
}

static uint32_t step_of_uses(uint32_t uses)
{
	return uses <= 2 ? 0 : uses <= 4 ? 1 : uses <= 10 ? 2 : 3;
}

static uint32_t step_of_gap(uint32_t gap)
{
	return cut(gap > 8 ? (gap - 8) / 4 : 0, 3);
}

uint32_t class_of(const struct class_features *f)
{
	enum kind kind = kind_of(f);
	uint32_t grade;

	switch (kind) {
	case FIRST_TURN:
		grade = cut(f->fresh_log, 7) * 2 + (f->uses > 1);
		break;
	case TURN_ENDED:
	case TOOL_CALLED:
		grade = step_of_gap(f->gap) * 4 + step_of_fresh(f->fresh_log);
		break;
	case SHARED_TOOL:
	case SHARED:
		grade = step_of_uses(f->uses) * 4 + step_of_gap(f->gap);
		break;
	default:
		grade = step_of_turn(f->turn) * 4 + step_of_fresh(f->fresh_log);
	}
	return (uint32_t)kind * CLASS_GRADES + grade;
}
