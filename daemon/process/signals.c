/* See process/signals.h. */
#include "daemon/process/signals.h"

#include <string.h>
#include <time.h>

#include "daemon/process/log.h"

static const int ends[] = { SIGTERM, SIGINT, SIGXCPU, SIGPWR };
static const int noted[] = { SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGIO };
static const int unheard[] = { SIGPIPE, SIGXFSZ };

enum { ENDS = sizeof(ends) / sizeof(ends[0]), NOTED = sizeof(noted) / sizeof(noted[0]), UNHEARD = sizeof(unheard) / sizeof(unheard[0]) };

static void add(sigset_t *set, const int *signals, int count)
{
	for (int i = 0; i < count; i++)
		sigaddset(set, signals[i]);
}

void signals_spare(void)
{
	sigset_t set;

	for (int i = 0; i < UNHEARD; i++)
		signal(unheard[i], SIG_IGN);
	sigemptyset(&set);
	add(&set, noted, NOTED);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

void signals_block(sigset_t *set)
{
	sigemptyset(set);
	add(set, noted, NOTED);
	add(set, ends, ENDS);
	sigprocmask(SIG_BLOCK, set, NULL);
}

bool signals_ends(int signal)
{
	for (int i = 0; i < ENDS; i++)
		if (signal == ends[i])
			return true;
	return false;
}

int signals_wait(const sigset_t *set, long wait_ms)
{
	const struct timespec t = { wait_ms / 1000, wait_ms % 1000 * 1000000 };
	const int s = sigtimedwait(set, NULL, &t);

	if (s <= 0)
		return 0;
	if (s == SIGHUP)
		log_info("hangup_ignored", LOG_TEXT("reason", "the configuration is read at start"));
	else if (!signals_ends(s))
		log_info("signal_ignored", LOG_TEXT("signal", sigabbrev_np(s)), LOG_TEXT("reason", "it means nothing to terraced; SIGTERM ends it"));
	else if (s != SIGTERM && s != SIGINT)
		log_warn("signal", LOG_TEXT("signal", sigabbrev_np(s)),
			 LOG_TEXT("reason", s == SIGXCPU ? "the limit on CPU time is reached (ulimit -t, LimitCPU): the daemon stops" :
							   "the power is going: the daemon stops"));
	return s;
}
