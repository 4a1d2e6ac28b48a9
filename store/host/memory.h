/* The memory of one extent: a memfd, or a piece of a GPU's with a page of host memory as its hold. For the arena
 * (store/arena).
 *
 * Threads: any, one at a time for each memory. */
#ifndef TERRACE_STORE_HOST_MEMORY_H
#define TERRACE_STORE_HOST_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "store/device.h"
#include "store/host/extent.h"
#include "store/status.h"

/* Where memory comes from. */
struct host_source {
	const struct device_ops *ops; /* NULL: host memory */
	struct device *device;        /* with ops */
	bool huge;                    /* of host memory: on huge pages, where there are any */
};

struct host_memory {
	struct extent extent;    /* all of it, or the hold */
	uint64_t bytes;          /* as the budget counts them */
	struct device_extent device; /* with a device */
	int device_fd;
};

/* Why memory could not be had. */
struct host_failure {
	int error;               /* errno, or 0 */
	char why[HOST_WHY_MAX];  /* the device's words, or empty */
};

/* Memory of `bytes`, of which the first `present` have their pages: of a device's all have. `address`: where it goes
 * on a device. EXHAUSTED, IO, or what the device says; *f is written then. */
enum status host_memory_open(const struct host_source *from, uint64_t address, uint64_t bytes, uint64_t present,
			     struct host_memory *m, struct host_failure *f);
/* Takes pages of host memory: extent_populate. */
enum status host_memory_populate(struct host_memory *m, uint64_t at, uint64_t bytes, struct host_failure *f);
/* Lasts. */
void host_memory_close(const struct host_source *from, struct host_memory *m);

/* Address space on the device. */
enum status host_memory_reserve(const struct host_source *from, uint64_t bytes, uint64_t *address,
				struct host_failure *f);

#endif
