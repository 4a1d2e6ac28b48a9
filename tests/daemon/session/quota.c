/* Shares of what the cache counts, one row a thing: a process that leaks, another of its user, another user; and all of it back when they end. The rule
 * itself is tested by daemon/block/quota.c. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/peer.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stream.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "daemon/session/session.h"
#include "daemon/session/watch.h"
#include "kernels/format.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"
#include "tests/daemon/vram/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 64, RESERVE = MAX / 16, SLOTS = 512, WATCHES = 2 * MAX };

static const struct cache_peer greedy = { { CACHE_PEER_UID, 7 }, 70 }, sibling = { { CACHE_PEER_UID, 7 }, 71 };
static const struct cache_peer second = { { CACHE_PEER_UID, 8 }, 70 };

/* A client: a session of its own, or several. */
struct client {
	struct rig r;
	const struct cache_peer *peer;
	uint64_t session[2 * MAX];
	uint32_t sessions;
};

static uint64_t next_key, next_layout; /* that no client has used yet */
static struct cache_watch *watch[WATCHES];
static uint32_t watches;

static enum status open_session(struct client *k)
{
	const struct kv_layout l = rig_layout(0, 0);
	struct cache_session_view v;
	const enum status s = cache_session_open(k->r.c, &(struct cache_open_call){ .peer = k->peer,
			.tenant = "", .layouts = &l, .layout_count = 1, .engine = "", .now_us = k->r.now }, &v,
						 &k->r.why);

	if (!s)
		k->session[k->sessions++] = v.id;
	return s;
}

static enum status bring_layout(struct client *k)
{
	const struct kv_layout l = rig_layout(++next_layout, 0);
	struct cache_session_view v;
	const enum status s = cache_session_open(k->r.c, &(struct cache_open_call){ .peer = k->peer,
			.tenant = "", .layouts = &l, .layout_count = 1, .engine = "", .now_us = k->r.now }, &v,
						 &k->r.why);

	if (!s)
		ck_assert_int_eq(cache_session_close(k->r.c, v.id, k->r.now, &k->r.why), STATUS_OK);
	return s;
}

static enum status lease_one(struct client *k)
{
	struct cache_leased leased;
	struct cache_place place;

	return rig_lease(&k->r, 0, 1, true, &place, &leased);
}

static enum status lease_another(struct client *k)
{
	struct cache_leased leased;
	struct cache_place place;

	return rig_lease(&k->r, next_key++, 1, true, &place, &leased);
}

static enum status reserve_one(struct client *k)
{
	const struct cache_keys keys = rig_keys(10000 + next_key++, 1);
	struct cache_place place;
	enum status status, s;
	uint64_t id;

	s = cache_reserve(k->r.c, &(struct cache_reserve_call){ .session = k->r.s.id, .keys = &keys,
								.on = &(struct cache_on){
			.attachment = k->r.attachment, .gpu = CACHE_HOST }, .may_grow = true,
								.now_us = k->r.now, .statuses = &status,
								.reservations = &id, .places = &place,
								.places_max = 1 }, &k->r.why);
	free((void *)keys.bytes);
	return s ? s : status;
}

static enum status begin_write(struct client *k)
{
	const struct cache_keys keys = rig_keys(20000 + next_key++, 1);
	struct cache_write w;
	enum status s = cache_write_begin(k->r.c, &(struct cache_stream_call){ .session = k->r.s.id,
			.key = keys.bytes, .key_bytes = RIG_KEY_BYTES, .now_us = k->r.now }, &w, &k->r.why);

	free((void *)keys.bytes);
	return s;
}

static enum status open_watch(struct client *k)
{
	const enum status s = cache_watch_open(k->r.c, k->r.s.id, true, NULL, NULL, &watch[watches], &k->r.why);

	watches += !s;
	return s;
}

static const struct row {
	const char *name;
	enum quota_thing thing;
	uint64_t unit;                 /* of the thing, a grant */
	enum status (*take)(struct client *k);
	const char *words;             /* of a refusal; NULL: it has none, or another bound's */
	bool lasts, by_daemon;         /* beyond the session; the daemon itself ends them */
} rows[] = {
	{ "sessions", QUOTA_SESSIONS, 1, open_session, "too many sessions: process 70 holds 56 of 64", false, false },
	{ "layouts", QUOTA_LAYOUTS, 1, bring_layout, "too many layouts since the start: process 70 holds", true, false },
	{ "leases", QUOTA_LEASES, 1, lease_one, "too many leases: process 70 holds 56 of 64", false, false },
	{ "reservations", QUOTA_RESERVATIONS, 1, reserve_one, NULL, false, false },
	{ "streams that put", QUOTA_RESERVATIONS, 1, begin_write, "too many reservations: process 70 holds 56 of 64", false, true },
	{ "watches", QUOTA_WATCHES, 1, open_watch, "too many watches: process 70 holds 56 of 64", true, false },
	{ "pinned bytes by leases", QUOTA_PINNED, RIG_SLOT_BYTES, lease_another, "too many pinned bytes: process 70 holds 458752 of 524288", false, false },
	{ "pinned bytes by reservations", QUOTA_PINNED, RIG_SLOT_BYTES, reserve_one, NULL, false, false },
};

