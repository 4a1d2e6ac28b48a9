/* Put and Get by stream, one block each.
 *
 * Put sends the header with the first chunk. The bytes are copied into gRPC's own slices, chunk by chunk. So the
 * caller's memory is not read after the call. Get copies from gRPC's slices straight to the caller's block, and
 * computes the checksum on the way, while the bytes are in the cache.
 */
#include "client/call/stream.h"

#include "client/session/connect.h"
#include "client/session/session.h"
#include "client/call/block_info.h"
#include "client/call/op.h"
#include "client/value/keys.h"
#include "client/value/layout.h"
#include "client/value/status.h"
#include "client/transport/decode.h"

#include <isa-l.h>
#include <stdlib.h>
#include <string.h>

enum {
	GET_HEADER_FIELD = 1, /* of GetChunk */
	GET_DATA_FIELD = 2,
	PUT_DATA_FIELD = 2, /* of PutChunk */
	GET_HEADER_MAX = 256,
	CRC_RUN_MAX = 1 << 30, /* isa-l counts in int */
};

uint32_t client_crc32c(uint32_t crc, const void *bytes, size_t size)
{
	uint8_t *at = (uint8_t *)(uintptr_t)bytes; /* isa-l forgot a const */

	crc = ~crc;
	for (size_t n; size; at += n, size -= n) {
		n = size < CRC_RUN_MAX ? size : CRC_RUN_MAX;
		crc = crc32_iscsi(at, (int)n, crc);
	}
	return ~crc;
}

/* ---- what a stream call is about
 * ----------------------------------------------------------------------------------- */

struct target {
	uint32_t layout;
	const uint8_t *key;
	uint32_t key_bytes;
};

static enum terrace_status target_check(struct terrace_session *session, const struct target *t, const void *block)
{
	enum terrace_status status = client_session_check(session);

	if (status)
		return status;
	if (t->layout >= session->view->layout_count)
		return client_fail(TERRACE_INVALID, "layout %u: the session has %u", t->layout,
				   session->view->layout_count);
	if (!block)
		return client_fail(TERRACE_INVALID, "the block is NULL");
	return client_keys_check(&(struct terrace_keys){t->key, 1, t->key_bytes});
}

/* Fails a call for which no operation could be made. */
static enum terrace_status op_fail(struct terrace_op **place, const char *call)
{
	return place ? client_fail(TERRACE_EXHAUSTED, "%s: no memory", call)
		     : client_fail(TERRACE_INVALID, "%s: the pointer for the operation is NULL", call);
}

/* ---- put
 * ----------------------------------------------------------------------------------------------------------- */

static enum terrace_status put_reply_read(struct client_putting *p, const Terrace__V1__PutReply *reply)
{
	enum terrace_status status = client_epoch_check(p->view, reply->epoch);

	if (status)
		return status;
	if (reply->n_status != 1)
		return client_fail(TERRACE_INTERNAL, "the daemon answers one block with %zu statuses", reply->n_status);
	status = client_status_of_wire((int)reply->status[0]);
	return status ? client_fail(status, "put: %s", terrace_status_text(status)) : TERRACE_OK;
}

enum terrace_status client_put_read(struct client_putting *putting, const struct client_message *message)
{
	Terrace__V1__PutReply *reply;
	struct client_arena arena;
	enum terrace_status status;

	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__put_reply__descriptor, message);
	status = reply ? put_reply_read(putting, reply) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

/* The next chunk; the first carries the header. */
static void put_chunk(struct client_putting *p, struct client_out *out)
{
	uint64_t left = p->block_bytes - p->sent;

	p->chunk.header = p->sent ? NULL : &p->header;
	*out = (struct client_out){
		.message = &p->chunk.base,
		.tail_field = PUT_DATA_FIELD,
		.tail = p->block + p->sent,
		.tail_bytes = left < CLIENT_CHUNK_MAX ? left : CLIENT_CHUNK_MAX,
	};
	p->sent += out->tail_bytes;
	out->last = p->sent == p->block_bytes;
}

/* Reads the key's position, in units. Where a block covers several keys, the position says which tokens the block
 * has. */
