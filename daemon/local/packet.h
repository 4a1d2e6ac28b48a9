/* The contents of a local call (proto/fdsock.h): its packet, its method, and how long its reply may become. No thread
 * and no socket here. */
#ifndef TERRACE_DAEMON_LOCAL_PACKET_H
#define TERRACE_DAEMON_LOCAL_PACKET_H

#include "proto/fdsock.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cache;
struct rpc_method;

struct local_asked {
	enum fdsock_method method;
	uint64_t left_us;         /* as in struct fdsock_call */
	const uint8_t *request;   /* packed, inside of the packet */
	size_t bytes;
};

/* Reads a packet of n bytes (any bytes). False: it is not a CALL of a known method. Fuzzed. */
bool local_call_read(const void *packet, size_t n, struct local_asked *out);

/* The row of the methods' table. Never NULL for what local_call_read has read. */
const struct rpc_method *local_call_method(enum fdsock_method method);

/* The session that an unpacked request names. */
uint64_t local_call_session(const struct rpc_method *method, const ProtobufCMessage *request);

/* The most bytes that the packed reply may have, with its head. */
size_t local_call_reply_most(struct cache *c, enum fdsock_method method, const ProtobufCMessage *request);

#endif
