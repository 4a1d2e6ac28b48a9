/* Blocks that a source by name brings (daemon/call/arrival.h). The source is a fake behind the same table as any:
 * the test says what it knows, when it answers and with what bytes. It refuses, dies, answers after a cancel, sends
 * wrong bytes, and comes too late. */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/options.h"
#include "daemon/block/source.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/cache.h"
#include "daemon/call/arrival.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/offer.h"
#include "daemon/call/source.h"
#include "daemon/call/warm.h"
#include "daemon/exports/exports.h"
#include "daemon/session/session.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HOST = 256, NAMES = 4, KEYS = 512, FETCHES = 8, FILLER = 0x33, ITS_GENERATION = 777, PLACES = 2048 };

/* The other machine, as it were. With the cache's lock. */
struct fake {
	struct source source;
	uint8_t word[KEYS];            /* enum source_word of each key's number */
	struct source_ask *ask[FETCHES];
	struct fetch *fetch[FETCHES];
	uint32_t asks, asked, fetches, fetched, cancels, wrongs;
	uint32_t name_us;              /* what one costs, those under way first; 0: all together 2 ms */
	bool unsure;                   /* it cannot say what they cost */
	bool strict;                   /* it can be asked only for runs with a name that members are told of */
	enum status refuses;           /* all fetches; */
	uint32_t but_first;            /* if that is OK, pieces from here on; 0: none */
};

static struct world {
	struct rig r;
	struct fake fake, other;
} w;

static uint64_t number_of(const struct run_key *k)
{
	uint64_t n;

	memcpy(&n, k->name.key, sizeof(n));
	ck_assert_uint_lt(n, KEYS);
	return n;
}

static void fake_known(struct cache *c, struct source *s, const struct key_run *run, uint8_t *word)
{
	const struct fake *f = (struct fake *)s;
	bool may = !f->strict;

	(void)c;
	for (uint32_t i = 0; i < run->count; i++) {
		word[i] = f->word[number_of(&run->key[i])];
		may |= word[i] == SOURCE_MAY && run->key[i].told && run->key[i].segment_key;
	}
	for (uint32_t i = 0; i < run->count && !may; i++)
		if (word[i] == SOURCE_MAY)
			word[i] = SOURCE_NOT;
}

static enum status fake_ask(struct cache *c, struct source *s, struct source_ask *a)
{
	struct fake *f = (struct fake *)s;

	(void)c;
	if (f->refuses)
		return f->refuses;
	f->asked += a->run.count;
	f->ask[f->asks++] = a;
	return STATUS_OK;
}

static bool fake_estimate(struct cache *c, struct source *s, const struct key_run *run, struct source_cost *out)
{
	const struct fake *f = (struct fake *)s;

	(void)c;
	*out = (struct source_cost){ 1000, f->name_us ? (uint64_t)(f->fetched + run->count) * f->name_us : 2000 };
	return !f->unsure;
}

static enum status fake_fetch(struct cache *c, struct source *s, struct fetch *x)
{
	struct fake *f = (struct fake *)s;

	(void)c;
	if (f->refuses)
		return f->refuses;
	for (uint32_t i = 0; i < x->count; i++) {
		ck_assert_ptr_null(x->piece[i].key.block);
		x->piece[i].begun = f->but_first && i >= f->but_first ? STATUS_EXHAUSTED : STATUS_OK;
		if (!x->piece[i].begun)
			memset(x->piece[i].slot.at, FILLER, RIG_SLOT_BYTES);
	}
	f->fetched += x->count;
	f->fetch[f->fetches++] = x;
	return STATUS_OK;
}

static void fake_cancel(struct cache *c, struct source *s, struct fetch *x)
{
	(void)c;
	x->cancelled = true;
	((struct fake *)s)->cancels++;
}

static void fake_wrong(struct cache *c, struct source *s, const struct index_ident *name)
{
	(void)c;
	(void)name;
	((struct fake *)s)->wrongs++;
}

static const struct source_ops fake_ops = {
	.name = "fake",
	.known = fake_known,
	.ask = fake_ask,
	.estimate = fake_estimate,
	.fetch = fake_fetch,
	.cancel = fake_cancel,
	.wrong = fake_wrong,
};

/* How the bytes are spoilt that a piece comes with. */
enum spoilt { SOUND, A_BYTE, THE_HEADER, ANOTHER_KEY, ANOTHER_TENANT, A_TOMBSTONE, NO_TOKENS, NOTHING, SPOILTS };

static void slot_fill(const struct fetch_piece *p, enum spoilt how)
{
	const uint64_t n = number_of(&p->key);
	const struct layout_pool *pool = p->key.pool;
	struct slot_info info = { .tokens = how == NO_TOKENS ? 0 : RIG_TOKENS, .position = n * RIG_TOKENS, .turn = 3 };
	struct slot_ident ident;
	uint8_t key[RIG_KEY_BYTES];

	if (how == NOTHING)
		return;
	rig_key(key, how == ANOTHER_KEY ? n + 1 : n);
	rig_fill(p->slot.at + SLOT_HEADER_BYTES, pool->geometry.block_bytes, n, pool->layout.first_layer);
	block_slot_ident(pool, key, sizeof(key), &ident);
	if (how == ANOTHER_TENANT)
		ident.tenant = "other";
	slot_seal(p->slot.at, &ident, &info, ITS_GENERATION, 5);
	if (how == A_TOMBSTONE)
		slot_tombstone((struct slot_header *)p->slot.at, (const struct slot_header *)p->slot.at, 6);
	if (how == A_BYTE || how == THE_HEADER)
		p->slot.at[how == A_BYTE ? SLOT_HEADER_BYTES + 100 : 200] ^= 1;
}

