/* Sessions: what may be opened, tokens, idleness, their end; drain mode; the bounds. */
#include "tests/cache_rig.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

START_TEST(bad_sessions_are_refused)
{
	const struct cache_options o = rig_options(64);
	struct kv_layout l[3] = { rig_layout(0, 0), rig_layout(1, 0), rig_layout(0, 0) };
	struct cache_session_view v = { .id = 99 };
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_int_eq(cache_session_open(r.c, "acme", l, 1, "", r.now, &v, &r.why), STATUS_DENIED);
	ck_assert_int_eq(cache_session_open(r.c, "", l, 0, "", r.now, &v, &r.why), STATUS_INVALID);
	ck_assert_int_eq(cache_session_open(r.c, "", l, 65, "", r.now, &v, &r.why), STATUS_INVALID);
	ck_assert_int_eq(cache_session_open(r.c, "", l, 3, "", r.now, &v, &r.why), STATUS_INVALID);
	l[1].block_tokens = 32;
	ck_assert_int_eq(cache_session_open(r.c, "", l, 2, "", r.now, &v, &r.why), STATUS_INVALID);
	l[0].head_dim_k = 65;
	ck_assert_int_eq(cache_session_open(r.c, "", l, 1, "", r.now, &v, &r.why), STATUS_INVALID);
	l[0] = rig_layout(0, 0);
	l[0].layers = 512;
	l[0].heads = l[0].total_heads = 1024; /* a block larger than the tier */
	ck_assert_int_eq(cache_session_open(r.c, "", l, 1, "", r.now, &v, &r.why), STATUS_INVALID);
	ck_assert_ptr_nonnull(r.why);
	ck_assert_uint_eq(v.id, 99);
	rig_close(&r);
}
END_TEST

START_TEST(bad_options_are_refused)
{
	struct cache_options o = rig_options(64);
	struct cache *c = NULL;
	const char *why = NULL;

	cache_thread_enter();
	o.policy = "clairvoyant";
	ck_assert_int_eq(cache_create(&o, 1, &c, &why), STATUS_INVALID);
	ck_assert_ptr_nonnull(why);
	o = rig_options(64);
	o.host_bytes = 0;
	ck_assert_int_eq(cache_create(&o, 1, &c, &why), STATUS_INVALID);
	o = rig_options(64);
	o.sessions_max = 0;
	ck_assert_int_eq(cache_create(&o, 1, &c, &why), STATUS_INVALID);
	o = rig_options(64);
	o.leases_max = 1 << 21;
	ck_assert_int_eq(cache_create(&o, 1, &c, &why), STATUS_INVALID);
	o = rig_options(64);
	o.extent_bytes = 1;
	ck_assert_int_ne(cache_create(&o, 1, &c, &why), STATUS_OK);
	ck_assert_ptr_null(c);
	cache_thread_leave();
}
END_TEST

