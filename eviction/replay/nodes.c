/* Each node is a replay_node, with the times from which its peers know of its blocks, and a list of the blocks that
 * peers have spilled to it, in their order. */
#include "eviction/replay/nodes.h"

#include <stdlib.h>
#include <string.h>

#include "eviction/departures.h"
#include "eviction/hash.h"
#include "eviction/replay_node.h"

enum { COOL_US = 250 * 1000 }; /* as often as the daemon takes names back (daemon/peers/peers.c) */

/* ---- which node serves a request ---- */

static uint32_t draw(const struct nodes_spread *s, uint64_t number)
{
	uint64_t total = 0, at;
	uint32_t node = 0;

	for (uint32_t i = 0; i < s->nodes; i++)
		total += s->load[i];
	at = hash_mix(hash_mix(s->seed) ^ number) % total;
	while (at >= s->load[node])
		at -= s->load[node++];
	return node;
}

/* The session of a request that names none. end[block]: the number of the session whose last request ends with it. */
static uint32_t session_of(const struct trace *t, const struct trace_request *r, uint32_t *end, uint32_t *sessions)
{
	const uint32_t *blocks = t->blocks + r->first;
	const uint32_t count = r->about ? r->about : r->count;
	uint32_t at = count, session;

	while (at > 1 && !end[blocks[at - 1]])
		at--;
	if (r->about) /* a report goes on with nothing */
		return at > 1 ? end[blocks[at - 1]] : ++*sessions;
	session = at > 1 ? end[blocks[at - 1]] : ++*sessions;
	if (at > 1)
		end[blocks[at - 1]] = 0;
	if (count > 1)
		end[blocks[count - 1]] = session;
	return session;
}

static bool names_sessions(const struct trace *t)
{
	for (uint32_t i = 0; i < t->request_count; i++)
		if (t->requests[i].session)
			return true;
	return false;
}

static int by_value(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static enum status count_named(const struct trace *t, uint32_t *sessions)
{
	uint64_t *named = malloc(((uint64_t)t->request_count + 1) * sizeof(*named));

	if (!named)
		return STATUS_EXHAUSTED;
	for (uint32_t i = 0; i < t->request_count; i++)
		named[i] = t->requests[i].session;
	qsort(named, t->request_count, sizeof(*named), by_value);
	*sessions = 0;
	for (uint32_t i = 0; i < t->request_count; i++)
		*sessions += !i || named[i] != named[i - 1];
	free(named);
	return STATUS_OK;
}

enum status nodes_spread(const struct trace *t, const struct nodes_spread *s, uint8_t *node_of, uint32_t *sessions)
{
	const bool named = names_sessions(t);
	uint32_t *end = calloc((uint64_t)t->unique + 1, sizeof(*end));

	*sessions = 0;
	if (!end)
		return STATUS_EXHAUSTED;
	for (uint32_t i = 0; i < t->request_count; i++) {
		const struct trace_request *r = &t->requests[i];
		const uint64_t session = named ? r->session : session_of(t, r, end, sessions);

		node_of[i] = (uint8_t)draw(s, s->by_request ? i : session);
	}
	free(end);
	return named ? count_named(t, sessions) : STATUS_OK;
}

enum status nodes_unique(const struct trace *t, const uint8_t *node_of, uint64_t unique[NODES_MAX])
{
	uint16_t *seen = calloc((uint64_t)t->unique + 1, sizeof(*seen));

	_Static_assert(NODES_MAX <= 16, "a bit each");
	if (!seen)
		return STATUS_EXHAUSTED;
	memset(unique, 0, NODES_MAX * sizeof(unique[0]));
	for (uint32_t i = 0; i < t->request_count; i++) {
		const struct trace_request *r = &t->requests[i];

		for (uint64_t b = r->first; b < r->first + r->count; b++) {
			unique[node_of[i]] += !(seen[t->blocks[b]] >> node_of[i] & 1);
			seen[t->blocks[b]] |= (uint16_t)(1 << node_of[i]);
		}
	}
	free(seen);
	return STATUS_OK;
}

/* ---- the nodes ---- */

/* A block that a peer has spilled: its neighbours in the list, each as number + 1. */
struct spilled {
	uint32_t before, behind;
	uint64_t number;             /* counted over all nodes; 0: it is not here */
};

#define TAKEN_BACK UINT64_MAX

struct member {
	struct nodes *all;
	struct replay_node node;
	/* [unique] the time at which peers know of the block, + 1; 0: they do not; TAKEN_BACK: nor will they, unless a
	 * request hits it */
	uint64_t *told;
	struct departures departures;
	uint64_t cooled_us;
	struct spilled *spilled;     /* [unique]; NULL without spill */
	uint32_t oldest, newest;     /* of the spilled blocks, + 1; 0: there are none */
	uint64_t spilled_count;
};

struct nodes {
	const struct trace *trace;
	const struct nodes_options *options;
	struct member member[NODES_MAX];
	uint8_t *lent;               /* [longest request] the member that lends the block, + 1 */
	struct nodes_result result;
};

static bool is_spilled(const struct member *m, uint32_t block)
{
	return m->spilled && m->spilled[block].number;
}

static bool has(const struct member *m, uint32_t block)
{
	return replay_node_has(&m->node, block) || is_spilled(m, block);
}

static uint64_t free_room(const struct member *m)
{
	const uint64_t used = m->node.used + m->spilled_count;

	return m->node.capacity > used ? m->node.capacity - used : 0;
}

/* ---- blocks that peers have spilled ---- */

static void spilled_remove(struct member *m, uint32_t block)
{
	struct spilled *s = &m->spilled[block];

	if (!s->number)
		return;
	if (s->before)
		m->spilled[s->before - 1].behind = s->behind;
	else
		m->oldest = s->behind;
	if (s->behind)
		m->spilled[s->behind - 1].before = s->before;
	else
		m->newest = s->before;
	*s = (struct spilled){ .number = 0 };
	m->spilled_count--;
}

static void spilled_add(struct member *m, uint32_t block)
{
	m->spilled[block] = (struct spilled){ .before = m->newest, .number = ++m->all->result.spilled };
	if (m->newest)
		m->spilled[m->newest - 1].behind = block + 1;
	else
		m->oldest = block + 1;
	m->newest = block + 1;
	m->spilled_count++;
}

/* The member that takes a block which leaves `from`; NULL: none. */
static struct member *taker(struct nodes *all, const struct member *from)
{
	struct member *most = NULL, *first = NULL;
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < all->options->nodes; i++) {
		struct member *m = &all->member[i];

		if (m == from)
			continue;
		if (free_room(m) && (!most || free_room(m) > free_room(most)))
			most = m;
		if (m->oldest && m->spilled[m->oldest - 1].number < least) {
			least = m->spilled[m->oldest - 1].number;
			first = m;
		}
	}
	if (!most && first)
		spilled_remove(first, first->oldest - 1);
	return most ? most : first;
}

