/* RDMA devices as the daemon uses them: one table of functions. The real one is libibverbs (verbs/ibverbs.c); tests
 * have simulated devices with the same table.
 *
 * Failures: a function returns an enum status and sets *why (never NULL) to a sentence, which is valid until the
 * thread's next call. UNAVAILABLE: the device is gone, or its driver answers no more; close() is all that is left
 * to do. DENIED: the daemon may not use it. EXHAUSTED: a limit is met. UNSUPPORTED, INTERNAL: another error. Outputs
 * are written only on OK.
 *
 * Threads: those of one device are called by one thread at a time. A driver may hold any of them for long.
 */
#ifndef TERRACE_DAEMON_VERBS_TABLE_H
#define TERRACE_DAEMON_VERBS_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

enum {
	VERBS_DEVICES_MAX = 16,
	VERBS_PORTS_MAX = 4,           /* of a device; adapters have one or two */
	VERBS_GIDS_MAX = 256,          /* of a device */
	VERBS_GID_BYTES = 16,
	VERBS_NAME_MAX = 64,
};

struct verbs_device;                   /* an opened one */

enum verbs_gid_kind { VERBS_GID_INFINIBAND, VERBS_GID_ROCE_V1, VERBS_GID_ROCE_V2 };

/* An address of a port. */
struct verbs_gid {
	uint8_t bytes[VERBS_GID_BYTES];
	uint32_t port, index;
	enum verbs_gid_kind kind;
};

struct verbs_info {
	uint32_t ports;                /* their numbers are 1 .. ports */
	int32_t numa_node;             /* -1: not known */
	bool windows;                  /* memory windows of type 2B */
};

enum verbs_event {
	VERBS_EVENT_NONE,              /* there is no more */
	VERBS_EVENT_CHANGED,           /* a port or an address is another one than before */
	VERBS_EVENT_LOST,              /* the device is gone */
};

struct verbs_ops {
	/* The names of the devices of this machine, VERBS_DEVICES_MAX at most. */
	enum status (*list)(char names[][VERBS_NAME_MAX], uint32_t *count, const char **why);
	/* Opens a device, with what each use needs: a protection domain and a completion queue that tells by events. */
	enum status (*open)(const char *name, struct verbs_device **out, const char **why);
	void (*close)(struct verbs_device *d);
	enum status (*look)(struct verbs_device *d, struct verbs_info *out, const char **why);
	/* Whether the port carries packets now. */
	enum status (*port_active)(struct verbs_device *d, uint32_t port, bool *active, const char **why);
	/* The addresses of all ports, VERBS_GIDS_MAX at most. */
	enum status (*gids)(struct verbs_device *d, struct verbs_gid *out, uint32_t *count, const char **why);
	/* A descriptor that can be read when event() has something. */
	int (*event_fd)(struct verbs_device *d);
	/* Takes an event; never waits. */
	enum verbs_event (*event)(struct verbs_device *d);
};

#endif
