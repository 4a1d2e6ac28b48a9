/* The simulated device itself (sim/device.h): what the environment makes of it, and that it stops whoever uses it wrongly. What every
 * device promises is in gpu/device.c. */
#include "tests/sim/device.h"
#include "tests/sim/stream.h"

#include <check.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = SIM_GRANULARITY, HOST_BYTES = BYTES + 4096, WAIT_S = 30 };

static const struct device_ops *ops;
static struct device *device;
static uint64_t range, host_address;
static struct device_extent extent;
static uint8_t *host;
static int extent_fd;

struct list {
	struct device_pair pair;
	struct device_copy copy;
	sem_t ended;
	enum status status;
};

static enum status opened(uint32_t ordinal, struct device **out)
{
	const char *why;

	return ops->open(ordinal, out, &why);
}

/* A device with an extent, and host memory whose last page is for words. */
static void rig(void)
{
	const char *why;

	ck_assert_int_eq(opened(0, &device), STATUS_OK);
	ck_assert_int_eq(ops->range_reserve(device, 2 * BYTES, &range, &why), STATUS_OK);
	ck_assert_int_eq(ops->extent_make(device, range, BYTES, &extent, &extent_fd, &why), STATUS_OK);
	host = mmap(NULL, HOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(host, MAP_FAILED);
	ck_assert_int_eq(ops->host_register(device, host, HOST_BYTES, true, &host_address, &why), STATUS_OK);
}

static _Atomic uint32_t *word(void)
{
	return (_Atomic uint32_t *)(host + BYTES);
}

static void end_list(struct device_copy *c, enum status s)
{
	struct list *l = c->arg;

	l->status = s;
	sem_post(&l->ended);
}

static enum status begin_list(struct list *l, uint32_t parts, uint64_t part_bytes)
{
	const char *why;

	l->pair = (struct device_pair){ host_address, range };
	l->copy = (struct device_copy){ .pairs = &l->pair, .count = 1, .parts = parts, .part_bytes = part_bytes, .way = DEVICE_UP,
					.progress = host_address + BYTES, .done = end_list, .arg = l };
	sem_init(&l->ended, 0, 0);
	return ops->copy(device, &l->copy, &why);
}

static enum status await_list(struct list *l)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_S;
	ck_assert_int_eq(sem_timedwait(&l->ended, &until), 0);
	return l->status;
}

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

static void await_word(uint32_t value)
{
	for (int ms = 0; ms < WAIT_S * 1000 && atomic_load(word()) != value; ms++)
		sleep_ms(1);
	ck_assert_uint_eq(atomic_load(word()), value);
}

static char folder[] = "/tmp/sim-faults-XXXXXX", file[64];

/* Names NAME=PREFIX in the environment; file: the one of device 0. */
static void file_begin(const char *name)
{
	char prefix[64];

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(prefix, sizeof(prefix), "%s/f", folder);
	snprintf(file, sizeof(file), "%s/f.0", folder);
	setenv(name, prefix, 1);
}

static void file_write(const char *text)
{
	char other[80];
	FILE *f;

	snprintf(other, sizeof(other), "%s.new", file);
	f = fopen(other, "we");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
	ck_assert_int_eq(rename(other, file), 0);
}

static void file_end(void)
{
	unlink(file);
	ck_assert_int_eq(rmdir(folder), 0);
}

START_TEST(devices_are_as_many_and_as_large_as_asked)
{
	struct device_info i, j;
	struct device *d, *e;
	const char *why;

	ck_assert_uint_eq(ops->count(), 1);
	setenv("SIM_GPU_DEVICES", "3", 1);
	setenv("SIM_GPU_BYTES", "67108864", 1);
	setenv("SIM_GPU_FREE", "8388608", 1);
	ck_assert_uint_eq(ops->count(), 3);
	ck_assert_int_eq(opened(1, &d), STATUS_OK);
	ck_assert_int_eq(opened(2, &e), STATUS_OK);
	ck_assert_int_eq(ops->info(d, &i, &why), STATUS_OK);
	ck_assert_int_eq(ops->info(e, &j, &why), STATUS_OK);
	ck_assert_uint_eq(i.bytes, 64 << 20);
	ck_assert_uint_eq(i.free_bytes, 8 << 20);
	ck_assert_int_ne(memcmp(i.uuid, j.uuid, sizeof(i.uuid)), 0);
	ck_assert_str_eq((char *)i.uuid, "simulated-1");
	ck_assert_int_eq(ops->range_reserve(d, 64 << 20, &range, &why), STATUS_OK);
	for (int n = 0; n < 5; n++)
		ck_assert_int_eq(ops->extent_make(d, range + n * BYTES, BYTES, &extent, &extent_fd, &why),
				 n < 4 ? STATUS_OK : STATUS_EXHAUSTED);
	ops->extent_drop(d, &extent);
	ck_assert_int_eq(ops->extent_make(d, range + 4 * BYTES, BYTES, &extent, &extent_fd, &why), STATUS_OK);
	ck_assert_int_eq(ops->info(d, &i, &why), STATUS_OK);
	ck_assert_uint_eq(i.free_bytes, 0);
	ops->close(d);
	ops->close(e);
	setenv("SIM_GPU_DEVICES", "0", 1);
	ck_assert_uint_eq(ops->count(), 0);
	ck_assert_int_eq(opened(0, &d), STATUS_INVALID);
}
END_TEST

