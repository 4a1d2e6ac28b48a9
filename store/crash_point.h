/* Named places at which a test can have the process killed. In a build with TERRACE_CRASH_POINTS the environment
 * variable CRASH_AT=NAME:N kills the process by SIGKILL at the N-th passage of NAME (from 1). In other builds the macro
 * does nothing. Each name is used at one place.
 */
#ifndef TERRACE_STORE_CRASH_POINT_H
#define TERRACE_STORE_CRASH_POINT_H

#ifdef TERRACE_CRASH_POINTS
#include <stdatomic.h>
#include <stdint.h>

/* The linker puts all points of the program side by side into a section of their own. */
struct crash_site {
	const char *name;
	uint64_t reserved;
} __attribute__((aligned(16)));

void crash_point(const struct crash_site *site);
/* The program's points. */
uint32_t crash_point_count(void);
const char *crash_point_name(uint32_t i);
/* From now on passages are also counted in passed[crash_point_count()], in memory that may outlive the process. Call it
 * before other threads pass points. */
void crash_point_watch(_Atomic uint32_t *passed);
/* Has the effect of CRASH_AT; name NULL: no point. Call it before other threads pass points. */
void crash_point_arm(const char *name, uint32_t n);

#define CRASH_POINT(text)                                                                                            \
	do {                                                                                                         \
		static struct crash_site crash_site_ __attribute__((section("crash_sites"), used)) = { text, 0 };    \
		crash_point(&crash_site_);                                                                           \
	} while (0)
#else
#define CRASH_POINT(text) ((void)0)
#endif

#endif
