/* What a cluster costs where there is nothing to find: lookups and leases of blocks that are in a daemon's own memory,
 * beside the same daemon without a cluster. The other member has no blocks. As with `clients`, each pair has daemons
 * and processes of its own, and the two sides take turns in it, the first place changing.
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/bench/bench.h"
#include "tests/bench/clients.h"
#include "tests/bench/cluster.h"
#include "tests/bench/service.h"
#include "tests/bench/sides.h"

enum { PAIRS = 21, PAIRS_QUICK = 2, TURN_MS = 300, TURN_MS_QUICK = 20, PROCESSES = 2 };
enum { MEMBER, LONE, SIDES };
enum { CALLS_S, P50, FIGURES };

static const struct {
	enum clients_call call;
	uint32_t processes;
	const char *name;
	bool judged;
} cases[] = {
	{ CLIENTS_LOOKUP, 1, "lookup of 64 keys that are here, 1 process", true },
	{ CLIENTS_LEASE, 1, "lease and release of 16 blocks that are here, 1 process", true },
	{ CLIENTS_LOOKUP, 2, "lookup of 64 keys that are here, 2 processes", true },
	{ CLIENTS_LEASE, 2, "lease and release of 16 blocks that are here, 2 processes", true },
	{ CLIENTS_ABSENT, 1, "lookup of 64 new keys that are nowhere, 1 process", false },
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

struct member_bench {
	struct cluster cluster;
	int other_pid;
	struct side sides[SIDES_MAX];
	unsigned pairs;
	uint64_t turn_ns;
	double values[CASES][FIGURES][SIDES][PAIRS];
};

static void other_start(struct member_bench *b)
{
	struct cluster_flags flags;
	char address[128];

	cluster_flags(&b->cluster, "other", true, true, &flags);
	far_enter(&b->cluster.far);
	b->other_pid = service_spawn("other", bench_options.terraced, "64MiB", address, sizeof(address), flags.words);
	far_return(&b->cluster.far);
	cluster_await("other");
}

static void side_begin(struct member_bench *b, int side)
{
	static const char *const names[SIDES] = { "member", "lone" };
	static const struct clients_order fill = { .command = CLIENTS_FILL };
	struct clients_result filled;
	struct cluster_flags flags;

	cluster_flags(&b->cluster, names[side], false, side == MEMBER, &flags);
	if (side == LONE)
		flags.words[1] = "127.0.0.1:7071"; /* both listen at a time */
	side_start(&b->sides[side], names[side], "256MiB", flags.words, PROCESSES);
	side_order(&b->sides[side].processes[0], &fill);
	side_result(&b->sides[side].processes[0], &filled);
	if (filled.refused)
		bench_die("%" PRIu64 " blocks of the fill were refused", filled.refused);
	if (side == MEMBER)
		cluster_await(names[side]);
}

static void run_pair(struct member_bench *b, unsigned pair)
{
	for (unsigned i = 0; i < SIDES; i++)
		side_begin(b, (int)((pair + i) % SIDES));
	for (int k = 0; k < CASES; k++)
		for (unsigned i = 0; i < SIDES; i++) {
			const int side = (int)((pair + i) % SIDES);
			const struct side_turn t =
				side_take_turn(&b->sides[side], cases[k].call, cases[k].processes, b->turn_ns);

			b->values[k][CALLS_S][side][pair] = t.calls_s;
			b->values[k][P50][side][pair] = t.p50_us;
		}
	for (int side = 0; side < SIDES; side++)
		side_stop(&b->sides[side]);
}

static void report(const struct member_bench *b, int k)
{
	struct bench_figure rate = { .bench = "member", .name = cases[k].name, .unit = "calls/s" };
	struct bench_figure time = { .bench = "member", .name = cases[k].name, .unit = "us, p50" };

	if (cases[k].judged) {
		rate.goal = BENCH_AT_LEAST;
		rate.target = 1 / 1.03;
		time.goal = BENCH_AT_MOST;
		time.target = 1.03;
	}
	bench_figure_of_pairs(&rate, b->values[k][CALLS_S][MEMBER], b->values[k][CALLS_S][LONE], b->pairs);
	bench_report(&rate);
	bench_figure_of_pairs(&time, b->values[k][P50][MEMBER], b->values[k][P50][LONE], b->pairs);
	bench_report(&time);
}

int bench_member(void)
{
	static struct member_bench b;

	b.pairs = bench_options.quick ? PAIRS_QUICK : PAIRS;
	b.turn_ns = (bench_options.quick ? TURN_MS_QUICK : TURN_MS) * 1000000ull;
	if (!cluster_make(&b.cluster))
		return BENCH_SKIPPED;
	sides_open(b.sides);
	b.sides[LONE] = b.sides[MEMBER];
	other_start(&b);
	for (unsigned i = 0; i < b.pairs; i++)
		run_pair(&b, i);
	for (int k = 0; k < CASES; k++)
		report(&b, k);
	bench_stop(b.other_pid);
	cluster_end(&b.cluster);
	return 0;
}
