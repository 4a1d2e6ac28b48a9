/* What a method's handler is: functions of a call (rpc/call.h), and the table that lists them. */
#ifndef TERRACE_DAEMON_RPC_HANDLER_H
#define TERRACE_DAEMON_RPC_HANDLER_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/status.h"

struct rpc_call;

/* A step of a unary method. OK: *reply (in the arena) is the answer. BUSY: the step runs again with the same request,
 * at c->resume_us or when c->wake is called (methods of kind RPC_INLINE on the rpc thread); with resume_us 0, at once
 * on a worker. Anything else: the call fails, with c->why. */
typedef enum status rpc_unary_fn(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply);

/* The reply of a successful call has not reached the client, so the client does not know what it grants: takes that
 * back. By the call's owner; the reply is not used afterwards. */
typedef void rpc_undo_fn(struct rpc_call *c, const ProtobufCMessage *request, const ProtobufCMessage *reply);

/* A server stream. open: on the rpc thread, once. next: the following message. close: exactly once after a
 * successful open, on the rpc thread, whatever happened. */
enum rpc_next {
	RPC_NEXT_MESSAGE, /* *out is to be sent; next is called again once it has left */
	RPC_NEXT_WAIT,    /* nothing now: next is called again after rpc_server_wake, or about c->resume_us if that is not 0 */
	RPC_NEXT_WORKER,  /* takes long: call again, on a worker */
	RPC_NEXT_END,     /* all sent */
	RPC_NEXT_FAIL,    /* c->why; *failure is the status */
};
/* The message is head, then body. release(arg): exactly once, from any thread, when the body is no longer
 * read; NULL: head alone. */
struct rpc_out {
	uint8_t *head;             /* arena or stream memory; copied at once */
	size_t head_bytes;
	const uint8_t *body;
	size_t body_bytes;
	void (*release)(void *arg);
	void *arg;
};
struct rpc_server_stream {
	enum status (*open)(struct rpc_call *c, const ProtobufCMessage *request);
	enum rpc_next (*next)(struct rpc_call *c, bool worker, struct rpc_out *out, enum status *failure);
	void (*close)(struct rpc_call *c);
	bool endless;              /* lives as long as the client likes: no bound on its life */
};

/* Part of a received message. */
struct rpc_span {
	const uint8_t *at;
	size_t bytes;
};
/* A client stream. All on workers but close. */
struct rpc_client_stream {
	enum status (*open)(struct rpc_call *c);
	enum status (*message)(struct rpc_call *c, const struct rpc_span *spans, size_t n);
	enum status (*end)(struct rpc_call *c, ProtobufCMessage **reply);
	void (*close)(struct rpc_call *c);
};

enum rpc_kind { RPC_INLINE, RPC_WORKER, RPC_SERVER_STREAM, RPC_CLIENT_STREAM };

struct rpc_method {
	const char *path;          /* "/terrace.v1.Cache/Lookup" */
	const char *name;          /* "Cache.Lookup", for metrics */
	enum rpc_kind kind;
	bool hot;                  /* many calls at a time are expected */
	const ProtobufCMessageDescriptor *request;
	rpc_unary_fn *unary;
	rpc_undo_fn *undo;         /* NULL: the reply grants nothing */
	const struct rpc_server_stream *out;
	const struct rpc_client_stream *in;
	bool cluster;              /* served where a cluster is configured */
};

/* The table (rpc/methods.c), and its length. */
extern const struct rpc_method rpc_methods[];
extern const uint32_t rpc_methods_count;

#endif
