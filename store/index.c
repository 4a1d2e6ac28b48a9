/* The index over liburcu's resizable lock-free hash table.
 *
 * Uniqueness of live records: cds_lfht_add_unique() refuses a node if its match function accepts a node with the same
 * hash. The match function here accepts only live records of the same ident. So a new block can be inserted while a
 * dead one is not removed yet. A record only ever goes from live to dead. Hence a refusal was right at the moment of
 * the match, and of several inserts exactly one succeeds.
 *
 * Buckets: the library's own resizing waits for eight records a bucket and shrinks after removals, and each record of a
 * chain is a cache miss. So the library's resizing is off, and a thread of the index doubles the table as soon as there
 * are more records than buckets (16 bytes each). The table never shrinks. Hence the bucket of a hash is known here: a
 * batch of finds prefetches all buckets first, then the first records behind them, and looks the keys up after that.
 */
#include "store/index.h"
#include "store/index_thread.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define XXH_INLINE_ALL /* short keys: the call would cost as much as the hash */
#include <xxhash.h>

#include "store/tsan.h"

#define FIND_AT_ONCE 64 /* finds that overlap their cache misses */
#define BUCKETS_MIN (1ul << 10)
#define BUCKETS_MAX (1ul << 30)

struct index {
	struct cds_lfht *table;
	size_t owner_bytes;            /* a long key lies so many bytes behind the record's beginning */
	uint64_t seed;                 /* random, so that keys cannot be chosen to fall into one bucket */
	_Atomic uint64_t records;
	_Atomic unsigned long buckets; /* in use; written by the growing thread */
	pthread_t grower;
	pthread_mutex_t mutex;         /* of the two below */
	pthread_cond_t wake;
	unsigned long wanted_buckets;
	bool stop;
};

/* What a lookup compares. */
struct wanted {
	const uint8_t *key;
	uint64_t layout_id;
	uint32_t tenant;
	uint8_t key_bytes;
	size_t owner_bytes;
};

/* Stands for "every reader that left before this grace period", for TSan alone. */
static const char readers_gone;

static struct index_record *record_of(struct cds_lfht_node *node)
{
	return (struct index_record *)((char *)node - offsetof(struct index_record, node));
}

static bool is_live(const struct index_record *r)
{
	return !(atomic_load_explicit(&r->pins, memory_order_acquire) & INDEX_DEAD);
}

/* The seed for keys of one tenant, layout and length. A batch hashes these once, and then each key where it lies. */
static uint64_t seed_of(const struct index *x, const struct wanted *w)
{
	const uint64_t common[2] = { w->layout_id, (uint64_t)w->tenant << 8 | w->key_bytes };

	assert(w->key_bytes >= 1 && w->key_bytes <= INDEX_KEY_MAX);
	return XXH3_64bits_withSeed(common, sizeof(common), x->seed);
}

/* XXH3: the table uses 64 bits. The common sizes are spelt out so that the compiler specialises them. */
static inline uint64_t key_hash(const uint8_t *key, uint32_t key_bytes, uint64_t seed)
{
	switch (key_bytes) {
	case 16:
		return XXH3_64bits_withSeed(key, 16, seed);
	case 32:
		return XXH3_64bits_withSeed(key, 32, seed);
	default:
		return XXH3_64bits_withSeed(key, key_bytes, seed);
	}
}

static uint64_t hash(const struct index *x, const struct wanted *w)
{
	return key_hash(w->key, w->key_bytes, seed_of(x, w));
}

/* Compares eight bytes at a time: keys are short and mostly a multiple of eight long. */
static bool key_equal(const uint8_t *a, const uint8_t *b, uint32_t n)
{
	uint64_t x, y;

	for (; n >= 8; n -= 8, a += 8, b += 8) {
		memcpy(&x, a, 8);
		memcpy(&y, b, 8);
		if (x != y)
			return false;
	}
	return n == 0 || memcmp(a, b, n) == 0;
}

static struct wanted wanted_of(const struct index *x, const struct index_ident *ident)
{
	return (struct wanted){
		.key = ident->key,
		.layout_id = ident->layout_id,
		.tenant = ident->tenant,
		.key_bytes = ident->key_bytes,
		.owner_bytes = x->owner_bytes,
	};
}

