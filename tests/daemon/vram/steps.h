/* Counts what a cache does for its blocks, in place of how long it takes: what is looked up, pinned and unpinned in the index, and what policies
 * are told of, asked for, or look at in search of a victim. The linker puts the counting in (--wrap in the list). Any thread. */
#ifndef TERRACE_TESTS_DAEMON_VRAM_STEPS_H
#define TERRACE_TESTS_DAEMON_VRAM_STEPS_H

#include <stdint.h>

/* From 0 on. */
void steps_begin(void);
uint64_t steps_taken(void);

#endif
