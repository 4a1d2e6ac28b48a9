/* What the engines of the storms share: blocks that describe themselves, their names, and seeded draws. Word 0 of a block is a seed, word i a
 * function of key, seed and i: one that is half one put and half another, or belongs to another key, or was reused under a lease, does not
 * match. One thread draws.
 */
#ifndef TERRACE_TESTS_FAULT_STORM_BLOCKS_H
#define TERRACE_TESTS_FAULT_STORM_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/include/terrace.h"

enum { STORM_RUN = 8 };        /* keys in a row, at most */

/* Draws begin here. */
void storm_seed(uint64_t seed);
/* Less than `below`. */
uint64_t storm_draw(uint64_t below);

void storm_name(uint8_t key[16], uint64_t number);
/* A run of `count` keys, drawn among the first `most`, named in `bytes`, which the keys point into. */
struct terrace_keys storm_keys(uint8_t bytes[STORM_RUN][16], uint64_t most, uint64_t *first, uint32_t count);

uint64_t storm_word(uint64_t number, uint64_t seed, uint64_t i);
/* Whether any of the block's words is another's; told on stderr. */
bool storm_wrong(const uint64_t *block, uint64_t number, uint64_t words);

/* Unless the status is OK: says so, with `what`, and exits 3. */
void storm_must(enum terrace_status status, const char *what);

#endif
