/* What the cache learns from requests, and who is told of them.
 *
 * A *request* is a prompt as an engine asks for it: the chain of its keys. Lookup, Lease and Report say so by a letter in
 * a mailbox that takes no lock; whoever holds the cache's lock next and has the time (a Lease, the tick) reads the
 * letters, drops those that repeat a request which was told already (a Lease after its Lookup, a scheduler that asks
 * again and again), and tells the policies, the recorder of traces (advice/trace.c) and the advisor (advice/graph.c).
 *
 *     Lookup ──┐                        ┌─► policy->request, of each layout
 *     Lease  ──┼─► mailbox ─► advice_read ─► recorder's mailbox ─► its thread ─► file
 *     Report ──┘        (lock)          ├─► advisor's mailbox ─► its thread ─► graph ─► lists
 *                                       └─► prefetch, by the lists
 *
 * Blocks have two names here: a *name* is a hash of the key alone, the same in every layout; an *id* is the policies', of
 * name and layout. Both are the same after a restart. Two keys of one hash cost precision and nothing else.
 *
 * Under the cache's lock but where a comment says otherwise.
 */
#ifndef TERRACE_DAEMON_ADVICE_ADVICE_H
#define TERRACE_DAEMON_ADVICE_ADVICE_H

#include "daemon/advice/prefetch_outcome.h"
#include "daemon/cache_private.h"

/* ---- advice/mailbox.c: letters of 64-bit words; any number of writers, one reader at a time ---- */

struct mailbox {
	_Atomic uint64_t *words;
	uint64_t count;                /* of words, a power of two */
	_Atomic uint64_t taken;        /* words given to writers since the start */
	_Atomic uint64_t freed;        /* words that the reader is done with */
	_Atomic uint64_t dropped;      /* letters for which there was no room */
};
/* A letter being written or read. */
struct letter {
	uint64_t at;
	uint32_t words;                /* without the mailbox's own */
};

/* count: a power of two. False: no memory. fini accepts zeroed memory. */
bool mailbox_init(struct mailbox *m, uint64_t count);
void mailbox_fini(struct mailbox *m);
/* Any thread, without waiting. False: no room; it is counted. Each letter begun must be sent. */
bool mailbox_begin(struct mailbox *m, uint32_t words, struct letter *l);
void mailbox_send(struct mailbox *m, const struct letter *l);
/* The reader: the oldest letter, if it is finished. It stays until it is freed. */
bool mailbox_next(struct mailbox *m, struct letter *l);
void mailbox_free(struct mailbox *m, const struct letter *l);
static inline void letter_write(struct mailbox *m, const struct letter *l, uint32_t i, uint64_t word)
{
	atomic_store_explicit(&m->words[(l->at + 1 + i) & (m->count - 1)], word, memory_order_relaxed);
}
static inline uint64_t letter_read(const struct mailbox *m, const struct letter *l, uint32_t i)
{
	return atomic_load_explicit(&m->words[(l->at + 1 + i) & (m->count - 1)], memory_order_relaxed);
}

/* ---- advice/request.c: requests ---- */

enum request_kind { REQUEST_LOOKUP, REQUEST_LEASE, REQUEST_REPORT };

/* A request that has been read. */
struct request {
	enum request_kind kind;
	uint8_t hint;                  /* enum policy_hint */
	uint8_t priority;              /* enum policy_priority */
	uint32_t ttl_s;                /* 0: not said */
	uint16_t turn;                 /* 0: not known */
	uint32_t count, present;       /* keys; keys of the prefix that was there (lookups) */
	uint32_t layouts;
	uint64_t session;
	uint64_t conversation;         /* a number of its own for each chain that goes on */
	struct pool *pool[CACHE_LAYOUTS_MAX];
	uint64_t name[CACHE_KEYS_MAX];
};

/* A request of the last seconds that a Lease, or the same Lookup, is expected after. */
enum { EXPECTED_MAX = 256 };
struct expected {
	uint64_t whole[EXPECTED_MAX];  /* of the session and the last key of all, 0: none; of the prefix that was there */
	uint64_t part[EXPECTED_MAX];
	uint64_t until_us[EXPECTED_MAX];
	uint32_t next;
};

/* Which conversation ended where: an open table without chains, later ones displace earlier ones. */
enum { CONVERSATIONS = 1 << 15 };
struct conversation {
	uint64_t tail;                 /* the last key's name */
	uint64_t number : 48, turn : 16;
};

/* A copy that left a tier. */
enum { GONE_SETS = 1 << 14, GONE_WAYS = 4, GONE_AGES = 8 };
struct gone {
	uint64_t id, when_us;          /* id 0: free */
	uint32_t idle_ms;              /* since its last use, then; stays at its maximum */
	uint32_t uses;
	uint8_t reason;                /* enum gone_reason */
	uint8_t tier;                  /* enum gone_tier: whose copy it was */
	bool regretted;
};
_Static_assert(sizeof(struct gone) == 32, "two in a cache line");
enum gone_tier { GONE_HOST, GONE_DISK, GONE_GPU, GONE_TIERS };
enum gone_reason { GONE_FULL, GONE_DRAIN, GONE_SHED, GONE_REFUSED, GONE_LOST, GONE_COMPACT, GONE_REASONS };

