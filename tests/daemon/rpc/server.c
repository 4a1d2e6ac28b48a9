/* The server over a real Unix socket, with a gRPC client in the same process: round trips, streams, bounds,
 * cancellation, stopping. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/memory/grow.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/part.h"
#include "daemon/rpc/server.h"
#include "daemon/session/attachment.h"
#include "daemon/threads/pool.h"
#include "kernels/format.h"
#include "proto/layout_message.h"
#include "store/arena/arena.h"
#include "store/status.h"
#include "tests/shell.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

/* What ends a wait for something that does not come, and the deadline of calls that are not about theirs. */
enum { NET_S = 60 };

static struct shell s;
static struct rpc_server *server;
static grpc_channel *channel;
static grpc_completion_queue *queue;
static char address[CONFIG_TEXT_MAX + 8];

static uint64_t busy_poll_ms;
static char said[128]; /* by the last status */

static void dial_up(void)
{
	grpc_channel_credentials *open = grpc_insecure_credentials_create();
	grpc_arg name = { .type = GRPC_ARG_STRING, .key = (char *)GRPC_ARG_PRIMARY_USER_AGENT_STRING,
			  .value.string = (char *)"test" };

	channel = grpc_channel_create(address, open, &(grpc_channel_args){ 1, &name });
	grpc_channel_credentials_release(open);
	queue = grpc_completion_queue_create_for_next(NULL);
}

static void start(uint64_t calls_max, uint64_t call_deadline_ms)
{
	char why[256] = "";

	shell_open(&s);
	s.config.calls_max = calls_max;
	s.config.call_deadline_max_ms = call_deadline_ms;
	s.config.busy_poll_ms = busy_poll_ms;
	ck_assert_int_eq(workers_create(2, 16, &s.daemon.workers), STATUS_OK);
	ck_assert_msg(rpc_server_create(&s.daemon, why, sizeof why) == STATUS_OK, "%s", why);
	server = s.daemon.rpc;
	snprintf(address, sizeof address, "unix:%s", s.config.socket);
	dial_up();
}

static void stop(void)
{
	grpc_channel_destroy(channel);
	rpc_part.calls_stop(server, 2000000);
	ck_assert(rpc_part.calls_wait(server, NET_S * 1000000ull));
	rpc_part.destroy(server);
	grpc_completion_queue_shutdown(queue);
	while (grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type != GRPC_QUEUE_SHUTDOWN)
		;
	grpc_completion_queue_destroy(queue);
	workers_destroy(s.daemon.workers);
	shell_close(&s);
}

struct client {
	grpc_call *call;
	grpc_metadata_array head, tail;
	grpc_byte_buffer *reply;
	grpc_status_code status;
	grpc_slice details;
	bool head_asked;
};

static grpc_byte_buffer *buffer(const void *bytes, size_t n)
{
	grpc_slice slice = grpc_slice_from_copied_buffer(bytes, n);
	grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&slice, 1);

	grpc_slice_unref(slice);
	return b;
}

static void dial(struct client *c, const char *path, double seconds)
{
	gpr_timespec until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
					  gpr_time_from_millis((int64_t)(seconds * 1000), GPR_TIMESPAN));
	grpc_slice method = grpc_slice_from_copied_string(path);

	memset(c, 0, sizeof *c);
	c->call = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue, method, NULL,
					   seconds ? until : gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
	grpc_slice_unref(method);
}

static void batch(struct client *c, grpc_op *ops, size_t n)
{
	ck_assert_int_eq(grpc_call_start_batch(c->call, ops, n, c, NULL), GRPC_CALL_OK);
}

static void *next_tag(void)
{
	grpc_event e = grpc_completion_queue_next(
		queue, gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(NET_S, GPR_TIMESPAN)), NULL);

	ck_assert_int_eq(e.type, GRPC_OP_COMPLETE);
	return e.tag;
}

static void expect(struct client *c)
{
	ck_assert_ptr_eq(next_tag(), c);
}

