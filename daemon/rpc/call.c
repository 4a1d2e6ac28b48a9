/* The arena and the way from bytes to a handler. See rpc/call.h. */
#include "daemon/rpc/call.h"

#include "daemon/block/wait.h"
#include "daemon/process/daemon.h"
#include "daemon/process/rights.h"
#include "daemon/rpc/handler.h"
#include "daemon/secrets/secrets.h"
#include "daemon/session/open.h"
#include "store/status.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rpc_chunk {
	struct rpc_chunk *next;
	size_t size, used;
	_Alignas(16) uint8_t bytes[];
};
enum { CHUNK_BYTES = 64 * 1024 };

void *rpc_arena_take(struct rpc_arena *a, size_t bytes)
{
	if (bytes > RPC_ARENA_MAX)
		return NULL;
	bytes = (bytes + 15) & ~(size_t)15;
	if (bytes <= sizeof a->first - a->used) {
		a->used += bytes;
		return a->first + a->used - bytes;
	}
	struct rpc_chunk *k = a->chunks;

	if (!k || k->size - k->used < bytes) {
		size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;

		if (a->total + size > RPC_ARENA_MAX)
			return NULL;
		k = malloc(sizeof *k + size);
		if (!k)
			return NULL;
		*k = (struct rpc_chunk){ .next = a->chunks, .size = size };
		a->chunks = k;
		a->total += size;
	}
	k->used += bytes;
	return k->bytes + k->used - bytes;
}

void rpc_arena_keep(struct rpc_arena *a)
{
	a->kept.chunk = a->chunks;
	a->kept.used = a->used;
	a->kept.chunk_used = a->chunks ? a->chunks->used : 0;
}

void rpc_arena_rewind(struct rpc_arena *a)
{
	while (a->chunks != a->kept.chunk) {
		struct rpc_chunk *next = a->chunks->next;

		a->total -= a->chunks->size;
		free(a->chunks);
		a->chunks = next;
	}
	if (a->chunks)
		a->chunks->used = a->kept.chunk_used;
	a->used = a->kept.used;
}

void rpc_arena_reset(struct rpc_arena *a)
{
	memset(&a->kept, 0, sizeof a->kept);
	rpc_arena_rewind(a);
}

void *rpc_take(struct rpc_call *c, size_t bytes)
{
	return rpc_arena_take(&c->arena, bytes);
}

void *rpc_take_zero(struct rpc_call *c, size_t count, size_t bytes)
{
	size_t all;

	if (__builtin_mul_overflow(count, bytes, &all))
		return NULL;
	void *p = rpc_arena_take(&c->arena, all);

	if (p)
		memset(p, 0, all);
	return p;
}

enum status rpc_fail(struct rpc_call *c, enum status s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(c->why, sizeof c->why, format, args);
	va_end(args);
	return s;
}

enum status rpc_too_big(struct rpc_call *c)
{
	return rpc_fail(c, STATUS_EXHAUSTED, "the call needs more memory than one call may have");
}

static void who_calls(struct rpc_call *c, struct who *out)
{
	*out = (struct who){ .role = ROLE_ADMIN };
	if (c->who)
		c->who(c, out);
}

bool rpc_is_admin(struct rpc_call *c)
{
	struct who who;

	who_calls(c, &who);
	return who.role == ROLE_ADMIN;
}

enum status rpc_denied(struct rpc_call *c, const char *what)
{
	struct who who;

	who_calls(c, &who);
	rights_refusal(c->daemon->config, what, &who, c->why, sizeof c->why);
	return STATUS_DENIED;
}

enum status rpc_no_tenant(struct rpc_call *c)
{
	struct who who;

	who_calls(c, &who);
	rights_no_tenant(&who, c->why, sizeof c->why);
	return STATUS_DENIED;
}

