/* The engines of the mixed load (tests/fault/test_mixed.py): everything that engines do with a GPU's memory, in random order, over a
 * cache that is far too small for it.
 *
 *     mixed_engine worker ADDRESS SEED CHAINS TALLY GPU   on this GPU for ever; "ready" once it is open; at SIGTERM it ends in order
 *     mixed_engine survivor ADDRESS SEED CHAINS TALLY GPU  the same, and goes on with the next daemon when the one it has dies; at SIGUSR1 it
 *                                                     gives back what it holds, says "paused" and stands still to the next
 *     mixed_engine sweep ADDRESS CHAINS               deletes all keys
 *     mixed_engine tally TALLY                        what that worker has counted and timed, as JSON (mixed_tally.h)
 *
 * A worker's turn is a request: lookup, lease of a chain's beginning, its layers waited for and looked at one by one, attention, the rest
 * of the chain put. Every call has a deadline of DEADLINE_US. What a survivor had leased of a daemon that died it looks at once more before it
 * gives it back. Exit 1: a wrong byte, told on stderr. 3: a call failed, or the next daemon has the epoch of the last.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "client/driver/gpu.h"
#include "client/memory/attachment.h"
#include "client/memory/mapping.h"
#include "client/session/session.h"
#include "tests/fault/mixed_tally.h"
#include "tests/fault/mixed_work.h"

enum { DEADLINE_US = 800000, START_US = 30000000, NEXT_S = 60, HELD_MAX = 2, PUT_MAX = 4, SWEEP = 512 };

struct keys {
	uint8_t bytes[MIXED_CHAIN][16];
	struct terrace_block_info infos[MIXED_CHAIN];
	uint64_t first;           /* the number of the first */
	struct terrace_keys keys;
};

/* A lease that is kept over some turns, as of a sequence that goes on. */
struct held {
	struct terrace_lease *lease;
	uint64_t first;
};

struct worker {
	struct terrace_client *client;
	struct terrace_session *session;
	struct mixed_work work;
	struct tally *tally;
	uint64_t state, chains;
	int ordinal;              /* of its GPU, to this process */
	int32_t gpu;              /* the same to the daemon */
	struct held held[HELD_MAX];
	bool survives, orphan;    /* goes on after the daemon's death; which it has seen */
};

static volatile sig_atomic_t ended, paused;

static uint64_t draw(struct worker *w, uint64_t below)
{
	return mixed_random(&w->state, below);
}

static _Noreturn void failed(enum terrace_status status, const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", what, terrace_status_text(status), terrace_error());
	_exit(3);
}

static void must(enum terrace_status status, const char *what)
{
	if (status != TERRACE_OK)
		failed(status, what);
}

/* What a call says whose daemon has died, or died while the session was opened. */
static bool is_death(const struct worker *w, enum terrace_status status)
{
	return status == TERRACE_UNAVAILABLE || status == TERRACE_STALE ||
	       (status == TERRACE_PRECONDITION && !terrace_session_borrows(w->session));
}

/* Ends the process unless the status is OK, or the daemon has died and this is to go on; true: OK. */
static bool lives(struct worker *w, enum terrace_status status, const char *what)
{
	if (status == TERRACE_OK)
		return true;
	if (!w->survives || !is_death(w, status))
		failed(status, what);
	w->orphan = true;
	return false;
}

/* The same; and there are others that an engine goes on after. */
static bool good(struct worker *w, enum terrace_status status, const char *what)
{
	switch (status) {
	case TERRACE_OK:
		return true;
	case TERRACE_MISS:
		tally_add(w->tally, COUNT_MISSES, 1);
		return false;
	case TERRACE_EXHAUSTED:
		tally_add(w->tally, COUNT_EXHAUSTED, 1);
		return false;
	case TERRACE_DEADLINE:
		tally_add(w->tally, COUNT_DEADLINES, 1);
		return false;
	case TERRACE_CANCELLED:
		tally_add(w->tally, COUNT_CANCELLED, 1);
		return false;
	default:
		return lives(w, status, what);
	}
}

