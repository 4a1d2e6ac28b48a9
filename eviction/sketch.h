/* Blocks that are alike: 64-bit sketches of what blocks hold (signs of random projections, so that the bits in which two differ grow with
 * the angle between them), found again by locality-sensitive hashing: sketches that agree in one of four bands of 16 bits meet in a bucket.
 * Bounded: a bucket keeps the last four. No I/O and no clock; one thread owns it.
 */
#ifndef TERRACE_EVICTION_SKETCH_H
#define TERRACE_EVICTION_SKETCH_H

#include <stdint.h>

enum {
	SKETCH_BITS = 64,
	SKETCH_NEAR = 10,          /* bits in which near ones differ at most; two that have nothing in common differ in 32 */
	SKETCH_MEANS = 64,         /* kinds of blocks whose mean is known */
};

struct sketches;

struct sketch_near {
	uint64_t id;
	uint32_t distance;         /* bits */
};

/* For about so many blocks, at 64 to 128 bytes each, all taken now. NULL: no memory. destroy: NULL allowed. */
struct sketches *sketches_create(uint32_t blocks);
void sketches_destroy(struct sketches *s);

/* The sketch of a vector of a kind (a layout): of its difference from the mean of what came before, since vectors of a model share a
 * large part that says nothing. The first 32 of a kind give 0: no sketch. The kind that was not seen for longest gives way. */
uint64_t sketches_bits(struct sketches *s, uint64_t kind, const int8_t v[SKETCH_BITS]);

/* Remembers it, and gives those that are near, each once, not itself; returns how many, at most `max`. Neither id nor bits 0. */
uint32_t sketches_add(struct sketches *s, uint64_t id, uint64_t bits, struct sketch_near *out, uint32_t max);

#endif
