/* Named places at which a test can have the process killed as if the power went: built with TERRACE_CRASH_POINTS, the variable
 * TERRACE_CRASH=NAME:N makes the N-th passage of NAME (from 1) the process's last instant, by SIGKILL. Nothing at all in other
 * builds. */
#ifndef TERRACE_STORE_CRASH_POINT_H
#define TERRACE_STORE_CRASH_POINT_H

#ifdef TERRACE_CRASH_POINTS
void crash_point(const char *name);
#define CRASH_POINT(name) crash_point(name)
#else
#define CRASH_POINT(name) ((void)0)
#endif

#endif