/* Begins a call: sends metadata and, if message is not NULL, one message; then, unless `more`, closes its
 * side. */
static void begin(struct client *c, const ProtobufCMessage *message, bool more)
{
	grpc_op ops[3] = { { .op = GRPC_OP_SEND_INITIAL_METADATA } };
	grpc_byte_buffer *b = NULL;
	size_t n = 1;

	if (message) {
		size_t size = protobuf_c_message_get_packed_size(message);
		uint8_t *bytes = malloc(size + 1);

		protobuf_c_message_pack(message, bytes);
		b = buffer(bytes, size);
		free(bytes);
		ops[n].op = GRPC_OP_SEND_MESSAGE;
		ops[n++].data.send_message.send_message = b;
	}
	if (!more)
		ops[n++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
	batch(c, ops, n);
	expect(c);
	if (b)
		grpc_byte_buffer_destroy(b);
}

static bool hear(struct client *c)
{
	grpc_op ops[2] = { 0 };
	size_t n = 0;

	if (c->reply)
		grpc_byte_buffer_destroy(c->reply);
	c->reply = NULL;
	if (!c->head_asked) {
		c->head_asked = true;
		ops[n].op = GRPC_OP_RECV_INITIAL_METADATA;
		ops[n++].data.recv_initial_metadata.recv_initial_metadata = &c->head;
	}
	ops[n].op = GRPC_OP_RECV_MESSAGE;
	ops[n++].data.recv_message.recv_message = &c->reply;
	batch(c, ops, n);
	expect(c);
	return c->reply != NULL;
}

static grpc_status_code end(struct client *c)
{
	grpc_op op = { .op = GRPC_OP_RECV_STATUS_ON_CLIENT };

	grpc_metadata_array_init(&c->tail);
	op.data.recv_status_on_client.trailing_metadata = &c->tail;
	op.data.recv_status_on_client.status = &c->status;
	op.data.recv_status_on_client.status_details = &c->details;
	batch(c, &op, 1);
	expect(c);
	snprintf(said, sizeof said, "%.*s", (int)GRPC_SLICE_LENGTH(c->details), (const char *)GRPC_SLICE_START_PTR(c->details));
	grpc_slice_unref(c->details);
	grpc_metadata_array_destroy(&c->head);
	grpc_metadata_array_destroy(&c->tail);
	if (c->reply)
		grpc_byte_buffer_destroy(c->reply);
	grpc_call_unref(c->call);
	return c->status;
}

static uint8_t *flat(struct client *c, size_t *n)
{
	grpc_byte_buffer_reader r;
	static uint8_t bytes[2 << 20];

	grpc_byte_buffer_reader_init(&r, c->reply);
	grpc_slice all = grpc_byte_buffer_reader_readall(&r);

	*n = GRPC_SLICE_LENGTH(all);
	ck_assert_uint_le(*n, sizeof bytes);
	memcpy(bytes, GRPC_SLICE_START_PTR(all), *n);
	grpc_slice_unref(all);
	grpc_byte_buffer_reader_destroy(&r);
	return bytes;
}

/* One unary call; true if it was answered. */
static bool unary(const char *path, const ProtobufCMessage *message, grpc_status_code *status)
{
	struct client c;

	dial(&c, path, NET_S);
	begin(&c, message, false);
	bool answered = hear(&c);

	*status = end(&c);
	return answered;
}

static Terrace__V1__Keys one_key = { PROTOBUF_C_MESSAGE_INIT(&terrace__v1__keys__descriptor), 2, { 2, (uint8_t *)"k1" } };

static Terrace__V1__LookupRequest lookup_of(uint64_t session)
{
	Terrace__V1__LookupRequest q = TERRACE__V1__LOOKUP_REQUEST__INIT;

	q.session = session;
	q.keys = &one_key;
	return q;
}

START_TEST(round_trips)
{
	Terrace__V1__LookupRequest q;
	Terrace__V1__VerifyRequest verify = TERRACE__V1__VERIFY_REQUEST__INIT;
	grpc_status_code status;
	struct client c;
	size_t n;

	start(64, 60000);
	shell_store(&s, "k1");
	q = lookup_of(s.session.id);
	for (int i = 0; i < 300; i++) {
		dial(&c, "/terrace.v1.Cache/Lookup", NET_S);
		begin(&c, &q.base, false);
		ck_assert(hear(&c));
		uint8_t *bytes = flat(&c, &n);
		Terrace__V1__LookupReply *r = terrace__v1__lookup_reply__unpack(NULL, n, bytes);

		ck_assert_uint_eq(r->prefix, 1);
		ck_assert_uint_eq(r->epoch, cache_epoch(s.daemon.cache));
		terrace__v1__lookup_reply__free_unpacked(r, NULL);
		ck_assert_int_eq(end(&c), GRPC_STATUS_OK);
	}
	ck_assert(unary("/terrace.v1.Admin/Verify", &verify.base, &status)); /* through a worker */
	ck_assert_int_eq(status, GRPC_STATUS_OK);
	q.session++;
	ck_assert(!unary("/terrace.v1.Cache/Lookup", &q.base, &status));
	ck_assert_int_eq(status, GRPC_STATUS_NOT_FOUND);
	ck_assert(!unary("/terrace.v1.Cache/Nothing", &q.base, &status));
	ck_assert_int_eq(status, GRPC_STATUS_UNIMPLEMENTED);
	stop();
}
END_TEST

START_TEST(get_stream_is_the_block)
{
	Terrace__V1__GetRequest q = TERRACE__V1__GET_REQUEST__INIT;
	size_t n, got = 0, bytes;
	struct client c;

	start(64, 60000);
	shell_store(&s, "k1");
	bytes = s.session.block_bytes[1];
	q.session = s.session.id;
	q.keys = &one_key;
	q.layout = 1;
	q.chunk_bytes = 4096;
	dial(&c, "/terrace.v1.Cache/Get", NET_S);
	begin(&c, &q.base, false);
	while (hear(&c)) {
		uint8_t *raw = flat(&c, &n);
		Terrace__V1__GetChunk *k = terrace__v1__get_chunk__unpack(NULL, n, raw);

		ck_assert_ptr_nonnull(k);
		ck_assert((got == 0) == (k->header != NULL));
		if (k->header)
			ck_assert_uint_eq(k->header->block_bytes, bytes);
		for (size_t i = 0; i < k->data.len; i++)
			ck_assert_int_eq(k->data.data[i], 'k' + 1);
		got += k->data.len;
		terrace__v1__get_chunk__free_unpacked(k, NULL);
	}
	ck_assert_int_eq(end(&c), GRPC_STATUS_OK);
	ck_assert_uint_eq(got, bytes);
	stop();
}
END_TEST

/* A client that goes away in the middle of a block leaves nothing reserved. */
static void half_put(struct client *c, double seconds)
{
	Terrace__V1__PutHeader h = TERRACE__V1__PUT_HEADER__INIT;
	Terrace__V1__PutChunk k = TERRACE__V1__PUT_CHUNK__INIT;

	h.session = s.session.id;
	h.key = (ProtobufCBinaryData){ 2, (uint8_t *)"k9" };
	k.header = &h;
	k.data = (ProtobufCBinaryData){ 2, (uint8_t *)"k9" };
	dial(c, "/terrace.v1.Cache/Put", seconds);
	begin(c, &k.base, true);
}

static void reservations_become(uint64_t n)
{
	const uint64_t until = daemon_now_us() + NET_S * 1000000ull;
	struct cache_load load;

	do {
		cache_load(s.daemon.cache, &load);
		if (load.reservations == n)
			return;
		usleep(5000);
	} while (daemon_now_us() < until);
	ck_abort_msg("%llu reservations", (unsigned long long)load.reservations);
}

static double calls_of(const char *labels)
{
	struct shell_stat w = { .name = "terrace_rpc_calls_total", .labels = labels };

	rpc_part.stats(server, shell_find_stat, &w);
	return w.value;
}

/* Nor is it taken for one that made a mistake, as the end of its stream may be seen first. */
START_TEST(cancelled_put_frees_its_slot)
{
	enum { PUTS = 20 };
	struct client c;

	start(64, 60000);
	for (int i = 0; i < PUTS; i++) {
		half_put(&c, 3600);
		reservations_become(1);
		grpc_call_cancel(c.call, NULL);
		reservations_become(0);
		end(&c);
	}
	half_put(&c, 3600);
	grpc_op op = { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };

	batch(&c, &op, 1);
	expect(&c);
	ck_assert(!hear(&c));
	ck_assert_int_eq(end(&c), GRPC_STATUS_INVALID_ARGUMENT);
	while (calls_of("method=Cache.Put,status=CANCELLED") + calls_of("method=Cache.Put,status=INVALID") < PUTS + 1)
		usleep(1000);
	ck_assert(calls_of("method=Cache.Put,status=INVALID") == 1);
	stop();
}
END_TEST

/* Without a deadline, and long before one. Its reservation is seen before that. */
START_TEST(stalled_put_is_ended)
{
	struct client c;

	start(64, 3000);
	half_put(&c, _i ? 3600 : 0);
	reservations_become(1);
	ck_assert(!hear(&c));
	ck_assert_int_eq(end(&c), GRPC_STATUS_DEADLINE_EXCEEDED);
	ck_assert_msg(strstr(said, _i ? "has not moved" : "call_deadline_max") != NULL, "%s", said);
	reservations_become(0);
	stop();
}
END_TEST

static void find_calls(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	(void)labels;
	(void)counter;
	(void)help;
	if (!strcmp(name, "terrace_rpc_calls"))
		*(double *)arg = value;
}

/* True once the server has so many calls under way; false if it does not come to that by then. */
static bool calls_become(double n, uint64_t until_us)
{
	double calls = -1;

	for (;;) {
		rpc_part.stats(server, find_calls, &calls);
		if (calls == n || daemon_now_us() >= until_us)
			return calls == n;
		usleep(1000);
	}
}

START_TEST(streams_are_bounded)
{
	const Terrace__V1__StatsRequest none = TERRACE__V1__STATS_REQUEST__INIT;
	struct client c[9];
	grpc_status_code status;
	Terrace__V1__LookupRequest q;

	start(16, 60000);
	for (int i = 0; i < 6; i++)
		half_put(&c[i], 3600);
	reservations_become(1); /* the same key: the others are told BUSY */
	ck_assert(calls_become(6, daemon_now_us() + NET_S * 1000000ull));
	half_put(&c[6], 3600); /* of 8 a process has 6 */
	ck_assert(!hear(&c[6]));
	ck_assert_int_eq(end(&c[6]), GRPC_STATUS_RESOURCE_EXHAUSTED);
	q = lookup_of(s.session.id);
	ck_assert(unary("/terrace.v1.Cache/Lookup", &q.base, &status)); /* calls still pass */
	for (int i = 0; i < 6; i++) {
		grpc_call_cancel(c[i].call, NULL);
		end(&c[i]);
	}
	reservations_become(0);
	ck_assert(calls_become(0, daemon_now_us() + NET_S * 1000000ull));
	for (int i = 0; i < 3; i++) { /* those that last leave room for others: of 4 a process has 2 */
		dial(&c[i], "/grpc.health.v1.Health/Watch", NET_S);
		begin(&c[i], &none.base, false);
		ck_assert_int_eq(hear(&c[i]), i < 2);
	}
	ck_assert_int_eq(end(&c[2]), GRPC_STATUS_RESOURCE_EXHAUSTED);
	for (int i = 0; i < 2; i++) {
		grpc_call_cancel(c[i].call, NULL);
		end(&c[i]);
	}
	stop();
}
END_TEST

static uint64_t attach(void)
{
	uint64_t attachment, session;
	const char *why = "";

	ck_assert_int_eq(cache_attach(s.daemon.cache, s.session.token, getpid(), daemon_now_us(), &attachment,
				      &session, &why),
			 STATUS_OK);
	return attachment;
}

static void load_becomes(uint64_t sessions, uint64_t leases, uint64_t reservations)
{
	const uint64_t until = daemon_now_us() + NET_S * 1000000ull;
	struct cache_load load;

	do {
		cache_load(s.daemon.cache, &load);
		if (load.sessions == sessions && load.leases == leases && load.reservations == reservations)
			return;
		usleep(5000);
	} while (daemon_now_us() < until);
	ck_abort_msg("%llu sessions, %llu leases, %llu reservations", (unsigned long long)load.sessions,
		     (unsigned long long)load.leases, (unsigned long long)load.reservations);
}

/* The handler is kept waiting until its client has given up; once more, if the call did not come to it before that. */
static void give_up_in_the_middle(const char *path, const ProtobufCMessage *q)
{
	enum { CALL_US = 300000 };
	const uint64_t until = daemon_now_us() + NET_S * 1000000ull;
	bool begun = false;

	while (!begun && daemon_now_us() < until) {
		struct client c;

		ck_assert(calls_become(0, until));
		cache_lock(s.daemon.cache);
		dial(&c, path, CALL_US / 1e6);
		begin(&c, q, false);
		begun = calls_become(1, daemon_now_us() + CALL_US);
		ck_assert_int_eq(end(&c), GRPC_STATUS_DEADLINE_EXCEEDED);
		usleep(CALL_US + 50000); /* the daemon's clock for the call began later, but before that */
		cache_unlock(s.daemon.cache);
	}
	ck_assert(begun);
}

START_TEST(what_a_late_reply_grants_is_undone)
{
	Terrace__V1__LeaseRequest lease = TERRACE__V1__LEASE_REQUEST__INIT;
	Terrace__V1__ReserveRequest reserve = TERRACE__V1__RESERVE_REQUEST__INIT;
	Terrace__V1__OpenSessionRequest open = TERRACE__V1__OPEN_SESSION_REQUEST__INIT;
	Terrace__V1__Layout layout, *layouts = &layout;
	Terrace__V1__Keys other = one_key;
	struct kv_layout l = shell_layout(1);
	grpc_status_code status;

	start(64, 60000);
	shell_store(&s, "k1");
	other.keys.data = (uint8_t *)"k2";
	lease.session = reserve.session = s.session.id;
	lease.attachment = reserve.attachment = attach();
	lease.keys = &one_key;
	reserve.keys = &other;
	layout_message_write(&l, &layout);
	open.layouts = &layouts;
	open.n_layouts = 1;
	give_up_in_the_middle("/terrace.v1.Cache/Lease", &lease.base);
	load_becomes(1, 0, 0);
	give_up_in_the_middle("/terrace.v1.Cache/Reserve", &reserve.base);
	load_becomes(1, 0, 0);
	give_up_in_the_middle("/terrace.v1.Cache/OpenSession", &open.base);
	load_becomes(1, 0, 0);
	/* One that arrives is kept. */
	ck_assert(unary("/terrace.v1.Cache/Lease", &lease.base, &status));
	ck_assert(unary("/terrace.v1.Cache/Reserve", &reserve.base, &status));
	usleep(100000);
	load_becomes(1, 1, 1);
	stop();
}
END_TEST

/* The commit stands, its lease does not. */
START_TEST(a_cancelled_commit_keeps_no_lease)
{
	Terrace__V1__CommitRequest q = TERRACE__V1__COMMIT_REQUEST__INIT;
	Terrace__V1__CommitItem item = TERRACE__V1__COMMIT_ITEM__INIT, *items = &item;
	struct cache_keys key = { (const uint8_t *)"k7", 1, 2 };
	Terrace__V1__LookupRequest other = TERRACE__V1__LOOKUP_REQUEST__INIT;
	const uint64_t until = daemon_now_us() + NET_S * 1000000ull;
	struct cache_place places[2];
	struct workers_view view;
	grpc_status_code code;
	enum status status;
	const char *why = "";
	struct client c;
	uint32_t prefix;

	start(64, 60000);
	q.session = s.session.id;
	q.attachment = attach();
	q.lease = true;
	q.items = &items;
	q.n_items = 1;
	ck_assert_int_eq(cache_reserve(s.daemon.cache, &(struct cache_reserve_call){ .session = s.session.id,
			.keys = &key, .on = &(struct cache_on){ .attachment = q.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = daemon_now_us(), .statuses = &status,
			.reservations = &item.reservation, .places = places, .places_max = 2 }, &why),
			 STATUS_OK);
	ck_assert_int_eq(status, STATUS_OK);
	cache_lock(s.daemon.cache);
	dial(&c, "/terrace.v1.Cache/Commit", NET_S);
	begin(&c, &q.base, false);
	do { /* until a worker has it */
		usleep(1000);
		workers_look(s.daemon.workers, &view);
	} while (!view.running && daemon_now_us() < until);
	ck_assert_uint_eq(view.running, 1);
	grpc_call_cancel(c.call, NULL);
	ck_assert_int_eq(end(&c), GRPC_STATUS_CANCELLED);
	for (int i = 0; i < 3; i++) { /* what comes after the cancel on the same connection is answered: it has been heard */
		ck_assert(!unary("/terrace.v1.Cache/Nothing", &other.base, &code));
		ck_assert_int_eq(code, GRPC_STATUS_UNIMPLEMENTED);
	}
	usleep(50000);
	cache_unlock(s.daemon.cache);
	load_becomes(1, 0, 0);
	ck_assert_int_eq(cache_lookup(s.daemon.cache, s.session.id, &key, &prefix, NULL, 0, &why), STATUS_OK);
	ck_assert_uint_eq(prefix, 1);
	stop();
}
END_TEST

/* All memory that there is, as slots of one class that nobody uses. */
static struct arena_slot memory_take(struct cache *c)
{
	struct arena_slot slot;
	struct arena_class *k;
	uint32_t taken;

	ck_assert_int_eq(arena_class_for(c->host, c->tenants[0].number, arena_granule_bytes(c->host), &k), STATUS_OK);
	do {
		taken = 0;
		for (; arena_take(k, true, &slot, NULL) == STATUS_OK; taken++)
			atomic_store(&slot.span->held, 1);
		room_preallocate(c);
	} while (taken);
	return slot;
}

/* Taking pages lasts: not on the thread that everybody waits for. */
START_TEST(only_growth_goes_to_a_worker)
{
	struct arena_slot slot;
	Terrace__V1__ReserveRequest q = TERRACE__V1__RESERVE_REQUEST__INIT;
	Terrace__V1__Keys other = one_key;
	const uint64_t until = daemon_now_us() + NET_S * 1000000ull;
	struct workers_view before, after;
	grpc_status_code status;

	start(64, 60000);
	q.session = s.session.id;
	q.attachment = attach();
	q.keys = &other;
	slot = memory_take(s.daemon.cache);
	workers_look(s.daemon.workers, &before);
	ck_assert(unary("/terrace.v1.Cache/Reserve", &q.base, &status));
	do { /* the reply may come first */
		usleep(1000);
		workers_look(s.daemon.workers, &after);
	} while (after.done == before.done && daemon_now_us() < until);
	ck_assert_uint_eq(after.done, before.done + 1);
	arena_give(&slot, NULL); /* of a granule, which is larger than the block */
	other.keys.data = (uint8_t *)"k2";
	ck_assert(unary("/terrace.v1.Cache/Reserve", &q.base, &status));
	usleep(50000);
	workers_look(s.daemon.workers, &before);
	ck_assert_uint_eq(after.done, before.done);
	load_becomes(1, 0, 1);
	stop();
}
END_TEST

START_TEST(watch_and_stop)
{
	Terrace__V1__WatchRequest q = TERRACE__V1__WATCH_REQUEST__INIT;
	struct client c;
	size_t n;

	start(64, 200);
	q.session = s.session.id;
	q.from_now = true;
	dial(&c, "/terrace.v1.Cache/Watch", 0);
	begin(&c, &q.base, false);
	grpc_op op = { .op = GRPC_OP_RECV_INITIAL_METADATA };

	op.data.recv_initial_metadata.recv_initial_metadata = &c.head;
	c.head_asked = true;
	batch(&c, &op, 1);
	expect(&c); /* comes before any event: the watch is on */
	usleep(500000); /* a watch outlives the bound of other calls */
	for (int i = 0; i < 20; i++) {
		char key[8];

		snprintf(key, sizeof key, "w%d", i);
		shell_store(&s, key);
	}
	for (uint64_t i = 0; i < 40; i++) {
		ck_assert(hear(&c));
		uint8_t *bytes = flat(&c, &n);
		Terrace__V1__WatchEvent *e = terrace__v1__watch_event__unpack(NULL, n, bytes);

		ck_assert_uint_eq(e->sequence, i + 1);
		ck_assert_int_eq(e->kind, TERRACE__V1__WATCH_KIND__WATCH_STORED);
		ck_assert_str_eq(e->tier, "host");
		terrace__v1__watch_event__free_unpacked(e, NULL);
	}
	uint64_t began = daemon_now_us();

	rpc_part.calls_stop(server, 100000000);
	ck_assert(!hear(&c));
	ck_assert_int_eq(end(&c), GRPC_STATUS_UNAVAILABLE);
	ck_assert_uint_lt(daemon_now_us() - began, 50000000); /* told, not cancelled at the end of the grace */
	stop();
}
END_TEST

/* A process that has made a call over `link`'s address, and then makes no other until the link is closed. */
static void idle_client(int link)
{
	Terrace__V1__LookupRequest q = lookup_of(0);
	grpc_status_code status;

	if (read(link, address, sizeof address - 1) <= 0)
		_exit(1);
	setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "0", 1); /* else every 5 s */
	grpc_init();
	dial_up();
	unary("/terrace.v1.Cache/Lookup", &q.base, &status);
	_exit(status != GRPC_STATUS_NOT_FOUND || write(link, "", 1) != 1 || read(link, address, 1) != 0);
}

/* It does not look at its connection, and so does not hang up. In this process the server's thread would look for it. */
START_TEST(an_idle_client_holds_nothing_up)
{
	int link[2], ended;
	char byte;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, link), 0);
	const pid_t client = fork();

	ck_assert_int_ge(client, 0);
	close(link[!!client]);
	if (!client)
		idle_client(link[1]);
	start(64, 60000);
	ck_assert_int_gt(write(link[0], address, strlen(address)), 0);
	ck_assert_int_eq(read(link[0], &byte, 1), 1);
	rpc_part.calls_stop(server, 3600000000);
	ck_assert(rpc_part.calls_wait(server, 10000000)); /* gRPC itself gives it 20 s */
	close(link[0]);
	ck_assert_int_eq(waitpid(client, &ended, 0), client);
	ck_assert_int_eq(ended, 0);
	stop();
}
END_TEST

