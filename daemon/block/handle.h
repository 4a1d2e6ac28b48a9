/* Handles: what a client names its sessions, leases and reservations by. A handle is 64 random bits of the kernel, so that a client can use what
 * it was granted and nothing else: a handle leaves the daemon in its grant alone. Logs, statistics and tools show a session's public number
 * instead (struct session, `number`), which is a small counter.
 *
 * All of it with the cache's lock, but for handle_place_slot.
 */
#ifndef TERRACE_DAEMON_BLOCK_HANDLE_H
#define TERRACE_DAEMON_BLOCK_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

enum {
	HANDLES_MAX = 1 << 20,         /* of a kind, alive at a time */
	HANDLE_BATCH = 32,             /* 256 bytes: the kernel gives so many at once, or none */
	HANDLE_STOCK = 4096,
	HANDLE_FRESH = 512,
};

/* Random numbers of the kernel. Begins as zeroes. */
struct handle_source {
	uint64_t stock[HANDLE_STOCK];
	uint32_t left;
};
/* The kernel takes 20 to 40 ns for each, which a lease need not wait for: what the calls have used is filled up beside them, HANDLE_FRESH at a
 * time, as long as there is room for so many. A call that finds none draws a batch itself. */
bool handle_source_wants(const struct handle_source *s);
void handle_source_add(struct handle_source *s, const uint64_t fresh[HANDLE_FRESH]);

/* Which slot of some table a handle may mean: by its low bits. */
struct handle_places {
	_Atomic uint32_t *slot;        /* [mask + 1]: the slot + 1; 0: none */
	uint32_t mask;
};
enum status handle_places_init(struct handle_places *p, uint32_t max); /* EXHAUSTED: no memory */
void handle_places_fini(struct handle_places *p);                      /* zeroes are fine */
/* A handle for a slot, never 0. 0: the kernel has no random numbers. */
uint64_t handle_places_give(struct handle_places *p, struct handle_source *from, uint32_t slot);
void handle_places_drop(struct handle_places *p, uint64_t handle);
/* Any thread. The one slot that can have this handle, or HANDLE_NO_SLOT: the caller compares what stands there. */
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
/* 0: none is free, or the kernel has no random numbers. */
uint64_t handles_give(struct handles *h, struct handle_source *from, void *item);
void *handles_find(const struct handles *h, uint64_t handle); /* NULL: there is none */
void handles_drop(struct handles *h, uint64_t handle);        /* no effect if there is none */

#endif
