/* Publish: what another member has, told to this one as an owner of segments (directory/table.h). Names of a tenant
 * that the caller is no peer of are refused one by one, since the holder may serve more tenants than this daemon. */
#include "daemon/directory/table.h"
#include "daemon/peers/peers.h"
#include "daemon/process/daemon.h"
#include "daemon/process/rights.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/clock.h"
#include "store/status.h"
#include "terrace.pb-c.h"

#include <string.h>

enum { TENANTS_A_MESSAGE = 256, NAME_BYTES = sizeof(struct public_name) };

/* A message's names, but those that are refused. */
struct told {
	struct directory_change *changes;
	uint32_t *number;              /* of a change: its name's, through all groups */
	uint32_t count;
	uint32_t *refused, refused_count; /* numbers */
};

static enum status check(struct rpc_call *c, const Terrace__V1__PublishRequest *q)
{
	size_t names = 0;

	if (!q->protocol)
		return rpc_fail(c, STATUS_INVALID, "protocol: not given");
	if (q->node.len != DIRECTORY_NODE_BYTES || !q->epoch || !q->sequence)
		return rpc_fail(c, STATUS_INVALID, "node, epoch, sequence: a node has %d bytes, the others are not 0",
				DIRECTORY_NODE_BYTES);
	if (q->n_tenants > TENANTS_A_MESSAGE || q->n_groups > PEERS_NAMES_MAX)
		return rpc_fail(c, STATUS_INVALID, "%zu tenants, %zu groups: at most %d and %d", q->n_tenants,
				q->n_groups, TENANTS_A_MESSAGE, PEERS_NAMES_MAX);
	for (size_t i = 0; i < q->n_groups; i++) {
		const Terrace__V1__PublishGroup *g = q->groups[i];

		if (g->tenant >= q->n_tenants || !g->names.len || g->names.len % NAME_BYTES)
			return rpc_fail(c, STATUS_INVALID, "groups[%zu]: its tenant is none of the message's, or its "
							   "names are no multiple of %d bytes", i, NAME_BYTES);
		names += g->names.len / NAME_BYTES;
	}
	if (names > PEERS_NAMES_MAX)
		return rpc_fail(c, STATUS_INVALID, "groups: %zu names, at most %d", names, PEERS_NAMES_MAX);
	return STATUS_OK;
}

/* The numbers of the message's tenants; WHO_NO_TENANT: the caller is no peer of it. DENIED: of none of them. */
static enum status read_tenants(struct rpc_call *c, const Terrace__V1__PublishRequest *q, uint32_t *numbers)
{
	enum status s = STATUS_OK;
	bool any = !q->n_tenants;

	for (size_t i = 0; i < q->n_tenants; i++) {
		s = rpc_peer_tenant(c, q->tenants[i], &numbers[i]);
		if (s == STATUS_OK)
			any = true;
		else
			numbers[i] = WHO_NO_TENANT;
	}
	return any ? STATUS_OK : s;
}

static void read_groups(const Terrace__V1__PublishRequest *q, const uint32_t *numbers, struct told *to)
{
	uint32_t number = 0;

	for (size_t i = 0; i < q->n_groups; i++) {
		const Terrace__V1__PublishGroup *g = q->groups[i];

		for (size_t at = 0; at < g->names.len; at += NAME_BYTES, number++) {
			struct directory_change *change = &to->changes[to->count];

			if (numbers[g->tenant] == WHO_NO_TENANT) {
				to->refused[to->refused_count++] = number;
				continue;
			}
			*change = (struct directory_change){ .segment = g->segment, .tenant = numbers[g->tenant],
							     .remove = g->remove };
			memcpy(change->name.bytes, g->names.data + at, NAME_BYTES);
			to->number[to->count++] = number;
		}
	}
}

static enum status read_set(struct rpc_call *c, const Terrace__V1__PublishRequest *q, struct digest_set *set)
{
	if (!digest_buckets_valid(q->buckets) || q->n_set != (q->buckets + 63) / 64)
		return rpc_fail(c, STATUS_INVALID, "buckets, set: %u buckets in %zu words: a power of two, at most %d, "
						   "and a bit each", q->buckets, q->n_set, DIGEST_BUCKETS_MAX);
	*set = (struct digest_set){ .buckets = q->buckets };
	memcpy(set->bits, q->set, q->n_set * sizeof set->bits[0]);
	return STATUS_OK;
}

static enum status read_digest(struct rpc_call *c, const Terrace__V1__PublishRequest *q, struct digest *d)
{
	if (!digest_buckets_valid(q->buckets) || q->n_sums != q->buckets || q->n_counts != q->buckets)
		return rpc_fail(c, STATUS_INVALID, "buckets, sums, counts: %u, %zu and %zu: a power of two, at most "
						   "%d, and one of each a bucket", q->buckets, q->n_sums, q->n_counts,
				DIGEST_BUCKETS_MAX);
	digest_begin(d, q->buckets);
	for (uint32_t i = 0; i < q->buckets; i++) {
		d->sum[i] = q->sums[i];
		d->count[i] = q->counts[i];
		d->total += q->counts[i];
	}
	return STATUS_OK;
}

