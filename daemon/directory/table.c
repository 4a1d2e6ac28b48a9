/* See table.h. Entries lie in one array and are linked by index: in the chain of their name's bucket, the newest first;
 * in the chain of the bucket of (name, holder), as a thousand members may have the same name; in the list of their
 * holder; and by age. A holder is a slot; slot 0 has the refusals as its entries. The slot of a run that left keeps its
 * entries until they are swept: nothing points at it from `index`, and it is not alive. */
#include "daemon/directory/table.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "store/short_lock.h"

enum {
	REFUSALS = 0,                          /* a slot */
	SLOTS = 2 * DIRECTORY_MEMBERS_MAX + 1, /* a list of members, and one more whose entries are not swept yet */
	INDEX = 4 * DIRECTORY_MEMBERS_MAX,     /* a power of two */
	SWEPT_AN_ADDITION = 2,
	LOOK_EVERY = 256,                      /* additions */
	BYTES_MIN = 4096,
};
#define NONE UINT32_MAX
#define SECOND_US 1000000u

struct entry {
	struct public_name name;
	uint32_t next, previous;      /* in the chain of the name's bucket; next: of the free entries too */
	uint32_t next_exact;          /* in the chain of (name, slot) */
	uint32_t before, behind;      /* of the same slot */
	uint32_t older, newer;
	uint32_t tenant;
	uint32_t changed_s;           /* since `zero_us` */
	uint16_t slot;
	bool seen;                    /* by the directory_replace under way */
};

_Static_assert(sizeof(struct entry) == 56, "the memory that the header promises, with 4 bytes for each bucket");

struct slot {
	struct directory_run run;
	uint64_t sequence;            /* of the last message */
	uint32_t first, last, count;
	bool alive, used, seen;       /* seen: by the directory_members under way */
	uint16_t next_dead;           /* 0: the end */
};

struct directory {
	pthread_mutex_t lock;
	struct entry *entries;
	uint32_t *buckets, *exact;    /* `capacity` of each */
	uint32_t capacity, touched;   /* entries; those ever used, all behind them are free */
	uint32_t free;
	uint32_t oldest, newest;
	uint64_t refused_us, zero_us;
	bool begun;                   /* zero_us is set */
	struct slot *slots;
	uint32_t slots_touched;       /* those ever used, with that of refusals */
	uint16_t index[INDEX];        /* of the runs that are alive, by node; 0: free */
	uint16_t dead;                /* the first slot to sweep; 0: none */
	uint32_t holders;             /* runs that are alive and have entries */
	uint32_t largest;             /* the slot of the one with the most, or that had the most a while ago; 0: none */
	uint64_t look_again;          /* at that count of additions the largest may be looked for again */
	struct directory_counts counts;
};

/* ---- entries ---- */

static uint32_t bucket_of(const struct directory *d, const struct public_name *name)
{
	return (uint32_t)((name->word[0] >> 32) * d->capacity >> 32);
}

static uint32_t seconds(struct directory *d, uint64_t now_us)
{
	if (!d->begun) {
		d->begun = true;
		d->zero_us = now_us;
	}
	return now_us > d->zero_us ? (uint32_t)((now_us - d->zero_us) / SECOND_US) : 0;
}

static void slot_append(struct directory *d, uint32_t s, uint32_t e)
{
	struct slot *slot = &d->slots[s];

	d->entries[e].slot = (uint16_t)s;
	d->entries[e].before = slot->last;
	d->entries[e].behind = NONE;
	*(slot->last == NONE ? &slot->first : &d->entries[slot->last].behind) = e;
	slot->last = e;
	slot->count++;
	if (s == REFUSALS)
		return;
	d->holders += slot->count == 1;
	if (!d->largest || slot->count > d->slots[d->largest].count)
		d->largest = s;
}

