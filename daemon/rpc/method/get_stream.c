/* Get, for engines, and Fetch, for members of the cluster: blocks' bytes, checked. Fetch names its blocks by the
 * numbers that they have in a loan (call/loan.h), and sends the slot's header, too.
 *
 * Engines may have a slot mapped writable. So for Get a block is copied to memory of the daemon's own, the copy is
 * compared with the commit's sums, and the copy is what is sent. For Fetch the block is compared where it lies and sent
 * from there, without a copy: the other member compares it again. A slot that was written over after its commit is
 * dropped; the block then comes from another tier that has it, or is a miss.
 *
 * A message is GetChunk{header, data}. Protobuf-c would copy the data, so the frame is made by hand: a few
 * bytes of prefix (the header as field 1, then tag and length of field 2, for Fetch the slot's header) and behind them
 * a piece of the block that gRPC reads in place. The copy, or the pin, stays until gRPC has let go of its last piece;
 * that may happen on any thread, so its end is deferred to the rpc thread. Looking a block up, its copy and its
 * checksums are a worker's; the pieces after the first are not. Reads of all streams have a bound (cache_read_begin):
 * beyond it a stream waits.
 */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/loan.h"
#include "daemon/call/stream.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/server.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
	CHUNK_STANDARD = 1024 * 1024,
	CHUNK_LEAST = 4096,
	CHUNK_MOST = 1024 * 1024,
	ROOM_AGAIN_US = 2000,
	TRIES_MAX = 4,           /* of a block that is found to be wrong: in memory, and in memory again as a disk or a GPU had it */
	TAG_HEADER = 1 << 3 | 2, /* GetChunk.header, length-delimited */
	TAG_DATA = 2 << 3 | 2,
	HEAD_BYTES = 96,         /* GetHeader, and the frames */
};

/* A block that is sent; lives on its own, since gRPC may hold pieces of it after the call is gone. */
struct get_block {
	struct rpc_deferred deferred; /* first */
	struct cache *cache;
	struct rpc_server *rpc;
	struct cache_read read;
	atomic_uint refs;             /* the stream's, and one a piece in gRPC's hands */
	uint32_t crc32c;
	const uint8_t *bytes;         /* [read.block_bytes]: of Get in `own`, of Fetch in the slot */
	void *own;                    /* of Fetch: the slot's header, which is sent before them */
};

struct get {
	uint64_t session;
	uint32_t layout;
	struct cache_keys keys;
	uint32_t tenant;              /* of Fetch, with the next two */
	uint64_t loan;
	const uint32_t *lent;         /* [count]: numbers in the loan; NULL: it is a Get */
	uint32_t index, count, chunk_bytes, tries;
	struct get_block *block;      /* being sent; NULL between blocks */
	uint64_t sent;                /* of the block's bytes */
	uint8_t head[];               /* [HEAD_BYTES]; of Fetch SLOT_HEADER_BYTES more */
};

static void block_end(struct rpc_deferred *item)
{
	struct get_block *b = (struct get_block *)item;

	cache_read_end(b->cache, &b->read);
	free(b->own);
	free(b);
}

static void block_drop(void *arg)
{
	struct get_block *b = arg;

	if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1) {
		b->deferred.run = block_end;
		rpc_server_defer(b->rpc, &b->deferred);
	}
}

static size_t put_varint(uint8_t *at, uint64_t n)
{
	size_t i = 0;

	for (; n >= 0x80; n >>= 7)
		at[i++] = (uint8_t)(n | 0x80);
	at[i++] = (uint8_t)n;
	return i;
}

static uint32_t chunk_of(uint32_t asked)
{
	return !asked ? CHUNK_STANDARD : asked < CHUNK_LEAST ? CHUNK_LEAST : asked;
}

static enum status get_open(struct rpc_call *c, const ProtobufCMessage *request)
{
	const Terrace__V1__GetRequest *q = (const Terrace__V1__GetRequest *)request;
	struct cache_keys keys;
	uint32_t layouts;
	enum status s = rpc_keys(c, q->keys, true, &keys);

