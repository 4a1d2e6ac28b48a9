/* How sessions end. A closed session's memory may still be touched by its processes, so it stays a detached session
 * until the kernel says that they are gone. */
#include "daemon/session/end.h"

#include "daemon/block/handle.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/session/attachment.h"
#include "daemon/session/grants.h"
#include "daemon/session/lease.h"
#include "daemon/session/reservation.h"
#include "daemon/session/session.h"
#include "daemon/session/watch.h"
#include "store/status.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { PROBES_A_TICK = 256 }; /* system calls, of up to 90 us each where 256 processes map an extent */

enum { PROBES_A_CALL = 256 };

enum { PROBES_AT_EXIT = 256 };

bool cache_attach_gone(struct cache *c, uint64_t attachment, uint64_t now_us, uint64_t *held_bytes)
{
	uint32_t probes = PROBES_AT_EXIT;
	struct attachment *a;
	struct session *s;
	bool last = false;

	cache_lock(c);
	cache_time(c, now_us);
	a = attachment_find(c, attachment);
	if (a && !a->gone) {
		s = a->session;
		last = s->state != SESSION_DETACHED && s->attached == 1;
		if (last && held_bytes)
			*held_bytes = s->held_bytes;
		a->gone = true;
		s->attached--;
		if (s->state == SESSION_DETACHED)
			session_detached_try(c, s, &probes);
		else if (s->attached == 0)
			session_detach(c, s);
		else if (!attachment_holds(c, a, &probes))
			attachment_free(c, a);
	}
	cache_unlock(c);
	return last;
}

enum status cache_session_close(struct cache *c, uint64_t session, uint64_t now_us, const char **why)
{
	struct session *s;

	cache_lock(c);
	s = session_call(c, session, now_us, why);
	if (s)
		session_detach(c, s);
	cache_unlock(c);
	return s ? STATUS_OK : STATUS_NOT_FOUND;
}

void session_detach(struct cache *c, struct session *s)
{
	uint32_t probes = PROBES_A_CALL;

	atomic_store_explicit(&s->id, 0, memory_order_release);
	s->state = SESSION_DETACHED;
	memset(s->token, 0, sizeof(s->token));
	c->open_sessions--;
	c->detached_sessions++;
	cache_count(c, COUNTER_DETACHED_SESSIONS, 1);
	watch_session_ended(c, s->handle);
	session_detached_try(c, s, &probes);
}

/* Ends the session's reservations. A reservation that the daemon itself is sealing or writing ends by itself. */
static void reservations_end(struct cache *c, struct session *s)
{
	struct reservation *next;

	for (struct reservation *r = s->reservations; r; r = next) {
		next = r->next;
		if (!r->committing && !r->stream)
			reservation_end(c, r);
	}
}

static void session_free(struct cache *c, struct session *s)
{
	while (s->attachments)
		attachment_free(c, s->attachments);
	handle_places_drop(&c->grants->session_places, s->handle);
	quota_give(s->holder, QUOTA_SESSIONS, 1);
	quota_leave(s->holder);
	session_reset(s);
	c->detached_sessions--;
}

void session_detached_try(struct cache *c, struct session *s, uint32_t *probes)
{
	for (struct attachment *a = s->attachments; a; a = a->next)
		if (attachment_holds(c, a, probes))
			return;
	while (s->leases)
		lease_end(c, s->leases);
	reservations_end(c, s);
	if (!s->reservations)
		session_free(c, s);
}

/* Frees attachments that are gone and hold nothing: an open session needs them no more. */
static void session_prune(struct cache *c, struct session *s, uint32_t *probes)
{
	struct attachment *next;

	for (struct attachment *a = s->attachments; a; a = next) {
		next = a->next;
		if (a->gone && !attachment_holds(c, a, probes))
			attachment_free(c, a);
	}
}

/* Whether the session has had no process and no call for too long. A watch is a call that lasts. */
static bool session_is_idle(const struct cache *c, struct session *s, uint64_t now_us)
{
	if (s->attached || now_us - s->last_call_us <= c->options.session_idle_ms * 1000ull)
		return false;
	if (!watch_is_open(c, s->handle))
		return true;
	s->last_call_us = now_us;
	return false;
}

void sessions_tick(struct cache *c, uint64_t now_us)
{
	uint32_t probes = PROBES_A_TICK;

	c->idled_count = 0;
	for (uint32_t i = 0; i < c->options.sessions_max; i++) {
		struct session *s = &c->sessions[(c->tick_hint + i) % c->options.sessions_max];

		if (s->state == SESSION_OPEN) {
			if (atomic_exchange_explicit(&s->called, false, memory_order_relaxed))
				s->last_call_us = now_us;
			session_prune(c, s, &probes);
			if (c->idled_count < CACHE_IDLED_MAX && session_is_idle(c, s, now_us)) {
				c->idled[c->idled_count++] = s->number;
				session_detach(c, s);
			}
		} else if (s->state == SESSION_DETACHED) {
			session_detached_try(c, s, &probes);
		}
		if (probes == 0) {
			/* The session at which this tick stopped goes first in the next. */
			c->tick_hint = (c->tick_hint + i) % c->options.sessions_max;
			return;
		}
	}
}

void sessions_free(struct cache *c)
{
	for (uint32_t i = 0; i < c->options.sessions_max; i++) {
		struct session *s = &c->sessions[i];

		if (s->state == SESSION_FREE)
			continue;
		while (s->leases)
			lease_end(c, s->leases);
		while (s->reservations)
			reservation_end(c, s->reservations);
		while (s->attachments)
			attachment_free(c, s->attachments);
	}
}
