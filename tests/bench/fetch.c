/* Blocks that another member of a cluster has: lists that a lease brings from a daemon at the other end of a veth pair,
 * beside one raw OpenSSL stream of the same cipher over the same pair. The two sides take turns, and the first place
 * changes. The time of a lease has everything in it: the question which member has the blocks, their loan, their way over the
 * network, and their checks.
 *
 * Each list is leased once, as the daemon has its blocks then. All of them are stored and told of before. The near
 * daemon's memory is full of other blocks, as it is in use: so no page of it is new to the kernel.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/bench/bench.h"
#include "tests/bench/cluster.h"
#include "tests/bench/raw_tls.h"
#include "tests/bench/service.h"

enum { BLOCKS = 64, KEY_BYTES = 16, ROUNDS_MAX = 27, TRIES = 600, CIPHER_BYTES = 64 };
enum { TIMEOUT_US = 20 * 1000 * 1000 };
enum { OURS, RAW, SIDES };
enum { SENDER, RECEIVER, ENDS };
#define FAR_BYTES "1280MiB"  /* for all lists */
#define NEAR_BYTES "384MiB"  /* a lease may fill an eighth */
enum { NEAR_BLOCKS = 768 };  /* more than it has room for */

struct node {
	int pid;
	struct terrace_client *client;
	struct terrace_session *session;
};

struct fetch_bench {
	struct cluster cluster;
	struct node far, near;
	int raw_pid;
	struct raw_tls *raw;
	unsigned rounds;
	struct terrace_keys keys; /* of the rounds' lists, and one more */
	uint64_t block_bytes;
	uint8_t *got;
	double rate[SIDES][ROUNDS_MAX]; /* MB/s */
	double work[ENDS + 1][SIDES][ROUNDS_MAX]; /* us of processors a MiB, of each end and of both */
};

static void node_start(struct fetch_bench *b, const char *name, bool far, const char *host_bytes, struct node *out)
{
	const struct terrace_layout layout = service_layout("bench fetch", TERRACE_FORMAT_INT4_PTH, 32, 8, 128);
	struct terrace_connect_options options = TERRACE_CONNECT_OPTIONS_INIT;
	struct cluster_flags flags;
	char address[128];

	cluster_flags(&b->cluster, name, far, true, &flags);
	if (far)
		far_enter(&b->cluster.far);
	out->pid = service_spawn(name, bench_options.terraced, host_bytes, address, sizeof(address), flags.words);
	far_return(&b->cluster.far);
	options.address = address;
	options.timeout_us = TIMEOUT_US;
	service_check(terrace_connect(&options, &out->client), "connect");
	out->session = service_session_of(out->client, &layout);
	b->block_bytes = terrace_block_bytes(&layout);
}

static void node_stop(struct node *n)
{
	terrace_session_close(n->session);
	terrace_disconnect(n->client);
	bench_stop(n->pid);
}

static struct terrace_keys list_of(const struct fetch_bench *b, unsigned number)
{
	return service_key(&b->keys, number * BLOCKS, BLOCKS);
}

/* Leases as much of the list as there is. NULL: nothing. */
static struct terrace_lease *lease(const struct node *n, const struct terrace_keys *keys)
{
	struct terrace_lease *out = NULL;
	const enum terrace_status status = terrace_lease(n->session, keys, TERRACE_LEASE_PREFIX, TIMEOUT_US, &out);

	if (status == TERRACE_MISS)
		return NULL;
	service_check(status, "lease");
	return out;
}

/* Members are told of blocks that are used at once. */
static void store_lists(struct fetch_bench *b)
{
	struct terrace_keys other = service_keys(NEAR_BLOCKS, KEY_BYTES, 30);

	b->keys = service_keys((b->rounds + 1) * BLOCKS, KEY_BYTES, 31);
	for (unsigned i = 0; i <= b->rounds; i++) {
		const struct terrace_keys list = list_of(b, i);

		service_fill(b->far.session, &list, b->block_bytes);
		terrace_release(lease(&b->far, &list));
	}
	service_fill(b->near.session, &other, b->block_bytes);
	free((void *)(uintptr_t)other.bytes);
}

/* What a transfer took, and what processors have spent on it. */
struct cost {
	uint64_t ns, work_ns[ENDS];
};

/* Begins to count; the same again ends it. The engine is a part of the end that receives. */
static void cost_count(const struct fetch_bench *b, int side, struct cost *c)
{
	const uint64_t sent = bench_work_ns(side == OURS ? b->far.pid : b->raw_pid);
	const uint64_t received = bench_work_ns(0) + (side == OURS ? bench_work_ns(b->near.pid) : 0);

	c->work_ns[SENDER] = sent - c->work_ns[SENDER];
	c->work_ns[RECEIVER] = received - c->work_ns[RECEIVER];
	c->ns = bench_now_ns() - c->ns;
}

/* Leases a list that the other member has, once it is known to have it. */
static struct terrace_lease *lease_far(const struct fetch_bench *b, unsigned number, struct cost *c)
{
	const struct timespec pause = {0, 100 * 1000 * 1000};
	const struct terrace_keys list = list_of(b, number);
	struct terrace_lease *out = NULL;

