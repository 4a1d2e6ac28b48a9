/* The ring: bytes, priorities, depth, queue, cancel, the end. */
#include "tests/store/ring/rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

START_TEST(options_out_of_bounds_are_refused)
{
	static const struct ring_options bad[] = {
		{.depth = 0, .queue_max = 1},
		{.depth = RING_DEPTH_MAX + 1, .queue_max = 1},
		{.depth = 1, .queue_max = 0},
		{.depth = 1, .queue_max = 1, .threads = RING_DEPTH_MAX + 1},
		{.depth = 1, .queue_max = 1, .engine = (enum ring_engine)7},
	};
	struct ring *r = NULL;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ck_assert_int_eq(ring_create(&bad[i], &r), STATUS_INVALID);
	ck_assert_ptr_null(r);
	ring_destroy_by(NULL, UINT64_MAX);
}
END_TEST

START_TEST(requests_without_sense_are_refused)
{
	struct ring_options o = options_of(_i, 4);
	struct rig g;
	struct job j;

	rig_open(&g, &o);
#define REFUSED(change)                                                                                      \
	do {                                                                                                 \
		job_make(&j, &g, RING_READ, 0, 1);                                                           \
		change;                                                                                      \
		ck_assert_int_eq(ring_submit(g.ring, &j.ring), STATUS_INVALID);                              \
	} while (0)
	REFUSED(j.ring.done = NULL);
	REFUSED(j.ring.op = (enum ring_op)9);
	REFUSED(j.ring.priority = RING_PRIORITIES);
	REFUSED(j.ring.file = g.file + 1);
	REFUSED(j.ring.file = RING_NONE);
	REFUSED(j.ring.at = NULL);
	REFUSED(j.ring.bytes = 0);
	REFUSED(j.ring.bytes = (1u << 30) + 1);
	REFUSED(j.ring.offset = INT64_MAX);
	REFUSED(j.ring.buffer = 77);
	REFUSED(j.ring.buffer = RING_BUFFERS_MAX);
	if (g.buffer != RING_NONE) {
		REFUSED(j.ring.at = g.memory - PAGE);
		REFUSED(j.ring.at = g.memory + FILE_PAGES * PAGE);
		REFUSED(j.ring.bytes = (FILE_PAGES + 1) * PAGE);
	}
#undef REFUSED
	ck_assert_int_eq(ring_file_add(g.ring, -1, &g.file), STATUS_INVALID);
	ck_assert_int_eq(ring_buffer_add(g.ring, NULL, 1, &g.buffer), STATUS_INVALID);
	ck_assert_int_eq(ring_buffer_add(g.ring, g.memory, 0, &g.buffer), STATUS_INVALID);
	ck_assert_int_eq(ring_buffer_add(g.ring, g.memory, (1u << 30) + 1, &g.buffer), STATUS_INVALID);
	rig_close(&g);
}
END_TEST

START_TEST(the_view_says_what_runs)
{
	struct ring_options o = options_of(_i, 4);
	struct rig g;
	struct job j;

	rig_open(&g, &o);
	ck_assert_int_eq(view_of(g.ring).engine, engines[_i]);
	ck_assert_int_eq(*ring_refusal(g.ring) == '\0', engines[_i] == RING_URING);
	job_make(&j, &g, RING_WRITE, 0, 3);
	job_run(&j, STATUS_OK);
	ck_assert_uint_gt(j.ring.started_us, 0);
	job_make(&j, &g, RING_READ, 0, 2);
	job_run(&j, STATUS_OK);
	job_make(&j, &g, RING_SYNC, 0, 0);
	job_run(&j, STATUS_OK);
	ck_assert_uint_eq(view_of(g.ring).writes, 1);
	ck_assert_uint_eq(view_of(g.ring).write_bytes, 3 * PAGE);
	ck_assert_uint_eq(view_of(g.ring).reads, 1);
	ck_assert_uint_eq(view_of(g.ring).read_bytes, 2 * PAGE);
	ck_assert_uint_eq(view_of(g.ring).syncs, 1);
	ck_assert_uint_eq(view_of(g.ring).failures, 0);
	ck_assert_uint_ge(view_of(g.ring).submits, 3);
	ck_assert_uint_eq(view_of(g.ring).waiting + view_of(g.ring).under_way, 0);
	ck_assert_uint_eq(view_of(g.ring).oldest_us, 0);
	rig_close(&g);
}
END_TEST