static void slot_take(struct directory *d, uint32_t e)
{
	const struct entry *entry = &d->entries[e];
	struct slot *slot = &d->slots[entry->slot];

	*(entry->before == NONE ? &slot->first : &d->entries[entry->before].behind) = entry->behind;
	*(entry->behind == NONE ? &slot->last : &d->entries[entry->behind].before) = entry->before;
	slot->count--;
	d->holders -= entry->slot != REFUSALS && slot->alive && !slot->count;
}

static void age_append(struct directory *d, uint32_t e)
{
	d->entries[e].older = d->newest;
	d->entries[e].newer = NONE;
	*(d->newest == NONE ? &d->oldest : &d->entries[d->newest].newer) = e;
	d->newest = e;
}

static void age_take(struct directory *d, uint32_t e)
{
	const struct entry *entry = &d->entries[e];

	*(entry->older == NONE ? &d->oldest : &d->entries[entry->older].newer) = entry->newer;
	*(entry->newer == NONE ? &d->newest : &d->entries[entry->newer].older) = entry->older;
}

static uint32_t *exact_bucket(const struct directory *d, const struct public_name *name, uint32_t slot)
{
	const uint64_t hash = (name->word[1] ^ slot) * 0x9e3779b97f4a7c15ull;

	return &d->exact[(hash >> 32) * d->capacity >> 32];
}

/* Puts an entry first among those of its name. */
static void chain_put(struct directory *d, uint32_t e)
{
	uint32_t *head = &d->buckets[bucket_of(d, &d->entries[e].name)];

	d->entries[e].next = *head;
	d->entries[e].previous = NONE;
	if (*head != NONE)
		d->entries[*head].previous = e;
	*head = e;
}

static void chain_take(struct directory *d, uint32_t e)
{
	const struct entry *entry = &d->entries[e];

	if (entry->next != NONE)
		d->entries[entry->next].previous = entry->previous;
	if (entry->previous != NONE)
		d->entries[entry->previous].next = entry->next;
	else
		d->buckets[bucket_of(d, &entry->name)] = entry->next;
}

static void exact_put(struct directory *d, uint32_t e)
{
	uint32_t *head = exact_bucket(d, &d->entries[e].name, d->entries[e].slot);

	d->entries[e].next_exact = *head;
	*head = e;
}

static void exact_take(struct directory *d, uint32_t e)
{
	uint32_t *at = exact_bucket(d, &d->entries[e].name, d->entries[e].slot);

	while (*at != e)
		at = &d->entries[*at].next_exact;
	*at = d->entries[e].next_exact;
}

static void slot_free(struct directory *d, uint32_t s)
{
	assert(!d->slots[s].count);
	d->slots[s].used = false;
}

static void entry_free(struct directory *d, uint32_t e)
{
	const uint32_t s = d->entries[e].slot;

	chain_take(d, e);
	exact_take(d, e);
	slot_take(d, e);
	age_take(d, e);
	d->entries[e].next = d->free;
	d->free = e;
	d->counts.entries--;
	if (s == REFUSALS)
		d->counts.refusals--;
	else if (!d->slots[s].alive)
		d->counts.dead--;
}

/* Frees entries of dead runs, at most `max`, and returns how many. */
static uint32_t sweep_dead(struct directory *d, uint32_t max)
{
	uint32_t swept = 0;

	while (d->dead && swept < max) {
		struct slot *slot = &d->slots[d->dead];

		if (slot->count) {
			entry_free(d, slot->first);
			swept++;
		} else {
			const uint16_t s = d->dead;

			d->dead = slot->next_dead;
			slot_free(d, s);
		}
	}
	return swept;
}

static bool full(const struct directory *d)
{
	return d->free == NONE && d->touched == d->capacity && !d->dead;
}

/* The most entries that a run may have without giving way to others, while the table is full. */
static uint32_t share(const struct directory *d)
{
	return (d->capacity - d->slots[REFUSALS].count) / (d->holders ? d->holders : 1);
}

static void largest_look(struct directory *d)
{
	d->look_again = d->counts.added + LOOK_EVERY;
	d->largest = 0;
	for (uint32_t s = REFUSALS + 1; s < d->slots_touched; s++)
		if (d->slots[s].alive && d->slots[s].count &&
		    (!d->largest || d->slots[s].count > d->slots[d->largest].count))
			d->largest = s;
}