static struct client join(const struct rig *r, const struct cache_peer *peer)
{
	const struct kv_layout l = rig_layout(0, 0);
	struct client k = { .r = *r, .peer = peer };
	uint64_t session;

	ck_assert_int_eq(cache_session_open(r->c, &(struct cache_open_call){ .peer = peer, .tenant = "",
			.layouts = &l, .layout_count = 1, .engine = "", .now_us = r->now }, &k.r.s, &k.r.why),
			 STATUS_OK);
	ck_assert_int_eq(cache_attach(r->c, k.r.s.token, (pid_t)peer->process, r->now, &k.r.attachment, &session, &k.r.why), STATUS_OK);
	return k;
}

static uint64_t leak(struct client *k, const struct row *row)
{
	uint64_t n = 0;
	enum status s;

	while ((s = row->take(k)) == STATUS_OK)
		n++;
	ck_assert_msg(s == STATUS_EXHAUSTED, "%s: %d, %s", row->name, s, k->r.why);
	return n;
}

/* Its process has ended. */
static void die(struct client *k)
{
	cache_attach_gone(k->r.c, k->r.attachment, k->r.now, NULL);
	for (uint32_t i = 0; i < k->sessions; i++)
		ck_assert_int_eq(cache_session_close(k->r.c, k->session[i], k->r.now, &k->r.why), STATUS_OK);
}

static void close_watches(void)
{
	while (watches)
		cache_watch_close(watch[--watches]);
}

static uint64_t refused(struct rig *r, const struct row *row)
{
	static const char *const labels[] = { [QUOTA_SESSIONS] = "sessions", [QUOTA_LAYOUTS] = "layouts", [QUOTA_LEASES] = "leases",
					      [QUOTA_RESERVATIONS] = "reservations", [QUOTA_WATCHES] = "watches", [QUOTA_PINNED] = "pinned_bytes" };
	char text[96];

	snprintf(text, sizeof(text), "thing=%s,reason=process", labels[row->thing]);
	return (uint64_t)rig_stat(r, "terrace_quota_refused_total", text);
}

static void one_row(const struct row *row)
{
	struct cache_options o = rig_options(SLOTS);
	struct client a, b, c;
	struct rig r;
	uint64_t n, most, used;

	next_key = next_layout = 0;
	o.sessions_max = row->thing == QUOTA_SESSIONS ? MAX + 1 : 1024;
	o.leases_max = row->thing == QUOTA_LEASES ? MAX : 4096;
	o.pinned_bytes_max = row->thing == QUOTA_PINNED ? MAX * RIG_SLOT_BYTES : o.pinned_bytes_max;
	rig_open(&r, &o, 1);
	if (row->thing == QUOTA_LAYOUTS || row->thing == QUOTA_RESERVATIONS || row->thing == QUOTA_SESSIONS)
		quota_bound(r.c->quota, row->thing, MAX + (row->thing == QUOTA_SESSIONS));
	for (int i = 0; i < 2 * MAX; i += RESERVE)
		ck_assert_uint_eq(rig_put(&r, i, RESERVE), RESERVE);
	b = join(&r, &sibling);
	c = join(&r, &second);
	used = quota_used(r.c->quota, row->thing);
	a = join(&r, &greedy);
	n = leak(&a, row) + (row->thing == QUOTA_SESSIONS);
	most = MAX - 2 * RESERVE - (row->thing == QUOTA_SESSIONS ? 4 : row->thing == QUOTA_LAYOUTS);
	ck_assert_msg(n == most, "%s: one process alone has %llu", row->name, (unsigned long long)n);
	ck_assert_uint_eq(quota_used(r.c->quota, row->thing) - used, n * row->unit);
	ck_assert_msg(row->thing == QUOTA_SESSIONS || !row->words || !strncmp(a.r.why, row->words, strlen(row->words)), "%s", a.r.why);
	ck_assert_uint_ge(refused(&r, row), 1);
	ck_assert_msg(leak(&b, row) >= 1, "%s: another process of the user has none", row->name);
	ck_assert_msg(leak(&c, row) >= 1, "%s: another user has none", row->name);
	ck_assert_uint_eq(leak(&a, row), 0);
	rig_check_accounting(r.c);
	if (row->by_daemon) { /* and not by this test */
		cache_destroy(r.c);
		cache_thread_leave();
		return;
	}
	used = quota_used(r.c->quota, row->thing);
	die(&a);
	ck_assert_uint_eq(used - quota_used(r.c->quota, row->thing), row->lasts ? 0 : n * row->unit);
	close_watches();
	if (row->thing != QUOTA_LAYOUTS)
		ck_assert_uint_gt(leak(&c, row), MAX / 2);
	close_watches();
	rig_close(&r);
}

