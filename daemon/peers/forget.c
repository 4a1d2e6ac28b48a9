/* A window of members is called at a time, so that the keys of a delete are not packed for all of them at once; each
 * answer begins the next call. Its answers come on the links' thread. */
#include "daemon/peers/forget.h"

#include "daemon/block/values.h"
#include "daemon/call/delete.h"
#include "daemon/peers/links.h"
#include "daemon/peers/peers.h"
#include "daemon/peers/state.h"
#include "store/clock.h"
#include "store/status.h"
#include "terrace.pb-c.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 32 };
#define KEPT_US (60ull * 1000 * 1000)

struct forget {
	struct peers *peers;
	uint64_t number, deadline_us;  /* 0: free */
	uint64_t ended_us;             /* 0: it goes on */
	struct peers_forgotten result;
	uint32_t next, count, outstanding;
	char (*member)[MEMBER_NAME_MAX]; /* [count] */
	const char *tenant;
	uint64_t layout_ids[CACHE_LAYOUTS_MAX];
	uint32_t layouts;
	Terrace__V1__Keys keys;        /* their bytes are its own */
};

/* One call to one member. */
struct told {
	struct forgets *all;
	struct forget *of;
	uint32_t member;
	struct peer_call *call;
};

struct forgets {
	pthread_mutex_t lock;
	uint64_t last;
	struct forget at[FORGETS_MAX];
};

struct forgets *forgets_create(void)
{
	struct forgets *all = calloc(1, sizeof *all);

	if (all)
		pthread_mutex_init(&all->lock, NULL);
	return all;
}

static void forget_free(struct forget *f)
{
	free(f->member);
	free(f->keys.keys.data);
	*f = (struct forget){ .number = 0 };
}

void forgets_destroy(struct forgets *all)
{
	if (!all)
		return;
	for (uint32_t i = 0; i < FORGETS_MAX; i++)
		forget_free(&all->at[i]);
	pthread_mutex_destroy(&all->lock);
	free(all);
}

/* With the lock. */
static void unconfirmed(struct forget *f, uint32_t member, enum status s, const char *why)
{
	if (s == STATUS_UNSUPPORTED)
		why = "its version takes no deletes of others: upgrade it";
	f->result.members++;
	if (f->result.members > 1)
		return;
	snprintf(f->result.member, sizeof f->result.member, "%s", f->member[member]);
	snprintf(f->result.why, sizeof f->result.why, "%s", why && *why ? why : status_text(s));
}

/* With the lock. */
static void end_if_over(struct forget *f)
{
	if (f->outstanding || f->next < f->count)
		return;
	f->result.state = f->result.members ? FORGET_UNCONFIRMED : FORGET_CONFIRMED;
	f->ended_us = clock_us();
}

static void tell_next(struct forgets *all, struct forget *f);

static void told_ended(void *arg, enum status s, const char *why)
{
	struct told *t = arg;
	struct forgets *all = t->all;
	struct forget *f = t->of;

	pthread_mutex_lock(&all->lock);
	f->outstanding--;
	if (s)
		unconfirmed(f, t->member, s, why);
	end_if_over(f);
	const bool goes_on = !f->ended_us;

	pthread_mutex_unlock(&all->lock);
	free(t);
	if (goes_on)
		tell_next(all, f);
}

static enum status tell(struct forgets *all, struct forget *f, uint32_t member)
{
	static const struct peer_call_ops ops = { NULL, told_ended };
	Terrace__V1__ForgetRequest ask = TERRACE__V1__FORGET_REQUEST__INIT;
	struct told *t = malloc(sizeof *t);
	enum status s = STATUS_EXHAUSTED;

