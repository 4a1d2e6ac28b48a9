/* Stats, Inspect, Layouts, Config, Peers. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/stats.h"
#include "daemon/call/faults.h"
#include "daemon/call/inspect.h"
#include "daemon/members/members.h"
#include "daemon/peers/peers.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/stats.h"
#include "daemon/process/tenants.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "daemon/secrets/secrets.h"
#include "daemon/verbs/rdma.h"
#include "proto/layout_message.h"
#include "store/device.h"
#include "store/status.h"

#include <string.h>

enum {
	INSPECT_MAX = 64,
	FAULTS_MAX = CACHE_DISKS_MAX + DEVICES_MAX,
	LAYOUTS_MAX = 4096,           /* more than there can be */
};

/* ---- Stats ---- */

struct stats {
	struct rpc_call *c;
	Terrace__V1__Stat **rows;
	size_t n;
	bool full;
	bool names;                    /* also who the sessions are: their engines and processes */
};

static char *keep(struct rpc_call *c, const char *text)
{
	size_t n = strlen(text) + 1;
	char *copy = rpc_take(c, n);

	return copy ? memcpy(copy, text, n) : NULL;
}

static void stats_row(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	struct stats *s = arg;

	if (!s->names && !strcmp(name, CACHE_STAT_OF_SESSIONS))
		return;
	Terrace__V1__Stat *row = s->n < STATS_MAX ? rpc_take(s->c, sizeof *row) : NULL;

	if (!row) {
		s->full = true;
		return;
	}
	terrace__v1__stat__init(row);
	row->name = keep(s->c, name);
	row->labels = keep(s->c, labels);
	row->value = value;
	row->counter = counter;
	row->help = keep(s->c, help);
	if (row->name && row->labels && row->help)
		s->rows[s->n++] = row;
	else
		s->full = true;
}

/* Fills the reply's faults. False: that takes too much memory. */
static bool faults_keep(struct rpc_call *c, Terrace__V1__StatsReply *r)
{
	struct cache_fault *faults = rpc_take(c, FAULTS_MAX * sizeof *faults);
	const uint32_t n = faults ? cache_faults(rpc_cache(c), faults, FAULTS_MAX) : 0;

	r->n_faults = n < FAULTS_MAX ? n : FAULTS_MAX;
	r->faults = rpc_take(c, FAULTS_MAX * sizeof *r->faults);
	for (uint32_t i = 0; r->faults && i < r->n_faults; i++)
		r->faults[i] = rpc_text(faults[i].text);
	return faults && r->faults;
}

static bool secret_fill(struct rpc_call *c, Terrace__V1__Secret *to, const struct secrets_view *v)
{
	terrace__v1__secret__init(to);
	to->tenant = (char *)v->tenant;
	to->fingerprint = v->count > 0 ? v->fingerprints[0] : 0;
	to->has_old = v->count > 1;
	to->old_fingerprint = v->count > 1 ? v->fingerprints[1] : 0;
	to->problem = keep(c, v->problem);
	return to->problem;
}

/* Fills the reply's secrets. False: that takes too much memory. */
static bool secrets_keep(struct rpc_call *c, Terrace__V1__StatsReply *r)
{
	struct secrets *s = c->daemon->secrets;
	const uint32_t count = s ? names_count(secrets_names(s)) : 0;
	Terrace__V1__Secret *rows = rpc_take(c, (count + 1) * sizeof *rows);
	struct secrets_view view;

	r->secrets = rpc_take(c, (count + 1) * sizeof *r->secrets);
	if (!rows || !r->secrets)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		if (!secrets_look_at(s, i, &view))
			continue;
		if (!secret_fill(c, &rows[i], &view))
			return false;
		r->secrets[r->n_secrets++] = &rows[i];
	}
	return true;
}

static const char *gid_kind_text(enum verbs_gid_kind kind)
{
	static const char *const texts[] = { "InfiniBand", "RoCE v1", "RoCE v2" };

	return texts[kind];
}

