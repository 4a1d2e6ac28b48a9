/* Put by stream: the client's bytes go from gRPC's buffers straight into the slot.
 *
 * Protobuf-c would gather a message and then copy its data once more, so a PutChunk is taken apart by hand,
 * over the pieces in which gRPC received it: one pass finds the header and the data and checks the framing,
 * and then the data is copied once. Everything here runs on workers but open and close.
 */
#include "daemon/block/lock.h"
#include "daemon/block/views.h"
#include "daemon/call/stream.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/clock.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

enum {
	HEADERS_MAX = 4096,        /* blocks a stream */
	HEADER_BYTES_MAX = 1024,   /* of a packed PutHeader */
	DATA_BYTES_MAX = 1024 * 1024,
	FIELD_HEADER = 1,
	FIELD_DATA = 2,
};

struct put {
	struct cache_write write;  /* while `writing` */
	bool writing, skipping;    /* skipping: the block was refused; its bytes are passed over */
	bool has_crc;
	uint32_t crc;
	uint64_t session, filled;
	uint32_t blocks;
	Terrace__V1__Status status[HEADERS_MAX];
};

/* A place in the pieces of a message. */
struct reader {
	const struct rpc_span *spans;
	size_t n, i, at;           /* pieces; the current one; offset in it */
	size_t left;               /* bytes of the whole message from here */
};

static bool read_byte(struct reader *r, uint8_t *out)
{
	while (r->i < r->n && r->at == r->spans[r->i].bytes) {
		r->i++;
		r->at = 0;
	}
	if (r->i == r->n)
		return false;
	*out = r->spans[r->i].at[r->at++];
	r->left--;
	return true;
}

static bool read_varint(struct reader *r, uint64_t *out)
{
	uint64_t v = 0;
	uint8_t b;

	for (unsigned shift = 0; shift < 64; shift += 7) {
		if (!read_byte(r, &b))
			return false;
		v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80)) {
			*out = v;
			return true;
		}
	}
	return false;
}

/* Copies `bytes` to `to`, or passes over them if it is NULL. The caller has checked r->left. */
static void read_bytes(struct reader *r, uint8_t *to, size_t bytes)
{
	while (bytes) {
		size_t room = r->spans[r->i].bytes - r->at, n = bytes < room ? bytes : room;

		if (to && n) {
			memcpy(to, r->spans[r->i].at + r->at, n);
			to += n;
		}
		r->at += n;
		r->left -= n;
		bytes -= n;
		if (bytes) {
			r->i++;
			r->at = 0;
		}
	}
}

static bool skip_field(struct reader *r, unsigned wire_type)
{
	uint64_t n;

	switch (wire_type) {
	case 0: return read_varint(r, &n);
	case 1: n = 8; break;
	case 2:
		if (!read_varint(r, &n))
			return false;
		break;
	case 5: n = 4; break;
	default: return false;
	}
	if (n > r->left)
		return false;
	read_bytes(r, NULL, n);
	return true;
}

struct chunk {
	bool has_header;
	uint8_t header[HEADER_BYTES_MAX];
	size_t header_bytes, data_bytes;
	struct reader data;        /* stands at the data */
};

/* NULL, or what is wrong with the message. */
static const char *take_apart(const struct rpc_span *spans, size_t n, struct chunk *out)
{
	struct reader r = { spans, n, 0, 0, 0 };
	uint64_t tag, bytes;

	out->has_header = false;
	out->data_bytes = 0;
	for (size_t i = 0; i < n; i++)
		r.left += spans[i].bytes;
	while (r.left) {
		if (!read_varint(&r, &tag) || tag >> 3 == 0)
			return "the message is no PutChunk";
		if (tag != (FIELD_HEADER << 3 | 2) && tag != (FIELD_DATA << 3 | 2)) {
			if (!skip_field(&r, tag & 7))
				return "the message is no PutChunk";
			continue;
		}
		if (!read_varint(&r, &bytes) || bytes > r.left)
			return "the message is cut short";
		if (tag >> 3 == FIELD_DATA) {
			if (bytes > DATA_BYTES_MAX)
				return "data: more than 1 MiB in a chunk";
			if (out->data_bytes)
				return "data: twice in a chunk";
			out->data = r;
			out->data_bytes = bytes;
			read_bytes(&r, NULL, bytes);
			continue;
		}
		if (bytes > HEADER_BYTES_MAX)
			return "header: too long";
		if (out->has_header)
			return "header: twice in a chunk";
		out->has_header = true;
		out->header_bytes = bytes;
		read_bytes(&r, out->header, bytes);
	}
	return NULL;
}

static enum status put_open(struct rpc_call *c)
{
	c->stream = calloc(1, sizeof(struct put));
	return c->stream ? STATUS_OK : rpc_too_big(c);
}

static void block_finish(struct rpc_call *c, struct put *p)
{
	struct cache *cache = rpc_cache(c);
	const enum status s = p->has_crc ? cache_write_end_summed(cache, p->session, &p->write, p->crc, c->now_us, clock_unix_ms())
					 : cache_write_end(cache, p->session, &p->write, true, c->now_us, clock_unix_ms());

	p->writing = false;
	p->status[p->blocks - 1] = (Terrace__V1__Status)s;
}

