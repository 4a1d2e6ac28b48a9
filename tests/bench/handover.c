/* Memory that one model has filled, and another one needs: how long the other one's first put takes.
 *
 * Two engine processes change places. In each round the one opens a model that is new, of another block size, and
 * fills memory with it; then it rests. The other one opens a model that is new, too, and puts a block until that is
 * stored. The first model's blocks are on the disk before that, by a Flush; or they are as their puts left them, and
 * what is nowhere else is written first. The disk is a folder in TMPDIR. A put that is not stored within two seconds
 * counts as that.
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/bench/bench.h"
#include "tests/bench/clients.h"
#include "tests/bench/sides.h"

enum { ROUNDS = 15, ROUNDS_QUICK = 2, NEVER_MS = 2000, TARGET_MS = 200, AFTER_KEYS_BYTES = 4 << 20 };

static struct clients_result ask(struct side *s, uint32_t process, struct clients_order order)
{
	struct clients_result r;

	side_order(&s->processes[process], &order);
	side_result(&s->processes[process], &r);
	if (r.wrong)
		bench_die("%" PRIu64 " blocks with wrong bytes", r.wrong);
	return r;
}

/* Milliseconds from the newcomer's first call to its first stored block. */
static double round_one(struct side *s, uint32_t round, bool flushed, uint64_t bytes)
{
	const uint32_t a = round % 2, b = 1 - a;
	struct clients_result r;

	ask(s, a, (struct clients_order){ .command = CLIENTS_MODEL, .call = 2 * round });
	ask(s, a, (struct clients_order){ .command = CLIENTS_STORE, .bytes = bytes + bytes / 4 });
	if (flushed)
		ask(s, a, (struct clients_order){ .command = CLIENTS_FLUSH });
	ask(s, b, (struct clients_order){ .command = CLIENTS_MODEL, .call = 2 * round + 1 });
	r = ask(s, b, (struct clients_order){ .command = CLIENTS_FIRST, .run_ns = NEVER_MS * 1000000ull });
	if (!r.refused)
		ask(s, b, (struct clients_order){ .command = CLIENTS_STORE, .bytes = AFTER_KEYS_BYTES });
	return (double)r.ns / 1e6;
}

static void report(const char *name, double *own, double *other, uint32_t rounds, bool against)
{
	struct bench_figure f = { .bench = "handover", .name = name, .unit = "ms, median", .baseline = NAN,
				  .goal = BENCH_AT_MOST, .target = TARGET_MS, .of_value = true };
	char worst[128];

	f.value = bench_median(own, rounds);
	if (against)
		f.baseline = bench_median(other, rounds);
	bench_report(&f);
	snprintf(worst, sizeof(worst), "%s: the longest", name);
	f = (struct bench_figure){ .bench = "handover", .name = worst, .unit = "ms", .value = own[rounds - 1],
				   .baseline = NAN };
	if (against)
		f.baseline = other[rounds - 1];
	bench_report(&f);
}

int bench_handover(void)
{
	static const char *const names[] = { "the same, as puts left them",
					     "first put of another model, memory full of blocks that a disk has" };
	static struct side sides[SIDES_MAX];
	const uint32_t count = sides_open(sides), rounds = bench_options.quick ? ROUNDS_QUICK : ROUNDS;
	const uint64_t bytes = bench_options.quick ? 64 << 20 : 256 << 20;
	double ms[SIDES_MAX][ROUNDS];
	char disk[SIDES_MAX][128];

	for (int flushed = 1; flushed >= 0; flushed--) {
		for (uint32_t i = 0; i < count; i++) {
			snprintf(disk[i], sizeof(disk[i]), "%s/disk%u.%d:8GiB", bench_options.folder, i, flushed);
			side_start(&sides[i], i ? "against" : "terraced", bench_options.quick ? "64MiB" : "256MiB",
				   (const char *const[]){ "--disks", disk[i], NULL }, 2);
		}
		for (uint32_t r = 0; r < rounds; r++)
			for (uint32_t i = 0; i < count; i++)
				ms[(i + r) % count][r] = round_one(&sides[(i + r) % count], r, flushed, bytes);
		for (uint32_t i = 0; i < count; i++)
			side_stop(&sides[i]);
		report(names[flushed], ms[0], ms[1], rounds, count > 1);
	}
	return 0;
}