/* Pieces first .. first + count - 1 of a fetch come. Without the lock. */
static void come(struct fetch *x, uint32_t first, uint32_t count, enum spoilt how)
{
	for (uint32_t i = first; i < first + count; i++) {
		slot_fill(&x->piece[i], how);
		source_came(x, i, STATUS_OK);
	}
}

static void come_to_nothing(struct fetch *x, uint32_t first, uint32_t count, enum status s)
{
	for (uint32_t i = first; i < first + count; i++)
		source_came(x, i, s);
}

static void answer(struct source_ask *a, enum source_word word)
{
	cache_lock(w.r.c);
	for (uint32_t i = 0; i < a->run.count; i++)
		w.fake.word[number_of(&a->run.key[i])] = (uint8_t)word;
	a->ended(w.r.c, a, STATUS_OK);
	cache_unlock(w.r.c);
}

/* ---- calls ---- */

struct call {
	struct cache_wait wait;
	struct cache_keys keys;
	struct cache_place place[PLACES];
	struct cache_leased leased;
	bool all;
	_Atomic bool ready;
};

static void call_ready(void *arg)
{
	atomic_store((_Atomic bool *)arg, true);
}

static enum status ask(struct call *x)
{
	atomic_store(&x->ready, false);
	return cache_lease(w.r.c, &(struct cache_lease_call){ .session = w.r.s.id, .keys = &x->keys, .all = x->all,
			.on = &(struct cache_on){ .attachment = w.r.attachment, .gpu = CACHE_HOST }, .now_us = w.r.now,
			.places = x->place, .places_max = PLACES }, &x->leased, &x->wait, &w.r.why);
}

static enum status begin(struct call *x, uint64_t first, uint32_t count)
{
	memset(x, 0, sizeof(*x));
	x->keys = rig_keys(first, count);
	x->wait = (struct cache_wait){ .ready = call_ready, .arg = &x->ready };
	return ask(x);
}

static enum status again(struct call *x)
{
	RIG_AWAIT(atomic_load(&x->ready));
	return ask(x);
}

static void over(struct call *x, uint64_t first, uint32_t blocks)
{
	ck_assert_uint_eq(x->leased.blocks, blocks);
	for (uint32_t i = 0; i < blocks * w.r.s.layouts; i++) {
		const uint32_t l = i % w.r.s.layouts;
		const uint64_t n = first + i / w.r.s.layouts;

		ck_assert(rig_matches(rig_block(&w.r, &x->place[i]), w.r.s.block_bytes[l], n, l));
	}
	ck_assert_int_eq(cache_release(w.r.c, w.r.s.id, x->leased.lease), STATUS_OK);
}

static void call_end(struct call *x)
{
	cache_wait_end(w.r.c, &x->wait);
	free((void *)x->keys.bytes);
}

static void fake_add(struct fake *f)
{
	f->source = (struct source){ .ops = &fake_ops, .tier = TIER_KINDS };
	cache_lock(w.r.c);
	ck_assert_int_eq(source_add(w.r.c, &f->source), STATUS_OK);
	cache_unlock(w.r.c);
}

static void world_open_with(uint32_t slots, uint32_t layouts, uint32_t blocks)
{
	const struct cache_options o = rig_options(slots);

	memset(&w, 0, sizeof(w));
	rig_open(&w.r, &o, layouts);
	ck_assert_uint_eq(rig_put(&w.r, 400, blocks), blocks); /* its classes have memory */
	fake_add(&w.fake);
}

static void world_open(uint32_t layouts)
{
	world_open_with(HOST, layouts, 8);
}

static void knows(uint64_t first, uint32_t count, enum source_word word)
{
	memset(w.fake.word + first, word, count);
}

/* No slot is kept, and nobody waits. */
static void world_close(void)
{
	uint64_t taken = 0, present = 0;

	cache_lock(w.r.c);
	for (uint32_t i = 0; i < w.r.c->class_count; i++)
		for (const struct span_map *s = w.r.c->classes[i]->spans; s; s = s->next) {
			taken += s->taken;
			for (uint32_t k = 0; k < s->slots; k++)
				present += s->at[k] != NULL;
		}
	cache_unlock(w.r.c);
	ck_assert_uint_eq(taken, present);
	rig_close(&w.r);
}

/* Opens the world, whose source has the names, and begins a call for them. */
static void it_is_fetched(struct call *x)
{
	world_open(1);
	knows(0, NAMES, SOURCE_HAS);
	ck_assert_int_eq(begin(x, 0, NAMES), STATUS_BUSY);
}