START_TEST(others_join_by_token)
{
	const struct cache_options o = rig_options(64);
	struct cache_session_view v;
	uint8_t token[CACHE_TOKEN_BYTES];
	uint64_t attachment, session;
	struct rig r, b;

	rig_open(&r, &o, 3);
	rig_join(&b, &r, 2);
	ck_assert_int_ne(memcmp(r.s.token, b.s.token, sizeof(token)), 0);
	ck_assert_int_eq(cache_session_by_token(r.c, r.s.token, r.now, &v, &r.why), STATUS_OK);
	ck_assert_uint_eq(v.id, r.s.id);
	ck_assert_uint_eq(v.layouts, 3);
	ck_assert_uint_eq(cache_session_layouts(r.c, v.id), 3);
	ck_assert_int_eq(memcmp(&v, &r.s, sizeof(v)), 0);
	ck_assert_uint_eq(v.slot_bytes[2], RIG_SLOT_BYTES);
	memcpy(token, r.s.token, sizeof(token));
	token[15] ^= 1;
	ck_assert_int_eq(cache_session_by_token(r.c, token, r.now, &v, &r.why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_attach(r.c, token, 1, r.now, &attachment, &session, &r.why), STATUS_DENIED);
	/* Free slots of the table have a token of zeroes: not a way in. */
	memset(token, 0, sizeof(token));
	ck_assert_int_eq(cache_session_by_token(r.c, token, r.now, &v, &r.why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_session_close(r.c, r.s.id, r.now, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_by_token(r.c, token, r.now, &v, &r.why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_session_close(r.c, r.s.id, r.now, &r.why), STATUS_NOT_FOUND);
	ck_assert_uint_eq(cache_session_layouts(r.c, r.s.id), 0);
	rig_close(&r);
}
END_TEST

START_TEST(idle_sessions_end_unless_attached_or_called)
{
	const struct cache_options o = rig_options(64);
	struct kv_layout l = rig_layout(0, 0);
	struct cache_session_view idle, busy, watched;
	struct cache_load load;
	struct cache_keys k = rig_keys(0, 1);
	const uint64_t *ended;
	struct cache_watch *w;
	uint32_t prefix, told = 0;
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_int_eq(cache_session_open(r.c, "", &l, 1, "", r.now, &idle, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_open(r.c, "", &l, 1, "", r.now, &busy, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_open(r.c, "", &l, 1, "", r.now, &watched, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_watch_open(r.c, watched.id, true, NULL, NULL, &w, &r.why), STATUS_OK);
	for (int i = 0; i < 30; i++) {
		r.now += 50000;
		ck_assert_int_eq(cache_lookup(r.c, busy.id, &k, &prefix, NULL, 0, &r.why), STATUS_OK);
		rig_tick(r.c, r.now);
		for (uint32_t n = cache_idled(r.c, &ended); n > 0; n--, told++)
			ck_assert_uint_eq(ended[n - 1], idle.number);
	}
	ck_assert_uint_eq(told, 1);
	cache_load(r.c, &load);
	ck_assert_uint_eq(load.sessions, 3);
	ck_assert_uint_eq(load.ghosts, 0);
	ck_assert_uint_eq(cache_session_layouts(r.c, idle.id), 0);
	ck_assert_uint_eq(cache_session_layouts(r.c, r.s.id), 1);
	cache_watch_close(w); /* from then on it is idle */
	for (int i = 0; i < 30; i++) {
		cache_load(r.c, &load);
		ck_assert_uint_eq(load.sessions, i < 10 ? 3 : load.sessions);
		ck_assert_int_eq(cache_lookup(r.c, busy.id, &k, &prefix, NULL, 0, &r.why), STATUS_OK);
		rig_tick(r.c, r.now += 50000);
	}
	cache_load(r.c, &load);
	ck_assert_uint_eq(load.sessions, 2);
	/* The last attachment of the other takes its session along. */
	ck_assert(cache_attach_gone(r.c, r.attachment, r.now, NULL));
	ck_assert(!cache_attach_gone(r.c, r.attachment, r.now, NULL));
	ck_assert_uint_eq(cache_session_layouts(r.c, r.s.id), 0);
	rig_close(&r);
	free((void *)k.bytes);
}
END_TEST

START_TEST(tables_have_bounds)
{
	struct cache_options o = rig_options(64);
	struct kv_layout l = rig_layout(0, 0);
	struct cache_session_view v;
	struct cache_place place;
	struct cache_leased leased;
	uint64_t attachment, session;
	struct rig r;

	o.sessions_max = 3;
	o.leases_max = 5;
	rig_open(&r, &o, 1);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(cache_session_open(r.c, "", &l, 1, "", r.now, &v, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_open(r.c, "", &l, 1, "", r.now, &v, &r.why), STATUS_EXHAUSTED);
	ck_assert_str_eq(r.why, "too many sessions: all 3 (sessions_max) are taken");
	ck_assert(rig_stat(&r, "terrace_sessions_refused_total", "reason=full") == 1);
	ck_assert_int_eq(cache_session_close(r.c, v.id, r.now, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_open(r.c, "", &l, 1, "", r.now, &v, &r.why), STATUS_OK);

	rig_put(&r, 0, 1);
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(rig_lease(&r, 0, 1, true, &place, &leased), STATUS_OK);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, &place, &leased), STATUS_EXHAUSTED);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_NOT_FOUND);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, &place, &leased), STATUS_OK);

	for (int i = 1; i < 256; i++)
		ck_assert_int_eq(cache_attach(r.c, r.s.token, 1, r.now, &attachment, &session, &r.why),
				 STATUS_OK);
	ck_assert_int_eq(cache_attach(r.c, r.s.token, 1, r.now, &attachment, &session, &r.why),
			 STATUS_EXHAUSTED);
	cache_attach_gone(r.c, attachment, r.now, NULL);
	ck_assert_int_eq(cache_attach(r.c, r.s.token, 1, r.now, &attachment, &session, &r.why), STATUS_OK);
	rig_close(&r);
}
END_TEST

/* As many as it gets; `last` is one of them. */
static uint32_t opens(struct rig *r, const struct cache_peer *p, uint64_t *last)
{
	const struct kv_layout l = rig_layout(0, 0);
	struct cache_session_view v;
	uint32_t n = 0;

	while (cache_session_open_for(r->c, p, "", &l, 1, "", r->now, &v, &r->why) == STATUS_OK) {
		*last = v.id;
		n++;
	}
	return n;
}

/* One has been opened by somebody who is not known. */
START_TEST(one_client_leaves_sessions_to_others)
{
	const struct cache_peer greedy = { { CACHE_PEER_UID, 7 }, 70 }, his_other = { { CACHE_PEER_UID, 7 }, 71 };
	const struct cache_peer second = { { CACHE_PEER_UID, 8 }, 70 }, far = { { 0x20010db8ull << 32, 1 }, 0 };
	struct cache_options o = rig_options(64);
	struct kv_layout l = rig_layout(0, 0);
	uint64_t last, again;
	struct rig r;

	o.sessions_max = 61;
	rig_open(&r, &o, 1);
	ck_assert_uint_eq(opens(&r, &greedy, &last), 20);
	ck_assert_str_eq(r.why, "too many sessions: of 61 (sessions_max) this process has as many as it leaves free for its user's others");
	ck_assert_uint_eq(opens(&r, &his_other, &again), 7);
	for (uint64_t pid = 72; opens(&r, &(struct cache_peer){ { CACHE_PEER_UID, 7 }, pid }, &again); pid++)
		;
	ck_assert_str_eq(r.why, "too many sessions: of 61 (sessions_max) this user, or address, has as many as it leaves free for others");
	ck_assert(rig_stat(&r, "terrace_sessions", "") == 31);
	ck_assert_uint_eq(opens(&r, &second, &again), 10);
	ck_assert_uint_eq(opens(&r, &far, &again), 10);
	ck_assert(rig_stat(&r, "terrace_sessions_refused_total", "reason=user") >= 2);
	ck_assert(rig_stat(&r, "terrace_sessions_refused_total", "reason=process") >= 2);
	ck_assert(rig_stat(&r, "terrace_sessions_refused_total", "reason=full") == 0);

	/* A layout that a session which was refused would have brought is not known. */
	l.layers++;
	ck_assert_int_eq(cache_session_open_for(r.c, &greedy, "", &l, 1, "", r.now, &r.s, &r.why), STATUS_EXHAUSTED);
	ck_assert(rig_stat(&r, "terrace_layouts", "") == 1);
	/* What has ended gives way, to others first. */
	ck_assert_int_eq(cache_session_close(r.c, last, r.now, &r.why), STATUS_OK);
	ck_assert_uint_eq(opens(&r, &greedy, &last), 0);
	ck_assert_uint_eq(opens(&r, &(struct cache_peer){ { CACHE_PEER_UID, 8 }, 71 }, &again), 1);
	rig_close(&r);
}
END_TEST

/* The rig goes on as that client's session. */
static void become(struct rig *r, const struct cache_peer *p)
{
	const struct kv_layout l = rig_layout(0, 0);
	uint64_t session;

	ck_assert_int_eq(cache_session_open_for(r->c, p, "", &l, 1, "", r->now, &r->s, &r->why), STATUS_OK);
	ck_assert_int_eq(cache_attach(r->c, r->s.token, 1, r->now, &r->attachment, &session, &r->why), STATUS_OK);
}

/* Of block 0, as many as it gets; `last` is one of them. */
static uint32_t leases(struct rig *r, uint64_t *last)
{
	struct cache_leased leased;
	struct cache_place place;
	uint32_t n = 0;
	enum status s;

	while ((s = rig_lease(r, 0, 1, true, &place, &leased)) == STATUS_OK) {
		*last = leased.lease;
		n++;
	}
	ck_assert_int_eq(s, STATUS_EXHAUSTED);
	return n;
}

START_TEST(one_client_leaves_leases_to_others)
{
	const struct cache_peer greedy = { { CACHE_PEER_UID, 7 }, 70 }, his_other = { { CACHE_PEER_UID, 7 }, 71 };
	const struct cache_peer second = { { CACHE_PEER_UID, 8 }, 70 }, unknown = { { 0 } };
	struct cache_options o = rig_options(64);
	uint64_t last, again;
	struct rig r, one;

	o.leases_max = 61;
	rig_open(&r, &o, 1);
	rig_put(&r, 0, 1);
	become(&r, &greedy);
	one = r;
	ck_assert_uint_eq(leases(&r, &last), 21);
	ck_assert_str_eq(r.why, "too many leases: of leases_max this process holds as many as it leaves free for its user's others");
	become(&r, &greedy);
	ck_assert_uint_eq(leases(&r, &again), 0); /* nor in another session */
	become(&r, &his_other);
	ck_assert_uint_eq(leases(&r, &again), 7);
	for (uint64_t pid = 72, n = 1; n; pid++) {
		become(&r, &(struct cache_peer){ { CACHE_PEER_UID, 7 }, pid });
		n = leases(&r, &again);
	}
	ck_assert_str_eq(r.why, "too many leases: of leases_max this user, or address, holds as many as it leaves free for others");
	ck_assert(rig_stat(&r, "terrace_leases", "") == 31);
	become(&r, &second);
	ck_assert_uint_eq(leases(&r, &again), 10);
	ck_assert(rig_stat(&r, "terrace_leases_refused_total", "reason=user") >= 1);
	ck_assert(rig_stat(&r, "terrace_leases_refused_total", "reason=process") >= 3);
	ck_assert(rig_stat(&r, "terrace_leases_refused_total", "reason=full") == 0);
	/* What it gives back goes to others first; who is not known gets the rest. */
	ck_assert_int_eq(cache_release(r.c, one.s.id, last), STATUS_OK);
	ck_assert_uint_eq(leases(&one, &again), 0);
	become(&r, &unknown);
	ck_assert_uint_eq(leases(&r, &again), 21);
	ck_assert_str_eq(r.why, "too many leases: all of leases_max are held");
	ck_assert(rig_stat(&r, "terrace_leases_refused_total", "reason=full") == 1);
	/* What ends with its session counts no more. */
	ck_assert_int_eq(cache_session_close(r.c, r.s.id, r.now, &r.why), STATUS_OK);
	cache_attach_gone(r.c, r.attachment, r.now, NULL);
	become(&r, &second);
	ck_assert_uint_gt(leases(&r, &again), 0);
	rig_close(&r);
}
END_TEST

START_TEST(one_client_leaves_watches_to_others)
{
	const struct cache_peer greedy = { { CACHE_PEER_UID, 7 }, 70 }, second = { { CACHE_PEER_UID, 8 }, 70 };
	const struct cache_options o = rig_options(64);
	struct cache_watch *w[64];
	struct rig r, other;
	uint32_t n = 0;

	rig_open(&r, &o, 1);
	other = r;
	become(&other, &second);
	become(&r, &greedy);
	while (cache_watch_open(r.c, r.s.id, true, NULL, NULL, &w[n], &r.why) == STATUS_OK)
		n++;
	ck_assert_str_eq(r.why, "too many watches: of 64 this process has as many as it leaves free for its user's others");
	ck_assert_uint_eq(n, 22);
	ck_assert(rig_stat(&r, "terrace_watches_refused_total", "reason=process") == 1);
	ck_assert_int_eq(cache_watch_open(r.c, other.s.id, true, NULL, NULL, &w[n], &r.why), STATUS_OK);
	cache_watch_close(w[n]);
	cache_watch_close(w[0]);
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id, true, NULL, NULL, &w[0], &r.why), STATUS_OK);
	/* Those that outlive their session count for nobody. */
	ck_assert_int_eq(cache_session_close(r.c, r.s.id, r.now, &r.why), STATUS_OK);
	cache_attach_gone(r.c, r.attachment, r.now, NULL);
	become(&r, &greedy);
	for (uint32_t i = 0; i < n; i++)
		cache_watch_close(w[i]);
	for (n = 0; cache_watch_open(r.c, r.s.id, true, NULL, NULL, &w[n], &r.why) == STATUS_OK; n++)
		;
	ck_assert_uint_eq(n, 22);
	rig_close(&r); /* with them open */
}
END_TEST

/* They stay when their session has ended. */
static enum status bring_layouts(struct rig *r, const struct cache_peer *p, uint32_t *first, uint32_t n)
{
	struct kv_layout l[CACHE_LAYOUTS_MAX];
	struct cache_session_view v;
	enum status s;

	for (uint32_t i = 0; i < n; i++)
		l[i] = rig_layout(++*first, 0);
	s = cache_session_open_for(r->c, p, "", l, n, "", r->now, &v, &r->why);
	if (!s)
		ck_assert_int_eq(cache_session_close(r->c, v.id, r->now, &r->why), STATUS_OK);
	return s;
}

START_TEST(one_client_leaves_layouts_to_others)
{
	const struct cache_peer greedy = { { CACHE_PEER_UID, 7 }, 70 }, second = { { CACHE_PEER_UID, 8 }, 70 };
	const struct cache_options o = rig_options(64);
	uint32_t n = 0;
	struct rig r;

	rig_open(&r, &o, 1);
	while (bring_layouts(&r, &greedy, &n, CACHE_LAYOUTS_MAX) == STATUS_OK)
		;
	ck_assert_ptr_nonnull(strstr(r.why, "of 4096 this process has brought"));
	ck_assert(rig_stat(&r, "terrace_layouts", "") == 1 + 1365);
	ck_assert(rig_stat(&r, "terrace_layouts_refused_total", "reason=process") == 1);
	ck_assert_int_eq(bring_layouts(&r, &second, &n, CACHE_LAYOUTS_MAX), STATUS_OK);
	n = 0;
	ck_assert_int_eq(bring_layouts(&r, &greedy, &n, CACHE_LAYOUTS_MAX), STATUS_OK); /* known ones */
	rig_close(&r);
}
END_TEST

START_TEST(draining_refuses_new_work_and_lets_old_end)
{
	const struct cache_options o = rig_options(64);
	struct kv_layout l = rig_layout(0, 0);
	struct cache_session_view v;
	struct cache_place place[2];
	struct cache_leased leased;
	struct cache_read read;
	struct cache_write w;
	struct cache_load load;
	struct cache_keys k = rig_keys(5, 1);
	enum status st;
	uint64_t id;
	struct rig r;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, 1);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, place, &leased), STATUS_OK);
	ck_assert_int_eq(
		cache_reserve(r.c, r.s.id, &k, NULL, false, r.attachment, true, r.now, &st, &id, place, 2, &r.why),
		0);
	ck_assert(!cache_draining(r.c));
	cache_drain(r.c, true);
	ck_assert(cache_draining(r.c));
	ck_assert_int_eq(cache_session_open(r.c, "", &l, 1, "", r.now, &v, &r.why), STATUS_UNAVAILABLE);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, place, &leased), STATUS_UNAVAILABLE);
	ck_assert_int_eq(
		cache_reserve(r.c, r.s.id, &k, NULL, false, r.attachment, true, r.now, &st, &id, place, 2, &r.why),
		STATUS_UNAVAILABLE);
	ck_assert_int_eq(cache_write_begin(r.c, r.s.id, 0, k.bytes, RIG_KEY_BYTES, NULL, r.now, &w, &r.why),
			 STATUS_UNAVAILABLE);
	cache_load(r.c, &load);
	ck_assert_uint_eq(load.leases, 1);
	ck_assert_uint_eq(load.reservations, 1);
	const struct cache_commit_item item = { .reservation = id };
	ck_assert_int_eq(cache_commit(r.c, r.s.id, &item, 1, true, r.attachment, r.now, 1, &st, place, 2,
				      &leased, &r.why),
			 STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	ck_assert_uint_eq(leased.lease, 0); /* stored, but no lease */
	ck_assert_uint_eq(place[0].extent, (uint32_t)CACHE_EXTENT_NONE);
	ck_assert_int_eq(cache_read_begin(r.c, r.s.id, 0, k.bytes, RIG_KEY_BYTES, r.now, &read, NULL, &r.why),
			 STATUS_OK);
	cache_read_end(r.c, &read);
	cache_drain(r.c, false);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, place, &leased), STATUS_OK);
	rig_close(&r);
	free((void *)k.bytes);
}
END_TEST

