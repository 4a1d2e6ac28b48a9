/* The client's side of local calls, against a daemon of a few lines that misbehaves as it is told. */
#include "tests/asleep.h"
#include "client/transport/local_calls.h"

#include "client/value/clock.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "proto/fdsock.h"
#include "terrace.pb-c.h"

#include <check.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { NET_US = 30000000, PREFIX = 7, EPOCH = 5, SESSION = 9, SOCKETS = 64, THREADS = 24, CONNECTIONS_MAX = 16 };

enum fault {
	SOUND,
	OLD,            /* hangs up on CALLER, as one does that knows no local calls, or has other reasons */
	FULL,           /* has no room for one more */
	DENIES,
	OTHER_SESSION,
	GARBAGE,
	SHORT,
	WRONG_TYPE,
	TOO_LONG,
	SILENT,
	HANGS_UP,       /* in the middle of a call */
	HANGS_UP_AFTER, /* its reply */
	BY_GRPC,
	FAILS,          /* with fail_status */
	NO_MESSAGE,     /* the reply is no LookupReply */
};

static struct {
	char path[64];
	int listener, stop[2];
	pthread_t thread;
	_Atomic int fault;
	_Atomic uint32_t fail_status;
	_Atomic unsigned accepted, calls, closed;
} fake;

static struct client_local_calls_list list;
static struct client_local_calls *local;
static const uint8_t token[16] = "sixteen bytes ..";

/* ---- the daemon ---------------------------------------------------------------------------------------------------- */

static struct fdsock_head head_of(enum fdsock_type type)
{
	return (struct fdsock_head){FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)type};
}

/* False: hang up. */
static bool welcome(int fd)
{
	struct fdsock_welcome w = {.head = head_of(FDSOCK_WELCOME), .epoch = EPOCH, .session = SESSION};
	const int fault = fake.fault;

	if (fault == OLD)
		return false;
	w.status = fault == FULL ? TERRACE_EXHAUSTED : fault == DENIES ? TERRACE_DENIED : TERRACE_OK;
	w.session += fault == OTHER_SESSION;
	return send(fd, &w, sizeof(w), MSG_NOSIGNAL) == sizeof(w) && !w.status;
}

static bool reply(int fd)
{
	static uint8_t packet[FDSOCK_CALL_BYTES_MAX + 8];
	Terrace__V1__LookupReply message = TERRACE__V1__LOOKUP_REPLY__INIT;
	struct fdsock_reply r = {.head = head_of(FDSOCK_REPLY)};
	const char *why = "a sentence";
	size_t n = sizeof(r);

	fake.calls++;
	message.prefix = PREFIX;
	n += protobuf_c_message_pack(&message.base, packet + sizeof(r));
	switch ((enum fault)fake.fault) {
	case GARBAGE:
		memset(&r, 'x', sizeof(r));
		break;
	case SHORT:
		n = sizeof(r) - 1;
		break;
	case WRONG_TYPE:
		r.head.type = FDSOCK_EXTENT;
		break;
	case TOO_LONG:
		n = sizeof(packet);
		break;
	case SILENT:
		return true;
	case HANGS_UP:
		return false;
	case BY_GRPC:
		r.status = FDSOCK_BY_GRPC;
		n = sizeof(r);
		break;
	case FAILS:
		r.status = fake.fail_status;
		memcpy(packet + sizeof(r), why, strlen(why));
		n = sizeof(r) + strlen(why);
		break;
	case NO_MESSAGE:
		memset(packet + sizeof(r), 0xff, 16);
		n = sizeof(r) + 16;
		break;
	default:
		break;
	}
	memcpy(packet, &r, sizeof(r));
	return send(fd, packet, n, MSG_NOSIGNAL) == (ssize_t)n && fake.fault != HANGS_UP_AFTER;
}

static bool hear(int fd)
{
	static uint8_t packet[FDSOCK_CALL_BYTES_MAX];
	ssize_t n = recv(fd, packet, sizeof(packet), MSG_DONTWAIT);
	struct fdsock_head head;

	if (n < (ssize_t)sizeof(head))
		return false;
	memcpy(&head, packet, sizeof(head));
	if (head.type == FDSOCK_CALLER)
		return n == sizeof(struct fdsock_hello) && !memcmp(packet + sizeof(head), token, sizeof(token)) && welcome(fd);
	return head.type == FDSOCK_CALL && n > (ssize_t)sizeof(struct fdsock_call) && reply(fd);
}

