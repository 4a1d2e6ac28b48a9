/* Extents: size and seals, what an engine's descriptor may do, and the lock as lifeline, with real
 * forks and kill -9.
 *
 * Run with the argument `huge` the same is done on huge pages; 77 (skipped) if the machine has none
 * to give.
 */
#include "store/host/extent.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool huge;

#define BYTES (2u << 20)
#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"

/* Others may have taken the machine's huge pages meanwhile, or given theirs back for all: an extent is then one of small pages, whole and right, and
 * what follows is of such a one. */
static struct extent opened(void)
{
	struct extent e;

	ck_assert_int_eq(extent_open(&e, 7, BYTES, huge), STATUS_OK);
	if (huge && e.page_bytes == EXTENT_PAGE_BYTES) {
		puts("no huge page is free: this test is of small ones");
		huge = false;
	}
	ck_assert_uint_eq(e.page_bytes, huge ? EXTENT_HUGE_PAGE_BYTES : EXTENT_PAGE_BYTES);
	ck_assert_uint_eq(e.bytes, BYTES);
	return e;
}

/* Waits until the kernel has taken a killed process apart; how soon a daemon sees that is another test's. */
static bool let_go(const struct extent *e, uint32_t attachment)
{
	const time_t until = time(NULL) + 30;

	while (extent_held(e, attachment)) {
		if (time(NULL) > until)
			return false;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	return true;
}

START_TEST(an_extent_is_whole_pages_and_sealed)
{
	struct extent e = opened();
	struct stat st;

	ck_assert_uint_eq(e.id, 7);
	ck_assert_uint_eq(e.bytes, BYTES);
	memset(e.base, 0x5a, e.bytes);
	ck_assert_int_eq(fstat(e.fd, &st), 0);
	ck_assert_int_eq(st.st_size, (off_t)e.bytes);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(ftruncate(e.fd, 0), -1);
	ck_assert_int_eq(ftruncate(e.fd, 2 * BYTES), -1);
	ck_assert_int_eq(fcntl(e.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	ck_assert_int_eq(fcntl(e.fd, F_GETFD), FD_CLOEXEC);
	extent_close(&e);
	ck_assert_ptr_null(e.base);
	extent_close(&e);

	ck_assert_int_eq(extent_open(&e, 8, 1, huge), STATUS_OK);
	ck_assert_uint_eq(e.bytes, e.page_bytes);
	extent_close(&e);
}
END_TEST

START_TEST(pages_are_taken_at_once)
{
	struct extent e = opened();
	struct stat st;

	ck_assert_int_eq(fstat(e.fd, &st), 0);
	ck_assert_uint_ge((uint64_t)st.st_blocks * 512, e.bytes);
	extent_close(&e);
}
END_TEST

/* Of pages that are not taken at once only those that were asked for are there; the others come in steps. */
START_TEST(pages_can_be_taken_in_steps)
{
	const uint64_t step = huge ? EXTENT_HUGE_PAGE_BYTES : 1 << 20, bytes = 4 * step;
	struct extent e;
	struct stat st;

	ck_assert_int_eq(extent_open_part(&e, 7, bytes, step / 2, huge), STATUS_OK);
	ck_assert_uint_eq(e.bytes, bytes);
	ck_assert_int_eq(fstat(e.fd, &st), 0);
	ck_assert_int_eq(st.st_blocks * 512, (off_t)(e.page_bytes == EXTENT_PAGE_BYTES ? step / 2 : step));
	ck_assert_int_eq(extent_populate(&e, 0, step), STATUS_OK);
	memset(e.base, 0x5a, step);
	ck_assert_int_eq(extent_populate(&e, 0, 2 * step), STATUS_OK);
	ck_assert_int_eq(e.base[step - 1], 0x5a);
	ck_assert_int_eq(extent_populate(&e, 3 * step, 0), STATUS_OK);
	ck_assert_int_eq(fstat(e.fd, &st), 0);
	ck_assert_int_eq(st.st_blocks * 512, (off_t)(2 * step));
	ck_assert_int_eq(extent_populate(&e, 2 * step, 2 * step), STATUS_OK);
	ck_assert_int_eq(fstat(e.fd, &st), 0);
	ck_assert_int_eq(st.st_blocks * 512, (off_t)bytes);
	ck_assert_int_eq(extent_populate(&e, step + 1, step), STATUS_INVALID);
	ck_assert_int_eq(extent_populate(&e, step, step - 1), STATUS_INVALID);
	ck_assert_int_eq(extent_populate(&e, step, bytes), STATUS_INVALID);
	ck_assert_int_eq(extent_populate(&e, 2 * bytes, step), STATUS_INVALID);
	extent_close(&e);
}
END_TEST

START_TEST(sizes_out_of_bounds_are_refused)
{
	struct extent zero = { 0 }, e;

	extent_close(&zero);
	ck_assert_int_eq(extent_open(&e, 1, 0, huge), STATUS_INVALID);
	extent_close(&e);
	ck_assert_int_eq(extent_open(&e, 1, (uint64_t)EXTENT_BYTES_MAX + 1, huge), STATUS_INVALID);
	ck_assert_int_eq(e.error, EINVAL);
	extent_close(&e);
}
END_TEST

START_TEST(a_lent_descriptor_has_the_asked_rights)
{
	struct extent e = opened();
	int reader, writer;
	uint8_t *r, *w;

	ck_assert_int_eq(extent_lend(&e, 3, false, &reader), STATUS_OK);
	ck_assert_int_eq(extent_lend(&e, 3, true, &writer), STATUS_OK);
	ck_assert_int_eq(fcntl(reader, F_GETFD), FD_CLOEXEC);
	ck_assert_ptr_eq(mmap(NULL, BYTES, PROT_WRITE, MAP_SHARED, reader, 0), MAP_FAILED);
	ck_assert_int_eq(ftruncate(writer, 0), -1);
	r = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, reader, 0);
	w = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, writer, 0);
	ck_assert_ptr_ne(r, MAP_FAILED);
	ck_assert_ptr_ne(w, MAP_FAILED);
	w[BYTES - 1] = 0x77;
	ck_assert_uint_eq(r[BYTES - 1], 0x77);
	ck_assert_uint_eq(e.base[BYTES - 1], 0x77);
	munmap(r, BYTES);
	munmap(w, BYTES);
	close(reader);
	close(writer);
	extent_close(&e);
}
END_TEST

/* Whether any description but the daemon's own holds a lock. */
static bool held_by_any(const struct extent *e)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	ck_assert_int_eq(fcntl(e->fd, F_OFD_GETLK, &lock), 0);
	return lock.l_type != F_UNLCK;
}

