/* One call as the handlers see it: no gRPC here. A handler gets an unpacked request, answers through the call, and can
 * be run by a test or a fuzzer from a buffer of bytes (tests/daemon/rpc/handle.h).
 *
 * A call is owned by one thread at a time: the rpc thread, or the worker it was handed to. Only `cancelled` may be set
 * by other threads. Memory a handler needs comes from the call's arena and lives until the reply is packed.
 */
#ifndef TERRACE_DAEMON_RPC_CALL_H
#define TERRACE_DAEMON_RPC_CALL_H

#include <protobuf-c/protobuf-c.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "store/status.h"

enum {
	RPC_ARENA_FIRST = 12 * 1024,   /* part of the call: enough for hot calls */
	RPC_ARENA_MAX = 32 << 20,      /* a larger unpacked request is refused */
	RPC_WHY_MAX = 512,
};

/* A bump allocator. rpc_arena_rewind frees what was taken after rpc_arena_keep; rpc_arena_reset frees all. */
struct rpc_chunk;
struct who;
struct rpc_arena {
	struct rpc_chunk *chunks;
	size_t used, total;            /* of `first`; of everything */
	struct {
		struct rpc_chunk *chunk;
		size_t used, chunk_used;   /* of `first`; of that chunk */
	} kept;
	_Alignas(16) uint8_t first[RPC_ARENA_FIRST];
};
/* Takes 16-byte aligned memory, not zeroed. NULL: it would pass RPC_ARENA_MAX. */
void *rpc_arena_take(struct rpc_arena *a, size_t bytes);
void rpc_arena_keep(struct rpc_arena *a);
void rpc_arena_rewind(struct rpc_arena *a);
void rpc_arena_reset(struct rpc_arena *a);

struct cache_peer;
struct rpc_method;

/* What a call does or waits for; they do not overlap (rpc/times.h). */
enum call_step {
	STEP_QUEUED,                   /* until a worker takes the call */
	STEP_LOCK,                     /* until another thread lets the cache's lock go */
	STEP_DISK,                     /* until blocks are there: from a disk, a GPU, another member */
	STEP_WAKE,                     /* from then until the call goes on */
	STEP_COPY,                     /* a block's bytes, with their checksum */
	STEP_WORK,                     /* the rest */
	CALL_STEPS,
};

/* By the call's owner but for woken_us. */
struct call_times {
	uint64_t queued_us;            /* when the call was handed to a worker; 0: none has to take it */
	uint64_t slept_us;             /* when its last step began to wait for blocks; 0: it does not */
	atomic_ullong woken_us;        /* when these were there; 0: not yet */
	uint64_t lock_us;              /* how long this thread had waited for the lock when the step began, */
	bool running;                  /* which has not ended yet */
	uint64_t us[STEP_WORK];
};
/* A step of the call begins on this thread. */
void call_step_begin(struct call_times *t, uint64_t now_us);
/* It ends, if it has not before: the call is put aside, handed over or answered. Before another thread may have it. */
void call_step_end(struct call_times *t);
/* It ends, as blocks are waited for. */
void call_step_sleeps(struct call_times *t);
/* The blocks are there. Any thread, before the call is woken. */
void call_step_woken(struct call_times *t);
/* It ends, as the call waits for a worker. */
void call_step_queued(struct call_times *t);
/* What is done between the two is a copy. */
uint64_t call_copy_begin(void);
void call_copy_end(struct call_times *t, uint64_t begun);

