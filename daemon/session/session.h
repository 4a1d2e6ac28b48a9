/* Sessions as the cache's parts see them: found by handle, their layouts and what they hold. session/open.h opens them.
 */
#ifndef TERRACE_DAEMON_SESSION_SESSION_H
#define TERRACE_DAEMON_SESSION_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct attachment;
struct cache;
struct grid;
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
	bool local;                    /* it gets no blocks of other members */
	uint32_t tokens_a_second;      /* that its engine computes; 0: not known */
	uint32_t gpus;                 /* GPUs that it has worked on, a bit each */
	uint64_t held_slots, held_bytes; /* by its leases and reservations */
};

/* Without the lock: copies an open session's pools; 0: unknown session. */
uint32_t session_pools(struct cache *c, uint64_t id, struct layout_pool **pools);
/* Without the lock: copies an open session's pools and its grid; 0: unknown session. Of a plain session's grid only the
 * unit is set: 0. */
uint32_t session_shape(struct cache *c, uint64_t id, struct layout_pool **pools, struct grid *grid);
/* The slot that may have this handle, whatever its state; NULL: none. Any thread. */
struct session *session_at(struct cache *c, uint64_t handle);
struct session *session_find(struct cache *c, uint64_t handle); /* open, or a detached session; else NULL */
struct session *session_get(struct cache *c, uint64_t handle, const char **why); /* open ones only */
/* The open session with this handle, as session_get finds it. Notes that a call came. */
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

/* The session's tenant: all its layouts are of that one. */
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
