/* Counters and gauges, by the names under which they are exported. */
#include "daemon/call/stats.h"

#include "daemon/advice/eviction_log.h"
#include "daemon/advice/graph.h"
#include "daemon/block/counters.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/stats.h"
#include "daemon/session/attachment.h"
#include "daemon/session/grants.h"
#include "daemon/session/lease.h"
#include "daemon/session/reservation.h"
#include "daemon/session/session.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/stats.h"
#include "store/arena/arena.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct counter_row {
	const char *name, *labels, *help;
} rows[COUNTER_COUNT] = {
#define COUNTER_ROW(id, metric, labels_, help_) { metric, labels_, help_ },
	COUNTER_MAP(COUNTER_ROW)
#undef COUNTER_ROW
};

struct gauges {
	uint64_t writable_extents;
	uint64_t sessions, detached_sessions, attachments, leases, leases_overdue, reservations, reservations_overdue;
	uint64_t quarantined_slots, quarantined_bytes, pinned_bytes, reserved_bytes, open_blocks;
	uint64_t gpu_quarantined_slots, gpu_quarantined_bytes;
	uint64_t blocks, disk_blocks, gpu_blocks, dirty, gpu_dirty, pools, watches;
	uint32_t trades;
};

/* Adds to the gauges what a detached session holds: in memory, and on GPUs. */
static void ghost_read(const struct session *s, struct gauges *g)
{
	uint64_t slots = 0, bytes = 0;

	for (const struct lease *l = s->leases; l; l = l->next) {
		slots += l->gpu_slots;
		bytes += l->gpu_bytes;
	}
	for (const struct reservation *r = s->reservations; r; r = r->next) {
		slots += r->gpu ? r->slots : 0;
		bytes += r->gpu ? r->bytes : 0;
	}
	g->gpu_quarantined_slots += slots;
	g->gpu_quarantined_bytes += bytes;
	g->quarantined_slots += s->held_slots - slots;
	g->quarantined_bytes += s->held_bytes - bytes;
}

static void gauges_read(struct cache *c, struct gauges *g)
{
	*g = (struct gauges){
		.sessions = c->open_sessions, .detached_sessions = c->detached_sessions,
		.leases = c->grants->leases.used, .leases_overdue = c->grants->lease_age.overdue,
		.reservations = c->grants->reservations.used,
		.reservations_overdue = c->grants->reservation_age.overdue,
		.pools = c->pool_count, .watches = c->watch_count, .trades = c->trades,
	};
	for (uint32_t i = 0; i < c->tenant_count; i++) {
		g->pinned_bytes += c->tenants[i].pinned_bytes - c->tenants[i].beside_bytes;
		g->reserved_bytes += c->tenants[i].reserved_bytes;
	}
	for (uint32_t i = 0; i < c->pool_count; i++) {
		g->blocks += c->pools[i]->blocks;
		g->disk_blocks += c->pools[i]->disk_blocks;
		g->dirty += c->pools[i]->dirty;
		g->gpu_dirty += vram_only_blocks(c, c->pools[i]);
		for (uint32_t k = 0; c->vram && k < c->vram->count; k++)
			if (c->vram->gpu[k]->pools[i])
				g->gpu_blocks += c->vram->gpu[k]->pools[i]->blocks;
	}
	for (uint32_t i = 0; i < c->options.sessions_max; i++) {
		const struct session *s = &c->sessions[i];

		if (s->state == SESSION_FREE)
			continue;
		g->attachments += s->attachment_count;
		for (const struct attachment *a = s->attachments; a; a = a->next)
			g->writable_extents += attachment_writable(a);
		g->open_blocks += s->open_blocks;
		if (s->state == SESSION_DETACHED)
			ghost_read(s, g);
	}
}

/* ---- what sessions hold ---- */

enum { HOLDERS_MAX = 64, LABELS_MAX = 160, CLASSES_TOLD = 128 };

struct holder {
	char labels[LABELS_MAX];
	uint64_t bytes;
};

/* An engine's name is chosen by the client: labels get only its harmless characters. */
static void engine_clean(const char *engine, char out[CACHE_ENGINE_MAX + 1])
{
	size_t n = 0;

	for (; engine[n] && n < CACHE_ENGINE_MAX; n++)
		out[n] = isalnum((unsigned char)engine[n]) || strchr("._-/", engine[n]) ? engine[n] : '_';
	out[n] = 0;
}

