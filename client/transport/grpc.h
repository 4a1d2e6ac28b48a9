/* Calls over gRPC. Behind this header, and nowhere else in the library, is gRPC C core.
 *
 * One channel a client. A synchronous call is driven by the calling thread on a completion queue of its own, without a hop
 * to another thread. Asynchronous calls share one queue and one background thread, started with the first of them. A stream
 * (Watch) is pulled by its reader.
 *
 * What a call says and hears is a `struct client_job`: messages out, and a function that takes each message in. */
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
	CLIENT_HEALTH_CHECK,
	CLIENT_METHOD_COUNT
};

enum { CLIENT_MESSAGE_MAX = 16 << 20 }; /* bytes of a message in; the largest true one, a lease of 4096 x 64, has 5 MiB */

/* A message as it came: pieces, valid during the call that they are given to. */
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
	/* The next message, asked for while `last` was not set. Its pointers must live until the next call of it. */
	void (*more)(void *arg, struct client_out *out);
	/* Takes a message, NULL: it says nothing. What is not OK ends the call with that status; TLS error text is kept with it. */
	enum terrace_status (*take)(void *arg, const struct client_message *message);
	/* Of a stream that ends, NULL: nobody knows. True: all has come that was to come. */
	bool (*whole)(const void *arg);
	/* Of client_rpc_call, NULL: none. What the caller has to do anyway, done when the call is on its way. */
	void (*meanwhile)(void *arg);
	void *arg;
};

struct client_rpc;
struct client_rpc_call;

/* Makes the channel; does not wait for a connection. busy_poll_us: how long client_rpc_call looks for an answer before
 * it sleeps. tls: copied; NULL is none. Its files are read anew when they change, and used from the next connection on;
 * the one there is stays. TERRACE_INVALID, TERRACE_UNSUPPORTED for an address, TERRACE_EXHAUSTED. */
struct client_tls;
enum terrace_status client_rpc_open(const char *address, uint64_t busy_poll_us, const struct client_tls *tls,
				    struct client_rpc **rpc);

/* The address that it was opened with. */
const char *client_rpc_address(const struct client_rpc *rpc);
/* The TLS that it was opened with; one that is off: none. */
const struct client_tls *client_rpc_tls(const struct client_rpc *rpc);

/* Ends all calls with TERRACE_CANCELLED, waits for them, stops the thread, closes the channel. The struct lives on for late
 * callers, who get TERRACE_PRECONDITION, until client_rpc_destroy. Not from a callback. */
void client_rpc_close(struct client_rpc *rpc);
void client_rpc_destroy(struct client_rpc *rpc);

/* True if there is a connection now. */
bool client_rpc_connected(struct client_rpc *rpc);

/* Carries a call out on the calling thread. */
enum terrace_status client_rpc_call(struct client_rpc *rpc, const struct client_job *job);

/* Starts a call whose functions, and then once done(arg, status), run on the background thread, never inside this one. *call is
 * set before anything can happen and is valid until `done` returns. Fails without any effect; TERRACE_EXHAUSTED when 4096 are
 * under way. */
enum terrace_status client_rpc_start(struct client_rpc *rpc, const struct client_job *job,
				     void (*done)(void *arg, enum terrace_status status), struct client_rpc_call **call);

/* Asks a started call to end with TERRACE_CANCELLED. Any thread, while the call is valid. */
void client_rpc_cancel(struct client_rpc_call *call);

/* True on the background thread. */
bool client_rpc_in_background(struct client_rpc *rpc);

/* A stream of replies, pulled: next() hands one message to job.take and returns what that returned; TERRACE_DEADLINE if none came
 * in time (the stream goes on); TERRACE_UNAVAILABLE, or the daemon's status, when it has ended. One thread at a time. */
enum terrace_status client_rpc_stream_open(struct client_rpc *rpc, const struct client_job *job,
					   struct client_rpc_call **call);
enum terrace_status client_rpc_stream_next(struct client_rpc_call *call, uint64_t deadline_us);
void client_rpc_stream_close(struct client_rpc_call *call);

#endif