static void *fake_main(void *arg)
{
	struct pollfd polled[SOCKETS] = {{.fd = fake.stop[0], .events = POLLIN}, {.fd = fake.listener, .events = POLLIN}};
	unsigned n = 2, bytes = 2 * FDSOCK_CALL_BYTES_MAX;

	(void)arg;
	while (poll(polled, n, -1) > 0 && !polled[0].revents) {
		for (unsigned i = 2; i < n; i++) {
			if (polled[i].fd < 0 || !polled[i].revents || hear(polled[i].fd))
				continue;
			close(polled[i].fd);
			polled[i].fd = -1;
			fake.closed++;
		}
		if (polled[1].revents && n < SOCKETS) {
			polled[n] = (struct pollfd){.fd = accept(fake.listener, NULL, NULL), .events = POLLIN};
			setsockopt(polled[n++].fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
			fake.accepted++;
		}
	}
	for (unsigned i = 2; i < n; i++)
		if (polled[i].fd >= 0)
			close(polled[i].fd);
	return NULL;
}

static void open_local(bool known, uint64_t busy_poll_us, bool adapts)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};

	fake.fault = SOUND;
	fake.accepted = fake.calls = fake.closed = 0;
	snprintf(fake.path, sizeof(fake.path), "/tmp/terrace-near-%d.fd", getpid());
	strcpy(at.sun_path, fake.path);
	unlink(fake.path);
	fake.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(fake.listener, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(listen(fake.listener, SOCKETS), 0);
	ck_assert_int_eq(pipe(fake.stop), 0);
	ck_assert_int_eq(pthread_create(&fake.thread, NULL, fake_main, NULL), 0);
	client_local_list_init(&list);
	local = client_local_create(&list, &(struct client_local_options){ .path = fake.path, .token = token,
			.epoch = EPOCH,
			.session = SESSION, .known = known, .busy_poll_us = busy_poll_us, .adapts = adapts });
	ck_assert_ptr_nonnull(local);
}

static void setup(void)
{
	open_local(true, 0, false);
}

static void fake_end(void)
{
	ck_assert_int_eq(write(fake.stop[1], "", 1), 1);
	pthread_join(fake.thread, NULL);
	close(fake.stop[0]);
	close(fake.stop[1]);
	close(fake.listener);
	unlink(fake.path);
}

