/* What a call costs over the least that gRPC allows: Health.Check, the daemon's emptiest unary call, through
 * the library's synchronous path against a bare echo; and a Lookup of 256 keys that are all there against
 * that empty call, by gRPC and near. Then the same with a daemon and a client that poll before they sleep, beside the empty call of before.
 */
#include <stdlib.h>

#include "client/value/clock.h"
#include "client/transport/decode.h"
#include "health.pb-c.h"
#include "tests/bench/bench.h"
#include "tests/bench/echo.h"
#include "tests/bench/service.h"

enum {
	BURSTS = 20,
	BURSTS_QUICK = 2,
	BURST_CALLS = 50,
	WAKING_CALLS = 5,
	KEYS = 256,
	CALL_US = 5 * 1000 * 1000
};

enum { ECHO, EMPTY, LOOKUP_1, LOOKUP_256_16, LOOKUP_256_32, LOCAL_1, LOCAL_256_16, CASE_COUNT };

struct rpc_bench {
	struct service service;
	struct echo *echo;
	struct client_rpc *rpc;
	struct terrace_client *client; /* without local calls, */
	struct terrace_session *session, *local; /* whose is the first of them */
	struct terrace_keys short_keys, long_keys;
	double best_us[CASE_COUNT];
};

static enum terrace_status take_health(void *arg, const struct client_message *message)
{
	Grpc__Health__V1__HealthCheckResponse *reply;
	struct client_arena arena;

	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &grpc__health__v1__health_check_response__descriptor, message);
	*(bool *)arg =
		reply && reply->status == GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
	client_arena_fini(&arena);
	return TERRACE_OK;
}

static void call_empty(struct rpc_bench *b)
{
	Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	bool serving = false;
	struct client_job job = {
		.method = CLIENT_HEALTH_CHECK,
		.deadline_us = client_deadline_us(CALL_US),
		.wait_for_ready = true,
		.first = {.message = &request.base, .last = true},
		.take = take_health,
		.arg = &serving,
	};

	service_check(client_rpc_call(b->rpc, &job), "health check");
	if (!serving)
		bench_die("the daemon is not serving");
}

static void call_lookup(struct terrace_session *session, const struct terrace_keys *keys)
{
	uint32_t prefix = 0;

	service_check(terrace_lookup(session, keys, 0, &prefix, NULL), "lookup");
	if (prefix != keys->count)
		bench_die("lookup: a prefix of %u blocks, not %u", prefix, keys->count);
}

static void call_one(struct rpc_bench *b, int which)
{
	const struct terrace_keys one = service_key(&b->short_keys, 0, 1);

	switch (which) {
	case ECHO:
		echo_call(b->echo);
		break;
	case EMPTY:
		call_empty(b);
		break;
	case LOOKUP_1:
		call_lookup(b->session, &one);
		break;
	case LOOKUP_256_16:
		call_lookup(b->session, &b->short_keys);
		break;
	case LOCAL_1:
		call_lookup(b->local, &one);
		break;
	case LOCAL_256_16:
		call_lookup(b->local, &b->short_keys);
		break;
	default:
		call_lookup(b->session, &b->long_keys);
	}
}

/* The kinds take turns by short bursts: what disturbs one, disturbs all, and each finds its server awake, as
 * it is under load. The first calls of a burst wake it and do not count.
 */
static void round_of_calls(struct rpc_bench *b)
{
	unsigned bursts = bench_options.quick ? BURSTS_QUICK : BURSTS, n = 0;
	static double us[CASE_COUNT][BURSTS * BURST_CALLS];

	for (unsigned burst = 0; burst < bursts; burst++, n += BURST_CALLS) {
		for (int which = 0; which < CASE_COUNT; which++) {
			for (unsigned i = 0; i < WAKING_CALLS; i++)
				call_one(b, which);
			for (unsigned i = 0; i < BURST_CALLS; i++) {
				uint64_t start = bench_now_ns();

				call_one(b, which);
				us[which][n + i] = (double)(bench_now_ns() - start) / 1000;
			}
		}
	}
	for (int which = 0; which < CASE_COUNT; which++)
		b->best_us[which] = fmin(b->best_us[which], bench_median(us[which], n));
}

