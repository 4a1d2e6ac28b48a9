/* Near calls against a real cache, with a GPU that is none: round trips, what packets may say, bounds, callers that go away in the middle,
 * and the stop. */
#include "daemon/near.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "daemon/cache_private.h" /* to hold its lock */
#include "daemon/door.h"
#include "daemon/near_call.h"
#include "daemon/workers.h"
#include "tests/shell.h"
#include "tests/sim_device.h"

enum { NET_S = 60, CONNECTIONS = 8 }; /* NET_S: ends a wait for what does not come */

static struct shell s;
static struct door *door;
static char hold[64];
static uint8_t packet[2 * FDSOCK_CALL_BYTES_MAX];

static void setup(void)
{
	char why[256] = "";

	snprintf(hold, sizeof hold, "/tmp/terrace-near-%d", getpid());
	setenv("SIM_GPU_DEVICES", "1", 1);
	setenv("SIM_GPU_HOLD_FILE", hold, 1);
	strcat(hold, ".0");
	shell_open_all(&s, NULL, terrace_device_ops());
	s.config.connections_max = 2 * CONNECTIONS; /* one process has half */
	ck_assert_int_eq(workers_create(2, 16, &s.daemon.workers), STATUS_OK);
	ck_assert_msg(near_create(&s.daemon, &s.daemon.near, why, sizeof why) == STATUS_OK, "%s", why);
	ck_assert_msg(door_create(&s.daemon, s.config.fd_socket, 0600, 2 * CONNECTIONS, &door, why, sizeof why) == STATUS_OK, "%s", why);
}

static void teardown(void)
{
	unlink(hold);
	near_stop(s.daemon.near, NET_S * 1000000ull);
	ck_assert(near_wait(s.daemon.near, NET_S * 1000000ull));
	door_destroy(door);
	ck_assert(workers_stop(s.daemon.workers, NET_S * 1000000ull));
	near_destroy(s.daemon.near);
	workers_destroy(s.daemon.workers);
	shell_close(&s);
}

/* ---- a caller ---- */

static int dial(void)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), bytes = 2 * FDSOCK_CALL_BYTES_MAX;

	strcpy(to.sun_path, s.config.fd_socket);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	return fd;
}

/* 0: the other end has hung up. */
static ssize_t hear(int fd, void *into, size_t size)
{
	struct pollfd p = { fd, POLLIN, 0 };

	ck_assert_int_eq(poll(&p, 1, NET_S * 1000), 1);
	ssize_t n = recv(fd, into, size, 0);

	return n < 0 && errno == ECONNRESET ? 0 : n;
}

static struct fdsock_head head_of(enum fdsock_type type)
{
	return (struct fdsock_head){ FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)type };
}

static int greet_with(enum fdsock_type type, const uint8_t token[16], struct fdsock_welcome *w)
{
	struct fdsock_hello h = { .head = head_of(type) };
	int fd = dial();

	memcpy(h.token, token, sizeof h.token);
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(hear(fd, w, sizeof *w), sizeof *w);
	return fd;
}

static int caller(void)
{
	struct fdsock_welcome w;
	int fd = greet_with(FDSOCK_CALLER, s.session.token, &w);

	ck_assert_uint_eq(w.status, STATUS_OK);
	ck_assert_uint_eq(w.session, s.session.id);
	ck_assert_uint_eq(w.epoch, cache_epoch(s.daemon.cache));
	ck_assert_uint_eq(w.attachment, 0);
	return fd;
}

