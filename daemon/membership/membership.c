/* The thread of membership. See daemon/membership/membership.h. */
#include "daemon/membership/membership.h"

#include "daemon/block/lock.h"
#include "daemon/etcd/etcd.h"
#include "daemon/members/members.h"
#include "daemon/membership/node_id.h"
#include "daemon/membership/record.h"
#include "daemon/membership/view.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/log_unwritten.h"
#include "daemon/process/part.h"
#include "daemon/process/tenants.h"
#include "daemon/secrets/secrets.h"
#include "daemon/threads/deadline.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_US 1000000ull
#define CALL_LEAST_US (SECOND_US / 2)
#define CALL_MOST_US (5 * SECOND_US)
#define PAUSE_LEAST_US (SECOND_US / 4)
#define PAUSE_MOST_US (5 * SECOND_US)

/* What becomes of the key of this daemon's name. */
enum registration {
	UNREGISTERED,                /* the key is not there, or a lease has to be taken: to be written */
	REGISTERED,
	TAKEN,                       /* another daemon has it */
};

enum { JOIN_TRIES = 8, KEY_MAX = RECORD_PREFIX_MAX + MEMBER_NAME_MAX };

struct membership {
	const struct daemon *daemon;
	struct members *members;
	struct etcd *etcd;
	pthread_t thread;
	pthread_mutex_t lock;        /* of done; of stopping with etcd_interrupt, before etcd_resume */
	pthread_cond_t done_changed;
	bool serving, stopped, done;
	_Atomic bool stopping;
	struct members_observer observer;
	const struct names *names;

	/* the thread's */
	char prefix[RECORD_PREFIX_MAX], key[KEY_MAX];
	struct member own;           /* as it is to be registered */
	struct member written;       /* as it was */
	struct view view;
	enum registration registration;
	int64_t own_revision;        /* of the key of this name; 0: it is not there */
	struct member holder;        /* TAKEN: the member that has it */
	int64_t lease;               /* 0: none */
	uint64_t keep_us, keep_every_us; /* the next renewal */
	uint64_t forget_us, ttl_us;
	bool was_registered;         /* in this run: its own key is not to be taken over any more */
	bool lost_told;
	uint64_t pause_us;
	struct log_again lost_again, secret_again;
	/* versions of `names`: of `written`, and of what the list was compared with */
	uint64_t written_names, read_names;
	struct members_status status;

	/* figures; written by the thread */
	_Atomic uint64_t changes[MEMBER_RESTARTED + 1], sessions, registrations, foreign, failures;
};

static void count(_Atomic uint64_t *figure)
{
	atomic_fetch_add_explicit(figure, 1, memory_order_relaxed);
}

static bool is_stopping(const struct membership *m)
{
	return atomic_load_explicit(&m->stopping, memory_order_acquire);
}

/* ---- what is told ---- */

static void tell(struct membership *m, enum members_state state, const char *reason)
{
	m->status.state = state;
	snprintf(m->status.reason, sizeof m->status.reason, "%s", reason);
	snprintf(m->status.endpoint, sizeof m->status.endpoint, "%s", etcd_endpoint(m->etcd));
	members_tell(m->members, &m->status);
}

static void confirmed(struct membership *m)
{
	m->status.confirmed_us = daemon_now_us();
	members_tell(m->members, &m->status);
}

static bool any_of(const uint64_t of[MEMBER_TENANT_WORDS])
{
	return of[0] | of[1] | of[2] | of[3];
}

static void tell_other_secret(struct membership *m, const struct member *of)
{
	const struct tenants *table = m->daemon->config->tenants;
	char tenants[256] = "default";
	uint64_t held;

	_Static_assert((int)MEMBER_TENANT_WORDS == (int)WHO_TENANT_WORDS, "one form");
	if (!log_again(&m->secret_again, daemon_now_us(), &held))
		return;
	if (table)
		tenants_text(table, of->other_secret, tenants, sizeof tenants);
	log_warn("member_other_secret", LOG_TEXT("name", of->name), LOG_TEXT("tenants", tenants),
		 LOG_TEXT("reason", "its secret is neither this daemon's nor its old one: its blocks cannot be found "
				    "from here"),
		 LOG_TEXT("remedy", "none while secrets are being changed; else give all daemons the same one "
				    "(terracectl status shows fingerprints)"),
		 LOG_NUM("held_back", held));
}

