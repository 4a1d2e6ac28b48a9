/* Lookup: the hottest call. Runs on the rpc thread, takes no lock and, for ordinary sizes, no memory but
 * the call's own. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/call/lookup.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/status.h"

enum status rpc_lookup(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__LookupRequest *q = (const Terrace__V1__LookupRequest *)request;
	Terrace__V1__LookupReply *r = rpc_take(c, sizeof *r);
	uint8_t *states = NULL;
	uint32_t layouts = 0, prefix = 0;
	struct cache_keys keys;
	const char *why = NULL;
	enum status s = rpc_keys(c, q->keys, true, &keys);

	if (s != STATUS_OK)
		return s;
	if (q->states) {
		s = rpc_session_layouts(c, q->session, &keys, &layouts);
		if (s != STATUS_OK)
			return s;
		states = rpc_take_zero(c, keys.count, layouts);
		if (!states)
			return rpc_too_big(c);
	}
	if (!r)
		return rpc_too_big(c);
	s = cache_lookup(rpc_cache(c), q->session, &keys, &prefix, states, keys.count * layouts, &why);
	if (s != STATUS_OK)
		return rpc_fail_why(c, s, why);
	terrace__v1__lookup_reply__init(r);
	r->epoch = cache_epoch(rpc_cache(c));
	r->prefix = prefix;
	r->load_bytes_s = cache_load_bytes_s(rpc_cache(c));
	if (prefix < keys.count && cache_has_others(rpc_cache(c)))
		r->asked = cache_lookup_asks(rpc_cache(c), q->session, &keys, prefix, c->now_us);
	r->states = (ProtobufCBinaryData){ keys.count * layouts, states };
	*reply = &r->base;
	return STATUS_OK;
}