void index_name_set(struct index_record *r, size_t owner_bytes, const struct index_ident *ident)
{
	const uint32_t inline_bytes = ident->key_bytes < INDEX_KEY_INLINE ? ident->key_bytes : INDEX_KEY_INLINE;

	assert(ident->key_bytes >= 1 && ident->key_bytes <= INDEX_KEY_MAX);
	r->name.layout_id = ident->layout_id;
	r->name.tenant = ident->tenant;
	r->name.key_bytes = ident->key_bytes;
	memcpy(r->name.inline_key, ident->key, inline_bytes);
	if (ident->key_bytes > INDEX_KEY_INLINE)
		memcpy((uint8_t *)r + owner_bytes, ident->key, ident->key_bytes);
}

static inline bool matches(const struct index_record *r, const struct wanted *w, const uint8_t *key)
{
	tsan_acquire(r);
	return r->name.tenant == w->tenant && r->name.layout_id == w->layout_id && r->name.key_bytes == w->key_bytes &&
	       key_equal(key, w->key, w->key_bytes) && is_live(r);
}

/* cds_lfht's match functions, of short and of long keys: a live record of the wanted ident. */
static int match_inline(struct cds_lfht_node *node, const void *key)
{
	const struct index_record *r = record_of(node);

	return matches(r, key, r->name.inline_key);
}

static int match_tail(struct cds_lfht_node *node, const void *key)
{
	const struct index_record *r = record_of(node);
	const struct wanted *w = key;

	return matches(r, w, (const uint8_t *)r + w->owner_bytes);
}

static cds_lfht_match_fct match_of(const struct wanted *w)
{
	return w->key_bytes <= INDEX_KEY_INLINE ? match_inline : match_tail;
}

/* The thread that enlarges the table. */
static void *grow(void *arg)
{
	struct index *x = arg;
	unsigned long buckets = atomic_load_explicit(&x->buckets, memory_order_relaxed);

	urcu_memb_register_thread();
	pthread_mutex_lock(&x->mutex);
	for (;;) {
		while (!x->stop && x->wanted_buckets <= buckets)
			pthread_cond_wait(&x->wake, &x->mutex);
		if (x->stop)
			break;
		buckets = x->wanted_buckets;
		pthread_mutex_unlock(&x->mutex);
		cds_lfht_resize(x->table, buckets);
		atomic_store_explicit(&x->buckets, buckets, memory_order_release);
		pthread_mutex_lock(&x->mutex);
	}
	pthread_mutex_unlock(&x->mutex);
	urcu_memb_unregister_thread();
	return NULL;
}

/* Asks for at least as many buckets as there are records. */
static void ask_to_grow(struct index *x, uint64_t records)
{
	pthread_mutex_lock(&x->mutex);
	while (x->wanted_buckets < records && x->wanted_buckets < BUCKETS_MAX)
		x->wanted_buckets <<= 1;
	pthread_cond_signal(&x->wake);
	pthread_mutex_unlock(&x->mutex);
}

static bool start_grower(struct index *x)
{
	sigset_t all, before;
	bool started;

	/* The new threads take no signals: the owner's threads handle them. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	started = pthread_create(&x->grower, NULL, grow, x) == 0;
	/* liburcu starts its own thread at the first record that it is to free, and ends the process if it cannot. So
	 * have it started here, before there is work to lose. */
	if (started)
		(void)urcu_memb_get_default_call_rcu_data();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return started;
}

enum status index_create(size_t owner_bytes, uint64_t blocks_hint, struct index **out)
{
	struct index *x = calloc(1, sizeof(*x));
	unsigned long buckets = BUCKETS_MIN;

	if (!x)
		return STATUS_EXHAUSTED;
	while (buckets < blocks_hint && buckets < BUCKETS_MAX)
		buckets <<= 1;
	if (getrandom(&x->seed, sizeof(x->seed), GRND_NONBLOCK) != sizeof(x->seed))
		x->seed = (uint64_t)(uintptr_t)x; /* early boot: better than nothing */
	x->owner_bytes = owner_bytes;
	x->buckets = buckets;
	x->wanted_buckets = buckets;
	x->table = _cds_lfht_new(buckets, buckets, 0, 0, &cds_lfht_mm_order, &urcu_memb_flavor, NULL);
	if (!x->table) {
		free(x);
		return STATUS_EXHAUSTED;
	}
	pthread_mutex_init(&x->mutex, NULL);
	pthread_cond_init(&x->wake, NULL);
	if (!start_grower(x)) {
		pthread_cond_destroy(&x->wake);
		pthread_mutex_destroy(&x->mutex);
		cds_lfht_destroy(x->table, NULL);
		free(x);
		return STATUS_EXHAUSTED;
	}
	*out = x;
	return STATUS_OK;
}