static void holder_fill(const struct session *s, struct holder *h)
{
	char engine[CACHE_ENGINE_MAX + 1];

	engine_clean(s->engine, engine);
	snprintf(h->labels, sizeof(h->labels), "session=%" PRIu64 ",engine=%s,pid=%ld,state=%s", s->number,
		 engine, s->attachments ? (long)s->attachments->pid : 0L,
		 s->state == SESSION_DETACHED ? "ghost" : "open");
	h->bytes = s->held_bytes;
}

struct class_spans {
	char labels[64];
	uint32_t spans;
};

/* Classes that have memory now; of very many, the first. */
static uint32_t spans_read(const struct cache *c, struct class_spans *out)
{
	struct arena_class_usage u;
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->class_count && n < CLASSES_TOLD; i++) {
		if (!c->classes[i]->spans)
			continue;
		arena_class_usage(c->classes[i]->arena, &u);
		snprintf(out[n].labels, sizeof(out[n].labels), "tier=host,class=%" PRIu64, c->classes[i]->stride);
		out[n++].spans = u.spans;
	}
	return n;
}

/* Sessions that hold something; of very many, the first. */
static uint32_t holders_read(const struct cache *c, struct holder *h)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->options.sessions_max && n < HOLDERS_MAX; i++)
		if (c->sessions[i].state != SESSION_FREE && c->sessions[i].held_bytes)
			holder_fill(&c->sessions[i], &h[n++]);
	return n;
}

/* ---- rows of tenants ---- */

enum { FACTS = 12, HOST_FACTS = 8, TENANT_LABEL_MAX = 80, EXTENTS_A_HOLD = 64 };
static const struct {
	const char *name, *help;
} tenant_facts[FACTS] = {
	{ "terrace_tenant_blocks", "blocks of the tenant in memory" },
	{ "terrace_tenant_disk_blocks", "blocks of the tenant on disks" },
	{ "terrace_tenant_extent_bytes", "host memory that the tenant has" },
	{ "terrace_tenant_pinned_bytes", "of that, what its leases pin" },
	{ "terrace_tenant_reserved_bytes", "of that, what its reservations have" },
	{ "terrace_tenant_pinned_bytes_max", "bound of these two" },
	{ "terrace_tenant_disk_bytes", "slots of the tenant's blocks on disks" },
	{ "terrace_tenant_lent_bytes", "of its host memory, extents that engines have mapped" },
	{ "terrace_tenant_gpu_blocks", "blocks of the tenant on GPUs; one on two GPUs counts twice" },
	{ "terrace_tenant_gpu_extent_bytes", "memory of GPUs that the tenant has" },
	{ "terrace_tenant_gpu_pinned_bytes", "of that, what its leases pin and its reservations have" },
	{ "terrace_tenant_gpu_lent_bytes", "of that, extents that engines have mapped" },
};

struct tenant_row {
	char labels[TENANT_LABEL_MAX];
	uint64_t fact[FACTS];
};

/* In pieces, so that the lock is not held for long. */
static uint64_t lent_bytes(struct cache *c, struct arena *a, uint32_t tenant)
{
	uint32_t ids[EXTENTS_A_HOLD], n, from = 0;
	uint64_t bytes = 0;

	do {
		n = arena_extents(a, tenant, from, ids, EXTENTS_A_HOLD);
		cache_lock(c);
		for (uint32_t i = 0; i < n; i++)
			bytes += attachments_lent(c, ids[i], false) ? arena_extent_size(a, ids[i]) : 0;
		cache_unlock(c);
		from = n ? ids[n - 1] + 1 : from;
	} while (n == EXTENTS_A_HOLD);
	return bytes;
}

/* What the tenant has of a GPU, which is added to the row. */
static void gpu_facts_add(struct cache *c, const struct gpu *g, const struct tenant *t, struct tenant_row *row)
{
	cache_lock(c);
	for (uint32_t i = 0; i < c->pool_count; i++)
		row->fact[8] += g->pools[i] && c->pools[i]->tenant == t ? g->pools[i]->blocks : 0;
	row->fact[10] += gpu_accounting_of(g, t)->lent_bytes;
	cache_unlock(c);
	row->fact[9] += arena_tenant_bytes(g->arena, t->number);
	row->fact[11] += lent_bytes(c, g->arena, t->number);
}

