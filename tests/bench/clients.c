/* Several engine processes at one daemon: calls a second and their times at 1, 2, 4, 8 and 12 processes.
 *
 * The processes (clients_worker.c) are started once and wait for their turn. With --against BUILD there is a second daemon of that build, with
 * processes that load that build's libterrace; the two sides take turns, the first place changing, and each figure is the median of the ratios of
 * TURNS pairs, with its interval of 95 %. Without it the baseline of a figure is what one process reaches in the same run.
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

/* What a turn of one side gave. */
struct turn {
	double calls_s, p50_us, p99_us;
};

struct clients {
	struct side sides[SIDES_MAX];
	uint32_t side_count, turns;
	uint64_t run_ns;
};

static struct turn side_turn(struct side *s, enum clients_call call, uint32_t processes, uint64_t run_ns)
{
	const struct clients_order order = { .command = CLIENTS_RUN, .call = call, .run_ns = run_ns };
	struct clients_result all = { 0 }, one;
	struct turn turn = { 0 };

	for (uint32_t i = 0; i < processes; i++)
		side_order(&s->processes[i], &order);
	for (uint32_t i = 0; i < processes; i++) {
		side_result(&s->processes[i], &one);
		if (one.wrong)
			bench_die("%s: %" PRIu64 " blocks with wrong bytes", call_names[call], one.wrong);
		turn.calls_s += (double)one.calls * 1e9 / (double)one.ns;
		all.calls += one.calls;
		for (int j = 0; j < CLIENTS_BUCKETS; j++)
			all.histogram[j] += one.histogram[j];
		s->verified += one.verified;
		s->missing += one.missing;
		s->refused += one.refused;
	}
	turn.p50_us = side_time_us(&all, .5);
	turn.p99_us = side_time_us(&all, .99);
	return turn;
}

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

static void turn_values(const struct turn *t, double *values[FIGURES])
{
	*values[0] = t->calls_s;
	*values[1] = t->p50_us;
	*values[2] = t->p99_us;
}

/* lone: with one side, what one process reached, the baseline of all others. */
static void measure(struct clients *c, enum clients_call call, uint32_t processes, double lone[FIGURES])
{
	const bool alone = c->side_count == 1;
	double values[FIGURES][TURNS][SIDES_MAX];
	char name[96];

	for (uint32_t i = 0; i < c->turns; i++) {
		for (uint32_t j = 0; j < c->side_count; j++) {
			const uint32_t side = alone ? 0 : (i + j) % 2;
			const struct turn t = side_turn(&c->sides[side], call, processes, c->run_ns);

			turn_values(&t, (double *[FIGURES]){ &values[0][i][side], &values[1][i][side], &values[2][i][side] });
		}
		for (int f = 0; alone && f < FIGURES; f++)
			values[f][i][1] = processes == 1 ? values[f][i][0] : lone[f];
	}
	snprintf(name, sizeof(name), "%s, %u %s", call_names[call], processes, processes == 1 ? "process" : "processes");
	for (int f = 0; f < FIGURES; f++) {
		double own[TURNS];

		for (uint32_t i = 0; i < c->turns; i++)
			own[i] = values[f][i][0];
		if (processes == 1)
			lone[f] = bench_median(own, c->turns);
		report_pairs(name, &kinds[f], !alone, values[f], c->turns);
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

/* Puts come last: they evict what lookups and leases ask for. */
int bench_clients(void)
{
	static struct clients c;
	double lone[FIGURES] = { 0 };

	c.turns = bench_options.quick ? TURNS_QUICK : TURNS;
	c.run_ns = (bench_options.quick ? TURN_MS_QUICK : TURN_MS) * 1000000ull;
	c.side_count = sides_open(c.sides);
	for (uint32_t i = 0; i < c.side_count; i++)
		side_filled(&c.sides[i], i ? "against" : "terraced");
	for (int call = 0; call < CLIENTS_CALLS; call++)
		for (int i = 0; i < COUNTS; i++)
			measure(&c, (enum clients_call)call, process_counts[i], lone);
	for (uint32_t i = 0; i < c.side_count; i++) {
		side_stop(&c.sides[i]);
		if (!c.sides[i].verified)
			bench_die("no block was looked at");
	}
	return 0;
}
