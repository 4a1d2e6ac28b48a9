/* The same bench by two builds' own programs, in turns.
 *
 * A terrace-bench of another version speaks that version's protocol, so it can measure its own build's daemon alone.
 * So the program of each build is run with --json, one after the other; the first place changes with each pair. A
 * figure is known by its name and unit. Its ratio is the median of the pairs' ratios, this build's / the other's, with
 * its interval of 95 %. A figure that has a baseline of its own in each run, such as Redis or the bare device, is
 * compared a second time, as the ratio to that baseline: what slows both in a run is not in it.
 *
 * A run's figures and its words on stderr are in one log; a line that begins with a brace is a figure.
 */
#include "tests/bench/pairs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/line.h"

enum { SIDES = 2, FIGURES_MAX = 256, WORDS_MAX = 16, PATH_BYTES = 4096, RUN_S_MAX = 3600 };

/* A child puts its temporary folder into TMPDIR only if that is no longer, for a socket's path is short. */
enum { NESTED_BYTES = 30 };

static const double worse = 1.03; /* what an interval may not lie beyond */

struct program {
	const char *name;                                       /* of its log */
	char bench[PATH_BYTES + 32], terraced[PATH_BYTES + 32]; /* paths */
	char libraries[4 * PATH_BYTES];                         /* its LD_LIBRARY_PATH */
};

struct figure {
	struct line line;                                       /* name and unit */
	double values[SIDES][BENCH_PAIRS_MAX], ratios[SIDES][BENCH_PAIRS_MAX]; /* NAN: that run has none */
};

struct pairs {
	const char *bench;
	struct program programs[SIDES];
	const char *options[WORDS_MAX];                         /* which both programs know; ended by a NULL */
	struct figure figures[FIGURES_MAX];
	unsigned count, turns;
};

/* ---- the programs ---- */

/* The build's layout, or what is carried to another machine: programs in tests/ and daemon/; libraries in client/, the
 * CUDA plugin where its build puts it, and what else is brought in lib/. */
static void program_set(struct program *p, const char *name, const char *build)
{
	const char *before = getenv("LD_LIBRARY_PATH");

	p->name = name;
	snprintf(p->terraced, sizeof(p->terraced), "%s/daemon/terraced", build);
	snprintf(p->bench, sizeof(p->bench), "%s/tests/terrace-bench", build);
	snprintf(p->libraries, sizeof(p->libraries), "LD_LIBRARY_PATH=%s/client:%s/kernels/cuda:%s/lib%s%s", build,
		 build, build, before ? ":" : "", before ? before : "");
}

static void program_own(struct program *p)
{
	char self[PATH_BYTES], build[PATH_BYTES + 8];
	const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n > 0 ? n : 0] = '\0';
	snprintf(p->bench, sizeof(p->bench), "%s", self);
	slash = strrchr(self, '/');
	if (!slash)
		bench_die("this program's path is not known");
	*slash = '\0';
	snprintf(build, sizeof(build), "%s/..", self);
	program_set(p, "own", build);
	snprintf(p->bench, sizeof(p->bench), "%s/%s", self, slash + 1);
	snprintf(p->terraced, sizeof(p->terraced), "%s", bench_options.terraced);
}

static void program_other(struct program *p)
{
	const char *build = bench_options.against;

	program_set(p, "against", build);
	if (access(build, X_OK))
		bench_die("--against %s: there is no such folder: give the folder of a build", build);
	if (access(p->bench, X_OK))
		bench_die("--against %s: it has no tests/terrace-bench: build that target there", build);
	if (access(p->terraced, X_OK))
		bench_die("--against %s: it has no daemon/terraced: build that target there", build);
}

/* Runs it with these words, ended by a NULL, until it ends. Returns its exit code. */
static int program_run(const struct program *p, const char *const *words)
{
	char folder[sizeof(bench_options.folder) + 8];
	const char *all[WORDS_MAX + 8] = { "env", p->libraries, folder, p->bench };
	const char *base = getenv("TMPDIR");
	size_t n = 4;

	snprintf(folder, sizeof(folder), "TMPDIR=%s",
		 strlen(bench_options.folder) <= NESTED_BYTES || !base ? bench_options.folder : base);
	for (; *words; words++)
		all[n++] = *words;
	return bench_wait_for(bench_spawn(p->name, all), RUN_S_MAX);
}

