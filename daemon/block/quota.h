/* Shares: how many of each countable thing one process, and one user, may hold. The rule, the counts of each holder,
 * and the words and figures of a refusal are all here.
 *
 * The rule. Of each thing there are at most `max`. A grant leaves `free` of them that nothing holds. A user is granted
 *   one more while `free` is at least what the user holds, or a sixteenth of `max`, whichever is less. A process is
 *   granted one more while `free` is at least that, plus the same of what the process itself holds.
 * So a process alone on the node can get seven eighths of them, and a user fifteen sixteenths. A sixteenth is always
 * left for later users, and another for other processes of the same user. Once only that is left, each newcomer gets at
 * most half of what is free to it. A user or process that holds nothing gets one while there is any.
 *
 * Why not half of what is free: that would keep half of the node's memory from an engine that is alone. A newcomer only
 * needs a place to begin with: a sixteenth of the default bounds is 64 sessions, 16 connections, 8,192 leases. The rule
 * is applied at each grant, not fixed at the start, because the number of users is not known and what is free changes.
 *
 * Why user and process. A process that leaks should not stop its neighbours, and a user that forks should not stop the
 * node. The kernel says which process and which user has connected to a Unix socket (SO_PEERCRED); over TCP the address
 * counts as the user, and no process is known. An unknown caller (tests, the daemon itself) has no bound but `max`. A
 * process is known by its pid: if a new process gets the pid while something of the old one is still held, both count
 * as one.
 *
 * Tenants. With a table of tenants a user counts for each tenant apart, and all users of a tenant together have the
 * bounds that the table gives the tenant. A refusal names no user of another tenant.
 *
 * Sums. Bytes may be held by several holders at once (two leases of one block pin it once). Each holder is charged in
 * full, and the caller says how much is really free. The double charge does no harm, since the rule compares a charge
 * with at most a sixteenth.
 *
 * A grant needs no search: quota_join finds the holder once, and the holder has its counts. Any thread. It has one lock
 * of its own, under which it calls nothing else. */
#ifndef TERRACE_DAEMON_BLOCK_QUOTA_H
#define TERRACE_DAEMON_BLOCK_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/stat_row.h"
#include "store/device.h"
#include "store/status.h"

enum quota_thing {
	/* These stand side by side, since a lease or a put charges them and nothing else. */
	QUOTA_LEASES,
	QUOTA_RESERVATIONS,
	QUOTA_PINNED,                  /* bytes of host memory that leases, reservations and reads by stream hold */
	QUOTA_SESSIONS,                /* also of ended sessions whose memory may still be mapped */
	QUOTA_LAYOUTS,                 /* that sessions brought; they stay until the daemon ends */
	QUOTA_WATCHES,
	QUOTA_ATTACHMENTS,             /* connections to fd_socket */
	QUOTA_LOCAL,                   /* connections for local calls */
	QUOTA_RPC,                     /* connections of gRPC */
	QUOTA_METRICS,                 /* connections of HTTP */
	QUOTA_CALLS,                   /* of gRPC, under way */
	QUOTA_STREAMS,                 /* of these, Put, Get, Verify and Watch */
	QUOTA_LASTING,                 /* of these, Watch */
	QUOTA_COPIES,                  /* bytes of blocks that reads by stream have copied and not sent yet */
	QUOTA_LOANED,                  /* bytes of blocks that are lent to members of the cluster */
	QUOTA_READS,                   /* requests that are being received */
	QUOTA_REPLY_BYTES,             /* of replies that have not left yet */
	QUOTA_WORK,                    /* steps of calls that wait for a worker */
	QUOTA_GPU_PINNED,              /* as QUOTA_PINNED, of the first GPU; and so on */
	QUOTA_THINGS = QUOTA_GPU_PINNED + DEVICES_MAX,
};
enum quota_refusal { QUOTA_FULL, QUOTA_USER, QUOTA_PROCESS, QUOTA_TENANT, QUOTA_REFUSALS };

struct cache_peer;
struct cache_tenant_options;
struct quota;
struct quota_holder;
struct work;
struct workers;

struct quota *quota_create(void); /* NULL: no memory */
/* No holder may be used afterwards. NULL allowed. */
void quota_destroy(struct quota *q);
/* Sets the bound of a thing. Call it before the first one is taken; without it there is no bound. */
void quota_bound(struct quota *q, enum quota_thing thing, uint64_t max);

/* Sets the bounds of tenants. Call it before the first join. The names stay the caller's. EXHAUSTED: no memory. */
enum status quota_tenants(struct quota *q, const struct cache_tenant_options *t, uint32_t count);

/* The holder that stands for this peer; For NULL or an unknown peer: a holder without a bound of its own. Call
 * quota_leave once for each join, after all that was taken has been given back. NULL: no memory. */
struct quota_holder *quota_join(struct quota *q, const struct cache_peer *peer);
/* Joins the same holder once more. */
struct quota_holder *quota_join_again(struct quota_holder *h);
/* NULL allowed. */
void quota_leave(struct quota_holder *h);

/* Takes n of a thing, or says why not: EXHAUSTED, which is counted. *why: good until the thread's next refusal; NULL
 * allowed. */
enum status quota_take(struct quota_holder *h, enum quota_thing thing, uint64_t n, const char **why);
/* Takes n of a thing. False: it may not have so many, which is not counted as a refusal. For callers that wait and try
 * again. */
bool quota_try(struct quota_holder *h, enum quota_thing thing, uint64_t n);
void quota_add(struct quota_holder *h, enum quota_thing thing, uint64_t n);
void quota_give(struct quota_holder *h, enum quota_thing thing, uint64_t n);

/* n of a thing; 0: nothing is wished. free: how many are free, if the caller counts them itself and guards them by a
 * lock; else QUOTA_BY_BOUND, as in quota_take. max: what `free` is of, and the shares with it, as a tenant's own bound;
 * 0: the thing's. */
struct quota_wish {
	enum quota_thing thing;
	uint64_t n, free, max;
};
#define QUOTA_BY_BOUND UINT64_MAX
/* Takes several things, each named once: all are granted, or *why says which one was refused first. quota_ask_all only
 * asks; quota_add_all makes the charge. */
enum status quota_take_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count, const char **why);
enum status quota_ask_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count, const char **why);
/* Charges without asking; `free` is ignored. */
void quota_add_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count);
void quota_give_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count);

/* workers_submit for a client, which gets its share of the queue's places at most (QUOTA_WORK). EXHAUSTED: *why says
 * which bound. The holder stays joined until the work runs. */
enum status quota_submit(struct workers *w, struct work *work, struct quota_holder *holder, const char **why);

/* How many of a thing all holders have. */
uint64_t quota_used(struct quota *q, enum quota_thing thing);

/* Emits terrace_quota_held, terrace_quota_max and terrace_quota_refused_total of each thing that has a bound. */
void quota_stats(struct quota *q, cache_stat_fn *emit, void *arg);

#endif
