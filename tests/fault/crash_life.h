/* One life of a cache on folders that earlier lives have left: it opens, checks what the shadow promises, works until it is killed or
 * has worked enough, and then perhaps ends in order. */
#ifndef TERRACE_TESTS_FAULT_CRASH_LIFE_H
#define TERRACE_TESTS_FAULT_CRASH_LIFE_H

#include "tests/fault/crash_shadow.h"
#include "tests/daemon/disk/power_log.h"

struct crash_setting {
	char root[96];                 /* with the folders disk0, disk1, catalog */
	uint32_t disks, disk_slots, host_slots, depth;
	bool threads;                  /* for I/O, not io_uring */
	struct power_log *power;       /* what it writes may be lost; NULL: it is not */
	bool flush_kept;               /* the disks are large: what was flushed must be there */
	bool units;                    /* the sessions' blocks cover several keys, and layouts have keep rules */
};

struct crash_life {
	uint64_t seed;
	uint32_t steps;                /* of work */
	bool rebuild;
	bool graph;                    /* the policies are `graph`, by cost, and the advisor reads ahead; else `lru` */
	bool settle;                   /* ends in order, with a clean mark */
	int fault;                     /* errno of a write, 0: none */
	uint32_t fault_at;             /* which write, from 1 */
};

/* In a process of its own; does not return. Exit code 0: it ended; 1: shadow->failure says what is wrong. */
_Noreturn void crash_live(const struct crash_setting *s, const struct crash_life *l, struct crash_shadow *shadow);

/* The same for a catalog alone, whose map must grow. */
_Noreturn void crash_grow(const char *folder, struct crash_shadow *shadow);

#endif
