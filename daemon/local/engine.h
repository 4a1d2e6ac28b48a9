/* The inside of local calls, shared by local/local_calls.c (start, stop, counts, posts) and local/local_loop.c (the
 * thread, and what workers do of a call). No other file includes this.
 *
 * One thread, one epoll. A connection is IDLE (it waits for the next CALL), WAITING (its handler answered BUSY: it goes
 * on at a time or when it is woken), or WORKING (a worker owns the call, and sends its reply). To have the thread look
 * at a connection, another thread posts it onto a lock-free list, since wakes come under the cache's lock. While the
 * thread is awake, no system call is needed for that.
 *
 * A reply that grants something is kept until the next packet says that it was read. If instead the caller is gone, the
 * kernel says whether the reply was read (a socket that is closed with unread packets resets its peer); if not, what it
 * granted is undone. */
#ifndef TERRACE_DAEMON_LOCAL_ENGINE_H
#define TERRACE_DAEMON_LOCAL_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/local/packet.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/times.h"
#include "daemon/threads/pool.h"

enum local_state { LOCAL_NEW, LOCAL_IDLE, LOCAL_WAITING, LOCAL_WORKING };
enum local_watched { LOCAL_POST, LOCAL_SOCKET, LOCAL_PROCESS };

struct local_connection {
	struct rpc_call c;               /* first */
	struct work work;
	struct local_calls *local;
	struct local_connection *prev, *next; /* the ring of all */
	struct local_connection *next_posted;
	atomic_bool posted;              /* it is on that list */
	atomic_bool woken;               /* c.wake was called, and has not been handled yet */
	atomic_bool answering;           /* the worker's reply is about to be sent, or was */
	atomic_bool returned;            /* the worker does not use the call any more */
	atomic_uint workers;             /* workers that may still use it: it is freed after the last */
	int fd, pidfd;
	uint64_t session;
	struct quota_holder *holder;     /* the process that connected */
	size_t room;                     /* bytes that a reply's packet may have */
	enum local_state state;
	bool unwatched;                  /* the socket is not in the epoll until the worker has returned */
	bool hung_up;                    /* to be closed once the worker has returned */
	bool calling;                    /* c is in use: a call is under way, or its grant may have to be undone */
	bool asleep;                     /* the worker's step answered BUSY */
	bool broken;                     /* the reply could not be sent */
	bool gone;                       /* to be freed after this round of events */
	enum fdsock_method method;
	ProtobufCMessage *request;
	const ProtobufCMessage *granted;
	struct local_key {
		enum local_watched what;
		struct local_connection *k;
	} socket_key, process_key;
};

struct local_calls {
	const struct daemon *daemon;
	int epoll, post;                 /* post: an eventfd */
	struct local_key post_key;
	pthread_t thread;
	bool thread_started;
	const struct rpc_method *methods[FDSOCK_METHODS_END];
	struct local_connection all;          /* ring; its links alone are used */
	_Atomic(struct local_connection *) posted;
	atomic_bool sleeps;              /* the thread sleeps or is about to: a thread that posts must ring */
	uint64_t due_us;                 /* when the first waiting call is due, or earlier */
	bool sweep;                      /* a connection has ended */
	bool slept_for;                  /* an answer is on its way that took so long that its caller sleeps */
	uint8_t *packet;                 /* [FDSOCK_CALL_BYTES_MAX] */

	atomic_uint connections, calls;
	atomic_bool stopping;
	atomic_ullong cancel_at_us, refused_memory, by_grpc;
	struct method_times stats[FDSOCK_METHODS_END];
	struct way_times times;

	pthread_mutex_t lock;            /* guards what follows */
	pthread_cond_t done_changed;
	bool done;
};

/* ---- local/local_calls.c ---- */

/* Has the thread look at k. On any thread, while k cannot be freed. */
void local_post(struct local_connection *k);
/* Wakes the thread of the local calls, without having it look at a connection. */
void local_ring(struct local_calls *n);
/* Adds a descriptor to the epoll. The key is the connection's or n's own, and is filled. */
bool local_watch(struct local_calls *n, int fd, uint32_t events, struct local_key *key, enum local_watched what,
		 struct local_connection *k);

/* k is closed, and in no list. */
void local_free(struct local_connection *k);

/* ---- local/local_loop.c ---- */

/* The thread; ends when its calls were stopped (local_part) and every connection is closed. */
void *local_main(void *local);
/* What a worker runs for a call. */
void local_work(struct work *work);

#endif