static void teardown(void)
{
	client_local_destroy(local);
	client_local_list_fini(&list);
	fake_end();
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

struct asked {
	uint32_t prefix;
	unsigned meanwhiles;
	bool went;
	enum terrace_status status;
	uint64_t timeout_us;
	char error[256];
};

static enum terrace_status take(void *arg, const struct client_message *message)
{
	struct asked *a = arg;
	struct client_arena arena;
	Terrace__V1__LookupReply *r;

	client_arena_init(&arena);
	r = client_wire_unpack(&arena, &terrace__v1__lookup_reply__descriptor, message);
	a->prefix = r ? r->prefix : 0;
	client_arena_fini(&arena);
	return r ? TERRACE_OK : TERRACE_INTERNAL;
}

static void meanwhile(void *arg)
{
	((struct asked *)arg)->meanwhiles++;
}

static struct asked ask_with(size_t key_bytes, uint64_t timeout_us, enum client_method method)
{
	Terrace__V1__LookupRequest q = TERRACE__V1__LOOKUP_REQUEST__INIT;
	Terrace__V1__Keys keys = TERRACE__V1__KEYS__INIT;
	struct asked a = {.timeout_us = timeout_us};
	struct client_job job = {.method = method, .deadline_us = client_deadline_us(timeout_us), .take = take, .meanwhile = meanwhile,
				 .arg = &a, .first = {.message = &q.base, .last = true}};

	keys.keys = (ProtobufCBinaryData){key_bytes, calloc(1, key_bytes)};
	keys.key_bytes = 16;
	q.session = SESSION;
	q.keys = &keys;
	a.went = client_local_call(local, &job, &a.status);
	ck_assert_int_eq(job.meanwhile == NULL, a.meanwhiles > 0);
	snprintf(a.error, sizeof(a.error), "%s", terrace_error());
	free(keys.keys.data);
	return a;
}

static struct asked ask(uint64_t timeout_us)
{
	return ask_with(32, timeout_us, CLIENT_LOOKUP);
}

static void becomes(_Atomic unsigned *counter, unsigned value)
{
	const uint64_t until = client_now_us() + NET_US;

	while (*counter != value && client_now_us() < until)
		poll(NULL, 0, 1);
	ck_assert_uint_eq(*counter, value);
}

static void is_answered(void)
{
	struct asked a = ask(NET_US);

	ck_assert_msg(a.went && a.status == TERRACE_OK, "%d: %s", (int)a.status, a.error);
	ck_assert_uint_eq(a.prefix, PREFIX);
	ck_assert_uint_eq(a.meanwhiles, 1);
}

START_TEST(one_connection_serves_calls_in_turn)
{
	for (int i = 0; i < 100; i++)
		is_answered();
	ck_assert_uint_eq(fake.accepted, 1);
	ck_assert_uint_eq(fake.calls, 100);
}
END_TEST

/* What goes wrong before the call was sent has it go by gRPC, with the thread's words untouched. */
START_TEST(without_a_connection_it_goes_by_grpc)
{
	static const struct {
		enum fault fault;
		bool known, for_good;
	} cases[] = {{OLD, false, true}, {OLD, true, false}, {DENIES, true, true}, {OTHER_SESSION, true, true}, {FULL, true, false}};
	char words[64];

	teardown();
	open_local(cases[_i].known, 0, false);
	fake.fault = cases[_i].fault;
	client_fail(TERRACE_INVALID, "words of case %d", _i);
	strcpy(words, terrace_error());
	for (int i = 0; i < 3; i++)
		ck_assert(!ask(NET_US).went);
	ck_assert_str_eq(terrace_error(), words);
	ck_assert_uint_eq(fake.accepted, 1); /* not at each call */
	ck_assert_uint_eq(fake.calls, 0);
	fake.fault = SOUND;
	usleep(1100000);
	ck_assert_int_eq(ask(NET_US).went, !cases[_i].for_good);
}
END_TEST

static const struct {
	enum fault fault;
	uint32_t number;  /* of FAILS */
	bool went;
	enum terrace_status want;
	bool kept;        /* the connection serves the next call */
} answers[] = {
	{GARBAGE, 0, true, TERRACE_INTERNAL, false},
	{SHORT, 0, true, TERRACE_INTERNAL, false},
	{WRONG_TYPE, 0, true, TERRACE_INTERNAL, false},
	{TOO_LONG, 0, true, TERRACE_INTERNAL, false},
	{NO_MESSAGE, 0, true, TERRACE_INTERNAL, false},
	{SILENT, 0, true, TERRACE_DEADLINE, false},
	{HANGS_UP, 0, true, TERRACE_UNAVAILABLE, false},
	{BY_GRPC, 0, false, TERRACE_OK, true},
	{FAILS, TERRACE_MISS, true, TERRACE_NOT_FOUND, true},
	{FAILS, TERRACE_BUSY, true, TERRACE_EXHAUSTED, true},
	{FAILS, TERRACE_CANCELLED, true, TERRACE_UNAVAILABLE, true},
	{FAILS, TERRACE_INVALID, true, TERRACE_INVALID, true},
	{FAILS, TERRACE_NOT_FOUND, true, TERRACE_NOT_FOUND, true},
	{FAILS, TERRACE_EXHAUSTED, true, TERRACE_EXHAUSTED, true},
	{FAILS, TERRACE_DEADLINE, true, TERRACE_DEADLINE, true},
	{FAILS, TERRACE_DENIED, true, TERRACE_DENIED, true},
	{FAILS, TERRACE_STALE, true, TERRACE_PRECONDITION, true},
	{FAILS, TERRACE_IO, true, TERRACE_INTERNAL, false},
	{FAILS, 4711, true, TERRACE_INTERNAL, false},
};

START_TEST(answers_of_each_kind)
{
	struct asked a;

	is_answered();
	fake.fault = answers[_i].fault;
	fake.fail_status = answers[_i].number;
	a = ask(answers[_i].want == TERRACE_DEADLINE && answers[_i].fault == SILENT ? 200000 : NET_US);
	ck_assert_int_eq(a.went, answers[_i].went);
	if (a.went)
		ck_assert_int_eq(a.status, answers[_i].want);
	ck_assert_uint_eq(a.meanwhiles, 1);
	ck_assert_uint_eq(fake.calls, 2); /* never twice */
	if (answers[_i].fault == FAILS)
		ck_assert_str_eq(a.error, "Lookup: a sentence");
	else if (answers[_i].fault >= GARBAGE && answers[_i].fault <= TOO_LONG)
		ck_assert_ptr_nonnull(strstr(a.error, "garbage"));
	fake.fault = SOUND;
	if (!answers[_i].kept)
		becomes(&fake.closed, 1); /* so that the daemon gives back what it has granted */
	is_answered();
	ck_assert_uint_eq(fake.accepted, answers[_i].kept ? 1 : 2);
}
END_TEST

/* A connection that the daemon has closed meanwhile has cost no call. */
START_TEST(a_stale_connection_is_replaced)
{
	fake.fault = HANGS_UP_AFTER;
	for (int i = 0; i < 5; i++) {
		is_answered();
		becomes(&fake.closed, (unsigned)i + 1);
	}
	ck_assert_uint_eq(fake.calls, 5);
	ck_assert_uint_eq(fake.accepted, 5);
}
END_TEST

START_TEST(no_daemon_any_more)
{
	is_answered();
	fake_end();
	ck_assert(!ask(NET_US).went);
	ck_assert(!ask(NET_US).went);
	client_local_destroy(local);
	client_local_list_fini(&list);
	setup();
}
END_TEST

START_TEST(what_does_not_go_local)
{
	ck_assert(!ask_with(FDSOCK_CALL_BYTES_MAX, NET_US, CLIENT_LOOKUP).went); /* too long for a packet */
	ck_assert(!ask_with(32, NET_US, CLIENT_FLUSH).went);
	ck_assert(!ask(0).went); /* no time: gRPC says so */
	ck_assert_uint_eq(fake.calls, 0);
	is_answered();
	ck_assert(ask_with(4096 * 32, NET_US, CLIENT_LOOKUP).went);
	client_local_close(local);
	ck_assert(!ask(NET_US).went);
	becomes(&fake.closed, 1);
}
END_TEST

static void *ask_main(void *arg)
{
	struct asked *a = arg;

	*a = ask(a->timeout_us);
	return NULL;
}

/* 1: with busy polling. */
START_TEST(a_disconnect_ends_calls_and_their_number_is_bounded)
{
	struct asked asked[THREADS];
	pthread_t threads[THREADS];
	unsigned went = 0;

	if (_i) {
		teardown();
		open_local(true, NET_US, false);
	}
	fake.fault = SILENT;
	for (int i = 0; i < THREADS; i++) {
		asked[i] = (struct asked){.timeout_us = NET_US};
		ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_main, &asked[i]), 0);
	}
	becomes(&fake.calls, CONNECTIONS_MAX);
	client_local_list_cancel(&list);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		went += asked[i].went;
		if (asked[i].went)
			ck_assert_int_eq(asked[i].status, TERRACE_CANCELLED);
	}
	ck_assert_uint_eq(went, CONNECTIONS_MAX);
	ck_assert(!ask(NET_US).went);
	becomes(&fake.closed, CONNECTIONS_MAX);
}
END_TEST