START_TEST(attachment_numbers_have_bounds)
{
	struct extent e = opened();
	int fd = -5;

	ck_assert_int_eq(extent_lend(&e, 0, false, &fd), STATUS_INVALID);
	ck_assert_int_eq(extent_lend(&e, EXTENT_ATTACHMENT_MAX + 1, false, &fd), STATUS_INVALID);
	ck_assert_int_eq(fd, -5);
	ck_assert_int_eq(extent_lend(&e, EXTENT_ATTACHMENT_MAX, false, &fd), STATUS_OK);
	ck_assert(extent_held(&e, EXTENT_ATTACHMENT_MAX));
	ck_assert(!extent_held(&e, EXTENT_ATTACHMENT_MAX - 1));
	ck_assert(held_by_any(&e));
	close(fd);
	ck_assert(!held_by_any(&e));
	extent_close(&e);
}
END_TEST

START_TEST(every_descriptor_of_an_attachment_holds_it)
{
	struct extent e = opened();
	int first, second, other, copy;

	ck_assert(!extent_held(&e, 1));
	ck_assert_int_eq(extent_lend(&e, 1, false, &first), STATUS_OK);
	ck_assert_int_eq(extent_lend(&e, 1, true, &second), STATUS_OK);
	ck_assert_int_eq(extent_lend(&e, 2, false, &other), STATUS_OK);
	copy = dup(first);
	close(first);
	ck_assert(extent_held(&e, 1));
	close(second);
	ck_assert(extent_held(&e, 1));
	close(copy);
	ck_assert(!extent_held(&e, 1));
	ck_assert(extent_held(&e, 2));
	ck_assert(held_by_any(&e));
	close(other);
	ck_assert(!extent_held(&e, 2));
	ck_assert(!held_by_any(&e));
	extent_close(&e);
}
END_TEST

