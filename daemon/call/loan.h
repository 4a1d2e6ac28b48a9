/* Loans: blocks that another member of the cluster is about to read (call/loan.c).
 *
 * A loan pins blocks, wherever they lie, and ends after its time, when it is returned, or when the cache ends. Its time
 * is a duration from the moment of the grant, on this machine's clock: no clocks are compared. A read out of a loan
 * has a pin of its own (cache_read_check), and may outlast the loan.
 *
 * All loans together hold at most 1/LOAN_SHARE of host memory, of which each address has its share (QUOTA_LOANED).
 * They count as the tenant's pinned bytes, too.
 *
 * A loan is `offered` if the reader did not ask for it (call/offer.h). What it reads does not count as used. */
#ifndef TERRACE_DAEMON_CALL_LOAN_H
#define TERRACE_DAEMON_CALL_LOAN_H

#include <stdbool.h>
#include <stdint.h>

#include "store/index.h"
#include "store/status.h"

struct cache;
struct cache_peer;
struct cache_read;
struct cache_wait;

enum {
	LOANS_MAX = 4096,              /* at a time */
	LOAN_KEYS_MAX = 1024,          /* names of one call */
	LOAN_SHARE = 8,
	LOAN_US_MAX = 30 * 1000 * 1000,
};

struct cache_loan_call {
	const struct cache_peer *peer; /* its tenant: whose blocks are asked for */
	const struct index_ident *name; /* [count], of that tenant */
	uint32_t count;                /* at most LOAN_KEYS_MAX */
	uint64_t hold_us;              /* at most LOAN_US_MAX */
	uint64_t now_us;
	bool offered;                  /* it ends before memory drops a block for which no copy is left */
};

struct cache_loan {
	uint64_t handle;               /* 0: nothing is lent */
	uint32_t blocks;
	uint64_t bytes;                /* of slots */
};

/* Lends what is stored of these names, in their order, until the bounds are met. lent[i]: whether that of name[i] is.
 * OK, also for none; EXHAUSTED: no loan can be made now, and *why says which bound is met. Without the lock. */
enum status cache_lend(struct cache *c, const struct cache_loan_call *q, struct cache_loan *out, bool *lent,
		       const char **why);
/* Which block of a loan is read. */
struct cache_loan_read {
	uint32_t tenant;
	uint64_t loan;
	uint32_t index;                /* of the name in the call that was lent to */
	uint64_t now_us;
};
/* Begins to read the block of that name of that loan; like cache_read_begin. NOT_FOUND: that tenant has no such
 * loan, or it has ended. INVALID: that name was not lent. MISS: the block was lost meanwhile. Without the lock. */
enum status cache_loan_read_begin(struct cache *c, const struct cache_loan_read *q, struct cache_read *out,
				  struct cache_wait *w, const char **why);
/* Ends a loan. NOT_FOUND. Without the lock. */
enum status cache_loan_return(struct cache *c, uint32_t tenant, uint64_t loan);
/* Ends loans whose time is up. With the lock. */
void loans_tick(struct cache *c);
/* Ends all loans. With the lock. */
void loans_end(struct cache *c);
/* Frees the table. No loan may be left. */
void loans_destroy(struct cache *c);

#endif
