/* SipHash-2-4 with 128 bits (Aumasson and Bernstein, 2012; the 128-bit form is of the authors' reference code). Inline,
 * since a name is made for each block of a call. */
#ifndef TERRACE_DAEMON_NAMES_SIPHASH_H
#define TERRACE_DAEMON_NAMES_SIPHASH_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t siphash_word(const uint8_t *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof word);
	return le64toh(word);
}

static inline uint64_t siphash_turn(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static inline void siphash_rounds(uint64_t v[4], int n)
{
	for (int i = 0; i < n; i++) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = siphash_turn(v[1], 13) ^ v[0];
		v[3] = siphash_turn(v[3], 16) ^ v[2];
		v[0] = siphash_turn(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = siphash_turn(v[1], 17) ^ v[2];
		v[3] = siphash_turn(v[3], 21) ^ v[0];
		v[2] = siphash_turn(v[2], 32);
	}
}

static inline void siphash_take(uint64_t v[4], uint64_t word)
{
	v[3] ^= word;
	siphash_rounds(v, 2);
	v[0] ^= word;
}

/* key: of 16 bytes, as two little-endian words. The hash of n bytes goes to out[16]. */
static inline void siphash_128(const uint64_t key[2], const uint8_t *bytes, size_t n, uint8_t out[16])
{
	uint64_t v[4] = { key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d ^ 0xee,
			  key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573 };
	const size_t whole = n & ~(size_t)7;
	uint8_t last[8] = { 0 };
	uint64_t half;

	for (size_t i = 0; i < whole; i += 8)
		siphash_take(v, siphash_word(bytes + i));
	memcpy(last, bytes + whole, n - whole);
	last[7] = (uint8_t)n;
	siphash_take(v, siphash_word(last));
	v[2] ^= 0xee;
	siphash_rounds(v, 4);
	half = htole64(v[0] ^ v[1] ^ v[2] ^ v[3]);
	memcpy(out, &half, sizeof half);
	v[1] ^= 0xdd;
	siphash_rounds(v, 4);
	half = htole64(v[0] ^ v[1] ^ v[2] ^ v[3]);
	memcpy(out + 8, &half, sizeof half);
}

#endif
