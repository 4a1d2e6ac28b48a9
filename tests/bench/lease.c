/* Reading cached blocks: lease, add up all bytes in place, release; against GET of the same bytes from Redis
 * over a Unix socket, added up in the reader's buffer. Nothing of a lease is cached between turns: each is
 * one Lease call. The extents stay mapped, as in an engine that runs; the first lease of a session, which
 * maps them, is a case of its own. Blocks take turns, so that no cache holds them.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/redis.h"
#include "tests/bench/service.h"

enum { BLOCKS = 256, SINGLES = 256, SINGLES_QUICK = 16, AHEAD = 4 };

enum { GET_1, LEASE_1, GET_256, GET_256_PIPELINED, LEASE_256, LEASE_256_FIRST, CASE_COUNT };

struct lease_bench {
	struct service service;
	struct redis redis;
	struct terrace_layout layout;
	uint64_t block_bytes;
	struct terrace_session *session;
	struct terrace_keys keys;
	void *buffer;
	uint32_t turn;
	double best_ns[CASE_COUNT]; /* a block */
};

static void read_leased(struct terrace_session *session, const struct terrace_keys *keys,
			uint64_t block_bytes)
{
	struct terrace_lease *lease = NULL;

	service_check(terrace_lease(session, keys, TERRACE_LEASE_ALL, 0, &lease), "lease");
	for (uint32_t i = 0; i < keys->count; i++)
		bench_keep(bench_sum(terrace_lease_block(lease, i, 0), block_bytes));
	terrace_release(lease);
}

/* A session of its own: its attachment has mapped nothing yet. */
static uint64_t first_lease_ns(struct lease_bench *b)
{
	struct terrace_session *session = service_session(&b->service, &b->layout);
	uint64_t start = bench_now_ns(), ns;

	read_leased(session, &b->keys, b->block_bytes);
	ns = bench_now_ns() - start;
	terrace_session_close(session);
	return ns;
}

static void note(struct lease_bench *b, int which, double ns)
{
	b->best_ns[which] = fmin(b->best_ns[which], ns);
}

static void round_of_singles(struct lease_bench *b)
{
	unsigned n = bench_options.quick ? SINGLES_QUICK : SINGLES;
	double get[SINGLES], lease[SINGLES];

	for (unsigned i = 0; i < n; i++, b->turn++) {
		struct terrace_keys one = service_key(&b->keys, b->turn % BLOCKS, 1);
		uint64_t start = bench_now_ns();

		redis_get(&b->redis, (b->turn + BLOCKS / 2) % BLOCKS, 1, 1, b->buffer, bench_sum);
		get[i] = (double)(bench_now_ns() - start);
		start = bench_now_ns();
		read_leased(b->session, &one, b->block_bytes);
		lease[i] = (double)(bench_now_ns() - start);
	}
	note(b, GET_1, bench_median(get, n));
	note(b, LEASE_1, bench_median(lease, n));
}

static void round_of_all(struct lease_bench *b)
{
	uint64_t start = bench_now_ns();

	for (uint32_t i = 0; i < BLOCKS; i++)
		redis_get(&b->redis, i, 1, 1, b->buffer, bench_sum);
	note(b, GET_256, (double)(bench_now_ns() - start) / BLOCKS);
	start = bench_now_ns();
	read_leased(b->session, &b->keys, b->block_bytes);
	note(b, LEASE_256, (double)(bench_now_ns() - start) / BLOCKS);
	start = bench_now_ns();
	redis_get(&b->redis, 0, BLOCKS, AHEAD, b->buffer, bench_sum);
	note(b, GET_256_PIPELINED, (double)(bench_now_ns() - start) / BLOCKS);
	note(b, LEASE_256_FIRST, (double)first_lease_ns(b) / BLOCKS);
}

/* Redis gets the bytes that the cache has. */
static void fill(struct lease_bench *b)
{
	struct terrace_lease *lease = NULL;

	service_fill(b->session, &b->keys, b->block_bytes);
	service_check(terrace_lease(b->session, &b->keys, TERRACE_LEASE_ALL, 0, &lease), "lease");
	for (uint32_t i = 0; i < BLOCKS; i++)
		redis_set(&b->redis, i, terrace_lease_block(lease, i, 0));
	terrace_release(lease);
}

static void report(const struct lease_bench *b)
{
	static const struct {
		const char *name;
		int which, baseline;
		enum bench_goal goal;
		double target;
	} cases[] = {
		{"lease + read + release of 1 / GET", LEASE_1, GET_1, BENCH_AT_LEAST, 1},
		{"lease + read + release of 256 / 256 GETs", LEASE_256, GET_256, BENCH_AT_LEAST, 5},
		{"lease + read + release of 256 / 256 GETs, 4 ahead", LEASE_256, GET_256_PIPELINED,
		 BENCH_NONE, 0},
		{"first lease of a session, 256 / 256 GETs", LEASE_256_FIRST, GET_256, BENCH_NONE, 0},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		bench_report(&(struct bench_figure){
			.bench = "lease",
			.name = cases[i].name,
			.unit = "blocks/s",
			.value = 1e9 / b->best_ns[cases[i].which],
			.baseline = 1e9 / b->best_ns[cases[i].baseline],
			.goal = cases[i].goal,
			.target = cases[i].target,
		});
}

int bench_lease(void)
{
	struct lease_bench b = {.layout = service_layout("bench lease", TERRACE_FORMAT_INT4_PTH, 32, 8, 128)};

	b.block_bytes = terrace_block_bytes(&b.layout); /* 544 KiB */
	if (!redis_start(&b.redis, b.block_bytes))
		return BENCH_SKIPPED;
	for (int i = 0; i < CASE_COUNT; i++)
		b.best_ns[i] = INFINITY;
	b.buffer = aligned_alloc(4096, (b.block_bytes + 4095) / 4096 * 4096);
	if (!b.buffer)
		bench_die("out of memory");
	service_start(&b.service, "512MiB");
	b.session = service_session(&b.service, &b.layout);
	b.keys = service_keys(BLOCKS, 16, 3);
	fill(&b);
	for (unsigned i = 0; i < bench_options.rounds; i++) {
		round_of_singles(&b);
		round_of_all(&b);
	}
	free((void *)(uintptr_t)b.keys.bytes);
	terrace_session_close(b.session);
	service_stop(&b.service);
	redis_stop(&b.redis);
	free(b.buffer);
	report(&b);
	return 0;
}
