/* Opening a session, and what calls ask about one by its handle or its public number. No thread holds the cache's lock
 * when it calls these. */
#ifndef TERRACE_DAEMON_SESSION_OPEN_H
#define TERRACE_DAEMON_SESSION_OPEN_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct cache;
struct cache_peer;
struct cache_session_view;
struct grid_wish;
struct kv_layout;

/* Public numbers of the idle sessions that the last tick has ended, CACHE_IDLED_MAX at most; others end in later ticks.
 * By the thread that ticks. */
uint32_t cache_idled(const struct cache *c, const uint64_t **sessions);
/* The arguments of OpenSession. */
struct cache_open_call {
	/* the client whose share it is charged to; NULL, or not known: only the bound of all */
	const struct cache_peer *peer;
	uint32_t identity;             /* number of the caller's tenant; 0: `default` */
	const char *tenant;            /* as the caller says it: "", or just that tenant's name */
	const struct kv_layout *layouts;
	uint32_t layout_count;
	uint32_t unit;                 /* tokens of a key; 0: the layouts' block_tokens */
	const struct grid_wish *wishes; /* [layout_count]; NULL: nothing is said */
	bool unchained;                /* keys name contents, not prefixes */
	uint32_t tokens_a_second; /* that the engine computes: what takes longer is not brought from other members; 0:
				     not known */
	bool local;                    /* nothing is brought from other members */
	const char *engine;            /* for people, cut after CACHE_ENGINE_MAX */
	uint64_t now_us;
};

/* DENIED: another tenant. INVALID: no layout, a bad or double one, a grid that cannot be (grid_make), keys that are not
 * chained where a block covers several of them, a block that host memory can never have (session/budget.h). EXHAUSTED:
 * too many sessions (detached ones included), or layouts since the start (4096), in total or for the peer's share
 * (block/quota.h). UNAVAILABLE: draining. */
enum status cache_session_open(struct cache *c, const struct cache_open_call *q, struct cache_session_view *out,
			       const char **why);
/* NOT_FOUND (compared in constant time): there is none, or it is another tenant's. tenant: the caller's; 0: `default`.
 */
enum status cache_session_by_token(struct cache *c, uint32_t tenant, const uint8_t token[CACHE_TOKEN_BYTES],
				   uint64_t now_us, struct cache_session_view *out, const char **why);
/* From now on, blocks that the session puts on GPUs are downloaded to host memory when a GPU needs the room, not at
 * once. */
enum status cache_session_write_back(struct cache *c, uint64_t session);
/* The number of the tenant of an open or detached session; 0: no such handle. Without the lock. */
uint32_t cache_session_tenant(struct cache *c, uint64_t session);
/* The public number of an open or detached session; 0: no such handle. */
uint64_t cache_session_number(struct cache *c, uint64_t session);
/* Writes the ids of a session's layouts and returns how many. 0: no open session has that handle, or, with handle 0,
 * that public number. *tenant: the name of the session's tenant, which stays; else untouched. */
uint32_t cache_session_layout_ids(struct cache *c, uint64_t handle, uint64_t number, uint64_t ids[CACHE_LAYOUTS_MAX],
				  const char **tenant);
/* The number of the session's layouts, 0 if unknown. *cells: of the keys, of which only count and first are used. */
uint32_t cache_session_cells(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t *cells);
/* Number of layouts of a session, 0 if unknown. */
uint32_t cache_session_layouts(struct cache *c, uint64_t session);

#endif