/* By the observer, on the membership's thread. */
static void member_changed(void *arg, enum member_change change, const struct member *of)
{
	static const char *const events[] = { "member_joined", "member_left", "member_changed", "member_restarted" };
	struct membership *m = arg;

	count(&m->changes[change]);
	if (of->self)
		return;
	log_info(events[change], LOG_TEXT("name", of->name), LOG_TEXT("address", of->address),
		 LOG_TEXT("version", of->version),
		 LOG_TEXT("state", of->absent ? "absent" : of->draining ? "draining" : "serving"));
	if (change != MEMBER_LEFT && any_of(of->other_secret))
		tell_other_secret(m, of);
}

static const char *remedy_of(enum status s)
{
	if (s == STATUS_DENIED)
		return "look at etcd_user and etcd_password_file, and give the user the rights to read and write keys "
		       "that begin with /terrace/CLUSTER/";
	if (s == STATUS_STALE)
		return "see what else writes this daemon's key under /terrace/CLUSTER/members/, and give each daemon a "
		       "node_name and a data_dir of its own; until then the last members are kept";
	if (s == STATUS_INVALID)
		return "see that etcd_endpoints are those of an etcd v3, and what else writes under /terrace/";
	return "see that etcd runs and that etcd_endpoints, etcd_ca, etcd_cert and etcd_key are right; until then the "
	       "last members are kept";
}

/* STALE is what join() has come to: etcd has answered every call. */
static void reason_of(const struct membership *m, enum status s, char out[MEMBERS_REASON_MAX])
{
	if (s == STATUS_STALE)
		snprintf(out, MEMBERS_REASON_MAX,
			 "etcd at %.200s: this daemon's key could not be written: other writes came between, %d times",
			 etcd_endpoint(m->etcd), JOIN_TRIES);
	else
		snprintf(out, MEMBERS_REASON_MAX, "%s", etcd_why(m->etcd));
}

/* All endpoints have failed, the last of them so. Once, and again if it stays so for another reason. */
static void tell_lost(struct membership *m, enum status s)
{
	char reason[MEMBERS_REASON_MAX];
	uint64_t held;

	reason_of(m, s, reason);
	const bool known = m->lost_told && !strcmp(m->status.reason, reason);

	tell(m, m->status.confirmed_us ? MEMBERS_LOST : MEMBERS_JOINING, reason);
	if (known || !log_again(&m->lost_again, daemon_now_us(), &held))
		return;
	m->lost_told = true;
	log_warn("membership_lost", LOG_TEXT("reason", m->status.reason), LOG_TEXT("remedy", remedy_of(s)),
		 LOG_NUM("members", m->view.count), LOG_NUM("held", held));
}

static void tell_taken(struct membership *m)
{
	char reason[MEMBERS_REASON_MAX];
	const bool told = m->status.state == MEMBERS_REFUSED;

	snprintf(reason, sizeof reason,
		 "the name %s is another daemon's, at %s: give each daemon a node_name of its own; if that daemon has "
		 "ended, the name is free %llu s later", m->own.name, m->holder.address,
		 (unsigned long long)(m->ttl_us / SECOND_US));
	tell(m, MEMBERS_REFUSED, reason);
	if (!told)
		log_error("membership_refused", LOG_TEXT("reason", "another daemon of the cluster has this node_name"),
			  LOG_TEXT("name", m->own.name), LOG_TEXT("holder", m->holder.address),
			  LOG_TEXT("remedy", "give each daemon a node_name and a data_dir of its own"));
}

static void tell_joined(struct membership *m)
{
	const bool told = m->status.state == MEMBERS_JOINED;

	tell(m, MEMBERS_JOINED, "");
	m->lost_told = false;
	if (!told)
		log_info("membership_joined", LOG_TEXT("name", m->own.name), LOG_TEXT("cluster",
			 m->daemon->config->cluster), LOG_TEXT("etcd", etcd_endpoint(m->etcd)),
			 LOG_NUM("members", m->view.count));
}

static void publish(struct membership *m)
{
	if (!m->view.changed)
		return;
	if (members_publish(m->members, m->view.at, m->view.count) == STATUS_OK)
		m->view.changed = false; /* else with the next event, when there may be memory */
}