START_TEST(the_kernel_tells_who_can_write)
{
	struct extent e = opened();
	int reader, writer, other;
	uint8_t *w;

	ck_assert_int_eq(extent_lend(&e, 1, false, &reader), STATUS_OK);
	ck_assert(!extent_written(&e, 1));
	ck_assert_int_eq(extent_lend(&e, 1, true, &writer), STATUS_OK);
	ck_assert_int_eq(extent_lend(&e, 2, false, &other), STATUS_OK);
	ck_assert(extent_written(&e, 1));
	ck_assert(!extent_written(&e, 2));
	/* Whatever its mapping's pages allow: it can change that. */
	w = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, writer, 0);
	ck_assert_ptr_ne(w, MAP_FAILED);
	close(writer);
	ck_assert(extent_written(&e, 1));
	munmap(w, BYTES);
	ck_assert(!extent_written(&e, 1));
	ck_assert(extent_held(&e, 1));
	close(reader);
	close(other);
	ck_assert(!held_by_any(&e));
	ck_assert_int_eq(extent_lend(&e, EXTENT_ATTACHMENT_MAX, true, &writer), STATUS_OK);
	ck_assert(extent_written(&e, EXTENT_ATTACHMENT_MAX));
	close(writer);
	extent_close(&e);
}
END_TEST

START_TEST(a_mapping_holds_without_a_descriptor)
{
	struct extent e = opened();
	void *at;
	int fd;

	ck_assert_int_eq(extent_lend(&e, 9, false, &fd), STATUS_OK);
	at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(at, MAP_FAILED);
	close(fd);
	ck_assert(extent_held(&e, 9));
	/* Half of it is enough (a huge page has no half: the call is refused). */
	ck_assert_int_eq(munmap(at, BYTES / 2), huge ? -1 : 0);
	ck_assert(extent_held(&e, 9));
	munmap(at, BYTES);
	ck_assert(!extent_held(&e, 9));
	extent_close(&e);
}
END_TEST

/* An engine process: maps the lent descriptor, closes it, forks a child that inherits the mapping;
 * both then wait to be killed. Tells the pids through the pipe. */
static void engine(int fd, int tell, bool dont_fork)
{
	void *at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
	pid_t pids[2] = { getpid() };

	if (at == MAP_FAILED || (dont_fork && madvise(at, BYTES, MADV_DONTFORK) != 0))
		_exit(1);
	close(fd);
	pids[1] = fork();
	if (pids[1] != 0 && write(tell, pids, sizeof(pids)) != sizeof(pids))
		_exit(1);
	alarm(300); /* whatever becomes of the test */
	for (;;)
		pause();
}

/* Starts an engine with a child; reader: what the daemon lent. */
static void start_engine(struct extent *e, uint32_t attachment, bool dont_fork, pid_t pids[2])
{
	int fd, ends[2];

	ck_assert_int_eq(extent_lend(e, attachment, false, &fd), STATUS_OK);
	ck_assert_int_eq(pipe(ends), 0);
	if (fork() == 0)
		engine(fd, ends[1], dont_fork);
	close(fd);
	ck_assert_int_eq(read(ends[0], pids, 2 * sizeof(pids[0])), 2 * sizeof(pids[0]));
	close(ends[0]);
	close(ends[1]);
}

START_TEST(a_killed_engine_lets_go_only_with_its_last_child)
{
	struct extent e = opened();
	pid_t pids[2];

	start_engine(&e, 4, false, pids);
	ck_assert(extent_held(&e, 4));
	kill(pids[0], SIGKILL);
	ck_assert_int_eq(waitpid(pids[0], NULL, 0), pids[0]);
	nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
	ck_assert_msg(extent_held(&e, 4), "the child still has the mapping");
	ck_assert(!extent_held(&e, 5));
	kill(pids[1], SIGKILL);
	ck_assert(let_go(&e, 4));
	ck_assert(!held_by_any(&e));
	extent_close(&e);
}
END_TEST

START_TEST(a_child_without_the_mapping_does_not_hold)
{
	struct extent e = opened();
	pid_t pids[2];

	start_engine(&e, 4, true, pids);
	ck_assert(extent_held(&e, 4));
	kill(pids[0], SIGKILL);
	ck_assert_int_eq(waitpid(pids[0], NULL, 0), pids[0]);
	ck_assert(let_go(&e, 4));
	kill(pids[1], SIGKILL);
	extent_close(&e);
}
END_TEST

START_TEST(many_engines_die_and_each_is_told_apart)
{
	enum { ENGINES = 12 };
	struct extent e = opened();
	pid_t pids[ENGINES][2];

	for (uint32_t i = 0; i < ENGINES; i++)
		start_engine(&e, i + 1, false, pids[i]);
	for (uint32_t i = 0; i < ENGINES; i++) {
		uint32_t dead = (i * 5) % ENGINES; /* another order than that of birth */

		kill(pids[dead][0], SIGKILL);
		kill(pids[dead][1], SIGKILL);
		ck_assert(let_go(&e, dead + 1));
		ck_assert_int_eq(held_by_any(&e), i + 1 < ENGINES);
		for (uint32_t j = i + 1; j < ENGINES; j++)
			ck_assert(extent_held(&e, (j * 5) % ENGINES + 1));
	}
	extent_close(&e);
}
END_TEST