/* The texts are those of the rail, which lives in the call's memory. */
static void rdma_port_fill(Terrace__V1__RdmaPort *to, struct rail *rail)
{
	const bool usable = rail->state == RAIL_USABLE;

	terrace__v1__rdma_port__init(to);
	to->device = rail->device;
	to->port = rail->port;
	to->state = (char *)rail_state_text(rail->state);
	to->reason = rail->why;
	to->gid = (ProtobufCBinaryData){ usable ? sizeof rail->gid.bytes : 0, rail->gid.bytes };
	if (usable)
		to->gid_kind = (char *)gid_kind_text(rail->gid.kind);
	to->numa_node = rail->port ? rail->info.numa_node : -1;
	to->windows = rail->info.windows;
}

/* Fills the reply's rdma. False: that takes too much memory. */
static bool rdma_keep(struct rpc_call *c, Terrace__V1__StatsReply *r)
{
	struct rdma_view *v = rpc_take(c, sizeof *v);
	Terrace__V1__Rdma *to = rpc_take(c, sizeof *to);
	Terrace__V1__RdmaPort *ports;

	if (!v || !to)
		return false;
	rdma_look_at(c->daemon->rdma, v);
	ports = rpc_take(c, (v->count + 1) * sizeof *ports);
	terrace__v1__rdma__init(to);
	to->ports = rpc_take(c, (v->count + 1) * sizeof *to->ports);
	if (!ports || !to->ports)
		return false;
	to->state = (char *)rdma_state_text(v->state);
	to->reason = v->why;
	for (uint32_t i = 0; i < v->count; i++) {
		rdma_port_fill(&ports[i], &v->rail[i]);
		to->ports[to->n_ports++] = &ports[i];
	}
	r->rdma = to;
	return true;
}

enum status rpc_stats(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const struct daemon *d = c->daemon;
	Terrace__V1__StatsReply *r = rpc_take(c, sizeof *r);
	struct stats s = { .c = c, .rows = rpc_take(c, STATS_MAX * sizeof(Terrace__V1__Stat *)) };

	(void)request;
	if (!r || !s.rows)
		return rpc_too_big(c);
	s.names = rpc_is_admin(c);
	/* The daemon's own counts tell what other tenants do. */
	if (c->tenant && !s.names)
		cache_tenant_stats(d->cache, c->tenant, stats_row, &s);
	else
		daemon_stats(d, c->now_us, stats_row, &s);
	if (s.full)
		return rpc_too_big(c);
	terrace__v1__stats_reply__init(r);
	r->epoch = cache_epoch(d->cache);
	r->version = (char *)TERRACE_VERSION;
	r->state = (char *)daemon_state(d);
	r->uptime_ms = (c->now_us - d->started_us) / 1000;
	r->n_stats = s.n;
	r->stats = s.rows;
	if ((!c->tenant || s.names) && !faults_keep(c, r))
		return rpc_too_big(c);
	if (s.names && !secrets_keep(c, r))
		return rpc_too_big(c);
	if (s.names && d->rdma && !rdma_keep(c, r))
		return rpc_too_big(c);
	*reply = &r->base;
	return STATUS_OK;
}

/* ---- Inspect ---- */

static enum status inspect_row(struct rpc_call *c, const struct cache_block_view *v, Terrace__V1__InspectBlock **out)
{
	Terrace__V1__InspectBlock *b = rpc_take(c, sizeof *b);
	Terrace__V1__Layout *layout = rpc_take(c, sizeof *layout);

	if (!b || !layout)
		return rpc_too_big(c);
	terrace__v1__inspect_block__init(b);
	layout_message_write(&v->layout, layout);
	b->layout_id = v->layout_id;
	b->state = (char *)v->state;
	b->tier = (char *)v->tier;
	b->extent = v->extent;
	b->offset = v->offset;
	b->generation = v->generation;
	b->tokens = v->tokens;
	b->pins = v->pins;
	b->parent = (ProtobufCBinaryData){ v->parent_bytes, (uint8_t *)v->parent };
	b->position = v->position;
	b->role = (Terrace__V1__Role)v->role;
	b->turn = v->turn;
	b->age_ms = v->age_ms;
	b->idle_ms = v->idle_ms;
	b->uses = v->uses;
	b->checksum_ok = v->checksum_ok;
	b->block_bytes = v->block_bytes;
	b->layout = layout;
	*out = b;
	return STATUS_OK;
}

