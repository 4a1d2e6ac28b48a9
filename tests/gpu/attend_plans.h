/* Plans of attention by themselves (kernels/cuda/plan.cuh), in the attention tests. */
#ifndef TERRACE_TESTS_GPU_ATTEND_PLANS_H
#define TERRACE_TESTS_GPU_ATTEND_PLANS_H

#include <stdint.h>

/* Plans `count` random batches and reads the segments back: each row's parts follow each other from the first atom that
 * a query sees to the sequence's end, each of an even number of atoms but for a row's last one; their slots are apart;
 * with split_tokens they end where the sequence alone says. No attention is run. Prints a line. */
bool run_plans(uint32_t count);

#endif