/* A call, timed. */
#define TIMED(w, kind, call)                                                                                                        \
	({                                                                                                                           \
		enum terrace_status timed_;                                                                                          \
		tally_begin((w)->tally, CALL_##kind);                                                                                \
		timed_ = (call);                                                                                                     \
		tally_end((w)->tally, timed_);                                                                                       \
		timed_;                                                                                                              \
	})
#define TIMED_VOID(w, kind, call) ((void)TIMED(w, kind, ((call), TERRACE_OK)))

static void name(uint8_t key[16], uint64_t number)
{
	for (int i = 0; i < 8; i++)
		key[i] = key[i + 8] = (uint8_t)(number >> 8 * i);
}

/* Keys `from` .. `from + count - 1` of a chain. */
static const struct terrace_keys *name_run(struct keys *k, uint64_t chain, uint32_t from, uint32_t count)
{
	k->first = chain * MIXED_CHAIN + from;
	for (uint32_t i = 0; i < count; i++) {
		name(k->bytes[i], k->first + i);
		k->infos[i] = (struct terrace_block_info)TERRACE_BLOCK_INFO_INIT;
		k->infos[i].parent = i ? k->bytes[i - 1] : NULL;
		k->infos[i].position = (uint64_t)(from + i) * MIXED_TOKENS;
	}
	k->keys = (struct terrace_keys){ k->bytes[0], count, 16 };
	return &k->keys;
}

/* A fifth of the chains gets four fifths of the requests. */
static uint64_t some_chain(struct worker *w)
{
	return draw(w, 5) ? draw(w, w->chains / 5 + 1) : draw(w, w->chains);
}

/* ---- leases ------------------------------------------------------------------------------------------------------ */

static void look_all(struct worker *w, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		mixed_look(&w->work, first + i, w->work.host + i * w->work.words);
	tally_add(w->tally, COUNT_CHECKED, count);
}

static void wait_layer(struct worker *w, struct terrace_lease *lease, uint32_t layer)
{
	must(TIMED(w, LAUNCH, terrace_lease_wait_layer(lease, layer, w->work.device.stream)), "layer wait");
}

/* Each layer as soon as it is there; or, blocks of host memory among them, all in one. */
static void read_lease(struct worker *w, struct terrace_lease *lease, const uint64_t *addresses, bool mapped)
{
	const uint32_t count = terrace_lease_count(lease);

	if (mapped) {
		wait_layer(w, lease, MIXED_LAYERS - 1);
		TIMED_VOID(w, WAIT, mixed_read(&w->work, addresses, count));
		return;
	}
	for (uint32_t l = 0; l < MIXED_LAYERS; l++) {
		wait_layer(w, lease, l);
		TIMED_VOID(w, WAIT, mixed_read_layer(&w->work, addresses, count, l));
	}
}

static void attend_lease(struct worker *w, struct terrace_lease *lease, const uint64_t *addresses)
{
	const uint32_t count = terrace_lease_count(lease);

	TIMED_VOID(w, LAUNCH, mixed_attend(&w->work, addresses, count, count * MIXED_TOKENS - 5, (uint32_t)draw(w, MIXED_LAYERS)));
	tally_add(w->tally, COUNT_ATTENDED, 1);
}

/* Its place in held[] is free then. */
static void give_back(struct worker *w, struct held *h)
{
	uint64_t addresses[MIXED_CHAIN];

	if (!h->lease)
		return;
	must(terrace_lease_addresses(h->lease, 0, addresses), "addresses");
	if (draw(w, 2)) {
		read_lease(w, h->lease, addresses, true);
		look_all(w, h->first, terrace_lease_count(h->lease));
	}
	if (draw(w, 2)) {
		attend_lease(w, h->lease, addresses);
		must(TIMED(w, RELEASE, terrace_release_after(h->lease, w->work.device.stream)), "release after");
	} else {
		TIMED_VOID(w, RELEASE, terrace_release(h->lease));
	}
	h->lease = NULL;
}

static void keep(struct worker *w, struct terrace_lease *lease, uint64_t first)
{
	struct held *h = &w->held[draw(w, HELD_MAX)];

	give_back(w, h);
	*h = (struct held){ lease, first };
	if (draw(w, 4))
		give_back(w, h);
}

/* NULL: nothing leased. Now and then the lease is cancelled on its way. */
static struct terrace_lease *lease_take(struct worker *w, const struct terrace_keys *keys, const struct terrace_lease_options *o)
{
	struct terrace_lease *lease = NULL;
	struct terrace_op *op = NULL;

	if (draw(w, 16))
		return good(w, TIMED(w, LEASE, terrace_lease_with(w->session, keys, o, DEADLINE_US, &lease)), "lease") ? lease : NULL;
	if (!good(w, TIMED(w, LEASE, terrace_lease_with_async(w->session, keys, o, DEADLINE_US, NULL, &op)), "lease, begun"))
		return NULL;
	if (draw(w, 2))
		nanosleep(&(struct timespec){ 0, (long)draw(w, 3000000) }, NULL);
	terrace_op_cancel(op);
	return good(w, TIMED(w, CANCEL, terrace_lease_finish(op, &lease)), "lease, cancelled") ? lease : NULL;
}

/* The blocks leased. */
static uint32_t lease_on_gpu(struct worker *w, uint64_t chain, uint32_t count)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	uint64_t addresses[MIXED_CHAIN];
	struct terrace_lease *lease;
	struct keys k;
	uint32_t got;

	name_run(&k, chain, 0, count);
	o.gpu = w->gpu;
	o.gpu_or_host = draw(w, 4) == 0;
	tally_about(w->tally, count, o.gpu_or_host ? WHERE_GPU_OR_HOST : WHERE_GPU);
	lease = lease_take(w, &k.keys, &o);
	if (!lease)
		return 0;
	got = terrace_lease_count(lease);
	must(terrace_lease_addresses(lease, 0, addresses), "addresses");
	if (draw(w, 2))
		attend_lease(w, lease, addresses); /* before its layers are waited for: any bytes will do */
	read_lease(w, lease, addresses, o.gpu_or_host);
	if (!lives(w, TIMED(w, CHECK, terrace_lease_check(lease)), "the lease's copies")) {
		tally_add(w->tally, COUNT_VOID, 1);
		TIMED_VOID(w, WAIT, mixed_wait(&w->work));
		TIMED_VOID(w, RELEASE, terrace_release(lease));
		return 0;
	}
	look_all(w, k.first, got);
	keep(w, lease, k.first);
	return got;
}

