/* terrace-replay: runs eviction policies over a recorded trace of requests, and prints what they would
 * have hit. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "eviction/replay/nodes_report.h"
#include "eviction/replay/offline.h"
#include "eviction/replay/policies.h"
#include "eviction/replay/read.h"
#include "eviction/replay/report.h"

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static enum status run(const struct trace *t, const struct options *o, struct row *row)
{
	struct replay_options r = { .growth = o->growth, .weigh = o->weigh, .from = (uint32_t)(o->from * t->request_count),
				    .to = (uint32_t)(o->to * t->request_count) };
	double began = now();
	enum status s;

	if (r.to <= r.from)
		r.to = r.from + 1;
	row->capacity = (uint64_t)(row->size * t->unique + 0.5);
	if (row->capacity == 0)
		row->capacity = 1;
	r.capacity = row->capacity;
	if (strcmp(row->policy, OPTIONS_OFFLINE_PAST) == 0)
		s = offline_run(t, OFFLINE_PAST, &r, &row->result);
	else if (strcmp(row->policy, OPTIONS_OFFLINE_CROSS) == 0)
		s = offline_run(t, OFFLINE_CROSS, &r, &row->result);
	else if (strncmp(row->policy, "opt", 3) == 0)
		s = replay_opt(t, strcmp(row->policy, "opt") == 0, &r, &row->result);
	else
		s = replay_run(t, replay_policy_find(row->policy), &r, &row->result);
	row->seconds = now() - began;
	return s;
}

static int run_all(const struct trace *t, const struct options *o, struct row *rows)
{
	for (uint32_t i = 0; i < o->policy_count * o->size_count; i++) {
		rows[i].policy = o->policies[i / o->size_count];
		rows[i].size = o->sizes[i % o->size_count];
		if (run(t, o, &rows[i])) {
			fprintf(stderr, "terrace-replay: no memory\n");
			return 1;
		}
		if (o->json && !o->offline)
			report_json(stdout, o, &rows[i]);
	}
	if (o->offline)
		report_compare(o, rows);
	for (uint32_t i = 0; o->json && o->offline && i < o->policy_count * o->size_count; i++)
		report_json(stdout, o, &rows[i]);
	return 0;
}

/* Each part is a replay of its own from the beginning on, of which the part is counted. */
static int run_folds(const struct trace *t, const struct options *o, struct row *rows)
{
	for (uint32_t i = 0; i < o->folds; i++) {
		struct options part = *o;

		part.from = (double)i / o->folds;
		part.to = (double)(i + 1) / o->folds;
		if (run_all(t, &part, rows))
			return 1;
		printf("part %u of %u: ", i + 1, o->folds);
		report_table(stdout, &part, rows);
	}
	return 0;
}

static int write_files(const struct options *o, const struct row *rows)
{
	for (int i = 0; i < 2; i++) {
		const char *path = i ? o->svg : o->csv;
		FILE *f = path ? fopen(path, "w") : NULL;
		int broken;

		if (f && i)
			report_svg(f, o, rows);
		else if (f)
			report_csv(f, o, rows);
		broken = f ? ferror(f) : 0;
		if (path && (!f || fclose(f) || broken)) {
			fprintf(stderr, "terrace-replay: %s: %s\n", path, strerror(errno));
			return 1;
		}
	}
	return 0;
}

static int replay(int argc, char **argv)
{
	static struct row rows[OPTIONS_POLICIES_MAX * OPTIONS_SIZES_MAX];
	struct options o;
	struct trace t;
	char why[256];
	int code;

	if (!options_parse(argc, argv, &o, why, sizeof(why))) {
		fprintf(stderr, "terrace-replay: %s\n%s", why, options_usage());
		return 2;
	}
	if (o.help) {
		fputs(options_usage(), stdout);
		return 0;
	}
	if (trace_read(o.trace, &t, why, sizeof(why))) {
		fprintf(stderr, "terrace-replay: %s: %s\n", o.trace, why);
		return 1;
	}
	if (o.hint && trace_hint_end(&t, o.recall, o.false_rate)) {
		fprintf(stderr, "terrace-replay: no memory\n");
		trace_fini(&t);
		return 1;
	}
	if (o.spread.nodes) {
		code = nodes_report(&t, &o);
		trace_fini(&t);
		return code;
	}
	code = o.folds ? run_folds(&t, &o, rows) : run_all(&t, &o, rows);
	if (!code && !o.json && !o.folds)
		report_table(stdout, &o, rows);
	if (!code)
		code = write_files(&o, rows);
	trace_fini(&t);
	return code;
}

int main(int argc, char **argv)
{
	signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a write error with its message */
	const int code = replay(argc, argv);

	if (!fflush(stdout) && !ferror(stdout))
		return code;
	fprintf(stderr, "terrace-replay: standard output: %s\n", strerror(errno));
	return 1;
}
