/* The index: idents in full, the life of a record, batches, growth, and threads that insert, find,
 * pin and kill the same keys, after which every count is exact.
 */
#include "store/index.h"
#include "store/index_thread.h"
#include "tests/store/index_records.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TERRACE_SANITIZED
enum { SCALE = 10 };
#else
enum { SCALE = 1 };
#endif

/* The linker puts this in the place of the hash table's own resizing: the buckets that the index has asked for last. */
struct cds_lfht;
static _Atomic unsigned long buckets;
void __real_cds_lfht_resize(struct cds_lfht *table, unsigned long size);
void __wrap_cds_lfht_resize(struct cds_lfht *table, unsigned long size);

void __wrap_cds_lfht_resize(struct cds_lfht *table, unsigned long size)
{
	__real_cds_lfht_resize(table, size);
	buckets = size;
}

/* And this in the place of finds and inserts: with `collide` all keys have one hash, so that nothing but their bytes
 * tells them apart. */
static bool collide;
void __real_cds_lfht_lookup(struct cds_lfht *table, unsigned long hash, cds_lfht_match_fct match, const void *key,
			    struct cds_lfht_iter *iter);
void __wrap_cds_lfht_lookup(struct cds_lfht *table, unsigned long hash, cds_lfht_match_fct match, const void *key,
			    struct cds_lfht_iter *iter);
struct cds_lfht_node *__real_cds_lfht_add_unique(struct cds_lfht *table, unsigned long hash, cds_lfht_match_fct match,
						 const void *key, struct cds_lfht_node *node);
struct cds_lfht_node *__wrap_cds_lfht_add_unique(struct cds_lfht *table, unsigned long hash, cds_lfht_match_fct match,
						 const void *key, struct cds_lfht_node *node);

void __wrap_cds_lfht_lookup(struct cds_lfht *table, unsigned long hash, cds_lfht_match_fct match, const void *key,
			    struct cds_lfht_iter *iter)
{
	__real_cds_lfht_lookup(table, collide ? 5 : hash, match, key, iter);
}

struct cds_lfht_node *__wrap_cds_lfht_add_unique(struct cds_lfht *table, unsigned long hash, cds_lfht_match_fct match,
						 const void *key, struct cds_lfht_node *node)
{
	return __real_cds_lfht_add_unique(table, collide ? 5 : hash, match, key, node);
}

struct item {
	struct index_record record;
	uint64_t check; /* a function of the key, wiped when freed */
};

static _Atomic uint64_t freed;

static uint64_t next(uint64_t *rng)
{
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return *rng;
}

/* The key lies in the ident: copies have their own. */
struct named {
	uint64_t layout_id;
	uint32_t tenant;
	uint8_t key_bytes, key[INDEX_KEY_MAX];
};

static struct named ident_of(uint64_t n)
{
	struct named id = { .layout_id = 11, .tenant = 1, .key_bytes = 16 };

	memcpy(id.key, &n, sizeof(n));
	return id;
}

static struct index_ident view_of(const struct named *id)
{
	return (struct index_ident){
		.layout_id = id->layout_id, .tenant = id->tenant, .key_bytes = id->key_bytes, .key = id->key
	};
}

static struct item *item_new(const struct named *id)
{
	struct item *it = calloc(1, index_record_bytes(sizeof(*it), id->key_bytes));
	const struct index_ident view = view_of(id);
	uint64_t n;

	ck_assert_ptr_nonnull(it);
	index_name_set(&it->record, sizeof(*it), &view);
	memcpy(&n, id->key, sizeof(n));
	it->check = ~n;
	return it;
}

static void item_free(struct index_record *r)
{
	struct item *it = (struct item *)r;

	it->check = 0;
	atomic_fetch_add(&freed, 1);
	free(it);
}

static struct index *opened(uint64_t hint)
{
	struct index *x;

	index_thread_enter();
	ck_assert_int_eq(index_create(sizeof(struct item), hint, &x), STATUS_OK);
	return x;
}

static void closed(struct index *x)
{
	index_destroy(x, item_free);
	index_thread_leave();
}

static enum status insert(struct index *x, struct item *it, struct index_record **existing)
{
	enum status s;

	index_read_lock();
	s = index_insert(x, &it->record, existing);
	index_read_unlock();
	return s;
}

static struct index_record *find(struct index *x, const struct named *id)
{
	const struct index_ident view = view_of(id);
	struct index_record *r;

	index_read_lock();
	r = index_find(x, &view);
	index_read_unlock();
	return r;
}

