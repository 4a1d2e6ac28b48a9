/* Locate: which members have blocks, as the cluster's directory says. The first step asks the owners of the keys'
 * segments; each step takes what the hints have learnt by then, as they keep it for a second only. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/call/present.h"
#include "daemon/directory/hints.h"
#include "daemon/directory/segment.h"
#include "daemon/exports/exports.h"
#include "daemon/members/members.h"
#include "daemon/names/names.h"
#include "daemon/peers/peers.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/tenants.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/clock.h"
#include "store/status.h"
#include "terrace.pb-c.h"

#include <string.h>

enum { PAIRS_MAX = 16384, HOLDERS_MAX = 16384, LAYOUTS_MAX = 64, WAIT_MAX_MS = 60000, LOOK_US = 10000 };

/* A block that is looked for: a key in a layout. */
struct pair {
	struct peers_name name[NAMES_SECRETS];
	uint8_t names, answered;       /* how many; a bit each */
	bool here;
	uint8_t holders;
	struct directory_run at[DIRECTORY_HOLDERS_MAX];
};

struct locate {
	struct cache_keys keys;
	uint32_t tenant;               /* its number */
	uint32_t layouts;
	uint64_t layout[LAYOUTS_MAX];
	struct pair *pair;             /* [keys * layouts] */
	uint64_t until_us;             /* of the daemon's clock */
};

/* The tenant whose blocks are meant. DENIED: another one than the caller's. */
static enum status tenant_read(struct rpc_call *c, const Terrace__V1__LocateRequest *q, uint32_t *out)
{
	const struct tenant *t = tenant_of_name(rpc_cache(c), q->tenant);

	if (!*q->tenant && c->tenant && !rpc_is_admin(c))
		t = tenant_of_number(rpc_cache(c), c->tenant);
	if (!t || (c->tenant && c->tenant != t->number && !rpc_is_admin(c)))
		return rpc_fail(c, STATUS_DENIED, "tenant: there is none of that name, or it is not the caller's");
	*out = t->number;
	return STATUS_OK;
}

/* The key that begins the segment of key number i; NULL: it is not known. */
static const uint8_t *segment_key(const struct locate *l, const Terrace__V1__LocateRequest *q, uint32_t i)
{
	const uint64_t begin = segment_first(segment_of((uint64_t)l->keys.first + i));

	if (begin >= l->keys.first)
		return l->keys.bytes + (begin - l->keys.first) * l->keys.key_bytes;
	return q->segment.len == l->keys.key_bytes ? q->segment.data : NULL;
}

static void names_make(struct rpc_call *c, const Terrace__V1__LocateRequest *q, struct locate *l)
{
	const struct names *n = rpc_names(c);
	const uint32_t tenant = n ? names_tenant(n, l->tenant) : NAMES_NO_TENANT;
	uint64_t segment[NAMES_SECRETS];

	for (uint32_t i = 0; tenant != NAMES_NO_TENANT && i < l->keys.count; i++) {
		const uint8_t *begin = segment_key(l, q, i), *key = l->keys.bytes + (size_t)i * l->keys.key_bytes;
		const uint32_t segments = begin ? exports_segment(n, l->tenant, begin, l->keys.key_bytes, segment) : 0;

		for (uint32_t k = 0; k < l->layouts; k++) {
			struct pair *p = &l->pair[(size_t)i * l->layouts + k];
			struct public_name name[NAMES_SECRETS];
			const uint32_t names = names_of(n, tenant, l->layout[k], key, l->keys.key_bytes, name);

			for (; p->names < names && p->names < segments; p->names++)
				p->name[p->names] = (struct peers_name){ name[p->names], segment[p->names] };
		}
	}
}

/* Which of the blocks are here. */
static enum status look_here(struct rpc_call *c, struct locate *l)
{
	uint8_t *present = rpc_take(c, l->keys.count);

	if (!present)
		return rpc_too_big(c);
	for (uint32_t k = 0; k < l->layouts; k++) {
		cache_present(rpc_cache(c), l->tenant, l->layout[k], &l->keys, present);
		for (uint32_t i = 0; i < l->keys.count; i++)
			l->pair[(size_t)i * l->layouts + k].here = present[i];
	}
	return STATUS_OK;
}

