/* The cache for the parts of the daemon around it: create, tick, chores, destroy. Each call has a header of its own in
 * call/, session/ and advice/. No gRPC, no sockets, no clock of its own: callers pass the time in microseconds. All
 * functions may be called from any thread.
 */
#ifndef TERRACE_DAEMON_CACHE_H
#define TERRACE_DAEMON_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_options;
struct quota;

/* Makes the cache. The calling thread has called cache_thread_enter already. A thread of the cache's own takes up what
 * the catalog knows of the disks. Until it is done (cache_restored) blocks on disk are misses, and deletes and flushes
 * wait. A disk that cannot be used is left out, and cache_disks says why. INVALID: an option is out of its bounds.
 * BUSY: another process has a disk or the catalog. UNSUPPORTED, IO: the catalog cannot be opened, as in
 * store/catalog/catalog.h; or the kernel refuses `io`. UNAVAILABLE: disks_required is not met. *why is valid until the
 * thread's next cache_create. */
enum status cache_create(const struct cache_options *o, uint64_t now_us, struct cache **out,
			 const char **why);
/* No other thread may be inside. Frees everything (but records, with leaves_records), watches included, even if
 * processes still map it. NULL allowed. False: a disk, the catalog's disk or a GPU's driver has not answered in time;
 * cache_left says which. The kernel may then still write to the memory of its requests, and a thread may come back from
 * the driver. So all memory stays mapped until the process ends, the disk's folder stays locked, and no callback is
 * called any more. If it was a disk, the next start reads all headers. */
bool cache_destroy(struct cache *c);
/* Called before the process ends, if a thread is inside the cache and does not return. Closes disks and catalog as
 * cache_destroy does, calls no GPU's driver, and frees nothing. If a thread returns from a driver after all, it stops
 * there. False: a disk has not answered in time. */
bool cache_leave(struct cache *c);
/* What did not answer, after a cache_destroy or cache_leave that returned false. */
const char *cache_left(const struct cache *c);
struct quota *cache_quota(const struct cache *c);
/* Ages sessions and leases, probes the detached sessions' extents, and does what is due in each tier. Call about every
 * 50 ms, by one thread. True: cache_chores or cache_disk_chores has something to do. */
bool cache_tick(struct cache *c, uint64_t now_us);
/* Does work that may take long in the kernel: taking pages, and emptying spans for other classes. Not on the rpc thread
 * or the local socket's. */
void cache_chores(struct cache *c);

#endif
