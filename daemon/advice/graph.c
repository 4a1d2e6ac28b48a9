/* The advisor's thread, its mail and its lists. See advice/graph.h. */
#include "daemon/advice/graph.h"

#include "daemon/advice/advice.h"
#include "daemon/advice/mailbox.h"
#include "daemon/advice/request.h"
#include "daemon/advice/unusable.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/state.h"
#include "daemon/threads/await.h"
#include "eviction/graph_edges.h"
#include "eviction/graph_mail.h"
#include "eviction/sketch.h"
#include "store/clock.h"
#include "store/index.h"
#include "store/status.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
	MAIL_EVENTS = 1 << 15,
	SKETCH_MAIL_WORDS = 1 << 16,
	MAIL_A_PASS = 1 << 16,
	EDGES_A_NODE = 4,
	CONVERSATIONS_KNOWN = 1 << 14,
	KEEP_A_PASS = 2048,
	PIECES_A_PASS = 64,            /* 256 KB */
	STEP_NAMES = 8,                /* that a list grows by at a time */
	TAILS_LOOKED_AT = 64,          /* of a request, from its end */
	STOP_KEEP_US = 5 * 1000 * 1000,
	NAP_NS = 5 * 1000 * 1000,
	CLOSE_MS = 10 * 1000,
	GRAPH_WAIT_US = 1000 * 1000,   /* a pass takes a tenth of that at most */
};
#define HALF_LIFE_US (30ull * 60 * 1000 * 1000)

enum status advisor_create(struct cache *c, const char **why)
{
	const struct graph_edges_options o = {
		.nodes_max = c->options.graph_nodes, .edges_max = c->options.graph_nodes * EDGES_A_NODE,
		.sessions_max = CONVERSATIONS_KNOWN, .half_life_us = HALF_LIFE_US,
	};
	struct advisor *a;

	if (!c->options.graph_nodes)
		return STATUS_OK;
	*why = "no memory for the graph";
	a = c->advice->advisor = calloc(1, sizeof(*a));
	if (!a)
		return STATUS_EXHAUSTED;
	pthread_mutex_init(&a->lock, NULL);
	await_init(&a->ended);
	a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	atomic_store(&a->now_us, c->now_us);
	a->mail = graph_mail_create(MAIL_EVENTS);
	a->graph = graph_edges_create(&o);
	a->sketches = sketches_create(c->options.graph_nodes);
	a->unusable = unusable_create();
	if (!a->unusable || !mailbox_init(&a->sketch_mail, SKETCH_MAIL_WORDS) || !a->mail || !a->graph || !a->sketches)
		return STATUS_EXHAUSTED;
	*why = "no descriptor for the advisor";
	return a->wake >= 0 ? STATUS_OK : STATUS_EXHAUSTED;
}

static void lists_free(struct index_record *r)
{
	free(r);
}

void advisor_destroy(struct cache *c)
{
	struct advisor *a = c->advice->advisor;

	if (!a)
		return;
	free(atomic_load(&a->lists));
	graph_mail_destroy(a->mail);
	graph_edges_destroy(a->graph);
	sketches_destroy(a->sketches);
	unusable_destroy(a->unusable);
	mailbox_fini(&a->sketch_mail);
	if (a->wake >= 0)
		close(a->wake);
	await_fini(&a->ended);
	pthread_mutex_destroy(&a->lock);
	free(a);
	c->advice->advisor = NULL;
}

/* ---- mail ---- */

void advisor_request(struct cache *c, const struct request *r)
{
	struct advisor *a = c->advice->advisor;

	if (r->kind != REQUEST_REPORT)
		graph_mail_request(a->mail, c->now_us, r->conversation, r->name, r->count);
}

void advisor_block(struct cache *c, const struct block *b, bool live)
{
	struct advisor *a = c->advice->advisor;
	struct graph_mail_event e = {
		.now_us = c->now_us, .kind = live ? GRAPH_MAIL_LIVE : GRAPH_MAIL_GONE, .count = 1,
	};

	if (!a)
		return;
	/* What a restart takes up comes faster than any mail is read: live_pass looks at it when all is there. */
	if (c->tier && !c->tier->restored) {
		atomic_store(&a->unseen, true);
		return;
	}
	e.ids[0] = key_name_of(b->pool->tenant->number, block_key(b), block_key_bytes(b));
	e.session = unusable_word(b);
	graph_mail_post(a->mail, &e);
}