/* Sends a call that has so many microseconds. */
static void say(int fd, enum fdsock_method method, const void *request, uint64_t left_us)
{
	struct fdsock_call call = { .head = head_of(FDSOCK_CALL), .method = method, .left_us = left_us };
	size_t n = sizeof call + protobuf_c_message_get_packed_size(request);

	ck_assert_uint_le(n, sizeof packet);
	memcpy(packet, &call, sizeof call);
	protobuf_c_message_pack(request, packet + sizeof call);
	ck_assert_int_eq(send(fd, packet, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* The status of the reply, and the message if it is asked for: to be freed. */
static uint32_t answer(int fd, const ProtobufCMessageDescriptor *type, void *message)
{
	ssize_t n = hear(fd, packet, sizeof packet);
	struct fdsock_reply r;

	ck_assert_int_ge(n, (ssize_t)sizeof r);
	memcpy(&r, packet, sizeof r);
	ck_assert_uint_eq(r.head.magic, FDSOCK_MAGIC);
	ck_assert_int_eq(r.head.type, FDSOCK_REPLY);
	ck_assert(r.status == STATUS_OK || r.status == FDSOCK_BY_GRPC || n > (ssize_t)sizeof r); /* why */
	if (r.status == STATUS_OK && type) {
		ProtobufCMessage *m = protobuf_c_message_unpack(type, NULL, (size_t)n - sizeof r, packet + sizeof r);

		ck_assert_ptr_nonnull(m);
		*(ProtobufCMessage **)message = m;
	}
	return r.status;
}

static void drop(void *message)
{
	protobuf_c_message_free_unpacked(message, NULL);
}

static Terrace__V1__Keys keys_of(const char *bytes, uint32_t key_bytes)
{
	Terrace__V1__Keys k = TERRACE__V1__KEYS__INIT;

	k.keys = (ProtobufCBinaryData){ strlen(bytes), (uint8_t *)(uintptr_t)bytes };
	k.key_bytes = key_bytes;
	return k;
}

static Terrace__V1__Keys k1;

static Terrace__V1__LookupRequest lookup_k1(void)
{
	Terrace__V1__LookupRequest q = TERRACE__V1__LOOKUP_REQUEST__INIT;

	k1 = keys_of("k1", 2);
	q.session = s.session.id;
	q.keys = &k1;
	return q;
}

/* A session ends with its last process: the socket of one, to be closed. */
static uint64_t attachment;

static int attach(void)
{
	struct fdsock_welcome w;
	int fd = greet_with(FDSOCK_HELLO, s.session.token, &w);

	ck_assert_uint_eq(w.status, STATUS_OK);
	attachment = w.attachment;
	return fd;
}

static Terrace__V1__LeaseRequest lease_k1(bool gpu)
{
	Terrace__V1__LeaseRequest q = TERRACE__V1__LEASE_REQUEST__INIT;

	k1 = keys_of("k1", 2);
	q.session = s.session.id;
	q.keys = &k1;
	q.attachment = attachment;
	q.gpu = gpu;
	return q;
}

/* ---- what is seen from outside ---- */

static double stat_of(const char *name, const char *labels)
{
	struct shell_stat w = { name, labels, 0 };

	near_stats(s.daemon.near, shell_find_stat, &w);
	return w.value;
}

static void until(const char *name, const char *labels, double value)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	while (stat_of(name, labels) != value && daemon_now_us() < end)
		usleep(1000);
	ck_assert_msg(stat_of(name, labels) == value, "%s{%s} is %g, not %g", name, labels, stat_of(name, labels), value);
}

static void held_becomes(uint64_t leases, uint64_t reservations)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;
	struct cache_load load;

	do {
		cache_load(s.daemon.cache, &load);
		usleep(1000);
	} while ((load.leases != leases || load.reservations != reservations) && daemon_now_us() < end);
	ck_assert_uint_eq(load.leases, leases);
	ck_assert_uint_eq(load.reservations, reservations);
}

/* Copies to the GPU wait from here on, so that a lease there is put aside. */
static void hold_copies(void)
{
	int fd = open(hold, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	close(fd);
}

static void lease_waits(int fd, uint64_t left_us)
{
	Terrace__V1__LeaseRequest q = lease_k1(true);

	hold_copies();
	say(fd, FDSOCK_LEASE, &q, left_us);
	until("terrace_near_calls", "", 1);
	usleep(20000);
	ck_assert_double_eq(stat_of("terrace_near_calls", ""), 1);
}

static void until_a_worker_runs(void)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;
	struct workers_view view;

	do {
		usleep(1000);
		workers_look(s.daemon.workers, &view);
	} while (!view.running && daemon_now_us() < end);
	ck_assert_uint_ge(view.running, 1);
}

/* ---- tests ---- */

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
	until("terrace_rpc_calls_total", "method=Cache.Commit,status=OK,way=near", 1);
	until("terrace_rpc_calls_total", "method=Cache.Warm,status=OK,way=near", 1);
	until("terrace_near_calls", "", 0);
	drop(reserved);
	drop(committed);
	drop(looked);
	close(fd);
	until("terrace_near_connections", "", 0);
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
	ck_assert_double_eq(stat_of("terrace_near_connections", ""), 0);
}
END_TEST

