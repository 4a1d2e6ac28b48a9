/* Where the slowest thousandth of the calls went, by the daemon's own histograms (daemon/rpc/times.h).
 *
 * Processes look up, lease and put beside a storm: spills and evictions, a restore, a compaction; and first beside
 * none. For each, how long calls took, and of calls as long as the slowest .1 % the share of each step: what they
 * waited for, or did. Lengths are told apart by powers of two, so a share may be of more calls than a thousandth.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/clients.h"
#include "tests/bench/sides.h"

enum { PROCESSES = 6, RUN_MS = 5000, RUN_MS_QUICK = 200, BUCKETS = 32, STEPS = 8, TEXT_BYTES = 4 << 20, NAME_BYTES = 64 };
enum { SHARE_PARTS = 1000 };
#define SHORT_S .001024

/* Calls by length, and the time of their steps. */
struct lengths {
	double bound[BUCKETS], calls[BUCKETS]; /* calls: not longer than the bound, in all */
	uint32_t count;
};
struct tail {
	struct lengths all;
	char step[STEPS][NAME_BYTES];
	double over[BUCKETS], seconds[BUCKETS][STEPS]; /* of calls longer than that */
	uint32_t steps, overs;
};

static const enum clients_call calls_of[PROCESSES] = { CLIENTS_LOOKUP,     CLIENTS_LOOKUP, CLIENTS_LEASE_SOME,
						       CLIENTS_LEASE_SOME, CLIENTS_PUT,    CLIENTS_PUT };

/* ---- the daemon's rows ---- */

/* All that the daemon says at /metrics, to be freed. */
static char *metrics_read(const char *path)
{
	static const char ask[] = "GET /metrics HTTP/1.0\r\nHost: terrace\r\n\r\n";
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char *text = calloc(1, TEXT_BYTES + 1);
	size_t used = 0;
	ssize_t n = 1;

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	if (!text || fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) || write(fd, ask, sizeof(ask) - 1) < 0)
		bench_die("%s: the daemon's metrics cannot be read", path);
	while (n > 0 && used < TEXT_BYTES) {
		n = read(fd, text + used, TEXT_BYTES - used);
		used += n > 0 ? (size_t)n : 0;
	}
	close(fd);
	return text;
}

/* The value of a label in a row; false: it has none. */
static bool label_of(const char *row, const char *label, char value[NAME_BYTES])
{
	char what[NAME_BYTES];
	const char *at;

	snprintf(what, sizeof(what), "%s=\"", label);
	at = strstr(row, what);
	if (!at || at > strchr(row, '}'))
		return false;
	at += strlen(what);
	snprintf(value, NAME_BYTES, "%.*s", (int)strcspn(at, "\""), at);
	return true;
}

static uint32_t place_of(double *of, uint32_t *count, double value)
{
	uint32_t i = 0;

	while (i < *count && of[i] != value)
		i++;
	if (i == *count && *count < BUCKETS)
		of[(*count)++] = value;
	return i < BUCKETS ? i : BUCKETS - 1;
}

static uint32_t step_of(struct tail *t, const char *name)
{
	uint32_t i = 0;

	while (i < t->steps && strcmp(t->step[i], name))
		i++;
	if (i == t->steps && t->steps < STEPS)
		snprintf(t->step[t->steps++], NAME_BYTES, "%s", name);
	return i < STEPS ? i : STEPS - 1;
}

/* Adds the daemon's rows, times `sign`. */
static void tail_add(struct tail *t, const char *metrics, double sign)
{
	char *text = metrics_read(metrics), *rest = text, value[NAME_BYTES], step[NAME_BYTES];

	for (char *row = strsep(&rest, "\n"); row; row = strsep(&rest, "\n")) {
		const char *end = strrchr(row, ' ');

		if (!end || !strchr(row, '}'))
			continue;
		if (!strncmp(row, "terrace_rpc_seconds_bucket{", 27) && label_of(row, "le", value)) {
			/* "+Inf" reads as infinity */
			const uint32_t i = place_of(t->all.bound, &t->all.count, strtod(value, NULL));

			t->all.calls[i] += sign * strtod(end, NULL);
		} else if (!strncmp(row, "terrace_rpc_step_seconds_by_length_total{", 41) &&
			   label_of(row, "over", value) && label_of(row, "step", step)) {
			t->seconds[place_of(t->over, &t->overs, strtod(value, NULL))][step_of(t, step)] +=
				sign * strtod(end, NULL);
		}
	}
	free(text);
}

/* The shortest bound that so many of the calls are within. */
static double bound_of(const struct lengths *l, double share)
{
	double most = 0, bound = INFINITY;

	for (uint32_t i = 0; i < l->count; i++)
		most = l->calls[i] > most ? l->calls[i] : most;
	for (uint32_t i = 0; i < l->count; i++)
		if (l->calls[i] >= share * most && l->bound[i] < bound)
			bound = l->bound[i];
	return bound;
}

