/* A cluster that uses the directory, in virtual time: directory_sim [--long] [--nodes=N] [--seed=N]
 *
 * Each node has the daemon's own outbox, table and hints (daemon/directory), and its rule of what is taken back early
 * (eviction/departures.h). What a node caches is simulated: sessions, of which a node holds a prefix each, and prompts
 * that many sessions begin with; the least recently used ones go. A session takes turns on its node and now and then on
 * another, which asks the directory for what it lacks. Every 16th position is published, 10 s after it came, or when it
 * is used again before.
 *
 * Time goes in ticks of 100 ms. A message arrives in the tick after it was sent and is answered in the next one.
 * Messages and answers get lost. Nodes die without a word and come back empty; the list of members says so LEASE_S
 * later, and each node has that list up to a second after that. Once, a tenth of all nodes dies at one moment.
 *
 * It prints a JSON line each ten seconds and one at the end, and ends with 1 if a bound is not kept. All bounds but
 * that of memory are of virtual time. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "daemon/directory/hints.h"
#include "daemon/directory/outbox.h"
#include "daemon/directory/owners.h"
#include "daemon/directory/segment.h"
#include "daemon/directory/table.h"
#include "eviction/departures.h"

#define SECOND 1000000ull
#define TICK (SECOND / 10)
#define NONE UINT32_MAX

enum {
	TICKS = 10,                  /* a second */
	RING = 64,                   /* ticks that a message can last */
	TIMEOUT = 2 * TICKS,
	LEASE_S = 10,
	DOWN_S = 30,                 /* from a death to the next run */
	EVERY = 16,                  /* position is published */
	LATE_S = 10,
	PROMPT = 128,                /* keys that all sessions of an application begin with */
	APPLICATIONS = 200,
	CHAIN_MAX = 4096,
	TURN_MIN = 64, TURN_MAX = 436, /* new keys of a turn: 4,000 tokens in the mean */
	NEW_OF_100 = 20, MOVED_OF_100 = 10, /* of turns */
	RECENT = 256,                /* sessions that a node's users may go on with; recent_most() of them do */
	TURNS_APART_S = 5,           /* of one session, in the mean */
	HOLDINGS = 4096,
	DELAYED = 4096,
	BUCKETS = 4096,
	LISTS = 4096,
};

/* ---- what is asked for ---- */

static struct scale {
	uint32_t nodes, blocks_a_node, blocks_a_second; /* new ones, of a node */
	uint32_t messages_a_second;                     /* of a node's outbox */
	uint32_t loss_of_1000;                          /* messages, and answers */
	uint32_t deaths_an_hour_of_1000;
	uint32_t lost_at_s, back_at_s, seconds;
	uint64_t seed;
} scale = { 50, 40000, 1000, 140, 30, 50, 80, 150, 180, 1 };

/* ---- random numbers ---- */

