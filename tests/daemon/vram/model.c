/* A cache of three tiers, or of two, driven by random operations and compared with a simple model of what each key's bytes are: whatever is
 * lost on the way is a miss, nothing is ever wrong, no slot is left behind, and the counters of copies add up. Copies are slow, so that
 * operations meet them; in some runs a GPU is lost on the way, in some copies in memory spoil. In some the layouts have blocks of two sizes, and another
 * session has blocks of its own now and then, so that memory of the GPUs is cut anew under all of that: every block's bytes say which one it is. */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/delete.h"
#include "daemon/call/explain.h"
#include "daemon/call/reserve.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/stats.h"
#include "proto/fdsock.h"
#include "store/index.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OTHER_KEY = 5000, OTHER_PUSH = 128, OTHER_KEYS = 256 };

enum { KEYS = 72, LAYOUTS = 2, HELD = 6, RUN = 5, GPUS = 2, VERSION_SHIFT = 20, STEPS = 1500 };

struct held {
	struct cache_leased l;
	uint64_t first, content[RUN];
	int32_t gpu;
	struct cache_place place[RUN * LAYOUTS];
};

struct model {
	struct vram_rig v;
	uint64_t content[KEYS];        /* what is stored under the key, if anything is; 0: nothing */
	uint64_t version;
	struct held held[HELD];
	bool disks;
	bool losing;
	bool spoiling;
	bool mixed;
	bool loses;                    /* a GPU is being lost, or was: this one */
	int32_t loses_gpu;
	struct vram_rig other;         /* mixed: the other session */
	uint64_t reread;               /* of its blocks, that were found on GPUs and right */
	struct cache_leased wrong;     /* of a copy in memory that was found to be so; lease 0: none */
	double spoiled;                /* how many were */
	uint64_t put_on_gpu, copies_deleted, leased, checked, pinned_apart;
};

static bool lost(struct model *m, int32_t gpu)
{
	struct cache_gpu_view views[GPUS];

	cache_gpus(m->v.r.c, views, GPUS);
	return gpu >= 0 && views[gpu].lost;
}

/* What is counted from here on is not what the daemon gives up meanwhile. */
static void loss_is_known(struct model *m)
{
	if (m->loses)
		RIG_AWAIT((rig_tick(m->v.r.c, m->v.r.now), lost(m, m->loses_gpu)));
	rig_quiet(&m->v.r);
}

static int32_t any_gpu(void)
{
	return rand() % (GPUS + 1) - 1;
}

/* Puts that meet blocks which are there are told so; whether they are is the cache's to know. */
static void put(struct model *m, int32_t gpu, uint64_t n)
{
	struct cache_place p[LAYOUTS];
	enum status st, s;
	uint64_t id;

	s = vr_reserve(&m->v, gpu, n, 1, &st, &id, p);
	if (s) {
		ck_assert_int_eq(s, STATUS_UNAVAILABLE);
		ck_assert(lost(m, gpu));
		return;
	}
	if (st == STATUS_EXISTS)
		ck_assert_uint_ne(m->content[n], 0);
	if (st)
		return;
	/* A key that is in one layout still keeps its bytes there: such ones are given up here, to keep the model simple. */
	if (p[0].extent == (uint32_t)CACHE_EXTENT_NONE || p[1].extent == (uint32_t)CACHE_EXTENT_NONE || rand() % 8 == 0) {
		ck_assert_int_eq(cache_abort(m->v.r.c, m->v.r.s.id, id), STATUS_OK);
		return;
	}
	const uint64_t content = n | ++m->version << VERSION_SHIFT;

	for (uint32_t l = 0; l < LAYOUTS; l++)
		rig_fill(vr_bytes(&m->v, &p[l]), m->v.r.s.block_bytes[l], content, l);
	ck_assert_int_eq(vr_commit(&m->v, &id, 1, &st), STATUS_OK);
	if (st) {
		ck_assert_int_eq(st, STATUS_UNAVAILABLE);
		ck_assert(lost(m, gpu));
		return;
	}
	m->content[n] = content;
	m->put_on_gpu += gpu < 0 ? 0 : LAYOUTS;
}

/* Copies to a lost GPU fail before it is known to be lost: the progress page says so before it moves its word on. */
static bool copies_failed(const struct model *m, const struct held *h)
{
	const bool failed = h->l.progress_page_layers &&
	    m->v.progress_page[FDSOCK_PROGRESS_PAGE_FAILED + h->l.progress_page_word];

	ck_assert(!failed || m->losing);
	return failed;
}

