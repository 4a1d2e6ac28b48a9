/* The handlers without gRPC: requests that must be refused, with the words that say why; the good path of
 * each; and random bytes. */
#include "daemon/block/values.h"
#include "daemon/cache.h"
#include "daemon/disk/tier.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/reply.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "health.pb-c.h"
#include "kernels/format.h"
#include "proto/layout_message.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/rpc/handle.h"
#include "tests/shell.h"
#include "tests/sim/device.h"

#include <stdatomic.h>

static struct shell s;
static struct rpc_call call;
static uint8_t keys_65[65], keys_many[4097];

static void setup(void)
{
	shell_open(&s);
	memset(&call, 0, sizeof call);
}

static void teardown(void)
{
	rpc_call_fini(&call);
	shell_close(&s);
}

static const struct rpc_method *method(const char *name)
{
	for (uint32_t i = 0; i < rpc_methods_count; i++)
		if (!strcmp(rpc_methods[i].name, name))
			return &rpc_methods[i];
	ck_abort_msg("no method %s", name);
}

/* Packs, and runs one step through the same way as the server does. */
static enum status ask(const char *name, const void *message, ProtobufCMessage **reply)
{
	const ProtobufCMessage *m = message;
	size_t n = protobuf_c_message_get_packed_size(m);
	uint8_t *bytes = malloc(n + 1);

	protobuf_c_message_pack(m, bytes);
	rpc_call_fini(&call);
	rpc_call_init(&call, &s.daemon, method(name), daemon_now_us(), daemon_now_us() + 10000000);
	enum status status = call_handle(&call, bytes, n, reply);

	free(bytes);
	return status;
}

/* The local socket's. */
static void tick_and_chores(void)
{
	if (cache_tick(s.daemon.cache, daemon_now_us())) {
		cache_disk_chores(s.daemon.cache);
		cache_chores(s.daemon.cache);
	}
}

/* Steps of one call until it is done, as the server makes them; the local socket's tick and chores between them. */
static enum status ask_on(const char *name, const void *message, uint64_t deadline_us, ProtobufCMessage **reply)
{
	const struct rpc_method *m = method(name);
	enum status status;

	rpc_call_fini(&call);
	rpc_call_init(&call, &s.daemon, m, daemon_now_us(), daemon_now_us() + deadline_us);
	do {
		call.now_us = daemon_now_us();
		call.resume_us = 0;
		status = m->unary(&call, message, reply);
		call.worker = status == STATUS_BUSY && !call.resume_us;
		tick_and_chores();
		usleep(1000);
	} while (status == STATUS_BUSY);
	rpc_wait_end(&call);
	return status;
}

static Terrace__V1__Keys keys_of(const uint8_t *bytes, size_t n, uint32_t key_bytes)
{
	Terrace__V1__Keys k = TERRACE__V1__KEYS__INIT;

	k.key_bytes = key_bytes;
	k.keys = (ProtobufCBinaryData){ n, (uint8_t *)bytes };
	return k;
}

static const struct {
	size_t n;
	uint32_t key_bytes;
	const char *says;
} bad_keys[] = {
	{ 65, 65, "65 bytes a key, must be 1 to 64" },
	{ 8, 0, "0 bytes a key" },
	{ 8, 5, "8 bytes are no multiple of 5" },
	{ 4097, 1, "4097 keys, at most 4096" },
};

/* Every message with keys refuses bad ones in the same words. */
START_TEST(bad_keys_everywhere)
{
	const size_t n = bad_keys[_i].n;
	Terrace__V1__Keys k = keys_of(n == 65 ? keys_65 : keys_many, n, bad_keys[_i].key_bytes);
	Terrace__V1__LookupRequest lookup = TERRACE__V1__LOOKUP_REQUEST__INIT;
	Terrace__V1__LeaseRequest lease = TERRACE__V1__LEASE_REQUEST__INIT;
	Terrace__V1__ReserveRequest reserve = TERRACE__V1__RESERVE_REQUEST__INIT;
	Terrace__V1__TouchRequest touch = TERRACE__V1__TOUCH_REQUEST__INIT;
	Terrace__V1__ReportRequest report = TERRACE__V1__REPORT_REQUEST__INIT;
	Terrace__V1__DeleteRequest delete = TERRACE__V1__DELETE_REQUEST__INIT;
	Terrace__V1__WarmRequest warm = TERRACE__V1__WARM_REQUEST__INIT;
	Terrace__V1__FlushRequest flush = TERRACE__V1__FLUSH_REQUEST__INIT;
	const struct {
		const char *name;
		void *message;
	} all[] = { { "Cache.Lookup", &lookup }, { "Cache.Lease", &lease }, { "Cache.Reserve", &reserve },
		    { "Cache.Touch", &touch }, { "Cache.Report", &report }, { "Cache.Delete", &delete },
		    { "Cache.Warm", &warm }, { "Cache.Flush", &flush } };
	ProtobufCMessage *reply;

	lookup.keys = lease.keys = reserve.keys = touch.keys = report.keys = delete.keys = warm.keys = flush.keys = &k;
	lookup.session = lease.session = reserve.session = touch.session = report.session = delete.session = warm.session =
		flush.session = s.session.id;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		ck_assert_int_eq(ask(all[i].name, all[i].message, &reply), STATUS_INVALID);
		ck_assert_msg(strstr(call.why, bad_keys[_i].says) != NULL, "%s: %s", all[i].name, call.why);
	}
}
END_TEST

static void fill_layout(Terrace__V1__Layout *l)
{
	static struct kv_layout own;

	own = shell_layout(9);
	layout_message_write(&own, l);
}