/* Rows of the tenants from `first` on. */
static void tenant_rows_read(struct cache *c, const struct tenant *first, uint32_t count, struct tenant_row *facts)
{
	cache_lock(c);
	for (uint32_t i = 0; i < c->pool_count; i++) {
		const struct layout_pool *p = c->pools[i];

		if (p->tenant < first || p->tenant >= first + count)
			continue;
		facts[p->tenant - first].fact[0] += p->blocks;
		facts[p->tenant - first].fact[1] += p->disk_blocks;
	}
	for (uint32_t i = 0; i < count; i++) {
		facts[i].fact[3] = first[i].pinned_bytes - first[i].beside_bytes;
		facts[i].fact[4] = first[i].reserved_bytes;
		facts[i].fact[5] = first[i].pinned_bytes_max;
		facts[i].fact[6] = first[i].disk_bytes;
	}
	cache_unlock(c);
	for (uint32_t i = 0; i < count; i++) {
		facts[i].fact[2] = arena_tenant_bytes(c->host, first[i].number);
		facts[i].fact[7] = lent_bytes(c, c->host, first[i].number);
		for (uint32_t g = 0; c->vram && g < c->vram->count; g++)
			if (c->vram->gpu[g]->arena) /* else it could not be opened */
				gpu_facts_add(c, c->vram->gpu[g], &first[i], &facts[i]);
	}
}

static void tenant_rows_emit(const struct cache *c, const struct tenant_row *facts, uint32_t count,
			     cache_stat_fn *emit, void *arg)
{
	for (uint32_t f = 0; f < (c->vram ? FACTS : HOST_FACTS); f++)
		for (uint32_t i = 0; i < count; i++)
			emit(arg, tenant_facts[f].name, facts[i].labels, (double)facts[i].fact[f], false,
			     tenant_facts[f].help);
}

void cache_tenant_stats(struct cache *c, uint32_t tenant, cache_stat_fn *emit, void *arg)
{
	const struct tenant *t = tenant_of_number(c, tenant);
	struct tenant_row row = { .labels = "" };

	if (!t)
		return;
	tenant_rows_read(c, t, 1, &row);
	tenant_rows_emit(c, &row, 1, emit, arg);
}

static void tenants_stats(struct cache *c, cache_stat_fn *emit, void *arg)
{
	const uint32_t most = c->options.tenant_rows, count = c->tenant_count < most ? c->tenant_count : most;
	struct tenant_row *facts = count ? calloc(count, sizeof(*facts)) : NULL;

	if (!facts)
		return;
	for (uint32_t i = 0; i < count; i++)
		snprintf(facts[i].labels, sizeof(facts[i].labels), "tenant=%s", c->tenants[i].name);
	tenant_rows_read(c, c->tenants, count, facts);
	tenant_rows_emit(c, facts, count, emit, arg);
	emit(arg, "terrace_tenants_without_rows", "", c->tenant_count - count, false,
	     "tenants beyond the bound of tenant_metrics, which have no rows");
	free(facts);
}

/* Long because of the table of gauges, which has a row a metric. The figures are read in one hold of the lock;
 * everything is emitted without it. */