static void tell_graph(struct advisor *a, const struct graph_mail_event *e)
{
	struct graph_edges *g = a->graph;

	a->latest_us = e->now_us > a->latest_us ? e->now_us : a->latest_us;
	switch (e->kind) {
	case GRAPH_MAIL_REQUEST:
		graph_edges_request(g, a->latest_us, e->session, e->ids, e->count, e->goes_on);
		if (!e->goes_on)
			a->recent[a->recent_next++ % LISTS_MAX] = e->ids[e->count - 1];
		break;
	case GRAPH_MAIL_LIVE:
	case GRAPH_MAIL_GONE:
		graph_edges_live(g, a->latest_us, e->ids[0], e->kind == GRAPH_MAIL_LIVE);
		unusable_note(a->unusable, e->ids[0], e->session, e->kind == GRAPH_MAIL_LIVE);
		break;
	case GRAPH_MAIL_PAIR:
		graph_edges_pair(g, a->latest_us, (enum edge_type)e->type, e->ids[0], e->ids[1], e->weight);
		break;
	default:
		break;
	}
}

static void take_mail(struct advisor *a)
{
	struct graph_mail_event e;

	for (uint32_t n = 0; n < MAIL_A_PASS && graph_mail_take(a->mail, &e); n++)
		tell_graph(a, &e);
}

/* ---- lists ---- */

static struct advice_list *slot_for(struct advice_lists *l, uint64_t tail)
{
	uint32_t at = (uint32_t)(tail % LIST_SLOTS);

	while (l->list[at].tail && l->list[at].tail != tail)
		at = (at + 1) % LIST_SLOTS;
	return &l->list[at];
}

/* Makes the list of what is expected after the chain: its likeliest neighbours, then theirs. */
static void list_make(struct advisor *a, uint64_t tail, struct advice_list *out)
{
	uint64_t names[1 + LIST_NAMES] = { tail };
	struct graph_near near[STEP_NAMES];
	uint32_t count = 1, found;

	do {
		uint32_t left = 1 + LIST_NAMES - count, most = left < STEP_NAMES ? left : STEP_NAMES;

		found = most ? graph_edges_near(a->graph, a->latest_us, names, count, EDGE_MASK_ALL, near, most) : 0;
		for (uint32_t i = 0; i < found; i++)
			names[count++] = near[i].id;
	} while (found);
	out->tail = tail;
	out->count = count - 1;
	memcpy(out->name, names + 1, out->count * sizeof(names[0]));
}

static void lists_publish(struct advisor *a)
{
	struct advice_lists *l = calloc(1, sizeof(*l)), *old;

	if (!l)
		return;
	for (uint32_t i = 0; i < LISTS_MAX; i++) {
		struct advice_list *slot = a->recent[i] ? slot_for(l, a->recent[i]) : NULL;

		if (slot && !slot->tail)
			list_make(a, a->recent[i], slot);
	}
	l->made_us = atomic_load(&a->now_us);
	old = atomic_exchange_explicit(&a->lists, l, memory_order_acq_rel);
	if (old)
		index_reclaim(&old->record, lists_free);
}

const struct advice_list *advisor_list(struct cache *c, const struct request *r)
{
	struct advice_lists *l = atomic_load_explicit(&c->advice->advisor->lists, memory_order_acquire);

	if (!l)
		return NULL;
	if (c->now_us > l->made_us + LIST_STALE_US) {
		cache_count(c, COUNTER_PREFETCH_STALE, 1);
		return NULL;
	}
	for (uint32_t i = 0; i < r->count && i < TAILS_LOOKED_AT; i++) {
		const struct advice_list *found = slot_for(l, r->name[r->count - 1 - i]);

		if (found->tail)
			return found;
	}
	return NULL;
}

/* ---- which blocks of the graph exist ----
 *
 * Messages tell the advisor each block that comes or leaves. But blocks that a restart takes up send none, and messages
 * without room in the mailbox are lost. After such a loss the advisor checks all nodes, some at each pass, while new
 * messages come. A block without a node gets no node: there may be many times more blocks than nodes, and the graph
 * knows nothing of such a block. */