START_TEST(what_it_has_arrives)
{
	struct call x;

	world_open((uint32_t)_i + 1);
	knows(0, NAMES, SOURCE_HAS);
	ck_assert_int_eq(begin(&x, 0, NAMES + 2), STATUS_BUSY);
	ck_assert_uint_eq(w.fake.fetched, NAMES * w.r.s.layouts);
	ck_assert_uint_eq(rig_prefix(&w.r, 0, NAMES), 0);
	come(w.fake.fetch[0], 1, NAMES * w.r.s.layouts - 1, SOUND);
	ck_assert(!x.ready);
	come(w.fake.fetch[0], 0, 1, SOUND);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, NAMES);
	call_end(&x);
	ck_assert_uint_eq(w.fake.fetches, 1);
	ck_assert_uint_eq(rig_read_all(&w.r, 0, NAMES), NAMES);
	world_close();
}
END_TEST

/* Two calls want the same names: they are asked for once, and fetched once. */
START_TEST(names_are_merged)
{
	struct call x, y;

	world_open(1);
	knows(0, NAMES + 1, SOURCE_MAY);
	ck_assert_int_eq(begin(&x, 0, NAMES), STATUS_BUSY);
	ck_assert_int_eq(begin(&y, 0, NAMES + 1), STATUS_BUSY);
	ck_assert_uint_eq(w.fake.asks, 2); /* one name was new */
	ck_assert_uint_eq(w.fake.asked, NAMES + 1);
	ck_assert_uint_eq(w.fake.fetches, 0);
	answer(w.fake.ask[0], SOURCE_HAS);
	answer(w.fake.ask[1], SOURCE_NOT);
	ck_assert_int_eq(again(&x), STATUS_BUSY);
	ck_assert_int_eq(again(&y), STATUS_BUSY);
	ck_assert_uint_eq(w.fake.fetched, NAMES);
	come(w.fake.fetch[0], 0, NAMES, SOUND);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, NAMES);
	ck_assert_int_eq(again(&y), STATUS_OK);
	over(&y, 0, NAMES);
	call_end(&x);
	call_end(&y);
	ck_assert_uint_eq(w.fake.asked, NAMES + 1);
	world_close();
}
END_TEST

/* It refuses: all, or some. The call goes on with what there is. */
START_TEST(what_it_refuses_is_a_miss)
{
	struct call x;

	world_open(1);
	knows(0, NAMES, _i == 2 ? SOURCE_MAY : SOURCE_HAS);
	w.fake.refuses = _i == 1 ? STATUS_OK : STATUS_UNAVAILABLE;
	w.fake.but_first = NAMES / 2;
	if (_i == 1) {
		ck_assert_int_eq(begin(&x, 0, NAMES), STATUS_BUSY);
		come(w.fake.fetch[0], 0, NAMES / 2, SOUND);
		ck_assert_int_eq(again(&x), STATUS_OK);
		over(&x, 0, NAMES / 2);
	} else {
		ck_assert_int_eq(begin(&x, 0, NAMES), STATUS_MISS);
		ck_assert_uint_eq(x.wait.outstanding, 0);
		ck_assert(!x.ready);
	}
	call_end(&x);
	world_close();
}
END_TEST

/* It dies with half of them on their way. */
START_TEST(it_dies)
{
	struct call x;

	it_is_fetched(&x);
	come(w.fake.fetch[0], 0, NAMES / 2, SOUND);
	knows(0, NAMES, SOURCE_NOT);
	come_to_nothing(w.fake.fetch[0], NAMES / 2, NAMES / 2, STATUS_UNAVAILABLE);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, NAMES / 2);
	call_end(&x);
	ck_assert_uint_eq(w.fake.fetches, 1);
	world_close();
}
END_TEST

/* The call is gone, the fetch is cancelled, and memory is wanted by others: its slots are nobody's until it has
 * answered. */
START_TEST(it_answers_after_the_cancel)
{
	struct call x;
	struct fetch *f;

	it_is_fetched(&x);
	f = w.fake.fetch[0];
	rig_tick(w.r.c, w.r.now);
	ck_assert_uint_eq(w.fake.cancels, 0);
	call_end(&x);
	rig_tick(w.r.c, w.r.now);
	ck_assert_uint_ge(w.fake.cancels, 1);
	for (uint64_t n = 0; n < 2 * HOST; n += 8)
		ck_assert_uint_eq(rig_put(&w.r, KEYS + n, 8), 8);
	for (uint32_t i = 0; i < NAMES; i++)
		for (uint32_t at = 0; at < RIG_SLOT_BYTES; at++)
			ck_assert_uint_eq(f->piece[i].slot.at[at], FILLER);
	come(f, 0, 1, SOUND);
	come_to_nothing(f, 1, NAMES - 1, STATUS_CANCELLED);
	knows(0, NAMES, SOURCE_NOT);
	ck_assert_uint_eq(rig_read_all(&w.r, 0, NAMES), 1);
	world_close();
}
END_TEST

