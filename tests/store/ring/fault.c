/* The ring when something is refused or fails: faults, short transfers, the end of a file, tables,
 * io_uring itself. */
#include "tests/store/ring/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* error, how often; what comes of it. */
static const struct {
	int error, times;
	enum status status;
} fault_rows[] = {
	{EIO, 1, STATUS_IO},
	{EINVAL, 1, STATUS_IO},
	{ENOSPC, 1, STATUS_EXHAUSTED},
	{EDQUOT, 1, STATUS_EXHAUSTED},
	{EFBIG, 1, STATUS_EXHAUSTED},
	{EINTR, 5, STATUS_OK},
	{EAGAIN, 5, STATUS_OK},
	{EINTR, 1 << 30, STATUS_IO},
};
enum { FAULT_ROWS = sizeof(fault_rows) / sizeof(fault_rows[0]) };

START_TEST(a_fault_is_handed_up)
{
	static const enum ring_op ops[] = {RING_WRITE, RING_READ, RING_SYNC};
	struct ring_calls calls;
	struct rig g;

	for (int row = 0; row < FAULT_ROWS; row++) {
		struct faults f = {.open = 1, .error = fault_rows[row].error};
		int bad = 0;

		faults_rig(&g, _i, 4, &f, &calls);
		for (int op = 0; op < 3; op++) {
			struct job j;

			f.left = fault_rows[row].times;
			job_make(&j, &g, ops[op], 0, 1);
			job_run(&j, fault_rows[row].status);
			ck_assert_int_eq(j.ring.error, j.ring.status ? fault_rows[row].error : 0);
			bad += j.ring.status != STATUS_OK;
			f.left = 0;
			job_make(&j, &g, ops[op], 0, 1);
			job_run(&j, STATUS_OK);
		}
		ck_assert_uint_eq(view_of(g.ring).failures, (uint64_t)bad);
		rig_close(&g);
	}
}
END_TEST

/* Whoever does not wait for a request that hangs leaves the ring to itself; should the kernel answer, it is told once, and ends. */
START_TEST(a_hung_ring_is_left_behind)
{
	static struct faults f;
	static struct ring_calls calls;
	static struct rig g; /* what was left can be reached */
	static struct job j;

	faults_rig(&g, _i, 4, &f, &calls);
	job_make(&j, &g, RING_WRITE, 0, 1);
	job_start(&j);
	until_entered(&f, 1);
	ck_assert(!ring_destroy_by(g.ring, 50000));
	ck_assert_int_eq(j.done, 0);
	f.open = 1;
	job_wait(&j);
	ck_assert_int_eq(j.ring.status, STATUS_OK);
	sleep_ms(50);
	ck_assert_int_eq(j.done, 1);
}
END_TEST

START_TEST(short_transfers_go_on)
{
	struct faults f = {.open = 1};
	struct ring_calls calls;
	struct rig g;
	struct job j;

	faults_rig(&g, _i, 4, &f, &calls);
	for (int i = 0; i < 16 * PAGE; i++)
		g.memory[i] = (uint8_t)(i / PAGE * 7 + i % 251);
	for (uint32_t pages = 0; pages <= 17; pages++) {
		f.most = pages * PAGE;
		job_make(&j, &g, RING_WRITE, 0, 16);
		job_run(&j, STATUS_OK);
		job_make(&j, &g, RING_READ, 0, 16);
		j.ring.at = g.memory + 100 * PAGE;
		memset(j.ring.at, 0xee, 16 * PAGE);
		job_run(&j, STATUS_OK);
		ck_assert_int_eq(memcmp(g.memory, j.ring.at, 16 * PAGE), 0);
	}
	ck_assert_uint_eq(f.asked, 36);
	ck_assert_uint_eq(view_of(g.ring).submits, 36 + 2 * 15);
	ck_assert_uint_eq(view_of(g.ring).read_bytes, 18 * 16 * PAGE);
	rig_close(&g);
}
END_TEST

/* The calls of the threads engine: each transfer one page at most, every third one interrupted. */
static _Atomic uint32_t calls_made;

static ssize_t pread_poor(int fd, void *at, size_t bytes, off_t offset)
{
	if (atomic_fetch_add(&calls_made, 1) % 3 == 0) {
		errno = EINTR;
		return -1;
	}
	return pread(fd, at, bytes < PAGE ? bytes : PAGE, offset);
}

static ssize_t pwrite_poor(int fd, const void *at, size_t bytes, off_t offset)
{
	if (atomic_fetch_add(&calls_made, 1) % 3 == 0) {
		errno = EAGAIN;
		return -1;
	}
	return pwrite(fd, at, bytes < PAGE ? bytes : PAGE, offset);
}

static ssize_t pwrite_nothing(int fd, const void *at, size_t bytes, off_t offset)
{
	(void)fd, (void)at, (void)bytes, (void)offset;
	return 0;
}

static int fdatasync_broken(int fd)
{
	(void)fd;
	errno = EIO;
	return -1;
}

