/* The calls to etcd that send one message and receive one answer. */
#include "daemon/etcd/engine.h"

#include "etcd.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* A cluster has at most 4096 members: as many pages of other keys may stand between them. */
enum { PASSWORD_MAX = 1024, PAGES_MAX = 64 };

#define ASK(e, path, ask, kind, answer)                                                                                \
	engine_call(e, path, &(ask)->base, &etcdserverpb__##kind##__descriptor, (ProtobufCMessage **)(answer))
#define DONE(answer) protobuf_c_message_free_unpacked(&(answer)->base, NULL)

/* ---- user ---- */

enum status etcd_authenticate(struct etcd *e)
{
	Etcdserverpb__AuthenticateRequest ask = ETCDSERVERPB__AUTHENTICATE_REQUEST__INIT;
	Etcdserverpb__AuthenticateResponse *answer = NULL;
	char words[ETCD_WHY_MAX / 2];
	size_t n;
	char *password = file_read(e->options.password_file, PASSWORD_MAX, &n, words, sizeof words);

	if (!password)
		return engine_fail(e, STATUS_DENIED, "%s", words);
	password[strcspn(password, "\r\n")] = 0;
	ask.name = (char *)e->options.user;
	ask.password = password;
	enum status s = ASK(e, "/etcdserverpb.Auth/Authenticate", &ask, authenticate_response, &answer);

	explicit_bzero(password, n);
	free(password);
	if (s != STATUS_OK)
		return s;
	if (!answer->token[0] || strlen(answer->token) >= sizeof e->token)
		s = engine_fail(e, STATUS_INVALID, "Authenticate: no token that can be used");
	else
		strcpy(e->token, answer->token);
	explicit_bzero(answer->token, strlen(answer->token));
	DONE(answer);
	return s;
}

/* ---- leases ---- */

enum status etcd_lease_grant(struct etcd *e, int64_t ttl_s, int64_t *id, int64_t *got_s)
{
	Etcdserverpb__LeaseGrantRequest ask = ETCDSERVERPB__LEASE_GRANT_REQUEST__INIT;
	Etcdserverpb__LeaseGrantResponse *answer = NULL;

	ask.ttl = ttl_s;
	enum status s = ASK(e, "/etcdserverpb.Lease/LeaseGrant", &ask, lease_grant_response, &answer);

	if (s != STATUS_OK)
		return s;
	if (answer->error[0] || !answer->id || answer->ttl <= 0)
		s = engine_fail(e, STATUS_UNAVAILABLE, "LeaseGrant: %.200s",
				answer->error[0] ? answer->error : "a lease without id or life");
	else if (answer->ttl > ETCD_TTL_MAX_S)
		s = engine_fail(e, STATUS_INVALID, "LeaseGrant: a lease of %lld s, where %lld s were asked for",
				(long long)answer->ttl, (long long)ttl_s);
	*id = answer->id;
	*got_s = answer->ttl;
	DONE(answer);
	return s;
}

/* A stream of etcd's, of which this takes one answer. */
enum status etcd_lease_keep(struct etcd *e, int64_t id, int64_t *ttl_s)
{
	Etcdserverpb__LeaseKeepAliveRequest ask = ETCDSERVERPB__LEASE_KEEP_ALIVE_REQUEST__INIT;
	Etcdserverpb__LeaseKeepAliveResponse *answer = NULL;

	ask.id = id;
	const enum status s = ASK(e, "/etcdserverpb.Lease/LeaseKeepAlive", &ask, lease_keep_alive_response, &answer);

	*ttl_s = 0;
	if (s == STATUS_NOT_FOUND)
		return STATUS_OK;
	if (s != STATUS_OK)
		return s;
	*ttl_s = answer->ttl > 0 ? answer->ttl : 0;
	DONE(answer);
	return STATUS_OK;
}

enum status etcd_lease_revoke(struct etcd *e, int64_t id)
{
	Etcdserverpb__LeaseRevokeRequest ask = ETCDSERVERPB__LEASE_REVOKE_REQUEST__INIT;
	Etcdserverpb__LeaseRevokeResponse *answer = NULL;

	ask.id = id;
	const enum status s = ASK(e, "/etcdserverpb.Lease/LeaseRevoke", &ask, lease_revoke_response, &answer);

	if (s == STATUS_OK)
		DONE(answer);
	return s == STATUS_NOT_FOUND ? STATUS_OK : s;
}

/* ---- keys ---- */

ProtobufCBinaryData range_end(const char *prefix, char *out, size_t size)
{
	const size_t n = strnlen(prefix, size - 1);

	memcpy(out, prefix, n);
	out[n - 1]++;
	return engine_text(out, n);
}

static void give(const Etcdserverpb__KeyValue *kv, etcd_take_fn *take, void *arg)
{
	const struct etcd_key key = { .key = kv->key.data, .key_bytes = kv->key.len, .value = kv->value.data,
				      .value_bytes = kv->value.len, .mod_revision = kv->mod_revision,
				      .lease = kv->lease };

	take(arg, &key);
}

static int order_of(ProtobufCBinaryData a, ProtobufCBinaryData b)
{
	const int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);

	return order ? order : (a.len > b.len) - (a.len < b.len);
}