/* Bytes that are not those of the name that was asked for: nothing of them is ever found. */
START_TEST(wrong_bytes_are_dropped)
{
	double corrupt;
	struct call x;

	world_open(1);
	corrupt = rig_stat(&w.r, "terrace_corrupt_blocks_total", "");
	knows(0, NAMES, SOURCE_HAS);
	ck_assert_int_eq(begin(&x, 0, NAMES), STATUS_BUSY);
	come(w.fake.fetch[0], 0, 2, SOUND);
	come(w.fake.fetch[0], 2, 1, (enum spoilt)_i);
	come(w.fake.fetch[0], 3, 1, SOUND);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, 2);
	call_end(&x);
	ck_assert_double_eq(rig_stat(&w.r, "terrace_corrupt_blocks_total", ""), corrupt + 1);
	ck_assert_uint_eq(rig_prefix(&w.r, 0, NAMES), 2);
	ck_assert_uint_eq(w.fake.wrongs, 1);
	world_close();
}
END_TEST

/* An engine puts the same name meanwhile, and is not kept from it: what it has put is what stays. */
START_TEST(what_was_put_meanwhile_stays)
{
	uint64_t generation;
	struct call x;

	it_is_fetched(&x);
	ck_assert_uint_eq(rig_put(&w.r, 1, 1), 1);
	ck_assert_int_eq(rig_lease(&w.r, 1, 1, true, x.place, &x.leased), STATUS_OK);
	generation = x.place[0].generation;
	come(w.fake.fetch[0], 0, NAMES, SOUND);
	ck_assert_int_eq(cache_release(w.r.c, w.r.s.id, x.leased.lease), STATUS_OK);
	ck_assert_int_eq(again(&x), STATUS_OK);
	ck_assert_uint_eq(x.place[1].generation, generation);
	over(&x, 0, NAMES);
	call_end(&x);
	world_close();
}
END_TEST

/* A name that is deleted meanwhile does not come back by what was under way. */
START_TEST(what_was_deleted_meanwhile_stays_so)
{
	struct cache_keys k = rig_keys(1, 1);
	enum status status;
	struct call x;

	it_is_fetched(&x);
	ck_assert_int_eq(cache_delete(w.r.c, w.r.s.id, &k, &status, NULL, &w.r.why), STATUS_OK);
	come(w.fake.fetch[0], 0, NAMES, SOUND);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, 1);
	call_end(&x);
	ck_assert_uint_eq(rig_prefix(&w.r, 1, 1), 0);
	free((void *)k.bytes);
	world_close();
}
END_TEST

/* A call that wants all or nothing brings nothing where some would be missing. */
START_TEST(all_or_nothing)
{
	struct call x;

	world_open(1);
	knows(0, NAMES, SOURCE_HAS);
	memset(&x, 0, sizeof(x));
	x.keys = rig_keys(0, NAMES + 1);
	x.wait = (struct cache_wait){ .ready = call_ready, .arg = &x.ready };
	x.all = true;
	ck_assert_int_eq(ask(&x), STATUS_MISS);
	ck_assert_uint_eq(w.fake.fetches, 0);
	call_end(&x);
	world_close();
}
END_TEST

/* However much it has, it gets a share of memory only. */
START_TEST(what_is_fetched_is_bounded)
{
	struct call x;

	world_open(1);
	knows(0, 64, SOURCE_HAS);
	ck_assert_int_eq(begin(&x, 0, 64), STATUS_BUSY);
	ck_assert_uint_gt(w.fake.fetched, 0);
	ck_assert_uint_le(w.fake.fetched * RIG_SLOT_BYTES, w.r.c->options.host_bytes / ARRIVALS_SHARE);
	for (uint32_t i = 0; i < w.fake.fetches; i++)
		come(w.fake.fetch[i], 0, w.fake.fetch[i]->count, SOUND);
	ck_assert_int_ne(again(&x), STATUS_MISS);
	for (uint32_t i = 1; i < w.fake.fetches; i++)
		come_to_nothing(w.fake.fetch[i], 0, w.fake.fetch[i]->count, STATUS_UNAVAILABLE);
	call_end(&x);
	rig_close(&w.r);
}
END_TEST

/* Memory is full, and the kernel is to be asked again for more: the call waits for that answer, and blocks then leave
 * for what arrives. */
START_TEST(a_full_memory_makes_room)
{
	struct call x;

	world_open(1);
	for (uint64_t n = KEYS; n < KEYS + 2 * HOST; n += 8)
		ck_assert_uint_eq(rig_put(&w.r, n, 8), 8);
	w.r.now += 2000000;
	rig_tick(w.r.c, w.r.now);
	knows(0, NAMES, SOURCE_HAS);
	ck_assert_int_eq(begin(&x, 0, NAMES), STATUS_BUSY);
	for (int rounds = 0; !w.fake.fetches && rounds < 10; rounds++) {
		rig_tick(w.r.c, w.r.now);
		ck_assert_int_eq(again(&x), STATUS_BUSY);
	}
	ck_assert_uint_eq(w.fake.fetched, NAMES);
	come(w.fake.fetch[0], 0, NAMES, SOUND);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, NAMES);
	call_end(&x);
	world_close();
}
END_TEST

