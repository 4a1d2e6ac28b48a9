/* Storing and fetching one block at a time: by borrow (reserve, copy in place, commit) and by stream, against
 * Redis SET and GET of the same bytes. The daemon computes checksums of what it stores; Redis does not.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/redis.h"
#include "tests/bench/service.h"

enum { PUTS = 64, PUTS_QUICK = 8 };

enum { SET, PUT_BORROW, PUT_STREAM, GET, GET_STREAM, CASE_COUNT };

struct put_bench {
	struct service service;
	struct redis redis;
	uint64_t block_bytes;
	struct terrace_session *session;
	struct terrace_keys keys;
	uint8_t *block, *buffer;
	double best_ns[CASE_COUNT];
};

static void put_borrow(struct put_bench *b, const struct terrace_keys *one)
{
	struct terrace_reservation *reservation = NULL;
	enum terrace_status status;

	service_check(terrace_reserve(b->session, one, NULL, 0, &status, &reservation), "reserve");
	service_check(status, "reserve a block");
	memcpy(terrace_reservation_block(reservation, 0, 0), b->block, b->block_bytes);
	service_check(terrace_commit(reservation, 0, &status, NULL), "commit");
	service_check(status, "commit a block");
}

static void put_stream(struct put_bench *b, const struct terrace_keys *one)
{
	service_check(terrace_put(b->session, 0, one->bytes, one->key_bytes, NULL, b->block, 0), "put");
}

static void get_stream(struct put_bench *b, const struct terrace_keys *one)
{
	service_check(terrace_get(b->session, 0, one->bytes, one->key_bytes, b->buffer, NULL, 0), "get");
	bench_keep(b->buffer[0]);
}

static uint64_t touch_first(const void *data, size_t bytes)
{
	(void)bytes;
	return *(const uint8_t *)data;
}

static void do_one(struct put_bench *b, int which, uint32_t i)
{
	struct terrace_keys one = service_key(&b->keys, i, 1);

	switch (which) {
	case SET:
		redis_set(&b->redis, i, b->block);
		break;
	case PUT_BORROW:
		put_borrow(b, &one);
		break;
	case PUT_STREAM:
		put_stream(b, &one);
		break;
	case GET:
		redis_get(&b->redis, i, 1, 1, b->buffer, touch_first);
		break;
	default:
		get_stream(b, &one);
	}
}

static void forget(struct put_bench *b, uint32_t i)
{
	struct terrace_keys one = service_key(&b->keys, i, 1);

	service_check(terrace_delete(b->session, &one, 0, NULL), "delete");
}

/* The order leaves a key present for the gets, and absent for each put. */
static void round_of_puts(struct put_bench *b)
{
	unsigned n = bench_options.quick ? PUTS_QUICK : PUTS;
	double ns[CASE_COUNT][PUTS];

	for (uint32_t i = 0; i < n; i++) {
		for (int which = 0; which < CASE_COUNT; which++) {
			uint64_t start;

			if (which == PUT_STREAM)
				forget(b, i);
			start = bench_now_ns();
			do_one(b, which, i);
			ns[which][i] = (double)(bench_now_ns() - start);
		}
		forget(b, i);
	}
	for (int which = 0; which < CASE_COUNT; which++)
		b->best_ns[which] = fmin(b->best_ns[which], bench_median(ns[which], n));
}

static void report(const struct put_bench *b)
{
	static const struct {
		const char *name;
		int which, baseline;
	} cases[] = {
		{"put by borrow / SET", PUT_BORROW, SET},
		{"put by stream / SET", PUT_STREAM, SET},
		{"get by stream / GET", GET_STREAM, GET},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		bench_report(&(struct bench_figure){
			.bench = "put",
			.name = cases[i].name,
			.unit = "blocks/s",
			.value = 1e9 / b->best_ns[cases[i].which],
			.baseline = 1e9 / b->best_ns[cases[i].baseline],
		});
}

int bench_put(void)
{
	struct terrace_layout layout = service_layout("bench put", TERRACE_FORMAT_INT4_PTH, 32, 8, 128);
	struct put_bench b = {.block_bytes = terrace_block_bytes(&layout)}; /* 544 KiB */
	uint64_t seed = 5;

	if (!redis_start(&b.redis, b.block_bytes))
		return BENCH_SKIPPED;
	for (int i = 0; i < CASE_COUNT; i++)
		b.best_ns[i] = INFINITY;
	b.block = malloc(b.block_bytes);
	b.buffer = malloc(b.block_bytes);
	if (!b.block || !b.buffer)
		bench_die("out of memory");
	for (uint64_t i = 0; i < b.block_bytes; i++)
		b.block[i] = (uint8_t)bench_random(&seed);
	service_start(&b.service, "256MiB");
	b.session = service_session(&b.service, &layout);
	b.keys = service_keys(PUTS, 16, 4);
	for (unsigned i = 0; i < bench_options.rounds; i++)
		round_of_puts(&b);
	free((void *)(uintptr_t)b.keys.bytes);
	terrace_session_close(b.session);
	service_stop(&b.service);
	redis_stop(&b.redis);
	free(b.block);
	free(b.buffer);
	report(&b);
	return 0;
}