void cache_stats(struct cache *c, uint64_t now_us, cache_stat_fn *emit, void *arg)
{
	struct holder holders[HOLDERS_MAX];
	struct class_spans spans[CLASSES_TOLD];
	struct arena_usage u;
	struct gauges g;
	char policy[64];
	uint32_t held, classes;

	for (int i = 0; i < COUNTER_COUNT; i++)
		emit(arg, rows[i].name, rows[i].labels,
		     atomic_load_explicit(&c->counters[i], memory_order_relaxed), true, rows[i].help);
	cache_lock(c);
	cache_time(c, now_us);
	gauges_read(c, &g);
	held = holders_read(c, holders);
	classes = spans_read(c, spans);
	cache_unlock(c);
	arena_usage(c->host, &u);
	snprintf(policy, sizeof(policy), "policy=%s", c->policy->name);

	const struct {
		const char *name, *labels;
		double value;
		const char *help;
	} gauge[] = {
		{ "terrace_sessions", "", g.sessions, "open sessions" },
		{ "terrace_sessions_max", "", c->options.sessions_max, "bound of open and detached sessions" },
		{ "terrace_ghost_sessions", "", g.detached_sessions,
		    "ended sessions whose memory may still be mapped" },
		{ "terrace_attachments", "", g.attachments, "processes attached to sessions" },
		{ "terrace_writable_extents", "", g.writable_extents,
		  "extents lent to be written, one for each process" },
		{ "terrace_leases", "", g.leases, "leases held" },
		{ "terrace_leases_overdue", "", g.leases_overdue, "leases held past their time" },
		{ "terrace_reservations", "", g.reservations, "reservations held" },
		{ "terrace_reservations_overdue", "", g.reservations_overdue,
		  "reservations held past their time" },
		{ "terrace_open_blocks", "", g.open_blocks, "open blocks" },
		{ "terrace_quarantined_slots", "tier=host", g.quarantined_slots, "slots held by detached sessions" },
		{ "terrace_quarantined_slots", "tier=gpu", g.gpu_quarantined_slots, "slots held by detached sessions" },
		{ "terrace_quarantined_bytes", "tier=host", g.quarantined_bytes, "bytes held by detached sessions" },
		{ "terrace_quarantined_bytes", "tier=gpu", g.gpu_quarantined_bytes, "bytes held by detached sessions" },
		{ "terrace_pinned_bytes", "tier=host", g.pinned_bytes,
		  "bytes of blocks under a lease or being read" },
		{ "terrace_reserved_bytes", "tier=host", g.reserved_bytes, "bytes of reserved slots" },
		{ "terrace_pinned_bytes_max", "tier=host", c->options.pinned_bytes_max,
		  "bound of pinned and reserved bytes" },
		{ "terrace_blocks", "tier=host", g.blocks, "blocks stored" },
		{ "terrace_blocks", "tier=disk", g.disk_blocks, "blocks stored" },
		{ "terrace_blocks", "tier=gpu", g.gpu_blocks, "blocks stored" },
		{ "terrace_dirty_blocks", "tier=host", g.dirty, "blocks that only this tier has, and are not on their way to a lower one" },
		{ "terrace_dirty_blocks", "tier=gpu", g.gpu_dirty, "blocks that only this tier has, and are not on their way to a lower one" },
		{ "terrace_layouts", "", g.pools, "layouts known since the start" },
		{ "terrace_slots", "tier=host", u.slots, "slots in all spans" },
		{ "terrace_slots_used", "tier=host", u.slots_used, "slots in use" },
		{ "terrace_budget_bytes", "tier=host", u.budget_bytes, "memory that may be used" },
		{ "terrace_extent_bytes", "tier=host", u.extent_bytes, "memory in extents" },
		{ "terrace_extents", "tier=host", u.extents, "extents" },
		{ "terrace_free_bytes", "tier=host", u.granules_free * arena_granule_bytes(c->host),
		  "memory in extents that no class has, or is getting" },
		{ "terrace_span_trades", "tier=host", g.trades, "spans that are being emptied for another class" },
		{ "terrace_huge_pages", "tier=host", u.huge_pages, "1 if the extents are on huge pages" },
		{ "terrace_watches", "", g.watches, "open watches" },
		{ "terrace_policy_info", policy, 1, "the eviction policy" },
		{ "terrace_draining", "", cache_draining(c), "1 while nothing new is admitted" },
	};
	for (size_t i = 0; i < sizeof(gauge) / sizeof(gauge[0]); i++)
		emit(arg, gauge[i].name, gauge[i].labels, gauge[i].value, false, gauge[i].help);
	for (uint32_t i = 0; i < classes; i++)
		emit(arg, "terrace_spans", spans[i].labels, spans[i].spans, false, "spans, by the bytes from slot to slot");
	for (uint32_t i = 0; i < held; i++)
		emit(arg, CACHE_STAT_OF_SESSIONS, holders[i].labels, holders[i].bytes, false,
		     "bytes that a session's leases and reservations hold");
	quota_stats(c->quota, emit, arg);
	eviction_log_stats(c, emit, arg);
	advisor_stats(c, emit, arg);
	if (c->vram)
		vram_stats(c, emit, arg);
	if (c->tier)
		tier_stats(c, emit, arg);
	tenants_stats(c, emit, arg);
}