static void lease_in_memory(struct worker *w)
{
	struct terrace_lease *lease;
	struct keys k;

	name_run(&k, some_chain(w), 0, 1 + (uint32_t)draw(w, MIXED_CHAIN));
	tally_about(w->tally, k.keys.count, WHERE_HOST);
	if (!good(w, TIMED(w, LEASE, terrace_lease(w->session, &k.keys, TERRACE_LEASE_PREFIX, DEADLINE_US, &lease)), "lease in memory"))
		return;
	for (uint32_t i = 0; i < terrace_lease_count(lease); i++)
		mixed_look(&w->work, k.first + i, terrace_lease_block(lease, i, 0));
	tally_add(w->tally, COUNT_CHECKED, terrace_lease_count(lease));
	TIMED_VOID(w, RELEASE, terrace_release(lease));
}

/* ---- puts -------------------------------------------------------------------------------------------------------- */

/* What became of a commit's keys. */
static void count_stored(struct worker *w, enum terrace_status status, const enum terrace_status *statuses, uint32_t count,
			 enum tally_count where)
{
	for (uint32_t i = 0; i < count && status == TERRACE_OK; i++)
		tally_add(w->tally, where, statuses[i] == TERRACE_OK);
	if (status == TERRACE_DEADLINE || status == TERRACE_CANCELLED || w->orphan)
		tally_add(w->tally, COUNT_UNKNOWN, count);
}

static void put_on_gpu(struct worker *w, uint64_t chain, uint32_t from, uint32_t count)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	enum terrace_status statuses[MIXED_CHAIN], status;
	struct terrace_reservation *r = NULL;
	uint64_t addresses[MIXED_CHAIN];
	struct terrace_op *op;
	struct keys k;

	name_run(&k, chain, from, count);
	tally_about(w->tally, count, WHERE_GPU);
	o.gpu = w->gpu;
	if (!good(w, TIMED(w, RESERVE, terrace_reserve_with(w->session, &k.keys, k.infos, &o, DEADLINE_US, NULL, &r)), "reserve"))
		return;
	must(terrace_reservation_addresses(r, 0, addresses), "addresses");
	for (uint32_t i = 0; i < count; i++) {
		if (!addresses[i])
			continue;
		mixed_fill(&w->work, k.first + i, draw(w, UINT64_MAX), w->work.host);
		TIMED_VOID(w, LAUNCH, mixed_put(&w->work, addresses[i]));
	}
	if (draw(w, 8) == 0) {
		TIMED_VOID(w, WAIT, mixed_wait(&w->work));
		TIMED_VOID(w, ABORT, terrace_abort(r));
		return;
	}
	must(TIMED(w, COMMIT, terrace_commit_after(r, w->work.device.stream, DEADLINE_US, NULL, &op)), "commit after");
	status = TIMED(w, COMMIT, terrace_commit_finish(op, statuses));
	good(w, status, "commit after");
	count_stored(w, status, statuses, count, COUNT_STORED_GPU);
}