/* Of a lease on a GPU that is lost no byte counts. */
static void check(struct model *m, const struct held *h)
{
	for (int i = 0; h->l.progress_page_layers && !vr_layer_there(&m->v, &h->l, VR_LAYERS - 1); i++) {
		if (lost(m, h->gpu))
			return;
		ck_assert_int_lt(i, 50000);
		rig_tick(m->v.r.c, m->v.r.now);
		usleep(200);
	}
	for (uint32_t i = 0; i < h->l.blocks * LAYOUTS; i++) {
		const struct gpu *g = vram_gpu_of_extent(m->v.r.c, h->place[i].extent);

		if (g && (lost(m, (int32_t)g->number) || copies_failed(m, h)))
			continue;
		ck_assert(vr_matches(&m->v, &h->place[i], h->content[i / LAYOUTS], i % LAYOUTS));
		m->checked++;
	}
}

static void lease(struct model *m, struct held *h, int32_t gpu, uint64_t first, uint32_t count)
{
	bool or_host = rand() % 3 == 0;
	enum status s;

	if (h->l.lease)
		return;
	h->gpu = gpu;
	h->first = first;
	s = vr_lease(&m->v, h->gpu, first, count, rand() % 2, or_host, h->place, &h->l);
	if (s) {
		h->l.lease = 0;
		ck_assert(s == STATUS_MISS || s == STATUS_EXHAUSTED || (s == STATUS_UNAVAILABLE && lost(m, h->gpu)));
		return;
	}
	m->leased++;
	for (uint32_t i = 0; i < h->l.blocks; i++) {
		ck_assert_uint_ne(m->content[first + i], 0);
		h->content[i] = m->content[first + i];
		for (uint32_t l = 0; l < LAYOUTS && !or_host; l++)
			ck_assert_int_eq(vram_gpu_of_extent(m->v.r.c, h->place[i * LAYOUTS + l].extent) != NULL, h->gpu >= 0);
	}
	if (rand() % 2)
		check(m, h);
}

static void release(struct model *m, struct held *h, bool looking)
{
	if (!h->l.lease)
		return;
	if (looking)
		check(m, h);
	vr_release(&m->v, &h->l);
	h->l.lease = 0;
}

static uint32_t gpu_copies(struct model *m, uint64_t n)
{
	struct cache *c = m->v.r.c;
	uint32_t copies = 0;

	index_read_lock();
	cache_lock(c);
	for (uint32_t i = 0; i < c->pool_count; i++) {
		struct index_record *r;
		struct index_ident ident;
		uint8_t key[RIG_KEY_BYTES];

		rig_key(key, n);
		block_ident(c->pools[i], key, sizeof(key), &ident);
		r = index_find(c->index, &ident);
		for (struct vram_slot *s = r ? block_of(r)->vram : NULL; s; s = s->next)
			copies += s->state == VRAM_READY;
	}
	cache_unlock(c);
	index_read_unlock();
	return copies;
}

/* While nothing moves: a copy is pinned by the leases of that copy, and by no other's. */
static void count_pins(struct model *m)
{
	struct cache *c = m->v.r.c;
	uint32_t on_gpus = 0, in_memory = m->wrong.lease ? LAYOUTS : 0, pins = 0, memory_pins = 0, gpu_pins = 0;

	index_read_lock();
	cache_lock(c);
	for (int i = 0; i < HELD; i++)
		for (uint32_t k = 0; m->held[i].l.lease && k < m->held[i].l.blocks * LAYOUTS; k++) {
			const struct gpu *g = vram_gpu_of_extent(c, m->held[i].place[k].extent);

			on_gpus += g && !g->lost;
			in_memory += !g;
		}
	for (uint64_t n = 0; n < KEYS; n++)
		for (uint32_t i = 0; i < c->pool_count; i++) {
			struct index_record *r;
			struct index_ident ident;
			uint8_t key[RIG_KEY_BYTES];

			rig_key(key, n);
			block_ident(c->pools[i], key, sizeof(key), &ident);
			r = index_find(c->index, &ident);
			if (!r)
				continue;
			pins += block_pins(block_of(r));
			memory_pins += block_of(r)->memory_pins;
			for (struct vram_slot *s = block_of(r)->vram; s; s = s->next) {
				gpu_pins += s->pins;
				ck_assert_uint_eq(vram_slot_pins(s) - s->pins, block_memory_pins(block_of(r)) - block_of(r)->memory_pins);
			}
		}
	cache_unlock(c);
	index_read_unlock();
	m->pinned_apart += memory_pins && gpu_pins;
	/* Of deleted blocks the leases are kept, and of a GPU that was lost. */
	ck_assert_uint_le(memory_pins, in_memory);
	ck_assert_uint_le(gpu_pins, on_gpus);
	if (!m->losing)
		ck_assert_uint_eq(pins, memory_pins + gpu_pins);
}

