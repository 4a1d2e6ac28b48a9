/* The order in which disks give up what earlier runs left: by the time at which a block was put, as its record or
 * header says, or at which anything after it in its chain was put, whichever is later. A request that stored a block
 * had just used all blocks before it, so this is the order of the last uses that left a trace on disk. (Other uses
 * leave none: a record for each would cost more than it saves.) If a policy's saved state remembers the last use, that
 * counts instead.
 *
 * The catalog gives blocks in the order of their keys, which says nothing about their use. So blocks are noted when
 * they are taken up. When all are known, and before any is displaced, they are told to the disks' policies anew,
 * coldest first.
 */
#include "daemon/disk/restore_order.h"

#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "store/crash_point.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { ORDER_BLOCKS = 1024, NOTES_FIRST = 1024 }; /* in one hold of the lock */

void restored_note(struct restored_notes *n, const struct restored *one)
{
	if (n->count == n->room && !n->lost) {
		const size_t room = n->room ? 2 * n->room : NOTES_FIRST;
		struct restored *more = realloc(n->at, room * sizeof(*more));

		n->lost = !more;
		if (more) {
			n->at = more;
			n->room = room;
		}
	}
	if (!n->lost)
		n->at[n->count++] = *one;
}

void restored_notes_free(struct restored_notes *n)
{
	free(n->at);
	*n = (struct restored_notes){ .at = NULL };
}

static int by_number(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int by_id(const void *a, const void *b)
{
	return by_number(((const struct restored *)a)->id, ((const struct restored *)b)->id);
}

static int deepest_first(const void *a, const void *b)
{
	const struct restored *const *x = a, *const *y = b;

	return by_number((*y)->position, (*x)->position);
}

/* Orders blocks, the coldest first. Of blocks of one moment the deepest comes first, so that prefixes stay. */
static int coldest_first(const void *a, const void *b)
{
	const struct restored *x = a, *y = b;

	return x->stored_ms != y->stored_ms ? by_number(x->stored_ms, y->stored_ms) : by_number(y->position, x->position);
}

/* Makes the blocks before a block in its chain as young as that block. False: no memory. */
static bool parents_refresh(struct restored_notes *n)
{
	struct restored **deep = malloc(n->count * sizeof(struct restored *));

	if (!deep)
		return false;
	qsort(n->at, n->count, sizeof(n->at[0]), by_id);
	for (size_t i = 0; i < n->count; i++)
		deep[i] = &n->at[i];
	qsort(deep, n->count, sizeof(deep[0]), deepest_first);
	for (size_t i = 0; i < n->count; i++) {
		const struct restored parent = { .id = deep[i]->parent };
		struct restored *p = parent.id ? bsearch(&parent, n->at, n->count, sizeof(n->at[0]), by_id) : NULL;

		if (p && p->stored_ms < deep[i]->stored_ms)
			p->stored_ms = deep[i]->stored_ms;
	}
	free(deep);
	return true;
}

/* Notes when the block was last used. With the lock. */
static void use_remember(const struct cache *c, struct restored *one, uint64_t unix_ms)
{
	const struct slab_map_slot *s = &one->slab_map->at[one->slot];
	uint64_t ago_us, age_ms;

	if (!s->block || s->block->node.id != one->id ||
	    !c->tier->policy->last_use(one->slab_map->class->policy, c->now_us, one->id, &ago_us))
		return;
	age_ms = ago_us / 1000;
	one->stored_ms = age_ms < unix_ms ? unix_ms - age_ms : 0;
}

static void uses_remember(struct cache *c, struct restored_notes *n)
{
	struct timespec t;
	uint64_t unix_ms;

	clock_gettime(CLOCK_REALTIME, &t);
	unix_ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
	for (size_t i = 0; c->tier->policy->last_use && i < n->count && !atomic_load(&c->tier->restorer_stop);) {
		cache_lock(c);
		for (size_t end = i + ORDER_BLOCKS; i < end && i < n->count; i++)
			use_remember(c, &n->at[i], unix_ms);
		cache_unlock(c);
	}
}

/* Tells the policies a block that was taken up. Its slab map lasts until all are. used: tells only blocks that were
 * used since, which come last; else the others. With the lock. */
static void tell(struct cache *c, const struct restored *one, bool used)
{
	const struct slab_map_slot *s = &one->slab_map->at[one->slot];

	if (s->block && s->block->node.id == one->id && (s->node.uses > 0) == used)
		slab_map_renew(c, s->block, one->position);
}

void restored_order(struct cache *c, struct restored_notes *n)
{
	if (!n->count || n->lost)
		return;
	uses_remember(c, n);
	if (!parents_refresh(n))
		return; /* for lack of memory they stay in the order of their keys */
	qsort(n->at, n->count, sizeof(n->at[0]), coldest_first);
	for (int used = 0; used < 2; used++)
		for (size_t i = 0; i < n->count && !atomic_load(&c->tier->restorer_stop);) {
			cache_lock(c);
			CRASH_POINT("restore_order");
			for (size_t end = i + ORDER_BLOCKS; i < end && i < n->count; i++)
				tell(c, &n->at[i], used);
			cache_unlock(c);
		}
}
