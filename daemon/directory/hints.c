/* See hints.h. Both tables are hashed and never grow: an answer lies in one of four places of its name's set, an
 * avoided member in one of eight behind its node's hash. */
#include "daemon/directory/hints.h"

#include <pthread.h>
#include <stdlib.h>

#include "store/short_lock.h"

enum {
	WAYS = 4,
	AVOIDED = 8192,              /* a power of two, twice the members that there can be */
	AVOIDED_WAYS = 8,
};

struct answer {
	struct public_name name;
	uint64_t until_us;
	uint32_t tenant;
	uint16_t hint;               /* enum hint; UNKNOWN: free */
	uint16_t count;
	struct directory_run at[DIRECTORY_HOLDERS_MAX];
};

_Static_assert(sizeof(struct answer) == 128, "the memory that the header promises");

/* Free if `wait_us` is 0. */
struct avoided {
	struct directory_run run;
	uint64_t until_us, wait_us;
};

struct hints {
	pthread_mutex_t lock;
	struct answer *answers;
	uint64_t sets;               /* a power of two */
	struct avoided *avoided;
	struct hints_counts counts;
};

enum status hints_create(uint32_t answers, struct hints **out)
{
	struct hints *h = calloc(1, sizeof *h);

	if (!h)
		return STATUS_EXHAUSTED;
	short_lock_init(&h->lock);
	for (h->sets = 1; h->sets * WAYS < answers;)
		h->sets *= 2;
	h->answers = calloc(h->sets * WAYS, sizeof h->answers[0]);
	h->avoided = calloc(AVOIDED, sizeof h->avoided[0]);
	if (!h->answers || !h->avoided) {
		hints_destroy(h);
		return STATUS_EXHAUSTED;
	}
	*out = h;
	return STATUS_OK;
}