/* ---- keys of etcd ---- */

static void foreign_key(struct membership *m, const uint8_t *name, size_t n, const char *problem)
{
	char text[MEMBER_NAME_MAX];

	if (atomic_fetch_add_explicit(&m->foreign, 1, memory_order_relaxed))
		return;
	snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), (const char *)name);
	log_warn("membership_foreign_key", LOG_TEXT("prefix", m->prefix), LOG_TEXT("key", text),
		 LOG_TEXT("reason", problem),
		 LOG_TEXT("remedy", "another program writes there: give the cluster another name, or delete the key; "
				    "more of them are only counted (terrace_membership_ignored_total)"));
}

/* The key of this daemon's name, as it is now in etcd. */
static void own_key(struct membership *m, const struct etcd_key *key, const struct member *found)
{
	m->own_revision = key->mod_revision;
	if (found && found->epoch == m->own.epoch && key->lease == m->lease && m->lease) {
		m->registration = REGISTERED;
	} else if (found && !memcmp(found->node, m->own.node, sizeof found->node) &&
		   (!m->was_registered || found->epoch == m->own.epoch)) {
		m->registration = UNREGISTERED; /* of an earlier run, or under an earlier lease: written anew */
	} else {
		m->registration = TAKEN;
		if (found)
			m->holder = *found;
		else
			snprintf(m->holder.address, sizeof m->holder.address, "unknown (what is there is no daemon's)");
	}
}

static void deleted_key(struct membership *m, const uint8_t *name, size_t n)
{
	char text[MEMBER_NAME_MAX];

	if (n >= sizeof text)
		return;
	snprintf(text, sizeof text, "%.*s", (int)n, (const char *)name);
	view_remove(&m->view, text);
	if (strcmp(text, m->own.name))
		return;
	m->own_revision = 0;
	m->registration = UNREGISTERED;
}

/* etcd_take_fn, of a range and of a watch. */
static void take_key(void *arg, const struct etcd_key *key)
{
	struct membership *m = arg;
	const size_t skip = strlen(m->prefix);
	struct member found;

	if (key->key_bytes <= skip || memcmp(key->key, m->prefix, skip))
		return;
	const uint8_t *name = key->key + skip;
	const size_t n = key->key_bytes - skip;
	const bool own = n == strlen(m->own.name) && !memcmp(name, m->own.name, n);

	if (key->deleted) {
		deleted_key(m, name, n);
		return;
	}
	const char *problem = record_read(name, n, key->value, key->value_bytes, m->names, &found);

	if (own)
		own_key(m, key, problem ? NULL : &found);
	if (problem) {
		foreign_key(m, name, n, problem);
		return;
	}
	found.self = own && found.epoch == m->own.epoch;
	if (!view_put(&m->view, &found, daemon_now_us()))
		foreign_key(m, name, n, "there are more members than a cluster may have (4096)");
}

/* ---- steps of a session ---- */

static enum status lease_take(struct membership *m)
{
	const int64_t wanted = (int64_t)(m->daemon->config->member_ttl_ms + 999) / 1000;
	int64_t ttl_s;
	const enum status s = etcd_lease_grant(m->etcd, wanted, &m->lease, &ttl_s);

	if (s != STATUS_OK) {
		m->lease = 0;
		return s;
	}
	m->ttl_us = (uint64_t)ttl_s * SECOND_US;
	m->keep_every_us = m->ttl_us / 3;
	m->keep_us = daemon_now_us() + m->keep_every_us;
	return STATUS_OK;
}

/* Renews the lease; one that has ended is replaced, and the key is written under the new one. */
static enum status lease_keep(struct membership *m)
{
	int64_t ttl_s = 0;
	enum status s = m->lease ? etcd_lease_keep(m->etcd, m->lease, &ttl_s) : STATUS_OK;

	if (s != STATUS_OK)
		return s;
	m->keep_us = daemon_now_us() + m->keep_every_us;
	if (m->lease)
		confirmed(m);
	if (ttl_s)
		return STATUS_OK;
	if (m->lease)
		log_warn("member_lease_expired",
			 LOG_TEXT("reason", "etcd was not reached in time, or has lost its data"),
			 LOG_TEXT("remedy", "none needed: the daemon registers again; raise member_ttl if it comes "
					    "often"));
	if (m->registration == REGISTERED)
		m->registration = UNREGISTERED;
	return lease_take(m);
}