	if (s != STATUS_OK ||
	    (s = rpc_session_layouts(c, q->session, &(struct cache_keys){ .count = 0 }, &layouts)) != STATUS_OK)
		return s;
	if (q->layout >= layouts)
		return rpc_fail(c, STATUS_INVALID, "layout: index %u, the session has %u", q->layout, layouts);
	if (q->chunk_bytes > CHUNK_MOST)
		return rpc_fail(c, STATUS_INVALID, "chunk_bytes: %u, at most %d", q->chunk_bytes, CHUNK_MOST);
	struct get *g = calloc(1, sizeof *g + HEAD_BYTES);

	if (!g)
		return rpc_too_big(c);
	g->session = q->session;
	g->layout = q->layout;
	g->keys = keys;
	g->count = keys.count;
	g->chunk_bytes = chunk_of(q->chunk_bytes);
	c->stream = g;
	return STATUS_OK;
}

static enum status fetch_open(struct rpc_call *c, const ProtobufCMessage *request)
{
	const Terrace__V1__FetchRequest *q = (const Terrace__V1__FetchRequest *)request;
	uint32_t tenant;
	enum status s = rpc_peer_tenant(c, q->tenant, &tenant);

	if (s)
		return s;
	if (q->n_index > LOAN_KEYS_MAX)
		return rpc_fail(c, STATUS_INVALID, "index: %zu numbers, at most %d", q->n_index, LOAN_KEYS_MAX);
	if (q->chunk_bytes > CHUNK_MOST)
		return rpc_fail(c, STATUS_INVALID, "chunk_bytes: %u, at most %d", q->chunk_bytes, CHUNK_MOST);
	struct get *g = calloc(1, sizeof *g + HEAD_BYTES + SLOT_HEADER_BYTES);

	if (!g)
		return rpc_too_big(c);
	g->tenant = tenant;
	g->loan = q->loan;
	g->lent = q->index;
	g->count = (uint32_t)q->n_index;
	g->chunk_bytes = chunk_of(q->chunk_bytes);
	c->stream = g;
	return STATUS_OK;
}

/* Header of key `index`, framed, into g->head. */
static size_t frame_header(struct get *g, enum status s)
{
	Terrace__V1__GetHeader h = TERRACE__V1__GET_HEADER__INIT;
	size_t n = 0;

	h.index = g->index;
	h.status = (Terrace__V1__Status)s;
	if (s == STATUS_OK) {
		h.tokens = g->block->read.tokens;
		h.block_bytes = g->block->read.block_bytes + (g->lent ? SLOT_HEADER_BYTES : 0);
		h.crc32c = g->block->crc32c;
	}
	g->head[n++] = TAG_HEADER;
	n += put_varint(g->head + n, terrace__v1__get_header__get_packed_size(&h));
	return n + terrace__v1__get_header__pack(&h, g->head + n);
}

/* Adds the next piece of the block behind `n` bytes of head. The first piece of Fetch has the slot's header before it;
 * each has a byte of the block at least, with which it is released. */
static void frame_piece(struct get *g, size_t n, struct rpc_out *out)
{
	struct get_block *b = g->block;
	const uint64_t page = g->lent && !g->sent ? SLOT_HEADER_BYTES : 0, left = b->read.block_bytes - g->sent;
	const uint64_t room = g->chunk_bytes > page ? g->chunk_bytes - page : 1, piece = left < room ? left : room;

	g->head[n++] = TAG_DATA;
	n += put_varint(g->head + n, page + piece);
	if (page)
		memcpy(g->head + n, b->own, page);
	atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
	*out = (struct rpc_out){ g->head, n + page, b->bytes + g->sent, piece, block_drop, b };
	g->sent += piece;
	if (g->sent == b->read.block_bytes) {
		g->block = NULL;
		g->index++;
		block_drop(b);
	}
}

/* Checks the block that was found: of Get a copy, of Fetch the slot itself. Not OK: the read is over. */
static enum status get_block_check(struct rpc_call *c, const struct get *g, struct get_block *b)
{
	enum status s = STATUS_EXHAUSTED;

	b->cache = rpc_cache(c);
	b->rpc = c->daemon->rpc;
	b->own = malloc(g->lent ? sizeof(struct slot_header) : b->read.block_bytes);
	b->bytes = g->lent ? b->read.block : b->own;
	if (b->own && g->lent)
		s = cache_read_check(b->cache, &b->read, b->own);
	else if (b->own)
		s = cache_read_copy(b->cache, &b->read, b->own, &b->crc32c);
	if (s == STATUS_OK) {
		b->crc32c = g->lent ? slot_block_crc(b->own) : b->crc32c;
		return s;
	}
	cache_read_end(b->cache, &b->read);
	free(b->own);
	return s;
}

