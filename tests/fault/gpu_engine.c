/* An engine on simulated GPUs that does what it is told, for tests that decide when a copy is slow or a GPU goes (tests/fault/test_gpu.py):
 *
 *     gpu_engine ADDRESS
 *
 * Each line of its input is a command, each of its output the answer: a terrace_status, a number, and the milliseconds it took.
 *     put GPU FIRST COUNT      blocks of these keys, GPU -1: in host memory: those that were stored
 *     warm GPU FIRST COUNT     waits: those that are there
 *     lease GPU FIRST COUNT    the longest prefix: its blocks
 *     layer L                  puts a wait for the layer into the GPU's stream, and waits for the stream
 *     look                     the same for the last layer, looks at every word, and asks whether the lease was good: words that are wrong
 *     check                    asks that alone
 *     release                  gives the lease back
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>

#include "client/include/terrace.h"
#include "tests/sim/device.h"
#include "tests/sim/stream.h"

enum { RUN = 16, LAYERS = 8, GPUS = 2 };

static struct terrace_layout layout = {
	.size = sizeof(struct terrace_layout),
	.fingerprint = "engine that is told",
	.layers = LAYERS,
	.heads = 4,
	.total_heads = 4,
	.head_dim_k = 128,
	.head_dim_v = 128,
	.block_tokens = 64,
	.k_format = TERRACE_FORMAT_TQ4,
	.v_format = TERRACE_FORMAT_TQ4,
};
static struct terrace_session *session;
static struct terrace_lease *lease;
static struct sim_stream *streams[GPUS];
static int32_t leased_on;
static uint64_t leased_first, words;

static uint64_t word(uint64_t number, uint64_t i)
{
	uint64_t x = number * 0x9e3779b97f4a7c15u + i;

	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	return x ^ x >> 27;
}

struct names {
	uint8_t bytes[RUN][16];
	struct terrace_keys keys;
};

static const struct terrace_keys *name(struct names *n, uint64_t first, uint32_t count)
{
	memset(n->bytes, 0, sizeof(n->bytes));
	for (uint64_t i = 0; i < count; i++)
		snprintf((char *)n->bytes[i], sizeof(n->bytes[i]), "key %llu", (unsigned long long)(first + i));
	n->keys = (struct terrace_keys){n->bytes[0], count, 16};
	return &n->keys;
}

/* ---- commands ------------------------------------------------------------------------------------------------------ */

static void fill(uint64_t *block, uint64_t number)
{
	for (uint64_t i = 0; i < words; i++)
		block[i] = word(number, i);
}

static enum terrace_status put(int32_t gpu, uint64_t first, uint32_t count, uint64_t *stored)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	enum terrace_status status, statuses[RUN];
	struct terrace_reservation *r;
	uint64_t at[RUN] = {0};
	struct names n;

	o.gpu = gpu;
	status = terrace_reserve_with(session, name(&n, first, count), NULL, &o, 0, NULL, &r);
	if (!status && gpu >= 0)
		status = terrace_reservation_addresses(r, 0, at);
	if (status)
		return status;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t *block = gpu < 0 ? terrace_reservation_block(r, i, 0) : at[i] ? sim_at(at[i]) : NULL;

		if (block)
			fill(block, first + i);
	}
	status = terrace_commit(r, 0, statuses, NULL);
	for (uint32_t i = 0; i < count && !status; i++)
		*stored += statuses[i] == TERRACE_OK;
	return status;
}

static enum terrace_status warm(int32_t gpu, uint64_t first, uint32_t count, uint64_t *out)
{
	struct terrace_warm_options o = TERRACE_WARM_OPTIONS_INIT;
	uint32_t blocks = 0;
	struct names n;
	enum terrace_status status;

	o.wait = true;
	o.gpu = gpu;
	status = terrace_warm_with(session, name(&n, first, count), &o, 0, &blocks);
	*out = blocks;
	return status;
}

