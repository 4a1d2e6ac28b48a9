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
	double worst_p99_us;
	struct clients_result all;
};

static void add(struct clients_result *to, const struct clients_result *one)
{
	to->calls += one->calls;
	to->refused += one->refused;
	for (int i = 0; i < CLIENTS_BUCKETS; i++)
		to->histogram[i] += one->histogram[i];
}

static void turn(struct side *s, uint64_t ms, struct grown *g)
{
	const struct clients_order order = { .command = CLIENTS_RUN, .call = CLIENTS_PUT, .run_ns = ms * 1000000ull };
	struct clients_result all = { 0 }, one;
	double p99;

	for (uint32_t i = 0; i < PROCESSES; i++)
		side_order(&s->processes[i], &order);
	for (uint32_t i = 0; i < PROCESSES; i++) {
		side_result(&s->processes[i], &one);
		if (one.wrong)
			bench_die("%" PRIu64 " blocks with wrong bytes", one.wrong);
		add(&all, &one);
		add(&g->all, &one);
	}
	p99 = side_time_us(&all, .99);
	g->worst_p99_us = p99 > g->worst_p99_us ? p99 : g->worst_p99_us;
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

static void report(const char *name, double *own, double *other, uint32_t starts, bool against, bool judged)
{
	struct bench_figure f = { .bench = "growth", .name = name, .unit = "us", .baseline = NAN };

	f.value = bench_median(own, starts);
	if (against)
		f.baseline = bench_median(other, starts);
	if (against && judged) {
		f.goal = BENCH_AT_MOST;
		f.target = .1;
	}
	bench_report(&f);
}

int bench_growth(void)
{
	static struct side sides[SIDES_MAX];
	const uint32_t count = sides_open(sides), starts = bench_options.quick ? STARTS_QUICK : STARTS;
	double worst[SIDES_MAX][STARTS], p99[SIDES_MAX][STARTS], longest[SIDES_MAX][STARTS];
	static struct grown g[SIDES_MAX];

	for (uint32_t s = 0; s < starts; s++) {
		start_one(sides, count, bench_options.quick ? TURNS_QUICK : TURNS, g);
		for (uint32_t i = 0; i < count; i++) {
			worst[i][s] = g[i].worst_p99_us;
			p99[i][s] = side_time_us(&g[i].all, .99);
			longest[i][s] = side_time_us(&g[i].all, 1);
			if (g[i].all.refused)
				fprintf(stderr, "growth: %s: %" PRIu64 " of %" PRIu64 " calls' blocks were refused\n",
					i ? "against" : "terraced", g[i].all.refused, g[i].all.calls);
		}
	}
	report("put of 4 blocks in place, 8 processes, while memory grows: p99 of the worst 100 ms", worst[0], worst[1],
	       starts, count > 1, true);
	report("the same: p99 of all calls", p99[0], p99[1], starts, count > 1, false);
	report("the same: the longest call", longest[0], longest[1], starts, count > 1, false);
	return 0;
}