/* Which entry goes for a new one of that slot, of a full table: of a run that has its share its own oldest, else the
 * oldest of the run with the most. So nothing that one run tells displaces what a run within its share has told. */
static uint32_t entry_for(struct directory *d, uint32_t s)
{
	const uint32_t most = share(d);

	if (s != REFUSALS && d->slots[s].count && d->slots[s].count >= most)
		return d->slots[s].first;
	if ((!d->largest || d->slots[d->largest].count <= most) && d->counts.added >= d->look_again)
		largest_look(d);
	return d->largest && d->slots[d->largest].count > most ? d->slots[d->largest].first : d->oldest;
}

static uint32_t entry_take(struct directory *d, uint32_t s)
{
	sweep_dead(d, SWEPT_AN_ADDITION);
	if (d->free == NONE && d->touched < d->capacity)
		return d->touched++;
	if (d->free == NONE) {
		entry_free(d, entry_for(d, s));
		d->counts.dropped++;
	}
	const uint32_t e = d->free;

	d->free = d->entries[e].next;
	return e;
}

static void entry_make(struct directory *d, uint32_t s, uint32_t tenant, const struct public_name *name,
		       uint64_t now_us)
{
	const uint32_t e = entry_take(d, s);

	d->entries[e] = (struct entry){
		.name = *name,
		.tenant = tenant,
		.changed_s = seconds(d, now_us),
		.seen = true,
	};
	chain_put(d, e);
	slot_append(d, s, e);
	exact_put(d, e);
	age_append(d, e);
	d->counts.entries++;
}

static bool is(const struct directory *d, uint32_t e, uint32_t tenant, const struct public_name *name)
{
	return public_name_equal(&d->entries[e].name, name) && d->entries[e].tenant == tenant;
}

static bool refusal_ended(struct directory *d, uint32_t e, uint64_t now_us)
{
	return (uint64_t)(seconds(d, now_us) - d->entries[e].changed_s) * SECOND_US > d->refused_us;
}

static uint32_t entry_find(const struct directory *d, uint32_t s, const struct directory_change *c)
{
	uint32_t e = *exact_bucket(d, &c->name, s);

	while (e != NONE && !(d->entries[e].slot == s && is(d, e, c->tenant, &c->name)))
		e = d->entries[e].next_exact;
	return e;
}

/* False: the name is refused. */
static bool entry_add(struct directory *d, uint32_t s, const struct directory_change *c, uint64_t now_us)
{
	const uint32_t e = entry_find(d, s, c), refusal = entry_find(d, REFUSALS, c);

	if (refusal != NONE && !refusal_ended(d, refusal, now_us)) {
		d->counts.refused++;
		return false;
	}
	d->counts.added++;
	if (e == NONE) {
		entry_make(d, s, c->tenant, &c->name, now_us);
		return true;
	}
	d->entries[e].changed_s = seconds(d, now_us);
	d->entries[e].seen = true;
	chain_take(d, e);
	chain_put(d, e);
	slot_take(d, e);
	slot_append(d, s, e);
	age_take(d, e);
	age_append(d, e);
	return true;
}

/* ---- runs ---- */