START_TEST(the_calls_of_the_threads_engine_can_be_replaced)
{
	struct ring_calls calls = {.pread = pread_poor, .pwrite = pwrite_poor, .fdatasync = fdatasync_broken};
	struct ring_options o = options_of(1, 4);
	struct rig g;
	struct job j;

	o.calls = &calls;
	rig_open(&g, &o);
	memset(g.memory, 0x5a, 8 * PAGE);
	job_make(&j, &g, RING_WRITE, 0, 8);
	job_run(&j, STATUS_OK);
	job_make(&j, &g, RING_READ, 0, 8);
	j.ring.at = g.memory + 8 * PAGE;
	job_run(&j, STATUS_OK);
	ck_assert_int_eq(memcmp(g.memory, g.memory + 8 * PAGE, 8 * PAGE), 0);
	job_make(&j, &g, RING_SYNC, 0, 0);
	job_run(&j, STATUS_IO);
	ck_assert_int_eq(j.ring.error, EIO);
	rig_close(&g);
	calls.pwrite = pwrite_nothing;
	rig_open(&g, &o);
	job_make(&j, &g, RING_WRITE, 0, 1);
	job_run(&j, STATUS_IO);
	ck_assert_int_eq(j.ring.error, EIO);
	rig_close(&g);
}
END_TEST

START_TEST(a_read_past_the_end_has_no_data)
{
	struct ring_options o = options_of(_i, 4);
	struct rig g;
	struct job j;

	rig_open(&g, &o);
	job_make(&j, &g, RING_WRITE, 0, 4);
	job_run(&j, STATUS_OK);
	job_make(&j, &g, RING_READ, 4, 1);
	job_run(&j, STATUS_IO);
	ck_assert_int_eq(j.ring.error, ENODATA);
	job_make(&j, &g, RING_READ, 2, 4);
	job_run(&j, STATUS_IO);
	ck_assert_int_eq(j.ring.error, ENODATA);
	ck_assert_uint_eq(view_of(g.ring).failures, 2);
	rig_close(&g);
}
END_TEST

/* An error of the kernel's, in both engines. */
START_TEST(the_kernel_s_error_is_handed_up)
{
	struct ring_options o = options_of(_i, 4);
	struct rig g;
	struct job j;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	uint32_t file;

	rig_open(&g, &o);
	ck_assert_int_eq(ring_file_add(g.ring, fd, &file), STATUS_OK);
	job_make(&j, &g, RING_WRITE, 0, 1);
	j.ring.file = file;
	job_run(&j, STATUS_IO);
	ck_assert_int_eq(j.ring.error, EBADF);
	ring_file_remove(g.ring, file);
	job_make(&j, &g, RING_WRITE, 0, 1);
	j.ring.file = file;
	ck_assert_int_eq(ring_submit(g.ring, &j.ring), STATUS_INVALID);
	rig_close(&g);
	close(fd);
}
END_TEST

START_TEST(a_slow_disk_shows_its_age)
{
	struct faults f = {.open = 0};
	struct ring_calls calls;
	struct rig g;
	struct job j;

	faults_rig(&g, _i, 4, &f, &calls);
	job_make(&j, &g, RING_WRITE, 0, 1);
	job_start(&j);
	until_entered(&f, 1);
	sleep_ms(30);
	ck_assert_uint_ge(view_of(g.ring).oldest_us, 30000);
	ck_assert_uint_eq(view_of(g.ring).under_way, 1);
	ck_assert_int_eq(atomic_load(&j.done), 0);
	atomic_store(&f.open, 1);
	job_wait(&j);
	ck_assert_uint_eq(view_of(g.ring).oldest_us, 0);
	rig_close(&g);
}
END_TEST

/* The kernel pins no memory that cannot be touched, and has no file behind a closed descriptor. */
START_TEST(what_the_kernel_does_not_register_is_counted)
{
	struct ring_options o = options_of(_i, 4);
	bool uring = engines[_i] == RING_URING;
	void *none = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint32_t buffer = 0, file;
	struct rig g;
	struct job j;

	rig_open(&g, &o);
	ck_assert_int_eq(view_of(g.ring).registered_files, uring);
	ck_assert_int_eq(ring_buffer_add(g.ring, none, PAGE, &buffer), STATUS_OK);
	ck_assert_uint_eq(buffer, RING_NONE);
	ck_assert_uint_eq(view_of(g.ring).buffers_refused, uring ? 1 : 0);
	ck_assert_uint_eq(view_of(g.ring).buffers, uring ? 1 : 0);
	job_make(&j, &g, RING_WRITE, 0, 1);
	j.ring.buffer = RING_NONE;
	j.ring.at = none;
	job_run(&j, STATUS_IO);
	ck_assert_int_eq(j.ring.error, EFAULT);
	ck_assert_int_eq(ring_file_add(g.ring, 1000, &file), STATUS_OK);
	ck_assert(!view_of(g.ring).registered_files);
	job_make(&j, &g, RING_WRITE, 0, 1);
	j.ring.file = file;
	job_run(&j, STATUS_IO);
	ck_assert_int_eq(j.ring.error, EBADF);
	ring_file_remove(g.ring, file);
	rig_close(&g);
	munmap(none, PAGE);
}
END_TEST

