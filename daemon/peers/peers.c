/* The part and its thread. See peers.h. */
#include "daemon/peers/peers.h"

#include "daemon/block/lock.h"
#include "daemon/exports/exports.h"
#include "daemon/names/names.h"
#include "daemon/peers/forget.h"
#include "daemon/peers/source.h"
#include "daemon/peers/spill.h"
#include "daemon/peers/state.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/part.h"
#include "daemon/secrets/secrets.h"
#include "proto/tls.h"
#include "daemon/threads/deadline.h"
#include "store/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_BYTES (128ull << 20)
#define REFUSED_US (60ull * 1000 * 1000)
#define TAKE_US 250000ull
#define PROBE_US 1000000ull
enum { NAMES_PUBLISHED_MAX = 1 << 20, MESSAGES_A_SECOND = 100, ANSWERS = 1 << 16, SWEEP = 4096, PROBES = 4 };

/* ---- members ---- */

static void member_changed(void *arg, enum member_change change, const struct member *m)
{
	struct peers *p = arg;

	(void)change;
	(void)m;
	pthread_mutex_lock(&p->lock);
	p->members_changed = true;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

static int by_node(const void *a, const void *b)
{
	return memcmp(((const struct directory_member *)a)->run.node, ((const struct directory_member *)b)->run.node,
		      DIRECTORY_NODE_BYTES);
}

/* The members that keep the directory: each node once, those that do not are left out. */
static uint32_t gather(const struct members_list *list, struct directory_member *at)
{
	uint32_t n = 0, kept = 0;

	for (uint32_t i = 0; i < list->count; i++) {
		const struct member *m = &list->at[i];

		if (!m->peer_protocol)
			continue;
		at[n] = (struct directory_member){ .run.epoch = m->epoch, .draining = m->draining };
		memcpy(at[n++].run.node, m->node, sizeof m->node);
	}
	qsort(at, n, sizeof *at, by_node);
	for (uint32_t i = 0; i < n; i++)
		if (!kept || by_node(&at[kept - 1], &at[i]))
			at[kept++] = at[i];
	return kept;
}

static void follow_members(struct peers *p)
{
	const struct members_list *list = members_take(p->members);
	struct directory_member *at = calloc(list->count + 1, sizeof *at);
	const uint32_t n = at ? gather(list, at) : 0;
	struct owners *fresh = NULL, *old;

	members_drop(list);
	if (!at || owners_create(at, n, &fresh) != STATUS_OK) {
		free(at);
		member_changed(p, MEMBER_CHANGED, NULL); /* again, when there may be memory */
		return;
	}
	directory_members(p->directory, at, n);
	outbox_members(p->outbox, fresh, clock_us());
	free(at);
	pthread_mutex_lock(&p->lock);
	old = p->owners;
	p->owners = fresh;
	pthread_mutex_unlock(&p->lock);
	owners_drop(old);
}

/* ---- the avoided: called by the links ---- */

static bool avoided(void *arg, const struct directory_run *run)
{
	struct peers *p = arg;

	return hints_avoided(p->hints, run, clock_us());
}

/* Of what a member answered itself nothing else follows: it works. So does one of an older version that lacks a
 * method. */
static void told(void *arg, const struct directory_run *run, enum status s)
{
	struct peers *p = arg;

	const bool is_failure = s == STATUS_UNAVAILABLE || s == STATUS_DEADLINE || s == STATUS_DENIED ||
				s == STATUS_INTERNAL;

	if (is_failure)
		hints_failed(p->hints, run, clock_us());
	else if (hints_avoided(p->hints, run, clock_us()))
		outbox_retry(p->outbox, run);
	if (!is_failure)
		hints_worked(p->hints, run);
}

/* Nothing calls a member that is avoided. So it is asked whether it serves; if it does, it is avoided no longer. */
static void probe(struct peers *p, uint64_t now_us)
{
	const struct members_list *list = members_take(p->members);
	uint32_t probes = 0;

	for (uint32_t i = 0; i < list->count && probes < PROBES; i++) {
		const struct member *m = &list->at[(p->probed + 1) % list->count];
		struct directory_run run = { .epoch = m->epoch };

		p->probed = (p->probed + 1) % list->count;
		memcpy(run.node, m->node, sizeof run.node);
		if (!m->self && hints_avoided(p->hints, &run, now_us))
			probes += links_probe(p->links, m->name, now_us + PROBE_US) == STATUS_OK;
	}
	members_drop(list);
}

/* ---- the thread ---- */

/* Waits until there is something to do. Takes the questions; *changed: the list of members is another one. False: the
 * stop. */
static bool wait_work(struct peers *p, struct peers_question **questions, bool *changed)
{
	pthread_mutex_lock(&p->lock);
	for (;;) {
		const uint64_t now = clock_us(), first = p->send_us < p->take_us ? p->send_us : p->take_us;
		const uint64_t due = p->spill_us < first ? p->spill_us : first;
		const struct timespec until = deadline_in(due > now ? due - now : 0);

		if (p->stopping || p->questions || p->members_changed || p->sent || p->offered || due <= now)
			break;
		pthread_cond_timedwait(&p->changed, &p->lock, &until);
	}
	*questions = p->questions;
	p->questions = NULL;
	p->questions_end = &p->questions;
	p->question_count = 0;
	*changed = p->members_changed;
	p->members_changed = false;
	if (p->sent)
		p->send_us = 0; /* a message has ended: there is room for another one */
	if (p->offered)
		p->spill_us = 0;
	p->sent = p->offered = false;
	const bool go_on = !p->stopping;

	pthread_mutex_unlock(&p->lock);
	return go_on;
}

/* Members that this daemon has left their lists for a while have forgotten its blocks. */
static void look_registered(struct peers *p, uint64_t now_us)
{
	struct members_status status;

	members_status(p->members, &status);
	if (status.registrations > p->registrations && p->registrations)
		outbox_check(p->outbox, now_us);
	p->registrations = status.registrations;
}

static void step(struct peers *p, struct peers_question *q, bool changed)
{
	const uint64_t now = clock_us();

	if (changed)
		follow_members(p);
	for (struct peers_question *next; q; q = next) {
		next = q->next;
		peers_question_begin(p, q);
	}
	if (now >= p->take_us) {
		p->take_us = now + TAKE_US;
		peers_take_changes(p, now);
		directory_sweep(p->directory, SWEEP, now);
	}
	if (now >= p->probe_us) {
		p->probe_us = now + PROBE_US;
		probe(p, now);
		look_registered(p, now);
	}
	if (now >= p->send_us)
		peers_send(p, now);
	if (now >= p->spill_us)
		p->spill_us = peers_spill(p, now);
}

static void *peers_main(void *arg)
{
	struct peers *p = arg;
	struct peers_question *q;
	bool changed;

	cache_thread_enter();
	while (wait_work(p, &q, &changed))
		step(p, q, changed);
	for (struct peers_question *next; q; q = next) {
		next = q->next;
		peers_question_end(q, STATUS_CANCELLED);
	}
	cache_thread_leave();
	return NULL;
}

/* ---- the part ---- */

bool peers_wanted(const struct daemon *d, const char **why)
{
	const struct config *c = d->config;

	*why = NULL;
	if (!c->cluster[0])
		return false;
	if (!c->directory)
		*why = "directory = off";
	else if (!c->listen[0] || !config_listen_tls(c))
		*why = "other members cannot call this daemon: listen is off, or has no certificates";
	else if (!d->secrets)
		*why = "there is no secret";
	return !*why;
}

enum status peers_create(struct daemon *d, char *why, size_t size)
{
	const struct config *c = d->config;
	struct peers *p = calloc(1, sizeof *p);
	const struct tls_files files = { c->listen_cert, c->listen_key, c->listen_ca };
	struct peer_links_options links = { .members = d->members,
					    .files = &files,
					    .agent = "terraced/" TERRACE_VERSION, .avoided = avoided, .told = told,
					    .arg = p };
	enum status s;

	snprintf(why, size, "no memory for the directory of the cluster's blocks: give the daemon more, or set "
			    "directory = off");
	if (!p)
		return STATUS_EXHAUSTED;
	p->daemon = d;
	p->members = d->members;
	p->self.epoch = cache_epoch(d->cache);
	memcpy(p->self.node, d->node, sizeof p->self.node);
	p->questions_end = &p->questions;
	pthread_mutex_init(&p->lock, NULL);
	deadline_cond_init(&p->changed);
	const struct directory_options directory = { .bytes_max = TABLE_BYTES, .refused_us = REFUSED_US };
	struct outbox_options outbox = { .names_max = NAMES_PUBLISHED_MAX,
					 .messages_a_second = MESSAGES_A_SECOND, .seed = p->self.epoch };

	memcpy(outbox.self, p->self.node, sizeof outbox.self);
	p->forgets = forgets_create();
	p->spills = spills_create();
	p->messages = calloc(PEERS_MESSAGES, sizeof p->messages[0]);
	p->packed = malloc(sizeof *p->packed);
	cache_lock(d->cache); /* blocks of the disks come meanwhile */
	s = exports_create(d->cache, secrets_names(d->secrets));
	cache_unlock(d->cache);
	if (s == STATUS_OK)
		s = p->messages && p->packed && p->forgets && p->spills ? directory_create(&directory, &p->directory) :
							     STATUS_EXHAUSTED;
	if (s == STATUS_OK)
		s = outbox_create(&outbox, &p->outbox);
	if (s == STATUS_OK)
		s = hints_create(ANSWERS, &p->hints);
	if (s == STATUS_OK)
		s = links_create(&links, &p->links);
	if (d->config->peer_spill)
		cache_may_hand_on(d->cache);
	if (s == STATUS_OK) {
		cache_lock(d->cache);
		s = peer_source_create(d->cache, secrets_names(d->secrets), p, &p->source);
		cache_unlock(d->cache);
	}
	if (s != STATUS_OK) {
		peers_destroy(p);
		return s;
	}
	p->observer = (struct members_observer){ member_changed, p };
	members_observe(p->members, &p->observer);
	d->peers = p;
	d->peer_protocol = PEERS_PROTOCOL;
	return STATUS_OK;
}

void peers_serve(struct peers *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->serving = !pthread_create(&p->thread, NULL, peers_main, p);
	const bool serves = p->serving;

	pthread_mutex_unlock(&p->lock);
	if (!serves)
		log_error("peers_failed", LOG_TEXT("reason", "cannot start the thread"),
			  LOG_TEXT("remedy", "raise the limit of threads (ulimit -u, TasksMax, pids.max), and start "
					     "the daemon again: it serves, but finds nothing at other members"));
}

static bool threads_stop(void *part, uint64_t wait_us)
{
	struct peers *p = part;

	(void)wait_us; /* neither thread waits for anything but an event */
	pthread_mutex_lock(&p->lock);
	p->stopping = true;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
	if (p->serving && !p->joined)
		pthread_join(p->thread, NULL);
	p->joined = true;
	if (p->links)
		links_stop(p->links);
	return true;
}

static void destroy(void *part)
{
	threads_stop(part, UINT64_MAX);
}

void peers_destroy(struct peers *p)
{
	if (!p)
		return;
	threads_stop(p, UINT64_MAX);
	links_destroy(p->links);
	peer_source_destroy(p->source);
	forgets_destroy(p->forgets);
	spills_destroy(p->spills);
	owners_drop(p->owners);
	hints_destroy(p->hints);
	outbox_destroy(p->outbox);
	directory_destroy(p->directory);
	free(p->packed);
	free(p->messages);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void peers_look_at(struct peers *p, const struct member *m, struct peers_view *out)
{
	struct directory_run run = { .epoch = m->epoch };

	memcpy(run.node, m->node, sizeof run.node);
	out->state = links_state(p->links, m->name, &out->calls);
	out->avoided = hints_avoided(p->hints, &run, clock_us());
}

/* ---- figures ---- */

static double figure(const atomic_ullong *of)
{
	return (double)atomic_load_explicit(of, memory_order_relaxed);
}

static void stats_directory(struct peers *p, cache_stat_fn *emit, void *arg)
{
	struct directory_counts t;

	directory_counts(p->directory, &t);
	emit(arg, "terrace_directory_entries", "", (double)t.entries, false,
	     "entries of other members' blocks that this daemon keeps for the cluster");
	emit(arg, "terrace_directory_entries_max", "", (double)t.capacity, false, "bound of that");
	emit(arg, "terrace_directory_bytes", "", (double)t.bytes, false, "memory of that");
	emit(arg, "terrace_directory_dropped_total", "", (double)t.dropped, true,
	     "entries that were dropped for want of room, the oldest first");
	emit(arg, "terrace_directory_digests_total", "", (double)t.digests, true, "digests of holders compared");
	emit(arg, "terrace_directory_digests_differing_total", "", (double)t.differing, true,
	     "of these: something that was told had been lost");
	emit(arg, "terrace_directory_stale_total", "", (double)t.stale, true, "messages out of order, not taken");
	emit(arg, "terrace_directory_unknown_total", "", (double)t.unknown, true,
	     "messages of daemons that are no members, not taken");
}

static void stats_outbox(struct peers *p, cache_stat_fn *emit, void *arg)
{
	struct outbox_counts o;

	outbox_counts(p->outbox, &o);
	emit(arg, "terrace_peers_published", "", (double)o.names, false,
	     "blocks of this daemon that other members are told of");
	emit(arg, "terrace_peers_unpublished_total", "", (double)o.turned_away, true,
	     "blocks that were not told of, for want of room");
	emit(arg, "terrace_peers_publish_waiting", "", (double)o.waiting, false,
	     "segments of which an owner has to be told something");
	emit(arg, "terrace_peers_publish_messages_total", "", (double)o.messages, true, "messages to owners");
	emit(arg, "terrace_peers_publish_failed_total", "", (double)o.failed, true, "of these, such as failed");
}

static void stats(void *part, cache_stat_fn *emit, void *arg)
{
	struct peers *p = part;
	struct hints_counts h;

	links_stats(p->links, emit, arg);
	peer_source_stats(p->source, emit, arg);
	spills_stats(p->spills, p->daemon->cache, emit, arg);
	stats_directory(p, emit, arg);
	stats_outbox(p, emit, arg);
	hints_counts(p->hints, clock_us(), &h);
	emit(arg, "terrace_peers_avoided", "", (double)h.avoided, false,
	     "members that failed to answer and are not called for a while");
	emit(arg, "terrace_peers_questions_total", "", figure(&p->asked), true, "questions to owners of segments");
	emit(arg, "terrace_peers_names_asked_total", "", figure(&p->names_asked), true, "names in them");
	emit(arg, "terrace_peers_names_found_total", "", figure(&p->found), true, "of these: a member has the block");
	emit(arg, "terrace_peers_names_unanswered_total", "", figure(&p->unanswered), true,
	     "of these: no owner has answered in time");
}

const struct part_ops peers_part = {
	.name = "peers",
	.hangs = "a call to another member does not end",
	.threads_stop = threads_stop,
	.destroy = destroy,
	.stats = stats,
};
