/* Inside the simulated device: sim/device.c (memory), sim/copy.c (lists of copies), sim/sums.c (lists of checksums), sim/wait.c (what streams wait for). */
#ifndef TERRACE_TESTS_SIM_PRIVATE_H
#define TERRACE_TESTS_SIM_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/sim/device.h"

enum { SIM_WAYS = DEVICE_ACROSS + 1, SIM_CLOSE_WAIT_S = 10 };

/* Address space, or memory that is mapped there. Addresses without the mark. */
struct sim_region {
	struct sim_region *next;
	uintptr_t at;
	uint64_t bytes;
	enum { SIM_RANGE, SIM_MADE, SIM_IMPORTED, SIM_HOST } kind;
	bool write;
	void *map;               /* of a range: what was mapped to have it aligned */
	uint64_t map_bytes;
};

struct sim_way {
	struct device *device;
	pthread_t thread;
	pthread_cond_t more;
	struct device_copy *first, **last;
	bool started;
};

struct device {
	uint32_t ordinal;
	uint64_t bytes, limit, us_per_mib, lost_after; /* limit: what this process may take; lost_after 0: never */
	bool no_export, no_register, no_peers, no_kernel;
	bool drop_waits;
	char hold_file[128], lost_file[128], stuck_file[128], sums_hold_file[128]; /* empty: none */

	pthread_mutex_t mutex;   /* guards the rest */
	struct sim_region *regions;
	uint64_t used;
	struct sim_way ways[SIM_WAYS];
	struct device_sums *sums_first, **sums_last;
	pthread_t sums_thread;
	pthread_cond_t sums_more;
	bool sums_started;
	_Atomic uint64_t copies; /* lists begun */
	_Atomic bool closing;
	_Atomic int64_t close_by_ns; /* CLOCK_MONOTONIC, when closing */
	struct device *next_open;
};

/* Devices that are lost are so for the whole process and for good. */
bool sim_lost(uint32_t ordinal, const char *lost_file);
void sim_lose(struct device *d);

/* The region of this device that holds all of these bytes; mutex held. */
const struct sim_region *sim_region_of(const struct device *d, uint64_t address, uint64_t bytes);
/* The same of any open device but `d`: memory of its own, not of the host. */
bool sim_elsewhere(const struct device *d, uint64_t address, uint64_t bytes, bool write);

enum status sim_refuse(enum status s, const char **why, const char *words);

enum status sim_copy(struct device *d, struct device_copy *c, const char **why);
/* Ends lists: those that have begun are finished, within SIM_CLOSE_WAIT_S; the others are cancelled. */
void sim_copy_end(struct device *d);
enum status sim_sums(struct device *d, struct device_sums *s, const char **why);
/* After sim_copy_end: the same of lists of checksums. */
void sim_sums_end(struct device *d);

/* Whether a stream of the process waits for a word, or has that before it. */
bool sim_streams_wait(void);
enum status sim_stream_wait(struct device *d, void *stream, uint64_t word, uint32_t value, const char **why);
enum status sim_stream_then(struct device *d, void *stream, void (*call)(void *arg), void *arg, const char **why);

#endif
