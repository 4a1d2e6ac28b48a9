/* Which signals stop the daemon in order, which it only logs, and which it ignores.
 *
 *     SIGTERM SIGINT SIGXCPU SIGPWR        an orderly stop: SIGXCPU comes when a limit on CPU time is reached, SIGPWR
 *     when the power goes
 *     SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGIO a line in the log
 *     SIGPIPE SIGXFSZ                      nothing: the write that they are about fails with EPIPE or EFBIG, and is
 *     handled where it is made
 *
 * The others keep their defaults: SIGQUIT, SIGABRT and faults leave a core, SIGPROF and SIGVTALRM are profilers', job
 * control is the shell's.
 */
#ifndef TERRACE_DAEMON_PROCESS_SIGNALS_H
#define TERRACE_DAEMON_PROCESS_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

/* Called first of all in the process: a daemon that is starting does not end by a signal that means no end. */
void signals_spare(void);

/* Blocks all signals that signals_wait is to return, for the calling thread and those that it starts, and tells which
 * in *set. Call it before any thread is started. */
void signals_block(sigset_t *set);

/* Waits for a signal, wait_ms at most. Returns it, or 0. A signal that asks only for a line in the log has been
 * logged. */
int signals_wait(const sigset_t *set, long wait_ms);

/* Whether the daemon is to stop by this signal. */
bool signals_ends(int signal);

#endif
