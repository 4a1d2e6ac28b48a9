/* Local calls against a real cache, with a GPU that is none: round trips, what packets may say, bounds, many callers. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/lease.h"
#include "daemon/local/packet.h"
#include "daemon/process/daemon.h"
#include "daemon/session/open.h"
#include "daemon/vram/vram.h"
#include "kernels/format.h"
#include "tests/asleep.h"
#include "tests/daemon/local/rig.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

START_TEST(calls_of_each_kind)
{
	Terrace__V1__LookupRequest lookup = lookup_k1();
	Terrace__V1__ReserveRequest reserve = TERRACE__V1__RESERVE_REQUEST__INIT;
	Terrace__V1__CommitRequest commit = TERRACE__V1__COMMIT_REQUEST__INIT;
	Terrace__V1__CommitItem item = TERRACE__V1__COMMIT_ITEM__INIT, *items = &item;
	Terrace__V1__AbortRequest abort_it = TERRACE__V1__ABORT_REQUEST__INIT;
	Terrace__V1__ReleaseRequest release = TERRACE__V1__RELEASE_REQUEST__INIT;
	Terrace__V1__TouchRequest touch = TERRACE__V1__TOUCH_REQUEST__INIT;
	Terrace__V1__ReportRequest report = TERRACE__V1__REPORT_REQUEST__INIT;
	Terrace__V1__WarmRequest warm = TERRACE__V1__WARM_REQUEST__INIT;
	Terrace__V1__Keys two = keys_of("k1k2", 2);
	Terrace__V1__LookupReply *looked;
	Terrace__V1__ReserveReply *reserved;
	Terrace__V1__CommitReply *committed;
	int keeper = attach(), fd = caller();

	reserve.session = commit.session = abort_it.session = release.session = touch.session = report.session = warm.session =
		s.session.id;
	reserve.attachment = commit.attachment = attachment;
	reserve.keys = &two;
	say(fd, FDSOCK_RESERVE, &reserve, 0); /* the first grows the tier: on a worker */
	ck_assert_uint_eq(answer(fd, &terrace__v1__reserve_reply__descriptor, &reserved), STATUS_OK);
	held_becomes(0, 2);
	item.reservation = reserved->reservation[0];
	commit.items = &items;
	commit.n_items = 1;
	commit.lease = true;
	say(fd, FDSOCK_COMMIT, &commit, 1000000ull * NET_S);
	ck_assert_uint_eq(answer(fd, &terrace__v1__commit_reply__descriptor, &committed), STATUS_OK);
	ck_assert_int_eq(committed->status[0], TERRACE__V1__STATUS__OK);
	held_becomes(1, 1);
	abort_it.n_reservations = 1;
	abort_it.reservations = &reserved->reservation[1];
	say(fd, FDSOCK_ABORT, &abort_it, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	release.n_leases = 1;
	release.leases = &committed->lease;
	say(fd, FDSOCK_GIVE_BACK, &release, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	held_becomes(0, 0);
	say(fd, FDSOCK_LOOKUP, &lookup, 0);
	ck_assert_uint_eq(answer(fd, &terrace__v1__lookup_reply__descriptor, &looked), STATUS_OK);
	ck_assert_uint_eq(looked->prefix, 1);
	ck_assert_uint_eq(looked->epoch, cache_epoch(s.daemon.cache));
	touch.keys = report.keys = warm.keys = &two;
	say(fd, FDSOCK_TOUCH, &touch, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	say(fd, FDSOCK_REPORT, &report, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	say(fd, FDSOCK_WARM, &warm, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	until("terrace_rpc_calls_total", "method=Cache.Commit,status=OK,way=local", 1);
	until("terrace_rpc_calls_total", "method=Cache.Warm,status=OK,way=local", 1);
	until("terrace_local_calls", "", 0);
	drop(reserved);
	drop(committed);
	drop(looked);
	close(fd);
	until("terrace_local_connections", "", 0);
	close(keeper);
}
END_TEST

/* Between calls that come soon its thread looks for the next; when none comes it sleeps. */
START_TEST(sleeps_when_no_call_comes)
{
	Terrace__V1__LookupRequest lookup = lookup_k1();
	int keeper = attach(), fd = caller();
	struct asleep threads;

	for (int i = 0; i < 200; i++) {
		say(fd, FDSOCK_LOOKUP, &lookup, 0);
		ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	}
	asleep_begin(&threads);
	ck_assert_int_gt(threads.count, 0);
	ck_assert(asleep_within(&threads, NET_S * 1000));
	asleep_end(&threads);
	close(fd);
	close(keeper);
}
END_TEST

START_TEST(the_token_is_the_right)
{
	static const uint8_t wrong[16] = "not the token!!";
	struct fdsock_welcome w;
	int fd = greet_with(FDSOCK_CALLER, wrong, &w);

	ck_assert_uint_eq(w.status, STATUS_DENIED);
	ck_assert_uint_eq(w.session, 0);
	ck_assert_int_eq(hear(fd, &w, sizeof w), 0);
	close(fd);
	ck_assert_double_eq(stat_of("terrace_local_connections", ""), 0);
}
END_TEST

START_TEST(another_session_is_denied)
{
	struct kv_layout layout = shell_layout(3);
	struct cache_session_view other;
	Terrace__V1__LookupRequest q = lookup_k1();
	const char *why = "";
	int fd = caller();

	ck_assert_int_eq(cache_session_open(s.daemon.cache, &(struct cache_open_call){ .tenant = "",
			.layouts = &layout, .layout_count = 1, .engine = "other", .now_us = daemon_now_us() },
					    &other, &why), STATUS_OK);
	q.session = other.id;
	say(fd, FDSOCK_LOOKUP, &q, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_DENIED);
	q.session = 0;
	say(fd, FDSOCK_LOOKUP, &q, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_DENIED);
	q.session = s.session.id;
	say(fd, FDSOCK_LOOKUP, &q, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	until("terrace_rpc_calls_total", "method=Cache.Lookup,status=DENIED,way=local", 2);
	close(fd);
}
END_TEST

static const struct {
	uint32_t magic;
	uint16_t version, type;
	uint32_t method;
	size_t bytes;
} hostile[] = {
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_CALL, FDSOCK_LOOKUP, 0 },
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_CALL, FDSOCK_LOOKUP, 1 },
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_CALL, FDSOCK_LOOKUP, sizeof(struct fdsock_call) - 1 },
	{ FDSOCK_MAGIC + 1, FDSOCK_VERSION, FDSOCK_CALL, FDSOCK_LOOKUP, sizeof(struct fdsock_call) },
	{ FDSOCK_MAGIC, FDSOCK_VERSION + 1, FDSOCK_CALL, FDSOCK_LOOKUP, sizeof(struct fdsock_call) },
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_REPLY, FDSOCK_LOOKUP, sizeof(struct fdsock_call) },
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_MAP, FDSOCK_LOOKUP, sizeof(struct fdsock_call) },
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_CALLER, FDSOCK_LOOKUP, sizeof(struct fdsock_hello) },
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_CALL, 0, sizeof(struct fdsock_call) },
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_CALL, FDSOCK_METHODS_END, sizeof(struct fdsock_call) },
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_CALL, 0xffffffff, sizeof(struct fdsock_call) },
	{ FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_CALL, FDSOCK_LOOKUP, FDSOCK_CALL_BYTES_MAX + 1 },
};