static void put_in_memory(struct worker *w, uint64_t chain, uint32_t from, uint32_t count)
{
	enum terrace_status statuses[MIXED_CHAIN], status;
	struct terrace_reservation *r = NULL;
	struct keys k;

	name_run(&k, chain, from, count);
	tally_about(w->tally, count, WHERE_HOST);
	if (!good(w, TIMED(w, RESERVE, terrace_reserve(w->session, &k.keys, k.infos, DEADLINE_US, NULL, &r)), "reserve in memory"))
		return;
	for (uint32_t i = 0; i < count; i++) {
		void *block = terrace_reservation_block(r, i, 0);

		if (block)
			mixed_fill(&w->work, k.first + i, draw(w, UINT64_MAX), block);
	}
	status = TIMED(w, COMMIT, terrace_commit(r, DEADLINE_US, statuses, NULL));
	good(w, status, "commit in memory");
	count_stored(w, status, statuses, count, COUNT_STORED_HOST);
}

/* An open block: encoded and attended a step at a time, as the tail of a sequence is; then it is stored, or given up half way. */
static void grow(struct worker *w, uint64_t chain, uint32_t at)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	const uint32_t most = draw(w, 6) ? MIXED_TOKENS : MIXED_TOKENS / 2;
	struct terrace_reservation *r = NULL;
	enum terrace_status status;
	uint64_t address;
	struct keys k;

	name_run(&k, chain, at, 1);
	tally_about(w->tally, 1, WHERE_GPU);
	o.gpu = w->gpu;
	if (!good(w, TIMED(w, RESERVE, terrace_reserve_open_with(w->session, k.infos, &o, DEADLINE_US, &r)), "open block"))
		return;
	tally_add(w->tally, COUNT_OPENED, 1);
	must(terrace_reservation_addresses(r, 0, &address), "address");
	mixed_vectors(&w->work, k.first);
	for (uint32_t t = 0; t < most; t += MIXED_STEP) {
		TIMED_VOID(w, LAUNCH, mixed_grow(&w->work, t, address));
		TIMED_VOID(w, LAUNCH, mixed_attend(&w->work, &address, 1, t + MIXED_STEP, (uint32_t)draw(w, MIXED_LAYERS)));
		if (draw(w, 2))
			TIMED_VOID(w, WAIT, mixed_wait(&w->work));
	}
	TIMED_VOID(w, WAIT, mixed_wait(&w->work));
	if (most < MIXED_TOKENS) {
		TIMED_VOID(w, ABORT, terrace_abort(r));
		return;
	}
	status = TIMED(w, COMMIT, terrace_commit_open(r, k.bytes[0], 16, MIXED_TOKENS, DEADLINE_US));
	if (status != TERRACE_EXISTS)
		good(w, status, "commit of an open block");
	count_stored(w, status, &status, 1, COUNT_STORED_GPU);
}

/* The blocks of the chain behind those that were there, to `end`. */
static void put_rest(struct worker *w, uint64_t chain, uint32_t from, uint32_t end)
{
	while (from < end && !w->orphan) {
		uint32_t count = 1 + (uint32_t)draw(w, PUT_MAX);

		if (from + count > end)
			count = end - from;
		if (mixed_grows(chain * MIXED_CHAIN + from)) {
			count = 1;
			grow(w, chain, from);
		} else if (draw(w, 4)) {
			put_on_gpu(w, chain, from, count);
		} else {
			put_in_memory(w, chain, from, count);
		}
		from += count;
	}
}

/* ---- all else ---------------------------------------------------------------------------------------------------- */

static void request(struct worker *w)
{
	uint64_t chain = some_chain(w);
	uint32_t count = 1 + (uint32_t)draw(w, MIXED_CHAIN), prefix = 0, got;
	struct keys k;

	name_run(&k, chain, 0, count);
	tally_about(w->tally, count, WHERE_NOWHERE);
	if (good(w, TIMED(w, LOOKUP, terrace_lookup(w->session, &k.keys, DEADLINE_US, &prefix, NULL)), "lookup") && prefix > count)
		must(TERRACE_INTERNAL, "a prefix longer than the keys");
	if (w->orphan)
		return;
	got = lease_on_gpu(w, chain, count);
	put_rest(w, chain, got, count);
}