static void stop_grower(struct index *x)
{
	pthread_mutex_lock(&x->mutex);
	x->stop = true;
	pthread_cond_signal(&x->wake);
	pthread_mutex_unlock(&x->mutex);
	pthread_join(x->grower, NULL);
	pthread_cond_destroy(&x->wake);
	pthread_mutex_destroy(&x->mutex);
}

void index_destroy(struct index *x, void (*free_record)(struct index_record *))
{
	struct cds_lfht_iter iter;
	struct cds_lfht_node *node;
	int error;

	if (!x)
		return;
	stop_grower(x);
	index_read_lock();
	cds_lfht_for_each(x->table, &iter, node) {
		/* The walk still uses the record; it is freed only after this read section. */
		cds_lfht_del(x->table, node);
		index_reclaim(record_of(node), free_record);
	}
	index_read_unlock();
	urcu_memb_barrier();
	error = cds_lfht_destroy(x->table, NULL);
	assert(error == 0);
	(void)error;
	free(x);
}

static _Thread_local uint32_t entered;

void index_thread_enter(void)
{
	if (entered++ == 0)
		urcu_memb_register_thread();
}

void index_thread_leave(void)
{
	if (--entered == 0)
		urcu_memb_unregister_thread();
}

void index_read_lock(void)
{
	urcu_memb_read_lock();
}

void index_read_unlock(void)
{
	tsan_release(&readers_gone);
	urcu_memb_read_unlock();
}

enum status index_insert(struct index *x, struct index_record *r, struct index_record **existing)
{
	const struct index_ident ident = { .layout_id = r->name.layout_id,
					   .tenant = r->name.tenant,
					   .key_bytes = r->name.key_bytes,
					   .key = index_key(r, x->owner_bytes) };
	struct wanted w = wanted_of(x, &ident);
	struct cds_lfht_node *node;
	uint64_t h = hash(x, &w);

	cds_lfht_node_init(&r->node);
	tsan_release(r);
	node = cds_lfht_add_unique(x->table, h, match_of(&w), &w, &r->node);
	if (node == &r->node) {
		uint64_t records = atomic_fetch_add_explicit(&x->records, 1, memory_order_relaxed) + 1;

		if (records > atomic_load_explicit(&x->buckets, memory_order_relaxed))
			ask_to_grow(x, records);
		return STATUS_OK;
	}
	if (existing)
		*existing = record_of(node);
	return STATUS_EXISTS;
}

static struct index_record *find_hashed(struct index *x, uint64_t h, cds_lfht_match_fct match, const struct wanted *w)
{
	struct cds_lfht_iter iter;
	struct cds_lfht_node *node;

	cds_lfht_lookup(x->table, h, match, w, &iter);
	node = cds_lfht_iter_get_node(&iter);
	return node ? record_of(node) : NULL;
}

struct index_record *index_find(struct index *x, const struct index_ident *ident)
{
	struct wanted w = wanted_of(x, ident);
	uint64_t h = hash(x, &w);

	return find_hashed(x, h, match_of(&w), &w);
}

/*
 * The address of the first record behind a bucket (or of the next bucket); the low bits of a link are flags.
 * A number, not a pointer: it is 0 behind the last bucket, and prefetching it is harmless.
 */
static uintptr_t first_behind(struct cds_lfht_node *bucket)
{
	uintptr_t link = (uintptr_t)__atomic_load_n(&bucket->next, __ATOMIC_RELAXED);

	return link & ~(uintptr_t)7;
}

/* Prefetches the bucket of every hash, then the first record behind each. */
static void fetch_hints(struct index *x, const uint64_t *hashes, uint32_t n)
{
	unsigned long mask = atomic_load_explicit(&x->buckets, memory_order_acquire) - 1;
	struct cds_lfht_node *bucket[FIND_AT_ONCE];

	for (uint32_t i = 0; i < n; i++) {
		bucket[i] = cds_lfht_mm_order.bucket_at(x->table, hashes[i] & mask);
		__builtin_prefetch(bucket[i]);
	}
	for (uint32_t i = 0; i < n; i++) {
		uintptr_t record = first_behind(bucket[i]);

		__builtin_prefetch((const void *)record);
		__builtin_prefetch((const void *)(record + sizeof(struct index_record) - 1));
	}
}

