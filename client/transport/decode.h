/* Reads protobuf messages from the daemon; every byte is checked before it is used. */
#ifndef TERRACE_CLIENT_TRANSPORT_DECODE_H
#define TERRACE_CLIENT_TRANSPORT_DECODE_H

#include "client/transport/grpc.h"

/* Memory of one decoded message: taken in pieces, freed at once. It is bounded, so that a hostile message cannot make
 * the decoder take much more than the message's own size. */
enum { CLIENT_ARENA_FIRST = 4096, CLIENT_ARENA_MAX = 128 << 20 };

struct client_arena_piece;
struct client_arena {
	ProtobufCAllocator allocator;
	struct client_arena_piece *pieces;
	uint8_t *next;
	size_t left, total;
	_Alignas(16) uint8_t first[CLIENT_ARENA_FIRST];
};

void client_arena_init(struct client_arena *arena);
void client_arena_fini(struct client_arena *arena);
/* Takes memory, 16-byte aligned and not cleared. NULL: the bound is reached, or there is no memory. */
void *client_arena_take(struct client_arena *arena, size_t bytes);

/* Unpacks a message into the arena. NULL, with the error text set: it is not such a message. */
void *client_wire_unpack(struct client_arena *arena, const ProtobufCMessageDescriptor *type,
			 const struct client_message *message);

/* Reads over the segments of a message without joining them. */
struct client_cursor {
	const struct client_message *message;
	size_t segment, at; /* position: segment, byte in it */
	size_t left;        /* bytes of the message not read */
	bool bad;           /* garbage was met */
};

void client_cursor_init(struct client_cursor *cursor, const struct client_message *message);
/* Reads a field's number and wire type and, for a length-delimited field, its length (checked against what is left).
 * False: the end, or garbage; cursor->bad tells which. The values of other wire types are skipped, with *bytes 0. */
bool client_cursor_field(struct client_cursor *cursor, uint32_t *number, uint32_t *type, size_t *bytes);
/* Returns the length of the next run of contiguous bytes, at most `most`, and moves on. most <= cursor->left. */
size_t client_cursor_run(struct client_cursor *cursor, size_t most, const uint8_t **data);
/* Copies `bytes` (<= cursor->left) out. */
void client_cursor_copy(struct client_cursor *cursor, void *out, size_t bytes);

enum { CLIENT_WIRE_BYTES = 2 }; /* wire type of length-delimited fields */

#endif
