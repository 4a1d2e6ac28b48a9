/* Blocks on their way between a disk, host memory and a GPU, through a real daemon. Each figure stands beside a baseline of the same turn:
 *
 *   disk to GPU        beside disk to host memory, of as many blocks: overlap makes the second leg cost next to nothing
 *   memory to GPU      by sizes of lists, beside one list of as many and as long copies given to the device itself
 *   GPU to memory      the same, with the checksums that are made on the way
 *   the grant          of a lease, which comes back with its copies under way, beside its first layer
 *   the first layer    of a lease, ready for a stream, beside all layers of that lease, and beside what it may take: its share of them and
 *                      200 us
 *   two leases         of the same blocks by two sessions, until both have all layers, beside one: the copies are shared
 *
 * Warm with waiting is what is timed, but for the leases. All blocks are stored and flushed once, in sets, of which memory has room for a few,
 * and the GPU for some, so many slots that those that the daemon keeps free are enough for a lease, as on a GPU in use. A turn takes the next sets, which were pushed out by those in between, so that what is to be on the
 * disk alone is; Lookup says so before each turn, or the bench ends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/service.h"
#include "tests/gpu/device_rig.h"

enum {
	SETS = 68, SETS_QUICK = 12, SETS_ON_GPU = 32, SETS_ON_GPU_QUICK = 2, SETS_IN_MEMORY = 4, SET_BLOCKS = 256, SET_BLOCKS_QUICK = 48,
	TURNS = 15, TURNS_QUICK = 2, DISK_EACH = 3, /* more of the disk's in a turn, whose speed varies */
	FILL_TURNS = 8, LISTS_MAX = 5, LONG_LIST = 64,
};
#define MIB 1048576.0

struct paired {
	double value[TURNS * DISK_EACH], baseline[TURNS * DISK_EACH];
	unsigned turns;
};

struct vram_bench {
	const struct device_ops *ops;
	struct service service;
	struct terrace_layout layout;
	struct terrace_session *session, *write_back;
	uint64_t block_bytes;
	uint32_t set_blocks, sets, sets_on_gpu, next; /* next: the set of the next turn */
	struct terrace_keys keys;      /* of all sets */
	struct device_rig rig;         /* as much memory on both sides as the longest list */
	struct device_pair *pairs;
	void *stream;
	struct paired disk, up[LISTS_MAX], down[LISTS_MAX], granted, layers, first, shared;
};

static const uint32_t lists[LISTS_MAX] = { 1, 4, 16, 64, 128 };

static unsigned list_count(void)
{
	return bench_options.quick ? 3 : LISTS_MAX;
}

static void note(struct paired *p, double value, double baseline)
{
	p->value[p->turns] = value;
	p->baseline[p->turns++] = baseline;
}

static double seconds_since(uint64_t start_ns)
{
	return (double)(bench_now_ns() - start_ns) * 1e-9;
}

/* ---- where blocks are ---- */

static struct terrace_keys next_set(struct vram_bench *b)
{
	uint32_t set = b->next++ % b->sets;

	return service_key(&b->keys, set * b->set_blocks, b->set_blocks);
}

/* All of them are there, and nowhere above. */
static void must_be(struct vram_bench *b, const struct terrace_keys *keys, enum terrace_state state)
{
	uint8_t states[SET_BLOCKS];
	uint32_t prefix = 0;

	service_check(terrace_lookup(b->session, keys, 0, &prefix, states), "lookup");
	for (uint32_t i = 0; i < keys->count; i++)
		if (prefix != keys->count || states[i] != state)
			bench_die("vram: block %u of %u is in state %d, not %d: the sets are too small or the tiers too large", i,
				  keys->count, i < prefix ? states[i] : TERRACE_STATE_ABSENT, (int)state);
}

/* Seconds until all are in host memory (gpu -1), on the GPU. */
static double warm(struct vram_bench *b, const struct terrace_keys *keys, int32_t gpu)
{
	struct terrace_warm_options o = TERRACE_WARM_OPTIONS_INIT;
	uint32_t blocks = 0;
	uint64_t start;
	double seconds;

	o.wait = true;
	o.gpu = gpu;
	start = bench_now_ns();
	service_check(terrace_warm_with(b->session, keys, &o, 0, &blocks), "warm");
	seconds = seconds_since(start);
	if (blocks != keys->count)
		bench_die("vram: %u of %u blocks came", blocks, keys->count);
	return seconds;
}