static enum terrace_status put_position(const struct client_view *view, const struct terrace_block_info *info,
					uint64_t *out)
{
	const uint32_t unit = client_view_unit(view);
	struct terrace_block_info i;

	if (!client_view_chained(view))
		return TERRACE_OK;
	if (!info)
		return client_fail(TERRACE_INVALID,
				   "no info: where a block covers several keys a put says its position");
	if (!client_options_copy(&i, sizeof(i), info, sizeof(i)))
		return client_fail(TERRACE_INVALID,
				   "the info's size is not set: begin it with TERRACE_BLOCK_INFO_INIT");
	if (i.position % unit || i.position / unit > INT32_MAX)
		return client_fail(TERRACE_INVALID, "position %llu is not that of a unit's first token: units have %u",
				   (unsigned long long)i.position, unit);
	*out = i.position / unit;
	return TERRACE_OK;
}

static enum terrace_status putting_init(struct client_putting *p, struct terrace_session *session,
					const struct target *t, const struct terrace_block_info *info, const void *block)
{
	struct client_infos infos;
	enum terrace_status status = target_check(session, t, block);

	uint64_t position = 0;

	if (!status)
		status = put_position(session->view, info, &position);
	if (!status)
		status = client_infos_init(&infos, session->view, info, 1, t->key_bytes);
	if (status)
		return client_fail_in(status, "put");
	*p = (struct client_putting){
		.view = session->view,
		.block = block,
		.block_bytes = session->view->layouts[t->layout].geometry.block_bytes,
	};
	terrace__v1__put_chunk__init(&p->chunk);
	terrace__v1__put_header__init(&p->header);
	p->header.session = session->view->id;
	p->header.layout = t->layout;
	p->header.position = (uint32_t)position;
	p->header.key = CLIENT_BINARY(t->key, t->key_bytes);
	if (infos.count) {
		p->info = infos.infos[0];
		p->header.info = &p->info;
	}
	p->header.has_crc = true;
	p->header.crc32c = client_crc32c(0, block, p->block_bytes);
	client_infos_fini(&infos);
	return TERRACE_OK;
}

static void put_more_sync(void *arg, struct client_out *out)
{
	put_chunk(arg, out);
}

static enum terrace_status put_take_sync(void *arg, const struct client_message *message)
{
	return client_put_read(arg, message);
}

enum terrace_status terrace_put(struct terrace_session *session, uint32_t l, const uint8_t *key, uint32_t key_bytes,
				const struct terrace_block_info *info, const void *block, uint64_t timeout_us)
{
	struct client_putting putting;
	enum terrace_status status = putting_init(&putting, session, &(struct target){l, key, key_bytes}, info, block);
	struct client_job job = {.method = CLIENT_PUT, .more = put_more_sync, .take = put_take_sync, .arg = &putting};

	if (status)
		return status;
	job.deadline_us = client_call_deadline(session->view->client, timeout_us);
	put_chunk(&putting, &job.first);
	return client_view_call(session->view, &job);
}

struct put_op {
	struct terrace_op op;
	struct client_putting putting;
};

static void put_more_async(void *arg, struct client_out *out)
{
	put_chunk(&((struct put_op *)arg)->putting, out);
}

static enum terrace_status put_take_async(void *arg, const struct client_message *message)
{
	return client_put_read(&((struct put_op *)arg)->putting, message);
}

static void put_dispose(struct terrace_op *op)
{
	free(op);
}

enum terrace_status terrace_put_async(struct terrace_session *session, uint32_t l, const uint8_t *key, uint32_t key_bytes,
				      const struct terrace_block_info *info, const void *block, uint64_t timeout_us,
				      const struct terrace_completion *completion, struct terrace_op **op)
{
	struct client_job job = {.method = CLIENT_PUT, .more = put_more_async, .take = put_take_async};
	struct put_op *o = op ? calloc(1, sizeof(*o)) : NULL;
	enum terrace_status status;

	if (!o)
		return op_fail(op, "put");
	status = putting_init(&o->putting, session, &(struct target){l, key, key_bytes}, info, block);
	if (status) {
		free(o);
		return status;
	}
	client_op_init(&o->op, CLIENT_OP_PUT, session->view, completion, put_dispose);
	job.deadline_us = client_call_deadline(session->view->client, timeout_us);
	job.arg = o;
	put_chunk(&o->putting, &job.first);
	return client_op_start(&o->op, &job, op);
}

