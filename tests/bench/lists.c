/* Long calls to and from a GPU, through a real daemon without a disk: what a call costs besides its bytes is little of them. Each figure is
 * bytes a second beside one list of as many and as long copies, side by side, given to the device itself.
 *
 *   memory to GPU      a Warm that waits; several Warms at a time
 *   GPU to memory      the same, with the checksums that are made on the way
 *   a block of a call  of 4096 small blocks beside one of calls of 256: what a block costs is not to rise with their number
 *
 * Memory has room for SETS sets of blocks and what comes down, the GPU for GPU_SETS: a set is brought up when all the others were after it, so
 * that by the order of their uses none of it is there any more.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"
#include "tests/bench/service.h"
#include "tests/gpu/device_rig.h"

enum { SETS = 4, GPU_SETS = 2, TURNS = 9, TURNS_QUICK = 1, TOGETHER = 4, QUICK_MIB = 9, PUT_KEYS = 256, FEW = 256, GPU_MIB_MIN = 16 };
#define MIB 1048576.0

/* Blocks of `layers` layers of `heads` heads; of a call. */
struct shape {
	uint32_t layers, heads, blocks, together; /* together: as so many calls at a time */
};

static const struct shape shapes[] = {
	{ 32, 8, 512, 1 }, { 32, 8, 2048, 1 }, { 32, 1, 4096, 1 }, { 32, 1, 4096, TOGETHER }, { 8, 1, 4096, TOGETHER }, { 8, 1, 4096, 1 },
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct lists_bench {
	struct service service;
	struct terrace_layout layout;
	struct terrace_session *session, *write_back;
	uint64_t block_bytes;
	uint32_t blocks, calls;
	struct terrace_keys keys;      /* of all sets */
	struct device_rig rig;
	struct device_pair *pairs;
	double up[2][TURNS], down[2][TURNS]; /* bytes a second: ours, the device's */
	unsigned turns;
};

static uint64_t bare_ns(struct lists_bench *b, enum device_way way)
{
	struct rig_copy c = { .list = { .pairs = b->pairs, .count = b->blocks, .parts = b->layout.layers, .way = way,
					.part_bytes = b->block_bytes / b->layout.layers } };
	uint64_t start;

	for (uint32_t i = 0; i < b->blocks; i++) {
		uint64_t host = b->rig.host_address + i * b->block_bytes, device = b->rig.range + i * b->block_bytes;

		b->pairs[i] = way == DEVICE_UP ? (struct device_pair){ host, device } : (struct device_pair){ device, host };
	}
	start = bench_now_ns();
	rig_begin(&b->rig, &c);
	if (rig_end(&c) != STATUS_OK)
		bench_die("lists: the device refused a list");
	return bench_now_ns() - start;
}

static void warm_together(struct lists_bench *b, const struct terrace_keys *keys, const struct terrace_warm_options *o)
{
	const uint32_t share = keys->count / b->calls;
	struct terrace_op *ops[TOGETHER];

	for (uint32_t i = 0; i < b->calls; i++) {
		struct terrace_keys some = service_key(keys, i * share, share);

		service_check(terrace_warm_with_async(b->session, &some, o, 0, NULL, &ops[i]), "warm");
	}
	for (uint32_t i = 0; i < b->calls; i++) {
		uint32_t blocks = 0;

		service_check(terrace_warm_finish(ops[i], &blocks), "warm");
		if (blocks != share)
			bench_die("lists: %u of %u blocks came", blocks, share);
	}
}

/* Nanoseconds until all are there, by as many calls at a time as the shape has. */
static uint64_t warm_ns(struct lists_bench *b, const struct terrace_keys *keys, int32_t gpu)
{
	struct terrace_warm_options o = TERRACE_WARM_OPTIONS_INIT;
	const uint64_t start = bench_now_ns();
	uint32_t blocks = keys->count;

	o.wait = true;
	o.gpu = gpu;
	if (b->calls > 1)
		warm_together(b, keys, &o);
	else
		service_check(terrace_warm_with(b->session, keys, &o, 0, &blocks), "warm");
	if (blocks != keys->count)
		bench_die("lists: %u of %u blocks came", blocks, keys->count);
	return bench_now_ns() - start;
}

static void put_on_gpu(struct lists_bench *b, const struct terrace_keys *keys)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	enum terrace_status statuses[PUT_KEYS];

	o.gpu = 0;
	for (uint32_t at = 0; at < keys->count; at += PUT_KEYS) {
		struct terrace_keys some = service_key(keys, at, keys->count - at < PUT_KEYS ? keys->count - at : PUT_KEYS);
		struct terrace_reservation *r = NULL;

		service_check(terrace_reserve_with(b->write_back, &some, NULL, &o, 0, statuses, &r), "reserve on the GPU");
		for (uint32_t i = 0; i < some.count; i++)
			service_check(statuses[i], "reserve a block on the GPU");
		service_check(terrace_commit(r, 0, statuses, NULL), "commit");
	}
}