static bool own_differs(const struct membership *m)
{
	return m->own.draining != m->written.draining || m->written_names != names_version(m->names);
}

/* Writes the key, if it is to be written. */
static enum status own_put(struct membership *m)
{
	uint8_t value[RECORD_BYTES_MAX];
	struct member itself = { .epoch = 0 };
	bool written = false;

	m->own.draining = cache_draining(m->daemon->cache);
	if (m->registration == TAKEN || (m->registration == REGISTERED && !own_differs(m)))
		return STATUS_OK;
	const uint64_t version = names_version(m->names);
	const size_t n = record_write(&m->own, m->names, value);
	const enum status s = etcd_put_if(m->etcd, m->key, m->own_revision, value, n, m->lease, &written);

	if (s != STATUS_OK)
		return s;
	confirmed(m);
	if (!written)
		return STATUS_STALE; /* another daemon was quicker: its entry must be read */
	record_read((const uint8_t *)m->own.name, strlen(m->own.name), value, n, m->names, &itself);
	memcpy(m->own.same_secret, itself.same_secret, sizeof itself.same_secret);
	m->written = m->own;
	m->written_names = version;
	view_put(&m->view, &m->own, daemon_now_us()); /* before the watch tells it */
	m->was_registered = true;
	m->status.registrations += m->registration != REGISTERED;
	m->registration = REGISTERED;
	count(&m->registrations);
	return STATUS_OK;
}

/* All keys, this daemon's own, and a watch of what follows. kept_us: for how long members stay that are not there. */
static enum status read_all(struct membership *m, uint64_t kept_us)
{
	int64_t revision;
	enum status s;

	m->own_revision = 0;
	m->registration = UNREGISTERED;
	m->read_names = names_version(m->names);
	view_read_begin(&m->view);
	s = etcd_range(m->etcd, m->prefix, take_key, m, &revision);
	if (s != STATUS_OK)
		return s;
	view_read_end(&m->view, kept_us ? daemon_now_us() + kept_us : 0);
	confirmed(m);
	s = own_put(m);
	if (s != STATUS_OK)
		return s;
	return etcd_watch(m->etcd, m->prefix, revision + 1);
}

/* As read_all; begins again where another write, or a compaction, came between. */
static enum status join(struct membership *m, uint64_t kept_us)
{
	enum status s = STATUS_STALE;

	for (int i = 0; i < JOIN_TRIES && s == STATUS_STALE; i++)
		s = read_all(m, kept_us);
	if (s != STATUS_OK)
		return s;
	m->forget_us = view_forget(&m->view, daemon_now_us());
	publish(m);
	return STATUS_OK;
}

static void tell_standing(struct membership *m)
{
	if (m->registration == TAKEN)
		tell_taken(m);
	else
		tell_joined(m);
}

/* Until the next event, renewal, or member to be forgotten. */
static enum status wait_event(struct membership *m)
{
	const uint64_t now = daemon_now_us(), due = m->keep_us < m->forget_us ? m->keep_us : m->forget_us;
	enum status s = etcd_watch_next(m->etcd, due > now ? due - now : 0, take_key, m);

	if (s == STATUS_OK)
		confirmed(m);
	if (s == STATUS_STALE)
		s = join(m, 0);
	return s == STATUS_MISS ? STATUS_OK : s;
}

static enum status step(struct membership *m)
{
	enum status s = wait_event(m);

	if (s == STATUS_OK && m->read_names != names_version(m->names))
		s = STATUS_STALE; /* every record is compared with the secrets as they are now */
	if (s == STATUS_OK && daemon_now_us() >= m->keep_us)
		s = lease_keep(m);
	if (s == STATUS_OK)
		s = own_put(m);
	if (s == STATUS_STALE)
		s = join(m, 0);
	if (s != STATUS_OK)
		return s;
	m->forget_us = view_forget(&m->view, daemon_now_us());
	publish(m);
	tell_standing(m);
	return STATUS_OK;
}

/* One connection, for as long as it works. *worked: it did at all. */
static enum status session(struct membership *m, bool *worked)
{
	enum status s = etcd_connect(m->etcd);