START_TEST(another_session_is_denied)
{
	struct kv_layout layout = shell_layout(3);
	struct cache_session_view other;
	Terrace__V1__LookupRequest q = lookup_k1();
	const char *why = "";
	int fd = caller();

	ck_assert_int_eq(cache_session_open(s.daemon.cache, "", &layout, 1, "other", daemon_now_us(), &other, &why), STATUS_OK);
	q.session = other.id;
	say(fd, FDSOCK_LOOKUP, &q, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_DENIED);
	q.session = 0;
	say(fd, FDSOCK_LOOKUP, &q, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_DENIED);
	q.session = s.session.id;
	say(fd, FDSOCK_LOOKUP, &q, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	until("terrace_rpc_calls_total", "method=Cache.Lookup,status=DENIED,way=near", 2);
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
	until("terrace_near_connections", "", 0);
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
	ck_assert_double_eq(stat_of("terrace_near_by_grpc_total", ""), 1);
	ck_assert_double_eq(stat_of("terrace_near_calls", ""), 0);
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
	r.blocks = r.board_word = r.board_base = r.board_layers = UINT32_MAX;
	r.board_summed = true;
	r.places = &p;
	ck_assert_uint_le(sizeof(struct fdsock_reply) + protobuf_c_message_get_packed_size(&r.base),
			  near_call_reply_most(s.daemon.cache, FDSOCK_LEASE, &q.base));
	ck_assert_uint_le(2 * near_call_reply_most(s.daemon.cache, FDSOCK_LEASE, &q.base), FDSOCK_CALL_BYTES_MAX);
}
END_TEST

START_TEST(a_lease_that_waits)
{
	Terrace__V1__LeaseReply *leased;
	int keeper = attach(), fd = caller();

	shell_store(&s, "k1");
	lease_waits(fd, 100000000ull * NET_S); /* so long that only its wake lets it go on */
	unlink(hold);
	ck_assert_uint_eq(answer(fd, &terrace__v1__lease_reply__descriptor, &leased), STATUS_OK);
	ck_assert_int_eq(leased->status, TERRACE__V1__STATUS__OK);
	ck_assert_uint_ne(leased->lease, 0);
	held_becomes(1, 0);
	drop(leased);
	close(fd);
	until("terrace_near_connections", "", 0);
	held_becomes(1, 0); /* the reply was read: the lease is the session's */
	close(keeper);
}
END_TEST

/* 0: who hangs up; 1: who speaks out of turn. */
START_TEST(a_lease_that_waits_in_vain)
{
	Terrace__V1__LookupRequest q = lookup_k1();
	int keeper = attach(), fd = caller();

	shell_store(&s, "k1");
	lease_waits(fd, 1000000ull * NET_S);
	if (_i) {
		say(fd, FDSOCK_LOOKUP, &q, 0);
		ck_assert_int_eq(hear(fd, packet, sizeof packet), 0);
	} else {
		close(fd);
	}
	until("terrace_near_calls", "", 0);
	unlink(hold);
	usleep(50000);
	held_becomes(0, 0);
	until("terrace_rpc_calls_total", "method=Cache.Lease,status=CANCELLED,way=near", 1);
	if (_i)
		close(fd);
	until("terrace_near_connections", "", 0);
	close(keeper);
}
END_TEST

/* Before it is answered. */
static bool seen_to_wait(int fd)
{
	struct pollfd p = { fd, POLLIN, 0 };

	while (!poll(&p, 1, 1))
		if (stat_of("terrace_near_calls", "") == 1)
			return true;
	return false;
}

/* Who is told a little before, or, by a slow machine, then. Again with more time, if the machine did not see it wait. The connection lives on. */
START_TEST(a_lease_whose_time_is_up)
{
	Terrace__V1__LookupRequest after = lookup_k1();
	Terrace__V1__LeaseRequest q;
	uint32_t granted = 0, late = 0;
	int keeper = attach(), fd = caller();
	bool waited = false;

	shell_store(&s, "k1");
	q = lease_k1(true);
	hold_copies();
	for (uint64_t left_us = 300000; !waited; left_us *= 2) {
		Terrace__V1__LeaseReply *leased = NULL;
		uint32_t status;

		ck_assert_uint_lt(left_us, 1000000ull * NET_S);
		say(fd, FDSOCK_LEASE, &q, left_us);
		waited = seen_to_wait(fd);
		status = answer(fd, &terrace__v1__lease_reply__descriptor, &leased);
		ck_assert(leased ? !leased->lease : status == STATUS_DEADLINE);
		granted += leased != NULL;
		late += !leased;
		drop(leased);
		until("terrace_near_calls", "", 0);
	}
	unlink(hold);
	usleep(50000);
	held_becomes(0, 0);
	until("terrace_rpc_calls_total", "method=Cache.Lease,status=OK,way=near", granted);
	until("terrace_rpc_calls_total", "method=Cache.Lease,status=DEADLINE,way=near", late);
	say(fd, FDSOCK_LOOKUP, &after, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	close(fd);
	until("terrace_near_connections", "", 0);
	close(keeper);
}
END_TEST

START_TEST(an_unread_reply_is_undone)
{
	Terrace__V1__LeaseRequest q = lease_k1(false);
	int keeper = attach(), fd = caller();

	q = lease_k1(false);
	shell_store(&s, "k1");
	say(fd, FDSOCK_LEASE, &q, 0);
	held_becomes(1, 0);
	close(fd);
	held_becomes(0, 0);
	fd = caller();
	say(fd, FDSOCK_LEASE, &q, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	close(fd);
	until("terrace_near_connections", "", 0);
	held_becomes(1, 0);
	close(keeper);
}
END_TEST

/* A process that is killed with its reply unread gives back, though its child keeps the socket open. */
START_TEST(death_is_seen_through_a_child)
{
	int keeper = attach(), ready[2], stay[2];
	Terrace__V1__LeaseRequest q = lease_k1(false);
	char byte = 0;
	pid_t engine;

	shell_store(&s, "k1");
	ck_assert_int_eq(pipe(ready), 0);
	ck_assert_int_eq(pipe(stay), 0);
	engine = fork();
	if (!engine) {
		int fd = caller();

		close(stay[1]);
		if (!fork()) { /* until the test's end of the pipe is closed */
			if (read(stay[0], &byte, 1))
				_exit(1);
			_exit(0);
		}
		say(fd, FDSOCK_LEASE, &q, 0);
		if (write(ready[1], &byte, 1) != 1)
			_exit(1);
		pause();
	}
	ck_assert_int_eq(read(ready[0], &byte, 1), 1);
	held_becomes(1, 0);
	kill(engine, SIGKILL);
	held_becomes(0, 0);
	until("terrace_near_connections", "", 0);
	waitpid(engine, NULL, 0);
	close(stay[1]);
	close(keeper);
}
END_TEST

/* The commit stands, the lease that came with it does not. */
START_TEST(a_caller_that_goes_while_a_worker_has_his_call)
{
	Terrace__V1__CommitRequest q = TERRACE__V1__COMMIT_REQUEST__INIT;
	Terrace__V1__CommitItem item = TERRACE__V1__COMMIT_ITEM__INIT, *items = &item;
	struct cache_keys key = { (const uint8_t *)"k1", 1, 2 };
	struct cache_place places[2];
	int keeper = attach(), fd = caller();
	uint32_t prefix = 0;
	enum status status;
	const char *why = "";

	ck_assert_int_eq(cache_reserve(s.daemon.cache, s.session.id, &key, NULL, false, attachment, true, daemon_now_us(), &status,
				       &item.reservation, places, 2, &why), STATUS_OK);
	q.session = s.session.id;
	q.attachment = attachment;
	q.lease = true;
	q.items = &items;
	q.n_items = 1;
	cache_lock(s.daemon.cache);
	say(fd, FDSOCK_COMMIT, &q, 0);
	until_a_worker_runs();
	close(fd);
	usleep(20000);
	cache_unlock(s.daemon.cache);
	until("terrace_near_connections", "", 0);
	held_becomes(0, 0);
	ck_assert_int_eq(cache_lookup(s.daemon.cache, s.session.id, &key, &prefix, NULL, 0, &why), STATUS_OK);
	ck_assert_uint_eq(prefix, 1);
	close(keeper);
}
END_TEST

START_TEST(a_stop_ends_calls_that_wait)
{
	struct fdsock_welcome w;
	int keeper = attach(), idle = caller(), fd = caller(), late;

	shell_store(&s, "k1");
	lease_waits(fd, 1000000ull * NET_S);
	near_stop(s.daemon.near, 1000000ull * NET_S);
	ck_assert_int_eq(hear(idle, packet, sizeof packet), 0);
	ck_assert(!near_wait(s.daemon.near, 50 * 1000));
	late = greet_with(FDSOCK_CALLER, s.session.token, &w);
	ck_assert_uint_eq(w.status, STATUS_EXHAUSTED);
	near_stop(s.daemon.near, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_UNAVAILABLE);
	ck_assert(near_wait(s.daemon.near, NET_S * 1000000ull));
	unlink(hold);
	held_becomes(0, 0);
	close(idle);
	close(fd);
	close(late);
	close(keeper);
}
END_TEST

START_TEST(a_stop_does_not_wait_for_a_worker_for_ever)
{
	Terrace__V1__CommitRequest q = TERRACE__V1__COMMIT_REQUEST__INIT;
	Terrace__V1__CommitItem item = TERRACE__V1__COMMIT_ITEM__INIT, *items = &item;
	int keeper = attach(), fd = caller();

	item.reservation = 1;
	q.session = s.session.id;
	q.items = &items;
	q.n_items = 1;
	cache_lock(s.daemon.cache);
	say(fd, FDSOCK_COMMIT, &q, 0);
	until_a_worker_runs();
	near_stop(s.daemon.near, 0);
	ck_assert(!near_wait(s.daemon.near, 50 * 1000));
	cache_unlock(s.daemon.cache);
	ck_assert(near_wait(s.daemon.near, NET_S * 1000000ull));
	close(fd);
	close(keeper);
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
	until("terrace_rpc_calls_total", "method=Cache.Lease,status=OK,way=near", 300 * CONNECTIONS);
	close(keeper);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("near");
	TCase *t = tcase_create("near");
	SRunner *r;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, calls_of_each_kind);
	tcase_add_test(t, the_token_is_the_right);
	tcase_add_test(t, another_session_is_denied);
	tcase_add_loop_test(t, hostile_packets_hang_up, 0, sizeof hostile / sizeof hostile[0]);
	tcase_add_loop_test(t, nonsense_for_a_request, 0, 3);
	tcase_add_test(t, what_is_too_long_goes_by_grpc);
	tcase_add_test(t, the_bound_of_a_reply_holds);
	tcase_add_test(t, a_lease_that_waits);
	tcase_add_loop_test(t, a_lease_that_waits_in_vain, 0, 2);
	tcase_add_test(t, a_lease_whose_time_is_up);
	tcase_add_test(t, an_unread_reply_is_undone);
	tcase_add_test(t, death_is_seen_through_a_child);
	tcase_add_test(t, a_caller_that_goes_while_a_worker_has_his_call);
	tcase_add_test(t, a_stop_ends_calls_that_wait);
	tcase_add_test(t, a_stop_does_not_wait_for_a_worker_for_ever);
	tcase_add_test(t, many_callers);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
