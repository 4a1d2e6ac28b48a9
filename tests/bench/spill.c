/* What a storm of spills costs those who do not need the disk: lookups of 64 keys that are in memory, p99. Twice: while 192 MiB that were
 * put before are flushed, beside the same lookups in peace; and while another thread puts as fast as it can and everything it puts
 * is written to disk, beside the same puts without a disk.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/service.h"

enum { KEYS = 64, CALLS = 4000, CALLS_QUICK = 200, PUT_KEYS = 8, FLUSHED = 2700, FLUSH_CALLS = 1 << 16 };

struct storm {
	struct service *service;
	const struct terrace_layout *layout;
	atomic_bool stop;
	_Atomic uint64_t blocks;
	pthread_t thread;
};

/* Puts of PUT_KEYS blocks at a time; what finds no room is tried again. */
static void *storm_main(void *arg)
{
	struct storm *s = arg;
	struct terrace_session *session = service_session(s->service, s->layout);
	uint64_t block_bytes = terrace_block_bytes(s->layout), seed = 99;
	enum terrace_status statuses[PUT_KEYS];

	while (!atomic_load(&s->stop)) {
		struct terrace_keys keys = service_keys(PUT_KEYS, 16, bench_random(&seed));
		struct terrace_reservation *r = NULL;

		service_check(terrace_reserve(session, &keys, NULL, 0, statuses, &r), "reserve");
		for (uint32_t i = 0; i < PUT_KEYS; i++)
			if (statuses[i] == TERRACE_OK)
				memset(terrace_reservation_block(r, i, 0), (int)i, block_bytes);
		service_check(terrace_commit(r, 0, statuses, NULL), "commit");
		free((void *)(uintptr_t)keys.bytes);
		atomic_fetch_add(&s->blocks, PUT_KEYS);
	}
	terrace_session_close(session);
	return NULL;
}

static double p99_us(struct terrace_session *session, const struct terrace_keys *keys)
{
	unsigned n = bench_options.quick ? CALLS_QUICK : CALLS;
	double *us = calloc(n, sizeof(*us)), p99;

	if (!us)
		bench_die("out of memory");
	for (unsigned i = 0; i < n; i++) {
		uint64_t start = bench_now_ns();
		uint32_t prefix = 0;

		service_check(terrace_lookup(session, keys, 0, &prefix, NULL), "lookup");
		us[i] = (double)(bench_now_ns() - start) / 1e3;
		if (prefix != keys->count)
			bench_die("a leased block is gone");
	}
	bench_median(us, n); /* sorts */
	p99 = us[n - 1 - n / 100];
	free(us);
	return p99;
}

static double with_storm(struct service *s, const struct terrace_layout *layout, struct terrace_session *session,
			 const struct terrace_keys *keys)
{
	struct storm storm = {.service = s, .layout = layout};
	double p99;

	if (pthread_create(&storm.thread, NULL, storm_main, &storm))
		bench_die("no thread");
	while (atomic_load(&storm.blocks) < 64)
		;
	p99 = p99_us(session, keys);
	atomic_store(&storm.stop, true);
	pthread_join(storm.thread, NULL);
	return p99;
}

/* Lookups while everything that `session` has only in memory is flushed; until the flush is over. */
struct flusher {
	struct terrace_session *session;
	atomic_bool done;
	pthread_t thread;
};

static void *flusher_main(void *arg)
{
	struct flusher *f = arg;

	service_check(terrace_flush(f->session, NULL, 60 * 1000 * 1000, NULL), "flush");
	atomic_store(&f->done, true);
	return NULL;
}

static double during_flush(struct terrace_session *session, const struct terrace_keys *keys, const struct terrace_layout *layout,
			   uint64_t seed)
{
	const uint32_t blocks = bench_options.quick ? 64 : FLUSHED;
	struct terrace_keys fresh = service_keys(blocks, 16, seed);
	struct flusher f = {.session = session};
	double *us = malloc(FLUSH_CALLS * sizeof(*us)), p99;
	size_t n = 0;

	if (!us)
		bench_die("out of memory");
	service_fill(session, &fresh, terrace_block_bytes(layout));
	if (pthread_create(&f.thread, NULL, flusher_main, &f))
		bench_die("no thread");
	while (!atomic_load(&f.done) && n < FLUSH_CALLS) {
		uint64_t start = bench_now_ns();
		uint32_t prefix = 0;

		service_check(terrace_lookup(session, keys, 0, &prefix, NULL), "lookup");
		us[n++] = (double)(bench_now_ns() - start) / 1e3;
	}
	pthread_join(f.thread, NULL);
	bench_median(us, n);
	p99 = us[n - 1 - n / 100];
	free(us);
	service_check(terrace_delete(session, &fresh, 0, NULL), "delete");
	free((void *)(uintptr_t)fresh.bytes);
	return p99;
}

