/* What one client leaves to others of what there are only so many of: sessions, layouts, leases, watches. A user (of the local socket,
 * or an address) has as many at most as it leaves free, alone half of them; a process as many as it leaves to its user's others, alone a third. So a
 * client that leaks costs itself, and not the others, whatever it has taken before they come. Who is not known has no bound but that of all.
 */
#include <stddef.h>
#include <string.h>

#include "daemon/cache_private.h"

void share_add(struct share *s, const struct cache_peer *holder, uint32_t n)
{
	if (!s->peer || memcmp(holder->user, s->peer->user, sizeof(holder->user)))
		return;
	s->of_user += n;
	s->of_process += holder->process == s->peer->process ? n : 0;
}

enum refusal share_refusal(const struct share *s, uint32_t left)
{
	if (!left)
		return REFUSED_FULL;
	if (!s->peer || !(s->peer->user[0] | s->peer->user[1]))
		return REFUSALS;
	if (s->of_user >= left)
		return REFUSED_USER;
	return s->peer->process && s->of_process >= left - s->of_user ? REFUSED_PROCESS : REFUSALS;
}

enum status share_refused(struct cache *c, enum refusal refusal, const enum counter counts[REFUSALS], const char *const words[REFUSALS],
			  const char **why)
{
	if (refusal == REFUSALS)
		return STATUS_OK;
	cache_count(c, counts[refusal], 1);
	*why = words[refusal];
	return STATUS_EXHAUSTED;
}

/* Of what each session counts at `count`. While less than a third of all are taken nobody can have his share, and nobody's is looked at. */
static enum refusal refusal_of(const struct cache *c, const struct session *s, size_t count, uint32_t used, uint32_t max)
{
	struct share share = { .peer = &s->peer };

	if (3ull * used < max)
		return REFUSALS;
	for (uint32_t i = 0; i < c->options.sessions_max; i++) {
		const struct session *other = &c->sessions[i];
		uint32_t n;

		memcpy(&n, (const char *)other + count, sizeof(n));
		if (other->state != SESSION_FREE)
			share_add(&share, &other->peer, n);
	}
	return share_refusal(&share, max - used);
}

enum status share_lease(struct cache *c, const struct session *s, const char **why)
{
	static const enum counter counts[REFUSALS] = { COUNTER_LEASES_FULL, COUNTER_LEASES_USER, COUNTER_LEASES_PROCESS };
	static const char *const words[REFUSALS] = {
		[REFUSED_FULL] = "too many leases: all of leases_max are held",
		[REFUSED_USER] = "too many leases: of leases_max this user, or address, holds as many as it leaves free for others",
		[REFUSED_PROCESS] = "too many leases: of leases_max this process holds as many as it leaves free for its user's others",
	};

	return share_refused(c, refusal_of(c, s, offsetof(struct session, lease_count), c->leases.used, c->leases.max), counts, words, why);
}

enum status share_watch(struct cache *c, const struct session *s, const char **why)
{
	static const enum counter counts[REFUSALS] = { COUNTER_WATCHES_FULL, COUNTER_WATCHES_USER, COUNTER_WATCHES_PROCESS };
	static const char *const words[REFUSALS] = {
		[REFUSED_FULL] = "too many watches: all 64 are open",
		[REFUSED_USER] = "too many watches: of 64 this user, or address, has as many as it leaves free for others",
		[REFUSED_PROCESS] = "too many watches: of 64 this process has as many as it leaves free for its user's others",
	};

	_Static_assert(WATCHES_MAX == 64, "the words say so");
	return share_refused(c, refusal_of(c, s, offsetof(struct session, watch_count), c->watch_count, WATCHES_MAX), counts, words, why);
}

enum status share_read(const struct cache *c, const struct session *s, const char **why)
{
	const uint64_t used = c->read_kib < CACHE_READ_KIB_MAX ? c->read_kib : CACHE_READ_KIB_MAX;
	enum refusal refusal = used < CACHE_READ_KIB_MAX ? REFUSALS : REFUSED_FULL;

	if (s && refusal == REFUSALS)
		refusal = refusal_of(c, s, offsetof(struct session, read_kib), (uint32_t)used, CACHE_READ_KIB_MAX);
	_Static_assert(CACHE_READ_KIB_MAX == 256 * 1024, "the words say so");
	if (refusal == REFUSED_FULL)
		*why = "too much is being read by stream: blocks of 256 MiB are on their way to clients that have not taken them";
	else if (refusal != REFUSALS)
		*why = "too much is being read by stream: of 256 MiB this client's blocks, which it has not taken, are as much as it leaves free for others";
	return refusal == REFUSALS ? STATUS_OK : STATUS_EXHAUSTED;
}
