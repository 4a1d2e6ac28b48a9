/* See rpc/reply.h. The wire's enums carry the project's numbers; that they still do is asserted here. */
#include "daemon/rpc/reply.h"

#include "daemon/block/grid.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/values.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log_character.h"
#include "daemon/process/rights.h"
#include "daemon/process/tenants.h"
#include "daemon/rpc/call.h"
#include "daemon/session/open.h"
#include "daemon/vram/stats.h"
#include "kernels/format.h"
#include "proto/layout_message.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdio.h>
#include <string.h>

#define SAME(name, value, text) _Static_assert((int)TERRACE__V1__STATUS__##name == value, "wire status " #name);
STATUS_MAP(SAME)
#undef SAME
#define SAME_FORMAT(wire, own) _Static_assert((int)TERRACE__V1__FORMAT__FORMAT_##wire == (int)own, "wire format " #wire);
SAME_FORMAT(NONE, KV_NONE)
SAME_FORMAT(FP16, KV_F16)
SAME_FORMAT(BF16, KV_BF16)
SAME_FORMAT(FP8, KV_FP8)
SAME_FORMAT(INT4_PTH, KV_INT4_PTH)
SAME_FORMAT(TQ4, KV_TQ4)
SAME_FORMAT(TQ3, KV_TQ3)
SAME_FORMAT(TQ2, KV_TQ2)
SAME_FORMAT(OPAQUE, KV_OPAQUE)
#undef SAME_FORMAT
_Static_assert((int)TERRACE__V1__EVENT__EVENT_SESSION_END == (int)CACHE_EVENT_SESSION_END, "wire event");
_Static_assert((int)TERRACE__V1__WATCH_KIND__WATCH_SYNCED == (int)CACHE_SYNCED, "wire watch kind");

/* gRPC's own numbers, fixed by its protocol. */
enum {
	GRPC_OK = 0,
	GRPC_CANCELLED = 1,
	GRPC_INVALID_ARGUMENT = 3,
	GRPC_DEADLINE_EXCEEDED = 4,
	GRPC_NOT_FOUND = 5,
	GRPC_ALREADY_EXISTS = 6,
	GRPC_PERMISSION_DENIED = 7,
	GRPC_RESOURCE_EXHAUSTED = 8,
	GRPC_FAILED_PRECONDITION = 9,
	GRPC_UNIMPLEMENTED = 12,
	GRPC_INTERNAL = 13,
	GRPC_UNAVAILABLE = 14,
};

int rpc_grpc_status(enum status s)
{
	static const uint8_t map[STATUS_COUNT] = {
		[STATUS_OK] = GRPC_OK,
		[STATUS_MISS] = GRPC_NOT_FOUND,
		[STATUS_BUSY] = GRPC_RESOURCE_EXHAUSTED,
		[STATUS_CANCELLED] = GRPC_CANCELLED,
		[STATUS_INVALID] = GRPC_INVALID_ARGUMENT,
		[STATUS_NOT_FOUND] = GRPC_NOT_FOUND,
		[STATUS_EXISTS] = GRPC_ALREADY_EXISTS,
		[STATUS_EXHAUSTED] = GRPC_RESOURCE_EXHAUSTED,
		[STATUS_DEADLINE] = GRPC_DEADLINE_EXCEEDED,
		[STATUS_UNAVAILABLE] = GRPC_UNAVAILABLE,
		[STATUS_PRECONDITION] = GRPC_FAILED_PRECONDITION,
		[STATUS_DENIED] = GRPC_PERMISSION_DENIED,
		[STATUS_CORRUPT] = GRPC_INTERNAL,
		[STATUS_UNSUPPORTED] = GRPC_UNIMPLEMENTED,
		[STATUS_STALE] = GRPC_FAILED_PRECONDITION,
		[STATUS_IO] = GRPC_INTERNAL,
		[STATUS_INTERNAL] = GRPC_INTERNAL,
	};

	return (unsigned)s < STATUS_COUNT ? map[s] : GRPC_INTERNAL;
}

enum status rpc_fail_why(struct rpc_call *c, enum status s, const char *why)
{
	return rpc_fail(c, s, "%s", why && *why ? why : status_text(s));
}