enum terrace_status terrace_put_finish(struct terrace_op *op)
{
	bool ended;
	enum terrace_status status = client_op_await(op, CLIENT_OP_PUT, &ended);

	if (ended)
		client_op_end(op);
	return status;
}

/* ---- get
 * ----------------------------------------------------------------------------------------------------------- */

static enum terrace_status get_header_check(struct client_getting *g, const Terrace__V1__GetHeader *header)
{
	enum terrace_status status = client_status_of_wire((int)header->status);

	if (status)
		return client_fail(status, "get: %s", terrace_status_text(status));
	if (header->index || header->block_bytes != g->block_bytes)
		return client_fail(TERRACE_INTERNAL, "the daemon sends block %u of %llu bytes, not 0 of %llu", header->index,
				   (unsigned long long)header->block_bytes, (unsigned long long)g->block_bytes);
	if (header->tokens < 1 || header->tokens > g->block_tokens)
		return client_fail(TERRACE_INTERNAL, "the daemon says the block has %u tokens", header->tokens);
	g->headed = true;
	g->tokens = header->tokens;
	g->want_crc = header->crc32c;
	return TERRACE_OK;
}

static enum terrace_status get_header(struct client_getting *g, struct client_cursor *cursor, size_t bytes)
{
	uint8_t raw[GET_HEADER_MAX];
	struct client_arena arena;
	Terrace__V1__GetHeader *header;
	enum terrace_status status;

	if (g->headed || bytes > sizeof(raw))
		return client_fail(TERRACE_INTERNAL, "the daemon sends a second header, or one of %zu bytes", bytes);
	client_cursor_copy(cursor, raw, bytes);
	client_arena_init(&arena);
	header = client_wire_unpack(&arena, &terrace__v1__get_header__descriptor,
				    &(struct client_message){&(struct client_segment){raw, bytes}, 1, bytes});
	status = header ? get_header_check(g, header) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

static enum terrace_status get_data(struct client_getting *g, struct client_cursor *cursor, size_t bytes)
{
	const uint8_t *data;
	size_t n;

	if (!g->headed || bytes > g->block_bytes - g->got)
		return client_fail(TERRACE_INTERNAL, "the daemon sends more bytes than the block has, or none of a header");
	for (; bytes && (n = client_cursor_run(cursor, bytes, &data)); bytes -= n, g->got += n) {
		memcpy(g->block + g->got, data, n);
		g->crc = client_crc32c(g->crc, g->block + g->got, n);
	}
	return TERRACE_OK;
}

static void field_skip(struct client_cursor *cursor, size_t bytes)
{
	const uint8_t *data;
	size_t n;

	for (; bytes && (n = client_cursor_run(cursor, bytes, &data)); bytes -= n)
		;
}

enum terrace_status client_get_read(struct client_getting *g, const struct client_message *message)
{
	struct client_cursor cursor;
	uint32_t number, type;
	size_t bytes;

