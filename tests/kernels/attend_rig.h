/* Attention over packed blocks against the naive thing: kv_decode to floats, softmax in float64. Blocks
 * begin full of 0xff (NaN scales, NaN halves), and only the tokens, layer and heads under test are
 * encoded, so that a read of anything else shows in the result.
 */
#ifndef TERRACE_TESTS_KERNELS_ATTEND_RIG_H
#define TERRACE_TESTS_KERNELS_ATTEND_RIG_H

#include "kernels/attend.h"
#include "kernels/machine.h"

#include <check.h>


enum { WITH_SINKS = 1, WITH_ALIBI = 2, WITH_ALIBI_SQRT = 4, WITH_TREE = 8, WITH_RANGES = 16 };

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

extern const uint32_t head_dims[KV_HEAD_DIM_COUNT];    /* all there are */
extern const enum kv_format formats[7];

/* Zero means: 1 head, 1 head a group, blocks of 16 tokens, 1 layer, 1 query, V of K's dims, unfilled
 * blocks of 0xff, no features, no rope part. With one, dk is 512 and V a view of K. */
struct spec {
	enum kv_format k, v, rope;
	uint32_t dk, dv, heads, group, block_tokens, tokens, queries;
	bool causal;
	int64_t first_pos;
	uint32_t window;
	enum kv_dtype q_type, out_type;
	uint32_t layers, layer;
	float q_size, v_mean;
	uint8_t fill;
	uint64_t seed;
	unsigned with;       /* features whose numbers are random */
	uint32_t own_window; /* of the call, not of the layout */
	float softcap, out_scale;
};

struct bed {
	struct spec spec;
	struct kv_layout layout;
	struct kv_geometry geometry;
	uint32_t blocks, key_dims;
	void **block;
	void *q, *out, *scratch;
	float *lse;
	size_t rows, out_bytes;
	float *sinks, *alibi, *tree;
	int32_t *ranges;
	struct kv_attend a;
};

extern uint64_t random_state;

uint64_t random_bits(void);
uint32_t random_below(uint32_t n);
float random_gaussian(void); /* of variance 1, near enough */
/* A multiple of 64 bytes, 64-byte aligned. */
void *allocate(size_t bytes);

void bed_init(struct bed *b, const struct spec *given);
void bed_fini(struct bed *b);
/* Fills out and lse with 0xff. */
void poison(struct bed *b);
/* Nothing behind out and lse was written. */
void check_guards(const struct bed *b);
/* Runs it and compares every row. */
void check_spec(const struct spec *spec);
/* The same tokens in blocks whose other bytes differ, with scratch of any content, give the same bits. */
void check_other_bytes(const struct spec *spec);
/* Of all fp32 outputs that were compared in this process. */
void check_worst_error(void);

/* main of a suite whose tests run once for each kind of machine that this one can be. tests_add: puts
 * them into the case. */
int on_every_machine(const char *name, void (*tests_add)(TCase *tc));

#endif