void rpc_call_init(struct rpc_call *c, const struct daemon *d, const struct rpc_method *m, uint64_t now_us,
		   uint64_t deadline_us)
{
	c->daemon = d;
	c->method = m;
	c->now_us = now_us;
	c->began_us = now_us;
	c->deadline_us = deadline_us;
	c->resume_us = 0;
	c->why[0] = 0;
	atomic_store_explicit(&c->cancelled, false, memory_order_relaxed);
	c->worker = false;
	memset(&c->step, 0, sizeof c->step);
	c->stream = NULL;
	memset(&c->times, 0, sizeof c->times);
	call_step_begin(&c->times, now_us);
	c->arena.used = 0;
	c->arena.total = 0;
	c->arena.chunks = NULL;
	rpc_arena_keep(&c->arena);
}

const struct names *rpc_names(const struct rpc_call *c)
{
	return c->daemon->secrets ? secrets_names(c->daemon->secrets) : NULL;
}

struct cache *rpc_cache(const struct rpc_call *c)
{
	return c->daemon->cache;
}

void rpc_call_fini(struct rpc_call *c)
{
	rpc_arena_reset(&c->arena);
}

uint64_t rpc_own_session(const struct rpc_call *c, uint64_t session)
{
	return !c->tenant || !session || cache_session_tenant(rpc_cache(c), session) == c->tenant ? session
												  : UINT64_MAX;
}

static void own_session(const struct rpc_call *c, ProtobufCMessage *m)
{
	const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "session");
	uint64_t *session;

	if (!f || f->label == PROTOBUF_C_LABEL_REPEATED ||
	    (f->type != PROTOBUF_C_TYPE_UINT64 && f->type != PROTOBUF_C_TYPE_FIXED64))
		return;
	session = (uint64_t *)(void *)((char *)m + f->offset);
	*session = rpc_own_session(c, *session);
}

static void *unpack_alloc(void *arena, size_t bytes)
{
	return rpc_arena_take(arena, bytes);
}

static void unpack_free(void *arena, void *p)
{
	(void)arena;
	(void)p;
}

enum status rpc_call_unpack(struct rpc_call *c, const uint8_t *bytes, size_t n, ProtobufCMessage **out)
{
	ProtobufCAllocator arena = { unpack_alloc, unpack_free, &c->arena };
	ProtobufCMessage *m = protobuf_c_message_unpack(c->method->request, &arena, n, bytes);

	if (!m)
		return rpc_fail(c, STATUS_INVALID, "the request is no %s, or unpacks to too much",
				c->method->request->name);
	rpc_arena_keep(&c->arena);
	if (c->tenant)
		own_session(c, m);
	*out = m;
	return STATUS_OK;
}

/* ---- waiting for disks ---- */

enum { POLL_US = 2000 };

/* Nine tenths of the call's time: what is left serves the answer from memory. */
static uint64_t wait_until_us(const struct rpc_call *c)
{
	return c->began_us + (c->deadline_us - c->began_us) / 10 * 9;
}

static void wait_ready(void *arg)
{
	struct rpc_call *c = arg;

	call_step_woken(&c->times);
	if (c->wake)
		c->wake(c);
}

struct cache_wait *rpc_wait(struct rpc_call *c)
{
	if (!c->wait.ready) { /* else a completion may be reading it */
		c->wait.ready = wait_ready;
		c->wait.arg = c;
	}
	c->wait.last = c->now_us >= wait_until_us(c);
	return &c->wait;
}

enum status rpc_wait_busy(struct rpc_call *c)
{
	const uint64_t again_us = c->wait.poll ? POLL_US : c->wait.again_us, until_us = wait_until_us(c);

	c->resume_us = again_us && c->now_us + again_us < until_us ? c->now_us + again_us : until_us;
	rpc_arena_rewind(&c->arena);
	call_step_sleeps(&c->times);
	return STATUS_BUSY;
}

void rpc_wait_end(struct rpc_call *c)
{
	if (c->wait.ready)
		cache_wait_end(c->daemon->cache, &c->wait);
	c->wait = (struct cache_wait){ .ready = NULL };
	c->resume_us = 0;
}
