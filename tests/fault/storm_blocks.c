/* See storm_blocks.h. */
#include "tests/fault/storm_blocks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t state;

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

void storm_seed(uint64_t seed)
{
	state = seed;
}

uint64_t storm_draw(uint64_t below)
{
	state += 0x9e3779b97f4a7c15u;
	return mix(state) % below;
}

void storm_name(uint8_t key[16], uint64_t number)
{
	for (int i = 0; i < 8; i++)
		key[i] = key[i + 8] = (uint8_t)(number >> 8 * i);
}

struct terrace_keys storm_keys(uint8_t bytes[STORM_RUN][16], uint64_t most, uint64_t *first, uint32_t count)
{
	*first = storm_draw(most - STORM_RUN);
	for (uint32_t i = 0; i < count; i++)
		storm_name(bytes[i], *first + i);
	return (struct terrace_keys){ bytes[0], count, 16 };
}

uint64_t storm_word(uint64_t number, uint64_t seed, uint64_t i)
{
	return mix(number * 0x9e3779b9u + seed + i * 0x10001u);
}

bool storm_wrong(const uint64_t *block, uint64_t number, uint64_t words)
{
	for (uint64_t i = 1; i < words; i++) {
		if (block[i] == storm_word(number, block[0], i))
			continue;
		fprintf(stderr, "wrong byte: key %" PRIu64 ", word %" PRIu64 " of %" PRIu64 "\n", number, i, words);
		return true;
	}
	return false;
}

void storm_must(enum terrace_status status, const char *what)
{
	if (status == TERRACE_OK)
		return;
	fprintf(stderr, "%s: %s: %s\n", what, terrace_status_text(status), terrace_error());
	exit(3);
}