char *rpc_text(char *text)
{
	size_t length;

	for (unsigned char *p = (unsigned char *)text; p && *p; p += length) {
		log_character(p, &length);
		if (length == 1 && *p >= 0x80)
			*p = '?';
	}
	return text;
}

char *rpc_words(struct rpc_call *c, const char *why)
{
	char *text = why ? rpc_take(c, RPC_WHY_MAX) : NULL;

	if (!text)
		return (char *)protobuf_c_empty_string;
	snprintf(text, RPC_WHY_MAX, "%s", why);
	return rpc_text(text);
}

enum status rpc_keys(struct rpc_call *c, const Terrace__V1__Keys *keys, bool none_ok, struct cache_keys *out)
{
	struct cache_keys k = { .key_bytes = 1 }; /* of no keys any size will do */

	if (keys && keys->keys.len) {
		if (!keys->key_bytes || keys->key_bytes > SLOT_KEY_MAX)
			return rpc_fail(c, STATUS_INVALID, "keys: %u bytes a key, must be 1 to %d", keys->key_bytes,
					SLOT_KEY_MAX);
		if (keys->keys.len % keys->key_bytes)
			return rpc_fail(c, STATUS_INVALID, "keys: %zu bytes are no multiple of %u bytes a key",
					keys->keys.len, keys->key_bytes);
		if (keys->keys.len / keys->key_bytes > CACHE_KEYS_MAX)
			return rpc_fail(c, STATUS_INVALID, "keys: %zu keys, at most %d a call",
					keys->keys.len / keys->key_bytes, CACHE_KEYS_MAX);
		k = (struct cache_keys){ keys->keys.data, (uint32_t)(keys->keys.len / keys->key_bytes), keys->key_bytes };
	} else if (!none_ok) {
		return rpc_fail(c, STATUS_INVALID, "keys: none given");
	}
	k.first = keys ? keys->first_position : 0;
	if (k.first > GRID_FIRST_MAX)
		return rpc_fail(c, STATUS_INVALID, "keys.first_position: %u, at most %u", k.first, GRID_FIRST_MAX);
	*out = k;
	return STATUS_OK;
}

enum status rpc_key(struct rpc_call *c, const char *field, const ProtobufCBinaryData *key)
{
	if (!key->len || key->len > SLOT_KEY_MAX)
		return rpc_fail(c, STATUS_INVALID, "%s: %zu bytes, must be 1 to %d", field, key->len, SLOT_KEY_MAX);
	return STATUS_OK;
}

enum status rpc_session_layouts(struct rpc_call *c, uint64_t session, const struct cache_keys *keys, uint32_t *layouts)
{
	uint64_t cells = 0;
	uint32_t n = cache_session_cells(rpc_cache(c), session, keys, &cells);

	if (!n)
		return rpc_fail(c, STATUS_NOT_FOUND, "session: unknown, or closed");
	if (cells > CACHE_BLOCKS_MAX)
		return rpc_fail(c, STATUS_INVALID,
				"keys: %u keys have %llu blocks in %u layouts, at most %d a call: ask for "
				"fewer keys",
				keys->count, (unsigned long long)cells, n, CACHE_BLOCKS_MAX);
	*layouts = n;
	return STATUS_OK;
}

/* The index of a tenant in the table of tenants, by which the certificates of peers are known. */
static uint32_t tenant_index(const struct rpc_call *c, const char *name)
{
	const struct tenants *all = c->daemon->config->tenants;
	uint32_t i = 0;

	while (all && i < all->count && strcmp(all->of[i].name, name))
		i++;
	return i;
}

enum status rpc_peer_tenant(struct rpc_call *c, const char *name, uint32_t *number)
{
	const struct tenant *t = *name ? tenant_of_name(rpc_cache(c), name) : NULL;
	const uint32_t i = tenant_index(c, name);
	struct who who;

	if (!t)
		return rpc_fail(c, STATUS_DENIED, "tenant: this node has none of that name; add it to the file that "
						  "`tenants` names");
	if (c->who) {
		c->who(c, &who);
		if (who.role != ROLE_PEER || i >= 64 * WHO_TENANT_WORDS || !(who.peer_of[i / 64] >> i % 64 & 1))
			return rpc_fail(c, STATUS_DENIED, "tenant: this certificate is no peer's for it; add a name of "
							  "it to the tenant's `peers` on this node");
	}
	*number = t->number;
	return STATUS_OK;
}

