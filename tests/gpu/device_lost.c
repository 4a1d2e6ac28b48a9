/* A device of store/device.h's table that is lost for real (trap.h), among lists of copies both ways:
 *
 *     device_lost [simulated]  the test, on a real GPU or the simulated device
 *     device_lost beside N     a neighbour: see test()
 *
 * lost() says so soon, every list ends, those that were not over with UNAVAILABLE, every call says UNAVAILABLE, what it has is dropped, and
 * close() returns: all of it in a bounded time. Another process on the same GPU, which has imported memory of the lost one's, reads the same
 * bytes there afterwards, and copies on. Exit code 77: no GPU.
 */
#include "tests/gpu/device_rig.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/trap.h"

enum { LISTS = 48, ENDED_FIRST = 4, PAIRS = 4, MEMORY_FD = 3, SAY_FD = 4, ASK_FD = 5, COPIES = 16 };
/* The driver takes some tenths of a second to tell; what the GPU has begun, and close(), may take 10 s. */
static const double lost_within_s = 5, ends_within_s = 15, close_within_s = 15;
static const uint64_t memory_bytes = 64 << 20;

static const struct device_ops *ops;

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint8_t pattern(uint64_t i)
{
	return (uint8_t)(i * 31 + i / 4096 + 1);
}

static void pattern_fill(struct device_rig *r)
{
	for (uint64_t i = 0; i < r->bytes; i++)
		r->host[i] = pattern(i);
}

/* ---- the neighbour ------------------------------------------------------------------------------------------------- */

static void pattern_expect(struct device_rig *r, uint64_t address)
{
	memset(r->host, 0, r->bytes);
	EXPECT(rig_copy_one(r, DEVICE_DOWN, address, r->host_address, r->bytes), STATUS_OK);
	for (uint64_t i = 0; i < r->bytes; i++)
		CHECK(r->host[i] == pattern(i));
}

static void word_read(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char c;

	CHECK(poll(&p, 1, RIG_WAIT_S * 1000) == 1 && read(fd, &c, 1) == 1);
}

/* Looks, says so, is asked, and looks and copies again. */
static int beside_main(uint64_t bytes)
{
	struct device_extent e;
	struct device_rig r;
	uint64_t at;

	rig_open(&r, ops, bytes);
	at = r.range + r.bytes;
	EXPECT(ops->extent_import(r.device, MEMORY_FD, at, bytes, false, &e, &why), STATUS_OK);
	close(MEMORY_FD);
	pattern_expect(&r, at);
	CHECK(write(SAY_FD, "", 1) == 1);
	word_read(ASK_FD);
	CHECK(!ops->lost(r.device));
	pattern_expect(&r, at);
	for (int i = 0; i < COPIES; i++)
		EXPECT(rig_copy_one(&r, DEVICE_UP, r.host_address, r.range, bytes), STATUS_OK);
	pattern_expect(&r, r.range);
	ops->extent_drop(r.device, &e);
	rig_close(&r);
	return 0;
}

struct neighbour {
	pid_t pid;
	int said, ask;
};

/* A program of its own: CUDA does not survive a fork. */
static struct neighbour neighbour_start(int memory, uint64_t bytes)
{
	int said[2], ask[2], from[3];
	struct neighbour n;
	char number[24];

	CHECK(pipe2(said, O_CLOEXEC) == 0 && pipe2(ask, O_CLOEXEC) == 0);
	snprintf(number, sizeof(number), "%llu", (unsigned long long)bytes);
	n.pid = _Fork();
	CHECK(n.pid >= 0);
	if (n.pid == 0) {
		const int wanted[3] = { memory, said[1], ask[0] };

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		unsetenv("SIM_GPU_LOST_FILE"); /* its device is not lost */
		for (int i = 0; i < 3; i++) /* out of each other's way, first */
			from[i] = fcntl(wanted[i], F_DUPFD, 64);
		for (int i = 0; i < 3; i++)
			dup2(from[i], MEMORY_FD + i);
		execl("/proc/self/exe", "device_lost", "beside", number, (char *)NULL);
		_exit(9);
	}
	close(said[1]);
	close(ask[0]);
	n.said = said[0];
	n.ask = ask[1];
	return n;
}