static enum status begin_asking(struct rpc_call *c, struct locate *l)
{
	const uint32_t pairs = l->keys.count * l->layouts;
	struct peers_name *names = rpc_take(c, (size_t)pairs * NAMES_SECRETS * sizeof *names);
	uint32_t n = 0;
	enum status s;

	if (!names)
		return rpc_too_big(c);
	for (uint32_t i = 0; i < pairs; i++)
		for (uint32_t k = 0; k < l->pair[i].names; k++)
			names[n++] = l->pair[i].name[k];
	if (!n)
		return STATUS_OK;
	s = peers_ask_copy(c->daemon->peers, l->tenant, names, n, clock_us() + (l->until_us - c->now_us));
	return s == STATUS_OK ? s : rpc_fail(c, s, "too many questions to other members are under way: try again");
}

/* The answer must reach the caller before its deadline. */
static uint64_t until(const struct rpc_call *c, uint64_t wait_us)
{
	const uint64_t left_us = c->deadline_us > c->now_us ? c->deadline_us - c->now_us : 0;

	return c->now_us + (wait_us < left_us / 10 * 9 ? wait_us : left_us / 10 * 9);
}

static enum status begin(struct rpc_call *c, const Terrace__V1__LocateRequest *q, struct locate **out)
{
	struct locate *l = rpc_take_zero(c, 1, sizeof *l);
	const uint32_t wait_ms = q->wait_ms < WAIT_MAX_MS ? q->wait_ms : WAIT_MAX_MS;
	enum status s = l ? rpc_keys(c, q->keys, false, &l->keys) : rpc_too_big(c);

	if (s == STATUS_OK)
		s = tenant_read(c, q, &l->tenant);
	if (s != STATUS_OK)
		return s;
	if (q->segment.len && q->segment.len != l->keys.key_bytes)
		return rpc_fail(c, STATUS_INVALID, "segment: %zu bytes, the keys have %u", q->segment.len,
				l->keys.key_bytes);
	l->layout[0] = q->layout;
	l->layouts = q->layout ? 1 : cache_tenant_layouts(rpc_cache(c), l->tenant, l->layout, LAYOUTS_MAX);
	if (!l->layouts)
		return rpc_fail(c, STATUS_NOT_FOUND, "layout: this daemon knows no layout yet: name one, by its id as "
						     "'terracectl layouts' prints it where the blocks were stored");
	if ((uint64_t)l->keys.count * l->layouts > PAIRS_MAX)
		return rpc_fail(c, STATUS_INVALID, "keys: %u in %u layouts, at most %d together: ask for fewer keys, "
						   "or for one layout", l->keys.count, l->layouts, PAIRS_MAX);
	l->pair = rpc_take_zero(c, (size_t)l->keys.count * l->layouts, sizeof *l->pair);
	if (!l->pair)
		return rpc_too_big(c);
	l->until_us = until(c, wait_ms * 1000ull);
	names_make(c, q, l);
	s = look_here(c, l);
	if (s == STATUS_OK && wait_ms && c->daemon->peers)
		s = begin_asking(c, l);
	*out = l;
	return s;
}

static void add_holders(struct pair *p, const struct hint_holders *h)
{
	for (uint32_t i = 0; i < h->count; i++) {
		uint32_t k = 0;

		while (k < p->holders && !directory_run_equal(&p->at[k], &h->at[i]))
			k++;
		if (k == p->holders && k < DIRECTORY_HOLDERS_MAX)
			p->at[p->holders++] = h->at[i];
	}
}

/* Takes what the hints have. Returns how many names have no answer yet. */
static uint32_t take_answers(struct rpc_call *c, struct locate *l)
{
	struct hints *hints = peers_hints(c->daemon->peers);
	uint32_t left = 0;

	for (uint32_t i = 0; i < l->keys.count * l->layouts; i++) {
		struct pair *p = &l->pair[i];

		for (uint32_t k = 0; k < p->names; k++) {
			struct hint_holders h;
			enum hint is;

			if (p->answered >> k & 1)
				continue;
			is = hints_find(hints, l->tenant, &p->name[k].name, clock_us(), &h);
			if (is == HINT_HELD)
				add_holders(p, &h);
			if (is == HINT_HELD || is == HINT_NONE)
				p->answered |= (uint8_t)(1 << k);
			else
				left++;
		}
	}
	return left;
}

