/* Holders, and the rule for a grant. See block/quota.h.
 *
 * A holder is a process and points to its user. Both are in a hash table, and are freed when the last join has been
 * left. One mutex guards everything; a grant is a few additions under it.
 */
#include "daemon/block/quota.h"

#include "daemon/block/options.h"
#include "daemon/block/peer.h"
#include "daemon/threads/pool.h"
#include "store/short_lock.h"
#include "store/status.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024, RESERVE_PART = 16, WORDS_MAX = 200, LINE = 64 };

/* The fields that grants write come first, so that a grant of leases takes few cache lines from another thread. */
struct quota_user {
	_Alignas(LINE) uint64_t held[QUOTA_THINGS];
	struct quota_user *next;
	uint64_t name[2];
	uint32_t processes;
	uint32_t number;               /* of the tenant; 0: there is no table */
	struct quota_tenant *tenant;   /* NULL: it has no bounds */
};

struct quota_tenant {
	_Alignas(LINE) uint64_t held[QUOTA_THINGS];
	uint64_t calls_max;            /* of QUOTA_CALLS, and of QUOTA_LOCAL; 0: no bound */
	const char *name;
	uint32_t number;
};

struct quota_holder {
	_Alignas(LINE) uint64_t held[QUOTA_THINGS];
	struct quota *quota;
	struct quota_holder *next;
	struct quota_user *user;       /* NULL: the user is not known, and the holder has no bound of its own */
	uint64_t process;              /* 0: not known */
	uint64_t joined;
};

struct quota {
	_Alignas(LINE) pthread_mutex_t lock;
	uint64_t used[QUOTA_THINGS];
	struct quota_user *users[BUCKETS];
	struct quota_holder *holders[BUCKETS];
	uint64_t max[QUOTA_THINGS];
	uint64_t refused[QUOTA_THINGS][QUOTA_REFUSALS];
	struct quota_tenant *tenants;
	uint32_t tenant_count;
	struct quota_holder unknown;
};

/* The name of a thing for people, what they can do, and the option that raises the bound ("": none). */
static const struct thing {
	const char *name, *label, *advice, *option;
} things[QUOTA_GPU_PINNED + 1] = {
	[QUOTA_SESSIONS] = { "sessions", "sessions", "close some", "sessions_max" },
	[QUOTA_LAYOUTS] = { "layouts since the start", "layouts", "use fewer, or start the daemon anew", "" },
	[QUOTA_LEASES] = { "leases", "leases", "release some", "leases_max" },
	[QUOTA_RESERVATIONS] = { "reservations", "reservations", "commit or abort some", "" },
	[QUOTA_WATCHES] = { "watches", "watches", "close some", "" },
	[QUOTA_PINNED] = { "pinned bytes", "pinned_bytes", "release some leases", "pinned_share or host_bytes" },
	[QUOTA_ATTACHMENTS] = { "connections to fd_socket", "attachments", "close some", "connections_max" },
	[QUOTA_LOCAL] = { "connections for local calls", "local_connections", "close some", "connections_max" },
	[QUOTA_RPC] = { "gRPC connections", "rpc_connections", "close some", "connections_max" },
	[QUOTA_METRICS] = { "metrics connections", "metrics_connections", "close some", "" },
	[QUOTA_CALLS] = { "calls at a time", "calls", "wait for some to end", "calls_max" },
	[QUOTA_STREAMS] = { "streams at a time", "streams", "end some", "calls_max" },
	[QUOTA_LASTING] = { "watch calls at a time", "watch_calls", "end some", "calls_max" },
	[QUOTA_COPIES] = { "bytes of blocks that are read by stream and not taken yet", "read_bytes", "take what has been asked for", "" },
	[QUOTA_LOANED] = { "bytes that are lent to other nodes", "loaned_bytes", "return some loans", "host_bytes" },
	[QUOTA_READS] = { "requests being received", "requests_being_received", "send them one after another", "" },
	[QUOTA_REPLY_BYTES] = { "bytes of replies that are not read", "reply_bytes", "read them", "" },
	[QUOTA_WORK] = { "calls that wait for a worker", "queue_places", "try again later", "queue_max or workers" },
	[QUOTA_GPU_PINNED] = { "pinned bytes of a GPU", "gpu_pinned_bytes", "release some leases", "pinned_share or gpu_bytes" },
};

static const char *const refusal_words[QUOTA_REFUSALS] = { "full", "user", "process", "tenant" };

