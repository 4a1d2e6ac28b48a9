/* The memory of one extent of the host tier: a memfd, or a piece of a GPU's with a page of host memory as its hold. Inside the host tier.
 *
 * Threads: any, one at a time for each memory. */
#ifndef TERRACE_STORE_HOST_MEMORY_H
#define TERRACE_STORE_HOST_MEMORY_H

#include "store/host/host.h"

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

/* `address`: where it goes on a device. EXHAUSTED, IO, or what the device says; *f is written then. */
enum status host_memory_open(const struct host_options *o, uint64_t address, uint64_t bytes, bool huge, struct host_memory *m,
			     struct host_failure *f);
/* Lasts. */
void host_memory_close(const struct host_options *o, struct host_memory *m);

/* Address space on the device. */
enum status host_memory_reserve(const struct host_options *o, uint64_t bytes, uint64_t *address, struct host_failure *f);

#endif