/* Pages of this process that the kernel keeps pinned, in KiB. */
static long pinned_kib(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[128];
	long kib = -1;

	while (f && kib < 0 && fgets(line, sizeof(line), f))
		sscanf(line, "VmPin: %ld kB", &kib);
	if (f)
		fclose(f);
	return kib;
}

/* The kernel lets go of its pages, and its place is given again. */
START_TEST(a_buffer_can_be_removed)
{
	enum { BYTES = 64 * PAGE };
	struct ring_options o = options_of(_i, 4);
	uint8_t *more = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint32_t buffer, again;
	struct rig g;
	struct job j;
	long pinned;

	ck_assert_ptr_ne(more, MAP_FAILED);
	rig_open(&g, &o);
	job_make(&j, &g, RING_WRITE, 0, 1);
	job_run(&j, STATUS_OK);
	pinned = pinned_kib();
	for (int i = 0; i < 3; i++) {
		const uint32_t before = view_of(g.ring).buffers;

		ck_assert_int_eq(ring_buffer_add(g.ring, more, BYTES, i ? &again : &buffer), STATUS_OK);
		if (buffer == RING_NONE) /* threads, or a kernel that refuses */
			break;
		ck_assert_uint_eq(i ? again : buffer, buffer);
		ck_assert_uint_eq(view_of(g.ring).buffers, before + 1);
		ck_assert_int_eq(pinned_kib() - pinned, BYTES / 1024);
		job_make(&j, &g, RING_READ, 0, 1);
		j.ring.at = more + PAGE;
		j.ring.buffer = buffer;
		job_run(&j, STATUS_OK);
		ring_buffer_remove(g.ring, buffer);
		ck_assert_uint_eq(view_of(g.ring).buffers, before);
		for (int ms = 0; pinned_kib() != pinned && ms < 10000; ms++) /* kernels may do it a little later */
			usleep(1000);
		ck_assert_int_eq(pinned_kib(), pinned);
		j.ring.at = more;
		ck_assert_int_eq(ring_submit(g.ring, &j.ring), STATUS_INVALID); /* it is none any more */
	}
	rig_close(&g);
	munmap(more, BYTES);
}
END_TEST

/* Random reads and writes of pages that nothing else touches meanwhile, against a copy in memory. */
enum { MIX_JOBS = 24, MIX_ROUNDS = 400 };

static void mix_fill(uint8_t *at, size_t bytes, uint64_t *rng)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = random_next(rng);

		memcpy(at + i, &word, 8);
	}
}

