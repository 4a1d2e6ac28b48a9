/* The daemon's drain and stop: valuable work comes first, and every wait has a bound. */
#ifndef TERRACE_DAEMON_PROCESS_STOP_H
#define TERRACE_DAEMON_PROCESS_STOP_H

#include <stdbool.h>
#include <signal.h>

struct daemon;

/* Admits nothing any more and waits until nothing is held, drain_timeout is over, or another SIGTERM or SIGINT comes, which are blocked. */
void stop_drain(const struct daemon *d, const sigset_t *signals);

/* Ends the calls, writes to the disks what only memory has, and ends and frees all parts of d that there are, cache
 * last. The calling thread leaves the cache (cache_thread_leave). served: the daemon was ready, so that there are
 * calls, and blocks to write. On another SIGTERM or SIGINT, which are blocked, calls get no more time.
 *
 * False: something hangs, in a GPU's driver or a disk, and the log says what. Disks that answer, and the catalog, are
 * closed all the same, and the sockets are removed. The hanging thread, and the memory that it may come back to, are
 * left. The process must end by _exit, since exit() may hang too. */
bool stop_daemon(struct daemon *d, bool served, const sigset_t *signals);

#endif
