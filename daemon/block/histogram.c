/* The rows of a histogram. See block/histogram.h. */
#include "daemon/block/histogram.h"

#include <stdio.h>

enum { TEXT_MAX = 160 };

void histogram_emit(const struct histogram *h, const char *name, const char *labels, const char *help,
		    cache_stat_fn *emit, void *arg)
{
	char row[TEXT_MAX], with[TEXT_MAX];
	unsigned long long all = 0;

	for (uint32_t n = 0; n < HISTOGRAM_BUCKETS; n++)
		all += atomic_load_explicit(&h->count[n], memory_order_relaxed);
	if (!all)
		return;
	snprintf(row, sizeof row, "%s_bucket", name);
	all = 0;
	for (uint32_t n = 0; n < HISTOGRAM_BUCKETS; n++) {
		all += atomic_load_explicit(&h->count[n], memory_order_relaxed);
		if (n < HISTOGRAM_BUCKETS - 1)
			snprintf(with, sizeof with, "%s%sle=%g", labels, *labels ? "," : "", (double)(1ull << n) / 1e6);
		else
			snprintf(with, sizeof with, "%s%sle=+Inf", labels, *labels ? "," : "");
		emit(arg, row, with, (double)all, true, help);
	}
	snprintf(row, sizeof row, "%s_sum", name);
	emit(arg, row, labels, (double)atomic_load_explicit(&h->us, memory_order_relaxed) / 1e6, true, help);
	snprintf(row, sizeof row, "%s_count", name);
	emit(arg, row, labels, (double)all, true, help);
}
