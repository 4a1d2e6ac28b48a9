/* See local/packet.h. */
#include "daemon/local/packet.h"

#include "daemon/rpc/handler.h"
#include "daemon/session/open.h"
#include "terrace.pb-c.h"

#include <string.h>

enum {
	REPLY_REST = 256,             /* head, numbers and the fields' own bytes */
	STATUS_MOST = 2,
	RESERVATION_MOST = 10,
	PLACE_MOST = 5 + 5 + 10 + 3,  /* extent, offset in it, generation, tokens */
};

static const char *const names[FDSOCK_METHODS_END] = {
	[FDSOCK_LOOKUP] = "Cache.Lookup",   [FDSOCK_LEASE] = "Cache.Lease",   [FDSOCK_GIVE_BACK] = "Cache.Release",
	[FDSOCK_RESERVE] = "Cache.Reserve", [FDSOCK_COMMIT] = "Cache.Commit", [FDSOCK_ABORT] = "Cache.Abort",
	[FDSOCK_TOUCH] = "Cache.Touch",     [FDSOCK_REPORT] = "Cache.Report", [FDSOCK_WARM] = "Cache.Warm",
};

bool local_call_read(const void *packet, size_t n, struct local_asked *out)
{
	struct fdsock_call call;

	if (n < sizeof call || n > FDSOCK_CALL_BYTES_MAX)
		return false;
	memcpy(&call, packet, sizeof call);
	if (call.head.magic != FDSOCK_MAGIC || call.head.version != FDSOCK_VERSION || call.head.type != FDSOCK_CALL ||
	    !call.method || call.method >= FDSOCK_METHODS_END)
		return false;
	*out = (struct local_asked){ (enum fdsock_method)call.method, call.left_us,
				    (const uint8_t *)packet + sizeof call,
				    n - sizeof call };
	return true;
}

const struct rpc_method *local_call_method(enum fdsock_method method)
{
	for (uint32_t i = 0; i < rpc_methods_count; i++)
		if (!strcmp(rpc_methods[i].name, names[method]))
			return &rpc_methods[i];
	return NULL;
}

uint64_t local_call_session(const struct rpc_method *method, const ProtobufCMessage *request)
{
	const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(method->request, "session");
	uint64_t session;

	memcpy(&session, (const char *)request + field->offset, sizeof session);
	return session;
}

static size_t keys_count(const Terrace__V1__Keys *keys)
{
	return keys && keys->key_bytes ? keys->keys.len / keys->key_bytes : 0;
}

/* Bytes for each block of `count` keys. */
static size_t blocks_most(struct cache *c, uint64_t session, size_t count, size_t bytes)
{
	return count * cache_session_layouts(c, session) * bytes;
}

size_t local_call_reply_most(struct cache *c, enum fdsock_method method, const ProtobufCMessage *request)
{
	const Terrace__V1__LookupRequest *lookup = (const Terrace__V1__LookupRequest *)request;
	const Terrace__V1__LeaseRequest *lease = (const Terrace__V1__LeaseRequest *)request;
	const Terrace__V1__ReserveRequest *reserve = (const Terrace__V1__ReserveRequest *)request;
	const Terrace__V1__CommitRequest *commit = (const Terrace__V1__CommitRequest *)request;
	size_t count;

	switch (method) {
	case FDSOCK_LOOKUP:
		return REPLY_REST + (lookup->states ? blocks_most(c, lookup->session, keys_count(lookup->keys), 1) : 0);
	case FDSOCK_LEASE:
		return REPLY_REST + blocks_most(c, lease->session, keys_count(lease->keys), PLACE_MOST);
	case FDSOCK_RESERVE:
		count = reserve->open ? reserve->n_info : keys_count(reserve->keys);
		return REPLY_REST + count * (STATUS_MOST + RESERVATION_MOST) + blocks_most(c, reserve->session, count, PLACE_MOST);
	case FDSOCK_COMMIT:
		count = commit->n_items;
		return REPLY_REST + count * STATUS_MOST +
		       (commit->lease ? blocks_most(c, commit->session, count, PLACE_MOST) : 0);
	case FDSOCK_GIVE_BACK:
		return REPLY_REST + ((const Terrace__V1__ReleaseRequest *)request)->n_leases * STATUS_MOST;
	case FDSOCK_ABORT:
		return REPLY_REST + ((const Terrace__V1__AbortRequest *)request)->n_reservations * STATUS_MOST;
	default:
		return REPLY_REST;
	}
}
