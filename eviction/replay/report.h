/* The results of terrace-replay, as a table, JSON lines, CSV and a drawing. */
#ifndef TERRACE_EVICTION_REPLAY_REPORT_H
#define TERRACE_EVICTION_REPLAY_REPORT_H

#include <stdio.h>

#include "eviction/replay.h"
#include "eviction/replay/options.h"

struct row {
	const char *policy;
	double size;
	uint64_t capacity;      /* blocks */
	struct replay_result result;
	double seconds;         /* that the replay took */
};

/* rows: options' policies x sizes, policy by policy. */
void report_table(FILE *f, const struct options *o, const struct row *rows);
void report_json(FILE *f, const struct row *row);
void report_csv(FILE *f, const struct row *rows, uint32_t count);
void report_svg(FILE *f, const struct options *o, const struct row *rows);

#endif