/* A call that waits for memory gives up, or the cache ends. */
START_TEST(a_wait_for_memory_ends)
{
	struct call x, y;

	world_open(1);
	for (uint64_t n = KEYS; n < KEYS + 2 * HOST; n += 8)
		ck_assert_uint_eq(rig_put(&w.r, n, 8), 8);
	w.r.now += 2000000;
	rig_tick(w.r.c, w.r.now);
	knows(0, 2 * NAMES, SOURCE_HAS);
	ck_assert_int_eq(begin(&x, 0, NAMES), STATUS_BUSY);
	call_end(&x);
	ck_assert_int_eq(begin(&y, NAMES, NAMES), STATUS_BUSY);
	ck_assert(arrivals_stop(w.r.c));
	ck_assert(atomic_load(&y.ready));
	call_end(&y);
	ck_assert_uint_eq(w.fake.fetches, 0);
	rig_close(&w.r);
}
END_TEST

/* What was deleted here does not come back from others, until it is stored again. */
START_TEST(what_was_deleted_is_not_fetched)
{
	enum status s[1];
	struct call x;

	world_open(1);
	knows(0, NAMES, SOURCE_HAS);
	rig_delete(&w.r, 2, 1, s);
	ck_assert_int_eq(s[0], STATUS_MISS);
	ck_assert_int_eq(begin(&x, 0, NAMES), STATUS_BUSY);
	ck_assert_uint_eq(w.fake.fetched, 2);
	come(w.fake.fetch[0], 0, 2, SOUND);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, 2);
	call_end(&x);
	ck_assert_uint_eq(rig_put(&w.r, 2, 1), 1);
	rig_put(&w.r, KEYS, 2 * HOST); /* all are evicted */
	ck_assert_int_eq(begin(&x, 2, 2), STATUS_BUSY);
	ck_assert_uint_eq(w.fake.fetched, 4);
	come(w.fake.fetch[1], 0, 2, SOUND);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 2, 2);
	call_end(&x);
	world_close();
}
END_TEST

/* What the session's engine computes, and whether it wants nothing of others. */
static void session_is(uint32_t tokens_a_second, bool local)
{
	struct session *s;

	cache_lock(w.r.c);
	s = session_find(w.r.c, w.r.s.id);
	s->tokens_a_second = tokens_a_second;
	s->local = local;
	cache_unlock(w.r.c);
}

/* The source says 2 ms for all of them. */
START_TEST(what_is_computed_sooner_is_not_fetched)
{
	static const uint32_t tokens[] = { 0, NAMES * RIG_TOKENS * 100, NAMES * RIG_TOKENS * 1000 };
	struct call x;

	world_open(1);
	session_is(tokens[_i], false);
	knows(0, NAMES, SOURCE_HAS);
	ck_assert_int_eq(begin(&x, 0, NAMES), _i < 2 ? STATUS_BUSY : STATUS_MISS);
	ck_assert_uint_eq(w.fake.fetched, _i < 2 ? NAMES : 0);
	if (_i < 2) {
		come(w.fake.fetch[0], 0, NAMES, SOUND);
		ck_assert_int_eq(again(&x), STATUS_OK);
		over(&x, 0, NAMES);
	}
	call_end(&x);
	world_close();
}
END_TEST

/* However many names there are, the way to the source is counted once. */
START_TEST(a_long_run_is_not_dearer_than_it_is)
{
	enum { LONG = 64 };
	struct call x;

	world_open(1);
	session_is(LONG * RIG_TOKENS * 300, false); /* 3.3 ms for all */
	knows(0, LONG, SOURCE_HAS);
	ck_assert_int_eq(begin(&x, 0, LONG), STATUS_BUSY);
	for (uint32_t i = 0; i < w.fake.fetches; i++)
		come_to_nothing(w.fake.fetch[i], 0, w.fake.fetch[i]->count, STATUS_UNAVAILABLE);
	call_end(&x);
	world_close();
}
END_TEST

/* Two sources have a part of the run each: both bring their own, side by side; and if one cannot say when, the engine
 * computes the tokens. */
START_TEST(two_sources_have_parts)
{
	const bool unsure = _i;
	struct call x;

	world_open(1);
	fake_add(&w.other);
	session_is(2 * NAMES * RIG_TOKENS * 300, false); /* 3.3 ms for all; 2 ms by the sources */
	w.other.unsure = unsure;
	for (uint32_t i = 0; i < 2 * NAMES; i++)
		(i % 3 ? &w.fake : &w.other)->word[i] = SOURCE_HAS;
	ck_assert_int_eq(begin(&x, 0, 2 * NAMES), unsure ? STATUS_MISS : STATUS_BUSY);
	ck_assert_uint_eq(w.fake.fetched, unsure ? 0 : 2 * NAMES - (2 * NAMES + 2) / 3);
	ck_assert_uint_eq(w.other.fetched, unsure ? 0 : (2 * NAMES + 2) / 3);
	for (uint32_t i = 0; i < w.other.fetched; i++)
		ck_assert_uint_eq(number_of(&w.other.fetch[0]->piece[i].key), 3 * i);
	if (!unsure) {
		come(w.other.fetch[0], 0, w.other.fetched, SOUND);
		ck_assert(!x.ready);
		come(w.fake.fetch[0], 0, w.fake.fetched, SOUND);
		ck_assert_int_eq(again(&x), STATUS_OK);
		over(&x, 0, 2 * NAMES);
	}
	call_end(&x);
	world_close();
}
END_TEST

