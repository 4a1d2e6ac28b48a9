/* Handles: what a client names its sessions, leases and reservations by. A handle is 64 random bits from the kernel.
 * Only the client that was granted it learns it, so a client can use nothing else. Logs, statistics and tools show a
 * session's public number instead (struct session, `number`), a small counter.
 *
 * All functions but handle_place_slot need the cache's lock.
 */
#ifndef TERRACE_DAEMON_BLOCK_HANDLE_H
#define TERRACE_DAEMON_BLOCK_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

enum {
	HANDLES_MAX = 1 << 20,         /* of a kind, alive at a time */
	HANDLE_BATCH = 32,             /* 256 bytes: the kernel gives so many at once or none */
	HANDLE_STOCK = 4096,
	HANDLE_FRESH = 512,
};

/* A stock of random numbers from the kernel. Zeroed at first. */
struct handle_source {
	uint64_t stock[HANDLE_STOCK];
	uint32_t left;
};
/* Whether the stock has room for HANDLE_FRESH more. A number takes the kernel 20 to 40 ns, so the stock is filled up
 * beside the calls; a call that finds it empty draws a batch itself. */
bool handle_source_wants(const struct handle_source *s);
void handle_source_add(struct handle_source *s, const uint64_t fresh[HANDLE_FRESH]);

/* A table that says by a handle's low bits which slot of some other table it may mean. */
struct handle_places {
	_Atomic uint32_t *slot;        /* [mask + 1]: the slot + 1; 0: none */
	uint32_t mask;
};
enum status handle_places_init(struct handle_places *p, uint32_t max); /* EXHAUSTED: no memory */
void handle_places_fini(struct handle_places *p);                      /* zeroed is fine */
/* Makes a handle for a slot. 0: the kernel has no random numbers. */
uint64_t handle_places_give(struct handle_places *p, struct handle_source *from, uint32_t slot);
void handle_places_drop(struct handle_places *p, uint64_t handle);
/* handle_place_slot, on any thread: the only slot that can have this handle, or HANDLE_NO_SLOT. The caller compares the
 * handle in that slot. */
#define HANDLE_NO_SLOT UINT32_MAX
static inline uint32_t handle_place_slot(const struct handle_places *p, uint64_t handle)
{
	return atomic_load_explicit(&p->slot[handle & p->mask], memory_order_relaxed) - 1;
}

/* A table of items by handle. */
struct handle_item {
	uint64_t handle;               /* 0: free */
	void *item;
	uint32_t next_free;
};
struct handles {
	struct handle_places places;   /* with the mask of what is in use: see handles_give */
	struct handle_item *slots;
	uint32_t max, free, used;
};
/* EXHAUSTED: no memory for `max` of them. */
enum status handles_init(struct handles *h, uint32_t max);
void handles_fini(struct handles *h);
/* Makes a handle for an item. 0: none is free, or the kernel has no random numbers. */
uint64_t handles_give(struct handles *h, struct handle_source *from, void *item);
void *handles_find(const struct handles *h, uint64_t handle); /* NULL: there is none */
void handles_drop(struct handles *h, uint64_t handle);        /* no effect if there is none */

#endif