START_TEST(open_session)
{
	Terrace__V1__OpenSessionRequest q = TERRACE__V1__OPEN_SESSION_REQUEST__INIT;
	Terrace__V1__Layout l[65], *list[65];
	char engine[80] = "";
	ProtobufCMessage *reply;

	for (int i = 0; i < 65; i++) {
		fill_layout(&l[i]);
		list[i] = &l[i];
	}
	q.layouts = list;
	ck_assert_int_eq(ask("Cache.OpenSession", &q, &reply), STATUS_INVALID); /* none */
	q.n_layouts = 65;
	ck_assert_int_eq(ask("Cache.OpenSession", &q, &reply), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(call.why, "65 given, must be 1 to 64"));
	q.n_layouts = 1;
	l[0].k_format = 99;
	ck_assert_int_eq(ask("Cache.OpenSession", &q, &reply), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(call.why, "layouts[0]: unknown format"));
	fill_layout(&l[0]);
	l[0].fingerprint.len = 31;
	ck_assert_int_eq(ask("Cache.OpenSession", &q, &reply), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(call.why, "31 bytes, must be 32"));
	fill_layout(&l[0]);
	l[0].fingerprint.data = (uint8_t[KV_FINGERPRINT_BYTES]){ 0 };
	ck_assert_int_eq(ask("Cache.OpenSession", &q, &reply), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(call.why, "layouts[0].fingerprint: not set"));
	fill_layout(&l[0]);
	l[0].head_dim_k = 65;
	ck_assert_int_eq(ask("Cache.OpenSession", &q, &reply), STATUS_INVALID);
	fill_layout(&l[0]);
	memset(engine, 'x', 65);
	q.engine = engine;
	ck_assert_int_eq(ask("Cache.OpenSession", &q, &reply), STATUS_INVALID);
	engine[64] = 0;
	q.tenant = "other";
	ck_assert_int_eq(ask("Cache.OpenSession", &q, &reply), STATUS_DENIED);
	q.tenant = "default";
	ck_assert_msg(ask("Cache.OpenSession", &q, &reply) == STATUS_OK, "%s", call.why);
	const Terrace__V1__OpenSessionReply *r = (const Terrace__V1__OpenSessionReply *)reply;

	ck_assert_uint_eq(r->token.len, CACHE_TOKEN_BYTES);
	ck_assert_str_eq(r->fd_socket, s.config.fd_socket);
	ck_assert_uint_eq(r->n_layouts, 1);
	ck_assert_uint_eq(r->n_layout_list, 0);

	Terrace__V1__AttachRequest a = TERRACE__V1__ATTACH_REQUEST__INIT;
	uint8_t token[CACHE_TOKEN_BYTES];

	memcpy(token, r->token.data, sizeof token);
	a.token = (ProtobufCBinaryData){ 15, token };
	ck_assert_int_eq(ask("Cache.Attach", &a, &reply), STATUS_INVALID);
	a.token.len = 16;
	ck_assert_int_eq(ask("Cache.Attach", &a, &reply), STATUS_OK);
	r = (const Terrace__V1__OpenSessionReply *)reply;
	ck_assert_uint_eq(r->n_layout_list, 1);
	ck_assert_uint_eq(r->layout_list[0]->head_dim_k, 64);
	token[3] ^= 1;
	ck_assert_int_eq(ask("Cache.Attach", &a, &reply), STATUS_NOT_FOUND);

	Terrace__V1__CloseSessionRequest close = TERRACE__V1__CLOSE_SESSION_REQUEST__INIT;

	close.session = 12345;
	ck_assert_int_eq(ask("Cache.CloseSession", &close, &reply), STATUS_NOT_FOUND);
	close.session = s.session.id;
	ck_assert_int_eq(ask("Cache.CloseSession", &close, &reply), STATUS_OK);
}
END_TEST