START_TEST(hostile_packets_hang_up)
{
	struct fdsock_call call = { { hostile[_i].magic, hostile[_i].version, hostile[_i].type }, hostile[_i].method, 0, 0 };
	int fd = caller();

	memset(packet, 0, sizeof packet);
	memcpy(packet, &call, sizeof call);
	ck_assert_int_eq(send(fd, packet, hostile[_i].bytes, MSG_NOSIGNAL), (ssize_t)hostile[_i].bytes);
	ck_assert_int_eq(hear(fd, packet, sizeof packet), 0);
	until("terrace_local_connections", "", 0);
	close(fd);
	close(caller());
}
END_TEST

/* What is a CALL but whose request is none is answered, and so is the next. */
START_TEST(nonsense_for_a_request)
{
	struct fdsock_call call = { .head = head_of(FDSOCK_CALL) };
	Terrace__V1__LookupRequest q = lookup_k1();
	int fd = caller();

	srand48(_i);
	for (int round = 0; round < 200; round++) {
		size_t n = sizeof call + (size_t)lrand48() % 200;

		call.method = 1 + (uint32_t)lrand48() % (FDSOCK_METHODS_END - 1);
		for (size_t i = sizeof call; i < n; i++)
			packet[i] = lrand48() % 3 ? (uint8_t)(lrand48() % 40) : (uint8_t)lrand48();
		memcpy(packet, &call, sizeof call);
		ck_assert_int_eq(send(fd, packet, n, 0), (ssize_t)n);
		ck_assert_uint_ne(answer(fd, NULL, NULL), STATUS_OK); /* it names no session */
	}
	say(fd, FDSOCK_LOOKUP, &q, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	close(fd);
}
END_TEST

/* Whose reply might not fit is sent to gRPC before anything is done; the longest of one layout's leases fits. */
START_TEST(what_is_too_long_goes_by_grpc)
{
	static uint8_t many[CACHE_KEYS_MAX * 32];
	Terrace__V1__ReserveRequest reserve = TERRACE__V1__RESERVE_REQUEST__INIT;
	Terrace__V1__LeaseRequest lease = TERRACE__V1__LEASE_REQUEST__INIT;
	Terrace__V1__LeaseReply *leased;
	Terrace__V1__Keys k = TERRACE__V1__KEYS__INIT;
	int keeper = attach(), fd = caller();

	for (uint32_t i = 0; i < sizeof many; i++)
		many[i] = (uint8_t)(i >> (i % 4 * 8));
	k.keys = (ProtobufCBinaryData){ sizeof many, many };
	k.key_bytes = 32;
	reserve.session = lease.session = s.session.id;
	reserve.attachment = lease.attachment = attachment;
	reserve.keys = lease.keys = &k;
	say(fd, FDSOCK_RESERVE, &reserve, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), FDSOCK_BY_GRPC);
	held_becomes(0, 0);
	ck_assert_double_eq(stat_of("terrace_local_by_grpc_total", ""), 1);
	ck_assert_double_eq(stat_of("terrace_local_calls", ""), 0);
	say(fd, FDSOCK_LEASE, &lease, 0);
	ck_assert_uint_eq(answer(fd, &terrace__v1__lease_reply__descriptor, &leased), STATUS_OK);
	ck_assert_int_eq(leased->status, TERRACE__V1__STATUS__MISS);
	drop(leased);
	close(fd);
	close(keeper);
}
END_TEST