/* Medians over the rounds, peace and storm taking turns. */
static void measure(bool disk, double *peace, double *storm)
{
	struct terrace_layout layout = service_layout("bench spill", TERRACE_FORMAT_INT4_PTH, 8, 4, 128);
	double in_peace[BENCH_ROUNDS], in_storm[BENCH_ROUNDS];
	unsigned rounds = bench_options.rounds < BENCH_ROUNDS ? bench_options.rounds : BENCH_ROUNDS;
	struct terrace_keys keys = service_keys(KEYS, 16, disk ? 8 : 9);
	struct terrace_lease *lease = NULL;
	struct terrace_session *session;
	struct service s;

	if (disk)
		service_start_disk(&s, "256MiB", "2GiB", "1");
	else
		service_start(&s, "256MiB");
	session = service_session(&s, &layout);
	service_fill(session, &keys, terrace_block_bytes(&layout));
	service_check(terrace_lease(session, &keys, TERRACE_LEASE_ALL, 0, &lease), "lease");
	for (unsigned i = 0; i < rounds; i++) {
		in_peace[i] = p99_us(session, &keys);
		in_storm[i] = with_storm(&s, &layout, session, &keys);
	}
	*peace = bench_median(in_peace, rounds);
	*storm = bench_median(in_storm, rounds);
	terrace_release(lease);
	terrace_session_close(session);
	service_stop(&s);
	free((void *)(uintptr_t)keys.bytes);
}

static void measure_flush(double *peace, double *storm)
{
	struct terrace_layout layout = service_layout("bench spill", TERRACE_FORMAT_INT4_PTH, 8, 4, 128);
	double in_peace[BENCH_ROUNDS], in_storm[BENCH_ROUNDS];
	unsigned rounds = bench_options.rounds < BENCH_ROUNDS ? bench_options.rounds : BENCH_ROUNDS;
	struct terrace_keys keys = service_keys(KEYS, 16, 7);
	struct terrace_lease *lease = NULL;
	struct terrace_session *session;
	struct service s;

	service_start_disk(&s, "256MiB", "2GiB", "0");
	session = service_session(&s, &layout);
	service_fill(session, &keys, terrace_block_bytes(&layout));
	service_check(terrace_lease(session, &keys, TERRACE_LEASE_ALL, 0, &lease), "lease");
	for (unsigned i = 0; i < rounds; i++) {
		in_peace[i] = p99_us(session, &keys);
		in_storm[i] = during_flush(session, &keys, &layout, 1000 + i);
	}
	*peace = bench_median(in_peace, rounds);
	*storm = bench_median(in_storm, rounds);
	terrace_release(lease);
	terrace_session_close(session);
	service_stop(&s);
	free((void *)(uintptr_t)keys.bytes);
}

int bench_spill(void)
{
	double peace, storm, peace_memory, puts, peace_flush, flush;

	measure_flush(&peace_flush, &flush);
	measure(true, &peace, &storm);
	measure(false, &peace_memory, &puts);
	bench_report(&(struct bench_figure){.bench = "spill",
					    .name = "lookup of 64 keys in memory, while all else is flushed / in peace",
					    .unit = "us, p99",
					    .value = flush,
					    .baseline = peace_flush,
					    .goal = BENCH_AT_MOST,
					    .target = 2});
	bench_report(&(struct bench_figure){.bench = "spill",
					    .name = "lookup of 64 keys in memory, puts that are all spilled / puts without a disk",
					    .unit = "us, p99",
					    .value = storm,
					    .baseline = puts,
					    .goal = BENCH_AT_MOST,
					    .target = 2});
	bench_report(&(struct bench_figure){.bench = "spill",
					    .name = "the same / in peace",
					    .unit = "us, p99",
					    .value = storm,
					    .baseline = fmin(peace, peace_memory)});
	return 0;
}