START_TEST(lookup_lease_release_delete)
{
	Terrace__V1__Keys k = keys_of((const uint8_t *)"k1k2k3", 6, 2);
	Terrace__V1__LookupRequest lookup = TERRACE__V1__LOOKUP_REQUEST__INIT;
	Terrace__V1__LeaseRequest lease = TERRACE__V1__LEASE_REQUEST__INIT;
	Terrace__V1__ReleaseRequest release = TERRACE__V1__RELEASE_REQUEST__INIT;
	uint64_t ids[4097] = { 0 }, attachment, session;
	const char *why = "";
	ProtobufCMessage *reply;

	shell_store(&s, "k1");
	shell_store(&s, "k2");
	lookup.keys = lease.keys = &k;
	lookup.session = lease.session = s.session.id;
	lookup.states = true;
	ck_assert_int_eq(ask("Cache.Lookup", &lookup, &reply), STATUS_OK);
	const Terrace__V1__LookupReply *l = (const Terrace__V1__LookupReply *)reply;

	ck_assert_uint_eq(l->prefix, 2);
	ck_assert_uint_eq(l->states.len, 6);
	ck_assert_int_eq(memcmp(l->states.data, "\1\1\1\1\0\0", 6), 0);
	lookup.keys = NULL;
	ck_assert_int_eq(ask("Cache.Lookup", &lookup, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__LookupReply *)reply)->prefix, 0);

	ck_assert_int_eq(cache_attach(s.daemon.cache, s.session.token, getpid(), daemon_now_us(), &attachment, &session,
				      &why),
			 STATUS_OK);
	lease.attachment = attachment + 1;
	ck_assert_int_eq(ask("Cache.Lease", &lease, &reply), STATUS_PRECONDITION);
	lease.attachment = attachment;
	lease.mode = 7;
	ck_assert_int_eq(ask("Cache.Lease", &lease, &reply), STATUS_INVALID);
	lease.mode = TERRACE__V1__LEASE_MODE__LEASE_ALL;
	ck_assert_int_eq(ask("Cache.Lease", &lease, &reply), STATUS_OK);
	ck_assert_int_eq(((const Terrace__V1__LeaseReply *)reply)->status, TERRACE__V1__STATUS__MISS);
	ck_assert_ptr_null(((const Terrace__V1__LeaseReply *)reply)->places);
	lease.mode = TERRACE__V1__LEASE_MODE__LEASE_PREFIX;
	ck_assert_int_eq(ask("Cache.Lease", &lease, &reply), STATUS_OK);
	const Terrace__V1__LeaseReply *g = (const Terrace__V1__LeaseReply *)reply;

	ck_assert_uint_eq(g->blocks, 2);
	ck_assert_uint_eq(g->places->n_extent, 4);
	ck_assert_uint_eq(g->places->n_tokens, 4);
	ck_assert_uint_eq(g->places->tokens[3], 16);
	ids[0] = g->lease;
	ids[1] = g->lease + 99;
	release.leases = ids;
	release.n_leases = 2;
	ck_assert_int_eq(ask("Cache.Release", &release, &reply), STATUS_NOT_FOUND); /* session 0 is nobody's */
	release.session = s.session.id;
	release.n_leases = 4097;
	ck_assert_int_eq(ask("Cache.Release", &release, &reply), STATUS_INVALID);
	release.n_leases = 2;
	release.calls = (uint64_t[17]){ 1 };
	release.n_calls = 17;
	ck_assert_int_eq(ask("Cache.Release", &release, &reply), STATUS_INVALID);
	release.n_calls = 16;
	ck_assert_int_eq(ask("Cache.Release", &release, &reply), STATUS_OK);
	ck_assert_int_eq(((const Terrace__V1__ReleaseReply *)reply)->status[0], TERRACE__V1__STATUS__OK);
	ck_assert_int_eq(((const Terrace__V1__ReleaseReply *)reply)->status[1], TERRACE__V1__STATUS__NOT_FOUND);

	Terrace__V1__DeleteRequest delete = TERRACE__V1__DELETE_REQUEST__INIT;

	delete.session = s.session.id;
	delete.keys = &k;
	ck_assert_int_eq(ask("Cache.Delete", &delete, &reply), STATUS_OK);
	ck_assert_int_eq(((const Terrace__V1__DeleteReply *)reply)->status[1], TERRACE__V1__STATUS__OK);
	ck_assert_int_eq(((const Terrace__V1__DeleteReply *)reply)->status[2], TERRACE__V1__STATUS__MISS);
}
END_TEST

START_TEST(reserve_commit_abort)
{
	Terrace__V1__Keys k = keys_of((const uint8_t *)"k1k2", 4, 2);
	Terrace__V1__ReserveRequest q = TERRACE__V1__RESERVE_REQUEST__INIT;
	Terrace__V1__BlockInfo info = TERRACE__V1__BLOCK_INFO__INIT, *infos[2] = { &info, &info };
	Terrace__V1__CommitItem item = TERRACE__V1__COMMIT_ITEM__INIT, *items[1] = { &item };
	Terrace__V1__CommitRequest commit = TERRACE__V1__COMMIT_REQUEST__INIT;
	Terrace__V1__AbortRequest abort_one = TERRACE__V1__ABORT_REQUEST__INIT;
	uint64_t ids[2], session, attachment;
	const char *why = "";
	ProtobufCMessage *reply;

	ck_assert_int_eq(cache_attach(s.daemon.cache, s.session.token, getpid(), daemon_now_us(), &attachment, &session,
				      &why),
			 STATUS_OK);
	q.session = s.session.id;
	q.attachment = attachment;
	q.keys = &k;
	q.info = infos;
	q.n_info = 1;
	info.tokens = 16;
	ck_assert_int_eq(ask("Cache.Reserve", &q, &reply), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(call.why, "info: 1 entries for 2 keys"));
	q.n_info = 2;
	info.role = 5;
	ck_assert_int_eq(ask("Cache.Reserve", &q, &reply), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(call.why, "info[0].role"));
	info.role = TERRACE__V1__ROLE__ROLE_USER;
	info.tokens = KV_OPAQUE_TOKENS_MAX + 1;
	ck_assert_int_eq(ask("Cache.Reserve", &q, &reply), STATUS_INVALID);
	info.tokens = 16;
	info.parent = (ProtobufCBinaryData){ 65, keys_65 };
	ck_assert_int_eq(ask("Cache.Reserve", &q, &reply), STATUS_INVALID);
	info.parent.len = 0;
	ck_assert_msg(ask("Cache.Reserve", &q, &reply) == STATUS_OK, "%s", call.why);
	const Terrace__V1__ReserveReply *r = (const Terrace__V1__ReserveReply *)reply;

	ck_assert_uint_eq(r->n_status, 2);
	ck_assert_uint_eq(r->places->n_offset, 4);
	ck_assert_int_eq(r->status[0], TERRACE__V1__STATUS__OK);
	memcpy(ids, r->reservation, sizeof ids);
	q.open = true;
	q.n_info = 0;
	ck_assert_int_eq(ask("Cache.Reserve", &q, &reply), STATUS_INVALID);

	commit.session = s.session.id;
	ck_assert_int_eq(ask("Cache.Commit", &commit, &reply), STATUS_INVALID);
	commit.items = items;
	commit.n_items = 1;
	item.reservation = ids[0];
	item.key = (ProtobufCBinaryData){ 65, keys_65 };
	ck_assert_int_eq(ask("Cache.Commit", &commit, &reply), STATUS_INVALID);
	item.key.len = 0;
	item.tokens = KV_OPAQUE_TOKENS_MAX + 1;
	ck_assert_int_eq(ask("Cache.Commit", &commit, &reply), STATUS_INVALID);
	item.tokens = 0;
	commit.lease = true;
	commit.attachment = attachment;
	ck_assert_msg(ask("Cache.Commit", &commit, &reply) == STATUS_OK, "%s", call.why);
	const Terrace__V1__CommitReply *m = (const Terrace__V1__CommitReply *)reply;

	ck_assert_int_eq(m->status[0], TERRACE__V1__STATUS__OK);
	ck_assert_uint_ne(m->lease, 0);
	ck_assert_uint_eq(m->places->n_extent, 2);

	abort_one.reservations = &ids[1];
	abort_one.n_reservations = 1;
	ck_assert_int_eq(ask("Cache.Abort", &abort_one, &reply), STATUS_NOT_FOUND);
	abort_one.session = s.session.id;
	ck_assert_int_eq(ask("Cache.Abort", &abort_one, &reply), STATUS_OK);
	ck_assert_int_eq(((const Terrace__V1__AbortReply *)reply)->status[0], TERRACE__V1__STATUS__OK);
}
END_TEST