static const struct thing *thing_of(enum quota_thing t)
{
	return &things[t < QUOTA_GPU_PINNED ? t : QUOTA_GPU_PINNED];
}

/* ---- birth and death ---- */

/* Zeroed memory on cache lines of its own. NULL: no memory. */
static void *lines_take(size_t bytes)
{
	void *p = aligned_alloc(LINE, bytes);

	return p ? memset(p, 0, bytes) : NULL;
}

struct quota *quota_create(void)
{
	struct quota *q = lines_take(sizeof(*q));

	if (!q)
		return NULL;
	short_lock_init(&q->lock);
	q->unknown.quota = q;
	for (int t = 0; t < QUOTA_THINGS; t++)
		q->max[t] = UINT64_MAX;
	return q;
}

void quota_destroy(struct quota *q)
{
	if (!q)
		return;
	for (int i = 0; i < BUCKETS; i++) {
		for (struct quota_holder *h = q->holders[i], *next; h; h = next) {
			next = h->next;
			free(h);
		}
		for (struct quota_user *u = q->users[i], *next; u; u = next) {
			next = u->next;
			free(u);
		}
	}
	pthread_mutex_destroy(&q->lock);
	free(q->tenants);
	free(q);
}

enum status quota_tenants(struct quota *q, const struct cache_tenant_options *t, uint32_t count)
{
	q->tenants = count ? lines_take(count * sizeof(*q->tenants)) : NULL;
	if (count && !q->tenants)
		return STATUS_EXHAUSTED;
	q->tenant_count = count;
	for (uint32_t i = 0; i < count; i++) {
		q->tenants[i].name = t[i].name;
		q->tenants[i].number = t[i].number;
		q->tenants[i].calls_max = t[i].calls_max;
	}
	return STATUS_OK;
}

void quota_bound(struct quota *q, enum quota_thing thing, uint64_t max)
{
	pthread_mutex_lock(&q->lock);
	q->max[thing] = max;
	pthread_mutex_unlock(&q->lock);
}

/* ---- holders ---- */

static uint32_t bucket_of(const uint64_t name[2], uint64_t process)
{
	uint64_t x = (name[0] * 31 + name[1]) * 31 + process;

	x *= 0x9e3779b97f4a7c15;
	return (uint32_t)(x >> 32) % BUCKETS;
}

static bool is_user(const struct quota_user *u, const struct cache_peer *peer)
{
	return u->number == peer->tenant && !memcmp(u->name, peer->user, sizeof(u->name));
}

static struct quota_tenant *tenant_find(struct quota *q, uint32_t number)
{
	for (uint32_t i = 0; i < q->tenant_count; i++)
		if (q->tenants[i].number == number)
			return &q->tenants[i];
	return NULL;
}

/* The record of the peer's user, made if new. NULL: no memory. With the lock. */
static struct quota_user *user_get(struct quota *q, const struct cache_peer *peer)
{
	struct quota_user **bucket = &q->users[bucket_of(peer->user, 0)], *u = *bucket;

	while (u && !is_user(u, peer))
		u = u->next;
	if (u)
		return u;
	u = lines_take(sizeof(*u));
	if (!u)
		return NULL;
	memcpy(u->name, peer->user, sizeof(u->name));
	u->number = peer->tenant;
	u->tenant = tenant_find(q, peer->tenant);
	u->next = *bucket;
	*bucket = u;
	return u;
}

static void user_drop(struct quota *q, struct quota_user *u)
{
	struct quota_user **at = &q->users[bucket_of(u->name, 0)];

	if (u->processes)
		return;
	while (*at != u)
		at = &(*at)->next;
	*at = u->next;
	free(u);
}

/* The record of the peer's process, made if new. NULL: no memory. With the lock. */
static struct quota_holder *holder_get(struct quota *q, const struct cache_peer *peer)
{
	struct quota_holder **bucket = &q->holders[bucket_of(peer->user, peer->process)], *h = *bucket;
	struct quota_user *u;

	while (h && (h->process != peer->process || !is_user(h->user, peer)))
		h = h->next;
	if (h)
		return h;
	u = user_get(q, peer);
	h = u ? lines_take(sizeof(*h)) : NULL;
	if (!h) {
		if (u)
			user_drop(q, u);
		return NULL;
	}
	*h = (struct quota_holder){ .quota = q, .next = *bucket, .user = u, .process = peer->process };
	*bucket = h;
	u->processes++;
	return h;
}

