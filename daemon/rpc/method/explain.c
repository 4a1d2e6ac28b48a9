/* Explain and Graph: why a block is where it is, and its edges in the graph. */
#include "daemon/advice/graph.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/explain.h"
#include "daemon/members/members.h"
#include "daemon/names/names.h"
#include "daemon/peers/peers.h"
#include "daemon/peers/spill.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "daemon/session/open.h"
#include "store/index.h"
#include "store/status.h"

#include <string.h>

enum {
	EXPLAIN_MAX = CACHE_LAYOUTS_MAX,
	EDGES_MAX = 128,
};

/* The rows of a block's copies in a reply. */
struct tier_rows {
	Terrace__V1__ExplainTier tier[CACHE_TIERS_EXPLAINED], *list[CACHE_TIERS_EXPLAINED];
	Terrace__V1__ExplainFeature feature[CACHE_TIERS_EXPLAINED][CACHE_FEATURES_MAX],
		*features[CACHE_TIERS_EXPLAINED][CACHE_FEATURES_MAX];
};

static void tier_row(const struct cache_explained_tier *v, uint32_t at, struct tier_rows *rows)
{
	Terrace__V1__ExplainTier *t = rows->list[at] = &rows->tier[at];

	terrace__v1__explain_tier__init(t);
	t->tier = (char *)v->tier;
	t->policy = (char *)v->policy;
	t->gpu = v->gpu;
	t->kept = (char *)v->kept;
	t->idle_ms = v->idle_ms;
	t->uses = v->uses;
	t->ranked = v->ranked;
	t->rank = v->rank;
	t->rival = (ProtobufCBinaryData){ v->rival_bytes, (uint8_t *)v->rival };
	t->scored = v->scored;
	t->score = v->score;
	t->rival_score = v->rival_score;
	t->unit = (char *)v->unit;
	for (uint32_t i = 0; i < v->features; i++) {
		Terrace__V1__ExplainFeature *f = rows->features[at][i] = &rows->feature[at][i];

		terrace__v1__explain_feature__init(f);
		f->name = (char *)v->feature[i].name;
		f->value = v->feature[i].value;
	}
	t->n_features = v->features;
	t->features = rows->features[at];
}

static void explain_row(const struct cache_explained *v, Terrace__V1__ExplainBlock *b, struct tier_rows *rows)
{
	terrace__v1__explain_block__init(b);
	b->layout_id = v->layout_id;
	b->policy = (char *)v->policy;
	b->tier = (char *)v->tier;
	b->age_ms = v->age_ms;
	b->idle_ms = v->idle_ms;
	b->uses = v->uses;
	b->pins = v->pins;
	b->turn = v->turn;
	b->refused = v->not_admitted;
	b->unworthy = v->no_spill;
	b->ahead = v->prefetched;
	b->ranked = v->ranked;
	b->rank = v->rank;
	b->rival = (ProtobufCBinaryData){ v->rival_bytes, (uint8_t *)v->rival };
	b->rival_idle_ms = v->rival_idle_ms;
	b->rival_uses = v->rival_uses;
	b->left = (char *)v->left;
	b->left_reason = (char *)v->left_reason;
	b->left_ms_ago = v->left_ms_ago;
	b->left_idle_ms = v->left_idle_ms;
	b->left_uses = v->left_uses;
	b->regretted = v->regretted;
	for (uint32_t i = 0; i < v->tiers; i++)
		tier_row(&v->at[i], i, rows);
	b->n_tiers = v->tiers;
	b->tiers = rows->list;
}

/* The member that took a copy of the block, in the call's memory. */
static char *peer_of(struct rpc_call *c, const struct index_ident *name)
{
	struct peers *p = c->daemon->peers;
	char *member = rpc_take_zero(c, MEMBER_NAME_MAX, 1);
	struct directory_run at;

	if (member && p && spills_find(peers_spills(p), name, &at))
		peers_member(p, &at, member);
	return member ? member : (char *)"";
}

/* What is told of a block's tenant, for administrators. `names`: stays until the reply is packed. */
static void tenant_row(struct rpc_call *c, const Terrace__V1__ExplainRequest *q, const struct cache_explained *v,
		       Terrace__V1__ExplainBlock *b, struct public_name names[NAMES_SECRETS])
{
	const struct names *all = rpc_names(c);
	const uint32_t tenant = all ? names_tenant(all, v->tenant_number) : NAMES_NO_TENANT;
	const uint32_t n = tenant == NAMES_NO_TENANT ?
				   0 :
				   names_of(all, tenant, v->layout_id, q->key.data, (uint32_t)q->key.len, names);

	b->tenant = (char *)v->tenant;
	b->peer = peer_of(c, &(struct index_ident){ v->layout_id, v->tenant_number, (uint8_t)q->key.len, q->key.data });
	if (n > 0)
		b->public_name = (ProtobufCBinaryData){ sizeof names[0].word, (uint8_t *)names[0].word };
	if (n > 1)
		b->old_public_name = (ProtobufCBinaryData){ sizeof names[1].word, (uint8_t *)names[1].word };
}

/* Removes what an answer says of other blocks: these may be another engine's. */
static void rivals_hide(struct cache_explained *v)
{
	v->rival_bytes = 0;
	v->rival_idle_ms = v->rival_uses = 0;
	for (uint32_t i = 0; i < v->tiers; i++) {
		v->at[i].rival_bytes = 0;
		v->at[i].rival_score = 0;
	}
}

