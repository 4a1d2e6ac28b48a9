/* Exports: which blocks of this node other members are to be told of, and by what names.
 *
 * Told are few blocks, and late: of a layout each EXPORT_EVERY-th block of a chain, or each one if prefixes need only
 * its last (states); and a block only when it has lived EXPORT_AGE_US, or when a lease uses it. Who finds one of them
 * asks its holder for the blocks around it.
 *
 * A member looks for a block by its public name (names/names.h), at the members that own its segment of the chain
 * (directory/segment.h). A segment is named by its first key, which a block does not know: it is learned from the calls
 * that name chains. A call that begins inside a segment continues a chain that an earlier one ended, if it says the
 * key before its first. A lease of a plain session need not say that it begins inside a chain: that is taken from its
 * first block, if a copy is in memory. Of a block whose segment is not known nothing is told until a call names its
 * chain.
 *
 * A block that is about to be evicted is taken back some time before, as what is taken back too late is a wrong answer.
 * It is told of again when a lease uses it.
 *
 * With the cache's lock, but for exports_cool, exports_take and exports_walk, which take it. */
#ifndef TERRACE_DAEMON_EXPORTS_EXPORTS_H
#define TERRACE_DAEMON_EXPORTS_EXPORTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "daemon/names/names.h"
#include "store/status.h"

struct block;
struct cache;
struct exports;
struct grid;
struct layout_pool;
struct outbox;

enum {
	EXPORT_EVERY = 16,
	EXPORT_AGE_US = 10 * 1000 * 1000,
	EXPORTS_MAX = 1 << 22,         /* blocks told of */
	EXPORT_CHANGES_MAX = 1 << 16,  /* that exports_take has not taken */
};

/* What other members are to be told. */
struct export_change {
	struct public_name name;
	uint64_t segment;              /* names_segment() of the segment's first key */
	uint32_t tenant;               /* its number */
	bool removed;
};

/* Begins to keep exports of the cache: before other threads call. The names must live as long as the cache. */
enum status exports_create(struct cache *c, const struct names *names);
void exports_destroy(struct cache *c); /* no effect without */

/* A call has named a chain's keys. */
struct export_chain {
	struct layout_pool *const *pools; /* [layouts] */
	uint32_t layouts;
	const struct cache_keys *keys; /* as keys_on() makes them */
	const uint8_t *parent;         /* the key before the first, [parent_bytes]; NULL: not known */
	uint32_t parent_bytes;
	/* [keys * layouts]: the blocks that a lease uses; NULL: they are about to be stored */
	struct block *const *used;
};
void exports_named(struct cache *c, const struct export_chain *chain);

/* Listeners of block/observer.h. */
void exports_stored(struct cache *c, const struct block *b);
void exports_removed(struct cache *c, const struct block *b, enum cache_reason reason);

/* Tells of a block now, whose segment is known. */
void exports_tell(struct cache *c, const struct block *b, uint64_t segment);
/* The segment of a block that others are told of, or are to be; 0: not known, or they are not. */
uint64_t exports_segment_of(const struct cache *c, const struct block *b);

/* Whether blocks at that position are told of, if a layout of the grid can have one there; grid NULL: of a plain
 * session. */
bool exports_told(const struct grid *grid, uint64_t position);
/* The name of a segment by its first key: the first half of a public name of that key in no layout. False: the tenant
 * has no secret. out: by the current secret and, while it is changed, by the other one; returns how many. */
uint32_t exports_segment(const struct names *n, uint32_t tenant, const uint8_t *key, uint32_t key_bytes,
			 uint64_t out[NAMES_SECRETS]);

/* Tells the outbox what has changed: a few times a second, on the thread that also sends the outbox's messages.
 * outbox_us: the outbox's time. False: some changes were dropped, since they were not taken in time; so all has been
 * told anew. */
bool exports_publish(struct cache *c, uint64_t now_us, struct outbox *o, uint64_t outbox_us);

/* ---- its parts. Any thread ---- */

/* Takes back the blocks that are about to be evicted and then are nowhere here. */
void exports_cool(struct cache *c, uint64_t now_us);
/* Takes up to `max` changes, in their order, and first those that have become due. *lost: some were dropped, since they
 * were not taken in time: all must be told anew, from a walk. Returns how many. */
uint32_t exports_take(struct cache *c, uint64_t now_us, struct export_change *out, uint32_t max, bool *lost);
/* Walks all that is told now; *at 0 at first. Returns how many; 0: the end. What is told or removed meanwhile may be in
 * or not; of the rest, what the walk would miss comes as changes. One walk at a time, on any thread. */
uint32_t exports_walk(struct cache *c, uint64_t *at, struct export_change *out, uint32_t max);

#endif
