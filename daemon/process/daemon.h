/* What the parts of the shell share: one struct, filled by main before any thread starts, read by all after
 * that. */
#ifndef TERRACE_DAEMON_PROCESS_DAEMON_H
#define TERRACE_DAEMON_PROCESS_DAEMON_H

#include <assert.h>
#include <stdint.h>

#include "store/clock.h"

struct cache;
struct config;
struct diskless;
struct local_calls;
struct members;
struct part_ops;
struct peers;
struct rdma;
struct rpc_server;
struct secrets;
struct workers;

enum { PARTS_MAX = 7 };

struct daemon {
	const struct config *config;
	struct cache *cache;
	struct workers *workers;
	struct local_calls *local; /* NULL: no local calls */
	struct rpc_server *rpc;  /* NULL while handlers run without a server, as in tests */
	struct members *members; /* NULL: no cluster */
	struct peers *peers;     /* NULL: it keeps none of the cluster's directory */
	struct rdma *rdma;       /* NULL: rdma = off */
	uint32_t peer_protocol;  /* 0 without peers */
	uint8_t node[16];        /* with a cluster: of the data folder */
	struct secrets *secrets; /* NULL while handlers run without a server */
	uint64_t started_us;
	struct diskless *diskless; /* told of deletes; NULL while handlers run without a server */
	/* What process/ stops and asks for figures, in the order of its start (process/part.h). Complete before the
	 * first call runs. */
	struct {
		const struct part_ops *ops;
		void *part;
	} parts[PARTS_MAX];
	uint32_t part_count;
};

/* Lists a part that has been created. By main, at most PARTS_MAX times. */
static inline void daemon_add(struct daemon *d, const struct part_ops *ops, void *part)
{
	assert(d->part_count < PARTS_MAX);
	d->parts[d->part_count].ops = ops;
	d->parts[d->part_count++].part = part;
}

/* Times of earlier runs are kept on this run's clock, and may be up to a month old. That clock begins at zero when the
 * machine starts. So 50 days are added to it: such a time is then never before zero. (2^32 ms are just under 50 days:
 * code that counts them in 32 bits overflows at about the same times as without the addition.) */
#define DAEMON_CLOCK_BASE_US (50ull * 24 * 3600 * 1000 * 1000)

/* The one clock: monotonic microseconds. Deadlines of timers and conditions are of the kernel's own, without the base. */
static inline uint64_t daemon_now_us(void)
{
	return DAEMON_CLOCK_BASE_US + clock_us();
}

#endif