static void warm(struct worker *w)
{
	struct terrace_warm_options o = TERRACE_WARM_OPTIONS_INIT;
	struct keys k;

	o.wait = draw(w, 2);
	o.gpu = draw(w, 3) ? w->gpu : -1;
	name_run(&k, some_chain(w), 0, 1 + (uint32_t)draw(w, MIXED_CHAIN));
	tally_about(w->tally, k.keys.count, o.gpu < 0 ? WHERE_HOST : WHERE_GPU);
	if (good(w, TIMED(w, WARM, terrace_warm_with(w->session, &k.keys, &o, DEADLINE_US, NULL)), "warm"))
		tally_add(w->tally, COUNT_WARMED, 1);
}

static void flush(struct worker *w)
{
	struct keys k;

	name_run(&k, some_chain(w), 0, 4);
	tally_about(w->tally, 4, WHERE_NOWHERE);
	if (good(w, TIMED(w, FLUSH, terrace_flush(w->session, &k.keys, DEADLINE_US, NULL)), "flush"))
		tally_add(w->tally, COUNT_FLUSHED, 1);
}

/* Whether to try again, of a call that opens; what it says is no daemon's. */
static bool none_yet(const struct worker *w, enum terrace_status status, time_t until)
{
	if (!w->survives || ended || time(NULL) >= until || (status != TERRACE_UNAVAILABLE && status != TERRACE_DEADLINE))
		return false;
	nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
	return true;
}

static void session_open(struct worker *w)
{
	struct terrace_session_options o = TERRACE_SESSION_OPTIONS_INIT;
	const time_t until = time(NULL) + NEXT_S;
	enum terrace_status status;

	o.engine = "mixed";
	o.gpu = true;
	o.gpu_write_back = draw(w, 2);
	do
		status = terrace_session_open(w->client, &mixed_layout, 1, &o, &w->session);
	while (status && none_yet(w, status, until));
	must(status, "open");
	must(terrace_session_gpu_of(w->session, (uint32_t)w->ordinal, &w->gpu), "the GPU's number");
	tally_add(w->tally, COUNT_SESSIONS, 1);
}

/* Leases are given back before it or end with it. */
static void session_close(struct worker *w, bool in_order)
{
	for (int i = 0; i < HELD_MAX && in_order; i++)
		give_back(w, &w->held[i]);
	TIMED_VOID(w, WAIT, mixed_wait(&w->work));
	TIMED_VOID(w, CLOSE, terrace_session_close(w->session));
	for (int i = 0; i < HELD_MAX; i++) {
		terrace_release(w->held[i].lease);
		w->held[i].lease = NULL;
	}
}

static void session_renew(struct worker *w)
{
	const uint64_t epoch = terrace_session_epoch(w->session);

	session_close(w, draw(w, 2));
	if (w->survives)
		TIMED_VOID(w, REOPEN, session_open(w));
	else
		TIMED_VOID(w, OPEN, session_open(w));
	/* the daemon has died in between: this is the way to the next one, too */
	tally_add(w->tally, COUNT_REOPENED, terrace_session_epoch(w->session) != epoch);
}

static void turn(struct worker *w)
{
	request(w);
	if (!w->orphan && draw(w, 8) == 0)
		lease_in_memory(w);
	if (!w->orphan && draw(w, 12) == 0)
		warm(w);
	if (!w->orphan && draw(w, 40) == 0)
		flush(w);
	if (!w->orphan && draw(w, 150) == 0)
		session_renew(w);
}

static void give_all_back(struct worker *w)
{
	for (int i = 0; i < HELD_MAX; i++)
		give_back(w, &w->held[i]);
	TIMED_VOID(w, WAIT, mixed_wait(&w->work));
}

static void first_use(struct worker *w);

/* The daemon has died: what was leased of it is still what it was; then the next one, or the one after that. */
static void next_daemon(struct worker *w)
{
	const uint64_t epoch = terrace_session_epoch(w->session);
	const time_t until = time(NULL) + NEXT_S;
	enum terrace_status status;

	w->orphan = false;
	give_all_back(w);
	do
		status = TIMED(w, REOPEN, terrace_session_reopen(w->session, START_US));
	while (status && none_yet(w, status, until));
	if (ended)
		return;
	must(status, "reopen");
	if (terrace_session_epoch(w->session) == epoch)
		failed(TERRACE_INTERNAL, "the next daemon has the epoch of the last");
	must(terrace_session_gpu_of(w->session, (uint32_t)w->ordinal, &w->gpu), "the GPU's number");
	first_use(w);
	tally_add(w->tally, COUNT_REOPENED, !w->orphan);
}

