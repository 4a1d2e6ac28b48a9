/* Which ports of RDMA devices can be used: their rails. A port is usable if its device could be opened, it carries
 * packets, and it has an address (GID). Of the addresses the best is taken: RoCE v2 over IPv4, then over IPv6 beyond
 * the link, then of the link alone; RoCE v1 last, since routers do not carry it.
 *
 * A device that fails is closed and left out. rails_look() tries it again, and finds devices that are new.
 *
 * One thread.
 */
#ifndef TERRACE_DAEMON_VERBS_RAILS_H
#define TERRACE_DAEMON_VERBS_RAILS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/verbs/table.h"

enum { RAILS_MAX = VERBS_DEVICES_MAX * VERBS_PORTS_MAX, RAIL_WHY_MAX = 320 };

enum rail_state {
	RAIL_USABLE,
	RAIL_DOWN,                     /* the port carries no packets */
	RAIL_UNUSABLE,                 /* something of it is missing */
	RAIL_LOST,                     /* the device was in use, and has failed or gone */
};
/* "usable", "down", "unusable", "lost". */
const char *rail_state_text(enum rail_state s);

struct rail {
	char device[VERBS_NAME_MAX];
	uint32_t port;                 /* 0: of a device whose ports are not known */
	enum rail_state state;
	char why[RAIL_WHY_MAX];        /* a sentence, unless it is usable */
	struct verbs_gid gid;          /* if it is usable */
	struct verbs_info info;        /* of the device, if its ports are known */
};

struct rail_device {
	char name[VERBS_NAME_MAX];     /* empty: a free place */
	struct verbs_device *open;     /* NULL: it is not in use */
	uint32_t rails;
	struct rail rail[VERBS_PORTS_MAX]; /* [rails], at least one */
};

struct rails {
	const struct verbs_ops *ops;
	/* A rail's state is another one than before, or its address. */
	void (*changed)(void *arg, const struct rail *r);
	void *arg;
	struct rail_device device[VERBS_DEVICES_MAX];
	uint64_t losses;               /* of devices */
	char why[RAIL_WHY_MAX];        /* the list of devices could not be read: why; else empty */
};

/* Lists the devices, opens those that are not open, and looks at all ports. */
void rails_look(struct rails *r);
/* Takes the events of a device that is open, and looks at its ports if there were any. hung_up: its descriptor brings
 * no event any more. */
void rails_events(struct rails *r, struct rail_device *d, bool hung_up);
/* Copies all rails; returns their number. */
uint32_t rails_copy(const struct rails *r, struct rail out[RAILS_MAX]);
/* Closes all devices. */
void rails_close(struct rails *r);

#endif
