/* Threads for checksums of downloads from GPUs and of reads from disks. A pool of a few threads with a bounded queue,
 * for all tiers, helps the thread that has the bytes. That thread does itself what the queue does not take.
 *
 * Any thread, without the cache's lock, but for create and destroy.
 */
#ifndef TERRACE_DAEMON_THREADS_CHECKSUM_POOL_H
#define TERRACE_DAEMON_THREADS_CHECKSUM_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct sums;
struct work;

/* threads: 1 or more, of which it makes a bounded number. False: no memory, or no threads. All the others take
 * NULL, which is a pool without threads. */
bool sums_create(uint32_t threads, struct sums **out);
/* Does what is queued, and ends the threads. Other threads may still call the functions below. Twice is fine. */
void sums_stop(struct sums *s);
void sums_destroy(struct sums *s);

/* Runs work->run on a thread of the pool. False: the caller must run it. */
bool sums_submit(struct sums *s, struct work *work);
/* one(arg, i) for each i < count, on this thread and on those of the pool that are idle; returns when all are done. */
void sums_each(struct sums *s, uint32_t count, void (*one)(void *arg, uint32_t i), void *arg);
/* one(arg, i) for each i < count, on threads of the pool alone; count is not 0. The thread that ends the last one calls
 * over(arg). False: nothing was begun, and the caller has to do it. */
bool sums_begin(struct sums *s, uint32_t count, void (*one)(void *arg, uint32_t i), void (*over)(void *arg), void *arg);
/* As sums_begin, for numbers that become due one by one: one(arg, i) is called when due(arg, i) is true, which is asked
 * only shortly before. `hurry`: the caller has time to wake several threads, so that they need not wait for each other
 * to do it. */
bool sums_begin_due(struct sums *s, uint32_t count, void (*one)(void *arg, uint32_t i), bool (*due)(void *arg, uint32_t i),
		    void (*over)(void *arg), void *arg, bool hurry);

#endif