/* Bounds of looks. A look finds out whether one node's block is there in one pool. */
enum {
	LOOKS_A_PASS = 1 << 15,        /* some ms */
	LOOKS_A_HOLD = 512,            /* of the cache's lock */
};

static bool is_there(const struct cache *c, uint64_t name)
{
	for (uint32_t i = 0; i < c->pool_count; i++)
		if (by_id_find(c, policy_id(name, c->pools[i]->layout_id)))
			return true;
	return false;
}

/* The number of layout pools, at least 1. */
static uint32_t pools_now(struct cache *c)
{
	uint32_t pools;

	cache_lock(c);
	pools = c->pool_count;
	cache_unlock(c);
	return pools ? pools : 1;
}

/* Looks at some nodes. True: all have been looked at. */
static bool look_at_nodes(struct cache *c, struct advisor *a)
{
	struct graph_node_record n[LOOKS_A_HOLD];
	const uint32_t pools = pools_now(c), most = pools < LOOKS_A_HOLD ? LOOKS_A_HOLD / pools : 1;
	bool there[LOOKS_A_HOLD], more = true;

	for (uint32_t looks = 0; more && looks < LOOKS_A_PASS; looks += most * pools) {
		uint32_t count = 0;

		while (count < most && (more = graph_edges_next_node(a->graph, a->latest_us, &a->look.node, &n[count])))
			count++;
		cache_lock(c);
		for (uint32_t i = 0; i < count; i++)
			there[i] = is_there(c, n[i].id);
		cache_unlock(c);
		for (uint32_t i = 0; i < count; i++)
			graph_edges_mark(a->graph, n[i].id, there[i]);
	}
	return !more;
}

static bool has_cause(struct cache *c, struct advisor *a, uint64_t dropped)
{
	bool restored;

	if (dropped == a->look.dropped && !atomic_load(&a->unseen))
		return false;
	cache_lock(c);
	restored = !c->tier || c->tier->restored;
	cache_unlock(c);
	return restored;
}

static void live_pass(struct cache *c, struct advisor *a, uint64_t dropped)
{
	if (!a->look.on && has_cause(c, a, dropped)) {
		atomic_store(&a->unseen, false);
		a->look = (struct live_look){ .on = true, .dropped = dropped };
	}
	if (a->look.on)
		a->look.on = !look_at_nodes(c, a);
}

static void learn(struct cache *c, struct advisor *a)
{
	const uint64_t dropped = graph_mail_dropped(a->mail);

	take_mail(a);
	live_pass(c, a, dropped);
	unusable_pass(c, a->unusable, a->graph);
	graph_feed_pass(a);
	lists_publish(a);
	keep_some(c, a, KEEP_A_PASS);
	policy_state_keep(c, a, PIECES_A_PASS);
}

static void pass(struct cache *c, struct advisor *a)
{
	uint64_t began = clock_us(), took;
	struct graph_edges_counts counts;
	uint64_t now_us = atomic_load(&a->now_us);

	a->latest_us = now_us > a->latest_us ? now_us : a->latest_us;
	/* What it is told now is newer than what it knew: mail waits until that is there. */
	if (!a->loaded)
		keep_load(c, a);
	if (a->loaded)
		learn(c, a);
	counts = graph_edges_count(a->graph);
	took = clock_us() - began;
	atomic_store(&a->nodes, counts.nodes);
	atomic_store(&a->edges, counts.edges);
	atomic_store(&a->pass_us, took);
	if (took > atomic_load(&a->pass_us_max))
		atomic_store(&a->pass_us_max, took);
	atomic_fetch_add(&a->passes, 1);
	atomic_store(&a->began_us, 0);
}

bool advisor_pass(struct cache *c)
{
	struct advisor *a = c->advice->advisor;
	bool loaded;

	atomic_store(&a->began_us, clock_us());
	pthread_mutex_lock(&a->lock);
	pass(c, a);
	loaded = a->loaded;
	pthread_mutex_unlock(&a->lock);
	return loaded;
}

static void wake(struct advisor *a)
{
	const uint64_t one = 1;
	ssize_t written = write(a->wake, &one, sizeof(one));

	(void)written; /* a full counter wakes as well */
}