static uint32_t index_at(const uint8_t node[DIRECTORY_NODE_BYTES])
{
	uint64_t word[2];

	memcpy(word, node, sizeof word);
	return (uint32_t)((word[0] ^ word[1] * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull >> 40) & (INDEX - 1);
}

/* The slot of a member's run that is alive, whatever its epoch; 0: there is none. */
static uint32_t slot_of(const struct directory *d, const uint8_t node[DIRECTORY_NODE_BYTES])
{
	for (uint32_t i = index_at(node); d->index[i]; i = (i + 1) & (INDEX - 1))
		if (!memcmp(d->slots[d->index[i]].run.node, node, DIRECTORY_NODE_BYTES))
			return d->index[i];
	return 0;
}

static void index_put(struct directory *d, uint32_t s)
{
	uint32_t i = index_at(d->slots[s].run.node);

	while (d->index[i])
		i = (i + 1) & (INDEX - 1);
	d->index[i] = (uint16_t)s;
}

static void slot_kill(struct directory *d, uint32_t s)
{
	struct slot *slot = &d->slots[s];

	d->holders -= slot->count > 0;
	slot->alive = false;
	slot->next_dead = d->dead;
	d->dead = (uint16_t)s;
	d->counts.dead += slot->count;
}

/* hint: where the search begins; the caller begins with 1. */
static void slot_make(struct directory *d, const struct directory_run *run, uint32_t *hint)
{
	for (;;) {
		for (; *hint < SLOTS; (*hint)++) {
			struct slot *slot = &d->slots[*hint];

			if (slot->used)
				continue;
			*slot = (struct slot){ .run = *run, .first = NONE, .last = NONE, .alive = true, .used = true };
			if (*hint >= d->slots_touched)
				d->slots_touched = *hint + 1;
			return;
		}
		sweep_dead(d, UINT32_MAX);
		*hint = 1;
	}
}

void directory_members(struct directory *d, const struct directory_member *at, uint32_t count)
{
	uint32_t hint = 1;

	assert(count <= DIRECTORY_MEMBERS_MAX);
	pthread_mutex_lock(&d->lock);
	for (uint32_t s = 1; s < d->slots_touched; s++)
		d->slots[s].seen = false;
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t s = slot_of(d, at[i].run.node);

		if (s && d->slots[s].run.epoch == at[i].run.epoch)
			d->slots[s].seen = true;
	}
	for (uint32_t s = 1; s < d->slots_touched; s++)
		if (d->slots[s].alive && !d->slots[s].seen)
			slot_kill(d, s);
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t s = slot_of(d, at[i].run.node);

		if (!s || !d->slots[s].alive || d->slots[s].run.epoch != at[i].run.epoch)
			slot_make(d, &at[i].run, &hint);
	}
	largest_look(d);
	memset(d->index, 0, sizeof d->index);
	for (uint32_t s = 1; s < d->slots_touched; s++)
		if (d->slots[s].alive)
			index_put(d, s);
	pthread_mutex_unlock(&d->lock);
}

/* The slot of a message's sender, whose sequence is taken. */
static enum status sender(struct directory *d, const struct directory_sender *from, uint32_t *out)
{
	const uint32_t s = slot_of(d, from->run.node);

	if (!s || d->slots[s].run.epoch != from->run.epoch) {
		d->counts.unknown++;
		return STATUS_UNAVAILABLE;
	}
	if (from->sequence <= d->slots[s].sequence) {
		d->counts.stale++;
		return STATUS_STALE;
	}
	d->slots[s].sequence = from->sequence;
	*out = s;
	return STATUS_OK;
}

/* ---- what a holder tells ---- */

static void refused_put(struct directory_published *out, uint32_t change)
{
	if (out->refused)
		out->refused[out->refused_count] = change;
	out->refused_count++;
}

static void apply(struct directory *d, uint32_t s, const struct directory_change *c, uint32_t index, uint64_t now_us,
		  struct directory_published *out)
{
	if (!c->remove) {
		if (!entry_add(d, s, c, now_us))
			refused_put(out, index);
		return;
	}
	const uint32_t e = entry_find(d, s, c);

	if (e == NONE)
		return;
	entry_free(d, e);
	d->counts.removed++;
}

enum status directory_publish(struct directory *d, const struct directory_sender *from,
			      const struct directory_change *changes, uint32_t count, uint32_t told, uint64_t now_us,
			      struct directory_published *out)
{
	uint32_t s;

	out->refused_count = 0;
	out->digest_wanted = false;
	pthread_mutex_lock(&d->lock);
	const enum status status = sender(d, from, &s);

