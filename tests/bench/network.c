/* An engine on another machine: lists of blocks by stream over TLS, through a real daemon at the other end of a veth
 * pair, beside one raw OpenSSL stream of the same cipher over the same pair. A list's blocks are asked for at once, by
 * asynchronous calls, and it has come when the last one has. The two sides take turns, and the first place changes.
 * What the processors of both ends spend is a second figure: it changes less on a busy machine, where rates mean little.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/far.h"
#include "tests/bench/raw_tls.h"
#include "tests/bench/service.h"

enum { BLOCKS_MAX = 64, ROUNDS_MAX = 27, TIMEOUT_US = 30 * 1000 * 1000, CIPHER_BYTES = 64 };
enum { GET, PUT, OPS };
enum { OURS, RAW, SIDES };

/* heads: of 32 layers in int4_pth, 68 KiB each. lists: in one turn, as one list of few blocks is soon there. */
static const struct shape {
	uint32_t blocks, heads, lists;
} shapes[] = {{64, 8, 2}, {16, 2, 16}};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct network_bench {
	struct far far;
	int raw_pid, daemon_pid;
	struct raw_tls *raw;
	struct terrace_client *client;
	struct terrace_session *session;
	const struct shape *shape;
	struct terrace_keys keys, new_keys; /* new: of what is put and deleted again */
	uint64_t block_bytes;
	uint8_t *blocks, *got; /* of a list */
	double rate[OPS][SIDES][ROUNDS_MAX]; /* MB/s */
	double work[OPS][SIDES][ROUNDS_MAX]; /* us of processors a MiB, of both ends */
};

/* ---- the daemon ---- */

static void connect_far(struct network_bench *b, uint16_t port)
{
	struct terrace_connect_options options = TERRACE_CONNECT_OPTIONS_INIT;
	char address[64], cert[128], key[128];

	snprintf(address, sizeof(address), "%s:%u", b->far.host, port);
	snprintf(cert, sizeof(cert), "%s/tls.pem", bench_options.folder);
	snprintf(key, sizeof(key), "%s/tls.key", bench_options.folder);
	options.address = address;
	options.timeout_us = TIMEOUT_US;
	options.tls_cert = options.tls_ca = cert;
	options.tls_key = key;
	service_check(terrace_connect(&options, &b->client), "connect over TLS");
}

static void start(struct network_bench *b)
{
	char address[128], listen[64], cert[128], key[128], cipher[CIPHER_BYTES];
	uint16_t port;

	far_make(&b->far);
	raw_tls_certificate(bench_options.folder);
	snprintf(listen, sizeof(listen), "%s:0", b->far.host);
	snprintf(cert, sizeof(cert), "%s/tls.pem", bench_options.folder);
	snprintf(key, sizeof(key), "%s/tls.key", bench_options.folder);
	far_enter(&b->far);
	b->daemon_pid = service_spawn("terraced", bench_options.terraced, "256MiB", address, sizeof(address),
				      (const char *const[]){"--listen", listen, "--listen-cert", cert, "--listen-key",
							    key, "--listen-ca", cert, NULL});
	b->raw_pid = bench_spawn("raw", (const char *const[]){"/proc/self/exe", RAW_TLS_SERVER_COMMAND,
							      bench_options.folder, NULL});
	far_return(&b->far);
	port = service_port("terraced");
	b->raw = raw_tls_open(bench_options.folder, b->far.host);
	raw_tls_cipher_of(bench_options.folder, b->far.host, port, cipher, sizeof(cipher));
	if (strcmp(cipher, raw_tls_cipher(b->raw)))
		bench_die("the daemon chose %s, and the raw stream has %s", cipher, raw_tls_cipher(b->raw));
	connect_far(b, port);
}

static void stop(struct network_bench *b)
{
	terrace_disconnect(b->client);
	raw_tls_close(b->raw);
	bench_stop(b->raw_pid);
	bench_stop(b->daemon_pid);
	far_end(&b->far);
}

/* ---- lists ---- */

static void get_list(struct network_bench *b)
{
	struct terrace_op *ops[BLOCKS_MAX];

	for (uint32_t i = 0; i < b->keys.count; i++)
		service_check(terrace_get_async(b->session, 0, b->keys.bytes + (size_t)i * b->keys.key_bytes,
						b->keys.key_bytes, b->got + i * b->block_bytes, 0, NULL, &ops[i]),
			      "get");
	for (uint32_t i = 0; i < b->keys.count; i++)
		service_check(terrace_get_finish(ops[i], NULL), "get");
}

static void put_list(struct network_bench *b, const struct terrace_keys *keys)
{
	struct terrace_op *ops[BLOCKS_MAX];

	for (uint32_t i = 0; i < keys->count; i++)
		service_check(terrace_put_async(b->session, 0, keys->bytes + (size_t)i * keys->key_bytes,
						keys->key_bytes, NULL, b->blocks + i * b->block_bytes, 0, NULL, &ops[i]),
			      "put");
	for (uint32_t i = 0; i < keys->count; i++)
		service_check(terrace_put_finish(ops[i]), "put");
}

