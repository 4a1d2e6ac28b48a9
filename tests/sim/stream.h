/* Streams of a device that is none: a thread with a queue each, so that what waits in a stream holds up what was put in after it, and
 * nobody else. The code is in the plugin and in the runtime of the simulated device, and tests may link it: a stream made by one of them
 * is good for all.
 *
 * The first failure of a stream's work sticks: what comes later is not run. Threads: any. */
#ifndef TERRACE_TESTS_SIM_STREAM_H
#define TERRACE_TESTS_SIM_STREAM_H

#include <stdbool.h>

#include "store/status.h"

struct sim_stream;

/* NULL: no memory or thread. */
struct sim_stream *sim_stream_create(void);
/* Waits until it is empty. NULL allowed. */
void sim_stream_destroy(struct sim_stream *s);
/* Waits until what was put in before is done; OK, or the stream's first failure. */
enum status sim_stream_synchronize(struct sim_stream *s);

/* Puts work in: run(arg, false), once, on the stream's thread; run(arg, true) if the stream has failed before it, to free what is arg's.
 * False: s is no stream, or there is no memory; run is not called then. */
bool sim_stream_put(struct sim_stream *s, enum status (*run)(void *arg, bool failed), void *arg);

#endif
