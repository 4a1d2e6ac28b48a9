/* A daemon gone wrong: whatever it sends, the client answers with a status, maps nothing it should not, and goes on. */
#include "tests/client/rig.h"

#include "client/value/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { KEYS = 2 };

static uint8_t *block;
static const struct terrace_keys keys = {bytes, KEYS, KEY_BYTES};

static void open_session(void)
{
	client_rig_open(1);
	block = calloc(1, terrace_block_bytes(&layouts[0]));
	for (int i = 0; i < KEYS; i++)
		ck_assert_int_eq(terrace_put(session, 0, bytes + i * KEY_BYTES, KEY_BYTES, NULL, block, 0), TERRACE_OK);
}

static void close_session(void)
{
	free(block);
	client_rig_close();
}

static unsigned descriptors_once(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Descriptors of the process, once they are down to `want`: the fake closes its own a moment later. */
static unsigned descriptors(unsigned want)
{
	uint64_t until = client_deadline_us(30000000);

	while (descriptors_once() > want && client_now_us() < until)
		poll(NULL, 0, 1);
	return descriptors_once();
}

/* ---- one call of each kind ---------------------------------------------------------------------------------------- */

static enum terrace_status call_lookup(void)
{
	uint8_t states[KEYS];
	uint32_t prefix;

	return terrace_lookup(session, &keys, 0, &prefix, states);
}

static uint64_t lease_timeout_us; /* 0: the rig's */

static enum terrace_status call_lease(void)
{
	struct terrace_lease *lease;
	enum terrace_status status = terrace_lease(session, &keys, TERRACE_LEASE_ALL, lease_timeout_us, &lease);

	if (!status)
		terrace_release(lease);
	return status;
}

static enum terrace_status call_reserve(void)
{
	static uint8_t fresh[KEYS * KEY_BYTES] = "fresh keys";
	struct terrace_keys others = {fresh, KEYS, KEY_BYTES};
	struct terrace_reservation *r;
	enum terrace_status status = terrace_reserve(session, &others, NULL, 0, NULL, &r);

	if (!status)
		terrace_abort(r);
	return status;
}

static enum terrace_status call_commit(void)
{
	static uint8_t fresh[KEYS * KEY_BYTES] = "committed keys";
	struct terrace_keys others = {fresh, KEYS, KEY_BYTES};
	enum terrace_status statuses[KEYS], status;
	struct terrace_reservation *r;
	struct terrace_lease *lease;

	if (terrace_reserve(session, &others, NULL, 0, statuses, &r))
		return TERRACE_OK; /* not what this is about */
	status = terrace_commit(r, 0, statuses, &lease);
	if (!status)
		terrace_release(lease);
	terrace_delete(session, &others, 0, NULL);
	return status;
}

static enum terrace_status call_put(void)
{
	return terrace_put(session, 0, bytes, KEY_BYTES, NULL, block, 0);
}

static enum terrace_status call_get(void)
{
	return terrace_get(session, 0, bytes, KEY_BYTES, block, NULL, 0);
}

static enum terrace_status call_warm(void)
{
	return terrace_warm(session, &keys, true, 0, NULL);
}

static enum terrace_status call_flush(void)
{
	return terrace_flush(session, &keys, 0, NULL);
}

static enum terrace_status call_delete(void)
{
	enum terrace_status statuses[KEYS];

	return terrace_delete(session, &keys, 0, statuses);
}

static enum terrace_status call_watch(void)
{
	struct terrace_watch_event event = TERRACE_WATCH_EVENT_INIT;
	struct terrace_watch *watch;
	enum terrace_status status = terrace_watch_open(session, true, &watch);

	if (status)
		return status;
	status = terrace_watch_next(watch, 0, &event);
	terrace_watch_close(watch);
	return status;
}

static enum terrace_status call_open(void)
{
	struct terrace_session *s;
	enum terrace_status status = terrace_session_open(client, layouts, 1, NULL, &s);

	if (!status)
		terrace_session_close(s);
	return status;
}

static enum terrace_status call_attach(void)
{
	struct terrace_token token = {{0}};
	struct terrace_session *s;
	enum terrace_status status = terrace_session_attach(client, &token, &s);

	if (!status)
		terrace_session_close(s);
	return status;
}

/* ---- twisted replies ---------------------------------------------------------------------------------------------- */

#define TWIST(name, type, change)                                                                                      \
	static void name(struct fake *f, const char *method, ProtobufCMessage *reply)                                  \
	{                                                                                                              \
		Terrace__V1__##type *m = (Terrace__V1__##type *)reply;                                                 \
		(void)f;                                                                                               \
		if (reply->descriptor == &TERRACE_DESCRIPTOR_##type && method) {                                       \
			change;                                                                                        \
		}                                                                                                      \
	}
#define TERRACE_DESCRIPTOR_LookupReply terrace__v1__lookup_reply__descriptor
#define TERRACE_DESCRIPTOR_LeaseReply terrace__v1__lease_reply__descriptor
#define TERRACE_DESCRIPTOR_ReserveReply terrace__v1__reserve_reply__descriptor
#define TERRACE_DESCRIPTOR_CommitReply terrace__v1__commit_reply__descriptor
#define TERRACE_DESCRIPTOR_PutReply terrace__v1__put_reply__descriptor
#define TERRACE_DESCRIPTOR_GetHeader terrace__v1__get_header__descriptor
#define TERRACE_DESCRIPTOR_DeleteReply terrace__v1__delete_reply__descriptor
#define TERRACE_DESCRIPTOR_WarmReply terrace__v1__warm_reply__descriptor
#define TERRACE_DESCRIPTOR_FlushReply terrace__v1__flush_reply__descriptor
#define TERRACE_DESCRIPTOR_WatchEvent terrace__v1__watch_event__descriptor
#define TERRACE_DESCRIPTOR_OpenSessionReply terrace__v1__open_session_reply__descriptor

TWIST(lookup_prefix, LookupReply, m->prefix = 3)
TWIST(lookup_states, LookupReply, m->states.len = 1)
TWIST(lookup_epoch, LookupReply, m->epoch++)
TWIST(lease_epoch, LeaseReply, m->epoch++)
TWIST(lease_zero, LeaseReply, m->lease = 0)
TWIST(lease_many, LeaseReply, m->blocks = 4000000000u)
TWIST(lease_few, LeaseReply, m->blocks = 1)
TWIST(lease_status, LeaseReply, m->status = (Terrace__V1__Status)12345)
TWIST(lease_no_places, LeaseReply, m->places = NULL)
TWIST(lease_short_extents, LeaseReply, m->places->n_extent--)
TWIST(lease_short_offsets, LeaseReply, m->places->n_offset = 0)
TWIST(lease_short_tokens, LeaseReply, m->places->n_tokens--)
TWIST(lease_offset_far, LeaseReply, m->places->offset[1] = fake.extent_bytes)
TWIST(lease_offset_wraps, LeaseReply, m->places->offset[1] = UINT64_MAX - 4095)
TWIST(lease_offset_odd, LeaseReply, m->places->offset[0] += 16)
TWIST(lease_tokens_none, LeaseReply, m->places->tokens[0] = 0)
TWIST(lease_tokens_many, LeaseReply, m->places->tokens[0] = 17)
TWIST(lease_extent_none, LeaseReply, m->places->extent[0] = UINT32_MAX)
TWIST(lease_extent_unknown, LeaseReply, m->places->extent[1] = 99)
TWIST(reserve_statuses, ReserveReply, m->n_status--)
TWIST(reserve_numbers, ReserveReply, m->n_reservation = 0)
TWIST(reserve_disagree, ReserveReply, m->reservation[1] = 0)
TWIST(reserve_places, ReserveReply, m->places->n_extent = 0)
TWIST(reserve_nowhere, ReserveReply, m->places->extent[0] = UINT32_MAX)
TWIST(reserve_offset, ReserveReply, m->places->offset[0] = 1ull << 50)
TWIST(commit_statuses, CommitReply, m->n_status = 0)
TWIST(commit_places, CommitReply, if (m->places) m->places->n_extent = 1)
TWIST(commit_offset, CommitReply, if (m->places) m->places->offset[0] = 1ull << 50)
TWIST(put_statuses, PutReply, m->n_status = 0)
TWIST(put_epoch, PutReply, m->epoch = 0)
TWIST(get_index, GetHeader, m->index = 1)
TWIST(get_bytes_more, GetHeader, m->block_bytes++)
TWIST(get_bytes_less, GetHeader, m->block_bytes = 1)
TWIST(get_tokens, GetHeader, m->tokens = 0)
TWIST(delete_statuses, DeleteReply, m->n_status = 1)
TWIST(warm_many, WarmReply, m->blocks = 3)
TWIST(warm_epoch, WarmReply, m->epoch++)
TWIST(flush_statuses, FlushReply, m->n_status = 0)
TWIST(flush_epoch, FlushReply, m->epoch++)
TWIST(flush_unknown, FlushReply, m->status[1] = (Terrace__V1__Status)12345)
TWIST(watch_kind, WatchEvent, m->kind = (Terrace__V1__WatchKind)9)
TWIST(watch_layout, WatchEvent, m->layout = 1)
TWIST(watch_key, WatchEvent, m->key.len = 65; m->key.data = block)
TWIST(open_token, OpenSessionReply, m->token.len = 15)
TWIST(open_layouts, OpenSessionReply, m->n_layouts = 0)
TWIST(open_id, OpenSessionReply, m->layouts[0]->layout_id++)
TWIST(open_size, OpenSessionReply, m->layouts[0]->block_bytes += 16)
TWIST(attach_none, OpenSessionReply, m->n_layout_list = 0)
TWIST(attach_fingerprint, OpenSessionReply, if (m->n_layout_list) m->layout_list[0]->fingerprint.len = 31)
TWIST(attach_version, OpenSessionReply, if (m->n_layout_list) m->layout_list[0]->layout_version += 1)

static const struct {
	const char *name;
	void (*twist)(struct fake *f, const char *method, ProtobufCMessage *reply);
	enum terrace_status (*call)(void);
	enum terrace_status want;
} twists[] = {
	{"lookup_prefix", lookup_prefix, call_lookup, TERRACE_INTERNAL},
	{"lookup_states", lookup_states, call_lookup, TERRACE_INTERNAL},
	{"lookup_epoch", lookup_epoch, call_lookup, TERRACE_STALE},
	{"lease_epoch", lease_epoch, call_lease, TERRACE_STALE},
	{"lease_zero", lease_zero, call_lease, TERRACE_INTERNAL},
	{"lease_many", lease_many, call_lease, TERRACE_INTERNAL},
	{"lease_few", lease_few, call_lease, TERRACE_INTERNAL},
	{"lease_status", lease_status, call_lease, TERRACE_INTERNAL},
	{"lease_no_places", lease_no_places, call_lease, TERRACE_INTERNAL},
	{"lease_short_extents", lease_short_extents, call_lease, TERRACE_INTERNAL},
	{"lease_short_offsets", lease_short_offsets, call_lease, TERRACE_INTERNAL},
	{"lease_short_tokens", lease_short_tokens, call_lease, TERRACE_INTERNAL},
	{"lease_offset_far", lease_offset_far, call_lease, TERRACE_INTERNAL},
	{"lease_offset_wraps", lease_offset_wraps, call_lease, TERRACE_INTERNAL},
	{"lease_offset_odd", lease_offset_odd, call_lease, TERRACE_INTERNAL},
	{"lease_tokens_none", lease_tokens_none, call_lease, TERRACE_INTERNAL},
	{"lease_tokens_many", lease_tokens_many, call_lease, TERRACE_INTERNAL},
	{"lease_extent_none", lease_extent_none, call_lease, TERRACE_INTERNAL},
	{"lease_extent_unknown", lease_extent_unknown, call_lease, TERRACE_EXHAUSTED},
	{"reserve_statuses", reserve_statuses, call_reserve, TERRACE_INTERNAL},
	{"reserve_numbers", reserve_numbers, call_reserve, TERRACE_INTERNAL},
	{"reserve_disagree", reserve_disagree, call_reserve, TERRACE_INTERNAL},
	{"reserve_places", reserve_places, call_reserve, TERRACE_INTERNAL},
	{"reserve_nowhere", reserve_nowhere, call_reserve, TERRACE_INTERNAL},
	{"reserve_offset", reserve_offset, call_reserve, TERRACE_INTERNAL},
	{"commit_statuses", commit_statuses, call_commit, TERRACE_INTERNAL},
	{"commit_places", commit_places, call_commit, TERRACE_INTERNAL},
	{"commit_offset", commit_offset, call_commit, TERRACE_INTERNAL},
	{"put_statuses", put_statuses, call_put, TERRACE_INTERNAL},
	{"put_epoch", put_epoch, call_put, TERRACE_STALE},
	{"get_index", get_index, call_get, TERRACE_INTERNAL},
	{"get_bytes_more", get_bytes_more, call_get, TERRACE_INTERNAL},
	{"get_bytes_less", get_bytes_less, call_get, TERRACE_INTERNAL},
	{"get_tokens", get_tokens, call_get, TERRACE_INTERNAL},
	{"delete_statuses", delete_statuses, call_delete, TERRACE_INTERNAL},
	{"warm_many", warm_many, call_warm, TERRACE_INTERNAL},
	{"warm_epoch", warm_epoch, call_warm, TERRACE_STALE},
	{"flush_statuses", flush_statuses, call_flush, TERRACE_INTERNAL},
	{"flush_epoch", flush_epoch, call_flush, TERRACE_STALE},
	{"flush_unknown", flush_unknown, call_flush, TERRACE_INTERNAL},
	{"watch_kind", watch_kind, call_watch, TERRACE_INTERNAL},
	{"watch_layout", watch_layout, call_watch, TERRACE_INTERNAL},
	{"watch_key", watch_key, call_watch, TERRACE_INTERNAL},
	{"open_token", open_token, call_open, TERRACE_INTERNAL},
	{"open_layouts", open_layouts, call_open, TERRACE_INTERNAL},
	{"open_id", open_id, call_open, TERRACE_UNSUPPORTED},
	{"open_size", open_size, call_open, TERRACE_UNSUPPORTED},
	{"attach_none", attach_none, call_attach, TERRACE_INTERNAL},
	{"attach_fingerprint", attach_fingerprint, call_attach, TERRACE_INTERNAL},
	{"attach_version", attach_version, call_attach, TERRACE_UNSUPPORTED},
};

START_TEST(twisted)
{
	enum terrace_status status;

	FAULT(twist, twists[_i].twist);
	status = twists[_i].call();
	ck_assert_msg(status == twists[_i].want, "%s: %s (%s)", twists[_i].name, terrace_status_text(status),
		      terrace_error());
	ck_assert_str_ne(terrace_error(), "");
	FAULT(twist, NULL);
	/* The connection and the session are as good as before. */
	if (twists[_i].call != call_delete && twists[_i].call != call_open && twists[_i].call != call_attach)
		ck_assert_msg(!call_lease(), "%s: %s", twists[_i].name, terrace_error());
}
END_TEST

/* ---- garbage ------------------------------------------------------------------------------------------------------- */

static const struct {
	const char *method;
	enum terrace_status (*call)(void);
} garbled[] = {
	{"Lookup", call_lookup}, {"Lease", call_lease},       {"Reserve", call_reserve}, {"Put", call_put},
	{"Warm", call_warm},     {"Flush", call_flush},
	{"Get", call_get},       {"OpenSession", call_open},  {"Attach", call_attach},
};

/* Seeded random bytes; every one must be answered, most as nonsense. */
START_TEST(garbage)
{
	uint8_t raw[200];
	unsigned wrong = 0;

	srand(7);
	for (size_t g = 0; g < sizeof(garbled) / sizeof(garbled[0]); g++) {
		for (int i = 0; i < 20; i++) {
			for (size_t k = 0; k < sizeof(raw); k++)
				raw[k] = (uint8_t)(rand() >> 7);
			FAULT(raw, raw);
			FAULT(raw_bytes, (size_t)(i * 10));
			FAULT(raw_method, garbled[g].method);
			wrong += garbled[g].call() != TERRACE_OK;
		}
		FAULT(raw_method, NULL);
	}
	ck_assert_uint_eq(wrong, 20 * sizeof(garbled) / sizeof(garbled[0]));
	ck_assert_int_eq(call_lease(), TERRACE_OK);
}
END_TEST

/* ---- the fd socket -------------------------------------------------------------------------------------------------- */

static const struct {
	enum fake_fd_fault fault;
	enum terrace_status want;
	bool lives; /* the conversation can go on afterwards */
} fd_faults[] = {
	{FAKE_FD_SMALL, TERRACE_INTERNAL, true},
	{FAKE_FD_NO_DESCRIPTOR, TERRACE_INTERNAL, true},
	{FAKE_FD_PIPE, TERRACE_INTERNAL, true},
	{FAKE_FD_BAD_PAGE, TERRACE_INTERNAL, true},
	{FAKE_FD_REFUSES, TERRACE_EXHAUSTED, true},
	{FAKE_FD_TWO_DESCRIPTORS, TERRACE_OK, true},
	{FAKE_FD_SILENT, TERRACE_DEADLINE, true},
	{FAKE_FD_GARBAGE, TERRACE_INTERNAL, false},
	{FAKE_FD_HANGS_UP, TERRACE_UNAVAILABLE, false},
};

START_TEST(fd_socket)
{
	unsigned before, released = 0;
	enum terrace_status status;

	ck_assert_int_eq(call_lookup(), TERRACE_OK); /* the fake knows no local calls: that is found out once */
	before = descriptors_once();
	FAULT(fd_fault, fd_faults[_i].fault);
	lease_timeout_us = fd_faults[_i].want == TERRACE_DEADLINE ? 2000000 : 0;
	status = call_lease();
	lease_timeout_us = 0;
	ck_assert_msg(status == fd_faults[_i].want, "%d: %s", fd_faults[_i].fault, terrace_error());
	ck_assert_uint_le(descriptors(before), before); /* one may have been about to be closed */
	/* The daemon is told that the lease is not used, whichever way is left. */
	ck_assert_uint_eq(fake_await(&fake, &fake.released, ++released), released);
	FAULT(fd_fault, FAKE_FD_SOUND);
	ck_assert_int_eq(call_lease(), fd_faults[_i].lives ? TERRACE_OK : TERRACE_UNAVAILABLE);
	ck_assert_uint_eq(fake_await(&fake, &fake.released, ++released), released);
	ck_assert_int_eq(call_lookup(), TERRACE_OK);
	ck_assert_int_eq(terrace_session_reopen(session, 0), TERRACE_OK);
	ck_assert_int_eq(call_lease(), TERRACE_OK);
}
END_TEST

/* This process can have no more descriptors: no fault of the daemon's. */
START_TEST(no_room_for_a_descriptor)
{
	const int least = open("/dev/null", O_RDONLY | O_CLOEXEC); /* all below are taken */
	struct rlimit limit, none;

	ck_assert_int_eq(call_lookup(), TERRACE_OK); /* as above */
	ck_assert(least >= 0 && !getrlimit(RLIMIT_NOFILE, &limit));
	close(least);
	none = limit;
	none.rlim_cur = (rlim_t)least;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	ck_assert_int_eq(call_lease(), TERRACE_EXHAUSTED);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_eq(fake_await(&fake, &fake.unmapped, 1), 1);
	ck_assert_int_eq(call_lease(), TERRACE_OK);
}
END_TEST

/* Somebody has asked for it and given up, and the session is closed before anybody hears of it: the daemon is told that it is not mapped. */
START_TEST(an_answer_that_nobody_waits_for)
{
	const unsigned before = descriptors_once();
	char words[256];

	ck_assert_uint_eq(fake_count(&fake, &fake.unmapped), 0);
	FAULT(fd_fault, FAKE_FD_SILENT);
	lease_timeout_us = 100000;
	ck_assert_int_eq(call_lease(), TERRACE_DEADLINE);
	lease_timeout_us = 0;
	FAULT(fd_fault, FAKE_FD_SOUND);
	fake_lend(&fake, 1);
	snprintf(words, sizeof(words), "%s", terrace_error());
	terrace_session_close(session);
	ck_assert_str_eq(terrace_error(), words);
	ck_assert_uint_eq(fake_await(&fake, &fake.unmapped, 1), 1);
	ck_assert_uint_le(descriptors(before), before);
	ck_assert_int_eq(terrace_session_open(client, layouts, 1, NULL, &session), TERRACE_OK);
}
END_TEST

/* A daemon that ends the call well before it has heard all of it may have said what became of the block, or not. */
START_TEST(a_put_that_is_cut_short)
{
	struct terrace_layout large = fake_layout();
	struct terrace_session *s;
	uint8_t *put;

	large.layers = 512;
	large.heads = large.total_heads = 8;
	put = calloc(1, terrace_block_bytes(&large));
	ck_assert_ptr_nonnull(put);
	ck_assert_int_eq(terrace_session_open(client, &large, 1, NULL, &s), TERRACE_OK);
	FAULT(fail_method, "Put");
	FAULT(fail_code, GRPC_STATUS_OK);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(terrace_put(s, 0, bytes, KEY_BYTES, NULL, put, 0), TERRACE_INTERNAL);
	FAULT(fail_method, NULL);
	FAULT(hasty_put, true);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(terrace_put(s, 0, bytes, KEY_BYTES, NULL, put, 0), TERRACE_EXISTS); /* which the rig has stored */
	FAULT(hasty_put, false);
	terrace_session_close(s);
	free(put);
}
END_TEST

/* What cleans up behind a failure leaves its words, also when the daemon has gone meanwhile. */
START_TEST(cleaning_up_keeps_words)
{
	static uint8_t fresh[KEYS * KEY_BYTES] = "never committed";
	struct terrace_keys others = {fresh, KEYS, KEY_BYTES};
	struct terrace_reservation *r[2];
	struct terrace_lease *leases[3];
	char words[256];

	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_ALL, 0, &leases[i]), TERRACE_OK);
	for (int i = 0; i < 2; i++, fresh[0]++)
		ck_assert_int_eq(terrace_reserve(session, &others, NULL, 0, NULL, &r[i]), TERRACE_OK);
	ck_assert_int_eq(terrace_get(session, 0, bytes, 65, block, NULL, 0), TERRACE_INVALID);
	snprintf(words, sizeof(words), "%s", terrace_error());
	terrace_release(leases[0]);
	terrace_abort(r[0]);
	ck_assert_str_eq(terrace_error(), words);
	fake_restart(&fake);
	FAULT(fail_method, "Abort");
	FAULT(fail_code, GRPC_STATUS_NOT_FOUND);
	terrace_release(leases[1]);
	ck_assert_str_eq(terrace_error(), words);
	terrace_abort(r[1]);
	ck_assert_str_eq(terrace_error(), words);
	FAULT(fail_method, "CloseSession");
	terrace_session_close(session);
	terrace_disconnect(client);
	terrace_release(leases[2]);
	ck_assert_str_eq(terrace_error(), words);
	fake_stop(&fake);
	free(block);
	open_session();
}
END_TEST

