/* See members/members.h. A list's count of readers has one for the struct itself while the list is the newest, and one
 * for each reader. The thread that drops the last one frees the list.
 */
#include "daemon/members/members.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct members {
	pthread_mutex_t lock;         /* of what follows, but for the observers */
	struct members_list *list;
	struct members_status status;
	const struct members_observer *observers[MEMBERS_OBSERVERS_MAX];
	uint32_t observer_count;
};

static struct members_list *list_create(const struct member *at, uint32_t count, uint64_t version)
{
	struct members_list *list = malloc(sizeof *list + count * sizeof list->at[0]);

	if (!list)
		return NULL;
	atomic_init(&list->readers, 1);
	list->version = version;
	list->count = count;
	if (count)
		memcpy(list->at, at, count * sizeof list->at[0]);
	return list;
}

enum status members_create(struct members **out)
{
	struct members *m = calloc(1, sizeof *m);

	if (m)
		m->list = list_create(NULL, 0, 0);
	if (!m || !m->list) {
		free(m);
		return STATUS_EXHAUSTED;
	}
	pthread_mutex_init(&m->lock, NULL);
	*out = m;
	return STATUS_OK;
}

void members_destroy(struct members *m)
{
	if (!m)
		return;
	members_drop(m->list);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

void members_observe(struct members *m, const struct members_observer *o)
{
	assert(m->observer_count < MEMBERS_OBSERVERS_MAX);
	m->observers[m->observer_count++] = o;
}

const struct members_list *members_take(struct members *m)
{
	pthread_mutex_lock(&m->lock);
	struct members_list *list = m->list;

	atomic_fetch_add_explicit(&list->readers, 1, memory_order_relaxed);
	pthread_mutex_unlock(&m->lock);
	return list;
}

void members_drop(const struct members_list *list)
{
	struct members_list *own = (struct members_list *)list; /* the count alone changes */

	if (atomic_fetch_sub_explicit(&own->readers, 1, memory_order_acq_rel) == 1)
		free(own);
}

static void notify(const struct members *m, enum member_change change, const struct member *of)
{
	for (uint32_t i = 0; i < m->observer_count; i++)
		m->observers[i]->changed(m->observers[i]->arg, change, of);
}

static bool same(const struct member *a, const struct member *b)
{
	return !strcmp(a->address, b->address) && !strcmp(a->version, b->version) && a->host_bytes == b->host_bytes &&
	       a->draining == b->draining && a->peer_protocol == b->peer_protocol && a->self == b->self &&
	       a->absent == b->absent &&
	       !memcmp(a->node, b->node, sizeof a->node) &&
	       !memcmp(a->same_secret, b->same_secret, sizeof a->same_secret) &&
	       !memcmp(a->other_secret, b->other_secret, sizeof a->other_secret);
}

/* Both are ordered by name, so that one walk over both finds each difference. */
static void notify_differences(const struct members *m, const struct members_list *old,
			       const struct members_list *now)
{
	uint32_t i = 0, k = 0;

	while (i < old->count || k < now->count) {
		const int order = i == old->count ? 1 : k == now->count ? -1 : strcmp(old->at[i].name, now->at[k].name);

		if (order < 0)
			notify(m, MEMBER_LEFT, &old->at[i++]);
		else if (order > 0)
			notify(m, MEMBER_JOINED, &now->at[k++]);
		else {
			if (old->at[i].epoch != now->at[k].epoch)
				notify(m, MEMBER_RESTARTED, &now->at[k]);
			else if (!same(&old->at[i], &now->at[k]))
				notify(m, MEMBER_CHANGED, &now->at[k]);
			i++, k++;
		}
	}
}

enum status members_publish(struct members *m, const struct member *at, uint32_t count)
{
	/* The writer is one thread: nothing else replaces the list meanwhile. */
	struct members_list *old = m->list, *now = list_create(at, count, old->version + 1);

	assert(count <= MEMBERS_MAX);
	for (uint32_t i = 1; i < count; i++)
		assert(strcmp(at[i - 1].name, at[i].name) < 0);
	if (!now)
		return STATUS_EXHAUSTED;
	pthread_mutex_lock(&m->lock);
	m->list = now;
	pthread_mutex_unlock(&m->lock);
	notify_differences(m, old, now);
	members_drop(old);
	return STATUS_OK;
}

void members_tell(struct members *m, const struct members_status *status)
{
	pthread_mutex_lock(&m->lock);
	m->status = *status;
	pthread_mutex_unlock(&m->lock);
}

void members_status(struct members *m, struct members_status *out)
{
	pthread_mutex_lock(&m->lock);
	*out = m->status;
	pthread_mutex_unlock(&m->lock);
}

const char *members_state_text(enum members_state state)
{
	static const char *const words[] = { "joining", "joined", "lost", "refused" };

	return words[state];
}
