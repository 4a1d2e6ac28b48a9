/* See graph_explain.h. */
#include "eviction/graph_explain.h"

#include <math.h>

#include "eviction/survival.h"

static void tell(struct policy_explained *out, const char *name, uint32_t value)
{
	out->feature[out->features].name = name;
	out->feature[out->features++].value = value;
}

struct policy_explained graph_explained(const struct graph_seen *s)
{
	struct policy_explained out = { .score = (double)s->worth,
					.unit = s->cost > 0 ? "expected hits a second, times cost" : "expected hits a second" };

	tell(&out, "order_by", s->order_by);
	tell(&out, "class", s->pair / SURVIVAL_BUCKETS);
	tell(&out, "age_bucket", s->pair % SURVIVAL_BUCKETS);
	if (s->cost > 0)
		tell(&out, "cost_milli", (uint32_t)lrintf(1000 * s->cost));
	if (!s->record)
		return out;
	tell(&out, "turn", s->record->turn);
	tell(&out, "uses_remembered", s->record->uses);
	tell(&out, "chains_on", s->record->children);
	return out;
}
