/* Calls over gRPC. gRPC C core is behind this header, and nowhere else in the library.
 *
 * A client has one channel. The calling thread drives a synchronous call on a completion queue of its own, without a
 * hop to another thread. Asynchronous calls share one queue and one background thread, started with the first of them.
 * A stream (Watch) is pulled by its reader.
 *
 * A call is described by a `struct client_job`: messages to send, and a function that takes each received message.
 */
#ifndef TERRACE_CLIENT_TRANSPORT_GRPC_H
#define TERRACE_CLIENT_TRANSPORT_GRPC_H

#include "client/include/terrace.h"

#include <protobuf-c/protobuf-c.h>

enum client_method {
	CLIENT_OPEN_SESSION,
	CLIENT_ATTACH,
	CLIENT_CLOSE_SESSION,
	CLIENT_LOOKUP,
	CLIENT_LEASE,
	CLIENT_RELEASE,
	CLIENT_RESERVE,
	CLIENT_COMMIT,
	CLIENT_ABORT,
	CLIENT_PUT,
	CLIENT_GET,
	CLIENT_TOUCH,
	CLIENT_REPORT,
	CLIENT_DELETE,
	CLIENT_WARM,
	CLIENT_FLUSH,
	CLIENT_WATCH,
	CLIENT_ADMIN_STATS,
	CLIENT_ADMIN_INSPECT,
	CLIENT_ADMIN_EXPLAIN,
	CLIENT_ADMIN_GRAPH,
	CLIENT_ADMIN_TRACE_START,
	CLIENT_ADMIN_TRACE_STOP,
	CLIENT_ADMIN_VERIFY,
	CLIENT_ADMIN_COMPACT,
	CLIENT_ADMIN_LAYOUTS,
	CLIENT_ADMIN_DRAIN,
	CLIENT_ADMIN_CONFIG,
	CLIENT_ADMIN_PEERS,
	CLIENT_ADMIN_LOCATE,
	CLIENT_HEALTH_CHECK,
	CLIENT_METHOD_COUNT
};

enum { CLIENT_MESSAGE_MAX = 16 << 20 }; /* bytes of a received message; the largest valid one, a lease of 4096 x 64, has
					 * 5 MiB */

/* A received message in pieces, which are valid during the call that gets them. */
struct client_segment {
	const uint8_t *data;
	size_t size;
};
struct client_message {
	const struct client_segment *segments;
	size_t count, bytes;
};

/* A message to send. tail: bytes of field tail_field, appended without a copy into the protobuf struct; may be NULL. */
struct client_out {
	const ProtobufCMessage *message;
	uint32_t tail_field;
	const void *tail;
	size_t tail_bytes;
	bool last; /* nothing follows */
};

struct client_job {
	enum client_method method;
	uint64_t deadline_us; /* absolute, see client/value/clock.h; 0 for a stream: none */
	bool wait_for_ready;  /* wait for the connection rather than fail while there is none */
	struct client_out first;
	/* Fills in the next message; called while `last` was not set. The message's pointers must stay valid until the
	 * next call. */
	void (*more)(void *arg, struct client_out *out);
	/* Takes a received message; NULL: its contents do not matter. A status other than OK ends the call with that
	 * status; the thread's error text is kept with it. */
	enum terrace_status (*take)(void *arg, const struct client_message *message);
	/* For a stream that has ended: true if all messages have come. NULL: it is not known. */
	bool (*whole)(const void *arg);
	/* For client_rpc_call; NULL: none. Work that the caller has to do anyway; it is done while the call is on its
	 * way. */
	void (*meanwhile)(void *arg);
	void *arg;
};

struct client_rpc;
struct client_rpc_call;

/* Makes the channel; does not wait for a connection. busy_poll_us: how long client_rpc_call polls for an answer before
 * it sleeps. tls: copied; NULL is none. Its files are read again when they change and used for the next connection; the
 * present connection stays. TERRACE_INVALID, TERRACE_UNSUPPORTED for an address, TERRACE_EXHAUSTED. */
struct client_tls;
enum terrace_status client_rpc_open(const char *address, uint64_t busy_poll_us, const struct client_tls *tls,
				    struct client_rpc **rpc);

/* The address with which it was opened. */
const char *client_rpc_address(const struct client_rpc *rpc);
/* The TLS with which it was opened; one that is off stands for none. */
const struct client_tls *client_rpc_tls(const struct client_rpc *rpc);

/* Ends all calls with TERRACE_CANCELLED, waits for them, stops the thread, closes the channel. The struct stays valid
 * until client_rpc_destroy, for late callers, which get TERRACE_PRECONDITION. Must not be called from a callback. */
void client_rpc_close(struct client_rpc *rpc);
void client_rpc_destroy(struct client_rpc *rpc);

/* True if there is a connection now. */
bool client_rpc_connected(struct client_rpc *rpc);

/* Carries a call out on the calling thread. */
enum terrace_status client_rpc_call(struct client_rpc *rpc, const struct client_job *job);

/* Starts a call. Its functions, and then once done(arg, status), run on the background thread, never inside
 * client_rpc_start. *call is set before any of them runs, and is valid until `done` returns. A failure has no effect.
 * TERRACE_EXHAUSTED: 4096 calls are under way. */
enum terrace_status client_rpc_start(struct client_rpc *rpc, const struct client_job *job,
				     void (*done)(void *arg, enum terrace_status status), struct client_rpc_call **call);

/* Asks a started call to end with TERRACE_CANCELLED. Any thread, while the call is valid. */
void client_rpc_cancel(struct client_rpc_call *call);

/* True on the background thread. */
bool client_rpc_in_background(struct client_rpc *rpc);

/* A stream of replies that the caller pulls. client_rpc_stream_next hands one message to job.take and returns take's
 * status. TERRACE_DEADLINE: no message came in time, and the stream goes on. TERRACE_UNAVAILABLE, or the daemon's
 * status: the stream has ended. One thread at a time. */
enum terrace_status client_rpc_stream_open(struct client_rpc *rpc, const struct client_job *job,
					   struct client_rpc_call **call);
enum terrace_status client_rpc_stream_next(struct client_rpc_call *call, uint64_t deadline_us);
void client_rpc_stream_close(struct client_rpc_call *call);

#endif