/* Two sources have all of it: the second one gets what it brings sooner than the first, which has a queue then. */
START_TEST(two_sources_share)
{
	enum { LONG = 2 * SOURCE_RUN };
	struct call x;

	world_open_with(16 * LONG, 1, 8);
	fake_add(&w.other);
	w.fake.name_us = 20;
	w.other.name_us = 22;
	knows(0, LONG, SOURCE_HAS);
	memset(w.other.word, SOURCE_HAS, LONG);
	ck_assert_int_eq(begin(&x, 0, LONG), STATUS_BUSY);
	ck_assert_uint_eq(w.fake.fetched, SOURCE_RUN);
	ck_assert_uint_eq(w.other.fetched, SOURCE_RUN);
	come(w.fake.fetch[0], 0, SOURCE_RUN, SOUND);
	come(w.other.fetch[0], 0, SOURCE_RUN, SOUND);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, LONG);
	call_end(&x);
	world_close();
}
END_TEST

/* A holder is lost on the way: another one has the rest. */
START_TEST(another_holder_is_asked)
{
	struct call x;

	it_is_fetched(&x);
	come(w.fake.fetch[0], 0, 1, SOUND);
	knows(1, NAMES - 1, SOURCE_MAY);
	come_to_nothing(w.fake.fetch[0], 1, NAMES - 1, STATUS_UNAVAILABLE);
	ck_assert_int_eq(again(&x), STATUS_BUSY);
	ck_assert_uint_eq(w.fake.asked, NAMES - 1);
	answer(w.fake.ask[0], SOURCE_HAS);
	ck_assert_int_eq(again(&x), STATUS_BUSY);
	come(w.fake.fetch[1], 0, NAMES - 1, SOUND);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, NAMES);
	call_end(&x);
	world_close();
}
END_TEST

/* With so many layouts no position that members are told of is among the first ARRIVALS_A_CALL cells: the call asks for
 * the keys that fit, and for one of those positions to find out which member has them. */
START_TEST(many_layouts_are_asked_for_in_parts)
{
	enum { LAYOUTS = 40, CHAIN = 2 * EXPORT_EVERY, FIT = (ARRIVALS_A_CALL - 1) / LAYOUTS, GOT = 3 };
	const struct source_ask *a;
	struct call x;

	world_open_with(HOST, LAYOUTS, 0);
	w.fake.strict = true;
	knows(0, CHAIN, SOURCE_MAY);
	ck_assert_int_eq(begin(&x, 0, CHAIN), STATUS_BUSY);
	ck_assert_uint_eq(w.fake.asks, 1);
	a = w.fake.ask[0];
	ck_assert_uint_eq(a->run.count, FIT * LAYOUTS + 1);
	for (uint32_t i = 0; i < FIT * LAYOUTS; i++)
		ck_assert_uint_eq(number_of(&a->run.key[i]), i / LAYOUTS);
	ck_assert_uint_eq(number_of(&a->run.key[FIT * LAYOUTS]), EXPORT_EVERY - 1);
	answer(w.fake.ask[0], SOURCE_NOT);
	ck_assert_int_eq(again(&x), STATUS_MISS);
	call_end(&x);
	/* What is there is not asked for again, and another position is. */
	knows(0, GOT, SOURCE_NOT);
	for (uint64_t n = 0; n < GOT; n++)
		ck_assert_uint_eq(rig_put(&w.r, n, 1), 1);
	knows(GOT, EXPORT_EVERY - GOT - 1, SOURCE_MAY);
	ck_assert_int_eq(begin(&x, 0, CHAIN), STATUS_BUSY);
	a = w.fake.ask[1];
	ck_assert_uint_eq(number_of(&a->run.key[0]), GOT);
	ck_assert_uint_eq(number_of(&a->run.key[a->run.count - 1]), 2 * EXPORT_EVERY - 1);
	answer(w.fake.ask[1], SOURCE_NOT);
	ck_assert_int_eq(again(&x), STATUS_OK);
	over(&x, 0, GOT);
	call_end(&x);
	world_close();
}
END_TEST

START_TEST(a_local_session_gets_nothing)
{
	struct call x;

	world_open(1);
	session_is(0, true);
	knows(0, NAMES, SOURCE_HAS);
	ck_assert_int_eq(begin(&x, 0, NAMES), STATUS_MISS);
	ck_assert(!cache_lookup_asks(w.r.c, w.r.s.id, &x.keys, 0, w.r.now));
	call_end(&x);
	ck_assert_uint_eq(w.fake.fetched + w.fake.asked, 0);
	world_close();
}
END_TEST