START_TEST(memory_of_one_device_is_not_anothers)
{
	struct device_extent e;
	struct device *other;
	struct list l;
	const char *why;
	uint64_t there;
	int fd;

	setenv("SIM_GPU_DEVICES", "2", 1);
	rig();
	ck_assert_int_eq(opened(1, &other), STATUS_OK);
	ck_assert_int_eq(ops->range_reserve(other, 2 * BYTES, &there, &why), STATUS_OK);
	ck_assert_int_eq(ops->extent_import(other, extent_fd, there, BYTES, false, &e, &why), STATUS_INVALID);
	ck_assert_int_eq(ops->extent_make(other, there, BYTES, &e, &fd, &why), STATUS_OK);
	memset(host, 0x77, BYTES);
	ck_assert_int_eq(begin_list(&l, 1, BYTES), STATUS_OK);
	ck_assert_int_eq(await_list(&l), STATUS_OK);
	l.pair = (struct device_pair){ range, there };
	l.copy.way = DEVICE_ACROSS;
	ck_assert_int_eq(ops->copy(device, &l.copy, &why), STATUS_OK);
	ck_assert_int_eq(await_list(&l), STATUS_OK);
	ck_assert_int_eq(memcmp(sim_at(there), host, BYTES), 0);
	ops->close(device);
	ops->close(other);
}
END_TEST

START_TEST(sharing_and_pinning_can_be_refused)
{
	struct device_extent e;
	const char *why;
	uint64_t address;
	int fd;

	setenv("SIM_GPU_NO_EXPORT", "1", 1);
	setenv("SIM_GPU_NO_REGISTER", "1", 1);
	ck_assert_int_eq(opened(0, &device), STATUS_OK);
	ck_assert_int_eq(ops->range_reserve(device, BYTES, &range, &why), STATUS_OK);
	ck_assert_int_eq(ops->extent_make(device, range, BYTES, &e, &fd, &why), STATUS_UNSUPPORTED);
	host = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_int_eq(ops->host_register(device, host, 4096, true, &address, &why), STATUS_EXHAUSTED);
	ops->close(device);
}
END_TEST

START_TEST(copies_are_as_slow_as_asked)
{
	struct timespec begin, end;
	struct list l;

	setenv("SIM_GPU_US_PER_MIB", "50000", 1);
	rig();
	clock_gettime(CLOCK_MONOTONIC, &begin);
	ck_assert_int_eq(begin_list(&l, 8, BYTES / 8), STATUS_OK);
	ck_assert_int_eq(await_list(&l), STATUS_OK);
	clock_gettime(CLOCK_MONOTONIC, &end);
	ck_assert_int_ge((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000, 95); /* 2 MiB */
	ops->close(device);
}
END_TEST

/* A list stops before the part that the file names; the ways do not wait for each other; close() gives up what it cannot end. */
START_TEST(a_file_holds_lists_back)
{
	const uint8_t *memory; /* another mapping of the device's, to look at while it is written */
	struct list held, down;
	const char *why;

	file_begin("SIM_GPU_HOLD_FILE");
	file_write("3");
	rig();
	memory = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, extent_fd, 0);
	ck_assert_ptr_ne(memory, MAP_FAILED);
	memset(host, 0x11, BYTES);
	ck_assert_int_eq(begin_list(&held, 8, BYTES / 8), STATUS_OK);
	await_word(3);
	sleep_ms(20);
	ck_assert_uint_eq(atomic_load(word()), 3);
	ck_assert_uint_eq(memory[3 * BYTES / 8 - 1], 0x11);
	ck_assert_uint_eq(memory[3 * BYTES / 8], 0);
	down = (struct list){ .pair = { range + 4096, host_address } };
	down.copy = (struct device_copy){ .pairs = &down.pair, .count = 1, .parts = 3, .part_bytes = 16, .way = DEVICE_DOWN,
					  .done = end_list, .arg = &down };
	sem_init(&down.ended, 0, 0);
	ck_assert_int_eq(ops->copy(device, &down.copy, &why), STATUS_OK);
	ck_assert_int_eq(await_list(&down), STATUS_OK);
	file_write("5");
	await_word(5);
	file_end();
	ck_assert_int_eq(await_list(&held), STATUS_OK);
	ck_assert_uint_eq(atomic_load(word()), 8);
	ops->close(device);
}
END_TEST

static void expect_lost(struct device *d)
{
	struct device_info i;
	struct device *again;
	struct list l;
	const char *why;
	uint64_t address;

	ck_assert(ops->lost(d));
	ck_assert_int_eq(ops->info(d, &i, &why), STATUS_UNAVAILABLE);
	ck_assert_int_eq(ops->range_reserve(d, BYTES, &address, &why), STATUS_UNAVAILABLE);
	ck_assert_int_eq(begin_list(&l, 1, 16), STATUS_UNAVAILABLE);
	ck_assert_int_eq(opened(0, &again), STATUS_UNAVAILABLE);
}

