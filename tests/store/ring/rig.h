/* What the tests of the ring share: a ring with a file and memory of its own, requests that count their
 * completions, and faults. Each test runs over both engines: its loop index is a row of `engines`. */
#ifndef TERRACE_TESTS_STORE_RING_RIG_H
#define TERRACE_TESTS_STORE_RING_RIG_H

#include <check.h>
#include <stdatomic.h>

#include "store/ring/ring.h"

#ifdef TERRACE_SANITIZED
enum { SCALE = 8 };
#else
enum { SCALE = 1 };
#endif

enum { PAGE = 4096, FILE_PAGES = 1024, WAIT_MS = 300000, ENGINE_COUNT = 2 };

extern const enum ring_engine engines[ENGINE_COUNT]; /* RING_URING, RING_THREADS */

struct rig {
	struct ring *ring;
	int fd;
	uint32_t file;
	uint8_t *memory;           /* FILE_PAGES pages */
	uint32_t buffer;
};

struct job {
	struct ring_request ring;  /* first */
	struct rig *rig;
	_Atomic int done;          /* times */
	_Atomic uint32_t *order;   /* counts completions, may be NULL */
	uint32_t place;            /* what *order was */
	void (*then)(struct job *j);
};

struct faults {
	_Atomic int open;          /* 0: every request waits in its fault: nothing moves on */
	_Atomic int entered;
	_Atomic int left;          /* so many requests fail with `error`; then well */
	int error;
	uint32_t most;
	_Atomic uint32_t asked;
};

uint64_t random_next(uint64_t *rng);
void sleep_ms(unsigned ms);
/* An unlinked file in the working directory, O_DIRECT where the file system has it. */
int file_make(void);

struct ring_options options_of(int engine, uint32_t depth);
void rig_open(struct rig *g, const struct ring_options *o);
void rig_close(struct rig *g);
struct ring_view view_of(struct ring *r);

/* A request whose place in memory is its place in the file. */
void job_make(struct job *j, struct rig *g, enum ring_op op, uint32_t page, uint32_t pages);
void job_start(struct job *j);
void job_wait(struct job *j);
void job_run(struct job *j, enum status expected);

/* ring_calls.fault with a struct faults as its argument. */
int fault(void *arg, const struct ring_request *q, uint32_t *most);
void faults_rig(struct rig *g, int engine, uint32_t depth, struct faults *f, struct ring_calls *calls);
void until_entered(struct faults *f, int n);

/* A chain of submits out of `done`: `left` of them. In zeroed memory, with job_make and then = chain_on. */
struct chain {
	struct job job;            /* first */
	_Atomic int left, finished;
};
void chain_on(struct job *j);
void chain_wait(struct chain *c);

/* main: add adds the tests over the engines [first, ENGINE_COUNT). Without io_uring the other engine is
 * tested all the same, and the whole counts as skipped (77). */
int ring_rig_main(const char *name, void (*add)(TCase *c, int first));

#endif
