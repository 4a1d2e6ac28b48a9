/* Inside the arena: its structs, and what its files do for each other. arena.h says what it is. */
#ifndef TERRACE_STORE_ARENA_PRIVATE_H
#define TERRACE_STORE_ARENA_PRIVATE_H

#include <pthread.h>

#include "store/arena/arena.h"
#include "store/host/memory.h"
#include "store/host/range.h"

enum { ARENA_RANGE_BUDGETS = 2 };    /* a tenant's range on a device is so many times what it may take: so extents of
				      * two sizes find a place */

/* The record of a span. */
struct span {
	struct arena_span public;        /* first: callers have its address */
	struct arena_extent *extent;
	struct span *prev, *next;        /* in the class's list, while `listed` */
	uint32_t used;
	uint32_t free_first;             /* no slot before it is free */
	bool listed, closed;
	uint32_t *cell;                  /* for each taken slot the low half of its generation */
	uint64_t taken[];                /* a bit a slot; `cell` points behind them */
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
	uint32_t ready;                  /* so many granules, from the first on, have their pages */
	uint32_t free;                   /* of these, in no span and no claim; 0 while retired */
	uint32_t run_most;               /* an upper bound of the longest run of free granules */
	uint32_t spans;
	uint32_t used;                   /* slots taken */
	bool growing;                    /* a thread is taking pages of it, without the mutex */
	bool retired;                    /* no granule of it is free: arena_retire */
	struct granule at_granule[];
};

struct arena_class {
	struct arena *arena;
	struct arena_tenant *tenant;
	struct arena_class *next;        /* of the tenant */
	uint64_t stride;
	uint32_t span_granules, span_slots; /* of its spans */
	uint32_t spans;
	uint64_t slots, used;            /* of its spans; `slots` without those of closed spans */
	struct span *first, *last;       /* open ones with a free slot */
	struct arena_window claim;       /* granules 0: none */
	struct arena_window coldest;     /* the best window of earlier searches; granules 0: none */
	uint32_t search_extent;          /* the extent where the next search begins */
};

struct arena_tenant {
	struct arena *arena;
	struct arena_tenant *next;
	struct arena_class *classes;
	uint32_t number, class_count;
	uint64_t own_bytes, most_bytes;  /* bytes that are kept for it; the most that it may take, 0: all */
	uint32_t spans;                  /* of all its classes */
	bool growing;                    /* a thread is taking pages for it */
	uint64_t granules, free, unready; /* granules of its extents, and of those that are not retired: `free` with
					   * pages, in no span and no claim; `unready` without pages */
	uint64_t coming;                 /* granules of an extent that is being made and is in no table yet */
	struct host_range range;         /* with a device; reserved with the first extent */
};

struct arena {
	pthread_mutex_t mutex;           /* guards everything below, and in tenants, classes, extents and spans */
	pthread_cond_t grown;
	struct arena_options options;
	struct host_source source;
	uint64_t granule_bytes, extent_bytes; /* the sizes that follow from the options */
	uint64_t taken_bytes;            /* of all extents and of those being made */
	uint64_t generation, open_failures;
	struct host_failure failure;     /* the last */
	bool refused;                    /* the last growth was refused: the rest of the budget may not be available */
	uint32_t first_id, ids;
	uint32_t extent_count, extent_room, class_count, span_count;
	uint32_t extents_made;           /* so many ids were given */
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

/* All functions below are called with the mutex held. */

/* The tenant's record, made if it is new; NULL: no memory. */
struct arena_tenant *arena_tenant_get(struct arena *a, uint32_t number);
void arena_classes_free(struct arena *a);

/* The index in `extents` of the first extent whose id is at least `id`. */
uint32_t arena_extent_place(const struct arena *a, uint32_t id);
struct arena_extent *arena_extent_find(const struct arena *a, uint32_t id);

/* What the tenant may still take or use: bytes that the budget has left for its new extents; the same in granules;
 * granules that it has free or could get; granules that its reserve keeps back. */
uint64_t arena_room(const struct arena_tenant *t);
uint64_t arena_has(const struct arena_tenant *t); /* bytes of its extents, the one that is being made included */
uint64_t arena_unmade(const struct arena_tenant *t);
uint64_t arena_left(const struct arena_tenant *t);
uint64_t arena_reserve_of(const struct arena_tenant *t);
/* Finds n granules for a span of the class: the beginning of the smallest run of free granules that is large enough.
 * False: there is none. `reserve`: the reserve may be used too. */
bool arena_run_find(const struct arena_class *k, uint32_t n, bool reserve, struct arena_extent **extent,
		    uint32_t *granule);
/* Notes that the granules have no span any more, and that they have the span `s`. */
void arena_granules_free(struct arena_extent *e, uint32_t granule, uint32_t n);
void arena_granules_use(struct arena_extent *e, uint32_t granule, uint32_t n, struct span *s);
/* Takes the extent's granules out of what is free, or counts again those that are. */
void arena_granules_retire(struct arena_extent *e, bool retired);
/* Notes that the extent's first `ready` granules have their pages now. */
void arena_granules_ready(struct arena_extent *e, uint32_t ready);

void arena_span_list(struct span *s);
void arena_span_unlist(struct span *s);
/* Closes the span, so that arena_take uses none of its slots, or opens it again. */
void arena_span_closed(struct span *s, bool closed);

/* Where the class's claim is. False: spans are left in it. */
bool arena_claim_free(const struct arena_class *k, struct arena_extent **extent, uint32_t *granule);
/* Ends the claim: its granules belong to no class, and the spans that are left in it are open again. */
void arena_claim_end(struct arena_class *k);

/* Frees the extent's record and memory, slowly, and without the mutex. The extent's place on a device stays taken. */
void arena_extent_discard(struct arena_extent *e);
/* Gives an extent's place in the tenant's range back. Does nothing for host memory. */
void arena_place_give(struct arena_tenant *t, uint64_t at);

#endif
