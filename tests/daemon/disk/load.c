/* Loads that somebody else wants too: one read for all, at the priority of the most urgent. The order of the reads is seen, and the disk held
 * up, where the ring asks the kernel (store/ring/ring.h). */
#include "daemon/block/block.h"
#include "daemon/block/check.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/ends.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/call/source.h"
#include "daemon/call/stream.h"
#include "daemon/disk/load.h"
#include "daemon/disk/disk_transfer.h"
#include "daemon/disk/state.h"
#include "daemon/disk/transfer.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	HOST = 96, DISK = 512, PREFETCH = 8, SEEN_MAX = 128,
	QUEUE = 64,                    /* reads that a disk of depth 1 lets wait */
};

static struct gate {
	_Atomic bool noting;           /* reads, as they begin; by the one thread of the ring */
	_Atomic bool shut;             /* they wait there */
	_Atomic uint32_t count;
	uint64_t offset[SEEN_MAX];
} gate;

static int pass_gate(void *arg, const struct ring_request *q, uint32_t *most)
{
	struct gate *g = arg;
	uint32_t at = atomic_load(&g->count);

	(void)most;
	if (q->op != RING_READ || !atomic_load(&g->noting))
		return 0;
	if (at < SEEN_MAX)
		g->offset[at] = q->offset;
	atomic_store(&g->count, at + 1);
	while (atomic_load(&g->shut))
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	return 0;
}

static const struct ring_calls calls = { .fault = pass_gate, .arg = &gate };

/* Blocks 0 to HOST - 1 are on the disk alone. One transfer at a time. */
static void open_full_with(struct rig *r, struct rig_disks *d, uint32_t sum_threads)
{
	struct cache_options o;

	rig_disks_make(d, NULL, 1, DISK);
	o = rig_disk_options(d, 1, HOST);
	o.granule_bytes = o.extent_bytes = 8 * RIG_SLOT_BYTES;
	o.host_bytes = (HOST / 8 + 1) * o.granule_bytes;
	o.disk_depth = 1;
	o.io_calls = &calls;
	o.sum_threads = sum_threads;
	memset(&gate, 0, sizeof(gate));
	rig_open(r, &o, 1);
	rig_restored(r);
	for (uint64_t n = 0; n < 4 * HOST; n += 8) {
		rig_put(r, n, 8);
		rig_quiet(r);
	}
}

static void open_full(struct rig *r, struct rig_disks *d)
{
	open_full_with(r, d, 0);
}

static struct block *block_of_key(struct rig *r, uint64_t n)
{
	struct index_record *found;
	uint8_t key[RIG_KEY_BYTES];
	struct index_ident ident;

	rig_key(key, n);
	block_ident(r->c->pools[0], key, sizeof(key), &ident);
	index_read_lock();
	found = index_find(r->c->index, &ident);
	index_read_unlock();
	ck_assert_ptr_nonnull(found);
	return block_of(found);
}

/* On the disk alone. */
static struct block *block_at(struct rig *r, uint64_t n)
{
	struct block *b = block_of_key(r, n);

	ck_assert_ptr_null(b->span);
	return b;
}

static void read_prefetch(struct rig *r, uint64_t first, uint32_t count)
{
	for (uint64_t n = first; n < first + count; n++) {
		struct block *b = block_at(r, n);

		cache_lock(r->c);
		ck_assert_int_eq(source_bring(r->c, b, RING_PREFETCH, NULL), STATUS_OK);
		cache_unlock(r->c);
	}
}

static void until_one_waits(void)
{
	RIG_AWAIT(atomic_load(&gate.count));
}

/* A lease by a call that waits. */
struct call {
	struct cache_wait wait;
	struct cache_keys keys;
	struct cache_place place;
	struct cache_leased leased;
	_Atomic bool ready;
};

static void call_ready(void *arg)
{
	atomic_store((_Atomic bool *)arg, true);
}

static enum status ask(struct rig *r, struct call *x)
{
	return cache_lease(r->c, &(struct cache_lease_call){ .session = r->s.id, .keys = &x->keys, .all = true,
							     .on = &(struct cache_on){
			.attachment = r->attachment, .gpu = CACHE_HOST }, .now_us = r->now, .places = &x->place,
							     .places_max = 1 }, &x->leased, &x->wait, &r->why);
}

static void begin(struct rig *r, struct call *x, uint64_t n)
{
	memset(x, 0, sizeof(*x));
	x->keys = rig_keys(n, 1);
	x->wait = (struct cache_wait){ .ready = call_ready, .arg = &x->ready };
	ck_assert_int_eq(ask(r, x), STATUS_BUSY);
}