/* What is to be read ahead: see advice/prefetch.c. */
enum ahead_kind { AHEAD_NO, AHEAD_ASKED, AHEAD_EXPECTED, AHEAD_KINDS };
enum { AHEAD_WISHES = 64, AHEAD_BLOCKS = 1024 };
struct ahead_wish {
	uint64_t whole, part;          /* of its request: request_whole() of all its keys, and of those that were there */
	uint64_t until_us;
	enum ahead_kind kind;
	uint32_t count, begun;         /* blocks; 0: free */
	uint32_t kept;                 /* of the same request, in memory, to stay there until the Lease comes */
	uint64_t id[AHEAD_BLOCKS], keep[AHEAD_BLOCKS];
};
struct ahead {
	struct ahead_wish wish[AHEAD_WISHES];
	struct ahead_tried tried[AHEAD_KINDS];
	uint64_t held_bytes;           /* of blocks that were loaded ahead and are not used yet */
	uint64_t budget_bytes, budget_us; /* what may be read now, and as of when */
};

struct advice {
	struct mailbox mail;           /* written without the lock */
	struct request request;        /* the one that is being told */
	uint64_t id[CACHE_KEYS_MAX];   /* of its blocks in one layout, and their roles */
	uint8_t role[CACHE_KEYS_MAX];
	struct expected expected;
	struct conversation conversation[CONVERSATIONS];
	uint64_t conversations;
	struct gone (*gone)[GONE_WAYS]; /* GONE_SETS of them: a table (eviction/table.h), as they are noted and looked for at random */
	uint64_t gone_by_age[GONE_TIERS][GONE_AGES]; /* not cumulative */
	struct block **by_id;          /* published blocks */
	uint64_t by_id_mask;
	struct trace_recorder *recorder; /* NULL: not recording */
	struct advisor *advisor;       /* NULL: none */
	struct ahead ahead;
	struct learned *learned;       /* by earlier runs, by rising keys; what was taken up has no bytes any more */
	size_t learned_count;
};

/* Without the lock. create before everything else; false: no memory. stop ends its threads; false: one is in the catalog, and has not come back
 * within disk_close_ms. destroy comes after everything else. */
bool advice_create(struct cache *c);
bool advice_stop(struct cache *c);
void advice_destroy(struct cache *c);

uint64_t key_name(const uint8_t *key, uint32_t key_bytes);
static inline uint64_t policy_id(uint64_t name, uint64_t layout_id)
{
	uint64_t id = name ^ layout_id * 0x9e3779b97f4a7c15ull;

	return id ? id : 1;
}

/* What a call says of its request; the members are those of struct request. */
struct asking {
	enum request_kind kind;
	uint64_t session;
	uint32_t present, ttl_s;
	uint16_t turn;
	uint8_t hint, priority;
};
/* Any thread, with or without the lock: leaves a letter. */
void advice_ask(struct cache *c, const struct asking *q, struct pool *const *pools, uint32_t layouts, const struct cache_keys *k);
/* A number for the first `count` keys of a request of that session. */
uint64_t request_whole(const struct request *r, uint32_t count);
/* Reads letters of at most `keys` keys together, one letter at least. In a read section of the index. */
void advice_read(struct cache *c, uint32_t keys);
enum { READ_A_CALL = 8192, READ_A_TICK = 16384 };
#define READ_ALL UINT32_MAX

/* Published blocks by id; of several of one id, any. */
void by_id_add(struct cache *c, struct block *b);
void by_id_remove(struct cache *c, struct block *b);
struct block *by_id_find(const struct cache *c, uint64_t id);

/* ---- advice/eviction_log.c: what left ---- */

/* A copy leaves its tier. n: its node there. The last one of memory and disks is remembered, and beside it the last one of GPUs. */
void gone_note(struct cache *c, uint64_t id, const struct policy_node *n, enum gone_tier tier, enum gone_reason reason);
/* Such a note is made soon. */
void gone_fetch(const struct cache *c, uint64_t id, bool gpu);
/* It is there again: on a GPU; in memory or on a disk. */
void gone_forget(struct cache *c, uint64_t id, bool gpu);
const struct gone *gone_find(const struct cache *c, uint64_t id, bool gpu);
/* A request wants it: whether it has just left is counted; gpu: off a GPU, too. */
void gone_asked(struct cache *c, uint64_t id, bool gpu);
const char *gone_word(enum gone_reason r);
/* The rows of Stats; without the lock. */
void gone_stats(struct cache *c, cache_stat_fn *emit, void *arg);

/* ---- advice/prefetch.c ---- */

/* In a read section: a request was told; a Lease of it came; loads are begun, of what is wished for. */
void ahead_request(struct cache *c, const struct request *r);
void ahead_leased(struct cache *c, const struct request *r);
void ahead_pump(struct cache *c);
/* A block that was loaded ahead is in memory: it hangs in a list of its pool, and enters the policy when it is used. */
void ahead_arrive(struct cache *c, struct block *b);
/* What became of it (of others: nothing): one of COUNTER_AHEAD_USED, _WASTED and _LATE. It is in no list then. */
void ahead_end(struct cache *c, struct block *b, enum counter how);
/* The oldest such block of the pool that may leave memory: one that nobody is expected to want any more, or any; NULL: none. */
struct block *ahead_victim(const struct cache *c, const struct pool *p, bool any);
/* A call waits for a block that is not in memory. */
void ahead_wanted(struct cache *c, struct block *b);

/* ---- advice/policy_store.c ---- */

/* Who keeps what it learns: whose and of what it is, as the catalog names it. */
struct learner {
	char whom;                     /* 'm' memory, 'd' disk, 'g' GPU, 'k' conversations */
	uint64_t where, what;
	const struct policy_ops *ops;  /* none of conversations */
	struct policy *policy;
};
/* Before there are other threads: reads what earlier runs had learned, so that nobody waits for the catalog's disk later. */
void learned_load(struct cache *c);
void learned_free(struct cache *c);
/* With the lock, of a policy that was just made: tells it what an earlier run had learned. Some ms. */
void learned_recall(struct cache *c, const struct learner *l);

/* ---- advice/trace.c ---- */

/* A request, for the recorder. */
void trace_note(struct cache *c, const struct request *r);

#endif
