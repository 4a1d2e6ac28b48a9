/* An engine whose work on a GPU goes on when it dies (test_writer.py):
 *
 *     slow_writer kernel|child ADDRESS NAME SLOTS MS FD
 *
 * It reserves about so many slots on the GPU, in the layout of the mixed load, and begins to write over all of them, again and again, for so
 * many milliseconds: by a kernel; or, over the simulated device, by a child that has the memory, and its holds, as work of a GPU has them,
 * outlives its parent, and ends when the second word of the memfd FD says so. The first word counts a kernel's passes, a child's slots. Then
 * it says "writing SLOTS PID", the child's number or 0, and waits to be killed. Exit 3: a call failed.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/mixed_work.h"
#include "tests/gpu/driver_kernel.h"
#include "tests/sim/device.h"

enum { CALL_US = 30000000, SLOTS_MAX = 1024, RUN = 16, BYTE = 0xee, PAGE = 4096, GRID = 64, THREADS = 256, BEGIN_MS = 20000, ROOM_MS = 300 };

/* Every thread block writes over every gridDim-th slot until the time is up; thread 0 of the first counts its passes. */
static const char scribble[] =
	".version 7.0\n"
	".target sm_80\n"
	".address_size 64\n"
	".visible .entry scribble(.param .u64 p_slots, .param .u32 p_count, .param .u64 p_bytes, .param .u64 p_ns, .param .u64 p_beat)\n"
	"{\n"
	"	.reg .pred %p<4>;\n"
	"	.reg .b32 %r<8>;\n"
	"	.reg .b64 %d<13>;\n"
	"	ld.param.u64 %d0, [p_slots];\n"
	"	ld.param.u32 %r5, [p_count];\n"
	"	ld.param.u64 %d1, [p_bytes];\n"
	"	ld.param.u64 %d2, [p_ns];\n"
	"	ld.param.u64 %d4, [p_beat];\n"
	"	mov.u64 %d5, %globaltimer;\n"
	"	add.s64 %d5, %d5, %d2;\n"
	"	mov.u32 %r0, %ctaid.x;\n"
	"	mov.u32 %r1, %nctaid.x;\n"
	"	mov.u32 %r2, %tid.x;\n"
	"	mov.u32 %r3, %ntid.x;\n"
	"	mul.wide.u32 %d11, %r3, 16;\n"
	"	mov.u32 %r6, 0xeeeeeeee;\n"
	"	mov.u64 %d6, 0;\n"
	"PASS:\n"
	"	mov.u32 %r4, %r0;\n"
	"SLOT:\n"
	"	setp.ge.u32 %p0, %r4, %r5;\n"
	"	@%p0 bra DONE;\n"
	"	mul.wide.u32 %d7, %r4, 8;\n"
	"	add.s64 %d7, %d7, %d0;\n"
	"	ld.global.u64 %d8, [%d7];\n"
	"	mul.wide.u32 %d9, %r2, 16;\n"
	"BYTES:\n"
	"	setp.ge.u64 %p1, %d9, %d1;\n"
	"	@%p1 bra NEXT;\n"
	"	add.s64 %d10, %d8, %d9;\n"
	"	st.volatile.global.v4.u32 [%d10], {%r6, %r6, %r6, %r6};\n"
	"	add.s64 %d9, %d9, %d11;\n"
	"	bra BYTES;\n"
	"NEXT:\n"
	"	add.u32 %r4, %r4, %r1;\n"
	"	bra SLOT;\n"
	"DONE:\n"
	"	or.b32 %r7, %r0, %r2;\n"
	"	setp.ne.u32 %p2, %r7, 0;\n"
	"	@%p2 bra LOOK;\n"
	"	add.s64 %d6, %d6, 1;\n"
	"	st.volatile.global.u64 [%d4], %d6;\n"
	"	membar.sys;\n"
	"LOOK:\n"
	"	mov.u64 %d12, %globaltimer;\n"
	"	setp.lt.u64 %p3, %d12, %d5;\n"
	"	@%p3 bra PASS;\n"
	"	ret;\n"
	"}\n";

static struct terrace_session *session;
static uint64_t slots[SLOTS_MAX], bytes;
static uint32_t count;

static _Noreturn void stop(const char *what, const char *words)
{
	fprintf(stderr, "slow_writer: %s: %s\n", what, words);
	_exit(3);
}

