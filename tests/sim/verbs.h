/* Simulated RDMA devices, with the table of daemon/verbs/table.h. A test makes devices and changes them while the
 * daemon has them: ports go down, drivers refuse, devices vanish. */
#ifndef TERRACE_TESTS_SIM_VERBS_H
#define TERRACE_TESTS_SIM_VERBS_H

#include <pthread.h>

#include "daemon/verbs/table.h"

enum { SIM_GIDS_MAX = 8 };

struct sim_verbs {
	char name[VERBS_NAME_MAX];
	bool there;                    /* on the list */
	struct verbs_info info;
	bool active[VERBS_PORTS_MAX];
	struct verbs_gid gid[SIM_GIDS_MAX];
	uint32_t gids;
	enum status open, look;        /* what these functions come to */
	enum verbs_event event;        /* the next one */
	int event_fd;
	uint32_t opened, closed;       /* so many times */
};

/* Guards all devices while a daemon's thread has them. */
extern pthread_mutex_t sim_verbs_lock;
extern const struct verbs_ops sim_verbs_ops;

/* Forgets all devices. */
void sim_verbs_reset(void);
/* What list() comes to. */
void sim_verbs_list_is(enum status s);
/* Adds a device of one active port with the address ::ffff:10.0.0.N, RoCE v2. At most SIM_DEVICES. */
enum { SIM_DEVICES = 32 };
struct sim_verbs *sim_verbs_add(const char *name);
/* The device has an event. With the lock. */
void sim_verbs_tell(struct sim_verbs *d, enum verbs_event event);
/* The descriptor of the device's events hangs up, and there is no event. With the lock. */
void sim_verbs_hang_up(struct sim_verbs *d);

#endif
