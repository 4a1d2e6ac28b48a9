/* Any bytes as a config.json: refused with words, or a plan whose groups have layers, and layouts that are sound. */
#include <stdlib.h>

#include "client/include/terrace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct terrace_plan_options o = TERRACE_PLAN_OPTIONS_INIT;
	struct terrace_plan p = TERRACE_PLAN_INIT;

	o.k_format = TERRACE_FORMAT_TQ4;
	o.memory_bytes = o.disk_bytes = UINT64_MAX;
	if (terrace_plan((const char *)data, size, &o, &p))
		return *terrace_error() ? 0 : (abort(), 1);
	for (uint32_t i = 0; i < p.group_count; i++) {
		const struct terrace_plan_group *g = &p.groups[i];

		if (!g->layers || g->layers > p.layers || g->slot_bytes < g->block_bytes ||
		    (g->packed &&
		     (terrace_layout_problem(&g->layout) || terrace_block_bytes(&g->layout) != g->block_bytes)))
			abort();
	}
	return 0;
}
