/* Histograms of times. Bucket n counts what took more than 2^(n-1) and at most 2^n microseconds; the last one, all that
 * took longer. Any thread may add; a reader may see a time in the sum that it does not see in a bucket yet. */
#ifndef TERRACE_DAEMON_BLOCK_HISTOGRAM_H
#define TERRACE_DAEMON_BLOCK_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#include "daemon/block/stat_row.h"

enum { HISTOGRAM_BUCKETS = 26 };       /* up to 2^24 us, 16.8 s */

struct histogram {
	atomic_ullong count[HISTOGRAM_BUCKETS];
	atomic_ullong us;
};

static inline uint32_t histogram_bucket(uint64_t us)
{
	const uint32_t n = us <= 1 ? 0 : 64 - (uint32_t)__builtin_clzll(us - 1);

	return n < HISTOGRAM_BUCKETS ? n : HISTOGRAM_BUCKETS - 1;
}

static inline void histogram_add(struct histogram *h, uint64_t us)
{
	atomic_fetch_add_explicit(&h->count[histogram_bucket(us)], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&h->us, us, memory_order_relaxed);
}

/* Emits the rows of a histogram as Prometheus has them, NAME_bucket, NAME_sum and NAME_count; none if nothing was
 * added. labels: at most 96 bytes, or empty. */
void histogram_emit(const struct histogram *h, const char *name, const char *labels, const char *help,
		    cache_stat_fn *emit, void *arg);

#endif