	for (int i = 0; i < TRIES && !out; i++) {
		*c = (struct cost){.ns = 0};
		cost_count(b, OURS, c);
		out = lease(&b->near, &list);
		cost_count(b, OURS, c);
		if (!out)
			nanosleep(&pause, NULL);
	}
	if (!out || terrace_lease_count(out) != BLOCKS)
		bench_die("%u of the other member's %d blocks came", out ? terrace_lease_count(out) : 0, BLOCKS);
	return out;
}

/* The first list that comes tells that the others are known too, and that the bytes are right. */
static void begin(struct fetch_bench *b)
{
	const struct terrace_keys list = list_of(b, b->rounds);
	struct cost cost;
	struct terrace_lease *here = lease_far(b, b->rounds, &cost), *there = lease(&b->far, &list);

	for (uint32_t i = 0; i < BLOCKS; i++)
		if (memcmp(terrace_lease_block(here, i, 0), terrace_lease_block(there, i, 0), b->block_bytes))
			bench_die("other bytes came than those that were stored");
	terrace_release(here);
	terrace_release(there);
	raw_tls_get(b->raw, b->got, BLOCKS, b->block_bytes);
}

static void round_of(struct fetch_bench *b, unsigned round)
{
	const double bytes = (double)BLOCKS * (double)b->block_bytes, mib = bytes / 1048576;

	for (unsigned i = 0; i < SIDES; i++) {
		const int side = (int)((i + round) % SIDES);
		struct cost c = {.ns = 0};

		if (side == OURS) {
			terrace_release(lease_far(b, round, &c));
		} else {
			cost_count(b, RAW, &c);
			raw_tls_get(b->raw, b->got, BLOCKS, b->block_bytes);
			cost_count(b, RAW, &c);
		}
		b->rate[side][round] = bytes * 1e3 / (double)c.ns;
		for (int end = 0; end < ENDS; end++)
			b->work[end][side][round] = (double)c.work_ns[end] / 1e3 / mib;
		b->work[ENDS][side][round] = b->work[SENDER][side][round] + b->work[RECEIVER][side][round];
	}
}

static void start(struct fetch_bench *b)
{
	char cipher[CIPHER_BYTES];

	far_enter(&b->cluster.far);
	b->raw_pid = bench_spawn("raw", (const char *const[]){"/proc/self/exe", RAW_TLS_SERVER_COMMAND,
							      bench_options.folder, NULL});
	far_return(&b->cluster.far);
	node_start(b, "far", true, FAR_BYTES, &b->far);
	node_start(b, "near", false, NEAR_BYTES, &b->near);
	b->raw = raw_tls_open(bench_options.folder, b->cluster.far.host);
	raw_tls_cipher_of(bench_options.folder, b->cluster.far.host, service_port("far"), cipher, sizeof(cipher));
	if (strcmp(cipher, raw_tls_cipher(b->raw)))
		bench_die("the daemon chose %s, and the raw stream has %s", cipher, raw_tls_cipher(b->raw));
	b->got = malloc(BLOCKS * b->block_bytes);
	if (!b->got)
		bench_die("out of memory");
	cluster_await("far");
	cluster_await("near");
	store_lists(b);
	begin(b);
}

static void report(const struct fetch_bench *b)
{
	static const char *const units[ENDS + 1] = {
		"us of the sender's processors a MiB", "us of the receiver's processors a MiB",
		"us of both ends' processors a MiB",
	};
	char name[192];
	struct bench_figure f = {.bench = "fetch", .name = name, .unit = "MB/s", .goal = BENCH_AT_LEAST, .target = .8};

	snprintf(name, sizeof(name), "lease of %d blocks of %" PRIu64 " KiB of another member / one raw stream, %s, %s",
		 BLOCKS, b->block_bytes >> 10, raw_tls_cipher(b->raw), b->cluster.far.network);
	bench_figure_of_pairs(&f, b->rate[OURS], b->rate[RAW], b->rounds);
	bench_report(&f);
	for (int i = 0; i <= ENDS; i++) {
		struct bench_figure work = {.bench = "fetch", .name = name, .unit = units[i]};

		bench_figure_of_pairs(&work, b->work[i][OURS], b->work[i][RAW], b->rounds);
		bench_report(&work);
	}
}

int bench_fetch(void)
{
	static struct fetch_bench b;
	const unsigned wanted = bench_options.rounds * 3;

	b.rounds = wanted < ROUNDS_MAX ? wanted : ROUNDS_MAX;
	if (!cluster_make(&b.cluster))
		return BENCH_SKIPPED;
	start(&b);
	for (unsigned i = 0; i < b.rounds; i++)
		round_of(&b, i);
	report(&b);
	raw_tls_close(b.raw);
	bench_stop(b.raw_pid);
	node_stop(&b.near);
	node_stop(&b.far);
	cluster_end(&b.cluster);
	free((void *)(uintptr_t)b.keys.bytes);
	free(b.got);
	return 0;
}