static void drop(struct model *m, uint64_t n)
{
	struct cache_keys k = rig_keys(n, 1);
	enum status st;

	loss_is_known(m);
	m->copies_deleted += gpu_copies(m, n);
	if (m->disks)
		ck_assert_int_eq(rig_delete(&m->v.r, n, 1, &st), STATUS_OK);
	else
		ck_assert_int_eq(cache_delete(m->v.r.c, m->v.r.s.id, &k, &st, NULL, &m->v.r.why), STATUS_OK);
	ck_assert(st == STATUS_MISS || m->content[n]);
	m->content[n] = 0;
	ck_assert_uint_eq(vr_state(&m->v, n), 0);
	free((void *)k.bytes);
}

static void flush(struct model *m, uint64_t n)
{
	enum status st = STATUS_OK;

	if (!m->disks)
		return;
	ck_assert_int_eq(rig_flush(&m->v.r, n, 1, &st), STATUS_OK);
	ck_assert(st == STATUS_OK || st == STATUS_MISS || st == STATUS_EXHAUSTED || st == STATUS_UNAVAILABLE);
}

static void warm(struct model *m, int32_t gpu, uint64_t first, uint32_t count)
{
	if (!lost(m, gpu))
		vr_warm(&m->v, gpu, first, count);
}

/* Where the first layout's is. */
static const char *first_tier(struct model *m, uint64_t n)
{
	struct cache_explained e;
	uint8_t key[RIG_KEY_BYTES];
	uint32_t shown;

	rig_key(key, n);
	ck_assert_int_eq(cache_explain(m->v.r.c, &(struct cache_block_name){ .tenant = "",
			.layout_id = m->v.r.s.layout_id[0], .key = key, .key_bytes = sizeof(key) }, m->v.r.now,
				       &e, 1, &shown, &m->v.r.why), STATUS_OK);
	return shown ? e.tier : "";
}

/* A byte changes in memory, under a lease, and is found on the way to a GPU, if it goes there: the block is gone from all tiers. */
static void spoil(struct model *m, uint64_t n)
{
	struct cache_place p[LAYOUTS];
	struct cache_leased l;

	if (m->wrong.lease)
		vr_release(&m->v, &m->wrong);
	m->wrong.lease = 0;
	for (int i = 0; i < HELD; i++) /* they would see it */
		if (m->held[i].l.lease && n - m->held[i].first < m->held[i].l.blocks)
			return;
	if (vr_lease(&m->v, CACHE_HOST, n, 1, true, false, p, &l))
		return;
	rig_quiet(&m->v.r);
	vr_bytes(&m->v, &p[0])[rand() % VR_BLOCK_BYTES] ^= 1;
	vr_warm(&m->v, rand() % GPUS, n, 1);
	rig_quiet(&m->v.r);
	if (rig_stat(&m->v.r, "terrace_corrupt_blocks_total", "") > m->spoiled) {
		m->spoiled++;
		m->wrong = l;
		ck_assert_str_eq(first_tier(m, n), "");
		return;
	}
	drop(m, n); /* nobody has looked */
	vr_release(&m->v, &l);
}

/* The other session stores some, and reads some that it may have. At times all that is there has been idle for long before. */
static void another(struct model *m)
{
	const uint64_t first = OTHER_KEY + rand() % KEYS;
	const int32_t gpu = rand() % GPUS;

	if (!m->mixed || (m->loses && gpu == m->loses_gpu)) /* the daemon may come to know it in a put */
		return;
	if (rand() % 2)
		m->v.r.now += 20 * 1000 * 1000;
	m->other.r.now = m->v.r.now;
	rig_tick(m->v.r.c, m->v.r.now);
	vr_put(&m->other, gpu, first, 1 + rand() % (2 * VR_SMALL_SLOTS));
	if (!m->losing)
		m->reread += vr_read_all(&m->other, gpu, OTHER_KEY + rand() % KEYS, RUN);
}

static void other_delete(struct model *m, uint64_t from, uint32_t count)
{
	struct cache_keys k = rig_keys(from, count);
	enum status st[OTHER_KEYS];

	if (m->disks)
		ck_assert_int_eq(rig_delete(&m->other.r, from, count, st), STATUS_OK);
	else
		ck_assert_int_eq(cache_delete(m->v.r.c, m->other.r.s.id, &k, st, NULL, &m->v.r.why), STATUS_OK);
	free((void *)k.bytes);
}