/* Reserve, Commit, Warm and Lease on a GPU, by its number; and one that there is not. */
START_TEST(on_a_gpu)
{
	Terrace__V1__Keys k = keys_of((const uint8_t *)"k1k2", 4, 2);
	Terrace__V1__AttachRequest attach = TERRACE__V1__ATTACH_REQUEST__INIT;
	Terrace__V1__ReserveRequest q = TERRACE__V1__RESERVE_REQUEST__INIT;
	Terrace__V1__CommitItem item = TERRACE__V1__COMMIT_ITEM__INIT, *items[1] = { &item };
	Terrace__V1__CommitRequest commit = TERRACE__V1__COMMIT_REQUEST__INIT;
	Terrace__V1__LookupRequest lookup = TERRACE__V1__LOOKUP_REQUEST__INIT;
	Terrace__V1__LeaseRequest lease = TERRACE__V1__LEASE_REQUEST__INIT;
	Terrace__V1__WarmRequest warm = TERRACE__V1__WARM_REQUEST__INIT;
	Terrace__V1__StatsRequest stats = TERRACE__V1__STATS_REQUEST__INIT;
	uint64_t session, attachment;
	const char *why = "";
	ProtobufCMessage *reply;

	shell_close(&s);
	setenv("SIM_GPU_DEVICES", "1", 1);
	shell_open_all(&s, NULL, terrace_device_ops());
	ck_assert_int_eq(cache_session_write_back(s.daemon.cache, s.session.id), STATUS_OK);
	attach.token = (ProtobufCBinaryData){ CACHE_TOKEN_BYTES, s.session.token };
	ck_assert_int_eq(ask("Cache.Attach", &attach, &reply), STATUS_OK);
	const Terrace__V1__OpenSessionReply *o = (const Terrace__V1__OpenSessionReply *)reply;

	ck_assert_uint_eq(o->n_gpus, 1);
	ck_assert_uint_eq(o->gpus[0]->uuid.len, 16);
	ck_assert_uint_eq(o->gpus[0]->bytes, 32 << 20);
	ck_assert_int_eq(cache_attach(s.daemon.cache, s.session.token, getpid(), daemon_now_us(), &attachment, &session,
				      &why), STATUS_OK);
	q.session = commit.session = lookup.session = lease.session = warm.session = s.session.id;
	q.attachment = lease.attachment = attachment;
	q.keys = lookup.keys = lease.keys = warm.keys = &k;
	q.gpu = lease.gpu = warm.gpu = 2;
	ck_assert_int_eq(ask("Cache.Reserve", &q, &reply), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(call.why, "gpu: 2, the daemon lends the memory of 1"));
	ck_assert_int_eq(ask("Cache.Lease", &lease, &reply), STATUS_INVALID);
	ck_assert_int_eq(ask("Cache.Warm", &warm, &reply), STATUS_INVALID);
	q.gpu = lease.gpu = warm.gpu = 1;
	ck_assert_msg(ask("Cache.Reserve", &q, &reply) == STATUS_OK, "%s", call.why);
	const Terrace__V1__ReserveReply *r = (const Terrace__V1__ReserveReply *)reply;

	ck_assert_int_eq(r->status[0], TERRACE__V1__STATUS__OK);
	ck_assert_uint_ge(r->places->extent[0], 1 << 24);
	item.reservation = r->reservation[0];
	commit.items = items;
	commit.n_items = 1;
	ck_assert_msg(ask("Cache.Commit", &commit, &reply) == STATUS_OK, "%s", call.why);
	ck_assert_int_eq(((const Terrace__V1__CommitReply *)reply)->status[0], TERRACE__V1__STATUS__OK);
	lookup.states = true;
	ck_assert_int_eq(ask("Cache.Lookup", &lookup, &reply), STATUS_OK);
	ck_assert_int_eq(memcmp(((const Terrace__V1__LookupReply *)reply)->states.data, "\3\3\0\0", 4), 0);
	ck_assert_int_eq(ask_on("Cache.Lease", &lease, 10000000, &reply), STATUS_OK);
	const Terrace__V1__LeaseReply *g = (const Terrace__V1__LeaseReply *)reply;

	ck_assert_uint_eq(g->blocks, 1);
	ck_assert_uint_ge(g->places->extent[1], 1 << 24);
	ck_assert_uint_eq(g->progress_page_layers, 0);
	warm.wait = true;
	warm.gpu = 0;
	ck_assert_int_eq(ask_on("Cache.Warm", &warm, 10000000, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__WarmReply *)reply)->blocks, 1);
	ck_assert_int_eq(ask("Cache.Lookup", &lookup, &reply), STATUS_OK);
	ck_assert_int_eq(memcmp(((const Terrace__V1__LookupReply *)reply)->states.data, "\1\1\0\0", 4), 0);
	ck_assert_int_eq(ask("Admin.Stats", &stats, &reply), STATUS_OK);
	ck_assert_str_eq(((const Terrace__V1__StatsReply *)reply)->state, "serving");
}
END_TEST

