/* A loan is what a lease is to an engine, for another member of the cluster, which has no session here: it pins all
 * copies of its blocks, so that a block that is only on a disk stays there until it is read. A loan's holder is the
 * address that asked, in the tenant whose blocks they are.
 *
 * Loans are few and end soon, so a tick walks all of them.
 */
#include "daemon/call/loan.h"

#include "daemon/block/block.h"
#include "daemon/block/handle.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/peer.h"
#include "daemon/block/quota.h"
#include "daemon/block/views.h"
#include "daemon/call/stream.h"
#include "daemon/session/budget.h"
#include "daemon/session/grants.h"
#include "store/index.h"
#include "store/status.h"

#include <stdlib.h>

struct loan {
	struct loan *next, *prev;
	struct quota_holder *holder;
	uint64_t handle, until_us, bytes; /* bytes: of slots, as charged */
	uint32_t tenant, count;
	bool offered;
	struct block *block[];         /* [count], by the number of the name; NULL: not lent */
};

struct loans {
	struct handles handles;
	struct loan *first;
};

/* The cache's loans, made if new. NULL: no memory. With the lock. */
static struct loans *loans_get(struct cache *c)
{
	struct loans *all = c->loans ? c->loans : calloc(1, sizeof(*all));

	if (!all || c->loans)
		return all;
	if (handles_init(&all->handles, LOANS_MAX)) {
		free(all);
		return NULL;
	}
	c->loans = all;
	return all;
}

static void loan_end(struct cache *c, struct loan *l)
{
	struct loans *all = c->loans;

	if (l->prev)
		l->prev->next = l->next;
	else
		all->first = l->next;
	if (l->next)
		l->next->prev = l->prev;
	handles_drop(&all->handles, l->handle);
	for (uint32_t i = 0; i < l->count; i++)
		if (l->block[i])
			block_unpin(l->block[i]);
	c->offered_bytes -= l->offered ? l->bytes : 0;
	quota_give(l->holder, QUOTA_LOANED, l->bytes);
	quota_give(l->holder, QUOTA_PINNED, l->bytes);
	quota_leave(l->holder);
	free(l);
}

/* Whether the block may be lent besides; *why: the bound that is met. */
static bool loan_has_room(struct cache *c, const struct loan *l, const struct block *b, const char **why)
{
	struct quota_wish w[1 + PINS_WISHES];
	uint32_t n = pins_wish(c, b->pool->tenant, block_pin_bytes(b), NULL, 0, w);

	w[n++] =
		(struct quota_wish){ .thing = QUOTA_LOANED, .n = b->pool->geometry.need_bytes, .free = QUOTA_BY_BOUND };
	return !quota_ask_all(l->holder, w, n, why);
}

static void loan_add(struct cache *c, struct loan *l, uint32_t i, struct block *b)
{
	const uint64_t bytes = b->pool->geometry.need_bytes;

	block_pin(b);
	quota_add(l->holder, QUOTA_LOANED, bytes);
	quota_add(l->holder, QUOTA_PINNED, bytes);
	l->block[i] = b;
	l->bytes += bytes;
	c->offered_bytes += l->offered ? bytes : 0;
}

/* Enters the loan under a new handle. False: there are too many. */
static bool loan_enter(struct cache *c, struct loan *l)
{
	struct loans *all = c->loans;

	l->handle = handles_give(&all->handles, &c->grants->random, l);
	if (!l->handle)
		return false;
	l->next = all->first;
	if (l->next)
		l->next->prev = l;
	all->first = l;
	return true;
}

/* Ends the oldest of the loans that are offered: it has the coldest blocks. */
static bool offer_withdraw(struct cache *c)
{
	struct loan *oldest = NULL;

	for (struct loan *l = c->loans->first; l; l = l->next)
		oldest = l->offered ? l : oldest;
	if (!oldest)
		return false;
	cache_count(c, COUNTER_OFFERS_WITHDRAWN, 1);
	loan_end(c, oldest);
	return true;
}

