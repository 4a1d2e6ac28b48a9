/* Sessions: opened, found, noted. */
#ifndef TERRACE_DAEMON_SESSION_SESSION_H
#define TERRACE_DAEMON_SESSION_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct attachment;
struct cache;
struct cache_peer;
struct cache_session_view;
struct grid;
struct grid_wish;
struct kv_layout;
struct lease;
struct layout_pool;
struct quota_holder;
struct reservation;

enum session_state { SESSION_FREE, SESSION_OPEN, SESSION_DETACHED };

/* Atomic fields are read by lookups without the lock: a copy of pools and grid is good if `id` was the same before
 * and after. */
struct session {
	_Atomic uint64_t id;           /* its handle; 0 unless open */
	_Atomic uint32_t layouts;
	struct layout_pool *_Atomic pool[CACHE_LAYOUTS_MAX];
	_Atomic uint64_t shape;        /* the grid: unit << 8 | chained << 7 | main; 0: a plain session */
	_Atomic uint64_t rule[CACHE_LAYOUTS_MAX]; /* the grid's, packed; not of a plain session */
	_Atomic bool called;           /* a call without a time has come since the last tick */

	enum session_state state;
	uint64_t handle;               /* also of a detached session (block/handle.h) */
	uint64_t number;               /* public: what people see of it */
	uint8_t token[CACHE_TOKEN_BYTES];
	char engine[CACHE_ENGINE_MAX + 1]; /* for people */
	struct tenant *tenant;
	struct quota_holder *holder;   /* the process that opened it: what the session holds is charged to it */
	uint64_t last_call_us;
	struct attachment *attachments;
	uint32_t attached;             /* of its attachments, the live ones */
	uint32_t attachment_count;
	struct lease *leases;
	struct reservation *reservations;
	uint32_t open_blocks;
	/* blocks that it puts on GPUs are downloaded when the room is needed, not at once */
	bool write_back;
	uint32_t gpus;                 /* GPUs that it has worked on, a bit each */
	uint64_t held_slots, held_bytes; /* by its leases and reservations */
};

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
/* From now on, blocks that it puts on GPUs are downloaded to host memory when a GPU needs the room, not at once. */
enum status cache_session_write_back(struct cache *c, uint64_t session);
/* The number of the tenant of an open or detached session; 0: no such handle. Without the lock. */
uint32_t cache_session_tenant(struct cache *c, uint64_t session);
/* The same tenant's name; NULL: no such handle. */
const char *cache_session_tenant_name(struct cache *c, uint64_t session);
/* The public number of an open or detached session; 0: no such handle. */
uint64_t cache_session_number(struct cache *c, uint64_t session);
/* Writes the ids of a session's layouts and returns how many. 0: no open session has that handle, or, with handle 0,
 * that public number. */
uint32_t cache_session_layout_ids(struct cache *c, uint64_t handle, uint64_t number, uint64_t ids[CACHE_LAYOUTS_MAX]);
/* The number of the session's layouts, 0 if unknown. *cells: of the keys, of which only count and first are used. */
uint32_t cache_session_cells(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t *cells);
/* Number of layouts of a session, 0 if unknown. */
uint32_t cache_session_layouts(struct cache *c, uint64_t session);
/* Without the lock: copies an open session's pools; 0: unknown session. */
uint32_t session_pools(struct cache *c, uint64_t id, struct layout_pool **pools);
/* The same with the grid; of a plain session only the grid's unit is set: 0. */
uint32_t session_shape(struct cache *c, uint64_t id, struct layout_pool **pools, struct grid *grid);
struct session *session_find(struct cache *c, uint64_t handle); /* open, or a detached session; else NULL */
struct session *session_get(struct cache *c, uint64_t handle, const char **why); /* open ones only */
/* The same, and notes that a call came. */
struct session *session_call(struct cache *c, uint64_t id, uint64_t now_us, const char **why);
/* A bit for each GPU that an open session has put, leased or warmed on. */
uint32_t session_gpus(struct cache *c, uint64_t id);
struct session *session_with_token(struct cache *c, const uint8_t token[CACHE_TOKEN_BYTES]);
/* Zeroes everything after the last atomic field. */
void session_reset(struct session *s);

static inline struct layout_pool *session_pool(struct session *s, uint32_t layout)
{
	return atomic_load_explicit(&s->pool[layout], memory_order_relaxed);
}

/* All its layouts are of one. */
static inline struct tenant *session_tenant(const struct session *s)
{
	return s->tenant;
}

static inline uint32_t session_layouts(struct session *s)
{
	return atomic_load_explicit(&s->layouts, memory_order_relaxed);
}

/* Notes the GPU; does nothing if gpu < 0 or there is no such GPU. */
static inline void session_on_gpu(struct session *s, int32_t gpu)
{
	s->gpus |= gpu >= 0 && gpu < 32 ? 1u << gpu : 0;
}

#endif