START_TEST(bytes_come_as_they_were_written)
{
	struct ring_options o = options_of(_i, 8);
	uint8_t *model = calloc(FILE_PAGES, PAGE), *memory;
	uint64_t rng = 12345 + (uint64_t)_i;
	struct job jobs[MIX_JOBS];
	struct rig g;

	rig_open(&g, &o);
	memory = g.memory;
	ck_assert_int_eq(ftruncate(g.fd, FILE_PAGES * PAGE), 0);
	for (int round = 0; round < MIX_ROUNDS / SCALE; round++) {
		const uint32_t stride = FILE_PAGES / MIX_JOBS;

		for (uint32_t i = 0; i < MIX_JOBS; i++) {
			uint32_t pages = 1 + (uint32_t)(random_next(&rng) % 16);
			uint32_t page = i * stride + (uint32_t)(random_next(&rng) % (stride - pages));
			uint64_t dice = random_next(&rng);
			enum ring_op op = dice % 8 == 0 ? RING_SYNC : dice % 2 ? RING_WRITE : RING_READ;

			job_make(&jobs[i], &g, op, page, pages);
			jobs[i].ring.priority = (enum ring_priority)(random_next(&rng) % RING_PRIORITIES);
			if (random_next(&rng) % 4 == 0)
				jobs[i].ring.buffer = RING_NONE;
			if (op == RING_WRITE) {
				mix_fill(jobs[i].ring.at, jobs[i].ring.bytes, &rng);
				memcpy(model + page * PAGE, jobs[i].ring.at, jobs[i].ring.bytes);
			} else if (op == RING_READ) {
				memset(jobs[i].ring.at, 0xee, jobs[i].ring.bytes);
			}
			job_start(&jobs[i]);
		}
		for (uint32_t i = 0; i < MIX_JOBS; i++) {
			job_wait(&jobs[i]);
			ck_assert_int_eq(jobs[i].ring.status, STATUS_OK);
			ck_assert_int_eq(jobs[i].ring.error, 0);
			if (jobs[i].ring.op != RING_SYNC)
				ck_assert_int_eq(memcmp(jobs[i].ring.at, model + jobs[i].ring.offset,
							jobs[i].ring.bytes), 0);
		}
	}
	for (uint32_t page = 0; page < FILE_PAGES; page++)
		ck_assert_int_eq(pread(g.fd, memory + (size_t)page * PAGE, PAGE, (off_t)page * PAGE), PAGE);
	ck_assert_int_eq(memcmp(memory, model, FILE_PAGES * PAGE), 0);
	rig_close(&g);
	free(model);
}
END_TEST

/* Puts `n` writes into the queues of a ring of depth 1 while it is held, lets it go, and waits for all: jobs[i].place is which turn each had. */
static void queue_and_go(int engine, struct job *jobs, int n, enum ring_priority (*priority)(int))
{
	struct faults f = {.open = 0};
	struct ring_calls calls;
	_Atomic uint32_t order = 0;
	struct job blocker;
	struct rig g;

	faults_rig(&g, engine, 1, &f, &calls);
	job_make(&blocker, &g, RING_WRITE, 0, 1);
	job_start(&blocker);
	until_entered(&f, 1);
	for (int i = 0; i < n; i++) {
		job_make(&jobs[i], &g, RING_WRITE, 1 + (uint32_t)i, 1);
		jobs[i].ring.priority = priority(i);
		jobs[i].order = &order;
		job_start(&jobs[i]);
	}
	ck_assert_uint_eq(view_of(g.ring).waiting, n);
	ck_assert_uint_eq(view_of(g.ring).under_way, 1);
	atomic_store(&f.open, 1);
	for (int i = 0; i < n; i++)
		job_wait(&jobs[i]);
	job_wait(&blocker);
	rig_close(&g);
}

static enum ring_priority lowest_first(int i)
{
	return (enum ring_priority)(RING_PRIORITIES - 1 - i % RING_PRIORITIES);
}

START_TEST(the_urgent_go_first)
{
	enum { N = RING_PRIORITIES * (RING_PATIENCE / 2) };
	struct job jobs[N];

	queue_and_go(_i, jobs, N, lowest_first);
	for (int i = 0; i < N; i++)
		ck_assert_uint_eq(jobs[i].place, (uint32_t)jobs[i].ring.priority * (N / RING_PRIORITIES) +
							 (uint32_t)i / RING_PRIORITIES);
}
END_TEST

enum { EACH = 3 };

static enum ring_priority mostly_urgent(int i)
{
	return i < EACH ? RING_IDLE : i < 2 * EACH ? RING_PREFETCH : RING_URGENT;
}

/* Among many that are urgent, those of two lower priorities have every so many-th turn each. */
START_TEST(none_is_starved)
{
	enum { N = 6 * RING_PATIENCE };
	struct job jobs[N];

	queue_and_go(_i, jobs, N, mostly_urgent);
	for (uint32_t i = 0; i < EACH; i++) {
		ck_assert_uint_eq(jobs[EACH + i].place, RING_PATIENCE + i * (RING_PATIENCE + 1));
		ck_assert_uint_eq(jobs[i].place, jobs[EACH + i].place + 1);
	}
	for (uint32_t i = 2 * EACH + 1; i < N; i++)
		ck_assert_uint_gt(jobs[i].place, jobs[i - 1].place);
}
END_TEST