enum status rpc_inspect(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__InspectRequest *q = (const Terrace__V1__InspectRequest *)request;
	Terrace__V1__InspectReply *r = rpc_take(c, sizeof *r);
	struct cache_block_view *views = rpc_take(c, INSPECT_MAX * sizeof *views);
	Terrace__V1__InspectBlock **rows = rpc_take(c, INSPECT_MAX * sizeof *rows);
	const char *why = NULL;
	uint32_t n = 0;
	enum status s = rpc_key(c, "key", &q->key);

	if (s != STATUS_OK)
		return s;
	if (!r || !views || !rows)
		return rpc_too_big(c);
	const struct cache_block_name name = {
		.tenant = q->tenant,
		.layout_id = q->layout_id,
		.key = q->key.data,
		.key_bytes = (uint32_t)q->key.len,
	};

	s = cache_inspect(rpc_cache(c), &name, c->now_us, views, INSPECT_MAX, &n, &why);
	if (s != STATUS_OK)
		return rpc_fail_why(c, s, why);
	for (uint32_t i = 0; i < n; i++)
		if ((s = inspect_row(c, &views[i], &rows[i])) != STATUS_OK)
			return s;
	terrace__v1__inspect_reply__init(r);
	r->n_blocks = n;
	r->blocks = rows;
	*reply = &r->base;
	return STATUS_OK;
}

/* ---- Layouts ---- */

enum status rpc_layouts(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	struct cache_layout_view *views = rpc_take(c, LAYOUTS_MAX * sizeof *views);
	const uint32_t n = views ? cache_layouts(rpc_cache(c), views, LAYOUTS_MAX) : 0;
	Terrace__V1__LayoutsReply *r = rpc_take(c, sizeof *r);
	Terrace__V1__LayoutRow *rows = rpc_take(c, n * sizeof *rows), **list = rpc_take(c, n * sizeof *list);
	Terrace__V1__Layout *layouts = rpc_take(c, n * sizeof *layouts);

	(void)request;
	if (!views || !r || !rows || !list || !layouts)
		return rpc_too_big(c);
	for (uint32_t i = 0; i < n; i++) {
		terrace__v1__layout_row__init(&rows[i]);
		layout_message_write(&views[i].layout, &layouts[i]);
		rows[i].layout_id = views[i].layout_id;
		rows[i].layout = &layouts[i];
		rows[i].block_bytes = views[i].block_bytes;
		rows[i].host_blocks = views[i].host_blocks;
		rows[i].disk_blocks = views[i].disk_blocks;
		rows[i].dirty_blocks = views[i].dirty_blocks;
		list[i] = &rows[i];
	}
	terrace__v1__layouts_reply__init(r);
	r->epoch = cache_epoch(rpc_cache(c));
	r->n_rows = n;
	r->rows = list;
	*reply = &r->base;
	return STATUS_OK;
}

/* ---- Config ---- */

enum status rpc_config(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	Terrace__V1__ConfigReply *r = rpc_take(c, sizeof *r);
	Terrace__V1__ConfigRow *rows = rpc_take(c, CONFIG_OPTIONS_MAX * sizeof *rows);
	Terrace__V1__ConfigRow **list = rpc_take(c, CONFIG_OPTIONS_MAX * sizeof *list);
	struct config_row row;
	uint32_t n = 0;

	(void)request;
	if (!r || !rows || !list)
		return rpc_too_big(c);
	for (; config_row(c->daemon->config, n, &row); n++) {
		terrace__v1__config_row__init(&rows[n]);
		rows[n].name = (char *)row.name;
		rows[n].value = rpc_text(keep(c, row.value));
		rows[n].origin = (char *)row.origin;
		rows[n].help = (char *)row.help;
		if (!rows[n].value)
			return rpc_too_big(c);
		list[n] = &rows[n];
	}
	terrace__v1__config_reply__init(r);
	r->n_rows = n;
	r->rows = list;
	*reply = &r->base;
	return STATUS_OK;
}

