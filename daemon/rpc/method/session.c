/* OpenSession, Attach, CloseSession. */
#include "daemon/block/grid.h"
#include "daemon/block/lock.h"
#include "daemon/block/peer.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/rights.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "daemon/session/budget.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "daemon/vram/stats.h"
#include "kernels/format.h"
#include "proto/layout_message.h"
#include "store/status.h"

#include <string.h>

/* The rows of the reply's GPUs. A sentence about a GPU goes to its row. */
struct unfit_rows {
	struct rpc_call *call;
	Terrace__V1__Gpu *rows;
};

static void unfit_row(void *arg, const struct cache_unfit *u)
{
	const struct unfit_rows *to = arg;
	const size_t bytes = strlen(u->why) + 1;
	char *why = u->gpu >= 0 ? rpc_take(to->call, bytes) : NULL;

	if (why)
		to->rows[u->gpu].unfit = memcpy(why, u->why, bytes);
}

static void unfit_log(void *arg, const struct cache_unfit *u)
{
	const struct cache_session_view *v = arg;

	log_warn("layout_unfit", LOG_NUM("session", v->number), LOG_TEXT("reason", u->why),
		 LOG_TEXT("effect", u->gpu >= 0 ? "calls of the session that name this GPU are refused" :
						  "no block of this layout goes to this disk"));
}

/* Fills the reply's GPUs, whose memory engines may ask for. False: that takes too much memory. */
static bool reply_gpus(struct rpc_call *c, uint64_t session, Terrace__V1__OpenSessionReply *r)
{
	const uint32_t count = cache_gpus(rpc_cache(c), NULL, 0);
	struct cache_gpu_view *views = rpc_take(c, count * sizeof *views);
	Terrace__V1__Gpu *rows = rpc_take(c, count * sizeof *rows);
	Terrace__V1__Gpu **list = rpc_take(c, count * sizeof *list);

	if (!views || !rows || !list)
		return false;
	r->n_gpus = count ? cache_gpus(rpc_cache(c), views, count) : 0;
	r->gpus = list;
	for (uint32_t i = 0; i < r->n_gpus; i++) {
		terrace__v1__gpu__init(&rows[i]);
		rows[i].uuid = (ProtobufCBinaryData){ sizeof views[i].uuid, views[i].uuid };
		rows[i].bytes = views[i].bytes;
		list[i] = &rows[i];
	}
	cache_unfit(rpc_cache(c), session, unfit_row, &(struct unfit_rows){ c, rows });
	return true;
}

/* Fills in the session's unit, and which of its prefixes can be usable; with_rules: the rules too. False: no memory. */
static bool reply_grid(struct rpc_call *c, const struct cache_session_view *v, bool with_rules,
		       Terrace__V1__OpenSessionReply *r)
{
	Terrace__V1__LayoutRule *rules = rpc_take(c, v->layouts * sizeof *rules);
	Terrace__V1__LayoutRule **list = rpc_take(c, v->layouts * sizeof *list);
	struct grid grid = { .unit = v->unit, .layouts = v->unit ? v->layouts : 0 };

	if (!rules || !list)
		return false;
	for (uint32_t i = 0; i < grid.layouts; i++) {
		const struct grid_rule *rule = &grid.rule[i];

		grid.rule[i] = grid_rule_unpack(v->rule[i]);
		terrace__v1__layout_rule__init(&rules[i]);
		rules[i].keep_last = v->layout[i].window || rule->need == GRID_ALL ? 0 : rule->need;
		rules[i].partial = rule->partial;
		rules[i].sparse = rule->sparse;
		list[i] = &rules[i];
	}
	r->unit_tokens = v->unit;
	r->prefix_multiple = (uint32_t)grid_multiple(&grid);
	r->n_rules = with_rules ? grid.layouts : 0;
	r->rules = list;
	return true;
}