enum status rpc_no_directory(struct rpc_call *c)
{
	return rpc_fail(c, STATUS_UNSUPPORTED, "this daemon keeps none of the cluster's directory: its log says why "
					       "(event=directory_off)");
}

enum status rpc_gpu(struct rpc_call *c, uint32_t gpu, int32_t *out)
{
	if (gpu > cache_gpus(rpc_cache(c), NULL, 0))
		return rpc_fail(c, STATUS_INVALID, "gpu: %u, the daemon lends the memory of %u", gpu,
				cache_gpus(rpc_cache(c), NULL, 0));
	*out = (int32_t)gpu - 1;
	return STATUS_OK;
}

/* Whether the layout has a fingerprint. Clients that forget it would share blocks with each other, whatever their
 * models. */
static bool is_named(const struct kv_layout *l)
{
	for (size_t i = 0; i < KV_FINGERPRINT_BYTES; i++)
		if (l->fingerprint[i])
			return true;
	return false;
}

enum status rpc_layout_in(struct rpc_call *c, size_t index, const Terrace__V1__Layout *in, struct kv_layout *out)
{
	struct kv_layout l;

	if (!layout_message_read(in, &l))
		return rpc_fail(c, STATUS_INVALID, "layouts[%zu].fingerprint: %zu bytes, must be %d", index,
				in->fingerprint.len, KV_FINGERPRINT_BYTES);
	if (!is_named(&l))
		return rpc_fail(c, STATUS_INVALID, "layouts[%zu].fingerprint: not set, and it is what keeps models apart", index);
	if (!kv_format_info(l.k_format) || !kv_format_info(l.v_format))
		return rpc_fail(c, STATUS_INVALID, "layouts[%zu]: unknown format", index);
	const char *problem = kv_layout_problem(&l);

	if (problem)
		return rpc_fail(c, STATUS_INVALID, "layouts[%zu]: %s", index, problem);
	*out = l;
	return STATUS_OK;
}

enum status rpc_info(struct rpc_call *c, const char *field, size_t index, const Terrace__V1__BlockInfo *in,
		     struct slot_info *out)
{
	struct slot_info info = {
		.parent_bytes = (uint8_t)in->parent.len,
		.role = (uint8_t)in->role,
		.turn = in->turn,
		.tokens = in->tokens,
		.position = in->position,
	};

	if (in->parent.len > SLOT_KEY_MAX)
		return rpc_fail(c, STATUS_INVALID, "%s[%zu].parent: %zu bytes, at most %d", field, index,
				in->parent.len, SLOT_KEY_MAX);
	if ((unsigned)in->role > TERRACE__V1__ROLE__ROLE_TOOL)
		return rpc_fail(c, STATUS_INVALID, "%s[%zu].role: unknown role %d", field, index, (int)in->role);
	if (in->tokens > KV_OPAQUE_TOKENS_MAX)
		return rpc_fail(c, STATUS_INVALID, "%s[%zu].tokens: %u, at most %d", field, index, in->tokens,
				KV_OPAQUE_TOKENS_MAX);
	if (in->parent.len)
		memcpy(info.parent, in->parent.data, in->parent.len);
	*out = info;
	return STATUS_OK;
}

Terrace__V1__Places *rpc_places(struct rpc_call *c, const struct cache_place *places, size_t n)
{
	Terrace__V1__Places *p = rpc_take(c, sizeof *p);

	if (!p)
		return NULL;
	terrace__v1__places__init(p);
	p->n_extent = p->n_offset = p->n_generation = p->n_tokens = n;
	p->extent = rpc_take(c, n * sizeof *p->extent);
	p->offset = rpc_take(c, n * sizeof *p->offset);
	p->generation = rpc_take(c, n * sizeof *p->generation);
	p->tokens = rpc_take(c, n * sizeof *p->tokens);
	if (!p->extent || !p->offset || !p->generation || !p->tokens)
		return NULL;
	if (places)
		rpc_places_fill(p, places, n);
	return p;
}

void rpc_places_fill(Terrace__V1__Places *p, const struct cache_place *places, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		p->extent[i] = places[i].extent;
		p->offset[i] = places[i].offset;
		p->generation[i] = places[i].generation;
		p->tokens[i] = places[i].tokens;
	}
}