	if (status == STATUS_OK) {
		for (uint32_t i = 0; i < count; i++)
			apply(d, s, &changes[i], i, now_us, out);
		const uint32_t here = d->slots[s].count + out->refused_count;

		out->digest_wanted = here > told || (here < told && !full(d));
	}
	pthread_mutex_unlock(&d->lock);
	return status;
}

static void digest_of(const struct directory *d, uint32_t s, uint32_t buckets, struct digest *out)
{
	digest_begin(out, buckets);
	for (uint32_t e = d->slots[s].first; e != NONE; e = d->entries[e].behind)
		digest_add(out, &d->entries[e].name);
}

/* Buckets of which the owner merely has too little. */
static void leave_out_lacking(const struct digest *ours, const struct digest *theirs, struct digest_set *differ)
{
	for (uint32_t b = 0; b < differ->buckets; b++)
		if (ours->count[b] < theirs->count[b])
			differ->bits[b / 64] &= ~(1ull << b % 64);
}

enum status directory_digest(struct directory *d, const struct directory_sender *from, const struct digest *theirs,
			     struct digest_set *differ)
{
	struct digest ours;
	uint32_t s;

	if (!digest_buckets_valid(theirs->buckets))
		return STATUS_INVALID;
	pthread_mutex_lock(&d->lock);
	const enum status status = sender(d, from, &s);

	if (status == STATUS_OK) {
		digest_of(d, s, theirs->buckets, &ours);
		if (digest_compare(&ours, theirs, differ) && full(d))
			leave_out_lacking(&ours, theirs, differ);
		d->counts.digests++;
		d->counts.differing += !digest_set_empty(differ);
	}
	pthread_mutex_unlock(&d->lock);
	return status;
}

/* Removes a holder's entries of the buckets that were not seen. */
static void remove_unseen(struct directory *d, uint32_t s, const struct digest_set *set)
{
	for (uint32_t e = d->slots[s].first, behind; e != NONE; e = behind) {
		behind = d->entries[e].behind;
		if (d->entries[e].seen || !digest_set_has(set, &d->entries[e].name))
			continue;
		entry_free(d, e);
		d->counts.removed++;
	}
}

enum status directory_replace(struct directory *d, const struct directory_sender *from,
			      const struct directory_buckets *b, uint64_t now_us, struct directory_published *out)
{
	uint32_t s;

	out->refused_count = 0;
	out->digest_wanted = false;
	if (!digest_buckets_valid(b->set->buckets))
		return STATUS_INVALID;
	pthread_mutex_lock(&d->lock);
	const enum status status = sender(d, from, &s);

	if (status == STATUS_OK) {
		for (uint32_t e = d->slots[s].first; e != NONE; e = d->entries[e].behind)
			d->entries[e].seen = false;
		for (uint32_t i = 0; i < b->count; i++)
			if (!b->changes[i].remove && digest_set_has(b->set, &b->changes[i].name))
				apply(d, s, &b->changes[i], i, now_us, out);
		if (!b->part)
			remove_unseen(d, s, b->set);
	}
	pthread_mutex_unlock(&d->lock);
	return status;
}

/* ---- who asks ---- */

static void find(struct directory *d, uint32_t tenant, const struct public_name *name, uint64_t now_us,
		 struct directory_found *out)
{
	memset(out, 0, sizeof *out);
	for (uint32_t e = d->buckets[bucket_of(d, name)]; e != NONE; e = d->entries[e].next) {
		const struct slot *slot = &d->slots[d->entries[e].slot];

		if (!is(d, e, tenant, name))
			continue;
		if (d->entries[e].slot == REFUSALS) {
			if (refusal_ended(d, e, now_us))
				continue;
			*out = (struct directory_found){ .refused = true };
			return;
		}
		if (!slot->alive)
			continue;
		out->at[out->count++] = slot->run;
		if (out->count == DIRECTORY_HOLDERS_MAX)
			return;
	}
}

