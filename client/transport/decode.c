/* The arena for protobuf-c, and a cursor for one message that is read by hand: GetChunk. Its megabyte of data goes from
 * gRPC's slices straight to the caller's memory.
 */
#include "client/transport/decode.h"

#include "client/value/status.h"

#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 16, ARENA_PIECE = 64 << 10 };

struct client_arena_piece {
	_Alignas(ARENA_ALIGN) struct client_arena_piece *next;
	_Alignas(ARENA_ALIGN) uint8_t bytes[];
};

static void *arena_alloc(void *arena, size_t bytes)
{
	return client_arena_take(arena, bytes);
}

static void arena_free(void *arena, void *p)
{
	(void)arena;
	(void)p;
}

void client_arena_init(struct client_arena *arena)
{
	arena->allocator = (ProtobufCAllocator){arena_alloc, arena_free, arena};
	arena->pieces = NULL;
	arena->next = arena->first;
	arena->left = sizeof(arena->first);
	arena->total = 0;
}

void client_arena_fini(struct client_arena *arena)
{
	struct client_arena_piece *piece;

	while ((piece = arena->pieces)) {
		arena->pieces = piece->next;
		free(piece);
	}
}

void *client_arena_take(struct client_arena *arena, size_t bytes)
{
	struct client_arena_piece *piece;
	size_t size;
	void *p;

	if (bytes > CLIENT_ARENA_MAX)
		return NULL;
	bytes = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
	if (bytes > arena->left) {
		size = bytes > ARENA_PIECE ? bytes : ARENA_PIECE;
		if (size > CLIENT_ARENA_MAX - arena->total)
			return NULL;
		piece = malloc(sizeof(*piece) + size);
		if (!piece)
			return NULL;
		piece->next = arena->pieces;
		arena->pieces = piece;
		arena->total += size;
		arena->next = piece->bytes;
		arena->left = size;
	}
	p = arena->next;
	arena->next += bytes;
	arena->left -= bytes;
	return p;
}

void *client_wire_unpack(struct client_arena *arena, const ProtobufCMessageDescriptor *type,
			 const struct client_message *message)
{
	struct client_cursor cursor;
	const uint8_t *data;
	uint8_t *joined;
	void *unpacked;

	if (message->count == 1) {
		data = message->segments[0].data;
	} else {
		data = joined = client_arena_take(arena, message->bytes);
		if (!joined) {
			client_fail(TERRACE_EXHAUSTED, "no memory for a reply of %zu bytes", message->bytes);
			return NULL;
		}
		client_cursor_init(&cursor, message);
		client_cursor_copy(&cursor, joined, message->bytes);
	}
	unpacked = protobuf_c_message_unpack(type, &arena->allocator, message->bytes, data);
	if (!unpacked)
		client_fail(TERRACE_INTERNAL, "the daemon's reply of %zu bytes is not a %s: "
			    "daemon and library are of different versions", message->bytes,
			    type->short_name);
	return unpacked;
}

void client_cursor_init(struct client_cursor *cursor, const struct client_message *message)
{
	*cursor = (struct client_cursor){.message = message, .left = message->bytes};
}

size_t client_cursor_run(struct client_cursor *cursor, size_t most, const uint8_t **data)
{
	const struct client_segment *s = &cursor->message->segments[cursor->segment];
	size_t n;

	while (cursor->left && cursor->at == s->size) {
		cursor->segment++;
		cursor->at = 0;
		s++;
	}
	if (!cursor->left || !most)
		return 0;
	n = s->size - cursor->at < most ? s->size - cursor->at : most;
	*data = s->data + cursor->at;
	cursor->at += n;
	cursor->left -= n;
	return n;
}

void client_cursor_copy(struct client_cursor *cursor, void *out, size_t bytes)
{
	const uint8_t *data;
	size_t n;

	for (uint8_t *to = out; bytes && (n = client_cursor_run(cursor, bytes, &data)); bytes -= n, to += n)
		memcpy(to, data, n);
}

static bool cursor_skip(struct client_cursor *cursor, size_t bytes)
{
	const uint8_t *data;

	if (bytes > cursor->left)
		return false;
	while (bytes)
		bytes -= client_cursor_run(cursor, bytes, &data);
	return true;
}

static bool cursor_varint(struct client_cursor *cursor, uint64_t *value)
{
	const uint8_t *byte;
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 70; shift += 7) {
		if (!client_cursor_run(cursor, 1, &byte))
			return false;
		v |= shift < 64 ? (uint64_t)(*byte & 0x7f) << shift : 0;
		if (!(*byte & 0x80)) {
			*value = v;
			return true;
		}
	}
	return false;
}

/* Reads a field's head, and over the whole of a field that is not length-delimited. */
static bool cursor_field(struct client_cursor *cursor, uint32_t *number, uint32_t *type, size_t *bytes)
{
	uint64_t tag, value;

	if (!cursor_varint(cursor, &tag) || tag >> 32 || !(tag >> 3))
		return false;
	*number = (uint32_t)(tag >> 3);
	*type = (uint32_t)tag & 7;
	*bytes = 0;
	switch (*type) {
	case 0:
		return cursor_varint(cursor, &value);
	case 1:
		return cursor_skip(cursor, 8);
	case CLIENT_WIRE_BYTES:
		if (!cursor_varint(cursor, &value) || value > cursor->left)
			return false;
		*bytes = (size_t)value;
		return true;
	case 5:
		return cursor_skip(cursor, 4);
	default:
		return false;
	}
}

bool client_cursor_field(struct client_cursor *cursor, uint32_t *number, uint32_t *type, size_t *bytes)
{
	if (!cursor->left || cursor->bad)
		return false;
	cursor->bad = !cursor_field(cursor, number, type, bytes);
	return !cursor->bad;
}
