/* The inside of the gRPC server, shared by rpc/server.c (start and stop), rpc/loop.c (the thread: events, pool) and
 * rpc/step.c (steps of a call). No other file includes this.
 *
 * One completion queue, one polling thread. Each method has a few *posted* calls that wait for an arrival; an arrival
 * is replaced by a fresh one from a pool of fixed size. A call is a small state machine: every completion comes back
 * with the call's address and, in the low bits, which operation it was; at most one operation besides CLOSE and wake is
 * under way.
 *
 *     POSTED -NEW-> (inline handler, may turn WORKING) -> FINISHING -FINAL-> pool -> WORKING (a worker owns it) ->
 *                FINISHING | SLEEPING (BUSY: goes on later) | SENDING | RECEIVING
 *     streams:      SENDING -SEND-> next message; WAITING -wake-> next message; RECEIVING -RECV-> WORKING
 *
 * A worker starts the next operation itself and does not touch the call after that: the completion hands it over.
 * `state` is stored with release before and loaded with acquire after, which is the hand-over's memory order (and what
 * lets the thread sanitizer see it). wake is an empty batch: the core completes it at once, from any thread, and so
 * wakes the polling thread. A bit of the state says whether a wake is under way. A thread that puts a call aside while
 * the bit is set knows that the wake has not been handled yet; a call is not freed before its wake has come back.
 */
#ifndef TERRACE_DAEMON_RPC_ENGINE_H
#define TERRACE_DAEMON_RPC_ENGINE_H

#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <pthread.h>

#include "daemon/process/log_unwritten.h"
#include "daemon/process/rights.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/handler.h"
#include "daemon/rpc/roles.h"
#include "daemon/rpc/times.h"
#include "daemon/threads/pool.h"
#include "store/status.h"

enum {
	POSTS_HOT = 8,
	POSTS_COLD = 2,
	SPARE_CALLS = 64,              /* to refuse further calls with, once calls_max are under way */
	TICK_US = 100000,
	QUIET_TICKS = 1,               /* of a stop: the last call's answer may still be on its way */
	TICK_BUSY_US = 10000,          /* while a call sleeps */
	READ_AGAIN_US = 1000,          /* while a request waits to be received */
};

enum call_op { OP_NEW, OP_CLOSE, OP_RECV, OP_SEND, OP_FINAL, OP_WAKE, OP_MASK = 7 };
enum call_state { CALL_POSTED, CALL_WORKING, CALL_SLEEPING, CALL_SENDING, CALL_WAITING, CALL_RECEIVING, CALL_FINISHING };
enum { CALL_WOKEN = 64 };              /* beside the state: an OP_WAKE is under way */

struct wire_call {
	struct rpc_call c;             /* first */
	struct work work;
	struct rpc_server *server;
	int connection;                /* rpc_step_connection(), while it lasts */
	struct quota_holder *holder;   /* its caller */
	bool counted, stream;          /* it has a place of QUOTA_CALLS; and of QUOTA_STREAMS */
	bool endless;                  /* and of QUOTA_LASTING */
	bool reading;                  /* its request is being received: a place of QUOTA_READS */
	bool unasked;                  /* its request is not received yet, for want of such a place */
	uint64_t reply_bytes;          /* of QUOTA_REPLY_BYTES */
	struct wire_call *prev, *next; /* live calls; `next` alone: the pool */
	uint32_t method;               /* index; rpc_methods_count: an unknown one */
	atomic_uint state;             /* enum call_state, and CALL_WOKEN */
	atomic_bool woken;             /* c.wake was called, and has not been handled yet */
	bool metadata_sent, close_begun, opened;
	bool closed, finished;         /* CLOSE and FINAL have come back */
	bool unsent;                   /* FINAL came back with a failure */
	/* counted as INVALID: the request may be incomplete because its client was gone */
	bool uncounted;
	atomic_bool overdue;           /* it was cancelled because it was overdue */
	uint64_t progress_us;
	ProtobufCMessage *request;     /* of a unary call, once unpacked */
	const ProtobufCMessage *granted; /* a reply that was sent and must be undone if it does not arrive */
	int was_cancelled;             /* by OP_CLOSE */
	grpc_call *call;
	gpr_timespec deadline;
	grpc_metadata_array metadata;
	grpc_call_details details;     /* of an unknown method */
	grpc_byte_buffer *received, *sent;
	grpc_slice why;
	grpc_metadata mark; /* says that the status is the daemon's own, with its name */
};
_Static_assert(_Alignof(struct wire_call) > OP_MASK, "tags hold the operation in their low bits");

struct rpc_server {
	const struct daemon *daemon;
	grpc_server *server;
	grpc_completion_queue *queue;
	struct rpc_listener *listener;
	struct rpc_peers *peers;
	struct rpc_tls *tls;           /* of `listen`; NULL: it has none */
	grpc_server_credentials *open; /* the credentials with which connections are accepted: none are asked for */
	pthread_t thread;
	bool thread_started;
	void **registered;             /* a handle a method */
	enum role *needed;             /* a role a method; unknown ones: ROLE_ENGINE */
	struct rpc_roles roles;        /* of connections, by gRPC's numbers */
	struct log_again denied;
	uint32_t *posted;              /* calls that wait for an arrival, a method; the last: unknown ones */
	struct wire_call *calls, *pool;
	struct wire_call live;         /* ring of calls under way; only its links are used */
	uint32_t live_count, starved;
	uint32_t quiet_ticks;          /* in a row, of a stop: no call was under way */
	bool was_draining, shut_down;
	uint64_t tick_at_us;
	_Atomic(struct rpc_deferred *) deferred;
	struct method_times *stats;
	struct way_times times;
	atomic_uint live_gauge;