struct quota_holder *quota_join(struct quota *q, const struct cache_peer *peer)
{
	struct quota_holder *h;

	if (!peer || !(peer->user[0] | peer->user[1]))
		return &q->unknown;
	pthread_mutex_lock(&q->lock);
	h = holder_get(q, peer);
	if (h)
		h->joined++;
	pthread_mutex_unlock(&q->lock);
	return h;
}

struct quota_holder *quota_join_again(struct quota_holder *h)
{
	pthread_mutex_lock(&h->quota->lock);
	h->joined++;
	pthread_mutex_unlock(&h->quota->lock);
	return h;
}

static void holder_drop(struct quota *q, struct quota_holder *h)
{
	struct quota_holder **at = &q->holders[bucket_of(h->user->name, h->process)];

	while (*at != h)
		at = &(*at)->next;
	*at = h->next;
	h->user->processes--;
	user_drop(q, h->user);
	free(h);
}

void quota_leave(struct quota_holder *h)
{
	struct quota *q = h ? h->quota : NULL;

	if (!h)
		return;
	pthread_mutex_lock(&q->lock);
	if (h != &q->unknown && !--h->joined)
		holder_drop(q, h);
	else if (h == &q->unknown && h->joined)
		h->joined--;
	pthread_mutex_unlock(&q->lock);
}

/* ---- the rule ---- */

/* The amount that must stay free, for other holders, after a grant that brings a holder to `held`. A holder's first one
 * is always granted if one is free. */
static uint64_t reserve(uint64_t held, uint64_t max)
{
	const uint64_t most = max / RESERVE_PART + (max % RESERVE_PART > 0), before = held - 1;

	return before < most ? before : most;
}

static uint64_t tenant_max(const struct quota_tenant *t, enum quota_thing thing)
{
	return t->calls_max && (thing == QUOTA_CALLS || thing == QUOTA_LOCAL) ? t->calls_max : UINT64_MAX;
}

static uint64_t max_of(const struct quota *q, const struct quota_wish *w)
{
	return w->max ? w->max : q->max[w->thing];
}

/* Why the holder may not have w->n more of the thing; QUOTA_REFUSALS: it may. w->n is not 0. With the lock. */
static enum quota_refusal refusal_of(const struct quota_holder *h, const struct quota_wish *w, uint64_t free)
{
	const uint64_t max = max_of(h->quota, w), n = w->n;
	const enum quota_thing t = w->thing;
	uint64_t kept;

	if (n > free)
		return QUOTA_FULL;
	if (!h->user)
		return QUOTA_REFUSALS;
	if (h->user->tenant && h->user->tenant->held[t] + n > tenant_max(h->user->tenant, t))
		return QUOTA_TENANT;
	kept = reserve(h->user->held[t] + n, max);
	if (free - n < kept)
		return QUOTA_USER;
	return h->process && free - n < kept + reserve(h->held[t] + n, max) ? QUOTA_PROCESS : QUOTA_REFUSALS;
}

/* ---- words ---- */

static void name_user(const struct quota_user *u, char *out, size_t size)
{
	if (u->name[0] == CACHE_PEER_UID)
		snprintf(out, size, "user %" PRIu64, u->name[1]);
	else if (!u->name[0])
		snprintf(out, size, "address %u.%u.%u.%u", (unsigned)(u->name[1] >> 24 & 255), (unsigned)(u->name[1] >> 16 & 255),
			 (unsigned)(u->name[1] >> 8 & 255), (unsigned)(u->name[1] & 255));
	else
		snprintf(out, size, "address %016" PRIx64 "%016" PRIx64, u->name[0], u->name[1]);
}

/* With the lock: the user of that tenant that holds most of it, or NULL. It walks all users; only a refusal calls it.
 */
static const struct quota_user *largest(const struct quota *q, enum quota_thing t, uint32_t tenant)
{
	const struct quota_user *most = NULL;

	for (int i = 0; i < BUCKETS; i++)
		for (const struct quota_user *u = q->users[i]; u; u = u->next)
			if (u->held[t] && u->number == tenant && (!most || u->held[t] > most->held[t]))
				most = u;
	return most;
}

static void say_tenant(const struct quota_tenant *t, enum quota_thing thing, char out[WORDS_MAX])
{
	snprintf(out, WORDS_MAX, "too many %s: tenant %s holds all %" PRIu64 " that it may have: %s, or raise its "
		 "calls_max",
		 thing_of(thing)->name, t->name, tenant_max(t, thing), thing_of(thing)->advice);
}