static void neighbour_end(struct neighbour *n)
{
	int status;

	CHECK(write(n->ask, "", 1) == 1);
	CHECK(waitpid(n->pid, &status, 0) == n->pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(n->said);
	close(n->ask);
}

/* ---- the loss ------------------------------------------------------------------------------------------------------ */

static struct rig_copy lists[LISTS];
static struct device_pair pairs[2][PAIRS];

/* Every other one up, into the first half, and down, out of the second. */
static void lists_make(const struct device_rig *r)
{
	const uint64_t piece = r->bytes / 2 / PAIRS;

	for (uint64_t i = 0; i < PAIRS; i++) {
		pairs[0][i] = (struct device_pair){ r->host_address + i * piece, r->range + i * piece };
		pairs[1][i] = (struct device_pair){ r->range + r->bytes / 2 + i * piece, r->host_address + r->bytes / 2 + i * piece };
	}
	for (uint32_t k = 0; k < LISTS; k++)
		lists[k].list = (struct device_copy){ .pairs = pairs[k % 2], .count = PAIRS, .parts = 2, .part_bytes = piece / 2,
						      .way = k % 2 ? DEVICE_DOWN : DEVICE_UP, .progress = r->words_address + 4 * k };
}

/* Lists that have ended with UNAVAILABLE. */
static uint32_t lists_end(struct device_rig *r, uint32_t begun)
{
	uint32_t lost = 0, lost_of_way[2] = { 0, 0 };

	for (uint32_t k = ENDED_FIRST; k < begun; k++) {
		enum status s = rig_end(&lists[k]);

		/* none after a lost one of its way is well */
		CHECK(s == STATUS_UNAVAILABLE || (s == STATUS_OK && !lost_of_way[k % 2] && atomic_load(&r->words[k]) == 2));
		CHECK(s == STATUS_OK || atomic_load(&r->words[k]) <= 2);
		lost_of_way[k % 2] += s == STATUS_UNAVAILABLE;
		lost += s == STATUS_UNAVAILABLE;
	}
	return lost;
}

static void call(void *arg)
{
	(void)arg;
	CHECK(!"called on a lost device");
}

static void refusals(struct device_rig *r, void *stream)
{
	struct device_extent e;
	struct device_info i;
	uint64_t address;
	void *memory = rig_memory(r->info.granularity, NULL);
	int fd;

	EXPECT(ops->info(r->device, &i, &why), STATUS_UNAVAILABLE);
	EXPECT(ops->copy(r->device, &lists[0].list, &why), STATUS_UNAVAILABLE);
	EXPECT(ops->extent_make(r->device, r->range + r->bytes, r->bytes, &e, &fd, &why), STATUS_UNAVAILABLE);
	EXPECT(ops->extent_import(r->device, r->fd, r->range + r->bytes, r->bytes, true, &e, &why), STATUS_UNAVAILABLE);
	EXPECT(ops->range_reserve(r->device, r->bytes, &address, &why), STATUS_UNAVAILABLE);
	EXPECT(ops->host_register(r->device, memory, r->info.granularity, true, &address, &why), STATUS_UNAVAILABLE);
	EXPECT(ops->stream_wait(r->device, stream, r->words_address, 1, &why), STATUS_UNAVAILABLE);
	EXPECT(ops->stream_then(r->device, stream, call, NULL, &why), STATUS_UNAVAILABLE);
	munmap(memory, r->info.granularity);
}

static void test(void)
{
	double sprung, lost_s, ends_s, close_s;
	struct neighbour beside;
	const char *wrong;
	struct device_rig r;
	uint32_t begun = 0, lost;
	void *stream;

	rig_open(&r, ops, memory_bytes);
	wrong = trap_ready(0);
	if (wrong) {
		fprintf(stderr, "the trap: %s\n", wrong);
		exit(1);
	}
	stream = rig_stream();
	pattern_fill(&r);
	EXPECT(rig_copy_one(&r, DEVICE_UP, r.host_address, r.range, r.bytes), STATUS_OK);
	beside = neighbour_start(r.fd, r.bytes);
	word_read(beside.said);

	lists_make(&r);
	for (; begun < LISTS; begun++) {
		rig_begin(&r, &lists[begun]);
		if (begun == ENDED_FIRST - 1)
			for (uint32_t k = 0; k < ENDED_FIRST; k++)
				CHECK(rig_end(&lists[k]) == STATUS_OK);
	}
	sprung = now_s();
	wrong = trap_spring();
	CHECK(!wrong);
	while (!ops->lost(r.device) && now_s() - sprung < lost_within_s)
		;
	CHECK(ops->lost(r.device));
	lost_s = now_s() - sprung;
	lost = lists_end(&r, begun);
	ends_s = now_s() - sprung;
	CHECK(lost > 0 && ends_s < ends_within_s);
	refusals(&r, stream);
	rig_close(&r);
	close_s = now_s() - sprung - ends_s;
	CHECK(close_s < close_within_s);
	neighbour_end(&beside);
	printf("{\"bench\": \"device_lost\", \"device\": \"%s\", \"lists\": %u, \"lists_lost\": %u, \"lost_ms\": %.2f, \"ends_ms\": %.2f, "
	       "\"close_ms\": %.2f}\n", getenv("SIM_GPU_LOST_FILE") ? "simulated" : "gpu", begun, lost, lost_s * 1e3, ends_s * 1e3, close_s * 1e3);
}

/* ---- where the simulated device's loss is written ------------------------------------------------------------------ */

static char folder[] = "/tmp/terrace-lost-XXXXXX";

static void folder_make(void)
{
	char lost[sizeof(folder) + 8];

	CHECK(mkdtemp(folder));
	snprintf(lost, sizeof(lost), "%s/lost", folder);
	setenv("SIM_GPU_LOST_FILE", lost, 1);
}

static void folder_remove(void)
{
	char lost[sizeof(folder) + 8];

	snprintf(lost, sizeof(lost), "%s/lost.0", folder);
	unlink(lost);
	rmdir(folder);
}

int main(int argc, char **argv)
{
	const char *words;
	const bool simulated = argc > 1 && strcmp(argv[1], "simulated") == 0;

	if (simulated)
		folder_make();
	ops = rig_load(&words);
	if (!ops) {
		printf("skipped: %s\n", words);
		return 77;
	}
	alarm(2 * RIG_WAIT_S);
	if (argc > 2 && strcmp(argv[1], "beside") == 0)
		return beside_main(strtoull(argv[2], NULL, 10));
	test();
	if (simulated)
		folder_remove();
	return 0;
}
