/* See crash_point.h. */
#include "store/crash_point.h"

#ifdef TERRACE_CRASH_POINTS
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern struct crash_site __start_crash_sites[], __stop_crash_sites[];

static const struct crash_site *armed;
static long armed_at;
static atomic_long armed_passed;
static _Atomic uint32_t *watched;

uint32_t crash_point_count(void)
{
	return (uint32_t)(__stop_crash_sites - __start_crash_sites);
}

const char *crash_point_name(uint32_t i)
{
	return __start_crash_sites[i].name;
}

void crash_point_watch(_Atomic uint32_t *passed)
{
	watched = passed;
}

static void arm(const char *name, size_t bytes, long n)
{
	armed = NULL;
	armed_at = n;
	atomic_store(&armed_passed, 0);
	for (const struct crash_site *s = __start_crash_sites; name && s < __stop_crash_sites; s++)
		if (strlen(s->name) == bytes && !strncmp(s->name, name, bytes))
			armed = s;
}

/* Runs before main, so that crash_point() needs no synchronisation: an ordering of threads by passages would hide races
 * from ThreadSanitizer. */
__attribute__((constructor)) static void from_environment(void)
{
	const char *wanted = getenv("CRASH_AT"), *colon = wanted ? strchr(wanted, ':') : NULL;

	if (colon)
		arm(wanted, (size_t)(colon - wanted), atol(colon + 1));
}

void crash_point_arm(const char *name, uint32_t n)
{
	arm(name, name ? strlen(name) : 0, n);
}

void crash_point(const struct crash_site *site)
{
	if (watched)
		atomic_fetch_add_explicit(&watched[site - __start_crash_sites], 1, memory_order_relaxed);
	if (site == armed && atomic_fetch_add(&armed_passed, 1) + 1 == armed_at)
		kill(getpid(), SIGKILL);
}
#else
typedef int crash_points_are_off; /* C forbids an empty translation unit */
#endif
