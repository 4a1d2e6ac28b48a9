/* Names that were deleted here: other members may still have the blocks, and must not bring them back. With the cache's
 * lock. */
#ifndef TERRACE_DAEMON_CALL_DELETED_H
#define TERRACE_DAEMON_CALL_DELETED_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct cache;
struct index_ident;

enum { DELETED_MAX = 1 << 16 };        /* names that are remembered; a newer one replaces an older one by chance */
#define DELETED_US (600ull * 1000 * 1000)

/* Nothing of that name is taken from other members for DELETED_US. */
void deleted_add(struct cache *c, const struct index_ident *name);
bool deleted_has(const struct cache *c, const struct index_ident *name);
/* A listener of block/observer.h: a block that is stored here again may come from others again, too. */
void deleted_stored(struct cache *c, const struct block *b);
void deleted_destroy(struct cache *c);

#endif
