/* Finds blocks with similar contents. A sketch is 64 bits: signs of random projections of the contents, so that the
 * number of different bits grows with the angle between two blocks. Sketches are found by locality-sensitive hashing:
 * sketches that agree in one of four bands of 16 bits are in one bucket. Bounded: a bucket keeps the last four. No I/O
 * and no clock; one thread owns it.
 */
#ifndef TERRACE_EVICTION_SKETCH_H
#define TERRACE_EVICTION_SKETCH_H

#include <stdint.h>

enum {
	SKETCH_BITS = 64,
	SKETCH_NEAR = 10,          /* near sketches differ in so many bits at most; unrelated ones differ in 32 */
	SKETCH_MEANS = 64,         /* kinds of blocks whose mean is known */
};

struct sketches;

struct sketch_near {
	uint64_t id;
	uint32_t distance;         /* bits */
};

/* Makes a table for about `blocks` blocks, 64 to 128 bytes each, all taken now. NULL: no memory. sketches_destroy: NULL
 * allowed. */
struct sketches *sketches_create(uint32_t blocks);
void sketches_destroy(struct sketches *s);

/* The sketch of a vector of a kind (a layout). It is made of the vector's difference from the mean of earlier vectors
 * of the kind, since the vectors of a model share a large part that says nothing. The first 32 vectors of a kind give
 * 0: no sketch. When there are too many kinds, the one not seen for longest is dropped. */
uint64_t sketches_bits(struct sketches *s, uint64_t kind, const int8_t v[SKETCH_BITS]);

/* Remembers the sketch `bits` of block `id`, neither of them 0. Writes the blocks with near sketches, each once,
 * without `id` itself. Returns how many, at most `max`. */
uint32_t sketches_add(struct sketches *s, uint64_t id, uint64_t bits, struct sketch_near *out, uint32_t max);

#endif
