/* The other members as a source of blocks (block/source.h). */
#ifndef TERRACE_DAEMON_PEERS_SOURCE_H
#define TERRACE_DAEMON_PEERS_SOURCE_H

#include <stdint.h>

#include "daemon/block/stat_row.h"
#include "store/status.h"

struct cache;
struct directory_run;
struct key_run;
struct names;
struct peer_source;
struct peers;

/* Makes the source and adds it to the cache: before other threads call. What it is given must live until the cache has
 * ended (cache_destroy waits for the source's ends). EXHAUSTED. */
enum status peer_source_create(struct cache *c, const struct names *names, struct peers *peers,
			       struct peer_source **out);
/* After the cache. NULL allowed. */
void peer_source_destroy(struct peer_source *s);

/* That member has lent these names, without being asked, for so long from now on: they can be fetched from it. MISS: it
 * is no member, or nothing is taken from it now. Any thread, without the cache's lock. */
struct peer_lent {
	const struct directory_run *run;
	const char *tenant;            /* its name, for the cache's life */
	uint64_t loan, hold_us;
};
enum status peer_source_lent(struct peer_source *s, const struct peer_lent *q, const struct key_run *run);

void peer_source_stats(struct peer_source *s, cache_stat_fn *emit, void *arg);

#endif