START_TEST(an_ident_is_compared_in_full)
{
	struct index *x = opened(0);
	struct named base = ident_of(5), other;
	struct item *it = item_new(&base);

	ck_assert_ptr_null(find(x, &base));
	ck_assert_int_eq(insert(x, it, NULL), STATUS_OK);
	ck_assert_ptr_eq(find(x, &base), &it->record);
	other = base, other.tenant = 2;
	ck_assert_ptr_null(find(x, &other));
	other = base, other.layout_id = 12;
	ck_assert_ptr_null(find(x, &other));
	other = base, other.key_bytes = 15;
	ck_assert_ptr_null(find(x, &other));
	other = base, other.key[15] = 1;
	ck_assert_ptr_null(find(x, &other));
	other = base, other.key[16] = 1; /* behind the end: not looked at */
	ck_assert_ptr_eq(find(x, &other), &it->record);
	ck_assert_uint_eq(index_records(x), 1);
	closed(x);
	ck_assert_uint_eq(freed, 1);
}
END_TEST

/* Keys of a family: equal at first, different at their ends, in their lengths, or in zero bytes behind. */
static uint32_t family(struct named *out)
{
	static const uint8_t lengths[] = { 1, 8, 16, 31, 32, 33, 36, 40, 48, 63, 64 };
	uint32_t n = 0;

	for (size_t l = 0; l < sizeof(lengths); l++)
		for (int kind = 0; kind < 3; kind++) {
			struct named id = ident_of(0x0706050403020100ull);

			id.key_bytes = lengths[l];
			memset(id.key + 8, 0, sizeof(id.key) - 8);
			if (kind)
				id.key[lengths[l] - 1] ^= (uint8_t)kind;
			out[n++] = id;
		}
	return n;
}

START_TEST(long_keys_are_compared_to_their_ends)
{
	struct index_record *out[1];
	struct index *x = opened(0);
	struct named id[64];
	struct item *it[64];
	const uint32_t n = family(id);

	collide = _i;
	/* Each is there alone first: no other of the family is found in its place. */
	for (uint32_t i = 0; i < n; i++) {
		it[i] = item_new(&id[i]);
		for (uint32_t k = i; k < n; k++)
			ck_assert_msg(find(x, &id[k]) == NULL, "%u of %u", k, i);
		ck_assert_int_eq(insert(x, it[i], NULL), STATUS_OK);
	}
	for (uint32_t i = 0; i < n; i++) {
		ck_assert_ptr_eq(find(x, &id[i]), &it[i]->record);
		ck_assert_mem_eq(index_key(&it[i]->record, sizeof(*it[i])), id[i].key, id[i].key_bytes);
		index_read_lock();
		index_find_many(x, 1, 11, id[i].key, id[i].key_bytes, 1, out);
		index_read_unlock();
		ck_assert_ptr_eq(out[0], &it[i]->record);
	}
	ck_assert_uint_eq(index_kill(&it[n - 1]->record), 0);
	index_remove(x, &it[n - 1]->record);
	index_reclaim(&it[n - 1]->record, item_free);
	ck_assert_ptr_null(find(x, &id[n - 1]));
	ck_assert_ptr_nonnull(find(x, &id[n - 2]));
	closed(x);
	collide = false;
}
END_TEST

START_TEST(a_dead_record_makes_room_for_a_live_one)
{
	struct index *x = opened(0);
	struct named id = ident_of(5);
	struct item *first = item_new(&id), *second = item_new(&id), *third = item_new(&id);
	struct index_record *existing = NULL;

	ck_assert_int_eq(insert(x, first, NULL), STATUS_OK);
	ck_assert_int_eq(insert(x, second, &existing), STATUS_EXISTS);
	ck_assert_ptr_eq(existing, &first->record);
	ck_assert_uint_eq(index_kill(&first->record), 0);
	ck_assert_ptr_null(find(x, &id));
	/* The dead one is still in the table. */
	ck_assert_int_eq(insert(x, second, NULL), STATUS_OK);
	ck_assert_ptr_eq(find(x, &id), &second->record);
	ck_assert_int_eq(insert(x, third, &existing), STATUS_EXISTS);
	ck_assert_ptr_eq(existing, &second->record);
	ck_assert_uint_eq(index_records(x), 1);
	index_remove(x, &first->record);
	index_reclaim(&first->record, item_free);
	index_barrier();
	ck_assert_uint_eq(freed, 1);
	ck_assert_uint_eq(index_records(x), 1);
	ck_assert_ptr_eq(find(x, &id), &second->record);
	free(third);
	closed(x);
	ck_assert_uint_eq(freed, 2);
}
END_TEST