START_TEST(an_engine_that_locks_our_byte_gets_busy)
{
	struct extent e = opened();
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 6, .l_len = 1 };
	int hostile, fd;

	ck_assert_int_eq(extent_lend(&e, 5, true, &hostile), STATUS_OK);
	ck_assert_int_eq(fcntl(hostile, F_OFD_SETLK, &lock), 0);
	ck_assert_int_eq(extent_lend(&e, 6, false, &fd), STATUS_BUSY);
	close(hostile);
	ck_assert_int_eq(extent_lend(&e, 6, false, &fd), STATUS_OK);
	close(fd);
	extent_close(&e);
}
END_TEST

START_TEST(no_more_descriptors_is_exhausted)
{
	struct extent e = opened(), more;
	struct rlimit limit, before;
	int fd = -5;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	limit.rlim_cur = 3;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_int_eq(extent_lend(&e, 1, false, &fd), STATUS_EXHAUSTED);
	ck_assert_int_eq(e.error, EMFILE);
	ck_assert_int_eq(fd, -5);
	ck_assert_int_eq(extent_open(&more, 2, BYTES, huge), STATUS_EXHAUSTED);
	ck_assert_int_eq(more.error, EMFILE);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
	extent_close(&more);
	extent_close(&e);
}
END_TEST

#ifndef TERRACE_SANITIZED /* sanitizers live on address space */
START_TEST(no_more_address_space_is_exhausted)
{
	struct extent e;
	struct rlimit limit;

	ck_assert_int_eq(getrlimit(RLIMIT_AS, &limit), 0);
	limit.rlim_cur = 64 << 20;
	ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
	ck_assert_int_eq(extent_open(&e, 2, 256 << 20, huge), STATUS_EXHAUSTED);
	ck_assert_int_eq(e.error, ENOMEM);
	extent_close(&e);
}
END_TEST
#endif

static long huge_pages_get(void)
{
	FILE *f = fopen(NR_HUGEPAGES, "re");
	long n = -1;

	if (!f)
		return -1;
	if (fscanf(f, "%ld", &n) != 1)
		n = -1;
	fclose(f);
	return n;
}

static void huge_pages_set(long n)
{
	FILE *f = fopen(NR_HUGEPAGES, "we");

	if (!f)
		return;
	fprintf(f, "%ld\n", n);
	fclose(f);
}

static bool huge_pages_work(void)
{
	struct extent e;
	bool work;

	if (extent_open(&e, 1, BYTES, true) != STATUS_OK)
		return false;
	work = e.page_bytes == EXTENT_HUGE_PAGE_BYTES;
	extent_close(&e);
	return work;
}

static int run(void)
{
	Suite *suite = suite_create(huge ? "store_extent_huge" : "store_extent");
	TCase *tc = tcase_create("extent");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_test(tc, an_extent_is_whole_pages_and_sealed);
	tcase_add_test(tc, pages_are_taken_at_once);
	tcase_add_test(tc, pages_can_be_taken_in_steps);
	tcase_add_test(tc, sizes_out_of_bounds_are_refused);
	tcase_add_test(tc, a_lent_descriptor_has_the_asked_rights);
	tcase_add_test(tc, attachment_numbers_have_bounds);
	tcase_add_test(tc, every_descriptor_of_an_attachment_holds_it);
	tcase_add_test(tc, the_kernel_tells_who_can_write);
	tcase_add_test(tc, a_mapping_holds_without_a_descriptor);
	tcase_add_test(tc, a_killed_engine_lets_go_only_with_its_last_child);
	tcase_add_test(tc, a_child_without_the_mapping_does_not_hold);
	tcase_add_test(tc, many_engines_die_and_each_is_told_apart);
	tcase_add_test(tc, an_engine_that_locks_our_byte_gets_busy);
	tcase_add_test(tc, no_more_descriptors_is_exhausted);
#ifndef TERRACE_SANITIZED
	tcase_add_test(tc, no_more_address_space_is_exhausted);
#endif
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	long before = huge_pages_get();
	int code;

	huge = argc > 1 && strcmp(argv[1], "huge") == 0;
	if (!huge)
		return run();
	if (before >= 0)
		huge_pages_set(before + 4);
	if (huge_pages_work()) {
		code = run();
	} else {
		puts("skipped: no huge pages to be had");
		code = 77;
	}
	if (before >= 0)
		huge_pages_set(before);
	return code;
}
