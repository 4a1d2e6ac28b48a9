/* The text that Prometheus reads (exposition format 0.0.4), of rows of stats in any order: all samples of a metric together, behind one HELP
 * and one TYPE. One thread. */
#ifndef TERRACE_DAEMON_HTTP_METRICS_TEXT_H
#define TERRACE_DAEMON_HTTP_METRICS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct metrics_family;

/* Zeroed: empty. */
struct metrics_text {
	struct metrics_family *families;
	uint32_t count, room, last, rows;
	bool failed; /* no memory, or more than STATS_MAX rows */
};

/* A cache_stat_fn; arg: a struct metrics_text. Labels are as cache.h says; their values get quotes, bytes that are not printable ASCII
 * become '?'. A value that is no number, or infinite, is left out. A metric that has
 * been renamed has its row under its former name too. */
void metrics_text_row(void *arg, const char *name, const char *labels, double value, bool counter, const char *help);

/* The whole text, the caller's to free, of *bytes without its NUL. NULL: it failed. */
char *metrics_text_make(const struct metrics_text *t, size_t *bytes);

void metrics_text_fini(struct metrics_text *t);

#endif
