/* A GPU that is none, for tests of programs that use one: its memory is the host's, its kernels are the CPU's, its streams run at
 * once. Addresses of its memory carry a mark that makes them useless to the CPU, so that whoever follows one himself, or copies the
 * wrong way, stops there. */
#ifndef TERRACE_TESTS_TINYLM_HOST_DEVICE_H
#define TERRACE_TESTS_TINYLM_HOST_DEVICE_H

#include <stdint.h>

#define HOST_DEVICE_MARK ((uintptr_t)1 << 62)

static inline uintptr_t host_device_marked(const void *p)
{
	return (uintptr_t)p & HOST_DEVICE_MARK;
}

static inline void *host_device_mark(void *p)
{
	return (void *)((uintptr_t)p | HOST_DEVICE_MARK);
}

/* What a kernel sees of a device address. An address without the mark becomes one that cannot be followed. */
static inline void *host_device_memory(const void *p)
{
	return (void *)((uintptr_t)p ^ HOST_DEVICE_MARK);
}

#endif
