/* The guard before the catalog's file: which process may open it, whether it may be mapped, and where a damaged file is
 * put. Private to store/catalog; knows files and processes, not LMDB.
 *
 * why: on failure gets a sentence of at most why_bytes.
 */
#ifndef TERRACE_STORE_CATALOG_GUARD_H
#define TERRACE_STORE_CATALOG_GUARD_H

#include <stddef.h>
#include <stdint.h>

#include "store/status.h"

enum { CATALOG_DAMAGED_KEPT = 3 };

enum catalog_verdict { CATALOG_SOUND = 0, CATALOG_UNSOUND = 1, CATALOG_NEWER = 2, CATALOG_UNKNOWN = 3 };

/* Makes the folder if needed and takes FOLDER/lock. OK: *fd holds the lock until it is closed. BUSY,
 * IO. */
enum status catalog_guard_lock(const char *folder, int *fd, char *why, size_t why_bytes);

/* Whether there is a data.mdb that is not empty: OK, MISS, IO. */
enum status catalog_guard_present(const char *folder, char *why, size_t why_bytes);

/* Runs the child (NULL: a fork), waits timeout_ms for it at most, then kills it. A child that dies or hangs means
 * damage. If it could not be started, the verdict is CATALOG_UNKNOWN. */
enum catalog_verdict catalog_guard_check(const char *folder, const char *child, uint32_t timeout_ms, char *why,
					 size_t why_bytes);

/* Renames data.mdb to the next of damaged-1.mdb .. damaged-3.mdb. If there are three already, the oldest is deleted.
 * IO. */
enum status catalog_guard_put_aside(const char *folder, char *why, size_t why_bytes);

#endif