static void left(void *arg, uint32_t block)
{
	struct member *m = arg, *to;

	m->told[block] = 0;
	departures_note(&m->departures, 1);
	if (!m->spilled)
		return;
	for (uint32_t i = 0; i < m->all->options->nodes; i++)
		if (has(&m->all->member[i], block))
			return;
	to = taker(m->all, m);
	if (to)
		spilled_add(to, block);
}

/* ---- what peers have ---- */

/* Whether others know that the member has the block. Of a spilled one they are told when it comes. */
static bool is_told(const struct member *m, uint32_t block, uint64_t now_us)
{
	return is_spilled(m, block) || (m->told[block] && m->told[block] - 1 <= now_us);
}

/* The members to ask for what is missing behind the first n blocks of the request. Returns how many. */
static uint32_t holders(const struct nodes *all, uint32_t own, const struct trace_request *r, uint32_t n,
			uint32_t out[NODES_HOLDERS])
{
	const uint32_t nodes = all->options->nodes;
	const uint32_t *blocks = all->trace->blocks + r->first;
	uint32_t asked = 0, count = 0;

	for (uint32_t i = r->count; i-- > n;) {
		if ((i + 1) % all->options->told_every || has(&all->member[own], blocks[i]))
			continue;
		for (uint32_t k = 1; k < nodes && count < NODES_HOLDERS; k++) {
			const uint32_t m = (own + k) % nodes;

			if (asked >> m & 1 || !is_told(&all->member[m], blocks[i], r->time_us))
				continue;
			asked |= 1u << m;
			out[count++] = m;
		}
	}
	return count;
}

/* The member has sent a block to another one. */
static void sent(struct member *m, uint32_t block, uint32_t position, uint64_t now_us)
{
	if (is_spilled(m, block))
		spilled_remove(m, block);
	else if (m->all->options->sent_is_use)
		replay_node_use(&m->node, block, position, now_us);
}

/* Fetches what makes the prefix of n blocks longer. Returns how long it is then. */
static uint32_t fetch(struct nodes *all, uint32_t own, const struct trace_request *r, uint32_t n)
{
	const uint32_t *blocks = all->trace->blocks + r->first;
	uint32_t holder[NODES_HOLDERS];
	const uint32_t count = holders(all, own, r, n, holder);

	memset(all->lent, 0, r->count * sizeof(all->lent[0]));
	for (uint32_t h = 0; h < count; h++)
		for (uint32_t i = n; i < r->count; i++)
			if (!all->lent[i] && has(&all->member[holder[h]], blocks[i]))
				all->lent[i] = (uint8_t)(holder[h] + 1);
	for (; n < r->count; n++) {
		if (has(&all->member[own], blocks[n]))
			continue;
		if (!all->lent[n])
			break;
		sent(&all->member[all->lent[n] - 1], blocks[n], n, r->time_us);
		all->result.fetched++;
	}
	return n;
}

/* ---- requests ---- */