void index_find_many(struct index *x, uint32_t tenant, uint64_t layout_id, const uint8_t *keys,
		     uint32_t key_bytes, uint32_t n, struct index_record **out)
{
	struct wanted w = {
		.layout_id = layout_id, .tenant = tenant, .key_bytes = (uint8_t)key_bytes, .owner_bytes = x->owner_bytes
	};
	const cds_lfht_match_fct match = match_of(&w);
	uint64_t hashes[FIND_AT_ONCE];
	uint64_t seed = seed_of(x, &w);

	while (n > 0) {
		uint32_t part = n < FIND_AT_ONCE ? n : FIND_AT_ONCE;

		for (uint32_t i = 0; i < part; i++)
			hashes[i] = key_hash(keys + (size_t)i * key_bytes, key_bytes, seed);
		fetch_hints(x, hashes, part);
		for (uint32_t i = 0; i < part; i++) {
			w.key = keys + (size_t)i * key_bytes;
			out[i] = find_hashed(x, hashes[i], match, &w);
		}
		keys += (size_t)part * key_bytes;
		out += part;
		n -= part;
	}
}

/* Nodes lie in the table in the order of their hashes with the bits reversed, whatever number of buckets there is. */
static uint64_t reversed(uint64_t h)
{
	h = (h & 0x5555555555555555ull) << 1 | (h >> 1 & 0x5555555555555555ull);
	h = (h & 0x3333333333333333ull) << 2 | (h >> 2 & 0x3333333333333333ull);
	h = (h & 0x0f0f0f0f0f0f0f0full) << 4 | (h >> 4 & 0x0f0f0f0f0f0f0f0full);
	return __builtin_bswap64(h);
}

static uint64_t place_of(const struct cds_lfht_node *node)
{
	return node->reverse_hash >> 1;
}

/* An iterator just before the first node at or behind the place. */
static struct cds_lfht_iter iter_at(struct index *x, uint64_t place)
{
	const unsigned long mask = atomic_load_explicit(&x->buckets, memory_order_acquire) - 1;
	struct cds_lfht_node *bucket = cds_lfht_mm_order.bucket_at(x->table, reversed(place << 1) & mask);

	return (struct cds_lfht_iter){ .node = bucket, .next = __atomic_load_n(&bucket->next, __ATOMIC_ACQUIRE) };
}

struct index_record *index_walk_next(struct index *x, struct index_walk *w)
{
	struct cds_lfht_iter iter = iter_at(x, w->place);
	uint32_t passed = 0;

	for (;;) {
		struct cds_lfht_node *node;

		cds_lfht_next(x->table, &iter);
		node = cds_lfht_iter_get_node(&iter);
		if (!node)
			return NULL;
		tsan_acquire(record_of(node));
		if (place_of(node) < w->place || !is_live(record_of(node)))
			continue;
		if (place_of(node) == w->place && passed++ < w->told)
			continue;
		w->told = place_of(node) == w->place ? w->told + 1 : 1;
		w->place = place_of(node);
		return record_of(node);
	}
}

bool index_pin(struct index_record *r, bool *first)
{
	uint32_t word = atomic_load_explicit(&r->pins, memory_order_relaxed);

	do {
		if (word >= INDEX_DEAD - 1)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&r->pins, &word, word + 1, memory_order_acq_rel,
							memory_order_relaxed));
	if (first)
		*first = word == 0;
	return true;
}

uint32_t index_unpin(struct index_record *r)
{
	uint32_t before = atomic_fetch_sub_explicit(&r->pins, 1, memory_order_acq_rel);

	assert((before & ~INDEX_DEAD) != 0);
	return before - 1;
}

uint32_t index_kill(struct index_record *r)
{
	return atomic_fetch_or_explicit(&r->pins, INDEX_DEAD, memory_order_acq_rel);
}

void index_remove(struct index *x, struct index_record *r)
{
	int gone;

	assert(!is_live(r));
	urcu_memb_read_lock();
	gone = cds_lfht_del(x->table, &r->node);
	urcu_memb_read_unlock();
	assert(gone == 0);
	if (gone == 0)
		atomic_fetch_sub_explicit(&x->records, 1, memory_order_relaxed);
}

static void reclaim(struct rcu_head *head)
{
	struct index_record *r =
		(struct index_record *)((char *)head - offsetof(struct index_record, rcu));

	tsan_acquire(r);
	tsan_acquire(&readers_gone);
	r->free_record(r);
}

void index_reclaim(struct index_record *r, void (*free_record)(struct index_record *))
{
	r->free_record = free_record;
	tsan_release(r);
	urcu_memb_call_rcu(&r->rcu, reclaim);
}

void index_barrier(void)
{
	urcu_memb_barrier();
}