START_TEST(admin_and_health)
{
	Terrace__V1__InspectRequest inspect = TERRACE__V1__INSPECT_REQUEST__INIT;
	Terrace__V1__VerifyRequest verify = TERRACE__V1__VERIFY_REQUEST__INIT;
	Terrace__V1__StatsRequest stats = TERRACE__V1__STATS_REQUEST__INIT;
	Terrace__V1__ConfigRequest config = TERRACE__V1__CONFIG_REQUEST__INIT;
	Terrace__V1__DrainRequest drain = TERRACE__V1__DRAIN_REQUEST__INIT;
	Grpc__Health__V1__HealthCheckRequest health = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	ProtobufCMessage *reply;

	shell_store(&s, "k1");
	ck_assert_int_eq(ask("Admin.Inspect", &inspect, &reply), STATUS_INVALID);
	inspect.key = (ProtobufCBinaryData){ 2, (uint8_t *)"k1" };
	ck_assert_int_eq(ask("Admin.Inspect", &inspect, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__InspectReply *)reply)->n_blocks, 2);
	ck_assert(((const Terrace__V1__InspectReply *)reply)->blocks[0]->checksum_ok);
	ck_assert_int_eq(ask_on("Admin.Verify", &verify, 10000000, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__VerifyReply *)reply)->blocks, 2);
	ck_assert_int_eq(ask("Admin.Stats", &stats, &reply), STATUS_OK);
	ck_assert_uint_gt(((const Terrace__V1__StatsReply *)reply)->n_stats, 10);
	ck_assert_str_eq(((const Terrace__V1__StatsReply *)reply)->state, "serving");
	ck_assert_int_eq(ask("Admin.Config", &config, &reply), STATUS_OK);
	ck_assert_uint_gt(((const Terrace__V1__ConfigReply *)reply)->n_rows, 20);

	ck_assert_int_eq(ask("Health.Check", &health, &reply), STATUS_OK);
	ck_assert_int_eq(((const Grpc__Health__V1__HealthCheckResponse *)reply)->status, 1);
	ck_assert_int_eq(ask("Admin.Drain", &drain, &reply), STATUS_OK);
	ck_assert(((const Terrace__V1__DrainReply *)reply)->drained);
	ck_assert_int_eq(ask("Health.Check", &health, &reply), STATUS_OK);
	ck_assert_int_eq(((const Grpc__Health__V1__HealthCheckResponse *)reply)->status, 2);
	health.service = "terrace.v1.Admin";
	ck_assert_int_eq(ask("Health.Check", &health, &reply), STATUS_OK);
	ck_assert_int_eq(((const Grpc__Health__V1__HealthCheckResponse *)reply)->status, 1);
	health.service = "nobody";
	ck_assert_int_eq(ask("Health.Check", &health, &reply), STATUS_NOT_FOUND);
}
END_TEST

/* A scrub with a rate gives way and says when to go on. */
START_TEST(verify_keeps_its_rate)
{
	Terrace__V1__VerifyRequest q = TERRACE__V1__VERIFY_REQUEST__INIT;
	ProtobufCMessage *reply;

	shell_store(&s, "k1");
	q.max_bytes_per_second = 1000;
	ck_assert_int_eq(ask("Admin.Verify", &q, &reply), STATUS_BUSY);
	ck_assert_uint_gt(call.resume_us, call.now_us + 1000000);
}
END_TEST

/* Also if a block is many times what the rate allows in that time: what is left to be waited for, the client is told. */
START_TEST(verify_ends_in_its_time)
{
	Terrace__V1__VerifyRequest q = TERRACE__V1__VERIFY_REQUEST__INIT;
	const Terrace__V1__VerifyReply *r;
	ProtobufCMessage *reply;

	shell_store(&s, "k1");
	q.max_bytes_per_second = 1;
	q.max_ms = 500;
	ck_assert_int_eq(ask("Admin.Verify", &q, &reply), STATUS_BUSY);
	ck_assert_uint_eq(call.resume_us, call.began_us + 500000);
	ck_assert_int_eq(ask_on("Admin.Verify", &q, 10000000, &reply), STATUS_OK);
	r = (const Terrace__V1__VerifyReply *)reply;
	ck_assert_uint_eq(r->blocks, 1);
	ck_assert_uint_ge(r->elapsed_ms, 500);
	ck_assert_uint_eq((r->wait_ms + r->elapsed_ms) / 1000, s.session.block_bytes[0]);
}
END_TEST

/* In pieces, between which the client waits for what was read beyond the rate: their sums are the whole's, and the end is 0. */
START_TEST(verify_in_pieces)
{
	Terrace__V1__VerifyRequest q = TERRACE__V1__VERIFY_REQUEST__INIT;
	const Terrace__V1__VerifyReply *r;
	uint64_t blocks = 0, began = daemon_now_us();
	ProtobufCMessage *reply;
	int calls = 0;

	shell_store(&s, "k1");
	shell_store(&s, "k2");
	q.max_ms = 1;
	q.max_bytes_per_second = 20 * s.session.block_bytes[0] - 20; /* a step is one block, and lasts a twentieth of a second */
	do {
		ck_assert_int_eq(ask_on("Admin.Verify", &q, 10000000, &reply), STATUS_OK);
		r = (const Terrace__V1__VerifyReply *)reply;
		ck_assert_uint_le(r->blocks, 1);
		ck_assert_uint_eq(r->total_blocks, 4);
		ck_assert_uint_eq(r->corrupt, 0);
		blocks += r->blocks;
		q.from = r->next;
		usleep((useconds_t)r->wait_ms * 1000);
	} while (r->next && ++calls < 100);
	ck_assert_uint_eq(blocks, 4);
	ck_assert_int_ge(calls, 4);
	ck_assert_uint_gt(daemon_now_us() - began, 150000); /* the last one is waited for by nobody */
	q.max_ms = q.max_bytes_per_second = 0;
	q.from = 1ull << 63; /* the disks: there are none */
	ck_assert_int_eq(ask_on("Admin.Verify", &q, 10000000, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__VerifyReply *)reply)->blocks, 0);
	ck_assert_uint_eq(((const Terrace__V1__VerifyReply *)reply)->next, 0);
	q.from = UINT64_MAX / 3; /* nobody's cursor */
	ck_assert_int_eq(ask_on("Admin.Verify", &q, 10000000, &reply), STATUS_OK);
}
END_TEST

