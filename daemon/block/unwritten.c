/* The list uses the links of the block's index record that are unused until the record is reclaimed, so it costs no
 * memory. When a block leaves the list, the few walks that have begun are checked for one that stands on it. */
#include "daemon/block/unwritten.h"

#include "daemon/block/block.h"
#include "daemon/block/layout_pool.h"
#include "store/index.h"

#include <stddef.h>

static struct block *block_of_link(struct index_link *l)
{
	return block_of((struct index_record *)((char *)l - offsetof(struct index_record, link)));
}

static void append(struct unwritten *list, struct index_link *l)
{
	l->next = NULL;
	l->prev = list->last;
	if (list->last)
		list->last->next = l;
	else
		list->first = l;
	list->last = l;
}

static void take_out(struct unwritten *list, struct index_link *l)
{
	for (struct unwritten_walk *w = list->walks; w; w = w->next)
		if (w->seen == l)
			w->seen = l->prev;
	if (l->prev)
		l->prev->next = l->next;
	else
		list->first = l->next;
	if (l->next)
		l->next->prev = l->prev;
	else
		list->last = l->prev;
}

void unwritten_set(struct block *b, bool is)
{
	if (b->unwritten == is)
		return;
	b->unwritten = is;
	if (is)
		append(&b->pool->unwritten, &b->record.link);
	else
		take_out(&b->pool->unwritten, &b->record.link);
}

void unwritten_walk_begin(struct unwritten_walk *w, struct layout_pool *p)
{
	unwritten_walk_end(w);
	*w = (struct unwritten_walk){ .list = &p->unwritten, .next = p->unwritten.walks };
	p->unwritten.walks = w;
}

void unwritten_walk_end(struct unwritten_walk *w)
{
	struct unwritten_walk **at;

	if (!w->list)
		return;
	for (at = &w->list->walks; *at != w;)
		at = &(*at)->next;
	*at = w->next;
	*w = (struct unwritten_walk){ .list = NULL };
}

struct block *unwritten_walk_next(struct unwritten_walk *w, uint32_t *budget)
{
	struct index_link *l = w->seen ? w->seen->next : w->list->first;

	if (!l || !*budget)
		return NULL;
	--*budget;
	w->seen = l;
	return block_of_link(l);
}

void unwritten_walk_back(struct unwritten_walk *w)
{
	if (w->seen)
		w->seen = w->seen->prev;
}