/* How many the kernel has, the one that begins with them; how many are between their fault and their end. */
static _Atomic uint32_t most_under_way, now_untold, most_untold;
static atomic_bool all_submitted; /* none begins before */

static void note_most(_Atomic uint32_t *most, uint32_t n)
{
	uint32_t before = atomic_load(most);

	while (n > before && !atomic_compare_exchange_weak(most, &before, n))
		;
}

static int count_begin(void *arg, const struct ring_request *q, uint32_t *most)
{
	(void)q;
	(void)most;
	while (!atomic_load(&all_submitted))
		usleep(100);
	note_most(&most_untold, atomic_fetch_add(&now_untold, 1) + 1);
	note_most(&most_under_way, view_of(((struct rig *)arg)->ring).under_way);
	return 0;
}

static void count_end(struct job *j)
{
	(void)j;
	atomic_fetch_sub(&now_untold, 1);
}

START_TEST(the_depth_is_reached_and_not_exceeded)
{
	enum { N = 512, DEPTH = 5 };
	struct job *jobs = calloc(N, sizeof(*jobs));
	struct rig g;
	struct ring_calls calls = {.fault = count_begin, .arg = &g};
	struct ring_options o = options_of(_i, DEPTH);

	most_under_way = now_untold = most_untold = 0;
	atomic_store(&all_submitted, false);
	o.calls = &calls;
	rig_open(&g, &o);
	for (int i = 0; i < N; i++) {
		job_make(&jobs[i], &g, RING_WRITE, (uint32_t)i * 2, 2);
		jobs[i].then = count_end;
	}
	for (int i = 0; i < N; i++)
		ck_assert_int_eq(ring_submit(g.ring, &jobs[i].ring), STATUS_OK);
	atomic_store(&all_submitted, true);
	for (int i = 0; i < N; i++) {
		ck_assert_uint_le(view_of(g.ring).under_way, DEPTH);
		job_wait(&jobs[i]);
	}
	ck_assert_uint_le(most_under_way, DEPTH);
	/* What has ended is told when the next are the kernel's: of a thread of the other engine each has one. */
	ck_assert_uint_le(most_untold, engines[_i] == RING_URING ? 2 * DEPTH : DEPTH);
	ck_assert_uint_ge(most_untold, 2);
	rig_close(&g);
	free(jobs);
}
END_TEST

enum { NEXT_MS = 20000 };
static atomic_bool next_came;

/* The next one's bytes come to the file while this one's submitter has work with it. */
static void until_next_came(struct job *j)
{
	uint8_t *page = aligned_alloc(PAGE, PAGE);

	for (int ms = 0; ms < NEXT_MS && !atomic_load(&next_came); ms++) {
		ck_assert_int_eq(pread(j->rig->fd, page, PAGE, PAGE), PAGE);
		atomic_store(&next_came, page[0] == 'n');
		if (!atomic_load(&next_came))
			sleep_ms(1);
	}
	free(page);
}

/* What takes the place of one that has ended is the kernel's before that is told. */
START_TEST(a_disk_does_not_wait_for_submitters)
{
	struct faults f = {.open = 0};
	struct ring_calls calls;
	struct job first, next;
	struct rig g;

	atomic_store(&next_came, false);
	faults_rig(&g, 0, 1, &f, &calls);
	ck_assert_int_eq(ftruncate(g.fd, 2 * PAGE), 0);
	memset(g.memory + PAGE, 'n', PAGE);
	job_make(&first, &g, RING_WRITE, 0, 1);
	first.then = until_next_came;
	job_start(&first);
	until_entered(&f, 1);
	job_make(&next, &g, RING_WRITE, 1, 1);
	job_start(&next);
	atomic_store(&f.open, 1);
	job_wait(&first);
	job_wait(&next);
	ck_assert(atomic_load(&next_came));
	rig_close(&g);
}
END_TEST