/* While nothing is leased, and all of it has been idle for long, there is memory to be had for more than it has to evict. */
static void another_pushes_once(struct model *m)
{
	for (int32_t gpu = 0; gpu < GPUS; gpu++) {
		vr_put(&m->other, gpu, OTHER_KEY + OTHER_PUSH + (uint64_t)gpu * 64, 64);
		rig_quiet(&m->v.r);
		m->reread += vr_read_all(&m->other, gpu, OTHER_KEY + OTHER_PUSH + (uint64_t)gpu * 64, 64);
	}
}

/* Until a span has changed hands: what is under way may leave room without that, a few times. */
static void another_pushes(struct model *m)
{
	if (!m->mixed || m->losing)
		return;
	m->other.r.now = m->v.r.now += 20 * 1000 * 1000;
	rig_tick(m->v.r.c, m->v.r.now);
	another_pushes_once(m);
	for (int i = 0; i < 20 && rig_stat(&m->v.r, "terrace_span_trades_total", "tier=gpu") < 1; i++) {
		other_delete(m, OTHER_KEY + OTHER_PUSH, OTHER_KEYS - OTHER_PUSH);
		another_pushes_once(m);
	}
}

static void another_ends(struct model *m)
{
	if (m->mixed)
		other_delete(m, OTHER_KEY, OTHER_KEYS);
	if (!m->mixed || m->losing)
		return;
	ck_assert_double_ge(rig_stat(&m->v.r, "terrace_span_trades_total", "tier=gpu"), 1);
	ck_assert_uint_ge(m->reread, RIG_ROUNDS(STEPS) / 100);
}

static void step(struct model *m)
{
	uint32_t count = 1 + rand() % RUN, dice = rand() % 100;
	uint64_t first = rand() % (KEYS - count), n = rand() % KEYS;

	m->v.r.now += rand() % 50000;
	if (dice < 34)
		put(m, any_gpu(), n);
	else if (dice < 62)
		lease(m, &m->held[rand() % HELD], any_gpu(), first, count);
	else if (dice < 82)
		release(m, &m->held[rand() % HELD], rand() % 4);
	else if (dice < 86)
		drop(m, n);
	else if (dice < 92)
		warm(m, rand() % GPUS, first, count);
	else if (dice < 94)
		flush(m, n);
	else if (dice < 96 && m->spoiling)
		spoil(m, n);
	else if (dice < 98)
		another(m);
	else
		rig_tick(m->v.r.c, m->v.r.now);
}

/* A block is leased in memory and on a GPU: how often the dice alone bring that about depends on how fast the machine is. */
static void hold_both(struct model *m)
{
	const uint64_t n = rand() % KEYS;

	release(m, &m->held[0], true);
	release(m, &m->held[1], true);
	drop(m, n);
	put(m, CACHE_HOST, n);
	lease(m, &m->held[0], CACHE_HOST, n, 1);
	lease(m, &m->held[1], lost(m, 0), n, 1);
}

static double evicted_from_gpus(struct model *m)
{
	static const char *const reasons[] = { "full", "trade", "shed", "lost" };
	double sum = 0;

	for (size_t i = 0; i < 4; i++) {
		char labels[48];

		snprintf(labels, sizeof(labels), "tier=gpu,reason=%s", reasons[i]);
		sum += rig_stat(&m->v.r, "terrace_evictions_total", labels);
	}
	return sum;
}

static double bytes(struct model *m, const char *labels)
{
	return rig_stat(&m->v.r, "terrace_moved_bytes_total", labels);
}

static void count_copies(struct model *m)
{
	const double came = (bytes(m, "from=host,to=gpu") + bytes(m, "from=gpu,to=gpu")) / VR_BLOCK_BYTES + m->put_on_gpu;
	const double there = rig_stat(&m->v.r, "terrace_gpu_blocks", "gpu=0") + rig_stat(&m->v.r, "terrace_gpu_blocks", "gpu=1");

	if (!m->mixed) /* bytes tell of blocks of one size */
		ck_assert_double_eq(came, there + evicted_from_gpus(m) + m->copies_deleted);
}

