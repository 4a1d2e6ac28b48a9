/* One call: a state machine over batches of gRPC operations, independent of the thread that drives it.
 *
 * Together with transport/grpc.c, which includes this, it is the only code that knows gRPC C core.
 */
#ifndef TERRACE_CLIENT_TRANSPORT_GRPC_CALL_H
#define TERRACE_CLIENT_TRANSPORT_GRPC_CALL_H

#include "client/transport/address.h"
#include "client/transport/grpc.h"
#include "client/transport/tls.h"
#include "client/value/status.h"

#include <grpc/grpc.h>
#include <stdatomic.h>

enum call_phase {
	CALL_SENDING,   /* a message that is not the last is on its way */
	CALL_ANSWER,    /* last message sent, one reply and the status awaited */
	CALL_RECEIVING, /* a message of a stream is awaited */
	CALL_STATUS,    /* only the status is awaited */
	CALL_DONE,
};

/* The daemon to which a channel connects. */
struct client_endpoint {
	char address[CLIENT_ADDRESS_MAX];
	struct client_tls tls;
	struct client_tls_last tls_last; /* for the words of calls that fail */
};

struct client_rpc_call {
	struct client_rpc *rpc;
	struct client_endpoint *at; /* the connection's, for messages */
	struct client_rpc_call *next, **link; /* rpc->calls or rpc->streams; link NULL: on none */
	struct client_job job;
	grpc_call *call;
	grpc_completion_queue *queue; /* of a synchronous call or stream */
	enum call_phase phase;
	bool greeted;   /* initial metadata has been sent */
	bool listening; /* initial metadata has been asked for */
	bool pending;   /* a batch is under way (streams) */
	grpc_metadata_array initial, trailing;
	grpc_byte_buffer *sent, *received;
	grpc_status_code code;
	grpc_slice details;
	enum terrace_status taken; /* the status of job.take when not OK, with its words */
	char error[CLIENT_ERROR_MAX];
	void (*done)(void *arg, enum terrace_status status); /* asynchronous calls */
	atomic_bool cancelled; /* cancelled by this side */
};

#if defined(__SANITIZE_THREAD__)
#define CLIENT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CLIENT_TSAN 1
#endif
#endif
#ifdef CLIENT_TSAN
/* gRPC is not instrumented: these tell the sanitizer that a tag carries a happens-before from batch to event. */
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define TAG_RELEASE(p) __tsan_release(p)
#define TAG_ACQUIRE(p) __tsan_acquire(p)
#else
#define TAG_RELEASE(p) ((void)(p))
#define TAG_ACQUIRE(p) ((void)(p))
#endif

/* The path of a method, "/package.Service/Name". */
const char *client_call_path(enum client_method method);

/* A deadline in gRPC's form; 0: none. */
gpr_timespec client_call_time(uint64_t deadline_us);

/* Makes the gRPC call. TERRACE_INTERNAL. */
enum terrace_status client_call_init(struct client_rpc_call *c, struct client_rpc *rpc,
				     struct client_endpoint *at, const struct client_job *job,
				     grpc_channel *channel, void *handle, grpc_completion_queue *queue);

/* Asks for an early end, whose status will be TERRACE_CANCELLED. Any thread, while the call lives. */
void client_call_cancel(struct client_rpc_call *c);

/* Frees the call. No batch may be under way. */
void client_call_fini(struct client_rpc_call *c);

/* Sends a message; with the last one it also asks for the answer. True: a batch is under way, whose tag is the call. */
bool client_call_send(struct client_rpc_call *c, const struct client_out *out);

/* Handles the end of a batch. False: no batch is under way any more, and the call is done. */
bool client_call_step(struct client_rpc_call *c, bool success);

/* Gives the received message, if there is one, to job.take. If take refuses it, c->taken keeps the status. */
void client_call_take(struct client_rpc_call *c);

/* Starts the next batch of a stream: for a message, or only for the end. Returns as client_call_send. */
bool client_call_receive(struct client_rpc_call *c);
bool client_call_await_status(struct client_rpc_call *c);

/* The outcome of a call that is done, with the error text set. */
enum terrace_status client_call_status(const struct client_rpc_call *c);

#endif
