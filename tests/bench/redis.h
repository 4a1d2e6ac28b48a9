/* A Redis server of the bench's own on a Unix socket, without persistence, and the few commands the benches
 * need, written by hand over one connection with reused buffers: the least a client can do. All values have
 * one size.
 */
#ifndef TERRACE_BENCH_REDIS_H
#define TERRACE_BENCH_REDIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct redis {
	int pid, fd;
	size_t value_bytes;
};

/* False, after a word on stderr: there is no redis-server. */
bool redis_start(struct redis *r, size_t value_bytes);
void redis_stop(struct redis *r);

/* Keys are numbers. */
void redis_set(struct redis *r, uint32_t key, const void *value);
/* GETs of keys first .. first + n - 1, `ahead` requests on their way at a time; take is called with each
 * value. */
void redis_get(struct redis *r, uint32_t first, uint32_t n, uint32_t ahead, void *value,
	       uint64_t (*take)(const void *, size_t));

#endif
