/* See peers/spill.h. The peers' thread begins offers; their ends come on the links' thread. The lock is a leaf, and is
 * also taken under the cache's. */
#include "daemon/peers/spill.h"

#include "daemon/block/by_id.h"
#include "daemon/block/layout_bytes.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/call/offer.h"
#include "daemon/directory/hints.h"
#include "daemon/directory/owners.h"
#include "daemon/members/members.h"
#include "daemon/names/names.h"
#include "daemon/peers/links.h"
#include "daemon/peers/peers.h"
#include "daemon/peers/state.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/secrets/secrets.h"
#include "store/clock.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"
#include "terrace.pb-c.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define OFFER_US (10ull * 1000 * 1000)
#define LOOK_US 250000ull
/* So long a drain goes on where no member may be asked. */
#define VAIN_US (3ull * 1000 * 1000)
enum { NOTES = 1 << 15, REFUSALS = 64, OFFER_PROTOCOL = 2 };

/* A block that a member took. */
struct note {
	uint64_t id;                   /* 0: none */
	struct directory_run at;
};

/* A member that is not asked for a while. */
struct refusal {
	uint8_t node[DIRECTORY_NODE_BYTES];
	uint64_t until_us, wait_us;    /* 0: a free place */
	bool busy;                     /* for a moment: it is waited for, so that a chain stays together */
};

struct spills {
	pthread_mutex_t lock;
	uint32_t under_way;
	uint32_t notes;
	struct hot_list hot;           /* what a drain hands on: the peers' thread's own, */
	uint64_t handed_us;            /* when an offer of it was last under way; 0: there is no such list */
	/* blocks that had been taken when the drain began, and when this walk of the list did */
	uint64_t handed_from, handed_before;
	struct refusal refusal[REFUSALS];
	struct note note[NOTES];       /* a newer one replaces an older one of the same hash */
	struct {
		uint64_t offered, taken, bytes, ends[SPILL_ENDS];
	} figures;
};

struct spills *spills_create(void)
{
	struct spills *s = calloc(1, sizeof *s);

	if (s)
		pthread_mutex_init(&s->lock, NULL);
	return s;
}

void spills_destroy(struct spills *s)
{
	if (s) {
		pthread_mutex_destroy(&s->lock);
		free(s->hot.of);
	}
	free(s);
}

/* ---- what was taken ---- */

void spills_note_taken(struct spills *s, uint64_t id, const struct directory_run *at)
{
	struct note *n = &s->note[id % NOTES];

	pthread_mutex_lock(&s->lock);
	s->notes += !n->id;
	*n = (struct note){ id, *at };
	pthread_mutex_unlock(&s->lock);
}

bool spills_find(struct spills *s, const struct index_ident *name, struct directory_run *at)
{
	const uint64_t id = block_id(name);
	struct note n = { .id = 0 };

	pthread_mutex_lock(&s->lock);
	if (s->notes)
		n = s->note[id % NOTES];
	pthread_mutex_unlock(&s->lock);
	if (!n.id || n.id != id)
		return false;
	if (at)
		*at = n.at;
	return true;
}

void spills_forget(struct spills *s, const struct index_ident *name, const struct directory_run *at)
{
	const uint64_t id = block_id(name);
	struct note *n = &s->note[id % NOTES];

	pthread_mutex_lock(&s->lock);
	if (n->id == id && directory_run_equal(&n->at, at)) {
		n->id = 0;
		s->notes--;
	}
	pthread_mutex_unlock(&s->lock);
}

/* ---- members ---- */

/* The node's place; else with `make` the one that is over first. NULL: it has none. With the lock. */
static struct refusal *refusal_of(struct spills *s, const uint8_t *node, bool make)
{
	struct refusal *first = &s->refusal[0];

	for (uint32_t i = 0; i < REFUSALS; i++) {
		struct refusal *r = &s->refusal[i];

		if (r->wait_us && !memcmp(r->node, node, sizeof r->node))
			return r;
		if (r->until_us < first->until_us)
			first = r;
	}
	if (!make)
		return NULL;
	*first = (struct refusal){ .wait_us = SPILL_AGAIN_US / 2 };
	memcpy(first->node, node, sizeof first->node);
	return first;
}

