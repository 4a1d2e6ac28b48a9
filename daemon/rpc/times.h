/* How long calls take, and where their time goes: a histogram a method, one a step, and, for calls of each length, the
 * time of each step.
 *
 * The steps do not overlap. What is left of a call's time is its own work; of a stream, the waits for its client too.
 * What a call waits for in its client's socket is in none of them: the daemon sees a call from its arrival on. */
#ifndef TERRACE_DAEMON_RPC_TIMES_H
#define TERRACE_DAEMON_RPC_TIMES_H

#include <stdatomic.h>
#include <stdint.h>

#include "daemon/block/stat_row.h"
#include "daemon/block/histogram.h"
#include "daemon/rpc/call.h"
#include "store/status.h"

/* Of one method. */
struct method_times {
	atomic_ullong by_status[STATUS_COUNT];
	struct histogram took;
};

/* Of one way in. */
struct way_times {
	struct histogram step[CALL_STEPS];
	atomic_ullong us[HISTOGRAM_BUCKETS][CALL_STEPS]; /* of calls of that length */
};

/* w NULL: of a stream that lives as long as its client likes, whose time says nothing. */
void method_times_add(struct method_times *m, struct way_times *w, struct call_times *t, enum status s,
		      uint64_t began_us);
/* way: a label with its comma, ",way=local", or empty. */
void method_times_emit(const struct method_times *m, const char *name, const char *way, cache_stat_fn *emit,
		       void *arg);
void way_times_emit(const struct way_times *w, const char *way, cache_stat_fn *emit, void *arg);

#endif
