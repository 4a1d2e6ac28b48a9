/* Inside the arena: its structs, and what its files do for each other. arena.h says what it is. */
#ifndef TERRACE_STORE_ARENA_PRIVATE_H
#define TERRACE_STORE_ARENA_PRIVATE_H

#include <pthread.h>

#include "store/arena/arena.h"
#include "store/host/memory.h"
#include "store/host/range.h"

enum { ARENA_RANGE_BUDGETS = 2 };    /* a tenant's range on a device is so many: extents of two sizes find a place */

/* The record of a span. */
struct span {
	struct arena_span public;        /* first: callers have its address */
	struct arena_extent *extent;
	struct span *prev, *next;        /* in the class's list while listed */
	uint32_t used;
	uint32_t free_first;             /* none before it is free */
	bool listed, closed;
	uint32_t *cell;                  /* of each slot that is taken, the low half of its generation */
	uint64_t taken[];                /* a bit a slot; the cells stand behind */
};

struct granule {
	struct span *span;               /* NULL: free */
	struct arena_class *claim;       /* NULL: of no class */
};

struct arena_extent {
	struct host_memory memory;
	uint64_t at;                     /* of device memory: its place in the tenant's range */
	struct arena_tenant *tenant;
	uint32_t granules;
	uint32_t ready;                  /* the first so many have their pages */
	uint32_t free;                   /* of these, in no span */
	uint32_t run_most;               /* no run of free ones is longer */
	uint32_t spans;
	uint32_t used;                   /* slots taken */
	bool growing;                    /* a thread takes pages of it, without the mutex */
	struct granule at_granule[];
};

struct arena_class {
	struct arena *arena;
	struct arena_tenant *tenant;
	struct arena_class *next;        /* of the tenant */
	uint64_t stride;
	uint32_t span_granules, span_slots; /* of its spans */
	uint32_t spans;
	uint64_t slots, used;            /* of its spans; `slots` without closed ones */
	struct span *first, *last;       /* open ones with a free slot */
	struct arena_window claim;       /* granules 0: none */
	struct arena_window coldest;     /* the best that earlier searches have met; granules 0: none */
	uint32_t search_extent;          /* where the next one begins */
};

struct arena_tenant {
	struct arena *arena;
	struct arena_tenant *next;
	struct arena_class *classes;
	uint32_t number, class_count;
	uint64_t own_bytes, most_bytes;  /* that no other tenant gets; that it may take: 0 for all */
	uint32_t spans;                  /* of all its classes */
	bool growing;                    /* a thread takes pages for it */
	uint64_t granules, free, unready; /* of its extents; `free` have their pages and no claim */
	uint64_t coming;                 /* of an extent that is being made, in no table yet */
	struct host_range range;         /* with a device; reserved with the first extent */
};

struct arena {
	pthread_mutex_t mutex;           /* guards everything below, and in tenants, classes, extents and spans */
	pthread_cond_t grown;
	struct arena_options options;
	struct host_source source;
	uint64_t granule_bytes, extent_bytes; /* what the options came to */
	uint64_t taken_bytes;            /* of all extents and of those being made */
	uint64_t generation, open_failures;
	struct host_failure failure;     /* the last */
	bool refused;                    /* the last growth was: what no extent has may not be to be had */
	uint32_t first_id, ids;
	uint32_t extent_count, extent_room, class_count, span_count;
	struct arena_extent **extents;   /* ids ascend */
	struct arena_tenant *tenants;
};

static inline uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* All with the mutex held. */

/* The tenant, made if new; NULL: no memory. */
struct arena_tenant *arena_tenant_get(struct arena *a, uint32_t number);
void arena_classes_free(struct arena *a);

/* The place of the first extent with an id of at least `id`. */
uint32_t arena_extent_place(const struct arena *a, uint32_t id);
struct arena_extent *arena_extent_find(const struct arena *a, uint32_t id);

/* Bytes that the budget has left for extents of the tenant that are not made yet; these in granules; granules that the
 * tenant has free or could get; and those that it keeps back. */
uint64_t arena_room(const struct arena_tenant *t);
uint64_t arena_unmade(const struct arena_tenant *t);
uint64_t arena_left(const struct arena_tenant *t);
uint64_t arena_reserve_of(const struct arena_tenant *t);
/* Granules that a span of the class could be cut from: the smallest run that is large enough. False: there is none.
 * `reserve`: the tenant's last ones too. */
bool arena_run_find(const struct arena_class *k, uint32_t n, bool reserve, struct arena_extent **extent,
		    uint32_t *granule);
/* The granules have no span any more, or have that one. */
void arena_granules_free(struct arena_extent *e, uint32_t granule, uint32_t n);
void arena_granules_use(struct arena_extent *e, uint32_t granule, uint32_t n, struct span *s);
/* Its first `ready` have their pages now. */
void arena_granules_ready(struct arena_extent *e, uint32_t ready);

void arena_span_list(struct span *s);
void arena_span_unlist(struct span *s);
/* It gives slots, or does not, as its flags say it should. */
void arena_span_closed(struct span *s, bool closed);

/* Where the class's claim stands, if all of it is free. */
bool arena_claim_free(const struct arena_class *k, struct arena_extent **extent, uint32_t *granule);
/* The claim is over; its granules are anyone's. */
void arena_claim_end(struct arena_class *k);

/* Frees the record, and the memory; its place on a device stays taken. */
void arena_extent_discard(struct arena_extent *e);

#endif
