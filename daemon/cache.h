/* The cache as the shell sees it: create, tick, chores, destroy. Each call has a header of its own in call/, session/ and advice/. No
 * gRPC, no sockets, no clock of its own: callers bring the time in microseconds. All functions may be called from any thread.
 */
#ifndef TERRACE_DAEMON_CACHE_H
#define TERRACE_DAEMON_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_options;
struct quota;

/* Registers nothing: the calling thread has entered already. INVALID: an option out of its bounds. What the
 * catalog knows of the disks is taken up by a thread of its own: until that is done (cache_restored) blocks
 * on disk are misses, and deletes and flushes wait. A disk that cannot be used is left out, and cache_disks says why. BUSY: another process
 * has a disk or the catalog. UNSUPPORTED, IO: the catalog cannot be opened, as in store/catalog/catalog.h; or the kernel refuses `io`. UNAVAILABLE:
 * disks_required. *why: good until the thread's next cache_create. */
enum status cache_create(const struct cache_options *o, uint64_t now_us, struct cache **out,
			 const char **why);
/* No other thread may be inside. Frees everything (but records, with leaves_records), watches included, whoever still maps it. NULL allowed. False: a disk, or the one with
 * the catalog, has not answered in time, or a GPU's driver has not: cache_left says which. The kernel may still write to the memory of its
 * requests, and a thread come back from the driver, so all memory stays mapped to the end of the process, the disk's folder stays locked, and
 * nobody is told of anything any more; after a disk, the next start reads all headers. */
bool cache_destroy(struct cache *c);
/* Of a cache that a thread is inside of that does not come back, before the end of the process: disks and catalog are closed as by
 * cache_destroy, GPUs are not asked for anything, and nothing is freed. Who comes back from a driver after all stays where he is. False: a
 * disk has not answered in time. */
bool cache_leave(struct cache *c);
/* After a cache_destroy or cache_leave that returned false: what did not answer. */
const char *cache_left(const struct cache *c);
struct quota *cache_quota(const struct cache *c);
/* Ages sessions and leases, probes the detached sessions' extents, goes on with drains. Call about every 50 ms, by one
 * thread. True: cache_chores has something to do, or cache_disk_chores. */
bool cache_tick(struct cache *c, uint64_t now_us);
/* What may take the kernel a while: frees drained extents, and makes the next one of a pool that fills up.
 * Off the rpc thread and the local socket's. */
void cache_chores(struct cache *c);

#endif
