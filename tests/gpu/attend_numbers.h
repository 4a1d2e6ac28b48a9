/* Numbers at the edges in the attention tests. */
#ifndef TERRACE_TESTS_GPU_ATTEND_NUMBERS_H
#define TERRACE_TESTS_GPU_ATTEND_NUMBERS_H

#include "tests/gpu/gpu.h"

/* Attention over two formats, plain and with features: queries that are not finite and keys that are no numbers make the rows that have to do
 * with them NaN, as on the CPU, and no others; values near 65504 saturate in outputs of 16 bits. Prints a line. */
bool run_odd_numbers(enum kv_format k, enum kv_format v);

#endif
