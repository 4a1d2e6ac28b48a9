/* RDMA devices: a thread opens them, watches their events, and looks at them again every RDMA_LOOK_US (rails.h). There
 * is none with rdma = off. The daemon serves as well without a library or a device: then the view says why. */
#ifndef TERRACE_DAEMON_VERBS_RDMA_H
#define TERRACE_DAEMON_VERBS_RDMA_H

#include <stdint.h>

#include "daemon/verbs/rails.h"
#include "store/status.h"

struct part_ops;
struct rdma;
struct verbs_ops;

enum { RDMA_LOOK_US = 5 * 1000 * 1000 };

/* ops: the table; NULL: there is none, and no_ops says why. Texts must live as long as it. EXHAUSTED: no memory or
 * descriptor; why: a sentence. */
enum status rdma_create(const struct verbs_ops *ops, const char *no_ops, struct rdma **out, const char **why);
/* Starts the thread, when the daemon serves. NULL allowed. */
void rdma_serve(struct rdma *r);
/* Stop and figures. */
extern const struct part_ops rdma_part;

enum rdma_state {
	RDMA_STARTING,                 /* the devices have not been looked at yet */
	RDMA_READY,                    /* a port is usable */
	RDMA_UNAVAILABLE,
};
/* "starting", "ready", "unavailable". */
const char *rdma_state_text(enum rdma_state s);

struct rdma_view {
	enum rdma_state state;
	char why[RAIL_WHY_MAX];        /* of RDMA_UNAVAILABLE: a sentence; else empty */
	uint64_t losses;
	uint32_t count;
	struct rail rail[RAILS_MAX];
};
/* Any thread. */
void rdma_look_at(struct rdma *r, struct rdma_view *out);

#endif