START_TEST(no_disks)
{
	Terrace__V1__Keys k = keys_of((const uint8_t *)"k1k2", 4, 2);
	Terrace__V1__WarmRequest warm = TERRACE__V1__WARM_REQUEST__INIT;
	Terrace__V1__FlushRequest flush = TERRACE__V1__FLUSH_REQUEST__INIT;
	Terrace__V1__CompactRequest compact = TERRACE__V1__COMPACT_REQUEST__INIT;
	Terrace__V1__LayoutsRequest layouts = TERRACE__V1__LAYOUTS_REQUEST__INIT;
	const Terrace__V1__FlushReply *f;
	ProtobufCMessage *reply;

	shell_store(&s, "k1");
	warm.keys = &k;
	ck_assert_int_eq(ask("Cache.Warm", &warm, &reply), STATUS_NOT_FOUND);
	warm.session = s.session.id;
	warm.wait = true;
	ck_assert_int_eq(ask("Cache.Warm", &warm, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__WarmReply *)reply)->blocks, 1);
	ck_assert_int_eq(ask("Cache.Flush", &flush, &reply), STATUS_NOT_FOUND);
	flush.session = s.session.id;
	ck_assert_int_eq(ask("Cache.Flush", &flush, &reply), STATUS_OK);
	f = (const Terrace__V1__FlushReply *)reply;
	ck_assert_uint_eq(f->n_status, 1);
	ck_assert_int_eq(f->status[0], TERRACE__V1__STATUS__UNAVAILABLE);
	flush.keys = &k;
	ck_assert_int_eq(ask("Cache.Flush", &flush, &reply), STATUS_OK);
	f = (const Terrace__V1__FlushReply *)reply;
	ck_assert_uint_eq(f->n_status, 2);
	ck_assert_int_eq(f->status[1], TERRACE__V1__STATUS__UNAVAILABLE);
	k.keys.len = 0; /* keys that are none are a mistake, not everything */
	ck_assert_int_eq(ask("Cache.Flush", &flush, &reply), STATUS_INVALID);
	ck_assert_int_eq(ask("Admin.Compact", &compact, &reply), STATUS_UNAVAILABLE);
	ck_assert_int_eq(ask("Admin.Layouts", &layouts, &reply), STATUS_OK);
	const Terrace__V1__LayoutsReply *l = (const Terrace__V1__LayoutsReply *)reply;

	ck_assert_uint_eq(l->n_rows, 2);
	ck_assert_uint_eq(l->rows[1]->layout_id, s.session.layout_id[1]);
	ck_assert_uint_eq(l->rows[1]->host_blocks, 1);
	ck_assert_uint_eq(l->rows[1]->disk_blocks, 0);
	ck_assert_int_eq(l->rows[0]->layout->fingerprint.data[0], 1);
}
END_TEST

START_TEST(warm_flush_delete_compact_on_a_disk)
{
	Terrace__V1__Keys k = keys_of((const uint8_t *)"k1k2k3", 6, 2);
	Terrace__V1__WarmRequest warm = TERRACE__V1__WARM_REQUEST__INIT;
	Terrace__V1__FlushRequest flush = TERRACE__V1__FLUSH_REQUEST__INIT;
	Terrace__V1__DeleteRequest delete = TERRACE__V1__DELETE_REQUEST__INIT;
	Terrace__V1__CompactRequest compact = TERRACE__V1__COMPACT_REQUEST__INIT;
	Terrace__V1__LayoutsRequest layouts = TERRACE__V1__LAYOUTS_REQUEST__INIT;
	Terrace__V1__VerifyRequest verify = TERRACE__V1__VERIFY_REQUEST__INIT;
	const Terrace__V1__FlushReply *f;
	ProtobufCMessage *reply;

	static const struct ring_calls sound = { .fault = NULL };

	shell_close(&s);
	shell_open_with(&s, &sound);
	shell_store(&s, "k1");
	shell_store(&s, "k2");
	warm.session = flush.session = delete.session = s.session.id;
	warm.keys = flush.keys = delete.keys = &k;
	warm.wait = true;
	ck_assert_int_eq(ask_on("Cache.Flush", &flush, 10000000, &reply), STATUS_OK);
	f = (const Terrace__V1__FlushReply *)reply;
	ck_assert_uint_eq(f->n_status, 3);
	ck_assert_int_eq(f->status[0], TERRACE__V1__STATUS__OK);
	ck_assert_int_eq(f->status[2], TERRACE__V1__STATUS__MISS);
	ck_assert_str_eq(f->reason, "");
	flush.keys = NULL;
	ck_assert_int_eq(ask_on("Cache.Flush", &flush, 10000000, &reply), STATUS_OK);
	ck_assert_int_eq(((const Terrace__V1__FlushReply *)reply)->status[0], TERRACE__V1__STATUS__OK);
	s.daemon.cache->pools[0]->unverified = 5; /* as if a crash had left them */
	ck_assert_int_eq(ask_on("Cache.Flush", &flush, 20000, &reply), STATUS_DEADLINE);
	ck_assert_ptr_nonnull(strstr(call.why, "but 5 blocks that a crash left"));
	s.daemon.cache->pools[0]->unverified = 0;
	ck_assert_int_eq(ask("Admin.Layouts", &layouts, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__LayoutsReply *)reply)->rows[0]->disk_blocks, 2);
	ck_assert_uint_eq(((const Terrace__V1__LayoutsReply *)reply)->rows[0]->dirty_blocks, 0);
	ck_assert_int_eq(ask_on("Cache.Warm", &warm, 10000000, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__WarmReply *)reply)->blocks, 2);
	ck_assert_int_eq(ask_on("Admin.Verify", &verify, 10000000, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__VerifyReply *)reply)->blocks, 8);
	ck_assert_uint_eq(((const Terrace__V1__VerifyReply *)reply)->total_blocks, 8);
	ck_assert_int_eq(ask_on("Cache.Delete", &delete, 10000000, &reply), STATUS_OK);
	ck_assert_int_eq(((const Terrace__V1__DeleteReply *)reply)->status[1], TERRACE__V1__STATUS__OK);
	compact.disk = 1;
	ck_assert_int_eq(ask("Admin.Compact", &compact, &reply), STATUS_NOT_FOUND);
	compact.disk = 0;
	ck_assert_int_eq(ask_on("Admin.Compact", &compact, 10000000, &reply), STATUS_OK);
	ck_assert_uint_gt(((const Terrace__V1__CompactReply *)reply)->slabs, 0);
	ck_assert_uint_ge(((const Terrace__V1__CompactReply *)reply)->freed_bytes, 1 << 19);
	ck_assert(!((const Terrace__V1__CompactReply *)reply)->more);
}
END_TEST