/* What it printed; the caller closes it. */
static FILE *program_log(const struct program *p)
{
	char path[128];
	FILE *f;

	bench_log_path(p->name, path, sizeof(path));
	f = fopen(path, "re");
	if (!f)
		bench_die("%s cannot be read", path);
	return f;
}

/* ---- the options that both know ---- */

static bool log_names(const struct program *p, const char *option)
{
	FILE *f = program_log(p);
	char *text = NULL;
	size_t room = 0;
	bool there = false;

	while (getline(&text, &room, f) >= 0)
		there = there || strstr(text, option);
	free(text);
	fclose(f);
	return there;
}

/* An option that the other build's program does not name in its help is given to neither. */
static void options_choose(struct pairs *p)
{
	const struct {
		const char *name, *value;
		bool asked;
	} all[] = {
		{ "--quick", NULL, bench_options.quick },
		{ "--busy-poll", NULL, bench_options.busy_poll },
		{ "--no-near", NULL, bench_options.no_local },
		{ "--redis", bench_options.redis, bench_options.redis_named },
	};
	const struct program *other = &p->programs[1];
	size_t n = 0;

	if (program_run(other, (const char *const[]){ "--help", NULL }) || !log_names(other, "--json") ||
	    !log_names(other, "--terraced")) {
		bench_log_print(other->name);
		bench_die("%s --help names no --json and --terraced: is it a terrace-bench?", other->bench);
	}
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (!all[i].asked)
			continue;
		if (!log_names(other, all[i].name)) {
			fprintf(stderr, "terrace-bench: %s knows no %s: neither build is given it\n", other->bench,
				all[i].name);
			continue;
		}
		p->options[n++] = all[i].name;
		if (all[i].value)
			p->options[n++] = all[i].value;
	}
	p->options[n] = NULL;
}

/* ---- a run ---- */

/* The figure of that name and unit that this run of this side does not have yet: a bench may print a name twice. */
static struct figure *figure_of(struct pairs *p, const struct line *line, int side)
{
	struct figure *f = p->figures;

	for (; f < p->figures + p->count; f++)
		if (!strcmp(f->line.name, line->name) && !strcmp(f->line.unit, line->unit) &&
		    isnan(f->values[side][p->turns]))
			return f;
	if (p->count == FIGURES_MAX)
		bench_die("%s: more than %d figures", p->bench, FIGURES_MAX);
	p->count++;
	f->line = *line;
	for (int i = 0; i < SIDES; i++)
		for (int j = 0; j < BENCH_PAIRS_MAX; j++)
			f->values[i][j] = f->ratios[i][j] = NAN;
	return f;
}

static unsigned take_figures(struct pairs *p, int side)
{
	const struct program *program = &p->programs[side];
	FILE *f = program_log(program);
	unsigned taken = 0;
	char *text = NULL;
	size_t room = 0;
	struct line line;

	while (getline(&text, &room, f) >= 0) {
		struct figure *figure;

		if (text[0] != '{')
			continue;
		if (!line_read(text, &line))
			bench_die("%s %s printed a line that is no figure: %s", program->bench, p->bench, text);
		figure = figure_of(p, &line, side);
		figure->values[side][p->turns] = line.value;
		figure->ratios[side][p->turns] = line.ratio;
		taken++;
	}
	free(text);
	fclose(f);
	return taken;
}

/* 0, or BENCH_SKIPPED. */
static int run_side(struct pairs *p, int side)
{
	const struct program *program = &p->programs[side];
	const char *words[WORDS_MAX + 5] = { p->bench, "--json", "--terraced", program->terraced };
	size_t n = 4;
	int code;

	for (const char *const *o = p->options; *o; o++)
		words[n++] = *o;
	code = program_run(program, words);
	if (code)
		bench_log_print(program->name);
	if (code == BENCH_SKIPPED)
		return code;
	if (code)
		bench_die("%s %s ended with %d: its last words are above", program->bench, p->bench, code);
	if (take_figures(p, side))
		return 0;
	bench_log_print(program->name);
	bench_die("%s %s printed no figure as JSON: its last words are above", program->bench, p->bench);
}

