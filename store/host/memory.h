/* The memory of one extent of the arena (store/arena). It is a memfd; on a GPU it is a piece of the GPU's memory, with
 * a memfd of one page as its *hold*: the hold is lent and asked about in place of the device's memory.
 *
 * Threads: any, but one at a time for each memory.
 */
#ifndef TERRACE_STORE_HOST_MEMORY_H
#define TERRACE_STORE_HOST_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "store/device.h"
#include "store/host/extent.h"
#include "store/status.h"

/* The source of memory. */
struct host_source {
	const struct device_ops *ops; /* NULL: host memory */
	struct device *device;        /* with ops */
	bool huge;                    /* of host memory: use huge pages where there are any */
};

struct host_memory {
	struct extent extent;    /* the host memory; with a device the hold */
	uint64_t bytes;          /* the extent's bytes as the budget counts them, without the hold */
	struct device_extent device; /* with a device */
	int device_fd;
};

/* Why memory could not be had. */
struct host_failure {
	int error;               /* errno, or 0 */
	char why[HOST_WHY_MAX];  /* the device's words, or empty */
};

/* Takes memory of `bytes`. Of host memory the first `present` bytes have their pages then; a device's memory has all of
 * them. `address`: where the memory goes on a device. EXHAUSTED, IO, or the device's status; on each of them *f is
 * written. */
enum status host_memory_open(const struct host_source *from, uint64_t address, uint64_t bytes, uint64_t present,
			     struct host_memory *m, struct host_failure *f);
/* Takes pages of host memory: extent_populate. */
enum status host_memory_populate(struct host_memory *m, uint64_t at, uint64_t bytes, struct host_failure *f);
/* Frees the memory. Slow. */
void host_memory_close(const struct host_source *from, struct host_memory *m);

/* Reserves address space on the device. */
enum status host_memory_reserve(const struct host_source *from, uint64_t bytes, uint64_t *address,
				struct host_failure *f);

#endif
