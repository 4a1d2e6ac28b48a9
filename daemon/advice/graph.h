/* The advisor: a thread that keeps the graph of blocks (eviction/graph_edges.h) and makes lists of the blocks that are
 * likely to be asked for next. Here a block is named by its key's hash, over all layouts.
 *
 * Every advisor_ms it takes the mail, makes a list for each of the last chains that were asked for, and publishes all
 * of them by one atomic pointer; the old ones are freed after a grace period. Lists older than 2 s are not used.
 * Without an advisor nothing is prefetched. From time to time a part of the graph is saved in the catalog, from where a
 * restart loads it.
 */
#ifndef TERRACE_DAEMON_ADVICE_GRAPH_H
#define TERRACE_DAEMON_ADVICE_GRAPH_H

#include <stdint.h>

#include "daemon/advice/mailbox.h"
#include "daemon/block/stat_row.h"
#include "daemon/threads/await.h"
#include "store/index.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_graph_edge;
struct lease;
struct request;
struct reservation;
struct session;

enum {
	LISTS_MAX = 256,               /* chains that have one */
	LIST_NAMES = 32,               /* blocks in one */
	LIST_SLOTS = 1024,             /* of the table by name */
	LIST_STALE_US = 2 * 1000 * 1000,
	LEASES_LOOKED_AT = 256,        /* of a session, by graph_feed_lease */
};

struct advice_list {
	uint64_t tail;                 /* 0: free */
	uint32_t count;
	uint64_t name[LIST_NAMES];     /* the likeliest first */
};
struct advice_lists {
	struct index_record record;    /* first; never in the index, used only for its grace period */
	uint64_t made_us;
	struct advice_list list[LIST_SLOTS];
};

/* A round of saving what policies have learned to the catalog. */
struct learning {
	bool on;
	uint32_t at, number;           /* of the learner; of its next piece */
	uint64_t cursor, round_us;     /* of policy_ops.keep; when it began */
	char whom;                     /* which learner's cursor that is (struct learner); 0: none yet */
	uint64_t where, what;
};

enum { GRAPH_KEY_MAX = 128 };      /* as CATALOG_KEY_MAX (store/catalog/catalog.h) */

/* A walk over the catalog's table of edges, in parts. */
struct edges_walk {
	bool on;
	uint32_t round;                /* the highest round seen; the one that is swept */
	uint32_t left;                 /* of this part */
	bool stopped;                  /* stopped before the end */
	uint8_t key[GRAPH_KEY_MAX];  /* where it goes on */
	size_t key_bytes;              /* 0: at the beginning */
};

/* A walk over all nodes, in parts: which blocks exist. */
struct live_look {
	bool on;
	uint64_t dropped;              /* messages lost before it began */
	uint32_t node;
};

struct advisor {
	struct graph_mail *mail;       /* from threads that hold the cache's lock */
	struct mailbox sketch_mail;    /* from the workers that commit */
	struct advice_lists *_Atomic lists;
	_Atomic uint64_t now_us;       /* the cache's, as of the last tick */
	_Atomic uint64_t passes, pass_us, pass_us_max, nodes, edges, kept, pieces; /* for Stats */
	/* the same, by the machine's clock: when the pass under way, or waiting for the lock, began; 0: none */
	_Atomic uint64_t began_us;

	int wake;                      /* an eventfd: the advisor is woken, or is to stop */
	atomic_bool woken, stop;
	atomic_bool unseen;            /* blocks came or left without a message */
	pthread_t thread;
	struct await ended;
	bool started;

	pthread_mutex_t lock;          /* guards everything below */
	struct graph_edges *graph;
	struct unusable *unusable;     /* blocks that came or left, and what that makes of others (advice/unusable.h) */
	struct sketches *sketches;
	uint64_t recent[LISTS_MAX];    /* the ends of the last chains, a ring */
	uint32_t recent_next;
	uint64_t latest_us;            /* of the last request that the graph was told */
	/* Saving to the catalog: */
	bool loaded, edges_now;        /* the walk has come to the edges */
	uint32_t cursor, cycle;
	uint64_t cycle_us;
	struct edges_walk load, sweep;
	struct learning learning;
	struct live_look look;
};

/* ---- advice/graph.c ---- */

/* Without the lock. OK also if the options want no advisor. */
enum status advisor_create(struct cache *c, const char **why);
/* Starts its thread, after all other parts exist, unless advisor_ms is 0. */
enum status advisor_start(struct cache *c, const char **why);
bool advisor_stop(struct cache *c); /* as advice_stop */
void advisor_destroy(struct cache *c);
/* Any thread, with or without the lock: a Lookup found blocks on a disk, and its message should be read now, not at the
 * next tick. */
void advisor_wake(struct cache *c);
/* One pass, without the lock; the thread's work. False: it is still loading what the catalog has of an earlier run. */
bool advisor_pass(struct cache *c);
/* With the lock: tells the advisor a request by mail. */
void advisor_request(struct cache *c, const struct request *r);
void advisor_block(struct cache *c, const struct block *b, bool live);
/* In a read section: the list of a chain, or NULL. */
const struct advice_list *advisor_list(struct cache *c, const struct request *r);
void advisor_stats(struct cache *c, cache_stat_fn *emit, void *arg);

/* ---- advice/graph_feed.c ---- */

/* With the lock: the session was granted a lease, which is in its list. */
void graph_feed_lease(struct cache *c, const struct session *s, const struct lease *l);
/* Without the lock, for a sealed reservation that is being committed: computes a sketch of its keys. Takes some tens of
 * us. */
void graph_feed_commit(struct cache *c, const struct reservation *r);
/* With the advisor's lock: takes in the sketches that have come. */
void graph_feed_pass(struct advisor *a);

/* ---- advice/graph_store.c: with the advisor's lock ---- */

/* Loads from the catalog a part of what an earlier run left there; a->loaded: that was all. */
void keep_load(struct cache *c, struct advisor *a);
/* Saves `records` more nodes and edges to the catalog; UINT32_MAX: all that are left of this round, which is the last.
 * OK: nothing is left to save now. BUSY: some are left. EXHAUSTED, UNAVAILABLE: the catalog takes no more now, or has
 * failed. */
enum status keep_some(struct cache *c, struct advisor *a, uint32_t records);

/* ---- advice/policy_store.c ---- */

/* With the advisor's lock: saves so many more pieces of what policies have learned. Statuses of keep_some. */
enum status policy_state_keep(struct cache *c, struct advisor *a, uint32_t pieces);
/* The next piece begins a new round, even if the last one is not over or was recent. */
void policy_state_anew(struct advisor *a);
/* Loads the conversations of an earlier run, before the cache serves. */
void policy_state_conversations(struct cache *c);
/* Whether a record of the table of edges is a piece that was not written again for a month. */
bool policy_state_is_old(const uint8_t *key, size_t key_bytes, const uint8_t *value, size_t value_bytes);

/* The edges of a key in the graph, each type's strongest first. UNAVAILABLE: there is no graph. It waits for the
 * advisor's round, some milliseconds to a second: call it on a worker. */
enum status cache_graph(struct cache *c, const uint8_t *key, uint32_t key_bytes, struct cache_graph_edge *out, uint32_t max,
			uint32_t *n, const char **why);

#endif