/* ---- the reply ---- */

struct filler {
	struct rpc_call *c;
	const struct locate *l;
	Terrace__V1__LocateReply *reply;
	Terrace__V1__LocateHolder *rows;
	const struct members_list *members;
};

static bool add_row(struct filler *f, uint32_t pair, const char *member, uint64_t epoch, bool self)
{
	Terrace__V1__LocateReply *r = f->reply;
	Terrace__V1__LocateHolder *row = &f->rows[r->n_holders];
	const size_t n = strlen(member) + 1;
	char *name;

	if (r->n_holders == HOLDERS_MAX) {
		r->more = true;
		return true;
	}
	name = rpc_take(f->c, n);
	if (!name)
		return false;
	terrace__v1__locate_holder__init(row);
	row->key = pair / f->l->layouts;
	row->layout = f->l->layout[pair % f->l->layouts];
	row->member = memcpy(name, member, n);
	row->epoch = epoch;
	row->self = self;
	r->holders[r->n_holders++] = row;
	return true;
}

static bool is_held(const struct pair *p, const struct member *m)
{
	for (uint32_t k = 0; k < p->holders; k++)
		if (p->at[k].epoch == m->epoch && !memcmp(p->at[k].node, m->node, sizeof m->node))
			return true;
	return false;
}

/* Rows of one block, by name: the members' list is by name. */
static bool fill_pair(struct filler *f, uint32_t i)
{
	const struct pair *p = &f->l->pair[i];
	const struct config *config = f->c->daemon->config;
	bool told = !p->here;

	for (uint32_t m = 0; (p->here || p->holders) && m < f->members->count; m++) {
		const struct member *member = &f->members->at[m];

		told |= member->self;
		if ((member->self ? p->here : is_held(p, member)) &&
		    !add_row(f, i, member->name, member->epoch, member->self))
			return false;
	}
	/* This daemon is not registered, or in no cluster. */
	return told || add_row(f, i, config->node_name, cache_epoch(rpc_cache(f->c)), true);
}

static enum status fill(struct rpc_call *c, const struct locate *l, Terrace__V1__LocateReply **out)
{
	static const struct members_list none = { .count = 0 };
	const struct members_list *list = c->daemon->members ? members_take(c->daemon->members) : NULL;
	struct filler f = { .c = c, .l = l, .reply = rpc_take(c, sizeof *f.reply),
			    .rows = rpc_take(c, HOLDERS_MAX * sizeof *f.rows), .members = list ? list : &none };
	bool fits = f.reply && f.rows;

	if (fits) {
		terrace__v1__locate_reply__init(f.reply);
		f.reply->holders = rpc_take(c, HOLDERS_MAX * sizeof *f.reply->holders);
		fits = f.reply->holders;
	}
	for (uint32_t i = 0; fits && i < l->keys.count * l->layouts; i++) {
		const struct pair *p = &l->pair[i];

		f.reply->unknown += !p->here && !p->holders && p->answered != (1u << p->names) - 1;
		fits = fill_pair(&f, i);
	}
	if (list)
		members_drop(list);
	*out = f.reply;
	return fits ? STATUS_OK : rpc_too_big(c);
}

enum status rpc_locate(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__LocateRequest *q = (const Terrace__V1__LocateRequest *)request;
	Terrace__V1__LocateReply *r;
	uint32_t left = 0;
	enum status s;

	if (!c->step.locate) {
		s = begin(c, q, &c->step.locate);
		if (s != STATUS_OK)
			return s;
		rpc_arena_keep(&c->arena);
	}
	struct locate *l = c->step.locate;

	if (c->daemon->peers)
		left = take_answers(c, l);
	if (left && c->now_us < l->until_us) {
		c->resume_us = c->now_us + LOOK_US;
		return STATUS_BUSY;
	}
	s = fill(c, l, &r);
	if (s != STATUS_OK)
		return s;
	*reply = &r->base;
	return STATUS_OK;
}