/* Explains over the layouts of one session: an engine's own, by its handle; for an administrator any, by its public
 * number. */
static enum status explain_session(struct rpc_call *c, const Terrace__V1__ExplainRequest *q, struct cache_explained *views, uint32_t *n)
{
	uint64_t ids[CACHE_LAYOUTS_MAX];
	const char *tenant = "", *why = NULL;
	const uint32_t layouts = cache_session_layout_ids(rpc_cache(c), q->session, q->number, ids, &tenant);
	const bool hide = !rpc_is_admin(c);

	*n = 0;
	if (layouts && *q->tenant && strcmp(q->tenant, tenant))
		return rpc_fail(c, STATUS_DENIED, "tenant: it is not the session's: leave it out");
	if (!layouts)
		return rpc_fail(c, STATUS_NOT_FOUND, "%s: no open session has it", q->session ? "session" : "number");
	for (uint32_t i = 0; i < layouts; i++) {
		uint32_t got = 0;

		if (q->layout_id && q->layout_id != ids[i])
			continue;
		const struct cache_block_name name = {
			.tenant = tenant,
			.layout_id = ids[i],
			.key = q->key.data,
			.key_bytes = (uint32_t)q->key.len,
		};
		enum status s = cache_explain(rpc_cache(c), &name, c->now_us, &views[*n], 1, &got, &why);

		if (s != STATUS_OK)
			return rpc_fail_why(c, s, why);
		if (got && hide)
			rivals_hide(&views[*n]);
		*n += got;
	}
	return STATUS_OK;
}

static enum status explain_views(struct rpc_call *c, const Terrace__V1__ExplainRequest *q, struct cache_explained *views, uint32_t *n)
{
	const struct cache_block_name name = {
		.tenant = q->tenant,
		.layout_id = q->layout_id,
		.key = q->key.data,
		.key_bytes = (uint32_t)q->key.len,
	};
	const char *why = NULL;
	enum status s;

	if (!q->session && !rpc_is_admin(c))
		return rpc_denied(c, "Explain without the handle of one's session");
	if (q->session && q->number)
		return rpc_fail(c, STATUS_INVALID, "session and number: one of them");
	if (q->session || q->number)
		return explain_session(c, q, views, n);
	s = cache_explain(rpc_cache(c), &name, c->now_us, views, EXPLAIN_MAX, n, &why);
	return s == STATUS_OK ? s : rpc_fail_why(c, s, why);
}

enum status rpc_explain(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__ExplainRequest *q = (const Terrace__V1__ExplainRequest *)request;
	Terrace__V1__ExplainReply *r = rpc_take(c, sizeof *r);
	struct cache_explained *views = rpc_take(c, EXPLAIN_MAX * sizeof *views);
	Terrace__V1__ExplainBlock *blocks = rpc_take(c, EXPLAIN_MAX * sizeof *blocks), **rows = rpc_take(c, EXPLAIN_MAX * sizeof *rows);
	struct tier_rows *tiers = rpc_take(c, EXPLAIN_MAX * sizeof *tiers);
	struct public_name(*names)[NAMES_SECRETS] = rpc_take(c, EXPLAIN_MAX * sizeof *names);
	uint32_t n = 0;
	enum status s = rpc_key(c, "key", &q->key);

	if (s != STATUS_OK)
		return s;
	if (!r || !views || !blocks || !rows || !tiers || !names)
		return rpc_too_big(c);
	s = explain_views(c, q, views, &n);
	if (s != STATUS_OK)
		return s;
	for (uint32_t i = 0; i < n; i++) {
		explain_row(&views[i], &blocks[i], &tiers[i]);
		if (rpc_is_admin(c))
			tenant_row(c, q, &views[i], &blocks[i], names[i]);
		rows[i] = &blocks[i];
	}
	terrace__v1__explain_reply__init(r);
	r->n_blocks = n;
	r->blocks = rows;
	*reply = &r->base;
	return STATUS_OK;
}

enum status rpc_graph(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__GraphRequest *q = (const Terrace__V1__GraphRequest *)request;
	Terrace__V1__GraphReply *r = rpc_take(c, sizeof *r);
	struct cache_graph_edge *edges = rpc_take(c, EDGES_MAX * sizeof *edges);
	Terrace__V1__GraphEdge *out = rpc_take(c, EDGES_MAX * sizeof *out), **rows = rpc_take(c, EDGES_MAX * sizeof *rows);
	const char *why = NULL;
	uint32_t n = 0;
	enum status s = rpc_key(c, "key", &q->key);

	if (s != STATUS_OK)
		return s;
	if (!r || !edges || !out || !rows)
		return rpc_too_big(c);
	s = cache_graph(rpc_cache(c), q->key.data, (uint32_t)q->key.len, edges, EDGES_MAX, &n, &why);
	if (s != STATUS_OK)
		return rpc_fail_why(c, s, why);
	for (uint32_t i = 0; i < n; i++) {
		terrace__v1__graph_edge__init(&out[i]);
		out[i].name = edges[i].name;
		out[i].key = (ProtobufCBinaryData){ edges[i].key_bytes, edges[i].key };
		out[i].type = (char *)edges[i].type;
		out[i].weight = edges[i].weight;
		out[i].tier = (char *)edges[i].tier;
		rows[i] = &out[i];
	}
	terrace__v1__graph_reply__init(r);
	r->n_edges = n;
	r->edges = rows;
	*reply = &r->base;
	return STATUS_OK;
}
