/* Shares: how many of each countable thing one process, and one user, may hold. This is the one place for the rule, for the counts of who holds
 * what, and for the words and figures of a refusal.
 *
 * The rule. Of each thing there are at most `max`. A grant leaves `free` of them that nothing holds.
 *   A user is granted one more while `free` is at least what the user holds, or a sixteenth of `max`, whichever is less.
 *   A process is granted one more while `free` is at least that, plus the same of what the process itself holds.
 * So a process that takes all that it gets, alone on the node, ends with seven eighths of them, and a user with fifteen sixteenths. A
 * sixteenth is always left for users that come later, and one more for the other processes of the same user. Once no more than that is left,
 * each holds at most half of what is free to it. A user or process that holds nothing gets one while there is any.
 *
 * Why not simply half of what is free. That keeps half of the node's memory from an engine that is alone, for newcomers that may never
 * come. What newcomers need is a place to begin with, not a half: a sixteenth of the default bounds is 64 sessions, 16 connections, 8,192
 * leases. Why it is asked at each grant and not fixed at the start: the number of users is not known, and what is free changes.
 *
 * Why user and process. A process that leaks should not stop its neighbours, and a user that forks should not stop the node. The kernel says
 * which process and which user has connected to a Unix socket (SO_PEERCRED); over TCP the address counts as the user, and no process is
 * known. A caller that is not known at all (tests, the daemon itself) has no bound but `max`. A process is its pid: a pid that is used again
 * while something of the old process is held counts together with it.
 *
 * Sums. A thing that is counted in bytes may be held by several at once (two leases of one block pin it once). Each holder is charged in full,
 * and the caller says how much is really free. The rule compares a charge with at most a sixteenth, so that the double charge costs nothing.
 *
 * A grant costs no walk: a holder is found once, by quota_join, and has its counts at hand. Any thread; one lock of its own, under which
 * nothing else is called. */
#ifndef TERRACE_DAEMON_BLOCK_QUOTA_H
#define TERRACE_DAEMON_BLOCK_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"
#include "daemon/block/values.h"
#include "store/device.h"
#include "store/status.h"

enum quota_thing {
	/* Side by side: a lease or a put charges these, and nothing else. */
	QUOTA_LEASES,
	QUOTA_RESERVATIONS,
	QUOTA_PINNED,                  /* bytes of host memory that leases, reservations and reads by stream hold */
	QUOTA_SESSIONS,                /* ended ones too, as long as their memory may be mapped */
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
	QUOTA_READS,                   /* requests that are being received */
	QUOTA_REPLY_BYTES,             /* of replies that have not left yet */
	QUOTA_WORK,                    /* steps of calls that wait for a worker */
	QUOTA_GPU_PINNED,              /* as QUOTA_PINNED, of the first GPU; and so on */
	QUOTA_THINGS = QUOTA_GPU_PINNED + DEVICES_MAX,
};
enum quota_refusal { QUOTA_FULL, QUOTA_USER, QUOTA_PROCESS, QUOTA_REFUSALS };

struct cache_peer;
struct quota;
struct quota_holder;
struct work;
struct workers;

struct quota *quota_create(void); /* NULL: no memory */
/* Every holder has left, or is never used again. NULL allowed. */
void quota_destroy(struct quota *q);
/* How many there may be of a thing. Before the first is taken; until then there may be any number. */
void quota_bound(struct quota *q, enum quota_thing thing, uint64_t max);

/* The holder that stands for this peer; NULL, or a peer that is not known: one without a bound of its own. It must be left as often as it was
 * joined, by whatever has given back all that it took. NULL: no memory. */
struct quota_holder *quota_join(struct quota *q, const struct cache_peer *peer);
/* One time more. */
struct quota_holder *quota_join_again(struct quota_holder *h);
/* NULL allowed. */
void quota_leave(struct quota_holder *h);

/* Takes n of a thing, or says why not: EXHAUSTED, which is counted. *why: good until the thread's next refusal; NULL allowed. */
enum status quota_take(struct quota_holder *h, enum quota_thing thing, uint64_t n, const char **why);
/* The same for what waits if it gets none: that is no refusal. */
bool quota_try(struct quota_holder *h, enum quota_thing thing, uint64_t n);
void quota_add(struct quota_holder *h, enum quota_thing thing, uint64_t n);
void quota_give(struct quota_holder *h, enum quota_thing thing, uint64_t n);

/* n of a thing, which is 0 where nothing is wished. free: how many nothing holds, where the caller
 * itself counts them and guards them by a lock, or QUOTA_BY_BOUND: as quota_take. */
struct quota_wish {
	enum quota_thing thing;
	uint64_t n, free;
};
#define QUOTA_BY_BOUND UINT64_MAX
/* The same of several things, each named once: all are granted, or the first that is not says why. quota_ask_all only
 * asks; the charge is quota_add_all. */
enum status quota_take_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count, const char **why);
enum status quota_ask_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count, const char **why);
/* Without being asked; `free` is not looked at. */
void quota_add_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count);
void quota_give_all(struct quota_holder *h, const struct quota_wish *w, uint32_t count);

/* workers_submit for a client, which has no more places in the queue than its share (QUOTA_WORK). EXHAUSTED: *why
 * says which bound. The holder stays joined until the work runs. */
enum status quota_submit(struct workers *w, struct work *work, struct quota_holder *holder, const char **why);

/* How many are taken of a thing. */
uint64_t quota_used(struct quota *q, enum quota_thing thing);

/* terrace_quota_held, terrace_quota_max and terrace_quota_refused_total of each thing that has a bound. */
void quota_stats(struct quota *q, cache_stat_fn *emit, void *arg);

#endif
