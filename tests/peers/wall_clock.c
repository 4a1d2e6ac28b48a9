/* A wall clock that is wrong by WALL_CLOCK_S seconds, for a program that this library is loaded into (LD_PRELOAD). Other
 * clocks stay as they are. libfaketime does the same to what a program reads, but not to what it waits for by futexes:
 * Abseil, and with it gRPC, waits so by the wall clock, and would wait an hour too long or not at all. */
#include <dlfcn.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { ARGUMENTS = 6 };

static time_t shift(void)
{
	const char *text = getenv("WALL_CLOCK_S");

	return text ? strtol(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
	static int (*next)(clockid_t, struct timespec *);
	int r;

	if (!next)
		next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	r = next(clock, out);
	if (!r && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		out->tv_sec += shift();
	return r;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	*out = (struct timeval){ now.tv_sec, now.tv_nsec / 1000 };
	return 0;
}

time_t time(time_t *out)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (out)
		*out = now.tv_sec;
	return now.tv_sec;
}

/* Its fourth argument is a futex's time. */
long syscall(long number, ...)
{
	static long (*next)(long, ...);
	struct timespec until;
	long a[ARGUMENTS];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < ARGUMENTS; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	if (number == SYS_futex && a[1] & FUTEX_CLOCK_REALTIME && a[3]) {
		until = *(const struct timespec *)a[3];
		until.tv_sec -= shift();
		a[3] = (long)&until;
	}
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
