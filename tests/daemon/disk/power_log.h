/* Disks that forget, at a power cut, what was written and not made durable: a log of what writes have replaced, in memory that outlives the
 * process, and that it shares with those it forks. A sync of a file makes those to it durable. Where nothing is synced for long the oldest
 * become so too. One process at a time works with the log; any of its threads.
 */
#ifndef TERRACE_TESTS_DAEMON_DISK_POWER_LOG_H
#define TERRACE_TESTS_DAEMON_DISK_POWER_LOG_H

#include "store/ring/ring.h"

struct power_log;

struct power_log *power_log_make(void); /* NULL: no memory */
/* Has the calls write through it, in this process from now on; of the engine with threads alone. */
void power_log_use(struct power_log *l, struct ring_calls *calls);
/* Between two processes: the files get back what was replaced and not synced, the latest first. Returns how many writes are none. */
uint32_t power_log_cut(struct power_log *l);
/* All is durable. */
void power_log_forget(struct power_log *l);

#endif