START_TEST(second_server_is_told)
{
	struct config config;
	struct daemon d;
	char why[256] = "";

	start(16, 60000);
	config = s.config;
	d = s.daemon;
	d.config = &config;
	strcpy(config.socket, "/proc/nowhere/t.sock");
	ck_assert_int_eq(rpc_server_create(&d, why, sizeof why), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(why, "cannot make the folder /proc/nowhere: "));
	stop();
}
END_TEST

/* Milliseconds of CPU that this process takes in so many of the clock's. */
static double cpu_ms_in(long ms)
{
	const struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };
	struct timespec before, after;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	nanosleep(&pause, NULL);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	return (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) * 1e-6;
}

/* On a busy machine others may run all the time that it would poll, or all that it would sleep: again. */
START_TEST(polls_after_an_event_and_then_sleeps)
{
	Terrace__V1__LookupRequest q;
	grpc_status_code status;
	int tries = 0;

	busy_poll_ms = 600;
	start(64, 60000);
	shell_store(&s, "k1");
	q = lookup_of(s.session.id);
	do {
		ck_assert_int_lt(tries++, 50);
		ck_assert(unary("/terrace.v1.Cache/Lookup", &q.base, &status));
	} while (cpu_ms_in(400) < 20);
	while (cpu_ms_in(400) > 100)
		ck_assert_int_lt(tries++, 50);
	stop();
}
END_TEST

