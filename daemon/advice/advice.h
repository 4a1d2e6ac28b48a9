/* The advice as a whole: its state, its thread and its end. */
#ifndef TERRACE_DAEMON_ADVICE_ADVICE_H
#define TERRACE_DAEMON_ADVICE_ADVICE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/advice/eviction_log.h"
#include "daemon/advice/mailbox.h"
#include "daemon/advice/prefetch.h"
#include "daemon/advice/request.h"
#include "daemon/block/values.h"

struct advisor;
struct block;
struct policy_state;
struct trace_recorder;

/* A request of the last seconds that a Lease, or the same Lookup, is expected after. */
enum { EXPECTED_MAX = 256 };

struct expected {
	uint64_t whole[EXPECTED_MAX];  /* of the session and the last key of all, 0: none; of the prefix that was there */
	uint64_t part[EXPECTED_MAX];
	uint64_t until_us[EXPECTED_MAX];
	uint32_t next;
};

struct advice {
	struct mailbox mail;           /* written without the lock */
	struct request request;        /* the one that is being told */
	uint64_t id[CACHE_BLOCKS_MAX]; /* of its blocks in the layouts of one class, and their roles */
	uint8_t role[CACHE_BLOCKS_MAX];
	struct expected expected;
	struct conversation conversation[CONVERSATIONS];
	uint64_t conversations;
	/* EVICTION_LOG_SETS of them: a table (eviction/table.h), as they are noted and looked for at random */
	struct eviction_log_entry (*eviction_log)[EVICTION_LOG_WAYS];
	uint64_t evictions_by_age[EVICTION_TIERS][EVICTION_LOG_AGES]; /* not cumulative */
	struct trace_recorder *recorder; /* NULL: not recording */
	struct advisor *advisor;       /* NULL: none */
	struct prefetch prefetch;
	/* by earlier runs, by rising keys; what was taken up has no bytes any more */
	struct policy_state *policy_state;
	size_t policy_state_count;
};

#endif
