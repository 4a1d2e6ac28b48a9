/* A table smaller than a huge page comes from the allocator. A larger one is mapped with one huge page more than it
 * needs, and the parts before and behind the aligned range are unmapped at once.
 */
#include "eviction/table.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE ((uint64_t)2 << 20)

/* 0: it is not mapped. */
static uint64_t mapped_bytes(uint64_t count, size_t bytes)
{
	uint64_t all;

	if (__builtin_mul_overflow(count, (uint64_t)bytes, &all) || all > SIZE_MAX / 2)
		return UINT64_MAX;
	return all < HUGE ? 0 : (all + HUGE - 1) / HUGE * HUGE;
}

static void *map(uint64_t bytes)
{
	char *at = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t before;

	if (at == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)at % HUGE;
	if (before)
		munmap(at, before);
	if (before < HUGE)
		munmap(at + before + bytes, HUGE - before);
	madvise(at + before, bytes, MADV_HUGEPAGE); /* EINVAL: a kernel without them */
	return at + before;
}

void *table_take(uint64_t count, size_t bytes)
{
	const uint64_t all = mapped_bytes(count, bytes);

	if (all == UINT64_MAX)
		return NULL;
	return all ? map(all) : calloc(count, bytes);
}

void table_give(void *table, uint64_t count, size_t bytes)
{
	const uint64_t all = mapped_bytes(count, bytes);

	if (!all)
		free(table);
	else if (table)
		munmap(table, all);
}
