/* Daemons of two builds, each with engine processes that load its own libterrace: what benches with --against share. */
#include "tests/bench/sides.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/clients.h"
#include "tests/bench/service.h"

/* The build's layout: terraced in daemon/, libterrace in client/. */
static void side_paths(struct side *s, const char *build)
{
	snprintf(s->terraced, sizeof(s->terraced), "%s/daemon/terraced", build);
	snprintf(s->library, sizeof(s->library), "%s/client", build);
	if (access(s->terraced, X_OK))
		bench_die("--against %s: no terraced in its daemon/: %s", build, strerror(errno));
}

static void side_own_paths(struct side *s)
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

static void process_start(const struct side *s, struct side_process *p, uint32_t number)
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

void side_order(const struct side_process *p, const struct clients_order *order)
{
	if (write(p->to, order, sizeof(*order)) != sizeof(*order))
		bench_die("a client process has ended: its words are above");
}

void side_result(const struct side_process *p, struct clients_result *r)
{
	size_t got = 0;

	while (got < sizeof(*r)) {
		const ssize_t n = read(p->from, (char *)r + got, sizeof(*r) - got);

		if (n <= 0)
			bench_die("a client process has ended: its words are above");
		got += (size_t)n;
	}
}

void side_start(struct side *s, const char *name, const char *host_bytes, const char *const *flags, uint32_t processes)
{
	s->pid = service_spawn(name, s->terraced, host_bytes, s->address, sizeof(s->address), flags);
	for (s->count = 0; s->count < processes; s->count++)
		process_start(s, &s->processes[s->count], s->count);
}

/* A client process ends with its input. */
void side_stop(struct side *s)
{
	for (uint32_t i = 0; i < s->count; i++) {
		close(s->processes[i].to);
		bench_wait(s->processes[i].pid);
		close(s->processes[i].from);
	}
	bench_stop(s->pid);
}

/* The time below which that share of the calls is. */
double side_time_us(const struct clients_result *r, double share)
{
	uint64_t below = 0;

	for (int i = 0; i < CLIENTS_BUCKETS; i++) {
		below += r->histogram[i];
		if ((double)below >= share * (double)r->calls)
			return exp2((i + 1.0) / CLIENTS_STEPS) / 1000;
	}
	return INFINITY;
}

struct side_turn side_take_turn(struct side *s, enum clients_call call, uint32_t processes, uint64_t run_ns)
{
	const struct clients_order order = { .command = CLIENTS_RUN, .call = call, .run_ns = run_ns };
	struct clients_result all = { 0 }, one;
	struct side_turn turn = { 0 };

	for (uint32_t i = 0; i < processes; i++)
		side_order(&s->processes[i], &order);
	for (uint32_t i = 0; i < processes; i++) {
		side_result(&s->processes[i], &one);
		if (one.wrong)
			bench_die("call %d: %" PRIu64 " blocks with wrong bytes", (int)call, one.wrong);
		turn.calls_s += (double)one.calls * 1e9 / (double)one.ns;
		all.calls += one.calls;
		for (int j = 0; j < CLIENTS_BUCKETS; j++)
			all.histogram[j] += one.histogram[j];
		s->verified += one.verified;
		s->missing += one.missing;
		s->refused += one.refused;
	}
	turn.p50_us = side_time_us(&all, .5);
	turn.p99_us = side_time_us(&all, .99);
	return turn;
}

uint32_t sides_open(struct side *sides)
{
	side_own_paths(&sides[0]);
	if (!bench_options.against)
		return 1;
	side_paths(&sides[1], bench_options.against);
	return 2;
}
