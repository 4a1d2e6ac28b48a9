/* terrace-bench: what the measurements share.
 *
 * A bench is a function that measures its cases and reports each one beside a baseline that it measured in
 * the same run, the two taking turns so that a noisy machine hurts both alike. Figures of a round are
 * medians; of the rounds the best counts. A bench that cannot go on calls bench_die: the program then ends,
 * and with it every process it has started and its temporary folder.
 */
#ifndef TERRACE_BENCH_BENCH_H
#define TERRACE_BENCH_BENCH_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_PAIRS = 21, BENCH_PAIRS_MAX = 99, BENCH_SECONDS_MAX = 86400 };
enum { BENCH_ROUNDS = 9, BENCH_ROUNDS_QUICK = 2, BENCH_SKIPPED = 77, BENCH_BUSY_POLL_MS = 5 };

struct bench_options {
	bool json, check, quick;
	bool busy_poll; /* daemon and client poll for BENCH_BUSY_POLL_MS before they sleep */
	bool no_local;  /* every call by gRPC */
	const char *terraced, *redis; /* programs */
	bool redis_named;             /* by the caller */
	const char *against; /* another build's folder; NULL: none */
	unsigned rounds, pairs; /* pairs: of runs, with `against` */
	unsigned seconds;       /* after which no pair begins; 0: no limit */
	char folder[64]; /* temporary, removed at the end */
};
extern struct bench_options bench_options;

struct bench {
	const char *name, *summary;
	int (*run)(void); /* 0, or BENCH_SKIPPED after a word on stderr */
	bool two_builds;  /* it drives another build's daemon by itself; else pairs.c runs both builds' programs */
};

int bench_rpc(void);
int bench_lease(void);
int bench_index(void);
int bench_kernels(void);
int bench_repack(void);
int bench_put(void);
int bench_nvme(void);
int bench_restart(void);
int bench_spill(void);
int bench_advisor(void);
int bench_vram(void);
int bench_lists(void);
int bench_sums(void);
int bench_caches(void);
int bench_clients(void);
int bench_growth(void);
int bench_handover(void);
int bench_opaque(void);
int bench_network(void);
int bench_tail(void);
int bench_fetch(void);
int bench_member(void);

/* ---- report.c ---- */

enum bench_goal { BENCH_NONE, BENCH_AT_MOST, BENCH_AT_LEAST };

/* A figure. baseline: in the same unit, NAN: none. goal: which bound `target` is, of the ratio value /
 * baseline, or of the value where there is no baseline or of_value is set. */
struct bench_figure {
	const char *bench, *name, *unit;
	double value, baseline;
	enum bench_goal goal;
	double target;
	bool of_value;
	double ratio; /* 0: value / baseline; else a better one, such as the median of paired ratios */
	double low, high; /* the ratio's interval of 95 %; 0: not known. The goal is missed if all of it is beyond the target */
};
void bench_report(const struct bench_figure *figure);
/* Sets the figure's value and baseline to the medians of both sides, its ratio to the median of the pairs' ratios, and
 * low and high to the ratio's interval of 95 %; of fewer than 6 pairs there is none. n: at most BENCH_PAIRS_MAX. */
void bench_figure_of_pairs(struct bench_figure *f, const double *own, const double *other, size_t n);
/* Figures whose target was missed so far. */
unsigned bench_missed(void);

uint64_t bench_now_ns(void);
/* Sorts the values. */
double bench_median(double *values, size_t n);
/* Seeded; the same numbers in every run. */
uint64_t bench_random(uint64_t *state);
/* What a reader of a block does: adds all of its bytes up, in words. bytes: a multiple of 8. */
uint64_t bench_sum(const void *data, size_t bytes);
/* Keeps a result from being optimised away. */
void bench_keep(uint64_t value);
/* So many threads, BENCH_THREADS_MAX at most, that do the same, until all have. */
enum { BENCH_THREADS_MAX = 16 };
void bench_together(uint32_t threads, void *(*run)(void *arg), void *arg);

/* ---- child.c ---- */

/* Says what is wrong, ends all children, removes the folder, exits with 1. */
_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Starts a program, output into `folder`/NAME.log. It dies with this one. */
int bench_spawn(const char *name, const char *const *arguments);
/* SIGTERM, and SIGKILL when that takes more than 10 s. */
void bench_stop(int pid);
/* Waits for a process that ends by itself. */
void bench_wait(int pid);
/* The same of one that bench_spawn started, for that long at most. Returns its exit code, or 128 and its signal. */
int bench_wait_for(int pid, unsigned seconds);
/* Nanoseconds that processors have spent on a process, on all its threads; 0: this one. */
uint64_t bench_work_ns(int pid);
/* Where the output of the process of that name is. */
void bench_log_path(const char *name, char *path, size_t bytes);
/* Puts the end of that output on stderr. */
void bench_log_print(const char *name);
/* True if the child has ended; its log's end then stands on stderr. */
bool bench_ended(int pid, const char *name);
/* Makes the folder; at exit, however it comes, stops all children and removes it. */
void bench_folder_make(void);

#endif