static void until_ready(struct call *x)
{
	RIG_AWAIT(atomic_load(&x->ready));
}

static void end(struct rig *r, struct call *x, uint64_t n)
{
	until_ready(x);
	ck_assert_int_eq(ask(r, x), STATUS_OK);
	ck_assert(rig_matches(rig_block(r, &x->place), r->s.block_bytes[0], n, 0));
	cache_wait_end(r->c, &x->wait);
	ck_assert_int_eq(cache_release(r->c, r->s.id, x->leased.lease), STATUS_OK);
	free((void *)x->keys.bytes);
}

START_TEST(one_read_serves_all_who_want_it)
{
	struct call x[4];
	struct rig_disks d;
	struct rig r;
	double loaded;

	open_full(&r, &d);
	loaded = rig_stat(&r, "terrace_loads_total", "status=ok");
	gate.noting = gate.shut = true;
	for (int i = 0; i < 4; i++)
		begin(&r, &x[i], 3);
	until_one_waits();
	gate.shut = false;
	for (int i = 0; i < 4; i++)
		end(&r, &x[i], 3);
	ck_assert_uint_eq(gate.count, 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_loads_total", "status=ok"), loaded + 1);
	ck_assert_double_ge(rig_stat(&r, "terrace_loads_joined_total", ""), 3);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A lease wants the last of what is being read ahead: it is read next, once, and the others after it. */
START_TEST(a_lease_overtakes_what_is_read_prefetch)
{
	uint64_t wanted;
	struct rig_disks d;
	struct call x;
	struct rig r;

	open_full(&r, &d);
	wanted = DISK_SLAB_HEADER_BYTES + (uint64_t)block_at(&r, PREFETCH - 1)->slab_map_slot * RIG_SLOT_BYTES;
	gate.noting = gate.shut = true;
	read_prefetch(&r, 0, 1);
	until_one_waits(); /* the kernel has this one, as it were */
	read_prefetch(&r, 1, PREFETCH - 1);
	begin(&r, &x, PREFETCH - 1);
	gate.shut = false;
	end(&r, &x, PREFETCH - 1);
	rig_quiet(&r);
	ck_assert_uint_eq(gate.count, PREFETCH);
	ck_assert_uint_eq(gate.offset[1], wanted);
	gate.noting = false;
	ck_assert_uint_eq(rig_read_all(&r, 0, PREFETCH), PREFETCH);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* What the kernel has already is not asked for again. */
START_TEST(nothing_is_read_twice)
{
	struct rig_disks d;
	struct call x;
	struct rig r;

	open_full(&r, &d);
	gate.noting = gate.shut = true;
	read_prefetch(&r, 0, 1);
	until_one_waits();
	begin(&r, &x, 0);
	gate.shut = false;
	end(&r, &x, 0);
	rig_quiet(&r);
	ck_assert_uint_eq(gate.count, 1);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* With the disk's queue full: the lease's load is not shed, and nobody else has its place. */
START_TEST(who_overtakes_keeps_his_place)
{
	struct rig_disks d;
	struct block *late;
	struct call x;
	struct rig r;
	double shed;

	open_full(&r, &d);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK); /* there is memory for all that is read */
	late = block_at(&r, QUEUE + 1);
	shed = rig_stat(&r, "terrace_loads_total", "status=shed");
	gate.noting = gate.shut = true;
	read_prefetch(&r, 0, 1);
	until_one_waits();
	read_prefetch(&r, 1, QUEUE);
	begin(&r, &x, QUEUE);
	cache_lock(r.c);
	ck_assert_int_eq(source_bring(r.c, late, RING_PREFETCH, NULL), STATUS_EXHAUSTED);
	cache_unlock(r.c);
	gate.shut = false;
	end(&r, &x, QUEUE);
	rig_quiet(&r);
	ck_assert_uint_eq(gate.count, QUEUE + 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_loads_total", "status=shed"), shed + 1); /* the late one */
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static void count_ready(void *arg)
{
	atomic_fetch_add((_Atomic uint32_t *)arg, 1);
}

/* With the disk's queue full: the answer says so. There is no end, and nothing is left in the wait or of the load. */
START_TEST(what_cannot_begin_has_no_end)
{
	_Atomic uint32_t ready = 0;
	struct cache_wait w = { .ready = count_ready, .arg = &ready };
	struct rig_disks d;
	struct block *late;
	struct rig r;

	open_full(&r, &d);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK); /* there is memory for all that is read */
	late = block_at(&r, QUEUE + 1);
	gate.noting = gate.shut = true;
	read_prefetch(&r, 0, 1);
	until_one_waits();
	read_prefetch(&r, 1, QUEUE);
	cache_lock(r.c);
	ck_assert_int_eq(source_bring(r.c, late, RING_PREFETCH, &w), STATUS_EXHAUSTED);
	ck_assert_ptr_null(w.links);
	ck_assert_uint_eq(w.outstanding, 0);
	ck_assert(!late->moving);
	ck_assert_uint_eq(block_pins(late), 0);
	cache_unlock(r.c);
	gate.shut = false;
	rig_quiet(&r);
	ck_assert_uint_eq(ready, 0);
	cache_wait_end(r.c, &w);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Loads that wait for memory, more than one hold of the lock may end, as the tier stops: each wait is told of each once,
 * but not inside the call that stops them. */
START_TEST(the_stop_ends_what_waits_for_memory)
{
	enum { WAITING = HOST - 8 };
	_Atomic uint32_t ready = 0;
	struct cache_wait w = { .ready = count_ready, .arg = &ready };
	struct rig_disks d;
	struct rig r;

	_Static_assert((int)WAITING > (int)ENDS_A_HOLD, "more than one hold ends");
	open_full(&r, &d);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	cache_lock(r.c);
	for (uint32_t i = 0; i < WAITING; i++) {
		struct disk_transfer *m = tier_transfer_create(r.c, TRANSFER_LOAD,
		    block_at(&r, i)->slab_map->class->unit, RING_URGENT);

		ck_assert_ptr_nonnull(m);
		m->slab_map = block_at(&r, i)->slab_map;
		tier_transfer_enter(m, block_at(&r, i));
		ck_assert_int_eq(tier_transfer_join(m, &w), STATUS_OK);
		m->waiting_next = NULL;
		*r.c->tier->waiting_for_memory_end = m;
		r.c->tier->waiting_for_memory_end = &m->waiting_next;
	}
	ck_assert_uint_eq(w.outstanding, WAITING);
	r.c->tier->stopping = true;
	loads_feed(r.c);
	ck_assert_ptr_null(r.c->tier->waiting_for_memory);
	ck_assert_uint_eq(w.outstanding, WAITING);
	ck_assert_uint_eq(ready, 0);
	cache_unlock(r.c);
	RIG_AWAIT(ready == 1);
	ck_assert_uint_eq(w.outstanding, 0);
	ck_assert_uint_eq(w.shed, WAITING);
	cache_wait_end(r.c, &w);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Deleted between the lease and the read: the lease hears that it is gone, the others come. */
START_TEST(what_was_overtaken_for_may_be_deleted)
{
	enum status status = STATUS_OK;
	struct cache_keys k;
	struct rig_disks d;
	struct call x;
	struct rig r;

	open_full(&r, &d);
	k = rig_keys(PREFETCH - 1, 1);
	gate.noting = gate.shut = true;
	read_prefetch(&r, 0, 1);
	until_one_waits();
	read_prefetch(&r, 1, PREFETCH - 1);
	begin(&r, &x, PREFETCH - 1);
	ck_assert_int_eq(cache_delete(r.c, r.s.id, &k, &status, NULL, &r.why), STATUS_OK);
	gate.shut = false;
	until_ready(&x);
	ck_assert_int_eq(ask(&r, &x), STATUS_MISS);
	cache_wait_end(r.c, &x.wait);
	rig_quiet(&r);
	gate.noting = false;
	ck_assert_uint_eq(rig_read_all(&r, 0, PREFETCH), PREFETCH - 1);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
	free((void *)x.keys.bytes);
	free((void *)k.bytes);
}
END_TEST

/* What is loaded together lies together, extent by extent and by rising addresses, in whatever order its places were used last: all of these are
 * given up before the first is taken. */
START_TEST(what_is_loaded_together_lies_together)
{
	enum { TOGETHER = 24, IN_MEMORY = 3 * HOST };
	struct cache_place places[TOGETHER];
	struct cache_leased leased;
	struct rig_disks d;
	struct rig r;

	open_full(&r, &d);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	for (uint32_t i = 0; i < HOST; i++) {
		ck_assert_int_eq(rig_lease(&r, IN_MEMORY + 37 * i % HOST, 1, true, places, &leased), STATUS_OK);
		ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
		r.now += 1000;
	}
	ck_assert_int_eq(rig_lease_wait(&r, 0, TOGETHER, true, places, &leased), STATUS_OK);
	for (uint32_t i = 1; i < TOGETHER; i++)
		for (uint32_t before = 0; before < i; before++)
			if (places[before].extent == places[i].extent) {
				ck_assert_uint_eq(places[i - 1].extent, places[i].extent);
				ck_assert_uint_lt(places[before].offset, places[i].offset);
			}
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* One of two threads waits for the lock; the other goes on, and the first ends all of it. */
START_TEST(what_is_checked_meanwhile_ends_together)
{
	struct block *b[PREFETCH];
	struct rig_disks d;
	struct rig r;

	open_full_with(&r, &d, 2);
	for (uint32_t i = 0; i < PREFETCH; i++)
		b[i] = block_at(&r, i);
	cache_lock(r.c);
	for (uint32_t i = 0; i < PREFETCH; i++)
		ck_assert_int_eq(source_bring(r.c, b[i], RING_PREFETCH, NULL), STATUS_OK);
	RIG_AWAIT(rig_ends_arrived(r.c) == PREFETCH);
	cache_unlock(r.c);
	rig_quiet(&r);
	ck_assert_uint_eq(rig_ends_arrived(r.c), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_loads_under_way", "disk=0"), 0);
	for (uint32_t i = 0; i < PREFETCH; i++)
		ck_assert_ptr_nonnull(b[i]->span);
	ck_assert_uint_eq(rig_read_all(&r, 0, PREFETCH), PREFETCH);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Looks, and answers, by a thread of its own. */
struct looker {
	struct rig *r;
	bool get;
	pthread_t thread;
	_Atomic pid_t tid;
	enum status said;
};

static void nobody_waits(void *arg)
{
	(void)arg;
}

static void *looker_main(void *arg)
{
	struct looker *l = arg;
	struct cache_wait w = { .ready = nobody_waits };
	struct cache_keys k = rig_keys(0, 1);
	struct cache_place place;
	struct cache_leased leased;
	struct cache_read read;
	const char *why;

	cache_thread_enter();
	atomic_store(&l->tid, gettid());
	if (l->get)
		l->said = cache_read_begin(l->r->c, &(struct cache_stream_call){ .session = l->r->s.id,
				.key = k.bytes, .key_bytes = RIG_KEY_BYTES, .now_us = l->r->now }, &read, &w,
					   &why);
	else
		l->said = cache_lease(l->r->c, &(struct cache_lease_call){ .session = l->r->s.id, .keys = &k,
				.all = true, .on = &(struct cache_on){ .attachment = l->r->attachment,
				.gpu = CACHE_HOST }, .now_us = l->r->now, .places = &place, .places_max = 1 },
				      &leased, &w, &why);
	cache_wait_end(l->r->c, &w);
	free((void *)k.bytes);
	cache_thread_leave();
	return NULL;
}

/* It waits for the lock. */
static bool sleeps(struct looker *l)
{
	char path[64], state = 0;
	FILE *f;

	if (!atomic_load(&l->tid))
		return false;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)atomic_load(&l->tid));
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fscanf(f, "%*d (%*[^)]) %c", &state), 1);
	fclose(f);
	return state == 'S';
}

/* Memory's copy is found to be wrong just then: the block is gone, on its disk too. */
static void look_while_it_ends(bool get)
{
	struct looker l = { .get = get };
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = rig_disk_options(&d, 1, HOST);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	ck_assert_uint_eq(rig_put(&r, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	l.r = &r;
	cache_lock(r.c);
	ck_assert_int_eq(pthread_create(&l.thread, NULL, looker_main, &l), 0);
	RIG_AWAIT(sleeps(&l));
	index_read_lock();
	memory_damaged(r.c, block_of_key(&r, 0), COUNTER_MEMORY_WRONG_VERIFY);
	index_read_unlock();
	cache_unlock(r.c);
	pthread_join(l.thread, NULL);
	ck_assert_int_eq(l.said, STATUS_MISS);
	ck_assert_uint_eq(rig_read_all(&r, 0, 1), 0);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}

START_TEST(a_lease_that_has_found_what_ends_has_a_miss)
{
	look_while_it_ends(false);
}
END_TEST

START_TEST(a_get_that_has_found_what_ends_has_a_miss)
{
	look_while_it_ends(true);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		one_read_serves_all_who_want_it, a_lease_overtakes_what_is_read_prefetch, nothing_is_read_twice,
		    who_overtakes_keeps_his_place,
		what_cannot_begin_has_no_end, the_stop_ends_what_waits_for_memory,
		what_was_overtaken_for_may_be_deleted, what_is_loaded_together_lies_together,
		what_is_checked_meanwhile_ends_together, a_lease_that_has_found_what_ends_has_a_miss,
		a_get_that_has_found_what_ends_has_a_miss,
	};

	return rig_main("cache_disk_loads", tests, sizeof(tests) / sizeof(tests[0]));
}