/* Makes the reply that describes a session. with_layouts: the caller, of an Attach, does not have its layouts yet. */
static enum status session_reply(struct rpc_call *c, const struct cache_session_view *v, bool with_layouts,
				 ProtobufCMessage **reply)
{
	const struct config *config = c->daemon->config;
	Terrace__V1__OpenSessionReply *r = rpc_take(c, sizeof *r);
	Terrace__V1__LayoutReply *rows = rpc_take(c, v->layouts * sizeof *rows);
	Terrace__V1__LayoutReply **row_list = rpc_take(c, v->layouts * sizeof *row_list);
	Terrace__V1__Layout *layouts = rpc_take(c, v->layouts * sizeof *layouts);
	Terrace__V1__Layout **layout_list = rpc_take(c, v->layouts * sizeof *layout_list);

	if (!r || !rows || !row_list || !layouts || !layout_list)
		return rpc_too_big(c);
	terrace__v1__open_session_reply__init(r);
	for (uint32_t i = 0; i < v->layouts; i++) {
		terrace__v1__layout_reply__init(&rows[i]);
		rows[i].layout_id = v->layout_id[i];
		rows[i].block_bytes = v->block_bytes[i];
		rows[i].slot_bytes = v->slot_bytes[i];
		row_list[i] = &rows[i];
		layout_message_write(&v->layout[i], &layouts[i]);
		layout_list[i] = &layouts[i];
	}
	r->epoch = cache_epoch(rpc_cache(c));
	r->session = v->id;
	r->number = v->number;
	r->token = (ProtobufCBinaryData){ CACHE_TOKEN_BYTES, (uint8_t *)v->token };
	r->n_layouts = v->layouts;
	r->layouts = row_list;
	r->fd_socket = (char *)config->fd_socket;
	r->idle_timeout_ms = (uint32_t)config->session_idle_ms;
	r->n_layout_list = with_layouts ? v->layouts : 0;
	r->layout_list = layout_list;
	if (!reply_gpus(c, v->id, r) || !reply_grid(c, v, with_layouts, r))
		return rpc_too_big(c);
	*reply = &r->base;
	return STATUS_OK;
}

/* The client library of the first version opens sessions in the same words, but cannot read the answer: a session is
 * named there by a number in another form. It shows this sentence as it is. */
static enum status refuse_library(struct rpc_call *c)
{
	struct cache_peer peer = { .process = 0 };

	if (c->peer)
		c->peer(c, &peer);
	log_warn("library_refused", LOG_NUM("process", peer.process), LOG_TEXT("method", c->method->name),
		 LOG_TEXT("reason", "its client library is older than this daemon, and cannot read its sessions"),
		 LOG_TEXT("remedy", "let the process load the libterrace.so.0 that came with this daemon"));
	return rpc_fail(c, STATUS_UNSUPPORTED,
			"the client library that this process has loaded is older than the daemon, terraced %s, and "
			"cannot read its sessions: let it load the libterrace.so.0 that came with the daemon",
			TERRACE_VERSION);
}

static bool is_library_before(struct rpc_call *c)
{
	return c->unnamed && c->unnamed(c);
}

/* Reads the rules of the request: none (*out is NULL then), or one a layout. */
static enum status open_rules(struct rpc_call *c, const Terrace__V1__OpenSessionRequest *q, struct grid_wish **out)
{
	struct grid_wish *wishes;

	*out = NULL;
	if (!q->n_rules)
		return STATUS_OK;
	if (q->n_rules != q->n_layouts)
		return rpc_fail(c, STATUS_INVALID, "rules: %zu given for %zu layouts", q->n_rules, q->n_layouts);
	wishes = rpc_take(c, q->n_rules * sizeof *wishes);
	if (!wishes)
		return rpc_too_big(c);
	for (size_t i = 0; i < q->n_rules; i++)
		wishes[i] = (struct grid_wish){ .last = q->rules[i]->keep_last, .partial = q->rules[i]->partial,
						.sparse = q->rules[i]->sparse };
	*out = wishes;
	return STATUS_OK;
}

/* Checks, memory, the cache's call, the reply. If the reply cannot be made, the session is closed again: its client
 * would never learn its id. */