static void pause_here(struct worker *w)
{
	give_all_back(w);
	puts("paused");
	fflush(stdout);
	while (paused && !ended)
		nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
}

static void on_term(int signum)
{
	(void)signum;
	ended = 1;
}

static void on_usr1(int signum)
{
	(void)signum;
	paused = !paused;
}

/* From here on it is told how long a call was in the GPU's driver. Opens the GPU. */
static void driver_watch(struct worker *w)
{
	struct client_gpu *gpu;

	must(client_lent_gpu(&w->session->view->attachment->memory, (uint32_t)w->gpu, &gpu), "the GPU");
	gpu->ops = tally_driver(gpu->ops);
}

static struct terrace_client *connect_to(const char *address)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *client;

	o.address = address;
	o.timeout_us = START_US;
	must(terrace_connect(&o, &client), "connect");
	return client;
}

/* What the first use of a GPU takes is the driver's affair: it is timed, and bounded by nothing. */
static void first_use(struct worker *w)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_reservation *r = NULL;
	enum terrace_status status;
	struct keys k;

	name_run(&k, w->chains + 1, 0, 1);
	o.gpu = w->gpu;
	status = TIMED(w, FIRST, terrace_reserve_with(w->session, &k.keys, NULL, &o, START_US, NULL, &r));
	if (lives(w, status == TERRACE_EXHAUSTED ? TERRACE_OK : status, "the first reservation"))
		terrace_abort(r);
}

static int worker(const char *address, uint64_t seed, uint64_t chains, const char *path, int ordinal, bool survives)
{
	struct worker w = { .state = seed, .chains = chains, .ordinal = ordinal, .survives = survives, .tally = tally_open(path) };
	struct fault fault;

	if (!tally_meter()) {
		fprintf(stderr, "no thread\n");
		return 3;
	}
	if (!w.tally || !device_load(&fault) || !device_use(ordinal, &fault)) {
		fprintf(stderr, "%s\n", w.tally ? fault.text : path);
		return 3;
	}
	signal(SIGTERM, on_term);
	signal(SIGUSR1, on_usr1);
	mixed_work_open(&w.work, (chains + 2) * MIXED_CHAIN);
	w.client = connect_to(address);
	session_open(&w);
	TIMED_VOID(&w, FIRST, driver_watch(&w));
	first_use(&w);
	puts("ready");
	fflush(stdout);
	while (!ended) {
		turn(&w);
		if (w.orphan)
			next_daemon(&w);
		else if (paused)
			pause_here(&w);
	}
	session_close(&w, true);
	terrace_disconnect(w.client);
	mixed_work_close(&w.work);
	return 0;
}

static int sweep(const char *address, uint64_t chains)
{
	struct terrace_session_options o = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_client *client = connect_to(address);
	struct terrace_session *session;
	uint8_t bytes[SWEEP][16];

	must(terrace_session_open(client, &mixed_layout, 1, &o, &session), "open");
	for (uint64_t at = 0; at < chains * MIXED_CHAIN; at += SWEEP) {
		struct terrace_keys keys = { bytes[0], SWEEP, 16 };

		for (uint64_t i = 0; i < SWEEP; i++)
			name(bytes[i], at + i);
		must(terrace_delete(session, &keys, START_US, NULL), "delete");
	}
	terrace_session_close(session);
	terrace_disconnect(client);
	return 0;
}

int main(int argc, char **argv)
{
	struct tally *t;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc == 7 && (!strcmp(argv[1], "worker") || !strcmp(argv[1], "survivor")))
		return worker(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), argv[5], atoi(argv[6]), argv[1][0] == 's');
	if (argc == 4 && !strcmp(argv[1], "sweep"))
		return sweep(argv[2], strtoull(argv[3], NULL, 10));
	t = argc == 3 && !strcmp(argv[1], "tally") ? tally_open(argv[2]) : NULL;
	if (t) {
		tally_print(t);
		return 0;
	}
	fprintf(stderr, "usage: mixed_engine worker|survivor ADDRESS SEED CHAINS TALLY GPU | sweep ADDRESS CHAINS | tally TALLY\n");
	return 2;
}
