/* Sessions: what may be opened, tokens, idleness, their end; drain mode; the bounds. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stream.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "daemon/session/watch.h"
#include "kernels/format.h"
#include "store/host/extent.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

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
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "acme", .layouts = l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_DENIED);
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.engine = "", .now_us = r.now }, &v, &r.why), STATUS_INVALID);
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = 65, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_INVALID);
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = 3, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_INVALID);
	l[1].block_tokens = 32;
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = 2, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_INVALID);
	l[0].head_dim_k = 65;
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_INVALID);
	l[0] = rig_layout(0, 0);
	l[0].layers = 512;
	l[0].heads = l[0].total_heads = 1024; /* a block larger than the tier */
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(r.why, "extent_bytes"));
	l[0].layers = 128; /* and one that is larger than an extent alone */
	l[0].heads = l[0].total_heads = 1;
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(r.why, "extent_bytes"));
	l[0].layers = 100;
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_OK);
	v.id = 99;
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
	o.extent_bytes = EXTENT_BYTES_MAX + 1ull;
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
	ck_assert_int_eq(cache_session_by_token(r.c, 0, r.s.token, r.now, &v, &r.why), STATUS_OK);
	ck_assert_uint_eq(v.id, r.s.id);
	ck_assert_uint_eq(v.layouts, 3);
	ck_assert_uint_eq(cache_session_layouts(r.c, v.id), 3);
	ck_assert_int_eq(memcmp(&v, &r.s, sizeof(v)), 0);
	ck_assert_uint_eq(v.slot_bytes[2], RIG_SLOT_BYTES);
	memcpy(token, r.s.token, sizeof(token));
	token[15] ^= 1;
	ck_assert_int_eq(cache_session_by_token(r.c, 0, token, r.now, &v, &r.why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_attach(r.c, token, 1, r.now, &attachment, &session, &r.why), STATUS_DENIED);
	/* Free slots of the table have a token of zeroes: not a way in. */
	memset(token, 0, sizeof(token));
	ck_assert_int_eq(cache_session_by_token(r.c, 0, token, r.now, &v, &r.why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_session_close(r.c, r.s.id, r.now, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_by_token(r.c, 0, token, r.now, &v, &r.why), STATUS_NOT_FOUND);
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
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &idle, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &busy, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &watched, &r.why), STATUS_OK);
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
	ck_assert_uint_eq(load.detached_sessions, 0);
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
		ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
				.layout_count = 1, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_EXHAUSTED);
	ck_assert_str_eq(r.why, "too many sessions: 0 of 3 are free: close some, or raise sessions_max");
	ck_assert(rig_stat(&r, "terrace_quota_refused_total", "thing=sessions,reason=full") == 1);
	ck_assert_int_eq(cache_session_close(r.c, v.id, r.now, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_OK);

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
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = &st, .reservations = &id,
			.places = place, .places_max = 2 }, &r.why), 0);
	ck_assert(!cache_draining(r.c));
	cache_drain(r.c, true);
	ck_assert(cache_draining(r.c));
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &v, &r.why), STATUS_UNAVAILABLE);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, place, &leased), STATUS_UNAVAILABLE);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = &st, .reservations = &id,
			.places = place, .places_max = 2 }, &r.why), STATUS_UNAVAILABLE);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .key = k.bytes,
			.key_bytes = RIG_KEY_BYTES, .now_us = r.now }, &w, &r.why), STATUS_UNAVAILABLE);
	cache_load(r.c, &load);
	ck_assert_uint_eq(load.leases, 1);
	ck_assert_uint_eq(load.reservations, 1);
	const struct cache_commit_item item = { .reservation = id };
	ck_assert_int_eq(cache_commit(r.c, &(struct cache_commit_call){ .session = r.s.id, .items = &item,
			.count = 1, .want_lease = true, .on = &(struct cache_on){ .attachment = r.attachment,
			.gpu = CACHE_HOST }, .now_us = r.now, .unix_ms = 1, .statuses = &st, .places = place,
			.places_max = 2 }, &leased, &r.why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	ck_assert_uint_eq(leased.lease, 0); /* stored, but no lease */
	ck_assert_uint_eq(place[0].extent, (uint32_t)CACHE_EXTENT_NONE);
	ck_assert_int_eq(cache_read_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .key = k.bytes,
			.key_bytes = RIG_KEY_BYTES, .now_us = r.now }, &read, NULL, &r.why), STATUS_OK);
	cache_read_end(r.c, &read);
	cache_drain(r.c, false);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, place, &leased), STATUS_OK);
	rig_close(&r);
	free((void *)k.bytes);
}
END_TEST

/* What a session of the same tenant may map has nothing to do with layouts. */
START_TEST(extents_go_to_sessions_of_their_tenant)
{
	const struct cache_options o = rig_options(64);
	struct kv_layout other = rig_layout(9, 0);
	struct cache_place place;
	struct cache_leased leased;
	struct cache_lent lent = { .fd = -1 };
	struct rig r, b;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, 1);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, &place, &leased), STATUS_OK);
	ck_assert_int_eq(cache_attach_lend(r.c, r.attachment, place.extent, false, &lent), STATUS_EXHAUSTED); /* its process is not known */
	rig_watch(&r, getpid());
	ck_assert_int_eq(cache_attach_lend(r.c, 12345, place.extent, false, &lent), STATUS_DENIED);
	ck_assert_int_eq(cache_attach_lend(r.c, r.attachment, 4711, false, &lent), STATUS_NOT_FOUND);
	ck_assert_int_eq(lent.fd, -1);
	ck_assert_int_eq(cache_attach_lend(r.c, r.attachment, place.extent, false, &lent), STATUS_OK);
	ck_assert_uint_ge(lent.bytes, RIG_SLOT_BYTES);
	close(lent.fd);
	cache_attach_unmapped(r.c, r.attachment, place.extent);
	cache_attach_unmapped(r.c, 777, place.extent);
	b = (struct rig){ .c = r.c, .now = r.now };
	ck_assert_int_eq(cache_session_open(b.c, &(struct cache_open_call){ .tenant = "", .layouts = &other,
			.layout_count = 1, .engine = "", .now_us = b.now }, &b.s, &b.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(b.c, b.s.token, 1, b.now, &b.attachment, &(uint64_t){ 0 }, &b.why), STATUS_OK);
	rig_watch(&b, getpid());
	ck_assert_int_eq(cache_attach_lend(b.c, b.attachment, place.extent, false, &lent), STATUS_OK);
	close(lent.fd);
	/* Leases and reservations want an attachment of the session itself. */
	r.attachment = b.attachment;
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, &place, &leased), STATUS_PRECONDITION);
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		bad_sessions_are_refused, bad_options_are_refused, others_join_by_token,
		idle_sessions_end_unless_attached_or_called, tables_have_bounds,
		draining_refuses_new_work_and_lets_old_end, extents_go_to_sessions_of_their_tenant,
	};

	return rig_main("cache_session", tests, sizeof(tests) / sizeof(tests[0]));
}
