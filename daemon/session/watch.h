/* Watches: events in order, or RESYNC where some were lost. */
#ifndef TERRACE_DAEMON_SESSION_WATCH_H
#define TERRACE_DAEMON_SESSION_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_watch_event;
struct layout_pool;
struct quota_holder;

enum { WATCHES_MAX = 64 };

struct watch_item {
	uint8_t kind, reason, layout, key_bytes;
	uint8_t where;                 /* the block's, at that time */
	uint8_t key[SLOT_KEY_MAX];
};

struct cache_watch {
	struct cache *cache;
	struct cache_watch *next;
	uint64_t session, sequence;
	struct layout_pool *pool[CACHE_LAYOUTS_MAX];
	uint32_t layouts;
	uint32_t key_bytes_max;        /* blocks with longer keys are left out */
	struct quota_holder *holder;
	void (*notify)(void *);
	void *arg;
	bool ended;                    /* the session has ended */
	bool dumping;                  /* it is still reporting what was there at the start, from here: */
	struct index_walk dump;
	uint32_t head, count, max;
	struct watch_item ring[];
};

/* notify(arg), if not NULL, is called from any thread and under the cache's lock when a watch that was empty gets an
 * event, and when the session of an empty one ends; it must only wake a thread. EXHAUSTED: 64 watches. */
enum status cache_watch_open(struct cache *c, uint64_t session, bool from_now, void (*notify)(void *),
			     void *arg, struct cache_watch **out, const char **why);
/* The watch leaves out blocks with longer keys. Call it before the first cache_watch_next. */
void cache_watch_bound(struct cache_watch *w, uint32_t key_bytes_max);
/* OK and an event; MISS if there is none now; BUSY if the first walk goes on and has just found nothing: call again
 * after other work. UNAVAILABLE when the session has ended (after the last event). One thread at a time for one watch.
 * After opening, and after each notify, call until MISS. */
enum status cache_watch_next(struct cache_watch *w, struct cache_watch_event *out);
/* No notify comes after it. NULL allowed. */
void cache_watch_close(struct cache_watch *w);
/* Listeners of block/observer.h: an event each for the watches of the block's layout. */
void watch_stored(struct cache *c, const struct block *b);
void watch_moved(struct cache *c, const struct block *b);
void watch_removed(struct cache *c, const struct block *b, enum cache_reason reason);
void watch_session_ended(struct cache *c, uint64_t session);
/* Whether that session has a watch. */
bool watch_is_open(const struct cache *c, uint64_t session);

#endif
