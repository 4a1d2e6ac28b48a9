/* The ring and its threads: submits out of completions and from many threads, files and buffers that
 * change meanwhile. */
#include "tests/store/ring/rig.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static _Atomic int begun, ended;

static void note_begin(void *arg)
{
	(void)arg;
	atomic_fetch_add(&begun, 1);
}

static void note_end(void *arg)
{
	(void)arg;
	atomic_fetch_add(&ended, 1);
}

START_TEST(threads_are_announced)
{
	struct ring_options o = options_of(_i, 3);
	struct rig g;
	struct job j;

	begun = ended = 0;
	o.thread_begin = note_begin;
	o.thread_end = note_end;
	rig_open(&g, &o);
	job_make(&j, &g, RING_WRITE, 0, 1);
	job_run(&j, STATUS_OK);
	ck_assert_int_ge(begun, 1);
	rig_close(&g);
	ck_assert_int_eq(begun, engines[_i] == RING_URING ? 1 : 3);
	ck_assert_int_eq(ended, begun);
}
END_TEST

START_TEST(done_may_submit_again)
{
	enum { CHAINS = 12, LINKS = 400 };
	struct ring_options o = options_of(_i, 4);
	struct chain chains[CHAINS];
	struct rig g;

	rig_open(&g, &o);
	memset(chains, 0, sizeof(chains));
	for (uint32_t i = 0; i < CHAINS; i++) {
		struct chain *c = &chains[i];

		job_make(&c->job, &g, i % 2 ? RING_WRITE : RING_SYNC, i, 1);
		c->job.then = chain_on;
		c->left = LINKS / SCALE;
		job_start(&c->job);
	}
	for (int i = 0; i < CHAINS; i++)
		chain_wait(&chains[i]);
	ring_destroy_by(g.ring, UINT64_MAX);
	for (int i = 0; i < CHAINS; i++)
		ck_assert_int_eq(atomic_load(&chains[i].job.done), LINKS / SCALE);
	close(g.fd);
	free(g.memory);
}
END_TEST

enum { SUBMITTERS = 8, SUBMITTER_JOBS = 16, SUBMITTER_ROUNDS = 60 };

struct submitter {
	struct rig *rig;
	uint32_t number;
	pthread_t thread;
	uint64_t well, cancelled;
};

static void submitter_round(struct submitter *s, struct job *jobs, uint64_t *rng)
{
	for (uint32_t i = 0; i < SUBMITTER_JOBS; i++) {
		uint32_t page = (s->number * SUBMITTER_JOBS + i) * 2;

		job_make(&jobs[i], s->rig, random_next(rng) % 2 ? RING_WRITE : RING_READ, page, 2);
		jobs[i].ring.priority = (enum ring_priority)(random_next(rng) % RING_PRIORITIES);
		job_start(&jobs[i]);
		if (random_next(rng) % 4 == 0)
			ring_cancel(s->rig->ring, &jobs[random_next(rng) % (i + 1)].ring);
		if (random_next(rng) % 2 == 0)
			ring_promote(s->rig->ring, &jobs[random_next(rng) % (i + 1)].ring,
				     (enum ring_priority)(random_next(rng) % RING_PRIORITIES));
	}
	for (uint32_t i = 0; i < SUBMITTER_JOBS; i++) {
		job_wait(&jobs[i]);
		s->well += jobs[i].ring.status == STATUS_OK;
		s->cancelled += jobs[i].ring.status == STATUS_CANCELLED;
	}
}

static void *submitter_run(void *arg)
{
	struct submitter *s = arg;
	uint64_t rng = 99 + s->number;
	struct job jobs[SUBMITTER_JOBS];

	for (int i = 0; i < SUBMITTER_ROUNDS / SCALE; i++)
		submitter_round(s, jobs, &rng);
	return NULL;
}

START_TEST(many_threads_submit_promote_and_cancel)
{
	struct ring_options o = options_of(_i, 8);
	struct submitter all[SUBMITTERS];
	uint64_t well = 0, cancelled = 0;
	struct ring_view v;
	struct rig g;

	rig_open(&g, &o);
	ck_assert_int_eq(ftruncate(g.fd, FILE_PAGES * PAGE), 0);
	for (uint32_t i = 0; i < SUBMITTERS; i++) {
		all[i] = (struct submitter){.rig = &g, .number = i};
		pthread_create(&all[i].thread, NULL, submitter_run, &all[i]);
	}
	for (int i = 0; i < SUBMITTERS; i++) {
		pthread_join(all[i].thread, NULL);
		well += all[i].well;
		cancelled += all[i].cancelled;
	}
	v = view_of(g.ring);
	ck_assert_uint_eq(well + cancelled, SUBMITTERS * SUBMITTER_JOBS * (SUBMITTER_ROUNDS / SCALE));
	ck_assert_uint_eq(v.reads + v.writes, well);
	ck_assert_uint_eq(v.failures, 0);
	ck_assert_uint_eq(v.waiting + v.under_way, 0);
	rig_close(&g);
}
END_TEST

