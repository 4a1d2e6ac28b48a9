/* A bench by the programs of two builds: --against, of the benches that cannot drive another build's daemon. */
#ifndef TERRACE_BENCH_PAIRS_H
#define TERRACE_BENCH_PAIRS_H

/* Runs the bench of that name by this program and by the terrace-bench of bench_options.against, bench_options.pairs
 * times each, and reports each figure that both print. Returns 0, or BENCH_SKIPPED if either program skips the bench.
 * A program that is missing, fails, or prints what is no figure ends this one, with words. */
int pairs_run(const char *bench);

#endif
