/* Several engine processes at one daemon: calls a second and their times at 1, 2, 4, 8 and 12 processes.
 *
 * The processes (clients_worker.c) are started once and wait for their turn. With --against BUILD there is a second daemon of that build, with
 * processes that load that build's libterrace; the two sides take turns, the first place changing, and each figure is the median of the ratios of
 * TURNS pairs, with its interval of 95 %. Without it the baseline of a figure is what one process reaches in the same run.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/clients.h"
#include "tests/bench/service.h"

enum { PROCESSES_MAX = 12, TURNS = 21, TURNS_QUICK = 3, TURN_MS = 100, TURN_MS_QUICK = 20, SIDES_MAX = 2 };

/* Of 21 sorted ratios the 6th and the 16th: a median lies outside of them with 2.7 % (binomial). */
enum { INTERVAL_LOW = 5, INTERVAL_HIGH = 15 };

static const char *const call_names[CLIENTS_CALLS] = {
	[CLIENTS_LOOKUP] = "lookup of 64 keys", [CLIENTS_LEASE] = "lease and release of 16 blocks", [CLIENTS_PUT] = "put of 4 blocks in place",
};
static const uint32_t process_counts[] = { 1, 2, 4, 8, 12 };
enum { COUNTS = sizeof(process_counts) / sizeof(process_counts[0]) };

struct process {
	pid_t pid;
	int to, from;
};

struct side {
	char terraced[4096], library[4096], address[128];
	int pid;
	struct process processes[PROCESSES_MAX];
	uint64_t verified, missing, refused;
};

/* What a turn of one side gave. */
struct turn {
	double calls_s, p50_us, p99_us;
};

struct clients {
	struct side sides[SIDES_MAX];
	uint32_t side_count, turns;
	uint64_t run_ns;
};

/* The build's layout: terraced in daemon/, libterrace in client/. */
static void side_paths(struct side *s, const char *build)
{
	snprintf(s->terraced, sizeof(s->terraced), "%s/daemon/terraced", build);
	snprintf(s->library, sizeof(s->library), "%s/client", build);
	if (access(s->terraced, X_OK))
		bench_die("--against %s: no terraced in its daemon/: %s", build, strerror(errno));
}

static void own_paths(struct side *s)
{
	char *slash;

	snprintf(s->terraced, sizeof(s->terraced), "%s", bench_options.terraced);
	snprintf(s->library, sizeof(s->library), "%s", bench_options.terraced);
	for (int i = 0; i < 2; i++) {
		slash = strrchr(s->library, '/');
		if (slash)
			*slash = '\0';
	}
	strncat(s->library, "/client", sizeof(s->library) - strlen(s->library) - 1);
}

/* Beside this program. */
static const char *worker_path(void)
{
	static char path[4096 + 32];
	char self[4096];
	const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	snprintf(path, sizeof(path), "%s/terrace-bench-client", self);
	return path;
}

static void process_start(const struct side *s, struct process *p, uint32_t number)
{
	char digits[16], preload[4096 + 32];
	char *const arguments[] = { (char *)(uintptr_t)worker_path(), (char *)(uintptr_t)s->address, digits, NULL };
	char *const environment[] = { preload, NULL };
	posix_spawn_file_actions_t actions;
	int to[2], from[2], error;

	snprintf(digits, sizeof(digits), "%" PRIu32, number);
	snprintf(preload, sizeof(preload), "LD_LIBRARY_PATH=%s", s->library);
	if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC))
		bench_die("pipe: %s", strerror(errno));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
	error = posix_spawn(&p->pid, arguments[0], &actions, NULL, arguments, environment);
	if (error)
		bench_die("%s: %s", arguments[0], strerror(error));
	posix_spawn_file_actions_destroy(&actions);
	close(to[0]);
	close(from[1]);
	p->to = to[1];
	p->from = from[0];
}

static void order_send(const struct process *p, const struct clients_order *order)
{
	if (write(p->to, order, sizeof(*order)) != sizeof(*order))
		bench_die("a client process has ended: its words are above");
}

static void result_get(const struct process *p, struct clients_result *r)
{
	size_t got = 0;

	while (got < sizeof(*r)) {
		const ssize_t n = read(p->from, (char *)r + got, sizeof(*r) - got);

		if (n <= 0)
			bench_die("a client process has ended: its words are above");
		got += (size_t)n;
	}
}

static void side_start(struct side *s, const char *name)
{
	static const struct clients_order fill = { .command = CLIENTS_FILL };
	struct clients_result filled;

	s->pid = service_spawn(name, s->terraced, "256MiB", s->address, sizeof(s->address));
	for (uint32_t i = 0; i < PROCESSES_MAX; i++)
		process_start(s, &s->processes[i], i);
	order_send(&s->processes[0], &fill);
	result_get(&s->processes[0], &filled);
	if (filled.refused)
		bench_die("%" PRIu64 " blocks of the fill were refused", filled.refused);
}

/* A client process ends with its input. */
static void side_stop(struct side *s)
{
	for (uint32_t i = 0; i < PROCESSES_MAX; i++) {
		close(s->processes[i].to);
		bench_wait(s->processes[i].pid);
		close(s->processes[i].from);
	}
	bench_stop(s->pid);
}

