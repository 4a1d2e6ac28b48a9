/* See store/ring/rig.h. */
#include "tests/store/ring/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

const enum ring_engine engines[ENGINE_COUNT] = {RING_URING, RING_THREADS};

uint64_t random_next(uint64_t *rng)
{
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return *rng;
}

/* ---- a ring, a file, memory ---- */

void sleep_ms(unsigned ms)
{
	usleep(ms * 1000);
}

int file_make(void)
{
	char path[] = "ring-test-XXXXXX";
	int fd = mkstemp(path);

	ck_assert_int_ge(fd, 0);
	unlink(path);
	if (fcntl(fd, F_SETFL, O_DIRECT)) /* a file system without it serves as well */
		ck_assert_int_eq(errno, EINVAL);
	return fd;
}

struct ring_options options_of(int engine, uint32_t depth)
{
	return (struct ring_options){.engine = engines[engine], .depth = depth, .queue_max = 4096};
}

void rig_open(struct rig *g, const struct ring_options *o)
{
	*g = (struct rig){.fd = file_make()};
	ck_assert_int_eq(ring_create(o, &g->ring), STATUS_OK);
	ck_assert_int_eq(ring_file_add(g->ring, g->fd, &g->file), STATUS_OK);
	g->memory = aligned_alloc(PAGE, FILE_PAGES * PAGE);
	memset(g->memory, 0, FILE_PAGES * PAGE);
	ck_assert_int_eq(ring_buffer_add(g->ring, g->memory, FILE_PAGES * PAGE, &g->buffer), STATUS_OK);
}

void rig_close(struct rig *g)
{
	ring_destroy_by(g->ring, UINT64_MAX);
	close(g->fd);
	free(g->memory);
}

/* ---- requests that count their completions ---- */

static void job_done(struct ring_request *q)
{
	struct job *j = (struct job *)q;

	if (j->order)
		j->place = atomic_fetch_add(j->order, 1);
	if (j->then)
		j->then(j);
	atomic_fetch_add(&j->done, 1);
}

void job_make(struct job *j, struct rig *g, enum ring_op op, uint32_t page, uint32_t pages)
{
	memset(j, 0, sizeof(*j));
	j->rig = g;
	j->ring = (struct ring_request){
		.op = op,
		.file = g->file,
		.buffer = g->buffer,
		.offset = (uint64_t)page * PAGE,
		.bytes = pages * PAGE,
		.at = g->memory + (size_t)page * PAGE,
		.done = job_done,
	};
}

void job_start(struct job *j)
{
	ck_assert_int_eq(ring_submit(j->rig->ring, &j->ring), STATUS_OK);
}

void job_wait(struct job *j)
{
	for (unsigned i = 0; i < WAIT_MS * 10 && !atomic_load(&j->done); i++)
		usleep(100);
	ck_assert_int_eq(atomic_load(&j->done), 1);
}

void job_run(struct job *j, enum status expected)
{
	job_start(j);
	job_wait(j);
	ck_assert_int_eq(j->ring.status, expected);
}

struct ring_view view_of(struct ring *r)
{
	struct ring_view v;

	ring_look(r, &v);
	return v;
}

/* ---- faults ---- */

int fault(void *arg, const struct ring_request *q, uint32_t *most)
{
	struct faults *f = arg;

	(void)q;
	atomic_fetch_add(&f->entered, 1);
	while (!atomic_load(&f->open))
		usleep(100);
	atomic_fetch_add(&f->asked, 1);
	*most = f->most;
	if (f->error && atomic_fetch_sub(&f->left, 1) > 0)
		return f->error;
	return 0;
}

void faults_rig(struct rig *g, int engine, uint32_t depth, struct faults *f, struct ring_calls *calls)
{
	struct ring_options o = options_of(engine, depth);

	*calls = (struct ring_calls){.fault = fault, .arg = f};
	o.calls = calls;
	rig_open(g, &o);
}

void until_entered(struct faults *f, int n)
{
	for (int i = 0; i < WAIT_MS && atomic_load(&f->entered) < n; i++)
		sleep_ms(1);
	ck_assert_int_ge(atomic_load(&f->entered), n);
}

/* ---- chains ---- */

void chain_on(struct job *j)
{
	struct chain *c = (struct chain *)j;

	ck_assert_int_eq(j->ring.status, STATUS_OK);
	if (atomic_fetch_sub(&c->left, 1) > 1)
		ck_assert_int_eq(ring_submit(j->rig->ring, &j->ring), STATUS_OK);
	else
		atomic_store(&c->finished, 1);
}

void chain_wait(struct chain *c)
{
	for (int ms = 0; ms < WAIT_MS && !atomic_load(&c->finished); ms++)
		sleep_ms(1);
	ck_assert_int_eq(atomic_load(&c->finished), 1);
}

/* ---- the whole ---- */

static bool uring_works(void)
{
	struct ring_options o = {.engine = RING_URING, .depth = 1, .queue_max = 1};
	pid_t probe = fork(); /* TSan: no thread before the tests fork */
	struct ring *r;
	int state = 0;

	if (probe == 0) {
		enum status status = ring_create(&o, &r);

		if (status)
			fprintf(stderr, "skipped for io_uring: %s\n", ring_refusal(NULL));
		_exit(status != STATUS_OK);
	}
	waitpid(probe, &state, 0);
	return state == 0;
}

int ring_rig_main(const char *name, void (*add)(TCase *c, int first))
{
	bool uring = uring_works();
	Suite *s = suite_create(name);
	TCase *c = tcase_create("ring");
	SRunner *run = srunner_create(s);
	int failed;

	tcase_set_timeout(c, 100);
	add(c, uring ? 0 : 1);
	suite_add_tcase(s, c);
	srunner_run_all(run, CK_ENV);
	failed = srunner_ntests_failed(run);
	srunner_free(run);
	return failed ? 1 : uring ? 0 : 77;
}