static uint32_t prefix(const struct member *m, const uint32_t *blocks, uint32_t count)
{
	uint32_t n = 0;

	while (n < count && has(m, blocks[n]))
		n++;
	return n;
}

/* Peers are told of what the request has hit at once, and of what it has stored later. */
static void tell(struct member *m, const struct trace_request *r, uint32_t hits)
{
	const uint32_t *blocks = m->all->trace->blocks + r->first;
	const uint64_t used = r->time_us + 1, stored = used + m->all->options->told_age_us;

	for (uint32_t i = 0; i < r->count; i++) {
		uint64_t *told = &m->told[blocks[i]];

		if (!replay_node_has(&m->node, blocks[i]))
			continue;
		if (i < hits && (!*told || *told > used))
			*told = used;
		else if (!*told)
			*told = stored;
	}
}

static bool take_back(const struct policy_node *n, void *arg)
{
	((struct member *)arg)->told[n->id - 1] = TAKEN_BACK;
	return false;
}

/* Takes back what is about to leave. */
static void cool(struct member *m, uint64_t now_us)
{
	uint32_t soon;

	if (now_us < m->cooled_us + COOL_US)
		return;
	m->cooled_us = now_us;
	soon = departures_soon(&m->departures, m->node.used, now_us);
	if (soon)
		policy_look(m->node.ops, m->node.policy, take_back, m, soon);
}

/* Serves a request. Returns how many blocks of its prefix hit. */
static uint32_t serve(struct nodes *all, uint32_t own, uint32_t number)
{
	const struct trace_request *r = &all->trace->requests[number];
	const uint32_t *blocks = all->trace->blocks + r->first;
	struct member *m = &all->member[own];
	uint32_t hits = prefix(m, blocks, r->count);

	if (all->options->mode != NODES_LONE) {
		for (uint32_t i = 0; i < all->options->nodes; i++)
			cool(&all->member[i], r->time_us);
		hits = hits < r->count ? fetch(all, own, r, hits) : hits;
	}
	for (uint32_t i = 0; m->spilled && i < r->count; i++)
		spilled_remove(m, blocks[i]); /* it is a block of this node's own from now on */
	replay_node_serve(&m->node, number);
	tell(m, r, hits);
	while (m->oldest && m->node.used + m->spilled_count > m->node.capacity)
		spilled_remove(m, m->oldest - 1);
	return hits;
}

static bool member_open(struct nodes *all, uint32_t i, const struct policy_ops *ops)
{
	const struct nodes_options *o = all->options;
	const uint64_t unique = (uint64_t)all->trace->unique + 1;
	struct member *m = &all->member[i];

	m->all = all;
	if (replay_node_open(&m->node, all->trace, ops, o->capacity[i], o->weigh))
		return false;
	m->node.left = left;
	m->node.left_arg = m;
	m->told = calloc(unique, sizeof(m->told[0]));
	if (o->mode == NODES_SPILL)
		m->spilled = calloc(unique, sizeof(m->spilled[0]));
	return m->told && (m->spilled || o->mode != NODES_SPILL);
}

static bool nodes_open(struct nodes *all, const struct policy_ops *ops)
{
	const struct trace *t = all->trace;
	uint32_t longest = 1;

	for (uint32_t i = 0; i < t->request_count; i++)
		if (t->requests[i].count > longest)
			longest = t->requests[i].count;
	all->lent = malloc(longest);
	for (uint32_t i = 0; i < all->options->nodes; i++)
		if (!member_open(all, i, ops))
			return false;
	return all->lent;
}

static void nodes_close(struct nodes *all)
{
	for (uint32_t i = 0; i < all->options->nodes; i++) {
		replay_node_close(&all->member[i].node);
		free(all->member[i].told);
		free(all->member[i].spilled);
	}
	free(all->lent);
	free(all);
}

static bool is_sound(const struct nodes_options *o)
{
	if (o->nodes == 0 || o->nodes > NODES_MAX || o->told_every == 0)
		return false;
	for (uint32_t i = 0; i < o->nodes; i++)
		if (o->capacity[i] == 0)
			return false;
	return true;
}

enum status nodes_run(const struct trace *t, const uint8_t *node_of, const struct policy_ops *ops,
		      const struct nodes_options *o, struct nodes_result *out)
{
	struct nodes *all;
	enum status s = STATUS_EXHAUSTED;

	if (!is_sound(o))
		return STATUS_INVALID;
	all = calloc(1, sizeof(*all));
	if (!all)
		return s;
	all->trace = t;
	all->options = o;
	if (nodes_open(all, ops))
		s = STATUS_OK;
	for (uint32_t i = 0; !s && i < t->request_count; i++) {
		const uint32_t hits = serve(all, node_of[i], i);

		replay_count(&all->result.all, t, &t->requests[i], hits, o->growth);
	}
	for (uint32_t i = 0; !s && i < o->nodes; i++) {
		all->result.all.evicted += all->member[i].node.evicted;
		all->result.all.refused += all->member[i].node.refused;
	}
	if (!s)
		*out = all->result;
	nodes_close(all);
	return s;
}
