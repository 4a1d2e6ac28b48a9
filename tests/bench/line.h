/* A figure as bench_report prints it with --json, read back from a line of text. */
#ifndef TERRACE_BENCH_LINE_H
#define TERRACE_BENCH_LINE_H

#include <stdbool.h>

enum { LINE_NAME_BYTES = 256, LINE_UNIT_BYTES = 64 };

struct line {
	char name[LINE_NAME_BYTES], unit[LINE_UNIT_BYTES];
	double value;
	double ratio; /* to the figure's own baseline; NAN: it has none */
};

/* False: the text is no such line, or its end is missing, or a name does not fit; *out is then not to be read. A line
 * feed at its end is no matter. */
bool line_read(const char *text, struct line *out);

#endif