static double rate(const struct lists_bench *b, uint64_t ns)
{
	return (double)b->blocks * (double)b->block_bytes / (double)ns;
}

static void up_turn(struct lists_bench *b, uint32_t set, bool note)
{
	struct terrace_keys keys = service_key(&b->keys, set % SETS * b->blocks, b->blocks);
	const uint64_t ours = warm_ns(b, &keys, 0);

	if (!note)
		return;
	b->up[0][b->turns] = rate(b, ours);
	b->up[1][b->turns] = rate(b, bare_ns(b, DEVICE_UP));
}

static void down_turn(struct lists_bench *b)
{
	struct terrace_keys keys = service_keys(b->blocks, 16, 1000 + b->turns);

	put_on_gpu(b, &keys);
	b->down[0][b->turns] = rate(b, warm_ns(b, &keys, -1));
	b->down[1][b->turns] = rate(b, bare_ns(b, DEVICE_DOWN));
	service_check(terrace_delete(b->session, &keys, 0, NULL), "delete");
	free((void *)(uintptr_t)keys.bytes);
}

static void report(const struct lists_bench *b, const char *way, double value[2][TURNS])
{
	double ratios[TURNS];
	char name[128];

	for (unsigned i = 0; i < b->turns; i++)
		ratios[i] = value[0][i] / value[1][i];
	snprintf(name, sizeof(name), "%s, %u blocks of %u KiB in %u call%s / the device's own list", way, b->blocks,
		 (unsigned)(b->block_bytes / 1024), b->calls, b->calls > 1 ? "s at a time" : "");
	bench_report(&(struct bench_figure){ .bench = "lists", .name = name, .unit = "GB/s", .value = bench_median(value[0], b->turns),
					     .baseline = bench_median(value[1], b->turns), .goal = BENCH_AT_LEAST, .target = 0.95,
					     .ratio = bench_median(ratios, b->turns) });
}

/* Nanoseconds of one call after the other, of `piece` keys each. */
static uint64_t pieces_ns(struct lists_bench *b, const struct terrace_keys *keys, uint32_t piece, int32_t gpu)
{
	uint64_t ns = 0;

	for (uint32_t at = 0; at < keys->count; at += piece) {
		const struct terrace_keys some = service_key(keys, at, keys->count - at < piece ? keys->count - at : piece);

		ns += warm_ns(b, &some, gpu);
	}
	return ns;
}

static void lengths_report(const struct lists_bench *b, const char *way, double us[2][TURNS])
{
	double ratios[TURNS];
	char name[128];

	for (unsigned i = 0; i < b->turns; i++)
		ratios[i] = us[0][i] / us[1][i];
	snprintf(name, sizeof(name), "%s, a block of a call of %u of %u KiB / of calls of %u", way, b->blocks, (unsigned)(b->block_bytes / 1024), FEW);
	bench_report(&(struct bench_figure){ .bench = "lists", .name = name, .unit = "us", .value = bench_median(us[0], b->turns),
					     .baseline = bench_median(us[1], b->turns), .goal = BENCH_AT_MOST, .target = 1.5,
					     .ratio = bench_median(ratios, b->turns) });
}