START_TEST(pins_and_death)
{
	struct index_record r = { 0 };
	bool first = false;

	ck_assert(index_pin(&r, &first));
	ck_assert(first);
	ck_assert(index_pin(&r, &first));
	ck_assert(!first);
	ck_assert(index_pin(&r, NULL));
	ck_assert_uint_eq(index_unpin(&r), 2);
	ck_assert_uint_eq(index_kill(&r), 2);
	ck_assert(!index_pin(&r, &first));
	ck_assert_uint_eq(index_kill(&r), INDEX_DEAD | 2);
	ck_assert_uint_eq(index_unpin(&r), INDEX_DEAD | 1);
	ck_assert_uint_eq(index_unpin(&r), INDEX_DEAD);

	r.pins = 1;
	ck_assert_uint_eq(index_unpin(&r), 0);
	ck_assert_uint_eq(index_kill(&r), 0);
	ck_assert_uint_eq(index_kill(&r), INDEX_DEAD);
	r.pins = INDEX_DEAD - 1;
	ck_assert(!index_pin(&r, NULL));
}
END_TEST

START_TEST(a_batch_equals_single_finds)
{
	static const uint32_t sizes[] = { 0, 1, 2, 63, 64, 65, 300 };
	static uint8_t keys[300][16];
	struct index_record *out[301];
	struct index *x = opened(0);
	uint64_t rng = 77;

	for (uint64_t n = 0; n < 200; n++) {
		struct named id = ident_of(n);

		ck_assert_int_eq(insert(x, item_new(&id), NULL), STATUS_OK);
	}
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		uint32_t n = sizes[s];

		for (uint32_t i = 0; i < n; i++) {
			struct named id = ident_of(next(&rng) % 400);

			memcpy(keys[i], id.key, 16);
		}
		out[n] = (struct index_record *)&rng;
		index_read_lock();
		index_find_many(x, 1, 11, keys[0], 16, n, out);
		for (uint32_t i = 0; i < n; i++) {
			const struct index_ident id = { .layout_id = 11, .tenant = 1, .key_bytes = 16, .key = keys[i] };

			ck_assert_ptr_eq(out[i], index_find(x, &id));
		}
		index_read_unlock();
		ck_assert_ptr_eq(out[n], (struct index_record *)&rng);
	}
	closed(x);
}
END_TEST

/* Of the keys up to that, how many are found. */
static uint64_t living(struct index *x, uint64_t keys)
{
	uint64_t count = 0;

	for (uint64_t n = 0; n < keys; n++) {
		struct named id = ident_of(n);

		count += find(x, &id) != NULL;
	}
	return count;
}

START_TEST(the_table_grows_and_has_the_living)
{
	enum { N = 50000 / SCALE };
	struct index *x = opened(0);

	for (uint64_t n = 0; n < N; n++) {
		struct named id = ident_of(n);

		ck_assert_int_eq(insert(x, item_new(&id), NULL), STATUS_OK);
	}
	ck_assert_uint_eq(index_records(x), N);
	for (int ms = 0; ms < 20000 && buckets < N; ms++)
		usleep(1000);
	ck_assert_uint_ge(buckets, N);
	ck_assert_uint_le(buckets, 2 * N);
	for (uint64_t n = 0; n < N; n++) {
		struct named id = ident_of(n);
		struct index_record *r = find(x, &id);

		ck_assert_ptr_nonnull(r);
		if (n % 3 == 0)
			ck_assert_uint_eq(index_kill(r), 0);
	}
	ck_assert_uint_eq(living(x, N), N - (N + 2) / 3);
	closed(x);
	ck_assert_uint_eq(freed, N);
}
END_TEST

enum { THREADS = 4, KEYS = 48 };

struct worker {
	pthread_t thread;
	struct index *x;
	pthread_barrier_t *start;
	uint64_t seed, inserted, refused, killed, won;
};

/* Takes a dead record out while a pin of ours keeps it; whoever gives the last pin back reclaims it. */
static void unpin(struct index_record *r)
{
	if (index_unpin(r) == INDEX_DEAD)
		index_reclaim(r, item_free);
}

static void try_insert(struct worker *w, const struct named *id)
{
	struct item *it = item_new(id);

	if (insert(w->x, it, NULL) == STATUS_OK) {
		w->inserted++;
	} else {
		w->refused++;
		free(it);
	}
}