static enum status header_check(struct rpc_call *c, const Terrace__V1__PutHeader *h, struct slot_info *info)
{
	uint32_t layouts;
	enum status s = rpc_key(c, "header.key", &h->key);

	if (s != STATUS_OK || (h->info && (s = rpc_info(c, "header.info", 0, h->info, info)) != STATUS_OK) ||
	    (s = rpc_session_layouts(c, rpc_own_session(c, h->session), &(struct cache_keys){ .count = 1 },
				     &layouts)) != STATUS_OK)
		return s;
	if (h->layout >= layouts)
		return rpc_fail(c, STATUS_INVALID, "header.layout: index %u, the session has %u", h->layout, layouts);
	return STATUS_OK;
}

/* A block that is refused for its own sake (stored already, no room) is passed over; anything else ends the
 * stream. */
static enum status block_begin(struct rpc_call *c, struct put *p, const Terrace__V1__PutHeader *h)
{
	const uint64_t session = rpc_own_session(c, h->session);
	struct slot_info info = { 0 };
	const char *why = NULL;
	enum status s;

	if (p->writing)
		return rpc_fail(c, STATUS_INVALID, "block %u: a new header after %llu of its %llu bytes", p->blocks - 1,
				(unsigned long long)p->filled, (unsigned long long)p->write.block_bytes);
	if (p->blocks == HEADERS_MAX)
		return rpc_fail(c, STATUS_INVALID, "header: at most %d blocks a stream", HEADERS_MAX);
	s = header_check(c, h, &info);
	if (s != STATUS_OK)
		return s;
	const struct cache_stream_call call = {
		.session = session,
		.layout = h->layout,
		.key = h->key.data,
		.key_bytes = (uint32_t)h->key.len,
		.position = h->position,
		.info = h->info ? &info : NULL,
		.now_us = c->now_us,
	};

	s = cache_write_begin(rpc_cache(c), &call, &p->write, &why);
	p->skipping = s == STATUS_EXISTS || s == STATUS_BUSY || s == STATUS_EXHAUSTED;
	if (s != STATUS_OK && !p->skipping)
		return rpc_fail_why(c, s, why);
	p->status[p->blocks++] = (Terrace__V1__Status)s;
	p->writing = s == STATUS_OK;
	p->session = session;
	p->filled = 0;
	p->has_crc = h->has_crc;
	p->crc = h->crc32c;
	return STATUS_OK;
}

static enum status put_message(struct rpc_call *c, const struct rpc_span *spans, size_t n)
{
	struct put *p = c->stream;
	struct chunk k;
	const char *problem = take_apart(spans, n, &k);
	uint64_t copy_us;

	if (problem)
		return rpc_fail(c, STATUS_INVALID, "%s", problem);
	if (k.has_header) {
		Terrace__V1__PutHeader *h = terrace__v1__put_header__unpack(NULL, k.header_bytes, k.header);
		enum status s = h ? block_begin(c, p, h) : rpc_fail(c, STATUS_INVALID, "header: no PutHeader");

		if (h)
			terrace__v1__put_header__free_unpacked(h, NULL);
		if (s != STATUS_OK)
			return s;
	}
	if (!k.data_bytes || p->skipping)
		return STATUS_OK;
	if (!p->writing)
		return rpc_fail(c, STATUS_INVALID, "data: %s", p->blocks ? "more than the block's bytes" : "no header before it");
	if (k.data_bytes > p->write.block_bytes - p->filled)
		return rpc_fail(c, STATUS_INVALID, "block %u: more than its %llu bytes", p->blocks - 1,
				(unsigned long long)p->write.block_bytes);
	copy_us = call_copy_begin();
	read_bytes(&k.data, p->write.block + p->filled, k.data_bytes);
	p->filled += k.data_bytes;
	if (p->filled == p->write.block_bytes)
		block_finish(c, p);
	call_copy_end(&c->times, copy_us);
	return STATUS_OK;
}

static enum status put_end(struct rpc_call *c, ProtobufCMessage **reply)
{
	struct put *p = c->stream;
	Terrace__V1__PutReply *r = rpc_take(c, sizeof *r);

	if (p->writing)
		return rpc_fail(c, STATUS_INVALID, "block %u: the stream ends after %llu of its %llu bytes",
				p->blocks - 1, (unsigned long long)p->filled,
				(unsigned long long)p->write.block_bytes);
	if (!r)
		return rpc_too_big(c);
	terrace__v1__put_reply__init(r);
	r->epoch = cache_epoch(rpc_cache(c));
	r->n_status = p->blocks;
	r->status = p->status; /* lives until close, after the reply is packed */
	*reply = &r->base;
	return STATUS_OK;
}

static void put_close(struct rpc_call *c)
{
	struct put *p = c->stream;

	if (p->writing)
		cache_write_end(rpc_cache(c), p->session, &p->write, false, daemon_now_us(), clock_unix_ms());
	free(p);
}

const struct rpc_client_stream rpc_put_stream = {
	.open = put_open,
	.message = put_message,
	.end = put_end,
	.close = put_close,
};