START_TEST(the_queue_is_bounded)
{
	enum { MAX = 7 };
	struct faults f = {.open = 0};
	struct ring_calls calls = {.fault = fault, .arg = &f};
	struct ring_options o = options_of(_i, 1);
	struct job blocker, jobs[MAX + 1];
	struct rig g;

	o.queue_max = MAX;
	o.calls = &calls;
	rig_open(&g, &o);
	job_make(&blocker, &g, RING_WRITE, 0, 1);
	job_start(&blocker);
	until_entered(&f, 1);
	for (int i = 0; i <= MAX; i++) {
		job_make(&jobs[i], &g, RING_WRITE, 1, 1);
		ck_assert_int_eq(ring_submit(g.ring, &jobs[i].ring), i < MAX ? STATUS_OK : STATUS_EXHAUSTED);
	}
	atomic_store(&f.open, 1);
	for (int i = 0; i < MAX; i++)
		job_wait(&jobs[i]);
	job_wait(&blocker);
	job_run(&jobs[MAX], STATUS_OK);
	rig_close(&g);
}
END_TEST

START_TEST(a_waiting_request_can_be_taken_back)
{
	enum { N = 6 };
	struct faults f = {.open = 0};
	struct ring_calls calls;
	struct job blocker, jobs[N], after;
	struct rig g;

	faults_rig(&g, _i, 2, &f, &calls);
	f.open = 1;
	job_make(&blocker, &g, RING_WRITE, 0, 1);
	job_run(&blocker, STATUS_OK);
	ring_cancel(g.ring, &blocker.ring); /* too late: nothing */
	atomic_store(&f.open, 0);
	job_make(&blocker, &g, RING_WRITE, 0, 1);
	job_start(&blocker);
	until_entered(&f, 2);
	for (int i = 0; i < N; i++) {
		job_make(&jobs[i], &g, RING_WRITE, 1 + (uint32_t)i, 1);
		job_start(&jobs[i]);
	}
	if (engines[_i] == RING_THREADS)
		until_entered(&f, 3); /* the second thread has the first of them */
	ring_cancel(g.ring, &jobs[1].ring); /* in the middle */
	ring_cancel(g.ring, &jobs[N - 1].ring); /* the last */
	ring_cancel(g.ring, &jobs[N - 1].ring);
	ring_cancel(g.ring, &blocker.ring); /* under way: goes on */
	job_make(&after, &g, RING_WRITE, 9, 1); /* behind what is now the last */
	job_start(&after);
	atomic_store(&f.open, 1);
	for (int i = 0; i < N; i++)
		job_wait(&jobs[i]);
	job_wait(&blocker);
	job_wait(&after);
	ck_assert_int_eq(jobs[1].ring.status, STATUS_CANCELLED);
	ck_assert_uint_eq(jobs[1].ring.started_us, 0);
	ck_assert_int_eq(jobs[N - 1].ring.status, STATUS_CANCELLED);
	for (int i = 0; i < N - 1; i++)
		ck_assert_int_eq(jobs[i].ring.status, i == 1 ? STATUS_CANCELLED : STATUS_OK);
	ck_assert_int_eq(after.ring.status, STATUS_OK);
	ck_assert_int_eq(blocker.ring.status, STATUS_OK);
	rig_close(&g);
}
END_TEST

static enum ring_priority by_letter(char letter)
{
	return letter == 'u' ? RING_URGENT : letter == 'a' ? RING_PREFETCH : RING_IDLE;
}

