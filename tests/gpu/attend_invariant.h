/* Attention that does not depend on the batch (split_tokens), in the attention tests. */
#ifndef TERRACE_TESTS_GPU_ATTEND_INVARIANT_H
#define TERRACE_TESTS_GPU_ATTEND_INVARIANT_H

#include "tests/gpu/gpu.h"

/* Sequences alone, and in `batches` random batches of up to `most` of them, have the same bits with split_tokens. What
 * they have is that of float64. With few batches the sequences are short; with 100 or more some have to have other bits
 * without split_tokens, or the batches show nothing. Prints a line a shape. */
bool run_invariant(enum kv_format k, enum kv_format v, uint32_t batches, uint32_t most);

#endif