static void must(enum terrace_status status, const char *what)
{
	if (status != TERRACE_OK)
		stop(what, terrace_error());
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Slots for keys that nobody else has. False: there is not room for all, now. */
static bool reserve_run(int32_t gpu, const char *name, uint32_t run)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_reservation *r = NULL;
	uint8_t keys[RUN][16] = {{0}};
	uint64_t at[RUN];
	const uint32_t before = count;
	enum terrace_status status;

	o.gpu = gpu;
	for (uint32_t i = 0; i < RUN; i++)
		snprintf((char *)keys[i], sizeof(keys[i]), "%.8s %u", name, run * RUN + i);
	status = terrace_reserve_with(session, &(struct terrace_keys){ keys[0], RUN, 16 }, NULL, &o, CALL_US, NULL, &r);
	if (status == TERRACE_EXHAUSTED)
		return false;
	must(status, "reserve");
	must(terrace_reservation_addresses(r, 0, at), "addresses");
	for (uint32_t i = 0; i < RUN; i++)
		if (at[i])
			slots[count++] = at[i];
	return count - before == RUN;
}

static void take_slots(const char *address, const char *name, uint32_t wanted)
{
	struct terrace_connect_options connect = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_session_options o = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_client *client;
	uint64_t until;
	int32_t gpu;

	connect.address = address;
	connect.timeout_us = CALL_US;
	o.engine = name;
	o.gpu = true;
	must(terrace_connect(&connect, &client), "connect");
	must(terrace_session_open(client, &mixed_layout, 1, &o, &session), "open");
	must(terrace_session_gpu_of(session, 0, &gpu), "the GPU's number");
	until = now_ns() + ROOM_MS * 1000000ull;
	for (uint32_t run = 0; count < wanted && (count < RUN || now_ns() < until); run++)
		if (!reserve_run(gpu, name, run))
			nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL); /* others have it, for now */
	bytes = terrace_block_bytes(&mixed_layout);
}

static void begin_kernel(void *page, uint64_t ms)
{
	uint64_t table = 0, beat = 0, ns = ms * 1000000;
	struct driver_kernel k;
	void *arguments[] = { &table, &count, &bytes, &ns, &beat };
	const char *wrong = driver_kernel_open(&k, 0, scribble, "scribble");

	if (!wrong)
		wrong = driver_kernel_copy(&k, slots, count * sizeof(slots[0]), &table);
	if (!wrong)
		wrong = driver_kernel_see(&k, page, PAGE, &beat);
	if (!wrong)
		wrong = driver_kernel_launch(&k, GRID, THREADS, arguments);
	if (wrong)
		stop("a kernel", wrong);
}

/* The daemon's memory, which children have not else. */
static void keep_for_child(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long begin, end;
	char line[512];

	if (!maps)
		stop("the maps", "not to be read");
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "/memfd:") && sscanf(line, "%lx-%lx", &begin, &end) == 2 &&
		    madvise((void *)begin, end - begin, MADV_DOFORK)) /* NOLINT: numbers that are addresses */
			stop("the memory", "not for a child");
	fclose(maps);
}

static _Noreturn void child_write(volatile uint64_t *page, uint64_t until)
{
	while (now_ns() < until && !page[1]) {
		for (uint32_t i = 0; i < count; i++, ++page[0])
			memset(sim_at(slots[i]), BYTE, bytes);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	_exit(0);
}

static pid_t begin_child(uint64_t *page, uint64_t ms)
{
	pid_t child;

	keep_for_child();
	child = _Fork();
	if (child < 0)
		stop("a child", "not to be had");
	if (!child)
		child_write(page, now_ns() + ms * 1000000);
	return child;
}

int main(int argc, char **argv)
{
	const uint64_t begun = now_ns();
	struct fault fault;
	volatile uint64_t *beat;
	uint64_t *page;
	pid_t child = 0;

	if (argc != 7 || (strcmp(argv[1], "kernel") && strcmp(argv[1], "child")) || atoi(argv[4]) > SLOTS_MAX - RUN) {
		fprintf(stderr, "usage: slow_writer kernel|child ADDRESS NAME SLOTS MS FD\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[6]), 0);
	if (page == MAP_FAILED)
		stop("the page", "not to be mapped");
	if (!device_load(&fault) || !device_use(0, &fault))
		stop("CUDA", fault.text);
	take_slots(argv[2], argv[3], (uint32_t)atoi(argv[4]));
	if (argv[1][0] == 'c')
		child = begin_child(page, strtoull(argv[5], NULL, 10));
	else
		begin_kernel(page, strtoull(argv[5], NULL, 10));
	for (beat = page; !*beat && now_ns() < begun + BEGIN_MS * 1000000ull;)
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	if (!*beat)
		stop("the work", "has not begun");
	printf("writing %u %d\n", count, (int)child);
	fflush(stdout);
	for (;;)
		pause();
}
