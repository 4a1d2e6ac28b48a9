/* Lists of copies to a GPU of what processors have just read, as a load's sums have: from where it lies then, and after slot_leave_caches. The baseline is the
 * same list of what no processor's caches have. Each list takes the next pairs of a memory that is larger than the caches.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "store/slot.h"
#include "tests/bench/bench.h"
#include "tests/bench/service.h"
#include "tests/gpu/device_rig.h"

enum { LAYERS = 32, BLOCKS = 32, THREADS = 8, TURNS = 25, TURNS_QUICK = 2, BYTES_SHIFT = 30, BYTES_SHIFT_QUICK = 25 };

enum lies { IN_MEMORY, JUST_READ, LEFT, LIES };

struct caches_bench {
	struct device_rig rig;
	size_t layer_bytes, block_bytes;
	uint32_t lists, next;          /* of the memory */
	bool leave;
	const uint8_t *list;
	_Atomic uint32_t block;
	_Atomic uint64_t sum;
	struct device_pair pairs[BLOCKS];
};

static void *read_blocks(void *arg)
{
	struct caches_bench *b = arg;
	uint64_t sum = 0;

	for (uint32_t k; (k = atomic_fetch_add(&b->block, 1)) < BLOCKS;)
		for (uint32_t i = 0; i < LAYERS; i++) {
			const uint8_t *layer = b->list + k * b->block_bytes + i * b->layer_bytes;

			sum += slot_crc32c_next(0, layer, b->layer_bytes, i + 1 < LAYERS ? layer + b->layer_bytes : NULL);
			if (b->leave)
				slot_leave_caches(layer, b->layer_bytes);
		}
	atomic_fetch_add(&b->sum, sum);
	return NULL;
}

static void read_list(struct caches_bench *b)
{
	b->block = 0;
	bench_together(THREADS, read_blocks, b);
	bench_keep(b->sum);
}

/* GB/s of the copies alone. */
static double turn(struct caches_bench *b, enum lies lies)
{
	struct rig_copy c = { .list = { .pairs = b->pairs, .count = BLOCKS, .parts = LAYERS, .way = DEVICE_UP, .part_bytes = b->layer_bytes } };
	const uint64_t at = (uint64_t)(b->next++ % b->lists) * BLOCKS * b->block_bytes;
	uint64_t start;

	b->list = b->rig.host + at;
	b->leave = lies == LEFT;
	for (uint32_t i = 0; i < BLOCKS; i++)
		b->pairs[i] = (struct device_pair){ b->rig.host_address + at + i * b->block_bytes, b->rig.range + at + i * b->block_bytes };
	if (lies != IN_MEMORY)
		read_list(b);
	start = bench_now_ns();
	rig_begin(&b->rig, &c);
	if (rig_end(&c) != STATUS_OK)
		bench_die("caches: the device refused a list");
	return (double)BLOCKS * (double)b->block_bytes / (double)(bench_now_ns() - start);
}

static void report(const char *name, double *value, double *baseline, const double *ratio, uint32_t turns)
{
	double ratios[TURNS];
	char text[128];

	memcpy(ratios, ratio, turns * sizeof(*ratio));
	snprintf(text, sizeof(text), "%u blocks to GPU, %s / of what no cache has", BLOCKS, name);
	bench_report(&(struct bench_figure){ .bench = "caches", .name = text, .unit = "GB/s", .value = bench_median(value, turns),
					     .baseline = bench_median(baseline, turns), .ratio = bench_median(ratios, turns) });
}

int bench_caches(void)
{
	static const char *const names[LIES] = { [JUST_READ] = "just read by a processor", [LEFT] = "just read, and to leave its caches" };
	const struct terrace_layout layout = service_layout("bench caches", TERRACE_FORMAT_INT4_PTH, LAYERS, 8, 128);
	const uint64_t bytes = 1ull << (bench_options.quick ? BYTES_SHIFT_QUICK : BYTES_SHIFT);
	const uint32_t turns = bench_options.quick ? TURNS_QUICK : TURNS;
	struct caches_bench b = { .block_bytes = terrace_block_bytes(&layout) };
	double rate[LIES][TURNS], ratio[LIES][TURNS];
	const char *words = "";
	const struct device_ops *ops = rig_load(&words);

	if (!ops) {
		fprintf(stderr, "terrace-bench: caches: skipped, %s\n", words);
		return BENCH_SKIPPED;
	}
	b.layer_bytes = b.block_bytes / LAYERS;
	b.lists = (uint32_t)(bytes / (BLOCKS * b.block_bytes));
	rig_open(&b.rig, ops, bytes);
	memset(b.rig.host, 0x5a, bytes);
	for (uint32_t i = 0; i < b.lists; i++)
		turn(&b, IN_MEMORY);
	for (uint32_t t = 0; t < turns; t++)
		for (enum lies l = IN_MEMORY; l < LIES; l++) {
			rate[l][t] = turn(&b, l);
			ratio[l][t] = rate[l][t] / rate[IN_MEMORY][t];
		}
	for (enum lies l = JUST_READ; l < LIES; l++) {
		double baseline[TURNS];

		memcpy(baseline, rate[IN_MEMORY], sizeof(baseline));
		report(names[l], rate[l], baseline, ratio[l], turns);
	}
	rig_close(&b.rig);
	return 0;
}