/* Nanoseconds of one list; adds those of the processors to *work_ns. */
static uint64_t list_ns(struct network_bench *b, int op, int side, uint64_t *work_ns)
{
	const int pid = side == RAW ? b->raw_pid : b->daemon_pid;
	const uint64_t work = bench_work_ns(pid) + bench_work_ns(0), start = bench_now_ns();

	if (side == RAW && op == GET)
		raw_tls_get(b->raw, b->got, b->keys.count, b->block_bytes);
	else if (side == RAW)
		raw_tls_put(b->raw, b->blocks, b->keys.count, b->block_bytes);
	else if (op == GET)
		get_list(b);
	else
		put_list(b, &b->new_keys);

	const uint64_t ns = bench_now_ns() - start;

	*work_ns += bench_work_ns(pid) + bench_work_ns(0) - work;
	if (side == OURS && op == PUT)
		service_check(terrace_delete(b->session, &b->new_keys, 0, NULL), "delete");
	if (side == OURS && op == GET && memcmp(b->got, b->blocks, b->keys.count * b->block_bytes))
		bench_die("other bytes came than those that were stored");
	return ns;
}

static void round_of(struct network_bench *b, unsigned round)
{
	const double bytes = (double)b->shape->lists * b->shape->blocks * (double)b->block_bytes;

	for (int op = 0; op < OPS; op++)
		for (unsigned i = 0; i < SIDES; i++) {
			const int side = (int)((i + round) % SIDES);
			uint64_t ns = 0, work_ns = 0;

			for (uint32_t l = 0; l < b->shape->lists; l++)
				ns += list_ns(b, op, side, &work_ns);
			b->work[op][side][round] = (double)work_ns / 1e3 / (bytes / 1048576);
			b->rate[op][side][round] = bytes * 1e3 / (double)ns;
		}
}

static void report(const struct network_bench *b, unsigned rounds)
{
	static const char *const ops[OPS] = {"get", "put"};
	char name[192];

	for (int op = 0; op < OPS; op++) {
		struct bench_figure f = {.bench = "network", .name = name, .unit = "MB/s", .goal = BENCH_AT_LEAST,
					 .target = .8};
		struct bench_figure work = {.bench = "network", .name = name,
					    .unit = "us of both ends' processors a MiB"};

		snprintf(name, sizeof(name), "%s by stream of lists of %" PRIu32 " blocks of %" PRIu64
			 " KiB / one raw stream, %s, %s", ops[op], b->shape->blocks, b->block_bytes >> 10,
			 raw_tls_cipher(b->raw), b->far.network);
		bench_figure_of_pairs(&f, b->rate[op][OURS], b->rate[op][RAW], rounds);
		bench_report(&f);
		bench_figure_of_pairs(&work, b->work[op][OURS], b->work[op][RAW], rounds);
		bench_report(&work);
	}
}

static void shape_run(struct network_bench *b, const struct shape *shape, unsigned rounds)
{
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;
	const struct terrace_layout layout =
		service_layout("bench network", TERRACE_FORMAT_INT4_PTH, 32, shape->heads, 128);
	uint64_t bytes, seed = 8;

	b->shape = shape;
	b->block_bytes = terrace_block_bytes(&layout);
	bytes = shape->blocks * b->block_bytes;
	b->blocks = malloc(bytes);
	b->got = malloc(bytes);
	if (!b->blocks || !b->got)
		bench_die("out of memory");
	for (uint64_t i = 0; i < bytes / 8; i++)
		((uint64_t *)(void *)b->blocks)[i] = bench_random(&seed);
	b->keys = service_keys(shape->blocks, 16, 20);
	b->new_keys = service_keys(shape->blocks, 16, 21);
	options.engine = "terrace-bench";
	service_check(terrace_session_open(b->client, &layout, 1, &options, &b->session), "open session");
	put_list(b, &b->keys);
	for (int op = 0; op < OPS; op++) /* to fault memory in on both sides */
		for (int side = 0; side < SIDES; side++)
			list_ns(b, op, side, &seed);
	for (unsigned i = 0; i < rounds; i++)
		round_of(b, i);
	terrace_session_close(b->session);
	report(b, rounds);
	free((void *)(uintptr_t)b->keys.bytes);
	free((void *)(uintptr_t)b->new_keys.bytes);
	free(b->blocks);
	free(b->got);
}

int bench_network(void)
{
	static struct network_bench b;
	const unsigned wanted = bench_options.rounds * 3, rounds = wanted < ROUNDS_MAX ? wanted : ROUNDS_MAX;

	start(&b);
	for (size_t i = 0; i < SHAPES; i++)
		shape_run(&b, &shapes[i], rounds);
	stop(&b);
	return 0;
}