void advisor_wake(struct cache *c)
{
	struct advisor *a = c->advice->advisor;

	if (a && a->started && !atomic_exchange(&a->woken, true))
		wake(a);
}

static void read_letters(struct cache *c)
{
	index_read_lock();
	cache_lock(c);
	observe_requests_due(c, READ_A_CALL);
	cache_unlock(c);
	index_read_unlock();
}

/* Sleeps until the time comes, or until another thread wakes it. */
static void wait_until(struct advisor *a, uint64_t until_us)
{
	struct pollfd p = { .fd = a->wake, .events = POLLIN };
	uint64_t now_us = clock_us(), count;

	if (now_us < until_us && poll(&p, 1, (int)((until_us - now_us + 999) / 1000)) > 0)
		while (read(a->wake, &count, sizeof(count)) > 0)
			;
}

static void *advisor_main(void *arg)
{
	struct cache *c = arg;
	struct advisor *a = c->advice->advisor;
	uint64_t next_us = 0;

	cache_thread_enter();
	while (!atomic_load(&a->stop)) {
		if (clock_us() >= next_us) {
			const bool loaded = advisor_pass(c);

			next_us = clock_us() + (loaded ? c->options.advisor_ms * 1000ull : 0);
		}
		if (atomic_exchange(&a->woken, false))
			read_letters(c);
		wait_until(a, next_us);
	}
	cache_thread_leave();
	await_answer(&a->ended);
	return NULL;
}

enum status advisor_start(struct cache *c, const char **why)
{
	struct advisor *a = c->advice->advisor;

	if (a)
		policy_state_conversations(c);
	if (!a || !c->options.advisor_ms)
		return STATUS_OK;
	*why = "cannot start the advisor's thread";
	a->started = true; /* set before the thread runs */
	if (pthread_create(&a->thread, NULL, advisor_main, c)) {
		a->started = false;
		return STATUS_INTERNAL;
	}
	return STATUS_OK;
}

/* Saves all before the stop: first what policies have learned, which is as of now or worth little; then the graph, of
 * which an earlier round has left most. The catalog's queue may have to be written first to have room. */
