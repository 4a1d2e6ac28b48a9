/* Figures beside their baselines, as a table for people or one JSON object a line. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/simd.h"
#include "tests/bench/bench.h"

static unsigned missed;

uint64_t bench_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_median(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), by_value);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Of n sorted values, how many from each end the interval of their median begins and ends: the median of what they are
 * from lies outside with at most 5 % (binomial). Of 21 the 6th and the 16th. 0: there are too few. */
static size_t interval_rank(size_t n)
{
	double term = exp2(-(double)n), below = term;
	size_t rank = 0;

	while (rank < n && below <= .025) {
		rank++;
		term *= (double)(n - rank + 1) / (double)rank;
		below += term;
	}
	return rank;
}

void bench_figure_of_pairs(struct bench_figure *f, const double *own, const double *other, size_t n)
{
	double values[BENCH_PAIRS_MAX], ratios[BENCH_PAIRS_MAX];
	const size_t rank = interval_rank(n);

	for (size_t i = 0; i < n; i++)
		ratios[i] = own[i] / other[i];
	f->ratio = bench_median(ratios, n);
	f->low = rank ? ratios[rank - 1] : 0;
	f->high = rank ? ratios[n - rank] : 0;
	memcpy(values, own, n * sizeof(*own));
	f->value = bench_median(values, n);
	memcpy(values, other, n * sizeof(*other));
	f->baseline = bench_median(values, n);
}

uint64_t bench_random(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* From two places, half a block apart: the processor's prefetcher stops at the end of a page, and while one
 * place waits for its next page the other goes on.
 */
KV_CLONES uint64_t bench_sum(const void *data, size_t bytes)
{
	enum { PLACES = 2, WORDS = 8 };
	size_t step = bytes / (PLACES * sizeof(uint64_t[WORDS])) * sizeof(uint64_t[WORDS]);
	const uint8_t *p = data;
	uint64_t sum[WORDS] = {0}, words[WORDS], all = 0;

	for (size_t i = 0; i < step; i += sizeof(words)) {
		for (size_t place = 0; place < PLACES; place++) {
			memcpy(words, p + place * step + i, sizeof(words));
			for (int j = 0; j < WORDS; j++)
				sum[j] += words[j];
		}
	}
	for (size_t i = PLACES * step; i < bytes; i += sizeof(uint64_t)) {
		memcpy(words, p + i, sizeof(uint64_t));
		all += words[0];
	}
	for (int j = 0; j < WORDS; j++)
		all += sum[j];
	return all;
}

void bench_keep(uint64_t value)
{
	static volatile uint64_t kept;

	kept = kept + value;
}

void bench_together(uint32_t threads, void *(*run)(void *arg), void *arg)
{
	pthread_t thread[BENCH_THREADS_MAX];

	if (threads > BENCH_THREADS_MAX)
		bench_die("%u threads at a time", threads);
	for (uint32_t i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, run, arg))
			bench_die("no thread");
	for (uint32_t i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
}

unsigned bench_missed(void)
{
	return missed;
}

static bool met(const struct bench_figure *f, double judged)
{
	return f->goal == BENCH_NONE ||
	       (f->goal == BENCH_AT_MOST ? judged <= f->target : judged >= f->target);
}

/* JSON has no infinity, and a ratio to nothing is one. */
static void print_number(const char *name, double value, int digits)
{
	if (isfinite(value))
		printf(",\"%s\":%.*g", name, digits, value);
	else
		printf(",\"%s\":null", name);
}

static void print_json(const struct bench_figure *f, double ratio, bool ok)
{
	printf("{\"bench\":\"%s\",\"case\":\"%s\"", f->bench, f->name);
	print_number("value", f->value, 6);
	printf(",\"unit\":\"%s\"", f->unit);
	print_number("baseline", f->baseline, 6);
	print_number("ratio", isnan(f->baseline) ? NAN : ratio, 4);
	if (f->high > 0)
		printf(",\"low\":%.4g,\"high\":%.4g", f->low, f->high);
	if (f->goal != BENCH_NONE)
		printf(",\"target\":%.6g,\"target_of\":\"%s\",\"bound\":\"%s\",\"ok\":%s", f->target,
		       f->of_value ? "value" : "ratio", f->goal == BENCH_AT_MOST ? "most" : "least",
		       ok ? "true" : "false");
	printf("}\n");
}

static void print_row(const struct bench_figure *f, double ratio, bool ok)
{
	static bool headed;

	if (!headed)
		printf("%-8s %-44s %12s %12s %8s  %-10s %s\n", "bench", "case", "value", "baseline", "ratio",
		       "unit", "target");
	headed = true;
	printf("%-8s %-44s %12.4g ", f->bench, f->name, f->value);
	if (isnan(f->baseline))
		printf("%12s %8s  %-10s", "-", "-", f->unit);
	else
		printf("%12.4g %8.3f  %-10s", f->baseline, ratio, f->unit);
	if (f->high > 0)
		printf(" %.3f to %.3f", f->low, f->high);
	if (f->goal != BENCH_NONE)
		printf(" %s %s %g: %s", f->of_value ? "value" : "ratio",
		       f->goal == BENCH_AT_MOST ? "<=" : ">=", f->target, ok ? "met" : "MISSED");
	printf("\n");
}

void bench_report(const struct bench_figure *figure)
{
	struct bench_figure f = *figure;
	double ratio = f.ratio > 0 ? f.ratio : f.value / f.baseline;
	bool ok;

	f.of_value = f.of_value || isnan(f.baseline);
	if (f.high > 0)
		ok = met(&f, f.goal == BENCH_AT_MOST ? f.low : f.high);
	else
		ok = met(&f, f.of_value ? f.value : ratio);
	missed += !ok;
	if (bench_options.json)
		print_json(&f, ratio, ok);
	else
		print_row(&f, ratio, ok);
	fflush(stdout);
}