/* Pins what is stored of the names, and ends a loan that has nothing. In a read section, with the lock. */
static enum status lend(struct cache *c, const struct cache_loan_call *q, struct loan *l, struct cache_loan *out,
			bool *lent, const char **why)
{
	enum status s = STATUS_OK;

	for (uint32_t i = 0; i < q->count && !s; i++) {
		struct index_record *found = index_find(c->index, &q->name[i]);
		struct block *b = found ? block_of(found) : NULL;

		if (!b || !block_live(b))
			continue;
		s = loan_has_room(c, l, b, why) ? STATUS_OK : STATUS_EXHAUSTED;
		if (s)
			break;
		loan_add(c, l, i, b);
		lent[i] = true;
		out->blocks++;
	}
	out->handle = l->handle;
	out->bytes = l->bytes;
	if (out->blocks)
		return STATUS_OK;
	out->handle = 0;
	loan_end(c, l);
	return s;
}

enum status cache_lend(struct cache *c, const struct cache_loan_call *q, struct cache_loan *out, bool *lent,
		       const char **why)
{
	struct loan *l = calloc(1, sizeof(*l) + q->count * sizeof(l->block[0]));
	enum status s = STATUS_EXHAUSTED;
	bool entered = false;

	*out = (struct cache_loan){ .handle = 0 };
	for (uint32_t i = 0; i < q->count; i++)
		lent[i] = false;
	*why = "no memory";
	if (l)
		l->holder = quota_join(c->quota, q->peer);
	if (l && l->holder) {
		l->tenant = q->peer->tenant;
		l->count = q->count;
		l->offered = q->offered;
		index_read_lock();
		cache_lock(c);
		l->until_us = cache_time(c, q->now_us) + q->hold_us;
		*why = "too many loans to other nodes are under way: each ends within 30 s";
		entered = loans_get(c) && loan_enter(c, l);
		c->offer_withdraw = offer_withdraw;
		if (entered)
			s = lend(c, q, l, out, lent, why);
		cache_unlock(c);
		index_read_unlock();
	}
	if (entered)
		return s;
	if (l)
		quota_leave(l->holder);
	free(l);
	return s;
}

/* That tenant's loan; NULL: there is none. */
static struct loan *loan_find(struct cache *c, uint32_t tenant, uint64_t handle)
{
	struct loan *l = c->loans ? handles_find(&c->loans->handles, handle) : NULL;

	return l && l->tenant == tenant ? l : NULL;
}

enum status cache_loan_read_begin(struct cache *c, const struct cache_loan_read *q, struct cache_read *out,
				  struct cache_wait *w, const char **why)
{
	enum status s = STATUS_NOT_FOUND;
	struct loan *l;

	index_read_lock();
	cache_lock(c);
	cache_time(c, q->now_us);
	l = loan_find(c, q->tenant, q->loan);
	*why = "the loan has ended: its time was up, or it was returned";
	if (l && (q->index >= l->count || !l->block[q->index])) {
		*why = "index: that name was not lent";
		s = STATUS_INVALID;
	} else if (l) {
		s = read_block(c, l->block[q->index], l->holder, out, w, why);
		if (!s && block_is(l->block[q->index], BLOCK_FOR_PEER))
			l->block[q->index]->node.uses++; /* another member has it back: arrival.c */
		else if (!s && !l->offered)
			block_use(c, l->block[q->index]);
	}
	cache_unlock(c);
	index_read_unlock();
	return s;
}

enum status cache_loan_return(struct cache *c, uint32_t tenant, uint64_t loan)
{
	struct loan *l;

	cache_lock(c);
	l = loan_find(c, tenant, loan);
	if (l)
		loan_end(c, l);
	cache_unlock(c);
	return l ? STATUS_OK : STATUS_NOT_FOUND;
}

void loans_tick(struct cache *c)
{
	for (struct loan *l = c->loans ? c->loans->first : NULL, *next; l; l = next) {
		next = l->next;
		if (l->until_us <= c->now_us)
			loan_end(c, l);
	}
}

void loans_end(struct cache *c)
{
	while (c->loans && c->loans->first)
		loan_end(c, c->loans->first);
}

void loans_destroy(struct cache *c)
{
	if (c->loans)
		handles_fini(&c->loans->handles);
	free(c->loans);
	c->loans = NULL;
}