	client_cursor_init(&cursor, message);
	while (client_cursor_field(&cursor, &number, &type, &bytes)) {
		enum terrace_status status = TERRACE_OK;

		if (number == GET_HEADER_FIELD && type == CLIENT_WIRE_BYTES)
			status = get_header(g, &cursor, bytes);
		else if (number == GET_DATA_FIELD && type == CLIENT_WIRE_BYTES)
			status = get_data(g, &cursor, bytes);
		else
			field_skip(&cursor, bytes);
		if (status)
			return status;
	}
	return cursor.bad ? client_fail(TERRACE_INTERNAL, "the daemon sends garbage for a chunk") : TERRACE_OK;
}

static bool get_is_whole(const struct client_getting *g)
{
	return g->headed && g->got == g->block_bytes;
}

enum terrace_status client_get_check(const struct client_getting *g)
{
	if (!get_is_whole(g))
		return client_fail(TERRACE_CORRUPT, "get: the stream ended after %llu of %llu bytes: get it again, or compute the block",
				   (unsigned long long)g->got, (unsigned long long)g->block_bytes);
	if (g->crc != g->want_crc)
		return client_fail(TERRACE_CORRUPT, "get: the checksum is wrong: get it again, or compute the block");
	return TERRACE_OK;
}

struct get_request {
	Terrace__V1__GetRequest request;
	Terrace__V1__Keys names;
};

static const ProtobufCMessage *get_request_fill(struct get_request *r, const struct client_view *view,
						const struct target *t)
{
	client_keys_message(&(struct terrace_keys){t->key, 1, t->key_bytes}, &r->names);
	terrace__v1__get_request__init(&r->request);
	r->request.session = view->id;
	r->request.keys = &r->names;
	r->request.layout = t->layout;
	return &r->request.base;
}

static struct client_getting getting_of(const struct client_view *view, uint32_t l, void *block)
{
	return (struct client_getting){
		.view = view,
		.block_bytes = view->layouts[l].geometry.block_bytes,
		.block_tokens = view->layouts[l].layout.block_tokens,
		.block = block,
	};
}

static enum terrace_status get_take_sync(void *arg, const struct client_message *message)
{
	return client_get_read(arg, message);
}

static bool get_whole_sync(const void *arg)
{
	return get_is_whole(arg);
}

enum terrace_status terrace_get(struct terrace_session *session, uint32_t l, const uint8_t *key, uint32_t key_bytes,
				void *block, uint32_t *tokens, uint64_t timeout_us)
{
	struct target target = {l, key, key_bytes};
	enum terrace_status status = target_check(session, &target, block);
	struct client_getting getting;
	struct get_request request;

	if (status)
		return client_fail_in(status, "get");
	getting = getting_of(session->view, l, block);
	status = client_view_call(session->view,
				  &(struct client_job){
					  .method = CLIENT_GET,
					  .deadline_us = client_call_deadline(session->view->client, timeout_us),
					  .first = {.message = get_request_fill(&request, session->view, &target),
						    .last = true},
					  .take = get_take_sync,
					  .whole = get_whole_sync,
					  .arg = &getting,
				  });
	if (!status)
		status = client_get_check(&getting);
	if (!status && tokens)
		*tokens = getting.tokens;
	return status;
}

struct get_op {
	struct terrace_op op;
	struct client_getting getting;
};

static enum terrace_status get_take_async(void *arg, const struct client_message *message)
{
	return client_get_read(&((struct get_op *)arg)->getting, message);
}

static bool get_whole_async(const void *arg)
{
	return get_is_whole(&((const struct get_op *)arg)->getting);
}

static void get_dispose(struct terrace_op *op)
{
	free(op);
}

enum terrace_status terrace_get_async(struct terrace_session *session, uint32_t l, const uint8_t *key, uint32_t key_bytes,
				      void *block, uint64_t timeout_us, const struct terrace_completion *completion,
				      struct terrace_op **op)
{
	struct target target = {l, key, key_bytes};
	enum terrace_status status = target_check(session, &target, block);
	struct get_request request;
	struct get_op *o;

	if (status)
		return client_fail_in(status, "get");
	o = op ? calloc(1, sizeof(*o)) : NULL;
	if (!o)
		return op_fail(op, "get");
	client_op_init(&o->op, CLIENT_OP_GET, session->view, completion, get_dispose);
	o->getting = getting_of(session->view, l, block);
	return client_op_start(&o->op,
			       &(struct client_job){
				       .method = CLIENT_GET,
				       .deadline_us = client_call_deadline(session->view->client, timeout_us),
				       .first = {.message = get_request_fill(&request, session->view, &target),
						 .last = true},
				       .take = get_take_async,
				       .whole = get_whole_async,
				       .arg = o,
			       },
			       op);
}

enum terrace_status terrace_get_finish(struct terrace_op *op, uint32_t *tokens)
{
	struct get_op *o = (struct get_op *)op;
	bool ended;
	enum terrace_status status = client_op_await(op, CLIENT_OP_GET, &ended);

	if (!ended)
		return status;
	if (!status)
		status = client_get_check(&o->getting);
	if (!status && tokens)
		*tokens = o->getting.tokens;
	client_op_end(op);
	return status;
}
