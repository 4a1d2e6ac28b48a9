/* Between the project's values and the wire's: statuses, keys, layouts, places. */
#ifndef TERRACE_DAEMON_RPC_REPLY_H
#define TERRACE_DAEMON_RPC_REPLY_H

#include "store/status.h"
#include "terrace.pb-c.h"

#include <stdbool.h>

struct cache_keys;
struct cache_place;
struct kv_layout;
struct rpc_call;
struct slot_info;

/* The number of the gRPC status that a failed call ends with. */
int rpc_grpc_status(enum status s);

/* Fails the call with the core's sentence, or the status's own text if it gave none. */
enum status rpc_fail_why(struct rpc_call *c, enum status s, const char *why);

/* A message's strings are UTF-8, or others cannot read the message: bytes of `text` that are not become '?'. Returns
 * text. */
char *rpc_text(char *text);

/* Copies `why` for a reply. Empty if why is NULL, or there is no memory for it. */
char *rpc_words(struct rpc_call *c, const char *why);

/* Checks a request's keys: NULL, sizes, and at most CACHE_KEYS_MAX. none_ok: no keys at all is fine. */
enum status rpc_keys(struct rpc_call *c, const Terrace__V1__Keys *keys, bool none_ok, struct cache_keys *out);

/* Checks one key by itself: 1 to SLOT_KEY_MAX bytes. */
enum status rpc_key(struct rpc_call *c, const char *field, const ProtobufCBinaryData *key);

/* Finds the number of the session's layouts, and checks that the keys have at most CACHE_BLOCKS_MAX cells in them.
 * NOT_FOUND. */
enum status rpc_session_layouts(struct rpc_call *c, uint64_t session, const struct cache_keys *keys, uint32_t *layouts);

/* The number of the tenant that a member of the cluster calls for. DENIED: there is none of that name, or the caller's
 * certificate is no peer's for it. By the call's owner. */
enum status rpc_peer_tenant(struct rpc_call *c, const char *name, uint32_t *number);
/* Fails the call with UNSUPPORTED: there is no directory here. */
enum status rpc_no_directory(struct rpc_call *c);

/* Turns a request's number of a GPU, where 0 is host memory, into the cache's. INVALID: the daemon has no such GPU. */
enum status rpc_gpu(struct rpc_call *c, uint32_t gpu, int32_t *out);

enum status rpc_layout_in(struct rpc_call *c, size_t index, const Terrace__V1__Layout *in, struct kv_layout *out);

/* tokens may be 0 only if `any_tokens`. field: as the message names it, "info". */
enum status rpc_info(struct rpc_call *c, const char *field, size_t index, const Terrace__V1__BlockInfo *in,
		     struct slot_info *out);

/* Makes the parallel arrays of n places: filled, or with places NULL for rpc_places_fill to fill. NULL: answer with
 * rpc_too_big. */
Terrace__V1__Places *rpc_places(struct rpc_call *c, const struct cache_place *places, size_t n);
void rpc_places_fill(Terrace__V1__Places *p, const struct cache_place *places, size_t n);

#endif