START_TEST(extents_go_to_their_sessions_only)
{
	const struct cache_options o = rig_options(64);
	struct kv_layout other = rig_layout(9, 0);
	struct cache_session_view v;
	struct cache_place place;
	struct cache_leased leased;
	uint64_t attachment, session, bytes;
	uint32_t page;
	struct rig r;
	int fd = -1;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, 1);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, &place, &leased), STATUS_OK);
	ck_assert_int_eq(cache_session_open(r.c, "", &other, 1, "", r.now, &v, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(r.c, v.token, 1, r.now, &attachment, &session, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_attach_map(r.c, attachment, place.extent, false, &fd, &bytes, &page),
			 STATUS_DENIED);
	ck_assert_int_eq(cache_attach_map(r.c, 12345, place.extent, false, &fd, &bytes, &page),
			 STATUS_DENIED);
	ck_assert_int_eq(cache_attach_map(r.c, r.attachment, 4711, false, &fd, &bytes, &page),
			 STATUS_NOT_FOUND);
	ck_assert_int_eq(fd, -1);
	ck_assert_int_eq(cache_attach_map(r.c, r.attachment, place.extent, false, &fd, &bytes, &page),
			 STATUS_OK);
	ck_assert_uint_ge(bytes, RIG_SLOT_BYTES);
	close(fd);
	cache_attach_unmapped(r.c, r.attachment, place.extent);
	cache_attach_unmapped(r.c, 777, place.extent);
	/* Leases and reservations want an attachment of the session itself. */
	r.attachment = attachment;
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, &place, &leased), STATUS_PRECONDITION);
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		bad_sessions_are_refused, bad_options_are_refused, others_join_by_token,
		idle_sessions_end_unless_attached_or_called, tables_have_bounds, one_client_leaves_sessions_to_others,
		one_client_leaves_layouts_to_others, one_client_leaves_leases_to_others, one_client_leaves_watches_to_others,
		draining_refuses_new_work_and_lets_old_end, extents_go_to_their_sessions_only,
	};

	return rig_main("cache_session", tests, sizeof(tests) / sizeof(tests[0]));
}