START_TEST(busy_polling)
{
	struct asked a;
	uint64_t began;

	teardown();
	open_local(true, 50000, false);
	for (int i = 0; i < 20; i++)
		is_answered();
	fake.fault = SILENT;
	began = client_now_us();
	a = ask(300000); /* longer than it polls */
	ck_assert(a.went);
	ck_assert_int_eq(a.status, TERRACE_DEADLINE);
	ck_assert_uint_ge(client_now_us() - began, 300000);
}
END_TEST

static atomic_bool asking;

static void *ask_in_vain(void *arg)
{
	struct asked *a = arg;

	asking = true;
	*a = ask(a->timeout_us);
	asking = false;
	return NULL;
}

/* The caller looks for an answer that comes soon, and sleeps for one that does not come. Again with more time, if the machine did not let that be seen. */
START_TEST(adaptive_polling)
{
	struct asked a = {.timeout_us = 250000};
	struct asleep threads;
	bool slept = false;
	pthread_t thread;

	teardown();
	open_local(true, 0, true);
	for (int i = 0; i < 100; i++)
		is_answered();
	fake.fault = SILENT;
	while (!slept) {
		ck_assert_uint_lt(a.timeout_us, NET_US);
		a.timeout_us *= 2;
		ck_assert_int_eq(pthread_create(&thread, NULL, ask_in_vain, &a), 0);
		while (!asking)
			poll(NULL, 0, 1);
		asleep_begin(&threads);
		slept = asleep_within(&threads, (int)(a.timeout_us / 2000)) && asking;
		asleep_end(&threads);
		pthread_join(thread, NULL);
		ck_assert(a.went);
		ck_assert_int_eq(a.status, TERRACE_DEADLINE);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_near");
	TCase *t = tcase_create("client_near");
	SRunner *r;
	int failed;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, one_connection_serves_calls_in_turn);
	tcase_add_loop_test(t, without_a_connection_it_goes_by_grpc, 0, 5);
	tcase_add_loop_test(t, answers_of_each_kind, 0, sizeof(answers) / sizeof(answers[0]));
	tcase_add_test(t, a_stale_connection_is_replaced);
	tcase_add_test(t, no_daemon_any_more);
	tcase_add_test(t, what_does_not_go_local);
	tcase_add_loop_test(t, a_disconnect_ends_calls_and_their_number_is_bounded, 0, 2);
	tcase_add_test(t, busy_polling);
	tcase_add_test(t, adaptive_polling);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