static enum rpc_next get_block_send(struct rpc_call *c, struct get *g, struct get_block *b, struct rpc_out *out)
{
	rpc_wait_end(c);
	atomic_store_explicit(&b->refs, 1, memory_order_relaxed);
	g->block = b;
	g->sent = 0;
	g->tries = 0;
	frame_piece(g, frame_header(g, STATUS_OK), out);
	return RPC_NEXT_MESSAGE;
}

static bool is_miss(enum status s)
{
	return s == STATUS_MISS || s == STATUS_CORRUPT || s == STATUS_STALE;
}

/* The next message where there is no block to send: waits, ends the stream, or says that the key is a miss. */
static enum rpc_next get_block_none(struct rpc_call *c, struct get *g, enum status s, const char *why, struct rpc_out *out,
				    enum status *failure)
{
	if (s == STATUS_BUSY) {
		rpc_wait_busy(c);
		return RPC_NEXT_WAIT;
	}
	if (s == STATUS_EXHAUSTED && !rpc_wait(c)->last) { /* clients take what is on its way to them */
		c->resume_us = c->now_us + ROOM_AGAIN_US;
		return RPC_NEXT_WAIT;
	}
	rpc_wait_end(c);
	if (!is_miss(s)) {
		*failure = rpc_fail_why(c, s, why);
		return RPC_NEXT_FAIL;
	}
	*out = (struct rpc_out){ .head = g->head, .head_bytes = frame_header(g, STATUS_MISS) };
	g->index++;
	g->tries = 0;
	return RPC_NEXT_MESSAGE;
}

/* Pins the next block in memory, or waits for it. */
static enum status get_block_find(struct rpc_call *c, const struct get *g, struct get_block *b, const char **why)
{
	const struct cache_loan_read of_loan = { g->tenant, g->loan, g->lent ? g->lent[g->index] : 0, c->now_us };
	const struct cache_stream_call call = {
		.session = g->session,
		.layout = g->layout,
		.key = g->lent ? NULL : g->keys.bytes + (size_t)g->index * g->keys.key_bytes,
		.key_bytes = g->keys.key_bytes,
		.now_us = c->now_us,
	};

	if (g->lent)
		return cache_loan_read_begin(rpc_cache(c), &of_loan, &b->read, rpc_wait(c), why);
	return cache_read_begin(rpc_cache(c), &call, &b->read, rpc_wait(c), why);
}

/* Begins to send a block. If memory's copy is wrong, another tier may have a right one, and the block comes from there
 * by the same way. */
static enum rpc_next get_block_begin(struct rpc_call *c, struct get *g, struct rpc_out *out, enum status *failure)
{
	struct get_block *b = calloc(1, sizeof *b);
	const char *why = "no memory for a block";
	enum status s;

	if (!b) {
		*failure = rpc_too_big(c);
		return RPC_NEXT_FAIL;
	}
	do {
		s = get_block_find(c, g, b, &why);
		if (s == STATUS_OK) {
			const uint64_t copy_us = call_copy_begin();

			s = get_block_check(c, g, b);
			call_copy_end(&c->times, copy_us);
		}
	} while (s == STATUS_CORRUPT && ++g->tries < TRIES_MAX);
	if (s == STATUS_OK)
		return get_block_send(c, g, b, out);
	free(b);
	return get_block_none(c, g, s, why, out, failure);
}

static enum rpc_next get_next(struct rpc_call *c, bool worker, struct rpc_out *out, enum status *failure)
{
	struct get *g = c->stream;

	if (g->block) {
		frame_piece(g, 0, out);
		return RPC_NEXT_MESSAGE;
	}
	if (g->index == g->count)
		return RPC_NEXT_END;
	return worker ? get_block_begin(c, g, out, failure) : RPC_NEXT_WORKER;
}

static void get_close(struct rpc_call *c)
{
	struct get *g = c->stream;

	if (g->block)
		block_drop(g->block);
	free(g);
}

const struct rpc_server_stream rpc_get_stream = {
	.open = get_open,
	.next = get_next,
	.close = get_close,
};

const struct rpc_server_stream rpc_fetch_stream = {
	.open = fetch_open,
	.next = get_next,
	.close = get_close,
};