static void use(struct worker *w, const struct named *id, bool kill)
{
	const struct index_ident view = view_of(id);
	struct index_record *r;
	uint64_t n;

	index_read_lock();
	r = index_find(w->x, &view);
	if (r && !index_pin(r, NULL))
		r = NULL;
	index_read_unlock();
	if (!r)
		return;
	/* Pinned: it lives on without a read section. */
	memcpy(&n, id->key, sizeof(n));
	ck_assert_uint_eq(((struct item *)r)->check, ~n);
	if (kill && !(index_kill(r) & INDEX_DEAD)) {
		index_remove(w->x, r);
		w->killed++;
	}
	unpin(r);
}

static void find_some(struct worker *w, uint64_t *rng)
{
	uint8_t keys[8][16];
	struct index_record *out[8];

	for (int i = 0; i < 8; i++) {
		struct named id = ident_of(next(rng) % KEYS);

		memcpy(keys[i], id.key, 16);
	}
	index_read_lock();
	index_find_many(w->x, 1, 11, keys[0], 16, 8, out);
	for (int i = 0; i < 8; i++)
		if (out[i])
			ck_assert_mem_eq(out[i]->name.inline_key, keys[i], 16);
	index_read_unlock();
}

static void *mix(void *arg)
{
	struct worker *w = arg;
	uint64_t rng = w->seed;

	index_thread_enter();
	pthread_barrier_wait(w->start);
	for (int step = 0; step < 200000 / SCALE; step++) {
		uint64_t dice = next(&rng);
		struct named id = ident_of((dice >> 8) % KEYS);

		switch (dice % 8) {
		case 0:
		case 1:
			try_insert(w, &id);
			break;
		case 2:
		case 3:
			use(w, &id, true);
			break;
		case 4:
			find_some(w, &rng);
			break;
		default:
			use(w, &id, false);
		}
	}
	index_thread_leave();
	return NULL;
}

static void run_threads(struct worker *w, struct index *x, void *(*body)(void *))
{
	pthread_barrier_t start;

	pthread_barrier_init(&start, NULL, THREADS);
	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct worker){ .x = x, .start = &start, .seed = 1000003u * (uint64_t)(i + 1) };
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, body, &w[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(w[i].thread, NULL);
	pthread_barrier_destroy(&start);
}

START_TEST(threads_over_the_same_keys_leave_exact_counts)
{
	struct index *x = opened(0);
	struct worker w[THREADS];
	uint64_t inserted = 0, killed = 0;

	run_threads(w, x, mix);
	for (int i = 0; i < THREADS; i++) {
		inserted += w[i].inserted;
		killed += w[i].killed;
		ck_assert_uint_gt(w[i].refused, 0);
	}
	ck_assert_uint_gt(killed, 1000 / SCALE);
	ck_assert_uint_eq(living(x, KEYS), inserted - killed);
	ck_assert_uint_eq(index_records(x), inserted - killed);
	index_barrier();
	ck_assert_uint_eq(freed, killed);
	closed(x);
	ck_assert_uint_eq(freed, inserted);
}
END_TEST

enum { ROUNDS = 2000 / SCALE };

static void *race(void *arg)
{
	struct worker *w = arg;

	index_thread_enter();
	for (uint64_t n = 0; n < ROUNDS; n++) {
		struct named id = ident_of(n);
		struct item *it = item_new(&id);

		pthread_barrier_wait(w->start);
		if (insert(w->x, it, NULL) == STATUS_OK)
			w->won++;
		else
			free(it);
	}
	index_thread_leave();
	return NULL;
}

START_TEST(of_several_inserts_at_a_time_one_wins)
{
	struct index *x = opened(0);
	struct worker w[THREADS];
	uint64_t won = 0;

	run_threads(w, x, race);
	for (int i = 0; i < THREADS; i++)
		won += w[i].won;
	ck_assert_uint_eq(won, ROUNDS);
	ck_assert_uint_eq(living(x, ROUNDS), ROUNDS);
	ck_assert_uint_eq(index_records(x), ROUNDS);
	closed(x);
}
END_TEST

static void *fill(void *arg)
{
	struct worker *w = arg;
	uint64_t base = w->seed << 20;

	index_thread_enter();
	pthread_barrier_wait(w->start);
	for (uint64_t n = 0; n < 20000 / SCALE; n++) {
		struct named id = ident_of(base + n), before = ident_of(base + n / 2);

		ck_assert_int_eq(insert(w->x, item_new(&id), NULL), STATUS_OK);
		ck_assert_ptr_nonnull(find(w->x, &before));
	}
	index_thread_leave();
	return NULL;
}