static void never(void *arg)
{
	(void)arg;
	ck_abort_msg("called on a lost device");
}

/* It ends copies under way and queued, and what streams wait for. */
START_TEST(a_file_loses_the_device)
{
	struct sim_stream *stream = sim_stream_create();
	struct list l[2];
	const char *why;

	file_begin("SIM_GPU_LOST_FILE");
	setenv("SIM_GPU_US_PER_MIB", "1000000", 1);
	rig();
	ck_assert(!ops->lost(device));
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(begin_list(&l[i], 1024, BYTES / 1024), STATUS_OK);
	ck_assert_int_eq(ops->stream_wait(device, stream, host_address + BYTES, 2000, &why), STATUS_OK);
	ck_assert_int_eq(ops->stream_then(device, stream, never, NULL, &why), STATUS_OK);
	for (int ms = 0; ms < WAIT_S * 1000 && atomic_load(word()) == 0; ms++)
		sleep_ms(1);
	file_write("");
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(await_list(&l[i]), STATUS_UNAVAILABLE);
	ck_assert_uint_lt(atomic_load(word()), 1024);
	expect_lost(device);
	ck_assert_int_eq(sim_stream_synchronize(stream), STATUS_UNAVAILABLE);
	sim_stream_destroy(stream);
	ops->close(device);
	file_end();
}
END_TEST

START_TEST(a_device_is_lost_after_so_many_lists)
{
	struct list l[4];

	file_begin("SIM_GPU_LOST_FILE");
	setenv("SIM_GPU_LOST_AFTER", "2", 1);
	rig();
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(begin_list(&l[i], 4, 4096), STATUS_OK);
		ck_assert_int_eq(await_list(&l[i]), STATUS_OK);
	}
	atomic_store(word(), 0);
	ck_assert_int_eq(begin_list(&l[2], 4, 4096), STATUS_OK);
	ck_assert_int_eq(await_list(&l[2]), STATUS_UNAVAILABLE);
	ck_assert_uint_eq(atomic_load(word()), 2);
	expect_lost(device);
	ck_assert_int_eq(access(file, F_OK), 0);
	ops->close(device);
	file_end();
}
END_TEST

#ifndef TERRACE_SANITIZED /* sanitizers answer signals with an exit */
/* Uses that stop the process, each in a test of its own. */
START_TEST(wrong_use_stops)
{
	struct list l;
	const char *why;

	rig();
	ck_assert_int_eq(begin_list(&l, 1, 16), STATUS_OK);
	ck_assert_int_eq(await_list(&l), STATUS_OK);
	switch (_i) {
	case 0: /* followed by the CPU */
		*(volatile uint8_t *)(uintptr_t)range = 1;
		break;
	case 1: /* nothing there */
		l.pair.to = range + BYTES;
		break;
	case 2: /* beyond the end */
		l.pair.to = range + BYTES - 16;
		l.copy.parts = 2;
		break;
	case 3: /* the wrong way */
		l.copy.way = DEVICE_DOWN;
		break;
	case 4: /* no device address */
		l.pair.from = (uint64_t)(uintptr_t)host;
		break;
	case 5: { /* to one place twice */
		struct device_pair two[2] = { { host_address, range }, { host_address + 64, range + 16 } };

		l.copy.pairs = two;
		l.copy.count = 2;
		l.copy.part_bytes = 32;
		ops->copy(device, &l.copy, &why);
		break;
	}
	case 6: /* not registered any more */
		ops->host_unregister(device, host);
		break;
	case 7: /* dropped twice */
		ops->extent_drop(device, &extent);
		ops->extent_drop(device, &extent);
		break;
	}
	ops->copy(device, &l.copy, &why);
	ck_abort_msg("case %d went through", _i);
}
END_TEST
#endif

int main(void)
{
	Suite *suite = suite_create("sim_faults");
	TCase *tc = tcase_create("faults"), *wrong = tcase_create("wrong");
	SRunner *runner;
	int failed;

	ops = terrace_device_ops();
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, devices_are_as_many_and_as_large_as_asked);
	tcase_add_test(tc, memory_of_one_device_is_not_anothers);
	tcase_add_test(tc, sharing_and_pinning_can_be_refused);
	tcase_add_test(tc, copies_are_as_slow_as_asked);
	tcase_add_test(tc, a_file_holds_lists_back);
	tcase_add_test(tc, a_file_loses_the_device);
	tcase_add_test(tc, a_device_is_lost_after_so_many_lists);
#ifndef TERRACE_SANITIZED
	tcase_add_loop_test_raise_signal(wrong, wrong_use_stops, SIGSEGV, 0, 1);
	tcase_add_loop_test_raise_signal(wrong, wrong_use_stops, SIGABRT, 1, 8);
#endif
	suite_add_tcase(suite, tc);
	suite_add_tcase(suite, wrong);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