/* A Warm that does not wait: what it has asked for is fetched when the answer has come. */
START_TEST(a_warm_goes_on_alone)
{
	const struct cache_keys keys = rig_keys(0, NAMES);
	struct cache_wait wait = { .ready = call_ready, .arg = &(_Atomic bool){ false } };
	uint32_t blocks;

	world_open(1);
	knows(0, NAMES, SOURCE_MAY);
	ck_assert_int_eq(cache_warm(w.r.c,
				    &(struct cache_warm_call){
					    .session = w.r.s.id, .keys = &keys, .gpu = CACHE_HOST, .now_us = w.r.now },
				    &wait, &blocks, &w.r.why),
			 STATUS_BUSY);
	cache_wait_end(w.r.c, &wait);
	ck_assert_uint_eq(w.fake.asked, NAMES);
	cache_lock(w.r.c);
	knows(0, NAMES - 1, SOURCE_HAS);
	w.fake.word[NAMES - 1] = SOURCE_NOT;
	w.fake.ask[0]->ended(w.r.c, w.fake.ask[0], STATUS_OK);
	cache_unlock(w.r.c);
	ck_assert_uint_eq(w.fake.fetched, NAMES - 1);
	rig_tick(w.r.c, w.r.now);
	ck_assert_uint_eq(w.fake.cancels, 0);
	come(w.fake.fetch[0], 0, NAMES - 1, SOUND);
	RIG_AWAIT(rig_prefix(&w.r, 0, NAMES) == NAMES - 1);
	free((void *)keys.bytes);
	world_close();
}
END_TEST

/* A name that is deleted while the source is asked for it is not fetched, also if no call waits. */
START_TEST(a_warm_does_not_bring_back_what_was_deleted)
{
	const struct cache_keys keys = rig_keys(0, NAMES);
	struct cache_wait wait = { .ready = call_ready, .arg = &(_Atomic bool){ false } };
	enum status s[1];
	uint32_t blocks;

	world_open(1);
	knows(0, NAMES, SOURCE_MAY);
	ck_assert_int_eq(cache_warm(w.r.c,
				    &(struct cache_warm_call){
					    .session = w.r.s.id, .keys = &keys, .gpu = CACHE_HOST, .now_us = w.r.now },
				    &wait, &blocks, &w.r.why),
			 STATUS_BUSY);
	cache_wait_end(w.r.c, &wait);
	rig_delete(&w.r, 1, 1, s);
	answer(w.fake.ask[0], SOURCE_HAS);
	ck_assert_uint_eq(w.fake.fetched, 1);
	come(w.fake.fetch[0], 0, 1, SOUND);
	RIG_AWAIT(rig_prefix(&w.r, 0, NAMES) == 1);
	free((void *)keys.bytes);
	world_close();
}
END_TEST

/* A lookup says that others are asked, and asks them once; what they have stays there until a call brings it. */
START_TEST(a_lookup_asks)
{
	enum { CHAIN = 2 * EXPORT_EVERY };
	const struct cache_keys keys = rig_keys(0, CHAIN);

	world_open(1);
	ck_assert_uint_eq(rig_put(&w.r, 0, NAMES), NAMES);
	ck_assert(!cache_lookup_asks(w.r.c, w.r.s.id, &keys, NAMES, w.r.now));
	knows(0, CHAIN, SOURCE_MAY);
	for (int i = 0; i < 2; i++) {
		ck_assert(cache_lookup_asks(w.r.c, w.r.s.id, &keys, NAMES, w.r.now));
		ck_assert_uint_eq(w.fake.asks, 1);
		ck_assert_uint_eq(w.fake.asked, CHAIN - NAMES);
	}
	answer(w.fake.ask[0], SOURCE_HAS);
	ck_assert(cache_lookup_asks(w.r.c, w.r.s.id, &keys, NAMES, w.r.now));
	ck_assert_uint_eq(w.fake.asks, 1);
	ck_assert_uint_eq(w.fake.fetched, 0);
	knows(0, CHAIN, SOURCE_NOT);
	ck_assert(!cache_lookup_asks(w.r.c, w.r.s.id, &keys, NAMES, w.r.now));
	/* What cannot be asked, or stands behind what is nowhere, is not said to be asked. */
	knows(0, CHAIN, SOURCE_MAY);
	w.fake.refuses = STATUS_UNAVAILABLE;
	ck_assert(!cache_lookup_asks(w.r.c, w.r.s.id, &keys, NAMES, w.r.now));
	w.fake.refuses = STATUS_OK;
	knows(NAMES, 1, SOURCE_NOT);
	ck_assert(!cache_lookup_asks(w.r.c, w.r.s.id, &keys, NAMES, w.r.now));
	ck_assert_uint_eq(w.fake.asks, 1);
	free((void *)keys.bytes);
	world_close();
}
END_TEST

static void *late_main(void *arg)
{
	cache_thread_enter();
	nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
	come_to_nothing(arg, 0, NAMES, STATUS_CANCELLED);
	cache_thread_leave();
	return NULL;
}

/* The cache ends only when the source has. */
START_TEST(the_end_waits_for_it)
{
	pthread_t late;
	struct call x;

	it_is_fetched(&x);
	call_end(&x);
	ck_assert_int_eq(pthread_create(&late, NULL, late_main, w.fake.fetch[0]), 0);
	ck_assert(cache_destroy(w.r.c));
	ck_assert_uint_ge(w.fake.cancels, 1);
	pthread_join(late, NULL);
	cache_thread_leave();
}
END_TEST

/* ---- what another member offers ---- */

struct offered {
	struct call of;                /* its wait and its keys are used */
	struct run_key key[NAMES];
	bool taken[NAMES];
	enum status result;
};

