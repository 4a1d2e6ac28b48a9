/* Several engine processes at one daemon: calls a second and their times at 1, 2, 4, 8 and 12 processes.
 *
 * With --against BUILD there is a second daemon of that build, with processes that load that build's libterrace; each figure is the median
 * of the ratios of TURNS pairs, with its interval of 95 %. Every pair has daemons and processes of its own, and the two sides take turns
 * in it, the first place changing: where a process's memory lies and which processors it gets moves a figure by up to a fifth for as long as
 * that process lives, so that pairs of two processes alone would have narrow intervals around a chance value. Without --against the
 * baseline of a figure is what one process reaches in the same run.
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/bench/bench.h"
#include "tests/bench/clients.h"
#include "tests/bench/sides.h"

enum { TURNS = 21, TURNS_QUICK = 3, TURN_MS = 100, TURN_MS_QUICK = 20 };

static const char *const call_names[CLIENTS_CALLS] = {
	[CLIENTS_LOOKUP] = "lookup of 64 keys", [CLIENTS_LEASE] = "lease and release of 16 blocks", [CLIENTS_PUT] = "put of 4 blocks in place",
};
static const uint32_t process_counts[] = { 1, 2, 4, 8, 12 };
enum { COUNTS = sizeof(process_counts) / sizeof(process_counts[0]) };

/* What a figure is, and which way it is better. */
struct figure_kind {
	const char *unit;
	enum bench_goal goal;
	double target;
};
enum { FIGURES = 3 };
static const struct figure_kind kinds[FIGURES] = {
	{ "calls/s", BENCH_AT_LEAST, 1 / 1.03 }, { "us, p50", BENCH_AT_MOST, 1.03 }, { "us, p99", BENCH_NONE, 0 },
};

/* A figure's value of each pair and side. */
typedef double pairs[TURNS][SIDES_MAX];

struct clients {
	struct side sides[SIDES_MAX];
	uint32_t side_count, turns;
	uint64_t run_ns;
	pairs values[CLIENTS_CALLS][COUNTS][FIGURES];
};

/* One figure of pairs of turns. */
static void report_pairs(const char *name, const struct figure_kind *kind, bool judged, double (*values)[SIDES_MAX], uint32_t turns)
{
	struct bench_figure f = { .bench = "clients", .name = name, .unit = kind->unit };
	double own[TURNS], other[TURNS];

	for (uint32_t i = 0; i < turns; i++) {
		own[i] = values[i][0];
		other[i] = values[i][1];
	}
	bench_figure_of_pairs(&f, own, other, turns);
	if (judged) {
		f.goal = kind->goal;
		f.target = kind->target;
	}
	bench_report(&f);
}

/* lone: with one side, what one process reached, the baseline of all others. */
static void report(struct clients *c, enum clients_call call, int count, double lone[FIGURES])
{
	const bool alone = c->side_count == 1;
	const uint32_t processes = process_counts[count];
	char name[96];

	snprintf(name, sizeof(name), "%s, %u %s", call_names[call], processes, processes == 1 ? "process" : "processes");
	for (int f = 0; f < FIGURES; f++) {
		double(*values)[SIDES_MAX] = c->values[call][count][f];
		double own[TURNS];

		for (uint32_t i = 0; i < c->turns; i++)
			own[i] = values[i][0];
		if (processes == 1)
			lone[f] = bench_median(own, c->turns);
		for (uint32_t i = 0; alone && i < c->turns; i++)
			values[i][1] = processes == 1 ? values[i][0] : lone[f];
		report_pairs(name, &kinds[f], !alone, values, c->turns);
	}
}

static void side_filled(struct side *s, const char *name)
{
	static const struct clients_order fill = { .command = CLIENTS_FILL };
	struct clients_result filled;

	side_start(s, name, "256MiB", (const char *const[]){ NULL }, SIDE_PROCESSES_MAX);
	side_order(&s->processes[0], &fill);
	side_result(&s->processes[0], &filled);
	if (filled.refused)
		bench_die("%" PRIu64 " blocks of the fill were refused", filled.refused);
}

/* One turn of each side, for that call and so many processes. */
static void take_turns(struct clients *c, enum clients_call call, int count, uint32_t pair)
{
	for (uint32_t j = 0; j < c->side_count; j++) {
		const uint32_t side = (pair + j) % c->side_count;
		const struct side_turn t = side_take_turn(&c->sides[side], call, process_counts[count], c->run_ns);

		c->values[call][count][0][pair][side] = t.calls_s;
		c->values[call][count][1][pair][side] = t.p50_us;
		c->values[call][count][2][pair][side] = t.p99_us;
	}
}

/* Of daemons and processes that are started for it. Puts come last: they evict what lookups and leases ask for. */
static void run_pair(struct clients *c, uint32_t pair)
{
	for (uint32_t i = 0; i < c->side_count; i++) {
		const uint32_t side = (pair + i) % c->side_count;

		side_filled(&c->sides[side], side ? "against" : "terraced");
	}
	for (int call = 0; call < CLIENTS_CALLS; call++)
		for (int count = 0; count < COUNTS; count++)
			take_turns(c, (enum clients_call)call, count, pair);
	for (uint32_t i = 0; i < c->side_count; i++)
		side_stop(&c->sides[i]);
}

int bench_clients(void)
{
	static struct clients c;
	double lone[FIGURES] = { 0 };

	c.turns = bench_options.quick ? TURNS_QUICK : TURNS;
	c.run_ns = (bench_options.quick ? TURN_MS_QUICK : TURN_MS) * 1000000ull;
	c.side_count = sides_open(c.sides);
	for (uint32_t pair = 0; pair < c.turns; pair++)
		run_pair(&c, pair);
	for (int call = 0; call < CLIENTS_CALLS; call++)
		for (int count = 0; count < COUNTS; count++)
			report(&c, (enum clients_call)call, count, lone);
	for (uint32_t i = 0; i < c.side_count; i++)
		if (!c.sides[i].verified)
			bench_die("no block was looked at");
	return 0;
}
