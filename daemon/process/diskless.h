/* A run without disks that follows one with them, on one data folder. What is deleted in it cannot be deleted on those disks, and no catalog is
 * open that could note it: so a file in the folder does, and the next run with disks wipes them. The file is there, durably, before anything can
 * be deleted, and goes with an orderly stop if nothing was: such a run by mistake costs nothing. */
#ifndef TERRACE_DAEMON_PROCESS_DISKLESS_H
#define TERRACE_DAEMON_PROCESS_DISKLESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "store/status.h"

struct diskless {
	const struct config *config;
	bool made;           /* the mark is this run's */
	bool distrust;       /* there are disks, and the mark: they are to be wiped */
	atomic_bool deleted; /* Delete was called; any thread */
};

/* Makes the mark, or looks for it, as there are disks or none. IO, and why[size] says it for people. */
enum status diskless_begin(struct diskless *l, const struct config *c, char *why, size_t size);
/* The disks, if there are any, are open and wiped. A mark that cannot be removed costs their blocks at a later start. */
void diskless_opened(const struct diskless *l);
/* The run's end. ended: no call is left that could delete. */
void diskless_end(const struct diskless *l, bool ended);

#endif
