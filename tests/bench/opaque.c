/* Blocks of opaque layouts beside packed ones of as many bytes: puts by borrow, leases, gets by stream, flushes to a disk
 * and loads from it. A round does each for a packed layout and for opaque ones, with layers and without, the kinds taking
 * turns at being first; a figure is of the rounds' pairs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/service.h"

enum { BLOCKS = 64, BLOCKS_QUICK = 8, LAYERS = 32, ROUNDS_MAX = 27, FILLERS = 448, LEASES = 32 /* a round */ };

enum { PACKED, LAYERED, WHOLE, KINDS };
enum { PUT, LEASE, GET, FLUSH, LOAD, OPS };

struct opaque_bench {
	struct service service;
	struct terrace_session *session[KINDS], *filler;
	struct terrace_keys keys, fillers;
	uint64_t block_bytes;
	uint8_t *block;
	uint32_t blocks;
	double us[KINDS][OPS][ROUNDS_MAX]; /* a block */
};

static struct terrace_layout opaque_layout(const struct terrace_layout *packed, uint32_t layers)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;

	memcpy(l.fingerprint, packed->fingerprint, sizeof(l.fingerprint));
	l.layers = layers;
	l.block_tokens = packed->block_tokens;
	l.k_format = TERRACE_FORMAT_OPAQUE;
	l.opaque_bytes = terrace_block_bytes(packed);
	strcpy(l.opaque_name, "bench/pages/1");
	return l;
}

static void put(struct opaque_bench *b, struct terrace_session *session)
{
	struct terrace_reservation *reservation = NULL;
	enum terrace_status statuses[BLOCKS];

	service_check(terrace_reserve(session, &b->keys, NULL, 0, statuses, &reservation), "reserve");
	for (uint32_t i = 0; i < b->blocks; i++) {
		service_check(statuses[i], "reserve a block");
		memcpy(terrace_reservation_block(reservation, i, 0), b->block, b->block_bytes);
	}
	service_check(terrace_commit(reservation, 0, statuses, NULL), "commit");
	for (uint32_t i = 0; i < b->blocks; i++)
		service_check(statuses[i], "commit a block");
}

/* Waits for the disk, if they are there alone. */
static void lease(struct opaque_bench *b, struct terrace_session *session)
{
	struct terrace_lease *lease = NULL;

	service_check(terrace_lease(session, &b->keys, TERRACE_LEASE_ALL, 0, &lease), "lease");
	bench_keep(*(const uint8_t *)terrace_lease_block(lease, b->blocks - 1, 0));
	terrace_release(lease);
}

static void get(struct opaque_bench *b, struct terrace_session *session)
{
	for (uint32_t i = 0; i < b->blocks; i++) {
		const struct terrace_keys one = service_key(&b->keys, i, 1);

		service_check(terrace_get(session, 0, one.bytes, one.key_bytes, b->block, NULL, 0), "get");
	}
}

/* Until none of them is in memory: what is put meanwhile is not kept. */
static void push_out(struct opaque_bench *b, struct terrace_session *session)
{
	uint8_t states[BLOCKS];
	uint32_t prefix, in_memory = 1;

	for (int tries = 0; in_memory && tries < 64; tries++) {
		service_fill(b->filler, &b->fillers, b->block_bytes);
		service_check(terrace_delete(b->filler, &b->fillers, 0, NULL), "delete");
		service_check(terrace_lookup(session, &b->keys, 0, &prefix, states), "lookup");
		in_memory = 0;
		for (uint32_t i = 0; i < b->blocks; i++)
			in_memory += states[i] == TERRACE_STATE_HOST;
	}
	if (in_memory)
		bench_die("%u blocks stay in memory", in_memory);
}

static void do_one(struct opaque_bench *b, int op, struct terrace_session *session)
{
	switch (op) {
	case PUT:
		put(b, session);
		break;
	case LEASE:
		for (int i = 0; i < LEASES; i++)
			lease(b, session);
		break;
	case GET:
		get(b, session);
		break;
	case FLUSH:
		service_check(terrace_flush(session, &b->keys, 60 * 1000 * 1000, NULL), "flush");
		break;
	default:
		lease(b, session);
	}
}

static void round_of(struct opaque_bench *b, unsigned round)
{
	for (int op = 0; op < OPS; op++)
		for (unsigned i = 0; i < KINDS; i++) {
			const unsigned kind = (i + round) % KINDS;
			uint64_t start;

			if (op == LOAD)
				push_out(b, b->session[kind]);
			start = bench_now_ns();
			do_one(b, op, b->session[kind]);
			b->us[kind][op][round] = (double)(bench_now_ns() - start) / 1e3 / b->blocks / (op == LEASE ? LEASES : 1);
		}
	for (int kind = 0; kind < KINDS; kind++)
		service_check(terrace_delete(b->session[kind], &b->keys, 0, NULL), "delete");
}

static void report(struct opaque_bench *b, unsigned rounds)
{
	static const char *const ops[OPS] = {"put by borrow", "lease", "get by stream", "flush", "load by lease"};
	char name[96];

	for (int op = 0; op < OPS; op++)
		for (int kind = LAYERED; kind < KINDS; kind++) {
			struct bench_figure f = {
				.bench = "opaque", .name = name, .unit = "us a block", .goal = BENCH_AT_MOST, .target = 1.03,
			};

			snprintf(name, sizeof(name), "%s, opaque %s / packed", ops[op], kind == LAYERED ? "in layers" : "without layers");
			bench_figure_of_pairs(&f, b->us[kind][op], b->us[PACKED][op], rounds);
			bench_report(&f);
		}
}

static void open_sessions(struct opaque_bench *b)
{
	const struct terrace_layout packed = service_layout("bench opaque", TERRACE_FORMAT_INT4_PTH, LAYERS, 8, 128);
	const struct terrace_layout layered = opaque_layout(&packed, LAYERS), whole = opaque_layout(&packed, 0);
	const struct terrace_layout filler = service_layout("bench opaque, others", TERRACE_FORMAT_INT4_PTH, LAYERS, 8, 128);

	b->block_bytes = terrace_block_bytes(&packed); /* 544 KiB */
	b->session[PACKED] = service_session(&b->service, &packed);
	b->session[LAYERED] = service_session(&b->service, &layered);
	b->session[WHOLE] = service_session(&b->service, &whole);
	b->filler = service_session(&b->service, &filler);
}

int bench_opaque(void)
{
	static struct opaque_bench b;
	const unsigned wanted = bench_options.rounds * 3, rounds = wanted < ROUNDS_MAX ? wanted : ROUNDS_MAX;
	uint64_t seed = 6;

	b.blocks = bench_options.quick ? BLOCKS_QUICK : BLOCKS;
	service_start_disk(&b.service, "256MiB", "1GiB", "0");
	open_sessions(&b);
	b.block = malloc(b.block_bytes);
	if (!b.block)
		bench_die("out of memory");
	for (uint64_t i = 0; i < b.block_bytes; i++)
		b.block[i] = (uint8_t)bench_random(&seed);
	b.keys = service_keys(b.blocks, 16, 10);
	b.fillers = service_keys(FILLERS, 16, 11);
	for (unsigned i = 0; i < rounds; i++)
		round_of(&b, i);
	for (int kind = 0; kind < KINDS; kind++)
		terrace_session_close(b.session[kind]);
	terrace_session_close(b.filler);
	service_stop(&b.service);
	free((void *)(uintptr_t)b.keys.bytes);
	free((void *)(uintptr_t)b.fillers.bytes);
	free(b.block);
	report(&b, rounds);
	return 0;
}