/* The queue is full all along; one is taken back after it was promoted. */
START_TEST(a_waiting_request_can_be_promoted)
{
	static const char put[] = "uaaiiaa";
	static const struct {
		int job;
		char to;
		uint32_t turn;
	} step[] = {{2, 'u', 1} /* from the middle */, {5, 'u', 2}, {6, 'u', 0} /* from the end */, {0, 'i', 0}, {1, 'a', 3},
		    {3, 'a', 4} /* from the beginning */, {4, 'a', 5} /* the last of its queue */};
	enum { TAKEN_BACK = 6, N = sizeof(put) - 1, STEPS = sizeof(step) / sizeof(step[0]) };
	struct faults f = {.open = 0};
	struct ring_calls calls = {.fault = fault, .arg = &f};
	struct ring_options o = options_of(_i, 1);
	struct ring_request never = {0};
	struct job blocker, jobs[N], more;
	_Atomic uint32_t order = 0;
	struct rig g;

	o.queue_max = N;
	o.calls = &calls;
	rig_open(&g, &o);
	job_make(&blocker, &g, RING_WRITE, 0, 1);
	blocker.ring.priority = RING_IDLE;
	job_start(&blocker);
	until_entered(&f, 1);
	for (int i = 0; i < N; i++) {
		job_make(&jobs[i], &g, RING_WRITE, 1 + (uint32_t)i, 1);
		jobs[i].ring.priority = by_letter(put[i]);
		jobs[i].order = i == TAKEN_BACK ? NULL : &order;
		job_start(&jobs[i]);
	}
	job_make(&more, &g, RING_WRITE, 100, 1);
	more.ring.priority = RING_IDLE;
	more.order = &order;
	for (int i = 0; i < STEPS; i++) {
		ck_assert(ring_promote(g.ring, &jobs[step[i].job].ring, by_letter(step[i].to)));
		ck_assert_uint_eq(view_of(g.ring).waiting, N);
		ck_assert_uint_eq(view_of(g.ring).under_way, 1);
		ck_assert_int_eq(ring_submit(g.ring, &more.ring), STATUS_EXHAUSTED);
	}
	ck_assert(!ring_promote(g.ring, &blocker.ring, RING_URGENT)); /* the kernel has it */
	ck_assert_int_eq(blocker.ring.priority, RING_IDLE);
	ck_assert(!ring_promote(g.ring, &never, RING_URGENT));
	ck_assert_uint_eq(atomic_load(&order), 0);
	ring_cancel(g.ring, &jobs[TAKEN_BACK].ring);
	ck_assert(!ring_promote(g.ring, &jobs[TAKEN_BACK].ring, RING_URGENT));
	job_start(&more); /* in a queue that was emptied by promotions */
	atomic_store(&f.open, 1);
	for (int i = 0; i < STEPS; i++) {
		struct job *j = &jobs[step[i].job];

		job_wait(j);
		ck_assert_int_eq(j->ring.status, step[i].job == TAKEN_BACK ? STATUS_CANCELLED : STATUS_OK);
		ck_assert_uint_eq(j->place, step[i].turn);
	}
	job_wait(&more);
	job_wait(&blocker);
	ck_assert_uint_eq(more.place, N - 1);
	ck_assert(!ring_promote(g.ring, &jobs[0].ring, RING_URGENT)); /* done */
	ck_assert_uint_eq(view_of(g.ring).waiting + view_of(g.ring).under_way, 0);
	rig_close(&g);
}
END_TEST

static void *destroy_run(void *arg)
{
	struct rig *g = arg;

	ring_destroy_by(g->ring, UINT64_MAX);
	return NULL;
}

static void submit_too_late(struct job *j)
{
	struct job again;

	job_make(&again, j->rig, RING_WRITE, 0, 1);
	if (j->ring.status == STATUS_CANCELLED)
		ck_assert_int_eq(ring_submit(j->rig->ring, &again.ring), STATUS_UNAVAILABLE);
}