	if (s == STATUS_OK)
		s = lease_keep(m);
	if (s == STATUS_OK)
		s = join(m, m->ttl_us + PAUSE_MOST_US);
	*worked = s == STATUS_OK;
	if (*worked) {
		count(&m->sessions);
		m->pause_us = PAUSE_LEAST_US;
		tell_standing(m);
	}
	while (s == STATUS_OK)
		s = step(m);
	if (is_stopping(m))
		return s; /* leave() has a word to say yet */
	count(&m->failures);
	etcd_disconnect(m->etcd);
	return s;
}

/* Each endpoint once, from the next one of the list on. */
static void try_all(struct membership *m)
{
	enum status s = STATUS_UNAVAILABLE;
	bool worked = false;

	for (uint32_t i = 0; i < etcd_endpoint_count(m->etcd) && !worked && !is_stopping(m); i++)
		s = session(m, &worked);
	if (is_stopping(m))
		return;
	tell_lost(m, s);
	etcd_sleep(m->etcd, m->pause_us);
	m->pause_us = m->pause_us * 2 < PAUSE_MOST_US ? m->pause_us * 2 : PAUSE_MOST_US;
}

/* Over the connection of the session that the stop has ended: the others need not wait for the lease to end. */
static void leave(struct membership *m)
{
	if (!m->lease)
		return;
	pthread_mutex_lock(&m->lock); /* the interrupt of the stop has come: it would end this call, too */
	etcd_resume(m->etcd, SECOND_US);
	pthread_mutex_unlock(&m->lock);
	etcd_lease_revoke(m->etcd, m->lease);
}

