/* See block/handle.h.
 *
 * A handle is found by its low bits, in a table at least twice as long as there are handles. The daemon chooses the
 * handles, so each stands at its own place: a number whose place is taken is drawn again, one more draw on average at
 * worst. Equal handles would have the same place, so there are none. A search reads one place and compares one word,
 * whether or not the handle exists. Its time reveals at most whether the place is taken, which leaves 43 bits to guess.
 */
#include "daemon/block/handle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { NONE_FREE = 0xffffffff, PLACES_FIRST = 1024 };

/* Draws a number, and removes it from the stock. 0: the kernel gives none. */
static uint64_t draw(struct handle_source *from)
{
	uint64_t number;

	if (!from->left) {
		/* Up to 256 bytes come whole, whatever signals do. */
		if (getrandom(from->stock, HANDLE_BATCH * sizeof(from->stock[0]), 0) != HANDLE_BATCH * sizeof(from->stock[0]))
			return 0;
		from->left = HANDLE_BATCH;
	}
	number = from->stock[--from->left];
	from->stock[from->left] = 0;
	return number ? number : draw(from);
}

bool handle_source_wants(const struct handle_source *s)
{
	return s->left + HANDLE_FRESH <= HANDLE_STOCK;
}

void handle_source_add(struct handle_source *s, const uint64_t fresh[HANDLE_FRESH])
{
	if (!handle_source_wants(s))
		return;
	memcpy(&s->stock[s->left], fresh, HANDLE_FRESH * sizeof(fresh[0]));
	s->left += HANDLE_FRESH;
}

/* ---- places ---- */

static uint32_t places_for(uint32_t max)
{
	uint32_t places = 2;

	while (places < 2 * max)
		places *= 2;
	return places;
}

enum status handle_places_init(struct handle_places *p, uint32_t max)
{
	const uint32_t places = places_for(max);

	*p = (struct handle_places){ .slot = calloc(places, sizeof(p->slot[0])), .mask = places - 1 };
	return p->slot ? STATUS_OK : STATUS_EXHAUSTED;
}

void handle_places_fini(struct handle_places *p)
{
	free(p->slot);
	*p = (struct handle_places){ .slot = NULL };
}

static _Atomic uint32_t *place_of(const struct handle_places *p, uint64_t handle)
{
	return &p->slot[handle & p->mask];
}

uint64_t handle_places_give(struct handle_places *p, struct handle_source *from, uint32_t slot)
{
	uint64_t handle;

	do
		handle = draw(from);
	while (handle && atomic_load_explicit(place_of(p, handle), memory_order_relaxed));
	if (handle)
		atomic_store_explicit(place_of(p, handle), slot + 1, memory_order_relaxed);
	return handle;
}

void handle_places_drop(struct handle_places *p, uint64_t handle)
{
	atomic_store_explicit(place_of(p, handle), 0, memory_order_relaxed);
}

/* ---- items ---- */

enum status handles_init(struct handles *h, uint32_t max)
{
	struct handle_item *slots = calloc(max, sizeof(*slots));

	*h = (struct handles){ .slots = slots, .max = max };
	if (!slots || handle_places_init(&h->places, max)) {
		handles_fini(h);
		return STATUS_EXHAUSTED;
	}
	for (uint32_t i = 0; i < max; i++)
		slots[i].next_free = i + 1 < max ? i + 1 : NONE_FREE;
	if (h->places.mask >= PLACES_FIRST)
		h->places.mask = PLACES_FIRST - 1;
	return STATUS_OK;
}

void handles_fini(struct handles *h)
{
	handle_places_fini(&h->places);
	free(h->slots);
	*h = (struct handles){ .slots = NULL };
}

/* Only as many places are in use as the handles need, so that the table of a daemon with few leases stays in the CPU's
 * caches. From now on one more bit of a handle selects its place; those places were unused so far. */
static void widen(struct handles *h)
{
	const uint32_t bit = h->places.mask + 1;

	h->places.mask |= bit;
	for (uint32_t i = 0; i < bit; i++) {
		const uint32_t slot = atomic_load_explicit(&h->places.slot[i], memory_order_relaxed);

		if (!slot || !(h->slots[slot - 1].handle & bit))
			continue;
		atomic_store_explicit(&h->places.slot[i | bit], slot, memory_order_relaxed);
		atomic_store_explicit(&h->places.slot[i], 0, memory_order_relaxed);
	}
}

uint64_t handles_give(struct handles *h, struct handle_source *from, void *item)
{
	struct handle_item *k;
	uint64_t handle;

	if (h->free == NONE_FREE)
		return 0;
	if (2 * h->used > h->places.mask)
		widen(h);
	handle = handle_places_give(&h->places, from, h->free);
	if (!handle)
		return 0;
	k = &h->slots[h->free];
	k->handle = handle;
	k->item = item;
	h->free = k->next_free;
	h->used++;
	return handle;
}

static struct handle_item *find(const struct handles *h, uint64_t handle)
{
	const uint32_t slot = handle_place_slot(&h->places, handle);

	return handle && slot != HANDLE_NO_SLOT && h->slots[slot].handle == handle ? &h->slots[slot] : NULL;
}

void *handles_find(const struct handles *h, uint64_t handle)
{
	const struct handle_item *k = find(h, handle);

	return k ? k->item : NULL;
}

void handles_drop(struct handles *h, uint64_t handle)
{
	struct handle_item *k = find(h, handle);

	if (!k)
		return;
	handle_places_drop(&h->places, handle);
	k->handle = 0;
	k->item = NULL;
	k->next_free = h->free;
	h->free = k - h->slots;
	h->used--;
}