static void figure(const char *storm, const char *what, const char *unit, double value)
{
	char name[192];

	snprintf(name, sizeof(name), "%s: %s", storm, what);
	bench_report(&(struct bench_figure){ .bench = "tail", .name = name, .unit = unit, .value = value, .baseline = NAN });
}

static void report(const char *storm, const struct tail *t)
{
	const double from = bound_of(&t->all, 1 - 1.0 / SHARE_PARTS) / 2;
	double seconds[STEPS] = { 0 }, all = 0;
	/* the daemon does not tell short ones apart */
	const bool all_short = from <= SHORT_S / 2;
	char what[NAME_BYTES + 48];

	figure(storm, "half of the calls within", "us", bound_of(&t->all, .5) * 1e6);
	figure(storm, "99 % of the calls within", "us", bound_of(&t->all, .99) * 1e6);
	figure(storm, "99.9 % of the calls within", "us", bound_of(&t->all, .999) * 1e6);
	for (uint32_t i = 0; i < t->overs; i++)
		for (uint32_t s = 0; s < t->steps; s++) {
			const bool slow = t->over[i] >= from || (all_short && t->over[i] == 0);

			seconds[s] += slow ? t->seconds[i][s] : 0;
			all += slow ? t->seconds[i][s] : 0;
		}
	for (uint32_t s = 0; s < t->steps; s++) {
		snprintf(what, sizeof(what), "%s, time of the step %s", all_short ? "all calls" : "slowest .1 %", t->step[s]);
		figure(storm, what, "%", all > 0 ? 100 * seconds[s] / all : 0);
	}
}

/* ---- storms ---- */

static struct clients_result run(struct side *s, uint32_t first, uint32_t count)
{
	const uint64_t ns = (bench_options.quick ? RUN_MS_QUICK : RUN_MS) * 1000000ull;
	struct clients_result one, all = { 0 };

	for (uint32_t i = first; i < first + count; i++)
		side_order(&s->processes[i], &(struct clients_order){ CLIENTS_RUN, calls_of[i], ns, 0 });
	for (uint32_t i = first; i < first + count; i++) {
		side_result(&s->processes[i], &one);
		all.calls += one.calls;
		all.wrong += one.wrong;
	}
	if (all.wrong)
		bench_die("%" PRIu64 " blocks with wrong bytes", all.wrong);
	return all;
}

static void order(struct side *s, uint32_t command)
{
	struct clients_result r;

	side_order(&s->processes[0], &(struct clients_order){ .command = command });
	side_result(&s->processes[0], &r);
}

static void storm(struct side *s, const char *name, const char *metrics, uint32_t processes)
{
	struct tail t = { 0 };

	tail_add(&t, metrics, -1);
	run(s, 0, processes);
	tail_add(&t, metrics, 1);
	report(name, &t);
}

static void begin(struct side *s, const char *host_bytes, const char *metrics, const char *disk)
{
	char address[160];
	const char *const flags[] = { "--metrics-address", address, disk ? "--disks" : NULL, disk, NULL };

	snprintf(address, sizeof(address), "unix:%s", metrics);
	side_start(s, "tail", host_bytes, flags, PROCESSES);
}

static int compaction(const struct side *s)
{
	char program[sizeof(s->library) + 32];

	snprintf(program, sizeof(program), "%s/ctl/terracectl", s->library);
	return bench_spawn("terracectl", (const char *const[]){ program, "--address", s->address, "--timeout", "60", "compact", NULL });
}

int bench_tail(void)
{
	static struct side sides[SIDES_MAX];
	struct side *s = &sides[0];
	char metrics[128], disk[128];

	sides_open(sides);
	snprintf(metrics, sizeof(metrics), "%s/tail.metrics", bench_options.folder);
	snprintf(disk, sizeof(disk), "%s/tail.disk:4GiB", bench_options.folder);
	begin(s, "1GiB", metrics, NULL);
	order(s, CLIENTS_FILL);
	storm(s, "memory", metrics, PROCESSES);
	side_stop(s);
	begin(s, "64MiB", metrics, disk);
	order(s, CLIENTS_FILL);
	storm(s, "spills and evictions", metrics, PROCESSES);
	compaction(s);
	storm(s, "the same and a compaction", metrics, PROCESSES);
	order(s, CLIENTS_FLUSH);
	side_stop(s);
	begin(s, "64MiB", metrics, disk);
	storm(s, "a restore", metrics, PROCESSES - 2); /* without the puts */
	side_stop(s);
	return 0;
}