static void *membership_main(void *arg)
{
	struct membership *m = arg;

	cache_thread_enter();
	while (!is_stopping(m))
		try_all(m);
	leave(m);
	etcd_disconnect(m->etcd);
	cache_thread_leave();
	pthread_mutex_lock(&m->lock);
	m->done = true;
	pthread_cond_broadcast(&m->done_changed);
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

/* ---- the part ---- */

static uint64_t call_us_of(const struct config *c)
{
	const uint64_t third = c->member_ttl_ms * 1000 / 3;

	return third < CALL_LEAST_US ? CALL_LEAST_US : third > CALL_MOST_US ? CALL_MOST_US : third;
}

static void own_init(struct membership *m)
{
	const struct config *c = m->daemon->config;

	snprintf(m->own.name, sizeof m->own.name, "%.63s", c->node_name);
	snprintf(m->own.address, sizeof m->own.address, "%.271s", c->peer_address);
	snprintf(m->own.version, sizeof m->own.version, "%s", TERRACE_VERSION);
	m->own.epoch = cache_epoch(m->daemon->cache);
	m->own.host_bytes = c->host_bytes;
	m->own.self = true;
	record_prefix(c->cluster, m->prefix);
	snprintf(m->key, sizeof m->key, "%s%s", m->prefix, m->own.name);
	m->ttl_us = c->member_ttl_ms * 1000;
	m->keep_every_us = m->ttl_us / 3;
	m->pause_us = PAUSE_LEAST_US;
	m->forget_us = UINT64_MAX;
}

enum status membership_create(struct daemon *d, struct membership **out, char *why, size_t size)
{
	const struct config *c = d->config;
	const struct etcd_options options = { .endpoints = c->etcd_endpoints, .user = c->etcd_user,
					      .password_file = c->etcd_password_file, .ca = c->etcd_ca,
					      .cert = c->etcd_cert, .key = c->etcd_key,
					      .agent = "terraced/" TERRACE_VERSION, .call_us = call_us_of(c) };
	struct membership *m = calloc(1, sizeof *m);
	enum status s;

	snprintf(why, size, "no memory for the list of members");
	if (!m)
		return STATUS_EXHAUSTED;
	m->daemon = d;
	m->names = secrets_names(d->secrets);
	pthread_mutex_init(&m->lock, NULL);
	deadline_cond_init(&m->done_changed);
	own_init(m);
	m->observer = (struct members_observer){ member_changed, m };
	s = view_init(&m->view) ? members_create(&m->members) : STATUS_EXHAUSTED;
	if (s == STATUS_OK)
		s = node_id_read(c->data_dir, m->own.node, why, size);
	if (s == STATUS_OK && !(m->etcd = etcd_create(&options)))
		s = STATUS_EXHAUSTED;
	if (s != STATUS_OK) {
		membership_part.destroy(m);
		return s;
	}
	members_observe(m->members, &m->observer);
	d->members = m->members;
	memcpy(d->node, m->own.node, sizeof d->node);
	*out = m;
	return STATUS_OK;
}

void membership_serve(struct membership *m)
{
	if (!m)
		return;
	m->own.peer_protocol = m->daemon->peer_protocol;
	m->serving = !pthread_create(&m->thread, NULL, membership_main, m);
	if (!m->serving)
		log_error("membership_failed", LOG_TEXT("reason", "cannot start its thread"),
			  LOG_TEXT("remedy", "raise the limit of threads (ulimit -u, TasksMax, pids.max), and start "
					     "the daemon again: it serves, but is in no cluster"));
}

static bool threads_stop(void *part, uint64_t wait_us)
{
	struct membership *m = part;

	if (!m->serving)
		return true;
	pthread_mutex_lock(&m->lock);
	atomic_store_explicit(&m->stopping, true, memory_order_release);
	if (!m->stopped)
		etcd_interrupt(m->etcd);
	m->stopped = true;
	pthread_mutex_unlock(&m->lock);
	return deadline_wait(&m->done_changed, &m->lock, &m->done, wait_us);
}

static void destroy(void *part)
{
	struct membership *m = part;

	if (m->serving) {
		threads_stop(m, UINT64_MAX);
		pthread_join(m->thread, NULL);
	}
	etcd_destroy(m->etcd);
	members_destroy(m->members);
	view_fini(&m->view);
	pthread_cond_destroy(&m->done_changed);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

static double figure(const _Atomic uint64_t *of)
{
	return (double)atomic_load_explicit(of, memory_order_relaxed);
}

static void stats(void *part, cache_stat_fn *emit, void *arg)
{
	static const char *const changes[] = { "change=joined", "change=left", "change=changed", "change=restarted" };
	struct membership *m = part;
	const struct members_list *list = members_take(m->members);
	struct members_status status;
	uint32_t peers = 0, absent = 0, other = 0;
	char label[32];

	members_status(m->members, &status);
	for (uint32_t i = 0; i < list->count; i++) {
		peers += !list->at[i].self;
		absent += list->at[i].absent;
		other += any_of(list->at[i].other_secret);
	}
	members_drop(list);
	snprintf(label, sizeof label, "state=%s", members_state_text(status.state));
	emit(arg, "terrace_peers", "", peers, false, "other daemons of the cluster that are known");
	emit(arg, "terrace_peers_absent", "", absent, false,
	     "of these, such as etcd came back without; they are forgotten soon");
	emit(arg, "terrace_peers_other_secret", "", other, false,
	     "of these, such as have another secret for a tenant: their blocks of it cannot be found from here");
	emit(arg, "terrace_membership_info", label, 1, false,
	     "joining, joined, lost (no etcd: the last members are kept) or refused (another daemon's name)");
	emit(arg, "terrace_membership_joined", "", status.state == MEMBERS_JOINED, false,
	     "registered in etcd, which answers");
	emit(arg, "terrace_membership_age_seconds", "",
	     status.confirmed_us ? (double)(daemon_now_us() - status.confirmed_us) / 1e6 : -1, false,
	     "time since etcd last answered; -1: it never has");
	emit(arg, "terrace_membership_sessions_total", "", figure(&m->sessions), true,
	     "connections to etcd that worked");
	emit(arg, "terrace_membership_failures_total", "", figure(&m->failures), true,
	     "connections to etcd that failed or ended");
	emit(arg, "terrace_membership_registrations_total", "", figure(&m->registrations), true,
	     "times that this daemon's key was written");
	emit(arg, "terrace_membership_ignored_total", "", figure(&m->foreign), true,
	     "keys read that are no member's");
	for (int i = 0; i <= MEMBER_RESTARTED; i++)
		emit(arg, "terrace_membership_changes_total", changes[i], figure(&m->changes[i]), true,
		     "members that joined, left, changed or were started again");
}

const struct part_ops membership_part = {
	.name = "membership",
	.hangs = "a call to etcd does not end",
	.threads_stop = threads_stop,
	.destroy = destroy,
	.stats = stats,
};
