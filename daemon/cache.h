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
/* No other thread may be inside. Frees everything (but records, with leaves_records), watches included, even if
 * processes still map it. NULL allowed. False: a disk, the catalog's disk or a GPU's driver has not answered in time;
 * cache_left says which. The kernel may then still write to the memory of its requests, and a thread may come back from
 * the driver. So all memory stays mapped until the process ends, the disk's folder stays locked, and no callback is
 * called any more. If it was a disk, the next start reads all headers. */
bool cache_destroy(struct cache *c);
/* Before the process ends, if a thread is inside the cache and does not return: closes disks and catalog as
 * cache_destroy does, asks GPUs for nothing, and frees nothing. A thread that returns from a driver after all stops
 * there. False: a disk has not answered in time. */
bool cache_leave(struct cache *c);
/* After a cache_destroy or cache_leave that returned false: what did not answer. */
const char *cache_left(const struct cache *c);
struct quota *cache_quota(const struct cache *c);
/* Ages sessions and leases, probes the detached sessions' extents, goes on with drains. Call about every 50 ms, by one
 * thread. True: cache_chores has something to do, or cache_disk_chores. */
bool cache_tick(struct cache *c, uint64_t now_us);
/* Work that may take long in the kernel: taking pages, and emptying spans for other classes. Off the rpc thread and the
 * local socket's. */
void cache_chores(struct cache *c);

#endif
