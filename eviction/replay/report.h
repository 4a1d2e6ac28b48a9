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
	double gap;             /* % of the way from lru to opt, by tokens; 0 where there is none */
	double gain;            /* what graph gains over lru, in % of what this row gains; 0 where there is none */
};

/* Sets gap and gain of all rows, with the options' --offline; else they are not read. */
void report_compare(const struct options *o, struct row *rows);

/* rows: options' policies x sizes, policy by policy. */
void report_table(FILE *f, const struct options *o, const struct row *rows);
void report_json(FILE *f, const struct options *o, const struct row *row);
void report_csv(FILE *f, const struct options *o, const struct row *rows);
void report_svg(FILE *f, const struct options *o, const struct row *rows);

#endif