void directory_find(struct directory *d, uint32_t tenant, const struct public_name *names, uint32_t count,
		    uint64_t now_us, struct directory_found *out)
{
	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; i < count; i++)
		find(d, tenant, &names[i], now_us, &out[i]);
	pthread_mutex_unlock(&d->lock);
}

static void refuse(struct directory *d, uint32_t tenant, const struct public_name *name, uint64_t now_us,
		   struct directory_found *out)
{
	memset(out, 0, sizeof *out);
	for (uint32_t e = d->buckets[bucket_of(d, name)], next; e != NONE; e = next) {
		const struct slot *slot = &d->slots[d->entries[e].slot];

		next = d->entries[e].next;
		if (!is(d, e, tenant, name))
			continue;
		if (d->entries[e].slot != REFUSALS && slot->alive) {
			if (out->count < DIRECTORY_HOLDERS_MAX)
				out->at[out->count++] = slot->run;
			out->all++;
		}
		entry_free(d, e);
	}
	out->refused = true;
	entry_make(d, REFUSALS, tenant, name, now_us);
	d->counts.refusals++;
}

void directory_refuse(struct directory *d, uint32_t tenant, const struct public_name *names, uint32_t count,
		      uint64_t now_us, struct directory_found *out)
{
	struct directory_found unwanted;

	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; i < count; i++)
		refuse(d, tenant, &names[i], now_us, out ? &out[i] : &unwanted);
	pthread_mutex_unlock(&d->lock);
}

/* ---- upkeep ---- */

bool directory_sweep(struct directory *d, uint32_t max, uint64_t now_us)
{
	pthread_mutex_lock(&d->lock);
	uint32_t swept = sweep_dead(d, max);

	while (swept < max && d->slots[REFUSALS].count && refusal_ended(d, d->slots[REFUSALS].first, now_us)) {
		entry_free(d, d->slots[REFUSALS].first);
		swept++;
	}
	pthread_mutex_unlock(&d->lock);
	return swept == max;
}

void directory_counts(struct directory *d, struct directory_counts *out)
{
	pthread_mutex_lock(&d->lock);
	*out = d->counts;
	pthread_mutex_unlock(&d->lock);
}

enum status directory_create(const struct directory_options *options, struct directory **out)
{
	const uint64_t capacity = options->bytes_max / (sizeof(struct entry) + 2 * sizeof(uint32_t));

	if (options->bytes_max < BYTES_MIN)
		return STATUS_INVALID;
	struct directory *d = calloc(1, sizeof *d);

	if (!d)
		return STATUS_EXHAUSTED;
	d->capacity = capacity < NONE ? (uint32_t)capacity : NONE - 1;
	d->refused_us = options->refused_us;
	d->free = d->oldest = d->newest = NONE;
	short_lock_init(&d->lock);
	d->entries = calloc(d->capacity, sizeof d->entries[0]);
	d->buckets = malloc(d->capacity * sizeof d->buckets[0]);
	d->exact = malloc(d->capacity * sizeof d->exact[0]);
	d->slots = calloc(SLOTS, sizeof d->slots[0]);
	if (!d->entries || !d->buckets || !d->exact || !d->slots) {
		directory_destroy(d);
		return STATUS_EXHAUSTED;
	}
	memset(d->buckets, 0xff, d->capacity * sizeof d->buckets[0]);
	memset(d->exact, 0xff, d->capacity * sizeof d->exact[0]);
	d->slots_touched = REFUSALS + 1;
	d->slots[REFUSALS] = (struct slot){ .first = NONE, .last = NONE, .used = true };
	d->counts.capacity = d->capacity;
	d->counts.bytes = (uint64_t)d->capacity * (sizeof d->entries[0] + 2 * sizeof d->buckets[0]) + sizeof *d +
			  SLOTS * sizeof d->slots[0];
	*out = d;
	return STATUS_OK;
}

void directory_destroy(struct directory *d)
{
	if (!d)
		return;
	free(d->entries);
	free(d->buckets);
	free(d->exact);
	free(d->slots);
	pthread_mutex_destroy(&d->lock);
	free(d);
}