	pthread_mutex_t lock;          /* guards what follows */
	pthread_cond_t done_changed;
	bool stopping, stop_begun, done;
	uint64_t cancel_at_us;
};

static inline void *tag_of(struct wire_call *w, enum call_op op)
{
	return (char *)w + op;
}

static inline void set_state(struct wire_call *w, enum call_state s)
{
	unsigned was = atomic_load_explicit(&w->state, memory_order_relaxed);

	while (!atomic_compare_exchange_weak_explicit(&w->state, &was, (was & CALL_WOKEN) | s, memory_order_acq_rel, memory_order_relaxed))
		;
}

static inline enum call_state state_of(struct wire_call *w)
{
	return atomic_load_explicit(&w->state, memory_order_acquire) & ~(unsigned)CALL_WOKEN;
}

static inline bool is_woken(struct wire_call *w)
{
	return atomic_load_explicit(&w->state, memory_order_acquire) & CALL_WOKEN;
}

/* Notes that the call is woken. True: it was not woken already, and the caller is to start an OP_WAKE. */
static inline bool state_wake(struct wire_call *w)
{
	return !(atomic_fetch_or_explicit(&w->state, CALL_WOKEN, memory_order_acq_rel) & CALL_WOKEN);
}

/* Puts the call aside in state s, and notes that it is woken. True: it was not woken already, and the caller is to
 * start an OP_WAKE. The caller does not touch the call afterwards: an OP_WAKE, this one or one under way, finds it. */
static inline bool state_put_aside(struct wire_call *w, enum call_state s)
{
	return !(atomic_exchange_explicit(&w->state, CALL_WOKEN | s, memory_order_acq_rel) & CALL_WOKEN);
}

/* Notes that the call's OP_WAKE has come back. Returns the state that the call is in. */
static inline enum call_state state_unwake(struct wire_call *w)
{
	return atomic_fetch_and_explicit(&w->state, ~(unsigned)CALL_WOKEN, memory_order_acq_rel) & ~(unsigned)CALL_WOKEN;
}

static inline bool is_stream(const struct wire_call *w)
{
	return w->c.method && (w->c.method->out || w->c.method->in);
}

static inline bool is_endless(const struct wire_call *w)
{
	return w->c.method && w->c.method->out && w->c.method->out->endless;
}

static inline bool is_cancelled(struct wire_call *w)
{
	return atomic_load_explicit(&w->c.cancelled, memory_order_relaxed);
}

static inline void drop_buffer(grpc_byte_buffer **b)
{
	if (*b)
		grpc_byte_buffer_destroy(*b);
	*b = NULL;
}

static inline uint32_t posts_wanted(uint32_t method)
{
	return method < rpc_methods_count && rpc_methods[method].hot ? POSTS_HOT : POSTS_COLD;
}

/* ---- rpc/step.c: by the call's owner; each ends with the call in other hands ---- */

/* Enters a state and starts the operation that it waits for; the operation's completion continues the call. */
void rpc_step_start(struct wire_call *w, enum call_state state, const grpc_op *ops, size_t n, enum call_op op);
/* Puts a call aside; it goes on when it is woken, or at c.resume_us. */
void rpc_step_put_aside(struct wire_call *w, enum call_state state);
/* Asks gRPC to tell when the client is gone. */
void rpc_step_watch_close(struct wire_call *w);
/* Counts the ended call in the server's statistics. */
void rpc_step_count(struct wire_call *w, enum status status);
/* Sends what is left to send: metadata, reply, status. */
void rpc_step_finish(struct wire_call *w, enum status status, const ProtobufCMessage *reply);
/* Ends a call that has not been admitted, with c.why. It waits for nothing: a client that does not read would keep the
 * call, and many of these would keep other clients from theirs. */
void rpc_step_refuse(struct wire_call *w, enum status status);
/* Unpacks the request into w->request. */
enum status rpc_step_unpack(struct wire_call *w);
void rpc_step_inline(struct wire_call *w);
/* Goes on with a call of kind RPC_INLINE that was put aside. */
void rpc_step_again(struct wire_call *w);
/* The function behind a call's `wake`. */
void rpc_step_wake(struct rpc_call *c);
/* The number by which gRPC knows the connection of a call; -1: none. Asked once a call: w->connection. */
int rpc_step_connection(struct wire_call *w);
/* The function behind a call's `peer`. */
void rpc_step_peer(struct rpc_call *c, struct cache_peer *out);
/* The function behind a call's `who`. */
void rpc_step_who(struct rpc_call *c, struct who *out);
bool rpc_step_unnamed(struct rpc_call *c);
/* False: the call's client has no right to its method, and c->why says so. */
bool rpc_step_allowed(struct wire_call *w);
/* Gets and sends the next message of a server stream. */
void rpc_step_pump(struct wire_call *w, bool worker);
/* Waits for the next message of a client stream. */
void rpc_step_receive(struct wire_call *w);
/* Hands the call to a worker. A call that has begun waits for room in the queue; a new one is refused. */
void rpc_step_hand_over(struct wire_call *w, bool may_wait);
/* The function that workers run for a call. */
void rpc_step_work(struct work *work);

/* ---- rpc/loop.c ---- */

void *rpc_loop_main(void *server);

#endif