	ask.tenant = (char *)f->tenant;
	ask.n_layouts = f->layouts;
	ask.layouts = f->layout_ids;
	ask.keys = &f->keys;
	if (t) {
		*t = (struct told){ .all = all, .of = f, .member = member };
		s = links_call(f->peers->links, f->member[member],
			       &(struct peer_ask){ "/terrace.v1.Peer/Forget", &ask.base, f->deadline_us, &ops, t },
			       &t->call);
	}
	if (s)
		free(t);
	return s;
}

/* Begins calls until the window is full. Not under the lock: an end may come before links_call returns. */
static void tell_next(struct forgets *all, struct forget *f)
{
	for (;;) {
		pthread_mutex_lock(&all->lock);
		const bool more = f->next < f->count && f->outstanding < WINDOW;
		const uint32_t member = f->next;

		if (more) {
			f->next++;
			f->outstanding++;
		}
		pthread_mutex_unlock(&all->lock);
		if (!more)
			return;
		const enum status s = tell(all, f, member);

		if (!s)
			continue;
		pthread_mutex_lock(&all->lock);
		f->outstanding--;
		unconfirmed(f, member, s, NULL);
		end_if_over(f);
		const bool over = f->ended_us;

		pthread_mutex_unlock(&all->lock);
		if (over)
			return;
	}
}

/* The other members, but those that are too old to have the Peer service: they have taken no block from others. */
static bool members_gather(struct peers *p, struct forget *f)
{
	const struct members_list *list = members_take(p->members);

	f->member = malloc((list->count + 1) * sizeof f->member[0]);
	for (uint32_t i = 0; f->member && i < list->count; i++)
		if (!list->at[i].self && list->at[i].peer_protocol)
			memcpy(f->member[f->count++], list->at[i].name, MEMBER_NAME_MAX);
	members_drop(list);
	return f->member;
}

/* A free place, under a new number. With the lock. */
static struct forget *place_take(struct forgets *all)
{
	const uint64_t now_us = clock_us();

	for (uint32_t i = 0; i < FORGETS_MAX; i++) {
		struct forget *f = &all->at[i];

		if (f->number && f->ended_us && f->ended_us + KEPT_US < now_us)
			forget_free(f);
		if (f->number)
			continue;
		f->number = ++all->last * FORGETS_MAX + i;
		return f;
	}
	return NULL;
}

uint64_t peers_forget(struct peers *p, const struct cache_forget_call *q, uint64_t deadline_us)
{
	struct forgets *all = p->forgets;
	const size_t bytes = (size_t)q->keys->count * q->keys->key_bytes;
	uint8_t *keys = malloc(bytes ? bytes : 1);
	struct forget *f;
	uint64_t number = 0;

	pthread_mutex_lock(&all->lock);
	f = keys ? place_take(all) : NULL;
	if (f && members_gather(p, f)) {
		number = f->number;
		f->peers = p;
		f->deadline_us = deadline_us;
		f->tenant = peers_tenant_name(p, q->tenant);
		f->layouts = q->layouts;
		memcpy(f->layout_ids, q->layout_ids, q->layouts * sizeof f->layout_ids[0]);
		memcpy(keys, q->keys->bytes, bytes);
		terrace__v1__keys__init(&f->keys);
		f->keys.key_bytes = q->keys->key_bytes;
		f->keys.keys = (ProtobufCBinaryData){ bytes, keys };
		keys = NULL;
		end_if_over(f);
	} else if (f) {
		forget_free(f);
	}
	pthread_mutex_unlock(&all->lock);
	free(keys);
	if (number)
		tell_next(all, f);
	return number;
}

void peers_forget_look(struct peers *p, uint64_t number, struct peers_forgotten *out)
{
	struct forgets *all = p->forgets;
	struct forget *f = &all->at[number % FORGETS_MAX];

	pthread_mutex_lock(&all->lock);
	*out = (struct peers_forgotten){ .state = FORGET_UNCONFIRMED };
	if (number && f->number == number) {
		*out = f->result;
		if (f->ended_us)
			forget_free(f);
	}
	pthread_mutex_unlock(&all->lock);
}