void spills_note_end(struct spills *s, const uint8_t *node, enum spill_end end, uint64_t now_us)
{
	struct refusal *r;

	pthread_mutex_lock(&s->lock);
	s->figures.ends[end]++;
	r = refusal_of(s, node, end != SPILL_TAKEN);
	if (r)
		r->busy = end == SPILL_BUSY;
	if (end == SPILL_TAKEN && r) {
		*r = (struct refusal){ .wait_us = 0 };
	} else if (end == SPILL_BUSY) {
		r->until_us = now_us + SPILL_SOON_US;
	} else if (end != SPILL_TAKEN) {
		r->wait_us = 2 * r->wait_us < SPILL_AGAIN_US_MAX ? 2 * r->wait_us : SPILL_AGAIN_US_MAX;
		r->until_us = now_us + r->wait_us;
	}
	pthread_mutex_unlock(&s->lock);
}

/* With the lock. */
static bool may_ask(struct spills *s, const struct member *m, uint32_t tenant, uint64_t now_us)
{
	const struct refusal *r = refusal_of(s, m->node, false);

	if (r && r->busy)
		r = NULL;
	return !m->self && !m->absent && !m->draining && m->peer_protocol >= OFFER_PROTOCOL &&
	       m->same_secret[tenant / 64] >> tenant % 64 & 1 && (!r || r->until_us <= now_us);
}

/* With the lock. */
static bool is_busy(struct spills *s, const struct member *m, uint64_t now_us)
{
	const struct refusal *r = refusal_of(s, m->node, false);

	return r && r->busy && r->until_us > now_us;
}

const struct member *spills_choose(struct spills *s, const struct member *of, uint32_t count, uint32_t tenant,
				   uint64_t segment, uint64_t now_us)
{
	const struct member *best = NULL;
	uint64_t most = 0;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < count; i++) {
		const uint64_t weight = owners_weight(of[i].node, segment);

		if ((best && weight <= most) || !may_ask(s, &of[i], tenant, now_us))
			continue;
		best = &of[i];
		most = weight;
	}
	if (best && is_busy(s, best, now_us))
		best = NULL;
	pthread_mutex_unlock(&s->lock);
	return best;
}

/* ---- an offer ---- */

struct sent {
	struct peers *peers;
	struct directory_run to;
	struct peer_call *call;
	bool answered;
	Terrace__V1__OfferResult result;
	struct offer_answer answer;
	struct offer offer;
};

static void offer_message(void *arg, const struct grpc_byte_buffer *bytes)
{
	struct sent *x = arg;
	Terrace__V1__OfferReply *r =
		x->answered ? NULL :
			      (Terrace__V1__OfferReply *)links_unpack(&terrace__v1__offer_reply__descriptor, bytes);

	if (!r)
		return;
	x->answered = true;
	x->result = r->result;
	x->answer.taken_bytes = (uint32_t)(r->taken.len < sizeof x->answer.taken ? r->taken.len :
										    sizeof x->answer.taken);
	memcpy(x->answer.taken, r->taken.data, x->answer.taken_bytes);
	protobuf_c_message_free_unpacked(&r->base, NULL);
}

/* Which figure an end without anything taken counts in. */
static enum spill_end end_of(const struct sent *x, enum status status)
{
	if (status || !x->answered)
		return SPILL_FAILED;
	return x->result == TERRACE__V1__OFFER_RESULT__OFFER_NO_ROOM ? SPILL_NO_ROOM : SPILL_BUSY;
}