struct rpc_call {
	const struct daemon *daemon;
	const struct rpc_method *method;
	uint64_t now_us;               /* when this step began */
	uint64_t began_us, deadline_us;/* deadline: the earlier of the client's and the daemon's own bound */
	uint64_t resume_us;            /* with BUSY or RPC_NEXT_WAIT: when the handler wants to be called again */
	atomic_bool cancelled;         /* by the client, or overdue */
	uint32_t tenant;               /* its caller's number (struct who); 0: there is no table of tenants */
	bool worker;                   /* this step runs on a worker: it may take long */
	char why[RPC_WHY_MAX];         /* for people, when the call as a whole fails */
	struct call_times times;
	struct cache_wait wait;        /* of a step that returned BUSY for the disks: see rpc_wait */
	/* who calls, as far as known; by the call's owner. NULL: unknown (tests) */
	void (*peer)(struct rpc_call *c, struct cache_peer *out);
	void (*who)(struct rpc_call *c, struct who *out); /* the same for its rights. NULL: an administrator (tests) */
	/* Whether the call comes from gRPC's C core with a user agent that names no program, as the first version's
	 * client library calls. By the call's owner. NULL: no (tests, and calls without gRPC). */
	bool (*unnamed)(struct rpc_call *c);
	void (*wake)(struct rpc_call *c); /* runs the next step soon; any thread. NULL: no call sleeps (tests) */
	struct rpc_arena arena;
	union {                        /* what a handler keeps between steps that returned BUSY; zeroed at first */
		struct {
			enum status *statuses; /* [keys], in the arena */
			bool refused;          /* so are its names, by this daemon as an owner */
			bool told;             /* others are told of it */
			uint64_t number;       /* for peers_forget_look */
		} removed;             /* of a delete */
		struct locate *locate; /* of a Locate, in the arena */
		enum status offered;   /* of an Offer: as cache_offered_take says */
		uint32_t comes;        /* of a reserve: how often memory was on its way */
		struct {
			uint64_t cursor;       /* as the client's */
			struct cache_verified sum;
			bool begun, renewed;
		} verify;
		struct {
			bool begun;
			uint64_t until_us;
		} drain;
	} step;
	void *stream;                  /* a streaming handler's own state (malloc) */
};

/* Takes memory from the call's arena. NULL: too much was asked for; answer with rpc_too_big(). */
void *rpc_take(struct rpc_call *c, size_t bytes);
void *rpc_take_zero(struct rpc_call *c, size_t count, size_t bytes);

/* Notes the sentence and returns s. */
enum status rpc_fail(struct rpc_call *c, enum status s, const char *format, ...) __attribute__((format(printf, 3, 4)));
enum status rpc_too_big(struct rpc_call *c);

/* A session's handle as the caller may use it. The handle of another tenant's session becomes one that no session has,
 * so that the answer is the same. rpc_call_unpack does this to the field `session` of a request. */
uint64_t rpc_own_session(const struct rpc_call *c, uint64_t session);

/* Whether an administrator calls. By the call's owner. */
bool rpc_is_admin(struct rpc_call *c);
/* Fails the call with DENIED and a sentence: the caller belongs to no tenant. */
enum status rpc_no_tenant(struct rpc_call *c);
/* Fails the call with DENIED and a sentence that says who may make it, and who did. */
enum status rpc_denied(struct rpc_call *c, const char *what);

/* The wait to pass to a cache function that may need the disks. When most of the call's time is over, the wait says
 * that this is the last try. */
struct cache_wait *rpc_wait(struct rpc_call *c);
/* Returns what a step returns after a function has answered BUSY. The step runs again when the wait is ready, or when
 * its time is up. Arena memory of the step is freed, except what rpc_arena_keep kept, as a call may have thousands of
 * steps. */
enum status rpc_wait_busy(struct rpc_call *c);
/* Ends the wait. By the call's owner, before the call ends. */
void rpc_wait_end(struct rpc_call *c);

/* The cache that the call is about. */
struct cache *rpc_cache(const struct rpc_call *c);
/* The public names of blocks; NULL while handlers run without a server. */
const struct names *rpc_names(const struct rpc_call *c);
/* Prepares a call, for a server or a test; arena.chunks must be NULL or left from rpc_call_fini. */
void rpc_call_init(struct rpc_call *c, const struct daemon *d, const struct rpc_method *m, uint64_t now_us,
		   uint64_t deadline_us);
void rpc_call_fini(struct rpc_call *c);

/* Unpacks a request with the method's descriptor into the arena. INVALID, or EXHAUSTED if it unpacks to too
 * much. */
enum status rpc_call_unpack(struct rpc_call *c, const uint8_t *bytes, size_t n, ProtobufCMessage **out);

#endif