/* ---- Peers: texts are copied, since the list may be freed before the reply is packed ---- */

struct peer_row {
	Terrace__V1__PeerRow row;
	Terrace__V1__Member member;
};

static bool other_secrets_fill(struct rpc_call *c, Terrace__V1__PeerRow *to, const struct member *m)
{
	const struct tenants *table = c->daemon->config->tenants;
	const uint32_t count = table ? table->count : 1;

	to->other_secret_tenants = rpc_take(c, count * sizeof to->other_secret_tenants[0]);
	for (uint32_t i = 0; to->other_secret_tenants && i < count; i++)
		if (m->other_secret[i / 64] >> i % 64 & 1)
			to->other_secret_tenants[to->n_other_secret_tenants++] =
				(char *)(table ? table->of[i].name : "default");
	return to->other_secret_tenants;
}

static bool peer_fill(struct rpc_call *c, struct peer_row *to, const struct member *m)
{
	uint8_t *node = rpc_take(c, sizeof m->node);

	terrace__v1__peer_row__init(&to->row);
	terrace__v1__member__init(&to->member);
	to->row.member = &to->member;
	to->row.self = m->self;
	to->row.absent = m->absent;
	to->row.known_ms = (daemon_now_us() - m->since_us) / 1000;
	to->member.name = keep(c, m->name);
	to->member.address = keep(c, m->address);
	to->member.version = keep(c, m->version);
	to->member.epoch = m->epoch;
	to->member.host_bytes = m->host_bytes;
	to->member.draining = m->draining;
	to->member.peer_protocol = m->peer_protocol;
	if (!node || !to->member.name || !to->member.address || !to->member.version)
		return false;
	if (!other_secrets_fill(c, &to->row, m))
		return false;
	if (c->daemon->peers && !m->self) {
		struct peers_view view;

		peers_look_at(c->daemon->peers, m, &view);
		to->row.link = (char *)link_state_text(view.state);
		to->row.calls = view.calls;
		to->row.avoided = view.avoided;
	}
	memcpy(node, m->node, sizeof m->node);
	to->member.node = (ProtobufCBinaryData){ .len = sizeof m->node, .data = node };
	return true;
}

static enum status peers_fill_rows(struct rpc_call *c, Terrace__V1__PeersReply *r, const struct members_list *list)
{
	struct peer_row *rows = rpc_take(c, (list->count + 1) * sizeof *rows);

	r->rows = rpc_take(c, (list->count + 1) * sizeof *r->rows);
	if (!rows || !r->rows)
		return rpc_too_big(c);
	for (uint32_t i = 0; i < list->count; i++) {
		if (!peer_fill(c, &rows[i], &list->at[i]))
			return rpc_too_big(c);
		r->rows[i] = &rows[i].row;
	}
	r->n_rows = list->count;
	return STATUS_OK;
}

static enum status peers_fill_status(struct rpc_call *c, Terrace__V1__PeersReply *r)
{
	struct members_status now;

	members_status(c->daemon->members, &now);
	r->cluster = (char *)c->daemon->config->cluster;
	r->node_name = (char *)c->daemon->config->node_name;
	r->state = (char *)members_state_text(now.state);
	r->reason = keep(c, now.reason);
	r->endpoint = keep(c, now.endpoint);
	r->confirmed = now.confirmed_us != 0;
	r->confirmed_ms = r->confirmed ? (daemon_now_us() - now.confirmed_us) / 1000 : 0;
	return r->reason && r->endpoint ? STATUS_OK : rpc_too_big(c);
}

enum status rpc_peers(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	Terrace__V1__PeersReply *r = rpc_take(c, sizeof *r);
	enum status s = STATUS_OK;

	(void)request;
	if (!r)
		return rpc_too_big(c);
	terrace__v1__peers_reply__init(r);
	if (c->daemon->members) {
		const struct members_list *list = members_take(c->daemon->members);

		s = peers_fill_rows(c, r, list);
		members_drop(list);
		if (s == STATUS_OK)
			s = peers_fill_status(c, r);
	}
	*reply = &r->base;
	return s;
}
