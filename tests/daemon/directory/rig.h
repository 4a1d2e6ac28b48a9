/* Names, runs and random numbers for the tests of the directory. */
#ifndef TERRACE_TESTS_DAEMON_DIRECTORY_RIG_H
#define TERRACE_TESTS_DAEMON_DIRECTORY_RIG_H

#include <check.h>
#include <stdlib.h>

#include "daemon/directory/name.h"

/* splitmix64 */
static inline uint64_t rig_hash(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static inline uint32_t rig_below(uint64_t *seed, uint32_t n)
{
	*seed = rig_hash(*seed);
	return (uint32_t)((*seed >> 32) * n >> 32);
}

static inline struct public_name rig_name(uint64_t i)
{
	return (struct public_name){ .word = { rig_hash(2 * i), rig_hash(2 * i + 1) } };
}

static inline struct directory_run rig_run(uint64_t node, uint64_t epoch)
{
	const uint64_t word[2] = { rig_hash(~node), rig_hash(node ^ 0x5555) };
	struct directory_run run = { .epoch = epoch };

	memcpy(run.node, word, sizeof run.node);
	return run;
}

static inline struct directory_member rig_member(uint64_t node, uint64_t epoch)
{
	return (struct directory_member){ .run = rig_run(node, epoch) };
}

static inline int rig_main(TCase *tc, const char *name)
{
	Suite *suite = suite_create(name);
	SRunner *runner;
	int failed;

	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
