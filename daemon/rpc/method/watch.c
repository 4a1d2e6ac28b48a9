/* Watch: events of the cache, one a message, in order. The cache's queue is the only one: while the client
 * does not read, events wait there, and an overflow there becomes the one RESYNC. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/server.h"
#include "daemon/session/watch.h"
#include "store/status.h"

#include <stdlib.h>

enum { KEY_BYTES_FIRST = 32 }; /* the longest key of a client that says no bound */

struct watch {
	struct cache_watch *from;
	uint8_t packed[256];
};

static void wake(void *arg)
{
	rpc_server_wake(arg);
}

static enum status watch_open(struct rpc_call *c, const ProtobufCMessage *request)
{
	const Terrace__V1__WatchRequest *q = (const Terrace__V1__WatchRequest *)request;
	struct watch *w = calloc(1, sizeof *w);
	const char *why = NULL;

	if (!w)
		return rpc_too_big(c);
	enum status s = cache_watch_open(rpc_cache(c), q->session, q->from_now, wake, c, &w->from, &why);

	if (s != STATUS_OK) {
		free(w);
		return rpc_fail_why(c, s, why);
	}
	cache_watch_bound(w->from, q->key_bytes_max ? q->key_bytes_max : KEY_BYTES_FIRST);
	c->stream = w;
	return STATUS_OK;
}

static const char *reason_word(enum cache_reason r)
{
	switch (r) {
	case CACHE_REASON_EVICTED: return "evicted";
	case CACHE_REASON_DELETED: return "deleted";
	case CACHE_REASON_CORRUPT: return "corrupt";
	default: return "";
	}
}

static enum rpc_next watch_next(struct rpc_call *c, bool worker, struct rpc_out *out, enum status *failure)
{
	struct watch *w = c->stream;
	struct cache_watch_event e;
	enum status s = cache_watch_next(w->from, &e);

	(void)worker;
	if (s == STATUS_BUSY)
		rpc_server_wake(c); /* other calls are on this thread, too */
	if (s == STATUS_BUSY || s == STATUS_MISS)
		return RPC_NEXT_WAIT;
	if (s != STATUS_OK) {
		*failure = rpc_fail(c, STATUS_NOT_FOUND, "session: it has ended");
		return RPC_NEXT_FAIL;
	}
	Terrace__V1__WatchEvent m = TERRACE__V1__WATCH_EVENT__INIT;

	m.epoch = cache_epoch(rpc_cache(c));
	m.sequence = e.sequence;
	m.kind = (Terrace__V1__WatchKind)e.kind;
	m.key = (ProtobufCBinaryData){ e.key_bytes, e.key };
	m.layout = e.layout;
	m.tier = (char *)e.tier;
	if (e.kind == CACHE_REMOVED)
		m.reason = (char *)reason_word(e.reason);
	*out = (struct rpc_out){ .head = w->packed, .head_bytes = terrace__v1__watch_event__pack(&m, w->packed) };
	return RPC_NEXT_MESSAGE;
}

static void watch_close(struct rpc_call *c)
{
	struct watch *w = c->stream;

	cache_watch_close(w->from);
	free(w);
}

const struct rpc_server_stream rpc_watch_stream = {
	.open = watch_open,
	.next = watch_next,
	.close = watch_close,
	.endless = true,
};
