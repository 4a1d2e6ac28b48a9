/* What the engines of the mixed load do with blocks in a GPU's memory: fill them, grow them token by token, attend, and look at every byte.
 *
 * The GPU is reached through CUDA's runtime and the plugin by the names that are loaded, so that the program is the same on a real one
 * and on the simulated one. A block's bytes follow from its key's number: most are words, of a seed in the first of them; every fourth
 * of a chain is what terrace_encode makes of vectors that follow from the number. Bytes of another block, of another version, of two
 * writers or of no one are thus seen. */
#ifndef TERRACE_TESTS_MIXED_WORK_H
#define TERRACE_TESTS_MIXED_WORK_H

#include "client/examples/tinylm/device.h"

#include "terrace.h"

#include <stdint.h>

enum { MIXED_CHAIN = 16, MIXED_LAYERS = 8, MIXED_HEADS = 4, MIXED_DIM = 128, MIXED_TOKENS = 64, MIXED_STEP = 16 };

extern struct terrace_layout mixed_layout;

/* A stream, and memory on both sides for a chain of blocks. One thread's. */
struct mixed_work {
	struct device device;
	uint64_t words;         /* of a block */
	uint64_t *host;         /* [MIXED_CHAIN][words] */
	char *blocks;           /* the same on the device */
	uint64_t *grown;        /* [numbers] what grown blocks hash to; 0: not known yet */
	float *k, *v;           /* [layers][tokens][heads][dim] */
	char *device_k, *device_v;
	int64_t *slots;         /* on the device: [tokens] 0, 1 ... */
	uint64_t *addresses, *to; /* on the device: [MIXED_CHAIN] */
	float *q, *out, *lse;   /* on the device */
	uint32_t *kv_tokens;    /* on the device: one */
	void *workspace;
	size_t workspace_bytes;
};

/* After device_load. numbers: of keys. The process ends with 3 and a word where CUDA does not obey. */
void mixed_work_open(struct mixed_work *w, uint64_t numbers);
void mixed_work_close(struct mixed_work *w);

uint64_t mixed_random(uint64_t *state, uint64_t below);

/* Whether block `number` is one that grows token by token. */
static inline bool mixed_grows(uint64_t number)
{
	return number % 4 == 3;
}

/* On the CPU: the bytes of a block. seed: of words. */
void mixed_fill(struct mixed_work *w, uint64_t number, uint64_t seed, void *block);
/* The process ends with 1, and a word on stderr, if they are not those of some fill of it. */
void mixed_look(struct mixed_work *w, uint64_t number, const void *block);

/* Queue on the stream: the bytes of host[0] to a device address; the tokens first .. first + MIXED_STEP - 1 of a block that grows, whose
 * vectors mixed_vectors has made. */
void mixed_put(struct mixed_work *w, uint64_t address);
void mixed_vectors(struct mixed_work *w, uint64_t number);
void mixed_grow(struct mixed_work *w, uint32_t first, uint64_t address);

/* Copies a layer of `count` blocks to host[], and waits for it. */
void mixed_read_layer(struct mixed_work *w, const uint64_t *addresses, uint32_t count, uint32_t layer);
/* The same of whole blocks, by a kernel, from wherever the device can read. */
void mixed_read(struct mixed_work *w, const uint64_t *addresses, uint32_t count);

/* Queues a decode step over `tokens` tokens in these blocks. Its result is of no interest: that the bytes can be reached is. */
void mixed_attend(struct mixed_work *w, const uint64_t *addresses, uint32_t count, uint32_t tokens, uint32_t layer);
void mixed_wait(struct mixed_work *w);

#endif