START_TEST(each_leaves_some)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		one_row(&rows[i]);
}
END_TEST

/* Two engines on one prefix: each is charged for all of it, and neither is refused for that. */
START_TEST(shared_blocks_cost_nothing)
{
	struct cache_options o = rig_options(SLOTS);
	struct cache_leased leased;
	struct cache_place place[MAX];
	struct client a, b;
	struct rig r;

	o.pinned_bytes_max = MAX * RIG_SLOT_BYTES;
	rig_open(&r, &o, 1);
	for (int i = 0; i < MAX; i += RESERVE)
		rig_put(&r, i, RESERVE);
	a = join(&r, &greedy);
	b = join(&r, &second);
	for (int i = 0; i < 100; i++)
		ck_assert_int_eq(rig_lease(i % 2 ? &a.r : &b.r, 0, MAX - 2 * RESERVE, true, place, &leased), STATUS_OK);
	ck_assert_uint_eq(quota_used(r.c->quota, QUOTA_PINNED), 100ull * (MAX - 2 * RESERVE) * RIG_SLOT_BYTES);
	ck_assert_int_eq(rig_lease(&a.r, 0, MAX, true, place, &leased), STATUS_EXHAUSTED);
	rig_close(&r);
}
END_TEST

/* The session's holder is charged, whichever process of the session calls: one that hands its token around gains nothing. */
START_TEST(a_session_counts_for_its_opener)
{
	struct cache_options o = rig_options(SLOTS);
	uint64_t attachment, session;
	struct client a;
	struct rig r;

	o.leases_max = MAX;
	rig_open(&r, &o, 1);
	rig_put(&r, 0, 1);
	a = join(&r, &greedy);
	ck_assert_uint_eq(leak(&a, &rows[2]), MAX - 2 * RESERVE);
	ck_assert_int_eq(cache_attach(r.c, a.r.s.token, 71, r.now, &attachment, &session, &r.why), STATUS_OK);
	a.r.attachment = attachment;
	ck_assert_uint_eq(leak(&a, &rows[2]), 0);
	rig_close(&r);
}
END_TEST

static enum status lease_there(struct vram_rig *v, uint64_t key)
{
	struct cache_leased leased;
	struct cache_place place;

	return vr_lease(v, 0, key, 1, true, false, &place, &leased);
}

static struct vram_rig gpu_client(const struct vram_rig *v, const struct cache_peer *peer)
{
	const struct kv_layout l = vr_layout(0);
	struct vram_rig k = *v;
	uint64_t session;

	ck_assert_int_eq(cache_session_open(v->r.c, &(struct cache_open_call){ .peer = peer, .tenant = "",
			.layouts = &l, .layout_count = 1, .engine = "", .now_us = v->r.now }, &k.r.s, &k.r.why),
			 STATUS_OK);
	ck_assert_int_eq(cache_attach(v->r.c, k.r.s.token, 1, v->r.now, &k.r.attachment, &session, &k.r.why), STATUS_OK);
	return k;
}

static uint32_t gpu_leak(struct vram_rig *k, uint64_t *next)
{
	uint32_t n = 0;
	enum status s;

	while ((s = lease_there(k, *next)) == STATUS_OK) {
		++*next;
		n++;
	}
	ck_assert_int_eq(s, STATUS_EXHAUSTED);
	return n;
}

/* The same of a GPU's bytes, by leases there. */
START_TEST(a_gpu_is_shared_too)
{
	enum { GPU_SLOTS = 64 };
	struct vram_rig v, a, b, c;
	uint64_t next = 0;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = GPU_SLOTS, .host_slots = GPU_SLOTS + 8, .gpu_pinned_milli = 440 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, GPU_SLOTS), GPU_SLOTS);
	a = gpu_client(&v, &greedy);
	b = gpu_client(&v, &sibling);
	c = gpu_client(&v, &second);
	ck_assert_uint_eq(gpu_leak(&a, &next), GPU_SLOTS / 2 - 5); /* of 32, less a byte or so, a sixteenth twice */
	ck_assert_ptr_nonnull(strstr(a.r.why, "too many pinned bytes of a GPU: process 70 holds "));
	ck_assert_uint_ge(gpu_leak(&b, &next), 1);
	ck_assert_uint_ge(gpu_leak(&c, &next), 1);
	ck_assert_int_eq(cache_session_close(v.r.c, a.r.s.id, v.r.now, &v.r.why), STATUS_OK);
	cache_attach_gone(v.r.c, a.r.attachment, v.r.now, NULL);
	ck_assert_uint_ge(gpu_leak(&c, &next), GPU_SLOTS / 4);
	vr_close(&v);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { each_leaves_some, shared_blocks_cost_nothing, a_session_counts_for_its_opener, a_gpu_is_shared_too };

	return rig_main("cache_quota", tests, sizeof(tests) / sizeof(tests[0]));
}