static enum terrace_status take(int32_t gpu, uint64_t first, uint32_t count, uint64_t *out)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct names n;
	enum terrace_status status;

	o.gpu = leased_on = gpu;
	leased_first = first;
	status = terrace_lease_with(session, name(&n, first, count), &o, 0, &lease);
	if (!status)
		*out = terrace_lease_count(lease);
	return status;
}

/* Work on the stream: the words of the lease's blocks that are not what was put. */
struct looking {
	uint64_t at[RUN], wrong;
	uint32_t count;
};

static enum status look_run(void *arg, bool failed)
{
	struct looking *l = arg;

	for (uint32_t i = 0; i < l->count && !failed; i++) {
		const uint64_t *block = sim_at(l->at[i]);

		for (uint64_t k = 0; k < words; k++)
			l->wrong += block[k] != word(leased_first + i, k);
	}
	return STATUS_OK;
}

static enum terrace_status stream_wait(uint32_t layer)
{
	return terrace_lease_wait_layer(lease, layer, streams[leased_on]);
}

static enum terrace_status layer_wait(uint32_t layer)
{
	enum terrace_status status = stream_wait(layer);

	if (!status && sim_stream_synchronize(streams[leased_on]) != STATUS_OK)
		status = TERRACE_UNAVAILABLE;
	return status;
}

static enum terrace_status look(uint64_t *wrong)
{
	struct looking l = {.count = terrace_lease_count(lease)};
	enum terrace_status status = terrace_lease_addresses(lease, 0, l.at);

	if (!status)
		status = stream_wait(LAYERS - 1);
	if (status)
		return status;
	if (!sim_stream_put(streams[leased_on], look_run, &l))
		exit(3);
	sim_stream_synchronize(streams[leased_on]); /* a lost GPU's stream fails: the lease tells */
	*wrong = l.wrong;
	return terrace_lease_check(lease);
}

static enum terrace_status obey(const char *line, uint64_t *number)
{
	unsigned long long first = 0;
	uint32_t count = 0;
	char verb[16];
	int gpu = 0;

	if (sscanf(line, "%15s %d %llu %u", verb, &gpu, &first, &count) < 1 || gpu >= LAYERS || count > RUN)
		exit(2);
	if (!strcmp(verb, "put"))
		return put(gpu, first, count, number);
	if (!strcmp(verb, "warm"))
		return warm(gpu, first, count, number);
	if (!strcmp(verb, "lease"))
		return take(gpu, first, count, number);
	if (!lease)
		exit(2);
	if (!strcmp(verb, "layer"))
		return layer_wait((uint32_t)gpu);
	if (!strcmp(verb, "look"))
		return look(number);
	if (!strcmp(verb, "check"))
		return terrace_lease_check(lease);
	terrace_release(lease);
	lease = NULL;
	return TERRACE_OK;
}

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void must(enum terrace_status status)
{
	if (!status)
		return;
	fprintf(stderr, "%s: %s\n", terrace_status_text(status), terrace_error());
	exit(3);
}

int main(int argc, char **argv)
{
	struct terrace_connect_options connect = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_client *client;
	char line[128];

	if (argc != 2)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	words = terrace_block_bytes(&layout) / 8;
	for (int g = 0; g < GPUS; g++)
		streams[g] = sim_stream_create();
	must(terrace_cuda_load(SIM_PLUGIN));
	connect.address = argv[1];
	connect.timeout_us = 20000000;
	must(terrace_connect(&connect, &client));
	must(terrace_session_open(client, &layout, 1, &options, &session));
	while (fgets(line, sizeof(line), stdin)) {
		double begin = now_ms();
		uint64_t number = 0;
		enum terrace_status status = obey(line, &number);

		printf("%d %llu %.3f\n", (int)status, (unsigned long long)number, now_ms() - begin);
		fflush(stdout);
	}
	terrace_release(lease);
	for (int g = 0; g < GPUS; g++)
		sim_stream_destroy(streams[g]);
	terrace_session_close(session);
	terrace_disconnect(client);
	return 0;
}
