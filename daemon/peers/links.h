/* Calls to other members of the cluster, over mutual TLS, by a member's name.
 *
 * A connection to a member is made by the first call and closed when it has been without a call for LINK_IDLE_US. It
 * shows the daemon's own certificate (listen_cert) and takes only a member whose certificate is of listen_ca and has
 * the host of the member's address among its names. The three files are looked at each second: after a change new
 * connections use the new files, and an old connection is left to the calls that it has. A connection on which a call
 * came to nothing is not used again, so no call waits for a connection that a fault has cut.
 *
 * One thread with one completion queue runs all ends. A call takes one message at a time: the next one is asked for
 * when `message` has returned, so a slow reader stops its sender.
 */
#ifndef TERRACE_DAEMON_PEERS_LINKS_H
#define TERRACE_DAEMON_PEERS_LINKS_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/stat_row.h"
#include "store/status.h"

struct directory_run;
struct grpc_byte_buffer;
struct members;
struct tls_files;

enum {
	LINKS_MAX = 1024,              /* connections */
	LINKS_CALLS_MAX = 4096,        /* calls under way */
	LINK_CALLS_MAX = 64,           /* of them to one member: its server takes 100 of a connection */
	LINK_MESSAGE_MAX = 4 << 20,    /* bytes of one received message */
	LINK_WHY_MAX = 512,
};
#define LINK_IDLE_US (30ull * 1000 * 1000)

struct peer_links;
struct peer_call;

/* What the texts and pointers name must live as long as the links. */
struct peer_links_options {
	struct members *members;
	const struct tls_files *files; /* copied */
	const char *agent;             /* how the daemon names itself */
	/* Whether a member is not to be called now. Any thread. */
	bool (*avoided)(void *arg, const struct directory_run *run);
	/* A call to the member has ended so; not told of a call that links_cancel has ended. On the links' thread. */
	void (*told)(void *arg, const struct directory_run *run, enum status s);
	void *arg;
};

/* Starts the thread. Files that cannot be used make every call UNAVAILABLE until they can. EXHAUSTED, INTERNAL: no
 * memory, no thread. Block signals before. */
enum status links_create(const struct peer_links_options *o, struct peer_links **out);
/* Ends all calls with CANCELLED, refuses new ones, and returns when each has had its `ended`. */
void links_stop(struct peer_links *l);
/* Stops and frees. NULL allowed. */
void links_destroy(struct peer_links *l);

/* On the links' thread, which has called cache_thread_enter(), without a lock. */
struct peer_call_ops {
	/* The next message. The bytes are the callee's until it returns. It must not wait. NULL: there are none. */
	void (*message)(void *arg, const struct grpc_byte_buffer *bytes);
	/* The call is over: once, last. OK, or the status that the other end has given, or: DEADLINE; CANCELLED (after
	 * links_cancel or a stop); UNAVAILABLE (no connection); UNSUPPORTED (the member's version lacks the method;
	 * this run of it is not asked for the method again). */
	void (*ended)(void *arg, enum status s, const char *why);
};

struct peer_ask {
	const char *method;            /* "/terrace.v1.Peer/Find", a text that stays */
	const ProtobufCMessage *message; /* packed at once */
	uint64_t deadline_us;          /* of the machine's clock (store/clock.h) */
	const struct peer_call_ops *ops;
	void *arg;
};

/* Begins a call of one request and one answer, or of a stream of answers. Any thread; never waits. OK: *out is set
 * before the first of ops may run; `ended` comes. Else nothing was begun: EXHAUSTED, a bound of this header;
 * UNAVAILABLE, the member is not known or avoided, is this daemon, or there are no certificates; UNSUPPORTED, the
 * member is known to lack the method; CANCELLED, the links are stopped. */
enum status links_call(struct peer_links *l, const char *member, const struct peer_ask *ask, struct peer_call **out);
/* Asks a member whether it serves, also one that is avoided. Of a probe that comes to nothing nothing is told. */
enum status links_probe(struct peer_links *l, const char *member, uint64_t deadline_us);
/* Ends the call soon; `ended` still comes, with CANCELLED unless the call was over. Any thread, until `ended` has
 * begun: a caller that has both in different threads needs a lock of its own, which it may hold here. */
void links_cancel(struct peer_call *c);

/* The message in the bytes, to be freed with protobuf_c_message_free_unpacked. NULL: they are no such message. */
ProtobufCMessage *links_unpack(const ProtobufCMessageDescriptor *type, const struct grpc_byte_buffer *bytes);

enum link_state { LINK_NONE, LINK_CONNECTING, LINK_CONNECTED, LINK_BROKEN };
/* "none", "connecting", "connected", "broken". */
const char *link_state_text(enum link_state s);
/* The state of the connection to a member, and the calls that it has. Any thread. */
enum link_state links_state(struct peer_links *l, const char *member, uint32_t *calls);

void links_stats(struct peer_links *l, cache_stat_fn *emit, void *arg);

#endif