static enum status offered_take(struct offered *x)
{
	return cache_offered_take(w.r.c, &(struct key_run){ NAMES, x->key }, w.r.now, &x->of.wait, x->taken, &x->result);
}

static enum status offered_begin(struct offered *x, uint64_t first)
{
	memset(x, 0, sizeof(*x));
	x->of.keys = rig_keys(first, NAMES);
	x->of.wait = (struct cache_wait){ .ready = call_ready, .arg = &x->of.ready };
	for (uint32_t i = 0; i < NAMES; i++) {
		x->key[i].pool = w.r.c->pools[0];
		block_ident(w.r.c->pools[0], x->of.keys.bytes + i * RIG_KEY_BYTES, RIG_KEY_BYTES, &x->key[i].name);
	}
	return offered_take(x);
}

/* What is offered comes to free memory, is the first to go, and a lease makes it the node's own. */
START_TEST(what_is_offered_goes_first)
{
	struct offered x;

	world_open(1);
	w.r.c->options.peer_room_milli = 500;
	knows(0, NAMES, SOURCE_HAS);
	ck_assert_int_eq(offered_begin(&x, 0), STATUS_BUSY);
	come(w.fake.fetch[0], 0, NAMES, SOUND);
	ck_assert_int_eq(offered_take(&x), STATUS_OK);
	ck_assert(x.taken[0] && x.taken[NAMES - 1]);
	call_end(&x.of);
	ck_assert_uint_eq(w.r.c->for_peer_bytes, NAMES * RIG_SLOT_BYTES);
	if (_i)
		ck_assert_uint_eq(rig_read_all(&w.r, 0, NAMES), NAMES);
	ck_assert_uint_eq(w.r.c->for_peer_bytes, _i ? 0 : NAMES * RIG_SLOT_BYTES);
	rig_put_slowly(&w.r, 100, HOST - 8);
	ck_assert_uint_eq(rig_prefix(&w.r, 0, NAMES), _i ? NAMES : 0);
	ck_assert_uint_eq(rig_prefix(&w.r, 400, 8), _i ? 4 : 8); /* the ends of prefixes go first */
	ck_assert_uint_eq(w.r.c->for_peer_bytes, 0);
	world_close();
}
END_TEST

/* Not even by half: what had no room is not what was not wanted. */
START_TEST(what_has_no_room_is_refused)
{
	const uint64_t room[] = { 0, 500, NAMES / 2 * 1000 / HOST + 2 };
	struct offered x;

	world_open(1);
	w.r.c->options.peer_room_milli = room[_i];
	if (_i == 1)
		rig_put_slowly(&w.r, 100, HOST);
	knows(0, NAMES, SOURCE_HAS);
	ck_assert_int_eq(offered_begin(&x, 0), _i < 2 ? STATUS_OK : STATUS_BUSY);
	if (_i == 2)
		come(w.fake.fetch[0], 0, NAMES / 2, SOUND);
	ck_assert_int_eq(offered_take(&x), STATUS_OK);
	ck_assert(x.result == STATUS_EXHAUSTED && w.fake.fetches == (_i == 2) && x.taken[0] == (_i == 2) && !x.taken[NAMES - 1]);
	call_end(&x.of);
	world_close();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_arrival");
	TCase *t = tcase_create("cache_arrival");
	SRunner *runner;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, what_it_has_arrives, 0, 2);
	tcase_add_test(t, names_are_merged);
	tcase_add_loop_test(t, what_it_refuses_is_a_miss, 0, 3);
	tcase_add_test(t, it_dies);
	tcase_add_test(t, it_answers_after_the_cancel);
	tcase_add_loop_test(t, wrong_bytes_are_dropped, A_BYTE, SPOILTS);
	tcase_add_test(t, what_was_put_meanwhile_stays);
	tcase_add_test(t, what_was_deleted_meanwhile_stays_so);
	tcase_add_test(t, all_or_nothing);
	tcase_add_test(t, what_is_fetched_is_bounded);
	tcase_add_test(t, a_wait_for_memory_ends);
	tcase_add_test(t, what_was_deleted_is_not_fetched);
	tcase_add_loop_test(t, what_is_computed_sooner_is_not_fetched, 0, 3);
	tcase_add_test(t, a_long_run_is_not_dearer_than_it_is);
	tcase_add_loop_test(t, two_sources_have_parts, 0, 2);
	tcase_add_test(t, two_sources_share);
	tcase_add_test(t, another_holder_is_asked);
	tcase_add_test(t, many_layouts_are_asked_for_in_parts);
	tcase_add_test(t, a_local_session_gets_nothing);
	tcase_add_test(t, a_warm_goes_on_alone);
	tcase_add_test(t, a_warm_does_not_bring_back_what_was_deleted);
	tcase_add_test(t, a_lookup_asks);
	tcase_add_test(t, a_full_memory_makes_room);
	tcase_add_loop_test(t, what_is_offered_goes_first, 0, 2);
	tcase_add_loop_test(t, what_has_no_room_is_refused, 0, 3);
	tcase_add_test(t, the_end_waits_for_it);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	const int failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