/* The table's word for the message in `s` becomes the reply's. False: the call fails with it. */
static bool result_of(enum status s, Terrace__V1__PublishReply *r)
{
	r->result = s == STATUS_STALE	    ? TERRACE__V1__PUBLISH_RESULT__PUBLISH_STALE :
		    s == STATUS_UNAVAILABLE ? TERRACE__V1__PUBLISH_RESULT__PUBLISH_UNKNOWN :
					      TERRACE__V1__PUBLISH_RESULT__PUBLISH_TAKEN;
	return s == STATUS_OK || s == STATUS_STALE || s == STATUS_UNAVAILABLE;
}

static enum status take_digest(struct rpc_call *c, const Terrace__V1__PublishRequest *q,
			       const struct directory_sender *from, Terrace__V1__PublishReply *r)
{
	struct digest *theirs = rpc_take(c, sizeof *theirs);
	struct digest_set *differ = rpc_take_zero(c, 1, sizeof *differ);
	enum status s;

	if (!theirs || !differ)
		return rpc_too_big(c);
	s = read_digest(c, q, theirs);
	if (s != STATUS_OK)
		return s;
	s = directory_digest(peers_directory(c->daemon->peers), from, theirs, differ);
	if (!result_of(s, r))
		return rpc_fail(c, s, "the digest makes no sense");
	if (s == STATUS_OK && !digest_set_empty(differ)) {
		r->n_set = (differ->buckets + 63) / 64;
		r->set = differ->bits;
	}
	return STATUS_OK;
}

static enum status take_names(struct rpc_call *c, const Terrace__V1__PublishRequest *q,
			      const struct directory_sender *from, Terrace__V1__PublishReply *r)
{
	uint32_t numbers[TENANTS_A_MESSAGE], *indexes = rpc_take(c, PEERS_NAMES_MAX * sizeof *indexes);
	struct told t = { .changes = rpc_take(c, PEERS_NAMES_MAX * sizeof *t.changes),
			  .number = rpc_take(c, PEERS_NAMES_MAX * sizeof *t.number),
			  .refused = rpc_take(c, PEERS_NAMES_MAX * sizeof *t.refused) };
	struct directory *d = peers_directory(c->daemon->peers);
	struct directory_published out = { .refused = indexes };
	struct digest_set set;
	enum status s;

	if (!indexes || !t.changes || !t.number || !t.refused)
		return rpc_too_big(c);
	s = read_tenants(c, q, numbers);
	if (s != STATUS_OK)
		return s;
	read_groups(q, numbers, &t);
	if (q->kind == TERRACE__V1__PUBLISH_KIND__PUBLISH_CONTENT) {
		s = read_set(c, q, &set);
		if (s != STATUS_OK)
			return s;
		const struct directory_buckets b = { .set = &set, .changes = t.changes, .count = t.count,
						     .part = q->part };

		s = directory_replace(d, from, &b, clock_us(), &out);
	} else {
		s = directory_publish(d, from, t.changes, t.count, q->told, clock_us(), &out);
	}
	if (!result_of(s, r))
		return rpc_fail(c, s, "the message makes no sense");
	for (uint32_t i = 0; s == STATUS_OK && i < out.refused_count; i++)
		t.refused[t.refused_count++] = t.number[indexes[i]];
	r->digest_wanted = s == STATUS_OK && out.digest_wanted;
	r->n_refused = t.refused_count;
	r->refused = t.refused;
	return STATUS_OK;
}

enum status rpc_peer_publish(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__PublishRequest *q = (const Terrace__V1__PublishRequest *)request;
	struct directory_sender from = { .run.epoch = q->epoch, .sequence = q->sequence };
	Terrace__V1__PublishReply *r = rpc_take(c, sizeof *r);
	enum status s = check(c, q);

	if (s != STATUS_OK)
		return s;
	if (!r)
		return rpc_too_big(c);
	if (!c->daemon->peers)
		return rpc_no_directory(c);
	memcpy(from.run.node, q->node.data, sizeof from.run.node);
	terrace__v1__publish_reply__init(r);
	r->protocol = PEERS_PROTOCOL;
	s = q->kind == TERRACE__V1__PUBLISH_KIND__PUBLISH_DIGEST ? take_digest(c, q, &from, r) :
								   take_names(c, q, &from, r);
	if (s != STATUS_OK)
		return s;
	*reply = &r->base;
	return STATUS_OK;
}
