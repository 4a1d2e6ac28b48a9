/* Which of the configured disks a start can use. */
#ifndef TERRACE_DAEMON_DISK_OPEN_H
#define TERRACE_DAEMON_DISK_OPEN_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct tier;
struct unit;

/* Opens the catalog and the disks of the options: those that can be used are units, the others are out. Not OK: *why says what the daemon is not to
 * start with; what was opened stays open. */
enum status tier_open(struct cache *c, const char **why);
/* By the disk's number among the options; NULL: it is out, or there is none. */
struct unit *unit_configured(struct tier *t, uint32_t configured);
/* Of a disk that has failed: the catalog is told that it is to be wiped before it is used again. False: its queue is full. */
bool unit_ban(struct tier *t, const struct unit *u);
/* At the end, when nothing can be deleted any more: if nothing was, disks that are out keep their blocks. Lasts: the disks write. */
void tier_pardon(struct cache *c);

/* Without the lock: all that the catalog was told is committed. Asks goes_on (NULL: always) from time to time whether to wait on. DEADLINE: it has not
 * come in ten seconds, or was not to be waited for. */
enum status tier_commit(struct tier *t, bool (*goes_on)(const void *arg), const void *arg);

#endif