/* The next page begins behind `last`, at the same key and a NUL. */
static enum status from_advance(struct etcd *e, ProtobufCBinaryData *from, ProtobufCBinaryData last)
{
	uint8_t *data;

	if (!last.data || order_of(last, *from) < 0)
		return engine_fail(e, STATUS_INVALID, "Range: a page whose keys are not in order");
	data = calloc(1, last.len + 1);
	if (!data)
		return engine_fail(e, STATUS_EXHAUSTED, "Range: no memory");
	memcpy(data, last.data, last.len);
	free(from->data);
	*from = (ProtobufCBinaryData){ .data = data, .len = last.len + 1 };
	return STATUS_OK;
}

/* From `from` to `end`, as of *revision, or, if that is 0, as of now, which is *revision then. *more: not all of it;
 * `from` is then where the next page begins. */
static enum status range_page(struct etcd *e, ProtobufCBinaryData *from, ProtobufCBinaryData end, int64_t *revision,
			      bool *more, etcd_take_fn *take, void *arg)
{
	Etcdserverpb__RangeRequest ask = ETCDSERVERPB__RANGE_REQUEST__INIT;
	Etcdserverpb__RangeResponse *answer = NULL;

	ask.key = *from;
	ask.range_end = end;
	ask.limit = ETCD_PAGE;
	ask.revision = *revision;
	enum status s = ASK(e, "/etcdserverpb.KV/Range", &ask, range_response, &answer);

	if (s != STATUS_OK)
		return s;
	for (size_t i = 0; i < answer->n_kvs; i++)
		give(answer->kvs[i], take, arg);
	*more = answer->more && answer->n_kvs;
	if (!*revision)
		*revision = answer->header ? answer->header->revision : 0;
	if (*revision <= 0)
		s = engine_fail(e, STATUS_INVALID, "Range: an answer without a revision");
	if (s == STATUS_OK && *more)
		s = from_advance(e, from, answer->kvs[answer->n_kvs - 1]->key);
	DONE(answer);
	return s;
}

enum status etcd_range(struct etcd *e, const char *prefix, etcd_take_fn *take, void *arg, int64_t *revision)
{
	char end[512];
	ProtobufCBinaryData from = { .data = (uint8_t *)strdup(prefix), .len = strlen(prefix) };
	bool more = from.data != NULL;
	enum status s = more ? STATUS_OK : engine_fail(e, STATUS_EXHAUSTED, "Range: no memory");

	*revision = 0;
	for (int i = 0; s == STATUS_OK && more && i < PAGES_MAX; i++)
		s = range_page(e, &from, range_end(prefix, end, sizeof end), revision, &more, take, arg);
	if (s == STATUS_OK && more)
		s = engine_fail(e, STATUS_INVALID, "Range: more pages than %d of keys in %.200s", PAGES_MAX, prefix);
	free(from.data);
	return s;
}

enum status etcd_put_if(struct etcd *e, const char *key, int64_t mod_revision, const uint8_t *value, size_t bytes,
			int64_t lease, bool *written)
{
	const ProtobufCBinaryData name = engine_text(key, strlen(key));
	Etcdserverpb__Compare compare = ETCDSERVERPB__COMPARE__INIT, *compares[] = { &compare };
	Etcdserverpb__PutRequest put = ETCDSERVERPB__PUT_REQUEST__INIT;
	Etcdserverpb__RequestOp op = ETCDSERVERPB__REQUEST_OP__INIT, *ops[] = { &op };
	Etcdserverpb__TxnRequest ask = ETCDSERVERPB__TXN_REQUEST__INIT;
	Etcdserverpb__TxnResponse *answer = NULL;

	/* A key that is not there has revision 0 in both. */
	compare.key = name;
	compare.target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__MOD;
	compare.target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_MOD_REVISION;
	compare.mod_revision = mod_revision;
	put.key = name;
	put.value = (ProtobufCBinaryData){ .data = (uint8_t *)value, .len = bytes };
	put.lease = lease;
	op.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_PUT;
	op.request_put = &put;
	ask.n_compare = ask.n_success = 1;
	ask.compare = compares;
	ask.success = ops;
	const enum status s = ASK(e, "/etcdserverpb.KV/Txn", &ask, txn_response, &answer);

	if (s != STATUS_OK)
		return s;
	*written = answer->succeeded;
	DONE(answer);
	return STATUS_OK;
}