static _Atomic bool writes_hang;

static int hang(void *arg, const struct ring_request *q, uint32_t *most)
{
	(void)arg;
	(void)most;
	while (writes_hang && q->op == RING_WRITE)
		usleep(1000);
	return 0;
}

/* Beside a disk that hangs; but a client that does not know of that takes it for the whole. */
START_TEST(a_delete_is_answered_in_part)
{
	static const struct ring_calls calls = { .fault = hang };
	Terrace__V1__Keys k = keys_of((const uint8_t *)"k1k2k3", 6, 2);
	Terrace__V1__FlushRequest flush = TERRACE__V1__FLUSH_REQUEST__INIT;
	Terrace__V1__DeleteRequest delete = TERRACE__V1__DELETE_REQUEST__INIT;
	const Terrace__V1__DeleteReply *d;
	ProtobufCMessage *reply;

	shell_close(&s);
	shell_open_with(&s, &calls);
	s.daemon.cache->options.disk_slow_ms = 20;
	shell_store(&s, "k1");
	shell_store(&s, "k2");
	flush.session = delete.session = s.session.id;
	flush.keys = delete.keys = &k;
	ck_assert_int_eq(ask_on("Cache.Flush", &flush, 10000000, &reply), STATUS_OK);
	writes_hang = true;
	ck_assert_int_eq(ask_on("Cache.Delete", &delete, 200000, &reply), STATUS_DEADLINE);
	delete.in_part = true;
	for (uint64_t us = 200000; ask_on("Cache.Delete", &delete, us, &reply) != STATUS_OK; us *= 2)
		ck_assert_uint_lt(us, 20000000); /* a busy machine commits late */
	d = (const Terrace__V1__DeleteReply *)reply;
	ck_assert_uint_eq(d->n_status, 3);
	ck_assert_int_eq(d->status[0], TERRACE__V1__STATUS__DEADLINE);
	ck_assert_int_eq(d->status[1], TERRACE__V1__STATUS__DEADLINE);
	ck_assert_int_eq(d->status[2], TERRACE__V1__STATUS__MISS);
	writes_hang = false;
	ck_assert_int_eq(ask_on("Cache.Delete", &delete, 10000000, &reply), STATUS_OK);
	ck_assert_int_eq(((const Terrace__V1__DeleteReply *)reply)->status[0], TERRACE__V1__STATUS__MISS);
}
END_TEST

/* While it goes on there, another call is answered. */
START_TEST(a_long_delete_is_for_a_worker)
{
	enum { KEYS = 4096 };
	static uint8_t bytes[2 * KEYS] = "k1";
	Terrace__V1__Keys k = keys_of(bytes, sizeof bytes, 2), one = keys_of(bytes, 2, 2);
	Terrace__V1__DeleteRequest delete = TERRACE__V1__DELETE_REQUEST__INIT;
	Terrace__V1__LookupRequest lookup = TERRACE__V1__LOOKUP_REQUEST__INIT;
	const struct rpc_method *m = method("Cache.Delete");
	struct rpc_call other = { 0 };
	ProtobufCMessage *reply = NULL;

	shell_store(&s, "k1");
	delete.session = lookup.session = s.session.id;
	delete.keys = &k;
	lookup.keys = &one;
	rpc_call_init(&call, &s.daemon, m, daemon_now_us(), daemon_now_us() + 10000000);
	ck_assert_int_eq(m->unary(&call, &delete.base, &reply), STATUS_BUSY);
	ck_assert_uint_eq(call.resume_us, 0); /* at once, on a worker */
	rpc_call_init(&other, &s.daemon, method("Cache.Lookup"), daemon_now_us(), daemon_now_us() + 10000000);
	ck_assert_int_eq(method("Cache.Lookup")->unary(&other, &lookup.base, &reply), STATUS_OK);
	ck_assert_uint_eq(((const Terrace__V1__LookupReply *)reply)->prefix, 1);
	rpc_call_fini(&other);
	call.worker = true;
	while (m->unary(&call, &delete.base, &reply) == STATUS_BUSY)
		tick_and_chores();
	ck_assert_int_eq(((const Terrace__V1__DeleteReply *)reply)->status[0], TERRACE__V1__STATUS__OK);
	rpc_wait_end(&call);
	rpc_call_fini(&call);
	shell_store(&s, "k1");
	delete.keys = &one; /* few are deleted in the first step */
	rpc_call_init(&call, &s.daemon, m, daemon_now_us(), daemon_now_us() + 10000000);
	ck_assert_int_eq(m->unary(&call, &delete.base, &reply), STATUS_OK);
}
END_TEST