static void offer_ended(void *arg, enum status status, const char *why)
{
	struct sent *x = arg;
	struct peers *p = x->peers;
	struct spills *s = p->spills;
	uint32_t taken;

	(void)why;
	x->answer.had_room = x->answered && (x->result == TERRACE__V1__OFFER_RESULT__OFFER_TAKEN ||
					     x->result == TERRACE__V1__OFFER_RESULT__OFFER_UNWANTED);
	taken = cache_offer_end(p->daemon->cache, &x->offer, &x->answer);
	for (uint32_t i = 0; i < x->offer.count && taken; i++)
		if (i / 8 < x->answer.taken_bytes && x->answer.taken[i / 8] >> i % 8 & 1)
			spills_note_taken(s, x->offer.block[i].id, &x->to);
	spills_note_end(s, x->to.node, taken ? SPILL_TAKEN : end_of(x, status), clock_us());
	pthread_mutex_lock(&s->lock);
	s->under_way--;
	s->figures.taken += taken;
	s->figures.bytes += x->offer.count ? x->offer.bytes / x->offer.count * taken : 0;
	pthread_mutex_unlock(&s->lock);
	free(x);
	pthread_mutex_lock(&p->lock);
	p->offered = true;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

/* An offer while it is packed. */
struct packed {
	Terrace__V1__OfferRequest request;
	Terrace__V1__OfferKeys keys[OFFER_BLOCKS_MAX], *list[OFFER_BLOCKS_MAX];
	uint8_t layout[OFFER_BLOCKS_MAX][LAYOUT_BYTES_MAX];
	uint8_t bytes[OFFER_BLOCKS_MAX * SLOT_KEY_MAX];
	uint64_t segment[OFFER_BLOCKS_MAX];
};

/* Keys of one layout and size, in a row, are one entry. A block that left before it was lent keeps its number: the loan
 * says that it is not there. */
static void pack_keys(const struct offer *o, struct packed *to)
{
	const struct layout_pool *last = NULL;
	uint8_t *bytes = to->bytes;
	size_t n = 0;

	for (uint32_t i = 0; i < o->count; i++) {
		const struct offer_block *b = &o->block[i];
		Terrace__V1__OfferKeys *k = &to->keys[n - (n > 0)];

		if (!n || b->pool != last || k->key_bytes != b->name.key_bytes) {
			k = &to->keys[n];
			terrace__v1__offer_keys__init(k);
			k->layout.len = layout_pack(&b->pool->layout, to->layout[n]);
			k->layout.data = to->layout[n];
			k->key_bytes = b->name.key_bytes;
			k->keys.data = bytes;
			k->segments = &to->segment[i];
			to->list[n++] = k;
		}
		last = b->pool;
		memcpy(bytes, b->key, b->name.key_bytes);
		bytes += b->name.key_bytes;
		k->keys.len += b->name.key_bytes;
		to->segment[i] = b->segment;
		k->n_segments++;
	}
	to->request.n_offers = n;
	to->request.offers = to->list;
}

static enum status send_to(struct sent *x, const struct member *m)
{
	static const struct peer_call_ops ops = { offer_message, offer_ended };
	struct packed *to = malloc(sizeof *to);
	struct peers *p = x->peers;
	enum status s;

	if (!to)
		return STATUS_EXHAUSTED;
	terrace__v1__offer_request__init(&to->request);
	pack_keys(&x->offer, to);
	to->request.tenant = (char *)peers_tenant_name(p, x->offer.tenant);
	to->request.node = (ProtobufCBinaryData){ sizeof p->self.node, p->self.node };
	to->request.epoch = p->self.epoch;
	to->request.loan = x->offer.loan;
	to->request.hold_ms = OFFER_US / 1000;
	x->to.epoch = m->epoch;
	memcpy(x->to.node, m->node, sizeof x->to.node);
	s = links_call(p->links, m->name,
		       &(struct peer_ask){ "/terrace.v1.Peer/Offer", &to->request.base, clock_us() + OFFER_US, &ops,
					   x },
		       &x->call);
	free(to);
	return s;
}

/* Sends an offer that has been gathered. False: no member may be asked now. */
static bool offer_send(struct sent *x, const struct members_list *list, uint64_t now_us)
{
	struct peers *p = x->peers;
	struct spills *s = p->spills;
	const uint32_t tenant = names_tenant(secrets_names(p->daemon->secrets), x->offer.tenant);
	const uint64_t segment = x->offer.segment ? x->offer.segment : x->offer.block[0].id;
	const struct member *m =
		tenant == NAMES_NO_TENANT ? NULL : spills_choose(s, list->at, list->count, tenant, segment, now_us);
	const struct offer_answer none = { .had_room = false };

	if (!m) {
		cache_offer_end(p->daemon->cache, &x->offer, &none);
		free(x);
		return false;
	}
	pthread_mutex_lock(&s->lock);
	s->under_way++;
	s->figures.offered += x->offer.count;
	pthread_mutex_unlock(&s->lock);
	const enum status status = send_to(x, m);

	if (status)
		offer_ended(x, status, "");
	return true;
}

static uint32_t under_way(struct spills *s)
{
	pthread_mutex_lock(&s->lock);
	const uint32_t n = s->under_way;

	pthread_mutex_unlock(&s->lock);
	return n;
}

/* ---- a drain ---- */

static void hand_end(struct spills *s)
{
	free(s->hot.of);
	s->hot = (struct hot_list){ .of = NULL };
	s->handed_us = 0;
}

static uint64_t taken_of(struct spills *s)
{
	pthread_mutex_lock(&s->lock);
	const uint64_t n = s->figures.taken;

	pthread_mutex_unlock(&s->lock);
	return n;
}

/* Whether there is more to offer. Members take what they have room for, so a walk of the list in which some blocks were
 * taken is followed by another one, for those that were not. */
static bool hand_more(struct spills *s)
{
	if (under_way(s) || s->hot.at < s->hot.count)
		return true;
	if (taken_of(s) == s->handed_before)
		return false;
	s->handed_before = taken_of(s);
	s->hot.at = 0;
	return true;
}

/* Begins what a drain hands on, or ends it: when no member takes more. False: it is over. */
static bool hands_on(struct peers *p, uint64_t now_us)
{
	struct spills *s = p->spills;
	struct cache *c = p->daemon->cache;
	bool goes_on = cache_hands_on(c);

	if (!goes_on)
		return false;
	if (!s->handed_us) {
		s->handed_before = taken_of(s);
		s->handed_us = now_us;
		goes_on = cache_hot_blocks(c, &s->hot);
		s->handed_from = s->handed_before;
	}
	if (under_way(s))
		s->handed_us = now_us;
	if (goes_on && hand_more(s) && now_us - s->handed_us < VAIN_US)
		return true;
	log_info("handed_on", LOG_NUM("blocks", taken_of(s) - s->handed_from), LOG_NUM("of", s->hot.count));
	hand_end(s);
	cache_handed_on(c);
	return false;
}

/* ---- the thread's step ---- */

/* The next offer, if one is to be made now; the caller sends it. */
static struct sent *offer_next(struct peers *p, bool drains)
{
	struct spills *s = p->spills;
	struct cache *c = p->daemon->cache;
	struct sent *x = under_way(s) < OFFERS_MAX ? calloc(1, sizeof *x) : NULL;

	if (!x)
		return NULL;
	x->peers = p;
	if (drains ? cache_offer_hot(c, &s->hot, OFFER_US, daemon_now_us(), &x->offer)
		   : cache_offer_begin(c, OFFER_US, daemon_now_us(), &x->offer))
		return x;
	free(x);
	return NULL;
}

uint64_t peers_spill(struct peers *p, uint64_t now_us)
{
	struct spills *s = p->spills;
	const bool drains = cache_draining(p->daemon->cache);
	const struct members_list *list;
	bool more = p->daemon->config->peer_spill;

	if (drains)
		more = more && hands_on(p, now_us);
	else if (s->handed_us)
		hand_end(s); /* the drain was undone */
	if (!more)
		return now_us + LOOK_US;
	list = members_take(p->members);
	while (more) {
		const uint32_t at = s->hot.at;
		struct sent *x = offer_next(p, drains);
		const bool any = x;

		more = any && offer_send(x, list, now_us);
		if (drains && more)
			s->handed_us = now_us;
		else if (drains && any)
			s->hot.at = at; /* no member may be asked now */
	}
	members_drop(list);
	return now_us + LOOK_US;
}

/* ---- figures ---- */

void spills_stats(struct spills *s, struct cache *c, cache_stat_fn *emit, void *arg)
{
	static const char *const ends[SPILL_ENDS] = { "result=taken", "result=no_room", "result=busy",
						      "result=failed" };

	pthread_mutex_lock(&s->lock);
	const __typeof__(s->figures) now = s->figures;

	pthread_mutex_unlock(&s->lock);
	emit(arg, "terrace_peer_spill_offered_blocks_total", "", (double)now.offered, true,
	     "blocks that were offered to other members before memory dropped them");
	emit(arg, "terrace_peer_spill_taken_blocks_total", "", (double)now.taken, true, "of these: taken by one");
	emit(arg, "terrace_peer_spill_taken_bytes_total", "", (double)now.bytes, true, "their bytes");
	emit(arg, "terrace_peer_held_bytes", "", (double)cache_offered_held(c), false,
	     "memory that other members' blocks have, and that goes first when it is needed");
	for (int i = 0; i < SPILL_ENDS; i++)
		emit(arg, "terrace_peer_spill_offers_total", ends[i], (double)now.ends[i], true,
		     "offers to other members, each of several blocks");
}
