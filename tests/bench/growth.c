/* Puts of eight engine processes into memory that is being made meanwhile: the calls that wait for it.
 *
 * A new daemon has little memory at first, and takes more of the kernel's pages as puts need it. In a short turn,
 * some calls of which meet that, the time below which 99 % of the calls are shows it, so the worst turn counts; and
 * the longest call of all. With --against BUILD both builds' daemons take turns. Each is started anew a few times,
 * and the median over these counts.
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/bench/bench.h"
#include "tests/bench/clients.h"
#include "tests/bench/sides.h"

enum { PROCESSES = 8, STARTS = 5, STARTS_QUICK = 1, TURNS = 12, TURNS_QUICK = 3, TURN_MS = 100, WARM_MS = 2 };

/* Of one start of a side's daemon. */
struct grown {
	double worst_p99_us, longest_us;
	uint64_t calls, refused;
};

static void turn(struct side *s, uint64_t ms, struct grown *g)
{
	const struct clients_order order = { .command = CLIENTS_RUN, .call = CLIENTS_PUT, .run_ns = ms * 1000000ull };
	struct clients_result all = { 0 }, one;
	double p99, longest;

	for (uint32_t i = 0; i < PROCESSES; i++)
		side_order(&s->processes[i], &order);
	for (uint32_t i = 0; i < PROCESSES; i++) {
		side_result(&s->processes[i], &one);
		if (one.wrong)
			bench_die("%" PRIu64 " blocks with wrong bytes", one.wrong);
		all.calls += one.calls;
		g->refused += one.refused;
		for (int j = 0; j < CLIENTS_BUCKETS; j++)
			all.histogram[j] += one.histogram[j];
	}
	g->calls += all.calls;
	p99 = side_time_us(&all, .99);
	longest = side_time_us(&all, 1);
	g->worst_p99_us = p99 > g->worst_p99_us ? p99 : g->worst_p99_us;
	g->longest_us = longest > g->longest_us ? longest : g->longest_us;
}

static void start_one(struct side *sides, uint32_t count, uint32_t turns, struct grown *out)
{
	for (uint32_t i = 0; i < count; i++) {
		out[i] = (struct grown){ 0 };
		side_start(&sides[i], i ? "against" : "terraced", bench_options.quick ? "256MiB" : "2GiB",
			   (const char *const[]){ NULL }, PROCESSES);
	}
	for (uint32_t i = 0; i < count; i++) { /* each process maps what memory there is */
		turn(&sides[i], WARM_MS, &out[i]);
		out[i] = (struct grown){ 0 };
	}
	for (uint32_t t = 0; t < turns; t++)
		for (uint32_t i = 0; i < count; i++)
			turn(&sides[(i + t) % count], TURN_MS, &out[(i + t) % count]);
	for (uint32_t i = 0; i < count; i++)
		side_stop(&sides[i]);
}

static void report(const char *name, double *own, double *other, uint32_t starts, bool against)
{
	struct bench_figure f = { .bench = "growth", .name = name, .unit = "us", .baseline = NAN };

	f.value = bench_median(own, starts);
	if (against) {
		f.baseline = bench_median(other, starts);
		f.goal = BENCH_AT_MOST;
		f.target = .1;
	}
	bench_report(&f);
}

int bench_growth(void)
{
	static struct side sides[SIDES_MAX];
	const uint32_t count = sides_open(sides), starts = bench_options.quick ? STARTS_QUICK : STARTS;
	double p99[SIDES_MAX][STARTS], longest[SIDES_MAX][STARTS];
	struct grown g[SIDES_MAX];

	for (uint32_t s = 0; s < starts; s++) {
		start_one(sides, count, bench_options.quick ? TURNS_QUICK : TURNS, g);
		for (uint32_t i = 0; i < count; i++) {
			p99[i][s] = g[i].worst_p99_us;
			longest[i][s] = g[i].longest_us;
			if (g[i].refused)
				fprintf(stderr, "growth: %s: %" PRIu64 " of %" PRIu64 " calls' blocks were refused\n",
					i ? "against" : "terraced", g[i].refused, g[i].calls);
		}
	}
	report("put of 4 blocks in place, 8 processes, while memory grows: p99 of the worst 100 ms", p99[0], p99[1],
	       starts, count > 1);
	report("the same: the longest call", longest[0], longest[1], starts, count > 1);
	return 0;
}
