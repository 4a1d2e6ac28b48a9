/* A run without disks that follows one with them, on one data folder. Its deletes do not reach those disks, and no
 * catalog is open to note them. So a mark, a file in the folder, notes them, and the next run with disks wipes the
 * disks. The mark is durable before anything can be deleted. An orderly stop removes it if nothing was deleted, so such
 * a run by mistake does no harm. */
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
/* Called when the disks, if there are any, are open and wiped: removes the mark. If it cannot be removed, a later start
 * wipes the disks again. */
void diskless_opened(const struct diskless *l);
/* Called at the end of the run. ended: no call is left that could delete. */
void diskless_end(const struct diskless *l, bool ended);

#endif
