/* terraced as a child of itself: `terraced catalog-check FOLDER` proves a catalog before the daemon maps it
 * (store/catalog/catalog.h). It is a process of its own, since a truncated file kills the process that reads it.
 */
#ifndef TERRACE_DAEMON_PROCESS_CATALOG_CHILD_H
#define TERRACE_DAEMON_PROCESS_CATALOG_CHILD_H

#include <stdbool.h>

/* The daemon's own program, whatever has become of its path since it was started. */
#define CATALOG_CHILD_PROGRAM "/proc/self/exe"

/* Does the child's work if this process is the child. True: it was, and *code is what it exits with. Call it first in
 * main, before any thread. */
bool catalog_child(int argc, char *const argv[], int *code);

#endif
