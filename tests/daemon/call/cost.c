/* What a block costs in memory besides its slot, and what a lookup costs, with many blocks in the index.
 * Times are printed, not judged: terrace-bench does that. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/cache.h"
#include "daemon/call/lookup.h"
#include "tests/daemon/cache_rig.h"
#include "tests/daemon/fill.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef TERRACE_SANITIZED
enum { BLOCKS = 1 << 14 };
#else
enum { BLOCKS = 1000000 };
#endif

static uint64_t heap_bytes(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static double clock_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

START_TEST(a_million_blocks)
{
	const struct cache_options o = rig_options(64);
	double best = 1e9, each;
	uint64_t before;
	struct rig r;

	rig_open(&r, &o, 1);
	before = heap_bytes();
	for (uint64_t n = 0; n < BLOCKS; n += 4096) {
		struct cache_keys k = rig_keys(n, BLOCKS - n < 4096 ? BLOCKS - n : 4096);

		ck_assert_int_eq(cache_seed(r.c, r.s.id, 0, &k, r.now), STATUS_OK);
		free((void *)k.bytes);
	}
	nanosleep(&(struct timespec){ 0, 300000000 }, NULL); /* the table grows in the background */
	each = (double)(heap_bytes() - before) / BLOCKS;
	/* The host tier's own 33 bits a slot come on top. */
	printf("%d blocks: %.1f bytes each, of which struct %zu\n", BLOCKS, each,
	       cache_seed_block_struct_bytes());
#ifndef TERRACE_SANITIZED
	ck_assert_double_le(each + 4.125, 256);
#endif
	srand(1);
	for (int i = 0; i < RIG_ROUNDS(2000); i++) {
		uint64_t first = (uint64_t)rand() % (BLOCKS - 64);
		struct cache_keys k = rig_keys(first, 64);
		double begin = clock_us(), took;
		uint32_t prefix;

		cache_lookup(r.c, r.s.id, &k, &prefix, NULL, 0, &r.why);
		took = clock_us() - begin;
		best = took < best ? took : best;
		ck_assert_uint_eq(prefix, 64);
		free((void *)k.bytes);
	}
	printf("lookup of 64 keys: %.2f us at best\n", best);
	cache_destroy(r.c);
	cache_thread_leave();
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { a_million_blocks };

	return rig_main("cache_cost", tests, sizeof(tests) / sizeof(tests[0]));
}