START_TEST(destroy_cancels_what_waits_and_awaits_the_rest)
{
	enum { N = 40 };
	struct faults f = {.open = 0};
	struct ring_calls calls;
	struct ring_request nonsense = {0};
	struct job jobs[N];
	int well = 0, cancelled = 0;
	pthread_t thread;
	struct rig g;

	faults_rig(&g, _i, 4, &f, &calls);
	for (int i = 0; i < N; i++) {
		job_make(&jobs[i], &g, RING_WRITE, (uint32_t)i, 1);
		jobs[i].then = submit_too_late;
		job_start(&jobs[i]);
	}
	until_entered(&f, 1);
	pthread_create(&thread, NULL, destroy_run, &g);
	/* A ring that is being destroyed says so before it looks at a request. */
	for (int ms = 0; ms < WAIT_MS && ring_submit(g.ring, &nonsense) != STATUS_UNAVAILABLE; ms++)
		sleep_ms(1);
	ck_assert_int_eq(ring_submit(g.ring, &nonsense), STATUS_UNAVAILABLE);
	atomic_store(&f.open, 1);
	pthread_join(thread, NULL);
	for (int i = 0; i < N; i++) {
		ck_assert_int_eq(jobs[i].done, 1);
		well += jobs[i].ring.status == STATUS_OK;
		cancelled += jobs[i].ring.status == STATUS_CANCELLED;
	}
	ck_assert_int_ge(well, 1);
	ck_assert_int_le(well, 4);
	ck_assert_int_eq(well + cancelled, N);
	close(g.fd);
	free(g.memory);
}
END_TEST

/* Nothing but destroy: an idle ring, a ring just made. */
START_TEST(rings_come_and_go)
{
	struct ring_options o = options_of(_i, 32);
	struct ring *r;

	for (int i = 0; i < 100 / SCALE; i++) {
		ck_assert_int_eq(ring_create(&o, &r), STATUS_OK);
		if (i % 2)
			sleep_ms(1);
		ring_destroy_by(r, UINT64_MAX);
	}
}
END_TEST

static _Atomic int wakes; /* of the ring's thread */

int eventfd_write(int fd, eventfd_t value)
{
	wakes++;
	return write(fd, &value, sizeof(value)) == sizeof(value) ? 0 : -1;
}

/* What completions submit is met by the thread that runs them: it is not asleep. */
START_TEST(a_chain_wakes_nobody)
{
	enum { LINKS = 500, FEW = 10 };
	struct ring_options o = options_of(0, 4);
	struct chain c;
	struct rig g;
	int before;

	rig_open(&g, &o);
	memset(&c, 0, sizeof(c));
	job_make(&c.job, &g, RING_SYNC, 0, 0);
	c.job.then = chain_on;
	atomic_store(&c.left, LINKS);
	before = wakes;
	job_start(&c.job);
	chain_wait(&c);
	ck_assert_int_lt(wakes - before, FEW);
	rig_close(&g);
}
END_TEST

static void add(TCase *c, int first)
{
	tcase_add_test(c, options_out_of_bounds_are_refused);
	tcase_add_loop_test(c, requests_without_sense_are_refused, first, ENGINE_COUNT);
	tcase_add_loop_test(c, the_view_says_what_runs, first, ENGINE_COUNT);
	tcase_add_loop_test(c, a_buffer_can_be_removed, first, ENGINE_COUNT);
	tcase_add_loop_test(c, bytes_come_as_they_were_written, first, ENGINE_COUNT);
	tcase_add_loop_test(c, the_urgent_go_first, first, ENGINE_COUNT);
	tcase_add_loop_test(c, none_is_starved, first, ENGINE_COUNT);
	tcase_add_loop_test(c, the_depth_is_reached_and_not_exceeded, first, ENGINE_COUNT);
	tcase_add_loop_test(c, the_queue_is_bounded, first, ENGINE_COUNT);
	tcase_add_loop_test(c, a_waiting_request_can_be_taken_back, first, ENGINE_COUNT);
	tcase_add_loop_test(c, a_waiting_request_can_be_promoted, first, ENGINE_COUNT);
	tcase_add_loop_test(c, destroy_cancels_what_waits_and_awaits_the_rest, first, ENGINE_COUNT);
	tcase_add_loop_test(c, rings_come_and_go, first, ENGINE_COUNT);
	if (first == 0) {
		tcase_add_test(c, a_disk_does_not_wait_for_submitters);
		tcase_add_test(c, a_chain_wakes_nobody);
	}
}

int main(void)
{
	return ring_rig_main("store_ring", add);
}