static void say(const struct quota_holder *h, const struct quota_wish *wish, enum quota_refusal refusal, uint64_t free,
		char out[WORDS_MAX])
{
	const enum quota_thing t = wish->thing;
	const uint64_t max = max_of(h->quota, wish);
	const struct quota_user *most =
		refusal == QUOTA_FULL ? largest(h->quota, t, h->user ? h->user->number : 0) : h->user;
	const struct thing *w = thing_of(t);
	const uint64_t held = refusal == QUOTA_PROCESS ? h->held[t] : most ? most->held[t] : 0;
	char who[64] = "", rest[96];

	if (refusal == QUOTA_PROCESS)
		snprintf(who, sizeof(who), "process %" PRIu64, h->process);
	else if (most)
		name_user(most, who, sizeof(who));
	const char *option = w->option;

	if (wish->max && h->user && h->user->tenant)
		option = t >= QUOTA_GPU_PINNED ? "the tenant's gpu_bytes_max" : "the tenant's pinned_bytes_max";

	snprintf(rest, sizeof(rest), "%s%s%s", w->advice, option[0] ? ", or raise " : "", option);
	if (refusal != QUOTA_FULL)
		snprintf(out, WORDS_MAX, "too many %s: %s holds %" PRIu64 " of %" PRIu64 ", and the %" PRIu64 " free ones are kept for others: %s",
			 w->name, who, held, max, free, rest);
	else if (most)
		snprintf(out, WORDS_MAX, "too many %s: %" PRIu64 " of %" PRIu64 " are free, and %s holds %" PRIu64 ": %s", w->name, free,
			 max, who, held, rest);
	else
		snprintf(out, WORDS_MAX, "too many %s: %" PRIu64 " of %" PRIu64 " are free: %s", w->name, free, max, rest);
}

/* Counts a refusal and writes its sentence; OK if nothing is refused. With the lock. */
static enum status answer(struct quota_holder *h, const struct quota_wish *w, uint64_t free, const char **why)
{
	const enum quota_refusal refusal = refusal_of(h, w, free);
	static _Thread_local char words[WORDS_MAX];

	if (refusal == QUOTA_REFUSALS)
		return STATUS_OK;
	h->quota->refused[w->thing][refusal]++;
	if (why) {
		if (refusal == QUOTA_TENANT)
			say_tenant(h->user->tenant, w->thing, words);
		else
			say(h, w, refusal, free, words);
		*why = words;
	}
	return STATUS_EXHAUSTED;
}

/* ---- grants ---- */

static void charge(struct quota_holder *h, enum quota_thing t, uint64_t n)
{
	h->quota->used[t] += n;
	h->held[t] += n;
	if (h->user)
		h->user->held[t] += n;
	if (h->user && h->user->tenant)
		h->user->tenant->held[t] += n;
}

/* How many of the thing are free by its bound. With the lock. */
static uint64_t free_by_bound(const struct quota *q, enum quota_thing t)
{
	return q->max[t] > q->used[t] ? q->max[t] - q->used[t] : 0;
}

/* Asks for several things, and answers with the first refusal. With the lock. */
static enum status answer_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count, const char **why)
{
	enum status s = STATUS_OK;

	for (uint32_t i = 0; i < count && !s; i++) {
		const uint64_t free = w[i].free == QUOTA_BY_BOUND ? free_by_bound(h->quota, w[i].thing) : w[i].free;

		if (w[i].n)
			s = answer(h, &w[i], free, why);
	}
	return s;
}

enum status quota_take_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count, const char **why)
{
	enum status s;

	pthread_mutex_lock(&h->quota->lock);
	s = answer_all(h, w, count, why);
	for (uint32_t i = 0; i < count && !s; i++)
		charge(h, w[i].thing, w[i].n);
	pthread_mutex_unlock(&h->quota->lock);
	return s;
}

enum status quota_ask_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count, const char **why)
{
	enum status s;

	pthread_mutex_lock(&h->quota->lock);
	s = answer_all(h, w, count, why);
	pthread_mutex_unlock(&h->quota->lock);
	return s;
}

enum status quota_take(struct quota_holder *h, enum quota_thing thing, uint64_t n, const char **why)
{
	return quota_take_all(h, &(struct quota_wish){ thing, n, QUOTA_BY_BOUND, 0 }, 1, why);
}

