/* What extend does not take. */
#ifndef TERRACE_TESTS_GPU_EXTEND_REFUSALS_H
#define TERRACE_TESTS_GPU_EXTEND_REFUSALS_H

/* Calls with one thing wrong, each of which is to be refused as it should, before anything is launched. */
bool run_extend_refusals();

#endif