static struct terrace_client *connect_far(const struct service *s)
{
	struct terrace_connect_options options = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *client = NULL;

	options.address = s->address;
	options.timeout_us = CALL_US;
	options.busy_poll_us = bench_options.busy_poll ? BENCH_BUSY_POLL_MS * 1000 : 0;
	options.no_local_calls = true;
	service_check(terrace_connect(&options, &client), "connect");
	return client;
}

static void set_up(struct rpc_bench *b)
{
	struct terrace_layout layout = service_layout("bench rpc", TERRACE_FORMAT_TQ2, 1, 1, 64);

	service_start(&b->service, "64MiB");
	b->echo = echo_open();
	service_check(client_rpc_open(b->service.address, bench_options.busy_poll ? BENCH_BUSY_POLL_MS * 1000 : 0, NULL, &b->rpc), "channel");
	b->client = connect_far(&b->service);
	b->session = service_session_of(b->client, &layout);
	b->local = service_session(&b->service, &layout);
	b->short_keys = service_keys(KEYS, 16, 1);
	b->long_keys = service_keys(KEYS, 32, 2);
	service_fill(b->session, &b->short_keys, terrace_block_bytes(&layout));
	service_fill(b->session, &b->long_keys, terrace_block_bytes(&layout));
}

static void tear_down(struct rpc_bench *b)
{
	free((void *)(uintptr_t)b->short_keys.bytes);
	free((void *)(uintptr_t)b->long_keys.bytes);
	terrace_session_close(b->local);
	terrace_session_close(b->session);
	terrace_disconnect(b->client);
	client_rpc_close(b->rpc);
	client_rpc_destroy(b->rpc);
	echo_close(b->echo);
	service_stop(&b->service);
}

static void measure(struct rpc_bench *b)
{
	for (int i = 0; i < CASE_COUNT; i++)
		b->best_us[i] = INFINITY;
	set_up(b);
	for (unsigned i = 0; i < bench_options.rounds; i++)
		round_of_calls(b);
	tear_down(b);
}

static void report(const char *name, double value, double baseline, enum bench_goal goal, double target)
{
	bench_report(&(struct bench_figure){
		.bench = "rpc", .name = name, .unit = "us, p50", .value = value, .baseline = baseline, .goal = goal, .target = target});
}

int bench_rpc(void)
{
	static const struct {
		const char *name;
		int which, baseline;
		enum bench_goal goal;
		double target;
	} cases[] = {
		{"empty unary call / bare echo", EMPTY, ECHO, BENCH_AT_MOST, 1.25},
		{"lookup of 1 key / empty call", LOOKUP_1, EMPTY, BENCH_NONE, 0},
		{"lookup of 256 16-byte keys / empty call", LOOKUP_256_16, EMPTY, BENCH_AT_MOST, 1.5},
		{"lookup of 256 32-byte keys / empty call", LOOKUP_256_32, EMPTY, BENCH_AT_MOST, 1.5},
		{"near lookup of 1 key / empty call", LOCAL_1, EMPTY, BENCH_AT_MOST, .5},
		{"near lookup of 256 16-byte keys / empty call", LOCAL_256_16, EMPTY, BENCH_NONE, 0},
	};
	struct rpc_bench b = {0}, polled = {0};
	const bool asked = bench_options.busy_poll;

	measure(&b);
	bench_options.busy_poll = true;
	measure(&polled);
	bench_options.busy_poll = asked;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		report(cases[i].name, b.best_us[cases[i].which], b.best_us[cases[i].baseline], cases[i].goal, cases[i].target);
	report("empty unary call, busy polling / without", polled.best_us[EMPTY], b.best_us[EMPTY], BENCH_NONE, 0);
	report("near lookup of 1 key, busy polling / empty call without", polled.best_us[LOCAL_1], b.best_us[EMPTY],
	    BENCH_NONE, 0);
	report("near lookup of 256 keys, busy polling / empty call without", polled.best_us[LOCAL_256_16],
	       b.best_us[EMPTY],
	       BENCH_NONE, 0);
	return 0;
}