/* The time below which that share of the calls is. */
static double histogram_us(const struct clients_result *r, double share)
{
	uint64_t below = 0;

	for (int i = 0; i < CLIENTS_BUCKETS; i++) {
		below += r->histogram[i];
		if ((double)below >= share * (double)r->calls)
			return exp2((i + 1.0) / CLIENTS_STEPS) / 1000;
	}
	return INFINITY;
}

static struct turn side_turn(struct side *s, enum clients_call call, uint32_t processes, uint64_t run_ns)
{
	const struct clients_order order = { .command = CLIENTS_RUN, .call = call, .run_ns = run_ns };
	struct clients_result all = { 0 }, one;
	struct turn turn = { 0 };

	for (uint32_t i = 0; i < processes; i++)
		order_send(&s->processes[i], &order);
	for (uint32_t i = 0; i < processes; i++) {
		result_get(&s->processes[i], &one);
		if (one.wrong)
			bench_die("%s: %" PRIu64 " blocks with wrong bytes", call_names[call], one.wrong);
		turn.calls_s += (double)one.calls * 1e9 / (double)one.ns;
		all.calls += one.calls;
		for (int j = 0; j < CLIENTS_BUCKETS; j++)
			all.histogram[j] += one.histogram[j];
		s->verified += one.verified;
		s->missing += one.missing;
		s->refused += one.refused;
	}
	turn.p50_us = histogram_us(&all, .5);
	turn.p99_us = histogram_us(&all, .99);
	return turn;
}

/* What a figure is, and which way it is better. */
struct figure_kind {
	const char *unit;
	enum bench_goal goal;
	double target;
};
enum { FIGURES = 3 };
static const struct figure_kind kinds[FIGURES] = {
	{ "calls/s", BENCH_AT_LEAST, 1 / 1.03 }, { "us, p50", BENCH_AT_MOST, 1.03 }, { "us, p99", BENCH_NONE, 0 },
};

/* One figure of pairs of turns: the medians of both sides, the median ratio, and with TURNS of them its interval. */
static void report_pairs(const char *name, const struct figure_kind *kind, bool judged, double (*values)[SIDES_MAX], uint32_t turns)
{
	struct bench_figure f = { .bench = "clients", .name = name, .unit = kind->unit };
	double own[TURNS], other[TURNS], ratios[TURNS];

	for (uint32_t i = 0; i < turns; i++) {
		own[i] = values[i][0];
		other[i] = values[i][1];
		ratios[i] = own[i] / other[i];
	}
	f.ratio = bench_median(ratios, turns);
	f.value = bench_median(own, turns);
	f.baseline = bench_median(other, turns);
	if (turns == TURNS) {
		f.low = ratios[INTERVAL_LOW];
		f.high = ratios[INTERVAL_HIGH];
	}
	if (judged) {
		f.goal = kind->goal;
		f.target = kind->target;
	}
	bench_report(&f);
}

static void turn_values(const struct turn *t, double *values[FIGURES])
{
	*values[0] = t->calls_s;
	*values[1] = t->p50_us;
	*values[2] = t->p99_us;
}

/* lone: with one side, what one process reached, the baseline of all others. */
static void measure(struct clients *c, enum clients_call call, uint32_t processes, double lone[FIGURES])
{
	const bool alone = c->side_count == 1;
	double values[FIGURES][TURNS][SIDES_MAX];
	char name[96];

	for (uint32_t i = 0; i < c->turns; i++) {
		for (uint32_t j = 0; j < c->side_count; j++) {
			const uint32_t side = alone ? 0 : (i + j) % 2;
			const struct turn t = side_turn(&c->sides[side], call, processes, c->run_ns);

			turn_values(&t, (double *[FIGURES]){ &values[0][i][side], &values[1][i][side], &values[2][i][side] });
		}
		for (int f = 0; alone && f < FIGURES; f++)
			values[f][i][1] = processes == 1 ? values[f][i][0] : lone[f];
	}
	snprintf(name, sizeof(name), "%s, %u %s", call_names[call], processes, processes == 1 ? "process" : "processes");
	for (int f = 0; f < FIGURES; f++) {
		double own[TURNS];

		for (uint32_t i = 0; i < c->turns; i++)
			own[i] = values[f][i][0];
		if (processes == 1)
			lone[f] = bench_median(own, c->turns);
		report_pairs(name, &kinds[f], !alone, values[f], c->turns);
	}
}

/* Puts come last: they evict what lookups and leases ask for. */
int bench_clients(void)
{
	static struct clients c;
	double lone[FIGURES] = { 0 };

	c.side_count = bench_options.against ? 2 : 1;
	c.turns = bench_options.quick ? TURNS_QUICK : TURNS;
	c.run_ns = (bench_options.quick ? TURN_MS_QUICK : TURN_MS) * 1000000ull;
	own_paths(&c.sides[0]);
	if (bench_options.against)
		side_paths(&c.sides[1], bench_options.against);
	for (uint32_t i = 0; i < c.side_count; i++)
		side_start(&c.sides[i], i ? "against" : "terraced");
	for (int call = 0; call < CLIENTS_CALLS; call++)
		for (int i = 0; i < COUNTS; i++)
			measure(&c, (enum clients_call)call, process_counts[i], lone);
	for (uint32_t i = 0; i < c.side_count; i++) {
		side_stop(&c.sides[i]);
		if (!c.sides[i].verified)
			bench_die("no block was looked at");
	}
	return 0;
}
