/* Names of leases and reservations: a slot of a fixed table and a generation that never comes again, so
 * that a name kept too long finds nothing rather than somebody else's.
 */
#include "daemon/cache_ticket.h"

#include <stdlib.h>

enum { NONE_FREE = 0xffffffff };

enum status tickets_init(struct tickets *t, uint32_t max, uint64_t generation)
{
	struct ticket *slots = calloc(max, sizeof(*slots));

	if (!slots)
		return STATUS_EXHAUSTED;
	for (uint32_t i = 0; i < max; i++)
		slots[i].next_free = i + 1 < max ? i + 1 : NONE_FREE;
	*t = (struct tickets){ .slots = slots, .generation = generation, .max = max };
	return STATUS_OK;
}

void tickets_fini(struct tickets *t)
{
	free(t->slots);
	*t = (struct tickets){ .slots = NULL };
}

uint64_t tickets_give(struct tickets *t, void *item)
{
	struct ticket *k;

	if (t->free == NONE_FREE)
		return 0;
	k = &t->slots[t->free];
	k->id = t->generation++ << TICKET_SLOT_BITS | t->free;
	k->item = item;
	t->free = k->next_free;
	t->used++;
	return k->id;
}

static struct ticket *find(const struct tickets *t, uint64_t id)
{
	uint32_t slot = id & (TICKET_SLOTS_MAX - 1);

	return id && slot < t->max && t->slots[slot].id == id ? &t->slots[slot] : NULL;
}

void *tickets_find(const struct tickets *t, uint64_t id)
{
	struct ticket *k = find(t, id);

	return k ? k->item : NULL;
}

void tickets_drop(struct tickets *t, uint64_t id)
{
	struct ticket *k = find(t, id);

	if (!k)
		return;
	k->id = 0;
	k->item = NULL;
	k->next_free = t->free;
	t->free = k - t->slots;
	t->used--;
}