/* Files come and go, and a buffer comes, while a chain of writes runs on. */
START_TEST(files_change_while_busy)
{
	enum { MORE = 200 / SCALE };
	struct ring_options o = options_of(_i, 4);
	uint8_t *memory = aligned_alloc(PAGE, PAGE);
	struct chain busy[4];
	uint32_t buffer;
	struct rig g;

	rig_open(&g, &o);
	memset(busy, 0, sizeof(busy));
	for (uint32_t i = 0; i < 4; i++) {
		job_make(&busy[i].job, &g, RING_WRITE, i, 1);
		busy[i].job.then = chain_on;
		busy[i].left = 1 << 30;
		job_start(&busy[i].job);
	}
	ck_assert_int_eq(ring_buffer_add(g.ring, memory, PAGE, &buffer), STATUS_OK);
	ck_assert_uint_eq(view_of(g.ring).buffers, engines[_i] == RING_URING ? 2 : 0);
	for (int i = 0; i < MORE; i++) {
		uint32_t file;
		int fd = file_make();
		struct job j;

		ck_assert_int_eq(ring_file_add(g.ring, fd, &file), STATUS_OK);
		memset(memory, i, PAGE);
		for (int op = 0; op < 2; op++) {
			job_make(&j, &g, op ? RING_READ : RING_WRITE, 0, 1);
			j.ring.file = file;
			j.ring.buffer = buffer;
			j.ring.at = memory;
			job_run(&j, STATUS_OK);
			ck_assert_uint_eq(memory[PAGE - 1], (uint8_t)i);
			memset(memory, ~i, PAGE);
			if (!op)
				ck_assert_int_eq(pread(fd, memory, PAGE, 0), PAGE);
		}
		ring_file_remove(g.ring, file);
		close(fd);
	}
	for (int i = 0; i < 4; i++)
		atomic_store(&busy[i].left, 1);
	for (int i = 0; i < 4; i++)
		chain_wait(&busy[i]);
	ck_assert_uint_eq(view_of(g.ring).buffers_refused, 0);
	ck_assert_int_eq(view_of(g.ring).registered_files, engines[_i] == RING_URING);
	rig_close(&g);
	free(memory);
}
END_TEST

/* A table smaller than the number of files: plain descriptors serve. */
START_TEST(files_beyond_the_table_work)
{
	struct ring_options o = options_of(_i, 4);
	struct rlimit before, few;
	uint32_t files[40];
	struct rig g;
	struct job j;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
	few = before;
	few.rlim_cur = 32;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	rig_open(&g, &o);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
	for (int i = 0; i < 40; i++)
		ck_assert_int_eq(ring_file_add(g.ring, g.fd, &files[i]), STATUS_OK);
	ck_assert(!view_of(g.ring).registered_files);
	job_make(&j, &g, RING_WRITE, 0, 1);
	j.ring.file = files[39];
	job_run(&j, STATUS_OK);
	j.done = 0;
	j.ring.file = files[1];
	job_run(&j, STATUS_OK);
	for (int i = 0; i < 40; i++)
		ring_file_remove(g.ring, files[i]);
	rig_close(&g);
}
END_TEST

/* A read of an empty pipe fills the depth for as long as one likes: io_uring's thread then sleeps in the
 * kernel, and must hear all that is no new request. */
START_TEST(a_full_ring_hears_cancels_and_orders)
{
	struct ring_options o = options_of(0, 1);
	struct job blocker, waits, later;
	uint32_t file, other;
	struct rig g;
	int ends[2];

	rig_open(&g, &o);
	ck_assert_int_eq(pipe(ends), 0);
	ck_assert_int_eq(ring_file_add(g.ring, ends[0], &file), STATUS_OK);
	job_make(&blocker, &g, RING_READ, 0, 1);
	blocker.ring.file = file;
	blocker.ring.bytes = 1;
	job_start(&blocker);
	job_make(&waits, &g, RING_WRITE, 1, 1);
	job_make(&later, &g, RING_WRITE, 2, 1);
	job_start(&waits);
	job_start(&later);
	for (int i = 0; i < WAIT_MS / 10 && view_of(g.ring).oldest_us < 10000; i++)
		sleep_ms(10); /* its thread may begin late */
	ck_assert_uint_eq(view_of(g.ring).under_way, 1);
	ck_assert_uint_ge(view_of(g.ring).oldest_us, 10000);
	ring_cancel(g.ring, &waits.ring);
	job_wait(&waits);
	ck_assert_int_eq(waits.ring.status, STATUS_CANCELLED);
	ck_assert_int_eq(ring_file_add(g.ring, g.fd, &other), STATUS_OK);
	ring_file_remove(g.ring, other);
	ck_assert_int_eq(atomic_load(&blocker.done) + atomic_load(&later.done), 0);
	ck_assert_int_eq(write(ends[1], "x", 1), 1);
	job_wait(&blocker);
	ck_assert_int_eq(blocker.ring.status, STATUS_OK);
	job_wait(&later);
	ck_assert_int_eq(later.ring.status, STATUS_OK);
	rig_close(&g);
	close(ends[0]);
	close(ends[1]);
}
END_TEST

static void add(TCase *c, int first)
{
	tcase_add_loop_test(c, threads_are_announced, first, ENGINE_COUNT);
	tcase_add_loop_test(c, done_may_submit_again, first, ENGINE_COUNT);
	tcase_add_loop_test(c, many_threads_submit_promote_and_cancel, first, ENGINE_COUNT);
	tcase_add_loop_test(c, files_change_while_busy, first, ENGINE_COUNT);
	tcase_add_loop_test(c, files_beyond_the_table_work, first, ENGINE_COUNT);
	if (first == 0)
		tcase_add_test(c, a_full_ring_hears_cancels_and_orders);
}

int main(void)
{
	return ring_rig_main("store_ring_threads", add);
}