/* No packed reply is longer than what is said of it before. */
START_TEST(the_bound_of_a_reply_holds)
{
	Terrace__V1__LeaseRequest q = lease_k1(false);
	Terrace__V1__LeaseReply r = TERRACE__V1__LEASE_REPLY__INIT;
	Terrace__V1__Places p = TERRACE__V1__PLACES__INIT;
	uint32_t extent[2] = { UINT32_MAX, UINT32_MAX }, tokens[2] = { UINT16_MAX, UINT16_MAX };
	uint64_t offset[2] = { 1u << 31, 1u << 31 }, generation[2] = { UINT64_MAX, UINT64_MAX };

	p.n_extent = p.n_offset = p.n_generation = p.n_tokens = 2;
	p.extent = extent;
	p.tokens = tokens;
	p.offset = offset;
	p.generation = generation;
	r.epoch = r.lease = r.ttl_ms = UINT64_MAX;
	r.status = TERRACE__V1__STATUS__INTERNAL;
	r.blocks = r.progress_page_word = r.progress_page_base = r.progress_page_layers = UINT32_MAX;
	r.progress_page_summed = true;
	r.places = &p;
	ck_assert_uint_le(sizeof(struct fdsock_reply) + protobuf_c_message_get_packed_size(&r.base),
			  local_call_reply_most(s.daemon.cache, FDSOCK_LEASE, &q.base));
	ck_assert_uint_le(2 * local_call_reply_most(s.daemon.cache, FDSOCK_LEASE, &q.base), FDSOCK_CALL_BYTES_MAX);
}
END_TEST