/* ---- what both say ---- */

static bool is_rate(const char *unit)
{
	const size_t n = strlen(unit);

	return n > 2 && !strcmp(unit + n - 2, "/s");
}

/* The pairs in which both sides have a number above 0. */
static unsigned complete(double values[SIDES][BENCH_PAIRS_MAX], unsigned turns, double out[SIDES][BENCH_PAIRS_MAX])
{
	unsigned n = 0;

	for (unsigned i = 0; i < turns; i++) {
		if (!(isfinite(values[0][i]) && isfinite(values[1][i]) && values[0][i] > 0 && values[1][i] > 0))
			continue;
		out[0][n] = values[0][i];
		out[1][n++] = values[1][i];
	}
	return n;
}

/* A p99 is judged by no goal, as in `clients`, and a few pairs, which have no interval, by none either. */
static bool report_values(const struct pairs *p, struct figure *f)
{
	struct bench_figure out = { .bench = p->bench, .name = f->line.name, .unit = f->line.unit };
	double both[SIDES][BENCH_PAIRS_MAX];
	const unsigned n = complete(f->values, p->turns, both);

	if (!n)
		return false;
	bench_figure_of_pairs(&out, both[0], both[1], n);
	if (out.high > 0 && !strstr(f->line.unit, "p99")) {
		out.goal = is_rate(f->line.unit) ? BENCH_AT_LEAST : BENCH_AT_MOST;
		out.target = is_rate(f->line.unit) ? 1 / worse : worse;
	}
	bench_report(&out);
	return true;
}

static void report_ratios(const struct pairs *p, struct figure *f)
{
	char name[LINE_NAME_BYTES + 32];
	struct bench_figure out = { .bench = p->bench, .name = name, .unit = "ratio" };
	double both[SIDES][BENCH_PAIRS_MAX];
	const unsigned n = complete(f->ratios, p->turns, both);

	if (!n)
		return;
	snprintf(name, sizeof(name), "%s: to its own baseline", f->line.name);
	bench_figure_of_pairs(&out, both[0], both[1], n);
	bench_report(&out);
}

static bool any(const double *values, unsigned turns)
{
	bool there = false;

	for (unsigned i = 0; i < turns; i++)
		there = there || !isnan(values[i]);
	return there;
}

static void report_lone(const struct pairs *p, const struct figure *f)
{
	const bool own = any(f->values[0], p->turns), other = any(f->values[1], p->turns);
	const char *one = own ? "only in this build" : "only in the other build";
	const char *why = own == other ? "in no pair of runs above 0" : one;

	if (bench_options.json)
		printf("{\"bench\":\"%s\",\"case\":\"%s\",\"unit\":\"%s\",\"not_compared\":\"%s\"}\n", p->bench,
		       f->line.name, f->line.unit, why);
	else
		printf("%-8s %-44s not compared: %s\n", p->bench, f->line.name, why);
}

/* Whether another pair is begun. */
static bool goes_on(const struct pairs *p, uint64_t start_ns)
{
	const uint64_t limit_ns = bench_options.seconds * UINT64_C(1000000000);

	return p->turns < bench_options.pairs && (!limit_ns || !p->turns || bench_now_ns() - start_ns < limit_ns);
}

int pairs_run(const char *bench)
{
	const uint64_t start_ns = bench_now_ns();
	static struct pairs p;

	p.bench = bench;
	p.count = 0;
	program_own(&p.programs[0]);
	program_other(&p.programs[1]);
	options_choose(&p);
	for (p.turns = 0; goes_on(&p, start_ns); p.turns++)
		for (unsigned i = 0; i < SIDES; i++)
			if (run_side(&p, (int)((p.turns + i) % SIDES)))
				return BENCH_SKIPPED;
	if (p.turns < bench_options.pairs)
		fprintf(stderr, "terrace-bench: %s: %u of %u pairs in %u s\n", bench, p.turns, bench_options.pairs,
			bench_options.seconds);
	for (unsigned i = 0; i < p.count; i++) {
		if (!report_values(&p, &p.figures[i]))
			report_lone(&p, &p.figures[i]);
		report_ratios(&p, &p.figures[i]);
	}
	return 0;
}