/* Whole sets and sets in pieces take turns, in memory and put on the GPU. */
static void lengths_run(struct lists_bench *b, unsigned turns)
{
	double up[2][TURNS], down[2][TURNS];
	uint32_t set = 0;

	for (b->turns = 0; b->turns < turns; b->turns++)
		for (int side = 0; side < 2; side++) {
			const uint32_t piece = side ? FEW : b->blocks;
			const struct terrace_keys there = service_key(&b->keys, set++ % SETS * b->blocks, b->blocks);
			const struct terrace_keys fresh = service_keys(b->blocks, 16, 2000 + 2 * b->turns + (unsigned)side);

			up[side][b->turns] = (double)pieces_ns(b, &there, piece, 0) / 1e3 / b->blocks;
			put_on_gpu(b, &fresh);
			down[side][b->turns] = (double)pieces_ns(b, &fresh, piece, -1) / 1e3 / b->blocks;
			service_check(terrace_delete(b->session, &fresh, 0, NULL), "delete");
			free((void *)(uintptr_t)fresh.bytes);
		}
	lengths_report(b, "memory to GPU", up);
	lengths_report(b, "GPU to memory", down);
}

static void start(struct lists_bench *b)
{
	const double set = ((double)b->block_bytes + 4096) * b->blocks * 1.2, extent = (bench_options.quick ? 2 : 32) * MIB;
	struct terrace_session_options o = TERRACE_SESSION_OPTIONS_INIT;
	char host[32], gpu[32];

	snprintf(host, sizeof(host), "%.0fMiB", ((SETS + 1) * set + 2 * extent) / 0.75 / MIB + 1);
	snprintf(gpu, sizeof(gpu), "%.0fMiB", fmax((GPU_SETS * set + extent) / MIB + 1, GPU_MIB_MIN));
	service_start_with(&b->service, host, (const char *const[]){ "--extent-bytes", bench_options.quick ? "2MiB" : "32MiB", "--gpus", "all",
								     "--gpu-bytes", gpu, NULL });
	b->session = service_session(&b->service, &b->layout);
	if (terrace_session_gpu_count(b->session) == 0)
		bench_die("lists: the daemon lends no GPU");
	o.engine = "terrace-bench";
	o.gpu_write_back = true;
	service_check(terrace_session_open(b->service.client, &b->layout, 1, &o, &b->write_back), "open session");
}

static void shape_run(const struct device_ops *ops, const struct shape *s)
{
	struct lists_bench b = { .layout = service_layout("bench lists", TERRACE_FORMAT_INT4_PTH, s->layers, s->heads, 128),
				 .blocks = s->blocks, .calls = s->together };
	const unsigned turns = bench_options.quick ? TURNS_QUICK : TURNS;
	uint64_t bytes;

	b.block_bytes = terrace_block_bytes(&b.layout);
	if (bench_options.quick)
		b.blocks = (uint32_t)(QUICK_MIB * MIB) / (uint32_t)b.block_bytes / TOGETHER * TOGETHER;
	bytes = b.blocks * b.block_bytes;
	b.pairs = calloc(b.blocks, sizeof(*b.pairs));
	if (!b.pairs)
		bench_die("out of memory");
	start(&b);
	rig_open(&b.rig, ops, (bytes / (2 << 20) + 1) * (2 << 20));
	b.keys = service_keys(SETS * b.blocks, 16, 5);
	service_fill(b.session, &b.keys, b.block_bytes);
	/* All memory is touched before anything is timed. */
	bare_ns(&b, DEVICE_UP);
	bare_ns(&b, DEVICE_DOWN);
	for (uint32_t i = 0; i < SETS; i++)
		up_turn(&b, i, false);
	for (uint32_t i = 0; b.turns < turns; i++, b.turns++) {
		up_turn(&b, i, true);
		down_turn(&b);
	}
	report(&b, "memory to GPU", b.up);
	report(&b, "GPU to memory", b.down);
	if (b.calls == 1 && s == &shapes[SHAPES - 1])
		lengths_run(&b, turns);
	rig_close(&b.rig);
	terrace_session_close(b.write_back);
	terrace_session_close(b.session);
	service_stop(&b.service);
	free((void *)(uintptr_t)b.keys.bytes);
	free(b.pairs);
}

int bench_lists(void)
{
	const char *words = "";
	const struct device_ops *ops = rig_load(&words);

	if (!ops) {
		fprintf(stderr, "terrace-bench: lists: skipped, %s\n", words);
		return BENCH_SKIPPED;
	}
	for (unsigned i = 0; i < SHAPES; i++)
		shape_run(ops, &shapes[i]);
	return 0;
}