START_TEST(many_calls_at_once)
{
	enum { CALLS = 200 };
	static struct client c[CALLS];
	Terrace__V1__LookupRequest q;
	int ok = 0;

	start(16, 60000);
	q = lookup_of(s.session.id);
	size_t size = protobuf_c_message_get_packed_size(&q.base);
	uint8_t bytes[128];

	protobuf_c_message_pack(&q.base, bytes);
	for (int i = 0; i < CALLS; i++) {
		dial(&c[i], "/terrace.v1.Cache/Lookup", NET_S);
		grpc_byte_buffer *b = buffer(bytes, size);
		grpc_op ops[6] = { { .op = GRPC_OP_SEND_INITIAL_METADATA }, { .op = GRPC_OP_SEND_MESSAGE },
				   { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT }, { .op = GRPC_OP_RECV_INITIAL_METADATA },
				   { .op = GRPC_OP_RECV_MESSAGE }, { .op = GRPC_OP_RECV_STATUS_ON_CLIENT } };

		ops[1].data.send_message.send_message = b;
		ops[3].data.recv_initial_metadata.recv_initial_metadata = &c[i].head;
		ops[4].data.recv_message.recv_message = &c[i].reply;
		ops[5].data.recv_status_on_client.trailing_metadata = &c[i].tail;
		ops[5].data.recv_status_on_client.status = &c[i].status;
		ops[5].data.recv_status_on_client.status_details = &c[i].details;
		batch(&c[i], ops, 6);
		grpc_byte_buffer_destroy(b);
	}
	for (int i = 0; i < CALLS; i++)
		next_tag();
	for (int i = 0; i < CALLS; i++) {
		ck_assert_msg(c[i].status == GRPC_STATUS_OK || c[i].status == GRPC_STATUS_RESOURCE_EXHAUSTED, "%d", c[i].status);
		ok += c[i].status == GRPC_STATUS_OK;
		if (c[i].reply)
			grpc_byte_buffer_destroy(c[i].reply);
		grpc_slice_unref(c[i].details);
		grpc_metadata_array_destroy(&c[i].head);
		grpc_metadata_array_destroy(&c[i].tail);
		grpc_call_unref(c[i].call);
	}
	ck_assert_int_gt(ok, 0);
	stop();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc_server");
	TCase *t = tcase_create("rpc_server");
	SRunner *r;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, round_trips);
	tcase_add_test(t, get_stream_is_the_block);
	tcase_add_test(t, cancelled_put_frees_its_slot);
	tcase_add_loop_test(t, stalled_put_is_ended, 0, 2);
	tcase_add_test(t, streams_are_bounded);
	tcase_add_test(t, what_a_late_reply_grants_is_undone);
	tcase_add_test(t, a_cancelled_commit_keeps_no_lease);
	tcase_add_test(t, only_growth_goes_to_a_worker);
	tcase_add_test(t, watch_and_stop);
	tcase_add_test(t, an_idle_client_holds_nothing_up);
	tcase_add_test(t, second_server_is_told);
	tcase_add_test(t, polls_after_an_event_and_then_sleeps);
	tcase_add_test(t, many_calls_at_once);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
