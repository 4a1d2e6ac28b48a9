/* Which of the configured disks a start can use. */
#ifndef TERRACE_DAEMON_DISK_OPEN_H
#define TERRACE_DAEMON_DISK_OPEN_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct tier;
struct unit;

/* Opens the catalog and the disks of the options: usable disks become units, the others are out. Not OK: the daemon
 * must not start, for the reason in *why; what was opened stays open. */
enum status tier_open(struct cache *c, const char **why);
/* The unit of the disk with that number among the options; NULL: the disk is out, or there is none. */
struct unit *unit_configured(struct tier *t, uint32_t configured);
/* The disk has failed: tells the catalog to have it wiped before it is used again. False: the catalog's queue is
 * full. */
bool unit_ban(struct tier *t, const struct unit *u);
/* At the end, when nothing can be deleted any more: if this run deleted nothing, disks that are out keep their blocks.
 * Takes long: it writes to the disks. */
void tier_pardon(struct cache *c);

/* Without the lock: waits until all that the catalog was told is committed. It calls goes_on from time to time, and
 * stops waiting when that is false (NULL: never). DEADLINE: not committed within ten seconds, or waiting was
 * stopped. */
enum status tier_commit(struct tier *t, bool (*goes_on)(const void *arg), const void *arg);

#endif