void hints_destroy(struct hints *h)
{
	if (!h)
		return;
	free(h->answers);
	free(h->avoided);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

/* ---- avoided members ---- */

static struct avoided *avoided_set(const struct hints *h, const uint8_t node[DIRECTORY_NODE_BYTES])
{
	uint64_t word[2];

	memcpy(word, node, sizeof word);
	const uint64_t hash = (word[0] ^ word[1] * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull >> 32;

	return &h->avoided[hash % (AVOIDED / AVOIDED_WAYS) * AVOIDED_WAYS];
}

static struct avoided *avoided_find(const struct hints *h, const struct directory_run *run)
{
	struct avoided *set = avoided_set(h, run->node);

	for (uint32_t i = 0; i < AVOIDED_WAYS; i++)
		if (set[i].wait_us && directory_run_equal(&set[i].run, run))
			return &set[i];
	return NULL;
}

/* A free place, or that of the member that has been left alone for longest. */
static struct avoided *avoided_place(const struct hints *h, const struct directory_run *run)
{
	struct avoided *set = avoided_set(h, run->node), *place = set;

	for (uint32_t i = 0; i < AVOIDED_WAYS; i++) {
		if (!set[i].wait_us)
			return &set[i];
		if (set[i].until_us < place->until_us)
			place = &set[i];
	}
	return place;
}

static bool avoided(const struct hints *h, const struct directory_run *run, uint64_t now_us)
{
	const struct avoided *a = avoided_find(h, run);

	return a && now_us < a->until_us;
}

void hints_failed(struct hints *h, const struct directory_run *run, uint64_t now_us)
{
	pthread_mutex_lock(&h->lock);
	struct avoided *a = avoided_find(h, run);

	if (!a) {
		a = avoided_place(h, run);
		*a = (struct avoided){ .run = *run };
	}
	/* Calls that were under way when it was avoided already say nothing new. */
	if (now_us >= a->until_us) {
		const bool in_a_row = a->wait_us && now_us - a->until_us < HINTS_AVOIDED_MAX_US;

		a->wait_us = !in_a_row ? HINTS_AVOIDED_US : 2 * a->wait_us;
		if (a->wait_us > HINTS_AVOIDED_MAX_US)
			a->wait_us = HINTS_AVOIDED_MAX_US;
		a->until_us = now_us + a->wait_us;
	}
	pthread_mutex_unlock(&h->lock);
}

void hints_worked(struct hints *h, const struct directory_run *run)
{
	pthread_mutex_lock(&h->lock);
	struct avoided *a = avoided_find(h, run);

	if (a)
		a->wait_us = 0;
	pthread_mutex_unlock(&h->lock);
}

bool hints_avoided(struct hints *h, const struct directory_run *run, uint64_t now_us)
{
	pthread_mutex_lock(&h->lock);
	const bool result = avoided(h, run, now_us);

	pthread_mutex_unlock(&h->lock);
	return result;
}

/* ---- answers ---- */

static struct answer *set_of(const struct hints *h, const struct public_name *name)
{
	return &h->answers[(name->word[0] >> 32 & (h->sets - 1)) * WAYS];
}

static struct answer *answer_find(const struct hints *h, uint32_t tenant, const struct public_name *name)
{
	struct answer *set = set_of(h, name);

	for (uint32_t i = 0; i < WAYS; i++)
		if (set[i].hint && set[i].tenant == tenant && public_name_equal(&set[i].name, name))
			return &set[i];
	return NULL;
}

/* The name's answer, empty if it is new. */
static struct answer *answer_take(struct hints *h, uint32_t tenant, const struct public_name *name, uint64_t now_us)
{
	struct answer *set = set_of(h, name), *a = answer_find(h, tenant, name);

	if (a)
		return a;
	a = set;
	for (uint32_t i = 0; i < WAYS && a->hint; i++)
		if (!set[i].hint || set[i].until_us < a->until_us)
			a = &set[i];
	h->counts.displaced += a->hint && now_us < a->until_us;
	*a = (struct answer){ .name = *name, .tenant = tenant };
	return a;
}

static bool answer_valid(const struct answer *a, uint64_t now_us)
{
	return a && now_us < a->until_us;
}

enum hint hints_find(struct hints *h, uint32_t tenant, const struct public_name *name, uint64_t now_us,
		     struct hint_holders *out)
{
	enum hint hint = HINT_UNKNOWN;

	out->count = 0;
	pthread_mutex_lock(&h->lock);
	const struct answer *a = answer_find(h, tenant, name);

	if (answer_valid(a, now_us)) {
		hint = (enum hint)a->hint;
		for (uint32_t i = 0; i < a->count; i++)
			if (!avoided(h, &a->at[i], now_us))
				out->at[out->count++] = a->at[i];
		if (hint == HINT_HELD && !out->count)
			hint = HINT_NONE;
	}
	h->counts.found += hint == HINT_HELD;
	h->counts.none += hint == HINT_NONE;
	h->counts.unknown += hint == HINT_UNKNOWN;
	pthread_mutex_unlock(&h->lock);
	return hint;
}

bool hints_ask(struct hints *h, uint32_t tenant, const struct public_name *name, uint64_t now_us, uint64_t until_us)
{
	pthread_mutex_lock(&h->lock);
	const bool ask = !answer_valid(answer_find(h, tenant, name), now_us);

	if (ask) {
		struct answer *a = answer_take(h, tenant, name, now_us);

		a->hint = HINT_ASKING;
		a->count = 0;
		a->until_us = until_us;
	}
	pthread_mutex_unlock(&h->lock);
	return ask;
}

void hints_answer(struct hints *h, uint32_t tenant, const struct public_name *name, const struct directory_run *holders,
		  uint32_t count, uint64_t now_us)
{
	pthread_mutex_lock(&h->lock);
	struct answer *a = answer_take(h, tenant, name, now_us);

	a->count = count < DIRECTORY_HOLDERS_MAX ? (uint16_t)count : DIRECTORY_HOLDERS_MAX;
	if (a->count)
		memcpy(a->at, holders, a->count * sizeof a->at[0]);
	a->hint = a->count ? HINT_HELD : HINT_NONE;
	a->until_us = now_us + HINTS_KEPT_US;
	pthread_mutex_unlock(&h->lock);
}

void hints_wrong(struct hints *h, uint32_t tenant, const struct public_name *name, const struct directory_run *holder)
{
	pthread_mutex_lock(&h->lock);
	struct answer *a = answer_find(h, tenant, name);
	uint16_t kept = 0;

	for (uint32_t i = 0; a && i < a->count; i++)
		if (!directory_run_equal(&a->at[i], holder))
			a->at[kept++] = a->at[i];
	if (a && a->hint == HINT_HELD) {
		a->count = kept;
		a->hint = kept ? HINT_HELD : HINT_NONE;
	}
	pthread_mutex_unlock(&h->lock);
}

void hints_forget(struct hints *h, uint32_t tenant, const struct public_name *name)
{
	pthread_mutex_lock(&h->lock);
	struct answer *a = answer_find(h, tenant, name);

	if (a)
		a->hint = HINT_UNKNOWN;
	pthread_mutex_unlock(&h->lock);
}

void hints_counts(struct hints *h, uint64_t now_us, struct hints_counts *out)
{
	pthread_mutex_lock(&h->lock);
	*out = h->counts;
	for (uint32_t i = 0; i < AVOIDED; i++)
		out->avoided += h->avoided[i].wait_us && now_us < h->avoided[i].until_us;
	pthread_mutex_unlock(&h->lock);
}
