/* See crash_shadow.h. */
#include "tests/fault/crash_shadow.h"

#include <string.h>

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

uint32_t crash_below(struct crash_random *r, uint32_t n)
{
	r->state += 0x9e3779b97f4a7c15ull;
	return (uint32_t)(mix(r->state) >> 32) % n;
}

void crash_key_bytes(uint32_t class, uint32_t key, uint8_t out[16])
{
	uint64_t words[2] = { key + 1, mix((uint64_t)class << 32 | key) };

	memcpy(out, words, sizeof(words));
}

static uint64_t word_of(uint32_t class, uint32_t key, uint32_t layout, uint32_t version, uint64_t i)
{
	if (i == 0)
		return (uint64_t)version << 32 | class << 24 | layout << 16 | key;
	return mix((uint64_t)version << 32 | class << 24 | layout << 16 | key) + i * 0x9e3779b97f4a7c15ull;
}

void crash_fill(uint8_t *at, uint64_t bytes, uint32_t class, uint32_t key, uint32_t layout, uint32_t version)
{
	for (uint64_t i = 0; i < bytes / 8; i++) {
		uint64_t w = word_of(class, key, layout, version, i);

		memcpy(at + i * 8, &w, 8);
	}
}

uint32_t crash_version(const uint8_t *at, uint64_t bytes, uint32_t class, uint32_t key, uint32_t layout)
{
	uint64_t first;

	memcpy(&first, at, 8);
	for (uint64_t i = 0; i < bytes / 8; i++) {
		uint64_t w = word_of(class, key, layout, (uint32_t)(first >> 32), i);

		if (memcmp(at + i * 8, &w, 8))
			return 0;
	}
	return (uint32_t)(first >> 32);
}