static double rate(const struct vram_bench *b, uint32_t blocks, double seconds)
{
	return (double)blocks * (double)b->block_bytes / seconds * 1e-9;
}

/* Seconds of the device itself for a list of so many blocks. */
static double bare_copy(struct vram_bench *b, uint32_t count, enum device_way way)
{
	struct rig_copy c = { .list = { .pairs = b->pairs, .count = count, .parts = b->layout.layers, .way = way,
					.part_bytes = b->block_bytes / b->layout.layers } };
	uint64_t start;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t host = b->rig.host_address + i * b->block_bytes, device = b->rig.range + i * b->block_bytes;

		b->pairs[i] = way == DEVICE_UP ? (struct device_pair){ host, device } : (struct device_pair){ device, host };
	}
	start = bench_now_ns();
	rig_begin(&b->rig, &c);
	if (rig_end(&c) != STATUS_OK)
		bench_die("vram: the device refused a list");
	return seconds_since(start);
}

/* ---- turns ---- */

static void disk_turn(struct vram_bench *b, bool gpu_first)
{
	double seconds[2];

	for (int side = 0; side < 2; side++) {
		struct terrace_keys keys = next_set(b);
		bool gpu = (side == 0) == gpu_first;

		must_be(b, &keys, TERRACE_STATE_DISK);
		seconds[gpu] = warm(b, &keys, gpu ? 0 : -1);
	}
	note(&b->disk, rate(b, b->set_blocks, seconds[1]), rate(b, b->set_blocks, seconds[0]));
}

static void list_note(struct vram_bench *b, struct paired *p, uint32_t count, double ours, double bare)
{
	note(p, rate(b, count, ours), rate(b, count, bare));
}

static void up_turn(struct vram_bench *b)
{
	struct terrace_keys set = next_set(b);
	uint32_t at = 0;

	must_be(b, &set, TERRACE_STATE_DISK);
	warm(b, &set, -1);
	for (unsigned i = 0; i < list_count(); i++) {
		struct terrace_keys keys = service_key(&set, at, lists[i]);
		double ours = warm(b, &keys, 0);

		list_note(b, &b->up[i], lists[i], ours, bare_copy(b, lists[i], DEVICE_UP));
		at += lists[i];
	}
}

/* Blocks that are on the GPU alone: put there by a session that leaves them. Their bytes are of no interest. */
static void put_on_gpu(struct vram_bench *b, const struct terrace_keys *keys)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	enum terrace_status statuses[SET_BLOCKS];
	struct terrace_reservation *r = NULL;

	o.gpu = 0;
	service_check(terrace_reserve_with(b->write_back, keys, NULL, &o, 0, statuses, &r), "reserve on the GPU");
	for (uint32_t i = 0; i < keys->count; i++)
		service_check(statuses[i], "reserve a block on the GPU");
	service_check(terrace_commit(r, 0, statuses, NULL), "commit");
	for (uint32_t i = 0; i < keys->count; i++)
		service_check(statuses[i], "commit a block");
}

static void down_turn(struct vram_bench *b)
{
	for (unsigned i = 0; i < list_count(); i++) {
		struct terrace_keys keys = service_keys(lists[i], 16, 1000 + b->down[i].turns * LISTS_MAX + i);
		double ours;

		put_on_gpu(b, &keys);
		must_be(b, &keys, TERRACE_STATE_GPU);
		ours = warm(b, &keys, -1);
		list_note(b, &b->down[i], lists[i], ours, bare_copy(b, lists[i], DEVICE_DOWN));
		service_check(terrace_delete(b->session, &keys, 0, NULL), "delete");
		free((void *)(uintptr_t)keys.bytes);
	}
}

static void layer_wait(struct vram_bench *b, struct terrace_lease *lease, uint32_t layer)
{
	service_check(terrace_lease_wait_layer(lease, layer, b->stream), "wait for a layer");
	rig_stream_wait(b->stream);
}

/* Half of the next set, brought to memory alone. */
static struct terrace_keys half_in_memory(struct vram_bench *b)
{
	struct terrace_keys keys = next_set(b);

	must_be(b, &keys, TERRACE_STATE_DISK);
	keys.count /= 2;
	warm(b, &keys, -1);
	return keys;
}

