/* A build under test: its daemon, and engine processes (clients_worker.c) that load its libterrace. */
#ifndef TERRACE_BENCH_SIDES_H
#define TERRACE_BENCH_SIDES_H

#include <stdint.h>
#include <sys/types.h>

#include "tests/bench/clients.h"

enum { SIDES_MAX = 2, SIDE_PROCESSES_MAX = 12 };

struct side_process {
	pid_t pid;
	int to, from;
};

struct side {
	char terraced[4096], library[4096], address[128];
	int pid;
	struct side_process processes[SIDE_PROCESSES_MAX];
	uint32_t count;                 /* of these */
	uint64_t verified, missing, refused;
};

/* This build, and with --against that one: how many. Nothing is started. */
uint32_t sides_open(struct side *sides);
/* Starts the daemon, under that name and with these flags (ended by a NULL), and so many processes. */
void side_start(struct side *s, const char *name, const char *host_bytes, const char *const *flags, uint32_t processes);
void side_stop(struct side *s);
/* A command, and its answer: one of each at a time, a process. */
void side_order(const struct side_process *p, const struct clients_order *order);
void side_result(const struct side_process *p, struct clients_result *r);
/* The time below which that share of the calls is. */
double side_time_us(const struct clients_result *r, double share);

/* What a turn of one side gave. */
struct side_turn {
	double calls_s, p50_us, p99_us;
};
/* So many of the side's processes make that call for that long. Ends the bench if they find wrong bytes. */
struct side_turn side_take_turn(struct side *s, enum clients_call call, uint32_t processes, uint64_t run_ns);

#endif