static uint64_t hash(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t seed;

static uint32_t below(uint32_t n)
{
	seed = hash(seed);
	return (uint32_t)((seed >> 32) * n >> 32);
}

/* ---- chains ---- */

struct session {
	uint32_t application, length; /* keys, with the prompt's */
	uint32_t node;                /* of its last turn */
};

static struct session *sessions;
static uint32_t session_count, session_room;

static uint64_t prompt_chain(uint32_t application)
{
	return application + 1;
}

static uint64_t session_chain(uint32_t s)
{
	return (1ull << 32) + s;
}

static struct public_name name_of(uint64_t chain, uint32_t position)
{
	const uint64_t x = hash(chain * CHAIN_MAX + position);

	return (struct public_name){ .word = { x, hash(x) } };
}

/* The segment of a position, of which a chain or its prompt has all: PROMPT is the first position of one. */
static uint64_t segment_bits(uint64_t chain, uint32_t position)
{
	return name_of(chain, (uint32_t)segment_first(segment_of(position))).word[0];
}

/* ---- nodes ---- */

/* A prefix that a node has, of a session without its prompt or of a prompt. */
struct holding {
	uint64_t chain;
	uint32_t begin, length, published; /* positions: [begin, length) is here, [begin, published) was published */
	uint32_t older, newer, next, generation;
	bool cold;                   /* about to be dropped: what was published has been taken back */
};

struct delayed {
	uint64_t due_us;
	uint32_t holding, generation, length;
};

struct node {
	struct directory_run run;
	bool alive;
	uint64_t died_us, view_us;   /* view_us: how long a list takes to get here */
	uint32_t list;
	struct outbox *outbox;
	struct directory *table;
	struct hints *hints;
	struct holding *holdings;
	uint32_t touched, free, oldest, newest, blocks;
	uint32_t buckets[BUCKETS];   /* index + 1 */
	struct departures departures; /* blocks that are dropped */
	struct delayed delayed[DELAYED];
	uint32_t delayed_first, delayed_count;
	uint32_t recent[RECENT], recent_count;
	uint64_t owed;               /* blocks, in millionths */
	uint32_t sent;               /* messages in this second */
};

static struct node *nodes;
static uint64_t now;

static struct {
	struct owners *owners;
	struct directory_member *at;
	uint32_t count;
	uint64_t from_us;
} lists[LISTS];
static uint32_t list_count;

/* ---- what is counted ---- */

struct figures {
	uint64_t answers, stale, expected, known; /* names; see judge() */
	uint64_t asks, sent, replies;
	uint64_t adds, removes;
};

static struct figures second, ten, steady, healing, whole;
static uint32_t owners_most, busiest;

static void figures_add(struct figures *to, const struct figures *by)
{
	uint64_t *a = (uint64_t *)to;
	const uint64_t *b = (const uint64_t *)by;

	for (uint32_t i = 0; i < sizeof *to / sizeof *a; i++)
		a[i] += b[i];
}

static double share(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : 0;
}

/* ---- lists of members ---- */

static void list_make(void)
{
	const uint32_t l = list_count++;

	if (l == LISTS)
		abort();
	lists[l].at = calloc(scale.nodes, sizeof lists[l].at[0]);
	lists[l].from_us = now;
	for (uint32_t i = 0; i < scale.nodes; i++)
		if (nodes[i].alive || (nodes[i].died_us && now < nodes[i].died_us + LEASE_S * SECOND))
			lists[l].at[lists[l].count++].run = nodes[i].run;
	if (owners_create(lists[l].at, lists[l].count, &lists[l].owners) != STATUS_OK)
		abort();
}

static struct owners *newest(void)
{
	return lists[list_count - 1].owners;
}

static void list_take(struct node *n)
{
	const uint32_t l = list_count - 1;

	if (n->list == l || now < lists[l].from_us + n->view_us)
		return;
	n->list = l;
	outbox_members(n->outbox, lists[l].owners, now);
	directory_members(n->table, lists[l].at, lists[l].count);
}

static uint32_t node_index(const struct directory_run *run)
{
	uint64_t word[2];

	memcpy(word, run->node, sizeof word);
	return (uint32_t)word[1];
}

/* The node of a run that is alive; NULL: there is none. */
static struct node *node_of(const struct directory_run *run)
{
	struct node *n = &nodes[node_index(run)];

	return n->alive && n->run.epoch == run->epoch ? n : NULL;
}

static void node_start(uint32_t i)
{
	struct node *n = &nodes[i];
	const uint64_t epoch = n->run.epoch + 1, word[2] = { hash(i), i };
	struct outbox_options options = { .names_max = 4 * scale.blocks_a_node / EVERY,
					  .messages_a_second = scale.messages_a_second, .seed = hash(i + epoch) };
	const struct directory_options table = { .bytes_max = 64ull * 8 * scale.blocks_a_node / EVERY,
						 .refused_us = 60 * SECOND };

	memset(n, 0, sizeof *n);
	n->run.epoch = epoch;
	memcpy(n->run.node, word, sizeof word);
	memcpy(options.self, word, sizeof word);
	n->alive = true;
	n->free = n->oldest = n->newest = n->list = NONE;
	n->view_us = below(SECOND);
	n->holdings = calloc(HOLDINGS, sizeof n->holdings[0]);
	if (!n->holdings || outbox_create(&options, &n->outbox) != STATUS_OK ||
	    directory_create(&table, &n->table) != STATUS_OK || hints_create(1024, &n->hints) != STATUS_OK)
		abort();
}

static void node_die(uint32_t i)
{
	struct node *n = &nodes[i];

	n->alive = false;
	n->died_us = now;
	outbox_destroy(n->outbox);
	directory_destroy(n->table);
	hints_destroy(n->hints);
	free(n->holdings);
}

/* ---- what a node has ---- */

static uint32_t holding_find(const struct node *n, uint64_t chain)
{
	for (uint32_t h = n->buckets[hash(chain) % BUCKETS]; h; h = n->holdings[h - 1].next)
		if (n->holdings[h - 1].chain == chain)
			return h - 1;
	return NONE;
}

static void age_take(struct node *n, uint32_t h)
{
	const struct holding *at = &n->holdings[h];

	*(at->older == NONE ? &n->oldest : &n->holdings[at->older].newer) = at->newer;
	*(at->newer == NONE ? &n->newest : &n->holdings[at->newer].older) = at->older;
}

static void age_put(struct node *n, uint32_t h)
{
	n->holdings[h].older = n->newest;
	n->holdings[h].newer = NONE;
	*(n->newest == NONE ? &n->oldest : &n->holdings[n->newest].newer) = h;
	n->newest = h;
}

static void publish(struct node *n, uint32_t h, uint32_t length)
{
	struct holding *at = &n->holdings[h];

	for (uint32_t p = (at->published + EVERY - 1) / EVERY * EVERY; p < length; p += EVERY) {
		const struct directory_change c = { .name = name_of(at->chain, p),
						    .segment = segment_bits(at->chain, p) };

		outbox_add(n->outbox, &c, now);
		second.adds++;
	}
	if (length > at->published)
		at->published = length;
}

static void unpublish(struct node *n, uint32_t h)
{
	struct holding *at = &n->holdings[h];

	for (uint32_t p = (at->begin + EVERY - 1) / EVERY * EVERY; p < at->published; p += EVERY) {
		const struct public_name name = name_of(at->chain, p);

		outbox_remove(n->outbox, &name, now);
		second.removes++;
	}
	at->published = at->begin;
}

static void drop(struct node *n, uint32_t h)
{
	struct holding *at = &n->holdings[h];
	uint32_t *link = &n->buckets[hash(at->chain) % BUCKETS];

	unpublish(n, h);
	while (*link != h + 1)
		link = &n->holdings[*link - 1].next;
	*link = at->next;
	age_take(n, h);
	n->blocks -= at->length - at->begin;
	departures_note(&n->departures, at->length - at->begin);
	at->generation++;
	at->next = n->free;
	n->free = h;
}

static uint32_t holding_make(struct node *n, uint64_t chain, uint32_t begin)
{
	if (n->free == NONE && n->touched == HOLDINGS)
		drop(n, n->oldest);
	const uint32_t h = n->free != NONE ? n->free : n->touched++;
	struct holding *at = &n->holdings[h];
	uint32_t *head = &n->buckets[hash(chain) % BUCKETS];

	if (h == n->free)
		n->free = at->next;
	*at = (struct holding){ .chain = chain, .begin = begin, .length = begin, .published = begin, .next = *head,
				.generation = at->generation };
	*head = h + 1;
	age_put(n, h);
	return h;
}

/* A node has used a chain up to `length`, and has it from now on. */
static void keep(struct node *n, uint64_t chain, uint32_t begin, uint32_t length)
{
	uint32_t h = holding_find(n, chain);

	if (h == NONE)
		h = holding_make(n, chain, begin);
	else
		publish(n, h, n->holdings[h].length); /* used again */
	n->holdings[h].cold = false;
	age_take(n, h);
	age_put(n, h);
	if (length > n->holdings[h].length && n->delayed_count < DELAYED) {
		n->blocks += length - n->holdings[h].length;
		n->holdings[h].length = length;
		n->delayed[(n->delayed_first + n->delayed_count++) % DELAYED] =
			(struct delayed){ now + LATE_S * SECOND, h, n->holdings[h].generation, length };
	}
	while (n->blocks > scale.blocks_a_node)
		drop(n, n->oldest);
}

static void publish_delayed(struct node *n)
{
	while (n->delayed_count && n->delayed[n->delayed_first].due_us <= now) {
		const struct delayed *d = &n->delayed[n->delayed_first];

		if (n->holdings[d->holding].generation == d->generation && !n->holdings[d->holding].cold)
			publish(n, d->holding, d->length);
		n->delayed_first = (n->delayed_first + 1) % DELAYED;
		n->delayed_count--;
	}
}

/* What will be dropped next is taken back first. A name that is missing costs less than a wrong answer. */
static void cool(struct node *n)
{
	const uint32_t soon = departures_soon(&n->departures, n->blocks, now);
	uint32_t met = 0;

	for (uint32_t h = n->oldest; h != NONE && met < soon; h = n->holdings[h].newer) {
		met += n->holdings[h].length - n->holdings[h].begin;
		if (!n->holdings[h].cold)
			unpublish(n, h);
		n->holdings[h].cold = true;
	}
}

static bool has(const struct directory_run *run, uint64_t chain, uint32_t position)
{
	const struct node *n = node_of(run);
	const uint32_t h = n ? holding_find(n, chain) : NONE;

	return h != NONE && position < n->holdings[h].length;
}

/* ---- asking ---- */

static bool lost(void)
{
	return below(1000) < scale.loss_of_1000;
}

struct question {
	uint64_t chain;
	uint32_t count, position[SEGMENT_LONGEST / EVERY];
	struct public_name names[SEGMENT_LONGEST / EVERY];
};

/* Asks one owner. False: no answer came. */
static bool ask_owner(struct node *n, const struct directory_run *owner, const struct question *q,
		      struct directory_found *found)
{
	const struct node *o = node_of(owner);

	if (o != n) {
		n->sent++;
		second.sent++;
		second.asks++;
	}
	if (!o || (o != n && (lost() || lost()))) {
		hints_failed(n->hints, owner, now);
		return false;
	}
	second.replies += o != n;
	hints_worked(n->hints, owner);
	directory_find(o->table, 0, q->names, q->count, now, found);
	return true;
}

/* Judges the answer to one name, as the asker sees it: it is stale if the holder that is named first does not have the
 * block. `expected` are names that the session's last node has published, `known` those of them that were answered. */
static void judge(struct node *n, const struct question *q, uint32_t i, const struct session *s)
{
	struct hint_holders held;
	const struct node *last = &nodes[s->node];
	const uint32_t h = last != n && last->alive ? holding_find(last, q->chain) : NONE;
	const bool expected = h != NONE && q->position[i] < last->holdings[h].published;
	const enum hint hint = hints_find(n->hints, 0, &q->names[i], now, &held);

	second.expected += expected;
	if (hint != HINT_HELD)
		return;
	second.answers++;
	if (has(&held.at[0], q->chain, q->position[i])) {
		second.known += expected;
		return;
	}
	second.stale++;
	hints_wrong(n->hints, 0, &q->names[i], &held.at[0]);
	if (!node_of(&held.at[0]))
		hints_failed(n->hints, &held.at[0], now);
}

/* An owner may still name the asker itself, for what the asker has dropped just now. */
static void learn(struct node *n, const struct public_name *name, const struct directory_found *found)
{
	struct directory_run others[DIRECTORY_HOLDERS_MAX];
	uint32_t count = 0;

	for (uint32_t i = 0; i < found->count; i++)
		if (!directory_run_equal(&found->at[i], &n->run))
			others[count++] = found->at[i];
	hints_answer(n->hints, 0, name, others, count, now);
}

static void ask_segment(struct node *n, struct question *q, const struct session *s, uint32_t *owner_asked)
{
	struct directory_found found[SEGMENT_LONGEST / EVERY];
	const uint64_t segment = segment_bits(q->chain, q->position[0]);
	uint32_t of[OWNERS_A_SEGMENT];
	bool answered = false;

	*owner_asked = NONE;
	owners_of(lists[n->list].owners, segment, of);
	for (uint32_t pass = 0; pass < 2 && !answered; pass++)
		for (uint32_t k = 0; k < OWNERS_A_SEGMENT && !answered; k++) {
			const struct directory_run *run = &owners_member(lists[n->list].owners, of[k])->run;

			if (of[k] == OWNERS_NONE || hints_avoided(n->hints, run, now) != (pass > 0))
				continue;
			answered = ask_owner(n, run, q, found);
			if (*owner_asked == NONE)
				*owner_asked = of[k];
			if (pass)
				break; /* of two that are avoided, one is tried */
		}
	for (uint32_t i = 0; i < q->count; i++) {
		if (answered)
			learn(n, &q->names[i], &found[i]);
		else
			hints_forget(n->hints, 0, &q->names[i]);
		judge(n, q, i, s);
	}
}

/* Asks for the positions [from, to) of a chain of which nothing is known yet. Returns how many owners were asked. */
static uint32_t ask(struct node *n, uint64_t chain, uint32_t from, uint32_t to, const struct session *s)
{
	struct question q = { .chain = chain };
	uint32_t asked[16], count = 0;

	for (uint32_t segment = segment_of(from); segment_first(segment) < to; segment++) {
		uint64_t p = segment_first(segment) > from ? segment_first(segment) : from;
		uint32_t owner, k = 0;

		q.count = 0;
		for (p = (p + EVERY - 1) / EVERY * EVERY; p < to && p < segment_first(segment + 1); p += EVERY) {
			const struct public_name name = name_of(chain, (uint32_t)p);

			if (!hints_ask(n->hints, 0, &name, now, now + SECOND))
				continue;
			q.position[q.count] = (uint32_t)p;
			q.names[q.count++] = name;
		}
		if (!q.count)
			continue;
		ask_segment(n, &q, s, &owner);
		while (k < count && asked[k] != owner)
			k++;
		if (k == count && count < 16)
			asked[count++] = owner;
	}
	return count;
}

/* ---- turns ---- */

static uint32_t session_make(uint32_t node)
{
	if (session_count == session_room) {
		session_room = session_room ? 2 * session_room : 1024;
		sessions = realloc(sessions, session_room * sizeof *sessions);
		if (!sessions)
			abort();
	}
	/* Some applications have many more users than others. */
	const uint32_t a = below(APPLICATIONS), b = below(APPLICATIONS), c = below(APPLICATIONS);
	const uint32_t least = a < b ? a : b;

	sessions[session_count] = (struct session){ least < c ? least : c, PROMPT, node };
	return session_count++;
}

static uint32_t recent_most(void)
{
	const uint32_t most = TURNS_APART_S * scale.blocks_a_second / ((TURN_MIN + TURN_MAX) / 2);

	return most < RECENT ? most : RECENT;
}

/* A session for a turn on a node: a new one, one of its own, or one of another node. */
static uint32_t session_for(struct node *n)
{
	struct node *from = n;

	if (below(100) < MOVED_OF_100)
		from = &nodes[below(scale.nodes)];
	if (below(100) < NEW_OF_100 || !from->recent_count)
		return session_make((uint32_t)(n - nodes));
	const uint32_t i = below(from->recent_count), s = from->recent[i];

	from->recent[i] = from->recent[--from->recent_count];
	return s;
}

static uint32_t turn(struct node *n)
{
	const uint32_t s = session_for(n), added = TURN_MIN + below(TURN_MAX - TURN_MIN + 1);
	const uint64_t prompt = prompt_chain(sessions[s].application), chain = session_chain(s);
	const uint32_t to = sessions[s].length + added < CHAIN_MAX ? sessions[s].length + added : CHAIN_MAX;
	const uint32_t h = holding_find(n, chain);

	if (holding_find(n, prompt) == NONE)
		ask(n, prompt, 0, PROMPT, &sessions[s]);
	ask(n, chain, h == NONE ? PROMPT : n->holdings[h].length, to, &sessions[s]);
	keep(n, prompt, 0, PROMPT);
	keep(n, chain, PROMPT, to);
	sessions[s].length = to;
	sessions[s].node = (uint32_t)(n - nodes);
	if (to < CHAIN_MAX)
		n->recent[n->recent_count < recent_most() ? n->recent_count++ : below(n->recent_count)] = s;
	return added;
}

/* ---- messages of outboxes ---- */

struct flight {
	struct flight *next;
	struct directory_run from, to;
	enum outbox_kind kind;
	uint64_t sequence;
	uint32_t peer, told, count, refused_count;
	bool part, arrived, digest_wanted;
	enum status status;
	struct digest_set set;       /* of a REPLACE, or what a digest found */
	struct digest *digest;
	struct directory_change changes[];
};

static struct flight *ring[RING];
static uint64_t tick;
static struct outbox_message message;

static void flight_put(struct flight *f, uint32_t ticks)
{
	struct flight **at = &ring[(tick + ticks) % RING];

	f->next = *at;
	*at = f;
}

static void flight_make(const struct node *n, const struct outbox_message *m)
{
	const uint32_t count = m->kind == OUTBOX_DIGEST ? 0 : m->count;
	struct flight *f = calloc(1, sizeof *f + count * sizeof f->changes[0]);

	if (!f)
		abort();
	f->from = n->run;
	f->to = m->to;
	f->kind = m->kind;
	f->sequence = m->sequence;
	f->peer = m->peer;
	f->told = m->told;
	f->part = m->part;
	f->count = count;
	f->status = STATUS_DEADLINE;
	memcpy(f->changes, m->changes, count * sizeof f->changes[0]);
	if (m->kind == OUTBOX_REPLACE)
		f->set = m->set;
	if (m->kind == OUTBOX_DIGEST) {
		f->digest = malloc(sizeof *f->digest);
		if (!f->digest)
			abort();
		f->digest->buckets = m->digest.buckets;
		f->digest->total = m->digest.total;
		memcpy(f->digest->sum, m->digest.sum, m->digest.buckets * sizeof m->digest.sum[0]);
		memcpy(f->digest->count, m->digest.count, m->digest.buckets * sizeof m->digest.count[0]);
	}
	flight_put(f, 1);
}

static void flight_arrive(struct flight *f)
{
	const struct directory_sender from = { f->from, f->sequence };
	const bool own = directory_run_equal(&f->from, &f->to);
	struct directory_published out = { 0 };
	struct node *owner = node_of(&f->to);

	f->arrived = true;
	if (!owner || (!own && lost())) {
		flight_put(f, TIMEOUT);
		return;
	}
	const struct directory_buckets buckets = { &f->set, f->changes, f->count, f->part };

	if (f->kind == OUTBOX_PUBLISH)
		f->status = directory_publish(owner->table, &from, f->changes, f->count, f->told, now, &out);
	else if (f->kind == OUTBOX_DIGEST)
		f->status = directory_digest(owner->table, &from, f->digest, &f->set);
	else
		f->status = directory_replace(owner->table, &from, &buckets, now, &out);
	f->digest_wanted = out.digest_wanted;
	if (!own && lost()) {
		f->status = STATUS_DEADLINE;
		flight_put(f, TIMEOUT);
		return;
	}
	second.replies += !own;
	flight_put(f, 1);
}

static void flight_end(struct flight *f)
{
	const struct node *n = node_of(&f->from);
	const struct outbox_reply reply = { .status = f->status, .digest_wanted = f->digest_wanted, .differ = &f->set };

	if (n) {
		message.kind = f->kind;
		message.to = f->to;
		message.peer = f->peer;
		message.part = f->part;
		message.count = f->count;
		memcpy(message.changes, f->changes, f->count * sizeof f->changes[0]);
		outbox_end(n->outbox, &message, &reply, now);
	}
	free(f->digest);
	free(f);
}

static void flights(void)
{
	struct flight *f = ring[tick % RING];

	ring[tick % RING] = NULL;
	while (f) {
		struct flight *next = f->next;

		if (f->arrived)
			flight_end(f);
		else
			flight_arrive(f);
		f = next;
	}
}

static void send(struct node *n)
{
	while (outbox_next(n->outbox, now, &message)) {
		if (!directory_run_equal(&message.to, &n->run)) {
			n->sent++;
			second.sent++;
		}
		flight_make(n, &message);
	}
}

/* ---- how good the owners' knowledge is ---- */

/* Of names that were published some seconds ago: whether an asker with the newest list finds the holder at an owner
 * that is alive, and whether both owners have it. */
static void sample(double *found, double *both)
{
	enum { SAMPLES = 2000 };
	uint32_t looked = 0, one = 0, two = 0;

	for (uint32_t i = 0; i < 20 * SAMPLES && looked < SAMPLES; i++) {
		const struct node *n = &nodes[below(scale.nodes)];
		const struct holding *h = n->alive && n->touched ? &n->holdings[below(n->touched)] : NULL;

		/* The last positions may have been published just now. */
		if (!h || h->begin != PROMPT || h->published < PROMPT + 4 * EVERY ||
		    holding_find(n, h->chain) != (uint32_t)(h - n->holdings))
			continue;
		const uint32_t position = PROMPT + below((h->published - PROMPT) / EVERY / 2) * EVERY;
		const struct public_name name = name_of(h->chain, position);
		uint32_t of[OWNERS_A_SEGMENT], with = 0;

		owners_of(newest(), segment_bits(h->chain, position), of);
		for (uint32_t k = 0; k < OWNERS_A_SEGMENT; k++) {
			const struct node *owner = of[k] == OWNERS_NONE ? NULL :
							node_of(&owners_member(newest(), of[k])->run);
			struct directory_found at;
			bool here = false;

			if (!owner)
				continue;
			directory_find(owner->table, 0, &name, 1, now, &at);
			for (uint32_t j = 0; j < at.count; j++)
				here |= directory_run_equal(&at.at[j], &n->run);
			with += here;
		}
		looked++;
		one += with > 0;
		two += with == OWNERS_A_SEGMENT;
	}
	*found = share(one, looked);
	*both = share(two, looked);
}

/* ---- the run ---- */

static double heal_s = -1, both_before, both_sum;
static uint32_t both_count;

enum { HEAL_S = 5 };
static struct heal_second {
	double both;
	uint64_t stale, answers;
} lately[HEAL_S];

/* Healed: in five seconds from then on stale answers are at most 1 %, and both owners know as much as before but 1 %. Of
 * all five together: a second of a small cluster has few of both. */
static void heal_look(uint32_t s, double both)
{
	if (s + 20 >= scale.lost_at_s && s < scale.lost_at_s) {
		both_sum += both;
		both_before = both_sum / ++both_count;
	}
	if (s < scale.lost_at_s || heal_s >= 0)
		return;
	uint64_t stale = 0, answers = 0;
	double sum = 0;

	lately[s % HEAL_S] = (struct heal_second){ both, second.stale, second.answers };
	for (uint32_t i = 0; i < HEAL_S; i++) {
		stale += lately[i].stale;
		answers += lately[i].answers;
		sum += lately[i].both;
	}
	if (s >= scale.lost_at_s + HEAL_S && share(stale, answers) <= .01 && sum / HEAL_S >= both_before - .01)
		heal_s = s - scale.lost_at_s - 3;
}

static double sent_most;

static void second_ends(uint32_t s)
{
	const double sent = share(second.sent, scale.nodes);
	double found, both;
	uint64_t entries = 0, entries_most = 0, names = 0, dropped = 0, turned_away = 0, alive = 0;

	sample(&found, &both);
	heal_look(s, both);
	figures_add(&ten, &second);
	figures_add(&whole, &second);
	/* Caches are full and what is said of their change is known after a minute. */
	if (s >= scale.lost_at_s && heal_s < 0)
		figures_add(&healing, &second);
	else if (s >= 60)
		figures_add(&steady, &second);
	if (s >= 5 && sent > sent_most)
		sent_most = sent;
	for (uint32_t i = 0; i < scale.nodes; i++) {
		busiest = nodes[i].sent > busiest ? nodes[i].sent : busiest;
		nodes[i].sent = 0;
	}
	memset(&second, 0, sizeof second);
	if (s % 10 != 9)
		return;
	for (uint32_t i = 0; i < scale.nodes; i++) {
		struct directory_counts table;
		struct outbox_counts outbox;

		if (!nodes[i].alive)
			continue;
		directory_counts(nodes[i].table, &table);
		outbox_counts(nodes[i].outbox, &outbox);
		entries += table.entries;
		entries_most = table.entries > entries_most ? table.entries : entries_most;
		dropped += table.dropped;
		names += outbox.names;
		turned_away += outbox.turned_away;
		alive++;
	}
	printf("{\"s\":%u,\"alive\":%" PRIu64 ",\"stale\":%.5f,\"answers\":%" PRIu64 ",\"known\":%.4f,\"found\":%.4f,"
	       "\"both\":%.4f,\"sent\":%.1f,\"asks\":%.1f,\"changes\":%.1f,\"names\":%" PRIu64 ",\"entries\":%" PRIu64
	       ",\"entries_most\":%" PRIu64 ",\"dropped\":%" PRIu64 ",\"turned_away\":%" PRIu64 "}\n",
	       s + 1, alive, share(ten.stale, ten.answers), ten.answers, share(ten.known, ten.expected), found, both,
	       share(ten.sent, 10 * scale.nodes), share(ten.asks, 10 * scale.nodes),
	       share(ten.adds + ten.removes, 10 * scale.nodes), names, entries, entries_most, dropped, turned_away);
	fflush(stdout);
	memset(&ten, 0, sizeof ten);
}

/* Deaths and returns, and the lists of members that follow. */
static void membership(uint32_t s)
{
	bool changed = s == 0;

	for (uint32_t i = 0; i < scale.nodes; i++) {
		struct node *n = &nodes[i];
		const bool among_the_lost = i % 10 == 3;

		if (n->alive && s > 30 && below(3600u * 1000) < scale.deaths_an_hour_of_1000)
			node_die(i);
		if (n->alive && s == scale.lost_at_s && among_the_lost)
			node_die(i);
		if (n->alive || !n->died_us)
			continue;
		const uint64_t down_s = (now - n->died_us) / SECOND;
		const bool in_the_loss = among_the_lost && n->died_us == scale.lost_at_s * SECOND;

		changed |= down_s == LEASE_S;
		if (in_the_loss ? s >= scale.back_at_s + i % 100 / 10 : down_s >= DOWN_S) {
			node_start(i);
			changed = true;
		}
	}
	if (changed)
		list_make();
}

/* Each second one node asks for a chain of 4,096 keys that it has nothing of. */
static void long_chain(uint32_t s)
{
	struct node *n = &nodes[below(scale.nodes)];
	const struct session none = { .node = (uint32_t)(n - nodes) };

	if (!n->alive || n->list == NONE)
		return;
	const uint32_t asked = ask(n, (1ull << 40) + s, 0, CHAIN_MAX, &none);

	owners_most = asked > owners_most ? asked : owners_most;
}

static void node_tick(struct node *n)
{
	list_take(n);
	if (n->list == NONE)
		return;
	n->owed += scale.blocks_a_second * TICK;
	while (n->owed >= SECOND) {
		const uint64_t used = turn(n) * SECOND;

		n->owed = n->owed > used ? n->owed - used : 0;
		if (n->owed < TURN_MAX * SECOND)
			break;
	}
	publish_delayed(n);
	cool(n);
	directory_sweep(n->table, 100, now);
	send(n);
}

static int result(double cpu_s)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	const double gib = (double)usage.ru_maxrss / (1 << 20), stale = share(steady.stale, steady.answers);
	const bool good = stale <= .01 && sent_most <= 200 && heal_s >= 0 && heal_s <= 60 && owners_most <= 11 &&
			  gib <= 16;

	printf("{\"result\":\"%s\",\"nodes\":%u,\"blocks\":%.3g,\"seconds\":%u,\"seed\":%" PRIu64 ",\"stale\":%.5f,"
	       "\"stale_healing\":%.5f,\"known\":%.4f,\"sent_mean\":%.1f,\"sent_most\":%.1f,\"sent_busiest_node\":%u,"
	       "\"asks_mean\":%.1f,\"replies_mean\":%.1f,\"heal_s\":%.0f,\"owners_of_4096\":%u,\"lists\":%u,"
	       "\"memory_gib\":%.2f,\"cpu_s\":%.0f}\n",
	       good ? "kept" : "broken", scale.nodes, (double)scale.nodes * scale.blocks_a_node, scale.seconds,
	       scale.seed, stale, share(healing.stale, healing.answers), share(steady.known, steady.expected),
	       share(whole.sent, (uint64_t)scale.nodes * scale.seconds), sent_most, busiest,
	       share(whole.asks, (uint64_t)scale.nodes * scale.seconds),
	       share(whole.replies, (uint64_t)scale.nodes * scale.seconds),
	       heal_s, owners_most, list_count, gib, cpu_s);
	return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* The number behind `--name=`; false: it is another argument. */
static bool number(const char *argument, const char *name, uint64_t *out)
{
	const size_t n = strlen(name);

	if (strncmp(argument, name, n) || argument[n] != '=')
		return false;
	*out = strtoull(argument + n + 1, NULL, 10);
	return true;
}

static void arguments(int argc, char **argv)
{
	uint64_t given = 0;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--long")) {
			scale.nodes = 1000;
			scale.blocks_a_node = 100000;
			scale.blocks_a_second = 2500;
			scale.lost_at_s = 100;
			scale.back_at_s = 160;
			scale.seconds = 200;
		} else if (number(argv[i], "--nodes", &given)) {
			scale.nodes = (uint32_t)given;
		} else if (number(argv[i], "--seed", &given)) {
			scale.seed = given;
		} else if (*argv[i]) {
			fprintf(stderr, "directory_sim [--long] [--nodes=N] [--seed=N]\n");
			exit(2);
		}
	}
	seed = scale.seed;
}

int main(int argc, char **argv)
{
	arguments(argc, argv);
	nodes = calloc(scale.nodes, sizeof *nodes);
	if (!nodes)
		return EXIT_FAILURE;
	for (uint32_t i = 0; i < scale.nodes; i++)
		node_start(i);
	for (uint32_t s = 0; s < scale.seconds; s++) {
		membership(s);
		for (uint32_t k = 0; k < TICKS; k++, tick++, now += TICK) {
			flights();
			for (uint32_t i = 0; i < scale.nodes; i++)
				if (nodes[i].alive)
					node_tick(&nodes[i]);
		}
		long_chain(s);
		second_ends(s);
	}
	return result((double)clock() / CLOCKS_PER_SEC);
}
