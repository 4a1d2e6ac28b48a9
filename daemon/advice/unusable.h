/* Unusable blocks: those that no prefix needs which a call could be granted now, because a block that all of these
 * prefixes need has left all tiers. They are the first to be evicted, in each tier.
 *
 *     full attention   1  2  3  ·  5  6  7       4 has left: what is behind it is unusable, in both layouts
 *     state            .  .  s  .  .  .  s
 *
 *     full attention   1  2  3  4  5  6  7       the state of 7 has left: the longest usable prefix ends with 3
 *     state            .  .  s  .  .  .  ·
 *
 * They stay what they are otherwise: a call that is granted one makes it usable, and so does the return of what was
 * missing. What is usable depends on the layouts and keep rules of sessions (block/grid.h), which come with requests.
 * Which blocks are before and behind a block is known from the graph (eviction/graph_edges.h): so the advisor's thread
 * decides, some time after the block has left. It is advice: what the graph has forgotten, or what would take too many
 * steps to find out, stays as it is. Without the graph no block is flagged.
 *
 * After a restart no block is flagged: what left before is not looked at again. What leaves from then on is, with the
 * chains that the graph took up, as soon as a session of those layouts has made a request. A block whose leaving the
 * advisor was not told (its mailbox was full) flags nothing either.
 */
#ifndef TERRACE_DAEMON_ADVICE_UNUSABLE_H
#define TERRACE_DAEMON_ADVICE_UNUSABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/grid.h"
#include "daemon/block/values.h"

struct block;
struct cache;
struct graph_edges;
struct layout_pool;
struct request;
struct unusable;

/* Families that are known at a time. For one more, the family whose last request is the oldest is forgotten. */
enum { FAMILIES_MAX = 16 };

/* Layouts that sessions use together, with the same keep rules. It is known from its first request on, until it is
 * forgotten or has made no request for an hour. While it is not known, a block that this family alone may use can be
 * flagged on account of other families. With the cache's lock. */
struct family {
	uint64_t used_us;              /* of its last request; 0: free */
	uint32_t layouts;
	struct layout_pool *pool[CACHE_LAYOUTS_MAX];
	struct grid grid;
};

struct families {
	struct family at[FAMILIES_MAX];
	struct family wish;            /* of the request that is being told */
};

/* With the cache's lock: notes the family of the request's session. */
void families_note(struct cache *c, const struct request *r);

/* NULL: no memory. NULL may be destroyed. */
struct unusable *unusable_create(void);
void unusable_destroy(struct unusable *u);
/* A message's word on a block that has come or left, of which a message can carry no more. */
uint64_t unusable_word(const struct block *b);
/* The advisor's thread: a block of that name (block/key.h) has come (live) or left. What does not fit is dropped. */
void unusable_note(struct unusable *u, uint64_t name, uint64_t word, bool live);
/* The advisor's thread, with its lock and without the cache's: flags blocks by what was noted, or ends that. It takes
 * the cache's lock for a few hundred looks in the index at a time. What takes too long for one pass is left to the
 * next. */
void unusable_pass(struct cache *c, struct unusable *u, const struct graph_edges *g);

#endif