START_TEST(nothing_is_lost_while_the_table_grows)
{
	struct index *x = opened(0);
	struct worker w[THREADS];

	run_threads(w, x, fill);
	ck_assert_uint_eq(index_records(x), THREADS * (20000 / SCALE));
	closed(x);
	ck_assert_uint_eq(freed, THREADS * (20000 / SCALE));
}
END_TEST

static uint64_t number_of(const struct index_record *r)
{
	uint64_t n;

	memcpy(&n, r->name.inline_key, sizeof(n));
	return n;
}

static void insert_number(struct index *x, uint64_t n)
{
	const struct named id = ident_of(n);

	ck_assert_int_eq(insert(x, item_new(&id), NULL), STATUS_OK);
}

static void remove_number(struct index *x, uint64_t n)
{
	const struct named id = ident_of(n);
	struct index_record *r = find(x, &id);

	ck_assert_ptr_nonnull(r);
	index_kill(r);
	index_remove(x, r);
	index_reclaim(r, item_free);
}

/* A walk that rests at each record finds those that stay once each, while others come and go and the table grows. */
START_TEST(a_walk_finds_each_once)
{
	enum { STAY = 4000, COME = 40000 };
	struct index *x = opened(0);
	static uint8_t seen[STAY + COME];
	struct index_walk w = { 0 };
	uint64_t come = STAY, last = 0;

	ck_assert_ptr_null(index_walk_next(x, &(struct index_walk){ 0 }));
	for (uint64_t n = 0; n < STAY; n++)
		insert_number(x, n);
	for (;;) {
		struct index_record *r;

		index_read_lock();
		r = index_walk_next(x, &w);
		if (r)
			ck_assert_uint_lt(++seen[number_of(r)], 2);
		index_read_unlock();
		if (!r)
			break;
		ck_assert_uint_ge(w.place, last);
		ck_assert_uint_eq(w.place >> 63, 0);
		last = w.place;
		for (int i = 0; i < 10 && come < STAY + COME; i++, come++) {
			insert_number(x, come);
			if (i % 2)
				remove_number(x, come - 1);
		}
	}
	for (uint64_t n = 0; n < STAY; n++)
		ck_assert_uint_eq(seen[n], 1);
	ck_assert_uint_gt(buckets, 1 << 12);
	closed(x);
}
END_TEST

/* A dead record of the same name lies in the same place, and is passed over. */
START_TEST(a_walk_passes_over_the_dead)
{
	const struct named id = ident_of(7);
	struct item *dead = item_new(&id), *live = item_new(&id);
	struct index *x = opened(0);
	struct index_walk w = { 0 };

	ck_assert_int_eq(insert(x, dead, NULL), STATUS_OK);
	index_kill(&dead->record);
	ck_assert_int_eq(insert(x, live, NULL), STATUS_OK);
	index_read_lock();
	ck_assert_ptr_eq(index_walk_next(x, &w), &live->record);
	ck_assert_ptr_null(index_walk_next(x, &w));
	w = (struct index_walk){ .place = w.place };
	ck_assert_ptr_eq(index_walk_next(x, &w), &live->record);
	w = (struct index_walk){ .place = w.place + 1 };
	ck_assert_ptr_null(index_walk_next(x, &w));
	index_read_unlock();
	index_remove(x, &dead->record);
	index_reclaim(&dead->record, item_free);
	closed(x);
}
END_TEST

START_TEST(no_index_is_fine_to_destroy)
{
	index_destroy(NULL, item_free);
	ck_assert_uint_eq(freed, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_index");
	TCase *tc = tcase_create("index");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_test(tc, an_ident_is_compared_in_full);
	tcase_add_loop_test(tc, long_keys_are_compared_to_their_ends, 0, 2);
	tcase_add_test(tc, a_dead_record_makes_room_for_a_live_one);
	tcase_add_test(tc, pins_and_death);
	tcase_add_test(tc, a_batch_equals_single_finds);
	tcase_add_test(tc, the_table_grows_and_has_the_living);
	tcase_add_test(tc, threads_over_the_same_keys_leave_exact_counts);
	tcase_add_test(tc, of_several_inserts_at_a_time_one_wins);
	tcase_add_test(tc, nothing_is_lost_while_the_table_grows);
	tcase_add_test(tc, a_walk_finds_each_once);
	tcase_add_test(tc, a_walk_passes_over_the_dead);
	tcase_add_test(tc, no_index_is_fine_to_destroy);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
