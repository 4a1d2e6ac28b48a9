/* The advice as a whole: its state, its thread and its end. */
#ifndef TERRACE_DAEMON_ADVICE_ADVICE_H
#define TERRACE_DAEMON_ADVICE_ADVICE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/advice/eviction_log.h"
#include "daemon/advice/mailbox.h"
#include "daemon/advice/prefetch.h"
#include "daemon/advice/request.h"
#include "daemon/advice/unusable.h"
#include "daemon/block/values.h"

struct advisor;
struct block;
struct policy_state;
struct trace_recorder;

/* A recent request after which a Lease, or the same Lookup, is expected. */
enum { EXPECTED_MAX = 256 };

struct expected {
	/* of the session and the last key: of all keys, 0: none; of the prefix that was present */
	uint64_t whole[EXPECTED_MAX];
	uint64_t part[EXPECTED_MAX];
	uint64_t until_us[EXPECTED_MAX];
	uint32_t next;
};

struct advice {
	struct mailbox mail;           /* written without the lock */
	struct request request;        /* the request that is being told */
	uint64_t id[CACHE_BLOCKS_MAX]; /* its blocks' ids in the layouts of one class, and their roles */
	uint8_t role[CACHE_BLOCKS_MAX];
	struct expected expected;
	struct conversation conversation[CONVERSATIONS];
	uint64_t conversations;
	/* EVICTION_LOG_SETS of them: a table (eviction/table.h), as they are noted and looked for at random */
	struct eviction_log_entry (*eviction_log)[EVICTION_LOG_WAYS];
	uint64_t evictions_by_age[EVICTION_TIERS][EVICTION_LOG_AGES]; /* not cumulative */
	struct trace_recorder *recorder; /* NULL: not recording */
	struct advisor *advisor;       /* NULL: none */
	struct families families;      /* advice/unusable.h */
	struct prefetch prefetch;
	/* saved by earlier runs, by rising keys; an entry that was taken up has no bytes any more */
	struct policy_state *policy_state;
	size_t policy_state_count;
};

#endif