static struct terrace_lease *lease_on_gpu(struct terrace_session *session, const struct terrace_keys *keys)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_lease *lease = NULL;

	o.mode = TERRACE_LEASE_ALL;
	o.gpu = 0;
	service_check(terrace_lease_with(session, keys, &o, 0, &lease), "lease");
	return lease;
}

/* Its last layer is there. */
static void lease_end(struct vram_bench *b, struct terrace_lease *lease)
{
	layer_wait(b, lease, b->layout.layers - 1);
	service_check(terrace_lease_check(lease), "the lease's copies");
}

static void layer_turn(struct vram_bench *b)
{
	struct terrace_keys keys = half_in_memory(b);
	const uint64_t start = bench_now_ns();
	struct terrace_lease *lease = lease_on_gpu(b->session, &keys);
	const double granted = seconds_since(start) * 1e3;
	double first, all;

	layer_wait(b, lease, 0);
	first = seconds_since(start) * 1e3;
	lease_end(b, lease);
	all = seconds_since(start) * 1e3;
	note(&b->granted, granted, first);
	note(&b->layers, first, all);
	note(&b->first, first, all / b->layout.layers + 0.2);
	terrace_release(lease);
}

static void shared_turn(struct vram_bench *b)
{
	double ms[2];

	for (int two = 0; two < 2; two++) {
		struct terrace_keys keys = half_in_memory(b);
		const uint64_t start = bench_now_ns();
		struct terrace_lease *lease = lease_on_gpu(b->session, &keys), *other = two ? lease_on_gpu(b->write_back, &keys) : NULL;

		lease_end(b, lease);
		if (other)
			lease_end(b, other);
		ms[two] = seconds_since(start) * 1e3;
		terrace_release(lease);
		terrace_release(other);
	}
	note(&b->shared, ms[1], ms[0]);
}

/* ---- the run ---- */

static void report(const char *name, const char *unit, struct paired *p, enum bench_goal goal, double target)
{
	double ratios[TURNS * DISK_EACH];

	for (unsigned i = 0; i < p->turns; i++)
		ratios[i] = p->value[i] / p->baseline[i];
	bench_report(&(struct bench_figure){ .bench = "vram", .name = name, .unit = unit, .value = bench_median(p->value, p->turns),
					     .baseline = bench_median(p->baseline, p->turns), .goal = goal, .target = target,
					     .ratio = bench_median(ratios, p->turns) });
}

static void report_all(struct vram_bench *b)
{
	const unsigned kib = (unsigned)(b->block_bytes / 1024);
	char name[128];

	snprintf(name, sizeof(name), "disk to GPU, %u blocks of %u KiB / disk to memory", b->set_blocks, kib);
	report(name, "GB/s", &b->disk, BENCH_AT_LEAST, 0.95);
	for (unsigned i = 0; i < list_count(); i++) {
		snprintf(name, sizeof(name), "memory to GPU, %u blocks of %u KiB / the device's own list", lists[i], kib);
		report(name, "GB/s", &b->up[i], lists[i] >= LONG_LIST ? BENCH_AT_LEAST : BENCH_NONE, 0.95);
	}
	for (unsigned i = 0; i < list_count(); i++) {
		snprintf(name, sizeof(name), "GPU to memory, %u blocks of %u KiB / the device's own list", lists[i], kib);
		report(name, "GB/s", &b->down[i], lists[i] >= LONG_LIST ? BENCH_AT_LEAST : BENCH_NONE, 0.95);
	}
	snprintf(name, sizeof(name), "lease of %u blocks from memory is granted / first of %u layers", b->set_blocks / 2, b->layout.layers);
	report(name, "ms", &b->granted, BENCH_NONE, 0);
	snprintf(name, sizeof(name), "first of %u layers of %u blocks, leased from memory / all layers", b->layout.layers, b->set_blocks / 2);
	report(name, "ms", &b->layers, BENCH_AT_MOST, 0.35);
	snprintf(name, sizeof(name), "first of %u layers of %u blocks, leased from memory / 1/%u of all and 200 us", b->layout.layers,
		 b->set_blocks / 2, b->layout.layers);
	report(name, "ms", &b->first, BENCH_AT_MOST, 1);
	snprintf(name, sizeof(name), "%u blocks leased from memory by two / by one", b->set_blocks / 2);
	report(name, "ms", &b->shared, BENCH_AT_MOST, 1.25);
}

static char *mib(char *text, size_t room, double bytes)
{
	snprintf(text, room, "%.0fMiB", bytes / MIB + 1);
	return text;
}