static void keep_all(struct cache *c, struct advisor *a)
{
	enum status (*const keep[])(struct cache *, struct advisor *, uint32_t) = { policy_state_keep, keep_some };
	const uint64_t until_us = clock_us() + STOP_KEEP_US;

	policy_state_anew(a);
	for (int i = 0; i < 2; i++)
		while (keep[i](c, a, UINT32_MAX) == STATUS_EXHAUSTED && clock_us() < until_us)
			nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

/* Stops the advisor's thread. False: it is left behind, in the catalog, whose pages come from a disk. */
static bool thread_ends(struct advisor *a, uint32_t wait_ms)
{
	atomic_store(&a->stop, true);
	wake(a);
	if (await_came(&a->ended, wait_ms * 1000ull))
		return !pthread_join(a->thread, NULL);
	pthread_detach(a->thread);
	return false;
}

bool advisor_stop(struct cache *c)
{
	struct advisor *a = c->advice->advisor;

	if (!a || !a->mail || !a->graph || !a->sketches)
		return true;
	if (a->started && !thread_ends(a, c->options.disk_close_ms ? c->options.disk_close_ms : CLOSE_MS))
		return false;
	a->started = false;
	if (a->loaded) {
		take_mail(a);
		graph_feed_pass(a);
		keep_all(c, a);
	}
	return true;
}

void advisor_stats(struct cache *c, cache_stat_fn *emit, void *arg)
{
	struct advisor *a = c->advice->advisor;
	uint64_t began_us;

	if (!a)
		return;
	began_us = atomic_load(&a->began_us);
	emit(arg, "terrace_advisor_passes_total", "", (double)atomic_load(&a->passes), true, "rounds of the advisor");
	emit(arg, "terrace_advisor_mail_dropped_total", "", (double)graph_mail_dropped(a->mail), true,
	     "events that the advisor's mailbox had no room for");
	emit(arg, "terrace_advisor_pass_seconds", "", (double)atomic_load(&a->pass_us) / 1e6, false, "time of its last round");
	emit(arg, "terrace_advisor_pass_seconds_max", "", (double)atomic_load(&a->pass_us_max) / 1e6, false, "time of its longest round");
	emit(arg, "terrace_advisor_pass_now_seconds", "", began_us ? (double)(clock_us() - began_us) / 1e6 : 0, false,
	     "time that the round under way has taken; 0: none is");
	emit(arg, "terrace_graph_nodes", "", (double)atomic_load(&a->nodes), false, "blocks in the graph, those that are gone too");
	emit(arg, "terrace_graph_edges", "", (double)atomic_load(&a->edges), false, "edges in the graph");
	emit(arg, "terrace_graph_kept_total", "", (double)atomic_load(&a->kept), true, "nodes and edges told to the catalog");
	emit(arg, "terrace_learned_kept_total", "", (double)atomic_load(&a->pieces), true, "pieces of what policies have learned told to the catalog");
}

/* ---- for operators ---- */

/* Fills in the key of the block of that name that is there in any layout. */
static void key_of(const struct cache *c, uint64_t name, struct cache_graph_edge *out)
{
	for (uint32_t i = 0; i < c->pool_count; i++) {
		const struct block *b = by_id_find(c, policy_id(name, c->pools[i]->layout_id));

		if (!b)
			continue;
		out->key_bytes = block_key_bytes(b);
		memcpy(out->key, block_key(b), out->key_bytes);
		out->tier = block_tier(b);
		return;
	}
}

/* Writes the block's own copies, each as an edge from the key to itself: the edge's tier says where the copy is. */
static uint32_t copies_of(const struct cache *c, uint64_t name, struct cache_graph_edge *out, uint32_t max)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->pool_count && n < max; i++) {
		const struct block *b = by_id_find(c, policy_id(name, c->pools[i]->layout_id));

		if (!b)
			continue;
		out[n] = (struct cache_graph_edge){ .name = name, .weight = 1, .type = "spill_link", .tier = block_tier(b),
						    .key_bytes = block_key_bytes(b) };
		memcpy(out[n++].key, block_key(b), block_key_bytes(b));
		if (n < max && block_is(b, BLOCK_AT_PEER)) {
			out[n] = out[n - 1];
			out[n++].tier = "peer";
		}
	}
	return n;
}

static bool lock_by(struct advisor *a, uint64_t until_us)
{
	bool locked;

	while (!(locked = !pthread_mutex_trylock(&a->lock)) && clock_us() < until_us)
		nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
	return locked;
}

enum status cache_graph(struct cache *c, const uint8_t *key, uint32_t key_bytes, struct cache_graph_edge *out, uint32_t max,
			uint32_t *n, const char **why)
{
	static const char *const types[EDGE_TYPES] = { "prefix_share", "co_attend", "temporal", "semantic", "spill_link" };
	const struct cache_keys one = { key, 1, key_bytes };
	struct graph_near near[EDGES_OF_NODE];
	struct advisor *a = c->advice->advisor;
	uint32_t shown = 0, found;

	*why = cache_keys_problem(&one, 1);
	if (*why)
		return STATUS_INVALID;
	*why = "this daemon keeps no graph (graph_nodes = 0)";
	if (!a)
		return STATUS_UNAVAILABLE;
	const uint64_t name = key_name(key, key_bytes);

	*why = "the advisor is busy, or a disk keeps it in the catalog";
	if (!lock_by(a, clock_us() + GRAPH_WAIT_US))
		return STATUS_UNAVAILABLE;
	for (uint32_t t = 0; t < EDGE_TYPES; t++) {
		found = graph_edges_near(a->graph, a->latest_us, &name, 1, EDGE_MASK(t), near, EDGES_OF_NODE);
		for (uint32_t i = 0; i < found && shown < max; i++)
			out[shown++] = (struct cache_graph_edge){ .name = near[i].id, .weight = near[i].weight,
								  .type = types[t], .tier = "" };
	}
	pthread_mutex_unlock(&a->lock);
	cache_lock(c);
	for (uint32_t i = 0; i < shown; i++)
		key_of(c, out[i].name, &out[i]);
	shown += copies_of(c, name, out + shown, max - shown);
	cache_unlock(c);
	*n = shown;
	return STATUS_OK;
}