enum status rpc_open_session(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__OpenSessionRequest *q = (const Terrace__V1__OpenSessionRequest *)request;
	struct cache_session_view *v = rpc_take(c, sizeof *v);
	struct cache_peer peer = { .process = 0 };
	struct grid_wish *wishes;
	struct kv_layout *layouts;
	const char *why = NULL;
	enum status s;

	if (is_library_before(c))
		return refuse_library(c);
	if (!q->n_layouts || q->n_layouts > CACHE_LAYOUTS_MAX)
		return rpc_fail(c, STATUS_INVALID, "layouts: %zu given, must be 1 to %d", q->n_layouts,
				CACHE_LAYOUTS_MAX);
	if (strlen(q->engine) > CACHE_ENGINE_MAX)
		return rpc_fail(c, STATUS_INVALID, "engine: longer than %d bytes", CACHE_ENGINE_MAX);
	layouts = rpc_take(c, q->n_layouts * sizeof *layouts);
	if (!v || !layouts)
		return rpc_too_big(c);
	for (size_t i = 0; i < q->n_layouts; i++) {
		s = rpc_layout_in(c, i, q->layouts[i], &layouts[i]);
		if (s != STATUS_OK)
			return s;
	}
	s = open_rules(c, q, &wishes);
	if (s != STATUS_OK)
		return s;
	if (c->tenant == WHO_NO_TENANT)
		return rpc_no_tenant(c);
	if (c->peer)
		c->peer(c, &peer);
	const struct cache_open_call call = {
		.identity = c->tenant,
		.peer = &peer,
		.tenant = q->tenant,
		.layouts = layouts,
		.layout_count = (uint32_t)q->n_layouts,
		.unit = q->unit_tokens,
		.wishes = wishes,
		.unchained = q->unchained_keys,
		.tokens_a_second = q->tokens_per_second,
		.local = q->local_only,
		.engine = q->engine,
		.now_us = c->now_us,
	};

	s = cache_session_open(rpc_cache(c), &call, v, &why);
	if (s != STATUS_OK)
		return rpc_fail_why(c, s, why);
	if (q->gpu_write_back)
		cache_session_write_back(rpc_cache(c), v->id);
	log_info("session_opened", LOG_NUM("session", v->number), LOG_NUM("layouts", v->layouts),
		 LOG_TEXT("engine", q->engine));
	cache_unfit(rpc_cache(c), v->id, unfit_log, v);
	s = session_reply(c, v, false, reply);
	if (s != STATUS_OK)
		cache_session_close(rpc_cache(c), v->id, c->now_us, &why);
	return s;
}

void rpc_open_session_undo(struct rpc_call *c, const ProtobufCMessage *request, const ProtobufCMessage *reply)
{
	const Terrace__V1__OpenSessionReply *r = (const Terrace__V1__OpenSessionReply *)reply;
	const char *why;

	(void)request;
	if (cache_session_close(rpc_cache(c), r->session, daemon_now_us(), &why) == STATUS_OK)
		log_info("session_closed", LOG_NUM("session", r->number), LOG_TEXT("reason", "its opener is gone"));
}

enum status rpc_attach(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__AttachRequest *q = (const Terrace__V1__AttachRequest *)request;
	struct cache_session_view *v = rpc_take(c, sizeof *v);
	const char *why = NULL;

	if (is_library_before(c))
		return refuse_library(c);
	if (!v)
		return rpc_too_big(c);
	if (q->token.len != CACHE_TOKEN_BYTES)
		return rpc_fail(c, STATUS_INVALID, "token: %zu bytes, must be %d", q->token.len, CACHE_TOKEN_BYTES);
	enum status s = cache_session_by_token(rpc_cache(c), c->tenant, q->token.data, c->now_us, v, &why);

	return s == STATUS_OK ? session_reply(c, v, true, reply) : rpc_fail_why(c, s, why);
}

enum status rpc_close_session(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__CloseSessionRequest *q = (const Terrace__V1__CloseSessionRequest *)request;
	Terrace__V1__CloseSessionReply *r = rpc_take(c, sizeof *r);
	const char *why = NULL;

	if (!r)
		return rpc_too_big(c);
	const uint64_t number = cache_session_number(rpc_cache(c), q->session);
	enum status s = cache_session_close(rpc_cache(c), q->session, c->now_us, &why);

	if (s != STATUS_OK)
		return rpc_fail_why(c, s, why);
	log_info("session_closed", LOG_NUM("session", number));
	terrace__v1__close_session_reply__init(r);
	*reply = &r->base;
	return STATUS_OK;
}