/* ---- io_uring refused ---- */

static const struct {
	long call;
	int error;
	const char *what;
} refusals[] = {
	{SYS_io_uring_setup, EPERM, "io_uring_setup"},
	{SYS_io_uring_setup, ENOSYS, "io_uring_setup"},
	{SYS_io_uring_enter, EPERM, "io_uring_enter"},
	{SYS_io_uring_register, EPERM, "io_uring's reads"},
};

static bool forbid(long call, int error)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(rules) / sizeof(rules[0]), rules};

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* In a process of its own, for a filter stays. The exit code is the line of what went wrong. */
static int refused_child(int row)
{
	struct ring_options o = {.engine = RING_URING, .depth = 4, .queue_max = 16};
	struct ring *r = NULL;
	struct rig g;
	struct job j;

	if (!forbid(refusals[row].call, refusals[row].error))
		return 2;
	if (ring_create(&o, &r) != STATUS_UNSUPPORTED || r)
		return 3;
	if (!strstr(ring_refusal(NULL), refusals[row].what))
		return 4;
	o.engine = RING_AUTO;
	rig_open(&g, &o);
	if (view_of(g.ring).engine != RING_THREADS || strcmp(ring_refusal(g.ring), ring_refusal(NULL)))
		return 5;
	if (refusals[row].call != SYS_io_uring_register && !strstr(ring_refusal(g.ring), strerror(refusals[row].error)))
		return 6;
	job_make(&j, &g, RING_WRITE, 0, 1);
	job_run(&j, STATUS_OK);
	rig_close(&g);
	return 0;
}

START_TEST(io_uring_refused_falls_back)
{
	pid_t pid = fork();
	int state;

	if (pid == 0)
		_exit(refused_child(_i));
	ck_assert_int_eq(waitpid(pid, &state, 0), pid);
	ck_assert_int_eq(state, 0);
}
END_TEST

/* Where the process may have no more threads the kernel makes no workers, and cancels what wants one, as each sync does: that is the machine's
 * fault and no disk's. In a process of its own, as above. */
static int no_workers_child(void)
{
	static const enum ring_op ops[] = {RING_WRITE, RING_SYNC, RING_READ};
	const struct rlimit limit = {1, 1};
	struct ring_options o = {.engine = RING_URING, .depth = 4, .queue_max = 16};
	struct rig g;
	struct job j;

	rig_open(&g, &o);
	memset(g.memory, 0x5a, 8 * PAGE);
	if ((!getuid() && setresuid(65534, 65534, 65534)) || setrlimit(RLIMIT_NPROC, &limit))
		return 2;
	for (int i = 0; i < 3; i++) {
		job_make(&j, &g, ops[i], 0, 8);
		if (ops[i] == RING_READ)
			j.ring.at = g.memory + 8 * PAGE;
		job_start(&j);
		job_wait(&j);
		if (j.ring.status)
			return 3 + i;
	}
	if (memcmp(g.memory, g.memory + 8 * PAGE, 8 * PAGE))
		return 6;
	rig_close(&g);
	return 0;
}

START_TEST(no_worker_threads_is_no_fault_of_the_disk)
{
	pid_t pid = fork();
	int state;

	if (pid == 0)
		_exit(no_workers_child());
	ck_assert_int_eq(waitpid(pid, &state, 0), pid);
	ck_assert(WIFEXITED(state));
	ck_assert_int_eq(WEXITSTATUS(state), 0);
}
END_TEST

static void add(TCase *c, int first)
{
	tcase_add_loop_test(c, a_fault_is_handed_up, first, ENGINE_COUNT);
	tcase_add_loop_test(c, a_hung_ring_is_left_behind, first, ENGINE_COUNT);
	tcase_add_loop_test(c, short_transfers_go_on, first, ENGINE_COUNT);
	tcase_add_test(c, the_calls_of_the_threads_engine_can_be_replaced);
	tcase_add_loop_test(c, a_read_past_the_end_has_no_data, first, ENGINE_COUNT);
	tcase_add_loop_test(c, the_kernel_s_error_is_handed_up, first, ENGINE_COUNT);
	tcase_add_loop_test(c, a_slow_disk_shows_its_age, first, ENGINE_COUNT);
	tcase_add_loop_test(c, what_the_kernel_does_not_register_is_counted, first, ENGINE_COUNT);
	if (first == 0)
		tcase_add_loop_test(c, io_uring_refused_falls_back, 0, sizeof(refusals) / sizeof(refusals[0]));
	if (first == 0)
		tcase_add_test(c, no_worker_threads_is_no_fault_of_the_disk);
}

int main(void)
{
	return ring_rig_main("store_ring_fault", add);
}
