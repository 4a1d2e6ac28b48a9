/* Inside daemon/etcd: one completion queue, which only the client's thread reads. One unary call at a time uses it, and
 * one watch beside it. Each kind of event has a fixed tag. engine_wait notes every event that comes, whichever one it
 * waits for.
 */
#ifndef TERRACE_DAEMON_ETCD_ENGINE_H
#define TERRACE_DAEMON_ETCD_ENGINE_H

#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>
#include <stdatomic.h>

#include "daemon/etcd/etcd.h"

enum engine_tag { TAG_UNARY, TAG_WATCH_SENT, TAG_WATCH_RECEIVED, TAG_WATCH_STATUS, TAGS };

enum { ETCD_HOST_MAX = 272, ETCD_TOKEN_MAX = 1024 };

/* One gRPC call: what it sends and receives. */
struct wire {
	grpc_call *call;
	grpc_metadata_array initial, trailing;
	grpc_byte_buffer *sent, *received;
	grpc_status_code code;
	grpc_slice details;
};

struct etcd {
	struct etcd_options options;
	char endpoints[ETCD_ENDPOINTS_MAX][ETCD_HOST_MAX];
	uint32_t endpoint_count, next;
	char endpoint[ETCD_HOST_MAX];
	char token[ETCD_TOKEN_MAX];  /* empty: none */
	char why[ETCD_WHY_MAX];
	grpc_completion_queue *queue;
	grpc_channel *channel;       /* NULL: not connected */
	atomic_bool interrupted;
	bool pending[TAGS];          /* gRPC owes an event of that tag */
	char tags[TAGS];             /* &tags[i] is the tag */
	struct wire watch;
	bool watching;               /* `watch` has a call */
};

/* Waits for the event of one tag, at most until clock_us() is until_us. False: it did not come, because of the time or
 * of an interrupt. */
bool engine_wait(struct etcd *e, enum engine_tag tag, uint64_t until_us);
/* Waits for an event that is sure to come: its call has a deadline, or was cancelled. An interrupt cancels `w`. */
void engine_reap(struct etcd *e, enum engine_tag tag, struct wire *w);

/* Begins a gRPC call. wait_us 0: without a deadline. INTERNAL: no call can be made. */
enum status wire_begin(struct etcd *e, struct wire *w, const char *path, uint64_t wait_us);
void wire_end(struct wire *w);
grpc_byte_buffer *wire_pack(const ProtobufCMessage *message);
/* The message in the bytes, to be freed with protobuf_c_message_free_unpacked. NULL: they are no such message. */
ProtobufCMessage *wire_unpack(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *bytes);
/* The status of a call that has ended. Unless it is OK, e->why has its words. */
enum status wire_status(struct etcd *e, const struct wire *w, const char *name);
void wire_start(struct etcd *e, struct wire *w, enum engine_tag tag, const grpc_op *ops, size_t n);
enum status engine_fail(struct etcd *e, enum status s, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Sends one message and receives one. A stream of etcd that answers each message with one works too. *answer: as
 * wire_unpack. */
enum status engine_call(struct etcd *e, const char *path, const ProtobufCMessage *ask,
			const ProtobufCMessageDescriptor *type, ProtobufCMessage **answer);

/* `prefix` with its last byte one higher: the end of the range of all keys that begin so. prefix: not empty, ASCII. */
ProtobufCBinaryData range_end(const char *prefix, char *out, size_t size);
static inline ProtobufCBinaryData engine_text(const char *text, size_t n)
{
	return (ProtobufCBinaryData){ .data = (uint8_t *)text, .len = n };
}

/* calls.c: takes a token for the calls of this connection. */
enum status etcd_authenticate(struct etcd *e);
/* watch.c */
void watch_close(struct etcd *e);

/* files.c: the whole file, with a NUL behind it, at most `most` bytes. NULL: words in `why`. The caller frees it. */
char *file_read(const char *path, size_t most, size_t *bytes, char *why, size_t why_size);

#endif