/* A call that looks again and again takes no more memory than one that looks once; what it has found out stays. */
START_TEST(many_steps_take_no_memory)
{
	enum { KEYS = 4096, STEPS = 200 };
	static const struct ring_calls calls = { .fault = hang };
	static uint8_t bytes[2 * KEYS] = "k1";
	Terrace__V1__Keys k = keys_of(bytes, sizeof bytes, 2);
	Terrace__V1__FlushRequest flush = TERRACE__V1__FLUSH_REQUEST__INIT;
	Terrace__V1__DeleteRequest delete = TERRACE__V1__DELETE_REQUEST__INIT;
	const struct {
		const char *name;
		const void *message;
	} all[] = { { "Cache.Flush", &flush }, { "Cache.Delete", &delete } };
	ProtobufCMessage *reply = NULL;

	shell_close(&s);
	shell_open_with(&s, &calls);
	s.daemon.cache->options.disk_slow_ms = 20;
	shell_store(&s, "k1");
	flush.session = delete.session = s.session.id;
	flush.keys = delete.keys = &k;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		const struct rpc_method *m = method(all[i].name);
		enum status status = STATUS_BUSY;

		writes_hang = true;
		rpc_call_fini(&call);
		rpc_call_init(&call, &s.daemon, m, daemon_now_us(), daemon_now_us() + 60000000);
		call.worker = true;
		for (int step = 0; step < STEPS; step++) {
			ck_assert_msg(m->unary(&call, all[i].message, &reply) == STATUS_BUSY, "%s: %s", all[i].name, call.why);
			ck_assert_uint_le(call.arena.total, 1 << 20);
		}
		writes_hang = false;
		for (; status == STATUS_BUSY; usleep(1000)) {
			tick_and_chores();
			status = m->unary(&call, all[i].message, &reply);
		}
		rpc_wait_end(&call);
		ck_assert_msg(status == STATUS_OK, "%s: %s", all[i].name, call.why);
	}
	const Terrace__V1__DeleteReply *d = (const Terrace__V1__DeleteReply *)reply;

	ck_assert_uint_eq(d->n_status, KEYS);
	ck_assert_int_eq(d->status[0], TERRACE__V1__STATUS__OK);
	ck_assert_int_eq(d->status[1], TERRACE__V1__STATUS__MISS);
}
END_TEST

/* Requests that unpack to far more than their bytes are refused, not served with memory. */
START_TEST(inflated_request)
{
	size_t n = 4 << 20;
	uint8_t *bytes = malloc(n);
	ProtobufCMessage *reply;

	for (size_t i = 0; i < n; i += 2) {
		bytes[i] = 2 << 3 | 2; /* OpenSession: an empty layout in two bytes */
		bytes[i + 1] = 0;
	}
	rpc_call_init(&call, &s.daemon, method("Cache.OpenSession"), 0, 0);
	ck_assert_int_ne(call_handle(&call, bytes, n, &reply), STATUS_OK);
	ck_assert_uint_le(call.arena.total, RPC_ARENA_MAX);
	free(bytes);
}
END_TEST

START_TEST(random_requests)
{
	uint8_t bytes[256];
	ProtobufCMessage *reply;

	srand48(_i);
	for (uint32_t m = 0; m < rpc_methods_count; m++) {
		if (!rpc_methods[m].unary)
			continue;
		for (int round = 0; round < 500; round++) {
			size_t n = (size_t)lrand48() % sizeof bytes;

			for (size_t i = 0; i < n; i++)
				bytes[i] = lrand48() % 3 ? (uint8_t)(lrand48() % 40) : (uint8_t)lrand48();
			rpc_call_init(&call, &s.daemon, &rpc_methods[m], daemon_now_us(), daemon_now_us() + 1000000);
			enum status status = call_handle(&call, bytes, n, &reply);

			ck_assert_uint_lt(status, STATUS_COUNT);
			ck_assert(status == STATUS_OK || status == STATUS_BUSY || call.why[0]);
			rpc_call_fini(&call);
		}
	}
}
END_TEST

START_TEST(every_status_has_a_grpc_status)
{
	for (int i = 0; i < STATUS_COUNT; i++)
		ck_assert_int_eq(rpc_grpc_status((enum status)i) == 0, i == STATUS_OK);
	ck_assert_int_eq(rpc_grpc_status(STATUS_INVALID), 3);
	ck_assert_int_eq(rpc_grpc_status(STATUS_EXHAUSTED), 8);
	ck_assert_int_eq(rpc_grpc_status((enum status)999), 13);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc_handlers");
	TCase *t = tcase_create("rpc_handlers");
	SRunner *r;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, bad_keys_everywhere, 0, sizeof bad_keys / sizeof bad_keys[0]);
	tcase_add_test(t, open_session);
	tcase_add_test(t, lookup_lease_release_delete);
	tcase_add_test(t, reserve_commit_abort);
	tcase_add_test(t, on_a_gpu);
	tcase_add_test(t, admin_and_health);
	tcase_add_test(t, verify_keeps_its_rate);
	tcase_add_test(t, verify_ends_in_its_time);
	tcase_add_test(t, verify_in_pieces);
	tcase_add_test(t, no_disks);
	tcase_add_test(t, warm_flush_delete_compact_on_a_disk);
	tcase_add_test(t, a_delete_is_answered_in_part);
	tcase_add_test(t, a_long_delete_is_for_a_worker);
	tcase_add_test(t, many_steps_take_no_memory);
	tcase_add_test(t, inflated_request);
	tcase_add_loop_test(t, random_requests, 0, 3);
	tcase_add_test(t, every_status_has_a_grpc_status);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