struct engine {
	pthread_t thread;
	int fd;
	uint64_t granted;
};

/* Of its own: no shared buffer. */
static void *engine_main(void *arg)
{
	struct engine *e = arg;
	Terrace__V1__Keys keys = keys_of("k1", 2);
	Terrace__V1__LeaseRequest q = TERRACE__V1__LEASE_REQUEST__INIT;
	struct fdsock_call call = { .head = head_of(FDSOCK_CALL), .method = FDSOCK_LEASE };
	uint8_t bytes[512];

	q.session = s.session.id;
	q.attachment = attachment;
	q.keys = &keys;
	for (int i = 0; i < 300; i++) {
		struct fdsock_reply r;
		ssize_t n, got;

		q.gpu = (uint32_t)i % 3 == 0;
		memcpy(bytes, &call, sizeof call);
		n = (ssize_t)(sizeof call + protobuf_c_message_pack(&q.base, bytes + sizeof call));
		got = send(e->fd, bytes, (size_t)n, 0) == n ? recv(e->fd, bytes, sizeof bytes, 0) : 0;
		if (got < (ssize_t)sizeof r)
			return NULL;
		memcpy(&r, bytes, sizeof r);
		if (r.status != STATUS_OK)
			return NULL;
		Terrace__V1__LeaseReply *leased = terrace__v1__lease_reply__unpack(NULL, (size_t)got - sizeof r, bytes + sizeof r);

		if (!leased || !leased->lease)
			return NULL;
		cache_release(s.daemon.cache, s.session.id, leased->lease);
		e->granted++;
		drop(leased);
	}
	return NULL;
}

/* Beside others of the cache's callers. */
START_TEST(many_callers)
{
	struct engine engines[CONNECTIONS];
	int keeper = attach();

	shell_store(&s, "k1");
	for (int i = 0; i < CONNECTIONS; i++) {
		engines[i] = (struct engine){ .fd = caller() };
		ck_assert_int_eq(pthread_create(&engines[i].thread, NULL, engine_main, &engines[i]), 0);
	}
	for (int i = 0; i < CONNECTIONS; i++) {
		pthread_join(engines[i].thread, NULL);
		ck_assert_uint_eq(engines[i].granted, 300);
		close(engines[i].fd);
	}
	held_becomes(0, 0);
	until("terrace_rpc_calls_total", "method=Cache.Lease,status=OK,way=local", 300 * CONNECTIONS);
	close(keeper);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("near");
	TCase *t = tcase_create("near");
	SRunner *r;

	tcase_add_checked_fixture(t, local_rig_open, local_rig_close);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, calls_of_each_kind);
	tcase_add_test(t, sleeps_when_no_call_comes);
	tcase_add_test(t, the_token_is_the_right);
	tcase_add_test(t, another_session_is_denied);
	tcase_add_loop_test(t, hostile_packets_hang_up, 0, sizeof hostile / sizeof hostile[0]);
	tcase_add_loop_test(t, nonsense_for_a_request, 0, 3);
	tcase_add_test(t, what_is_too_long_goes_by_grpc);
	tcase_add_test(t, the_bound_of_a_reply_holds);
	tcase_add_test(t, many_callers);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
