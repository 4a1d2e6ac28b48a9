/* Checksums of blocks in memory that no processor's cache has, by threads as the daemon's: as they lie, and a layer of several blocks before the
 * next layer, as a lease that waits layer by layer has it. The baseline is one call of the library's for each layer, in the same order, which leaves
 * it to the processor to ask for memory ahead.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <isa-l/crc.h>

#include "store/slot.h"
#include "tests/bench/bench.h"
#include "tests/bench/service.h"

enum { LAYERS = 32, LIST = 15, TURNS = 9, BYTES_SHIFT = 30, BYTES_SHIFT_QUICK = 25 };

enum order { AS_THEY_LIE, BY_LAYERS, ORDERS };

struct sums_bench {
	uint8_t *memory;
	size_t layer_bytes, slot_bytes;
	uint32_t lists;
	enum order order;
	bool plain;
	_Atomic uint32_t next;
	_Atomic uint64_t sum;
};

static const uint8_t *layer_at(const struct sums_bench *b, uint32_t list, uint32_t block, uint32_t layer)
{
	return b->memory + ((size_t)list * LIST + block) * b->slot_bytes + SLOT_HEADER_BYTES + layer * b->layer_bytes;
}

/* Number i of the list's layers, in the bench's order. */
static const uint8_t *layer_of(const struct sums_bench *b, uint32_t list, uint32_t i)
{
	return b->order == BY_LAYERS ? layer_at(b, list, i % LIST, i / LIST) : layer_at(b, list, i / LAYERS, i % LAYERS);
}

static void *sum_lists(void *arg)
{
	enum { ALL = LIST * LAYERS };
	struct sums_bench *b = arg;
	uint64_t sum = 0;

	for (uint32_t list; (list = atomic_fetch_add(&b->next, 1)) < b->lists;)
		for (uint32_t i = 0; i < ALL; i++) {
			const uint8_t *at = layer_of(b, list, i);

			if (b->plain)
				sum += ~crc32_iscsi((uint8_t *)(uintptr_t)at, (int)b->layer_bytes, ~0u);
			else
				sum += slot_crc32c_next(0, at, b->layer_bytes, i + 1 < ALL ? layer_of(b, list, i + 1) : NULL);
		}
	atomic_fetch_add(&b->sum, sum);
	return NULL;
}

/* GB/s. */
static double turn(struct sums_bench *b, enum order order, bool plain, uint32_t threads)
{
	const uint64_t start = bench_now_ns();

	b->order = order;
	b->plain = plain;
	b->next = 0;
	b->sum = 0;
	bench_together(threads, sum_lists, b);
	return (double)b->lists * LIST * LAYERS * (double)b->layer_bytes / (double)(bench_now_ns() - start);
}

static void measure(struct sums_bench *b, enum order order, uint32_t threads)
{
	static const char *const names[ORDERS] = { "as they lie", "by layers" };
	double rate[2][TURNS], ratio[TURNS];
	const uint32_t turns = bench_options.quick ? 2 : TURNS;
	uint64_t sum[2];
	char name[96];

	for (uint32_t t = 0; t < turns; t++) {
		for (uint32_t side = 0; side < 2; side++) {
			const bool plain = (side + t) % 2;

			rate[plain][t] = turn(b, order, plain, threads);
			sum[plain] = b->sum;
		}
		if (sum[0] != sum[1])
			bench_die("sums: they differ");
		ratio[t] = rate[0][t] / rate[1][t];
	}
	snprintf(name, sizeof(name), "%u thread%s, %s / plain", threads, threads > 1 ? "s" : "", names[order]);
	bench_report(&(struct bench_figure){ .bench = "sums", .name = name, .unit = "GB/s", .value = bench_median(rate[0], turns),
					     .baseline = bench_median(rate[1], turns), .ratio = bench_median(ratio, turns) });
}

int bench_sums(void)
{
	const size_t bytes = (size_t)1 << (bench_options.quick ? BYTES_SHIFT_QUICK : BYTES_SHIFT);
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);
	const int fd = memfd_create("terrace-bench", MFD_CLOEXEC); /* as the daemon's host memory */
	const struct terrace_layout layout = service_layout("bench sums", TERRACE_FORMAT_INT4_PTH, LAYERS, 8, 128);
	const size_t block_bytes = terrace_block_bytes(&layout);
	struct sums_bench b = { .layer_bytes = block_bytes / LAYERS, .slot_bytes = SLOT_HEADER_BYTES + block_bytes };

	b.lists = (uint32_t)(bytes / (LIST * b.slot_bytes));
	if (fd < 0 || ftruncate(fd, (off_t)bytes))
		bench_die("sums: no memory");
	b.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (b.memory == MAP_FAILED)
		bench_die("sums: no memory");
	memset(b.memory, 0x5a, bytes);
	for (uint32_t threads = 1; threads <= BENCH_THREADS_MAX && threads <= processors; threads *= 2)
		for (enum order o = AS_THEY_LIE; o < ORDERS; o++)
			measure(&b, o, threads);
	munmap(b.memory, bytes);
	close(fd);
	return 0;
}