bool quota_try(struct quota_holder *h, enum quota_thing thing, uint64_t n)
{
	struct quota *q = h->quota;
	bool taken;

	pthread_mutex_lock(&q->lock);
	taken = refusal_of(h, &(struct quota_wish){ .thing = thing, .n = n }, free_by_bound(q, thing)) == QUOTA_REFUSALS;
	if (taken)
		charge(h, thing, n);
	pthread_mutex_unlock(&q->lock);
	return taken;
}

void quota_add_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count)
{
	pthread_mutex_lock(&h->quota->lock);
	for (uint32_t i = 0; i < count; i++)
		charge(h, w[i].thing, w[i].n);
	pthread_mutex_unlock(&h->quota->lock);
}

void quota_add(struct quota_holder *h, enum quota_thing thing, uint64_t n)
{
	quota_add_all(h, &(struct quota_wish){ .thing = thing, .n = n }, 1);
}

void quota_give_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count)
{
	pthread_mutex_lock(&h->quota->lock);
	for (uint32_t i = 0; i < count; i++)
		charge(h, w[i].thing, -w[i].n);
	pthread_mutex_unlock(&h->quota->lock);
}

void quota_give(struct quota_holder *h, enum quota_thing thing, uint64_t n)
{
	quota_give_all(h, &(struct quota_wish){ .thing = thing, .n = n }, 1);
}

uint64_t quota_used(struct quota *q, enum quota_thing thing)
{
	uint64_t n;

	pthread_mutex_lock(&q->lock);
	n = q->used[thing];
	pthread_mutex_unlock(&q->lock);
	return n;
}

/* ---- places in the workers' queue ---- */

static void place_give(struct work *work)
{
	quota_give(work->holder, QUOTA_WORK, 1);
}

enum status quota_submit(struct workers *w, struct work *work, struct quota_holder *holder, const char **why)
{
	enum status s = quota_take(holder, QUOTA_WORK, 1, why);

	if (s)
		return s;
	work->taken = place_give;
	work->holder = holder;
	s = workers_submit(w, work);
	if (s)
		place_give(work);
	if (s == STATUS_EXHAUSTED)
		*why = "too many calls that wait for a worker: the queue is full: "
		       "try again later, or raise queue_max or workers";
	else if (s)
		*why = "shutting down";
	return s;
}

/* ---- figures ---- */

static void labels_of(int thing, char *out, size_t size)
{
	if (thing < QUOTA_GPU_PINNED)
		snprintf(out, size, "thing=%s", things[thing].label);
	else
		snprintf(out, size, "thing=%s,gpu=%d", things[QUOTA_GPU_PINNED].label, thing - QUOTA_GPU_PINNED);
}

void quota_stats(struct quota *q, cache_stat_fn *emit, void *arg)
{
	uint64_t max[QUOTA_THINGS], used[QUOTA_THINGS], refused[QUOTA_THINGS][QUOTA_REFUSALS];
	char labels[64], with_reason[96];

	pthread_mutex_lock(&q->lock);
	memcpy(max, q->max, sizeof(max));
	memcpy(used, q->used, sizeof(used));
	memcpy(refused, q->refused, sizeof(refused));
	pthread_mutex_unlock(&q->lock);
	for (int t = 0; t < QUOTA_THINGS; t++) {
		labels_of(t, labels, sizeof(labels));
		if (max[t] != UINT64_MAX)
			emit(arg, "terrace_quota_held", labels, (double)used[t], false, "what processes and users hold of a countable thing");
	}
	for (int t = 0; t < QUOTA_THINGS; t++) {
		labels_of(t, labels, sizeof(labels));
		if (max[t] != UINT64_MAX)
			emit(arg, "terrace_quota_max", labels, (double)max[t], false, "bound of that");
	}
	for (int t = 0; t < QUOTA_THINGS; t++)
		for (int r = 0; r < QUOTA_REFUSALS && max[t] != UINT64_MAX; r++) {
			labels_of(t, labels, sizeof(labels));
			snprintf(with_reason, sizeof(with_reason), "%s,reason=%s", labels, refusal_words[r]);
			emit(arg, "terrace_quota_refused_total", with_reason, (double)refused[t][r], true,
			     "times that a countable thing was refused: all were taken, the tenant has all that it may have, "
			     "or the rest is kept for others");
		}
}