static void finish(struct model *m)
{
	for (int i = 0; i < HELD; i++)
		if (m->held[i].l.lease) {
			check(m, &m->held[i]);
			vr_release(&m->v, &m->held[i].l);
		}
	for (uint64_t n = 0; n < KEYS && m->spoiling && !m->spoiled; n++)
		spoil(m, n); /* the steps' may all have been where nothing looks */
	if (m->wrong.lease)
		vr_release(&m->v, &m->wrong);
	loss_is_known(m);
	count_copies(m);
	another_pushes(m);
	for (uint64_t n = 0; n < KEYS; n++)
		drop(m, n);
	another_ends(m);
	rig_quiet(&m->v.r);
	count_copies(m);
	for (uint32_t i = 0; i < GPUS; i++) {
		ck_assert_double_eq(rig_stat(&m->v.r, "terrace_gpu_slots_used", i ? "gpu=1" : "gpu=0"), 0);
		ck_assert_double_eq(rig_stat(&m->v.r, "terrace_gpu_held_bytes", i ? "gpu=1" : "gpu=0"), 0);
	}
	ck_assert_double_eq(rig_stat(&m->v.r, "terrace_slots_used", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&m->v.r, "terrace_pinned_bytes", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&m->v.r, "terrace_corrupt_blocks_total", ""), m->spoiled);
	ck_assert(!m->spoiling || m->spoiled);
}

/* memory: slots of it; 0: enough for most. */
static void run(unsigned seed, bool disks, bool write_back, bool lose, const char *policy, uint32_t memory, bool mixed)
{
	struct vram_rig_options o = { .gpus = GPUS, .gpu_slots = 32, .host_slots = memory ? memory : disks ? 40 : 64, .write_back = write_back,
				      .layouts = LAYOUTS, .mixed = mixed, .policy = policy, .sum_threads = seed % 3,
				      .by_cost = seed & 1 };
	struct model *m = calloc(1, sizeof(*m));
	struct rig_disks d;

	srand(seed);
	setenv("SIM_GPU_US_PER_MIB", "400", 1);
	m->disks = disks;
	m->losing = lose;
	m->mixed = mixed;
	m->spoiling = !lose && seed % 2;
	if (disks) {
		vr_disks_make(&d, 1, 256);
		o.disks = &d;
	}
	vr_open(&m->v, &o);
	if (disks)
		rig_restored(&m->v.r);
	if (mixed)
		vr_join(&m->other, &m->v, VR_SMALL + 7, "other");
	for (int i = 0; i < RIG_ROUNDS(STEPS); i++) {
		step(m);
		if (lose && i == RIG_ROUNDS(STEPS) * 2 / 3) {
			m->loses = true;
			m->loses_gpu = (int32_t)(seed % GPUS);
			vr_lose(&m->v, seed % GPUS);
		}
		if (i % 100 == 0) {
			if (i % 200 == 0)
				hold_both(m);
			rig_quiet(&m->v.r);
			rig_check_accounting(m->v.r.c);
			count_pins(m);
		}
	}
	ck_assert_uint_ge(m->leased, RIG_ROUNDS(STEPS) / 100);
	ck_assert_uint_ge(m->checked, RIG_ROUNDS(STEPS) / 100);
	if (!memory && !mixed) /* what another session holds leaves fewer blocks with both */
		ck_assert_uint_ge(m->pinned_apart, RIG_ROUNDS(STEPS) / 500);
	finish(m);
	vr_close(&m->v);
	if (disks)
		rig_disks_remove(&d);
	free(m);
}

static unsigned first_seed = 1;

START_TEST(of_many_seeds)
{
	run(first_seed + (unsigned)_i, _i & 1, _i & 2, _i & 4, "lru", 0, false);
}
END_TEST

START_TEST(of_other_policies)
{
	run(50 + (unsigned)_i, _i & 1, true, false, _i ? "s3fifo" : "graph", 0, false);
}
END_TEST

/* Less of it than the GPUs hold, and than of these is to be clean. */
START_TEST(of_small_memories)
{
	run(60 + 2 * (unsigned)_i, _i & 1, true, false, "lru", 14, false);
}
END_TEST

START_TEST(of_memory_that_is_cut_anew)
{
	run(70 + (unsigned)_i, _i & 1, _i & 2, _i & 4, "lru", 0, true);
}
END_TEST

/* cache_vram_model [FIRST_SEED [SEEDS]] */
int main(int argc, char **argv)
{
	Suite *suite = suite_create("cache_vram_model");
	TCase *t = tcase_create("cache_vram_model");
	SRunner *runner;
	int failed;

	if (argc > 1)
		first_seed = (unsigned)atoi(argv[1]);
	tcase_set_timeout(t, 240);
	tcase_add_loop_test(t, of_many_seeds, 0, argc > 2 ? atoi(argv[2]) : 8);
	tcase_add_loop_test(t, of_other_policies, 0, 2);
	tcase_add_loop_test(t, of_small_memories, 0, 2);
	tcase_add_loop_test(t, of_memory_that_is_cut_anew, 0, 8);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
