/* See piece_sums.h. */
#include "daemon/vram/piece_sums.h"

#include "kernels/format.h"

uint32_t piece_sums_each(const struct kv_geometry *g)
{
	return g->pieces;
}

void piece_sums_prepare(struct piece_sums *p, const struct kv_geometry *g, uint64_t *at, uint32_t count,
			uint32_t *sums)
{
	const uint64_t end = g->block_bytes - (g->pieces - 1) * g->piece_bytes;

	p->at = at;
	p->sums = sums;
	p->list.count = count;
	p->short_bytes = end < g->piece_bytes ? end : 0;
	p->whole = g->pieces - (p->short_bytes != 0);
	p->whole_bytes = g->piece_bytes;
}

static void short_done(struct device_sums *list, enum status s)
{
	struct piece_sums *p = (struct piece_sums *)list;

	p->done(p, s);
}

static void whole_done(struct device_sums *list, enum status s)
{
	struct piece_sums *p = (struct piece_sums *)list;
	const char *why;

	if (s || !p->short_bytes) {
		p->done(p, s);
		return;
	}
	for (uint32_t i = 0; i < list->count; i++)
		p->at[i] += p->whole * p->whole_bytes;
	*list = (struct device_sums){ .at = p->at, .count = list->count, .parts = 1, .part_bytes = p->short_bytes,
				      .sums = p->sums + (size_t)list->count * p->whole, .done = short_done };
	s = p->ops->sums(p->device, list, &why);
	if (s)
		p->done(p, s);
}

enum status piece_sums_begin(struct piece_sums *p, const char **why)
{
	p->list = (struct device_sums){ .at = p->at, .count = p->list.count, .parts = p->whole,
					.part_bytes = p->whole_bytes, .sums = p->sums, .done = whole_done };
	return p->ops->sums(p->device, &p->list, why);
}