static void *health_comes(void *arg)
{
	const unsigned *asked = arg;

	fake_await(&fake, &fake.calls, *asked + 1);
	FAULT(fail_method, NULL);
	return NULL;
}

/* Nor do calls that come out well, whatever has failed on their way. */
START_TEST(success_keeps_words)
{
	static uint8_t fresh[KEYS * KEY_BYTES] = "another commit";
	struct terrace_keys others = {fresh, KEYS, KEY_BYTES};
	struct terrace_reservation *r;
	struct terrace_session *other;
	struct terrace_lease *lease;
	char words[256], moved[sizeof(fake.fd_path) + 2];
	pthread_t thread;
	unsigned asked;

	ck_assert_int_eq(terrace_reserve(session, &others, NULL, 0, NULL, &r), TERRACE_OK);
	ck_assert_int_eq(terrace_get(session, 0, bytes, 65, block, NULL, 0), TERRACE_INVALID);
	snprintf(words, sizeof(words), "%s", terrace_error());
	FAULT(fd_fault, FAKE_FD_REFUSES);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, &lease), TERRACE_OK);
	ck_assert_ptr_null(lease); /* it cannot be mapped */
	ck_assert_str_eq(terrace_error(), words);
	FAULT(fd_fault, FAKE_FD_SOUND);
	snprintf(moved, sizeof(moved), "%s.1", fake.fd_path);
	ck_assert_int_eq(rename(fake.fd_path, moved), 0);
	ck_assert_int_eq(terrace_session_open(client, layouts, 1, NULL, &other), TERRACE_OK);
	ck_assert_int_eq(rename(moved, fake.fd_path), 0);
	ck_assert(!terrace_session_borrows(other));
	ck_assert_str_eq(terrace_error(), words);
	terrace_session_close(other);
	asked = fake_count(&fake, &fake.calls);
	FAULT(fail_code, GRPC_STATUS_UNAVAILABLE);
	FAULT(fail_method, "Check");
	ck_assert_int_eq(pthread_create(&thread, NULL, health_comes, &asked), 0);
	ck_assert_int_eq(terrace_session_reopen(session, 0), TERRACE_OK);
	pthread_join(thread, NULL);
	ck_assert_str_eq(terrace_error(), words);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_hostile");
	TCase *c = tcase_create("hostile");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(c, open_session, close_session);
	tcase_set_timeout(c, 100);
	tcase_add_loop_test(c, twisted, 0, sizeof(twists) / sizeof(twists[0]));
	tcase_add_test(c, garbage);
	tcase_add_test(c, a_put_that_is_cut_short);
	tcase_add_test(c, no_room_for_a_descriptor);
	tcase_add_test(c, cleaning_up_keeps_words);
	tcase_add_test(c, success_keeps_words);
	tcase_add_test(c, an_answer_that_nobody_waits_for);
	tcase_add_loop_test(c, fd_socket, 0, sizeof(fd_faults) / sizeof(fd_faults[0]));
	suite_add_tcase(suite, c);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