static void start(struct vram_bench *b)
{
	const double slot = (double)b->block_bytes + 4096, set = slot * b->set_blocks, extent = (bench_options.quick ? 2 : 64) * MIB;
	char host[32], gpu[32], disk[128], bytes[32];

	/* Extents, as long as the daemon makes them by itself, are not filled to the end. */
	mib(host, sizeof(host), SETS_IN_MEMORY * set * 1.2 + extent);
	mib(gpu, sizeof(gpu), b->sets_on_gpu * set + 2 * extent);
	snprintf(disk, sizeof(disk), "%s/disk:%s", bench_options.folder, mib(bytes, sizeof(bytes), (b->sets + 2) * set * 1.2 + 128 * MIB));
	service_start_with(&b->service, host, (const char *const[]){ "--disks", disk, "--slab-bytes", "64MiB", "--extent-bytes",
								     bench_options.quick ? "2MiB" : "64MiB", "--gpus", "all", "--gpu-bytes", gpu, "--prefetch-bytes", "0", NULL });
}

static void open_sessions(struct vram_bench *b)
{
	struct terrace_session_options o = TERRACE_SESSION_OPTIONS_INIT;

	b->session = service_session(&b->service, &b->layout);
	if (terrace_session_gpu_count(b->session) == 0)
		bench_die("vram: the daemon lends no GPU");
	o.engine = "terrace-bench";
	o.gpu_write_back = true;
	service_check(terrace_session_open(b->service.client, &b->layout, 1, &o, &b->write_back), "open session");
}

/* All sets go to the disk, and the GPU is full and its memory mapped by this process before anything is timed. */
static void fill(struct vram_bench *b)
{
	b->keys = service_keys(b->sets * b->set_blocks, 16, 5);
	for (uint32_t s = 0; s < b->sets; s++) {
		struct terrace_keys set = service_key(&b->keys, s * b->set_blocks, b->set_blocks);

		service_fill(b->session, &set, b->block_bytes);
		service_check(terrace_flush(b->session, &set, 0, NULL), "flush");
	}
	for (uint32_t s = 0; s < b->sets_on_gpu + 2; s++) {
		struct terrace_keys set = next_set(b);

		warm(b, &set, 0);
	}
	for (uint32_t i = 0; i < FILL_TURNS; i++) {
		layer_turn(b);
		shared_turn(b);
		b->granted.turns = b->layers.turns = b->first.turns = b->shared.turns = 0;
	}
}

static void run_turns(struct vram_bench *b)
{
	for (unsigned i = 0, turns = bench_options.quick ? TURNS_QUICK : TURNS; i < turns; i++) {
		for (unsigned j = 0; j < DISK_EACH; j++)
			disk_turn(b, (i + j) % 2);
		up_turn(b);
		layer_turn(b);
		shared_turn(b);
		down_turn(b);
	}
}

int bench_vram(void)
{
	uint32_t layers = bench_options.quick ? 8 : 32;
	struct vram_bench b = { .set_blocks = bench_options.quick ? SET_BLOCKS_QUICK : SET_BLOCKS,
				.sets = bench_options.quick ? SETS_QUICK : SETS,
				.sets_on_gpu = bench_options.quick ? SETS_ON_GPU_QUICK : SETS_ON_GPU };
	const char *words = "";
	uint64_t bytes;

	b.ops = rig_load(&words);
	if (!b.ops) {
		fprintf(stderr, "terrace-bench: vram: skipped, %s\n", words);
		return BENCH_SKIPPED;
	}
	b.layout = service_layout("bench vram", TERRACE_FORMAT_INT4_PTH, layers, 8, 128);
	b.block_bytes = terrace_block_bytes(&b.layout);
	bytes = lists[list_count() - 1] * b.block_bytes;
	b.pairs = calloc(lists[list_count() - 1], sizeof(*b.pairs));
	if (!b.pairs)
		bench_die("out of memory");
	start(&b);
	open_sessions(&b);
	rig_open(&b.rig, b.ops, (bytes / (2 << 20) + 1) * (2 << 20));
	b.stream = rig_stream();
	fill(&b);
	run_turns(&b);
	report_all(&b);
	rig_stream_end(b.stream);
	rig_close(&b.rig);
	terrace_session_close(b.write_back);
	terrace_session_close(b.session);
	service_stop(&b.service);
	free((void *)(uintptr_t)b.keys.bytes);
	free(b.pairs);
	return 0;
}
