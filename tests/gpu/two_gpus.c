/* Two GPUs by their table (store/device.h), as the daemon has them: copies across, and how fast they are.
 *
 *     two_gpus [--json] [--quick] | refused
 *
 * Lists across both ways, one by one and both at once, give the same bytes, between GPUs that were open when the memory was made, which reach
 * it if the machine lets them, and with one that was opened later, whose copies are the driver's own. Then GB/s of such lists beside
 * cudaMemcpyPeerAsync of the same pieces. refused: for a driver that copies nothing between GPUs, which costs the list and no GPU. Exit
 * code 77: there are no two GPUs. On a GPU and over the simulated device.
 */
#include "tests/gpu/device_rig.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 128, PIECE_TEST = 24 << 10, PIECE = 544 << 10, PIECE_QUICK = 16 << 10, ROUNDS = 7 };

static const struct device_ops *ops;

static struct {
	int (*set_device)(int device);
	int (*allocate)(void **memory, size_t bytes);
	int (*release)(void *memory);
	int (*stream_create)(void **stream);
	int (*stream_synchronize)(void *stream);
	int (*stream_destroy)(void *stream);
	int (*copy_peer)(void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream);
	int (*can_reach)(int *can, int device, int peer);
	int (*enable)(int peer, unsigned int flags);
} cuda;

static void load_runtime(void)
{
	static const struct {
		const char *name;
		void *function;
	} symbols[] = {
		{ "cudaSetDevice", &cuda.set_device },
		{ "cudaMalloc", &cuda.allocate },
		{ "cudaFree", &cuda.release },
		{ "cudaStreamCreate", &cuda.stream_create },
		{ "cudaStreamSynchronize", &cuda.stream_synchronize },
		{ "cudaStreamDestroy", &cuda.stream_destroy },
		{ "cudaMemcpyPeerAsync", &cuda.copy_peer },
		{ "cudaDeviceCanAccessPeer", &cuda.can_reach },
		{ "cudaDeviceEnablePeerAccess", &cuda.enable },
	};
	void *library = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);

	CHECK(library);
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *function = dlsym(library, symbols[i].name);

		CHECK(function);
		memcpy(symbols[i].function, &function, sizeof(function));
	}
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- two GPUs ------------------------------------------------------------------------------------------------------ */

struct side {
	struct device *device;
	struct device_extent extent;
	uint64_t range, host_address;
	int fd;
};

struct pair {
	struct side side[2];
	uint64_t bytes; /* of an extent, and of the host's memory */
	uint8_t *host;  /* registered with both */
};

static void side_fill(struct side *s, struct pair *p)
{
	EXPECT(ops->range_reserve(s->device, p->bytes, &s->range, &why), STATUS_OK);
	EXPECT(ops->extent_make(s->device, s->range, p->bytes, &s->extent, &s->fd, &why), STATUS_OK);
	EXPECT(ops->host_register(s->device, p->host, p->bytes, true, &s->host_address, &why), STATUS_OK);
}

/* With so many bytes on each. later: GPU 1 is opened when GPU 0's memory is made already. */
static void pair_open(struct pair *p, uint64_t bytes, bool later)
{
	struct device_info info;

	*p = (struct pair){ 0 };
	EXPECT(ops->open(0, &p->side[0].device, &why), STATUS_OK);
	EXPECT(ops->info(p->side[0].device, &info, &why), STATUS_OK);
	p->bytes = (bytes + info.granularity - 1) / info.granularity * info.granularity;
	p->host = rig_memory(p->bytes, NULL);
	if (!later)
		EXPECT(ops->open(1, &p->side[1].device, &why), STATUS_OK);
	side_fill(&p->side[0], p);
	if (later)
		EXPECT(ops->open(1, &p->side[1].device, &why), STATUS_OK);
	side_fill(&p->side[1], p);
}

static void pair_close(struct pair *p)
{
	for (int i = 0; i < 2; i++) {
		struct side *s = &p->side[i];

		ops->host_unregister(s->device, p->host);
		ops->extent_drop(s->device, &s->extent);
		ops->range_free(s->device, s->range, p->bytes);
		ops->close(s->device);
		close(s->fd);
	}
	munmap(p->host, p->bytes);
}

static void begin(struct side *s, struct rig_copy *c, const struct device_pair *pairs, uint32_t count, uint64_t piece, enum device_way way)
{
	struct device_rig rig = { .ops = ops, .device = s->device };

	*c = (struct rig_copy){ .list = { .pairs = pairs, .count = count, .parts = 1, .part_bytes = piece, .way = way } };
	rig_begin(&rig, c);
}

static void copy(struct side *s, const struct device_pair *pairs, uint32_t count, uint64_t piece, enum device_way way)
{
	struct rig_copy c;

	begin(s, &c, pairs, count, piece, way);
	CHECK(rig_end(&c) == STATUS_OK);
}

/* ---- the same bytes ------------------------------------------------------------------------------------------------ */

/* Piece i of one memory to the place of another piece in the other. */
static void spread(struct device_pair *pairs, uint64_t from, uint64_t to, uint64_t piece)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		pairs[i] = (struct device_pair){ from + i * piece, to + i * 37 % BLOCKS * piece };
}

static void expect_spread(const uint8_t *sent, const uint8_t *got)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		CHECK(memcmp(got + i * 37 % BLOCKS * PIECE_TEST, sent + i * PIECE_TEST, PIECE_TEST) == 0);
}

/* Each GPU's first half goes to the other's second half; both lists at once. */
static void test_across(bool later)
{
	const uint64_t bytes = (uint64_t)BLOCKS * PIECE_TEST;
	struct device_pair pairs[2][BLOCKS];
	uint8_t *sent = malloc(2 * bytes);
	struct rig_copy c[2];
	struct pair p;

	CHECK(sent);
	pair_open(&p, 2 * bytes, later);
	rig_fill(p.host, 2 * bytes);
	memcpy(sent, p.host, 2 * bytes);
	for (int i = 0; i < 2; i++)
		copy(&p.side[i], &(struct device_pair){ p.side[i].host_address + i * bytes, p.side[i].range }, 1, bytes, DEVICE_UP);
	memset(p.host, 0, 2 * bytes);
	for (int i = 0; i < 2; i++) {
		spread(pairs[i], p.side[!i].range, p.side[i].range + bytes, PIECE_TEST);
		begin(&p.side[i], &c[i], pairs[i], BLOCKS, PIECE_TEST, DEVICE_ACROSS);
	}
	for (int i = 0; i < 2; i++)
		CHECK(rig_end(&c[i]) == STATUS_OK);
	for (int i = 0; i < 2; i++)
		copy(&p.side[i], &(struct device_pair){ p.side[i].range + bytes, p.side[i].host_address + i * bytes }, 1, bytes, DEVICE_DOWN);
	for (int i = 0; i < 2; i++)
		expect_spread(sent + !i * bytes, p.host + i * bytes);
	CHECK(!ops->lost(p.side[0].device) && !ops->lost(p.side[1].device));
	for (int i = 0; i < 2; i++) {
		int can = 0;

		CHECK(cuda.can_reach(&can, i, !i) == 0);
		CHECK(ops->reaches(p.side[i].device, p.side[!i].device) == (can != 0));
		CHECK(!ops->reaches(p.side[i].device, p.side[i].device));
	}
	pair_close(&p);
	free(sent);
	fprintf(stderr, "ok   across, %s\n", later ? "one GPU opened later" : "both open");
}

static void test_refused(void)
{
	struct device_pair pair;
	struct rig_copy c;
	struct pair p;

	pair_open(&p, PIECE_TEST, false);
	rig_fill(p.host, PIECE_TEST);
	pair = (struct device_pair){ p.side[0].range, p.side[1].range };
	begin(&p.side[1], &c, &pair, 1, PIECE_TEST, DEVICE_ACROSS);
	CHECK(rig_end(&c) == STATUS_INVALID);
	CHECK(!ops->lost(p.side[0].device) && !ops->lost(p.side[1].device));
	copy(&p.side[1], &(struct device_pair){ p.side[1].host_address, p.side[1].range }, 1, PIECE_TEST, DEVICE_UP);
	pair_close(&p);
	fprintf(stderr, "ok   across, refused\n");
}

/* ---- how fast ------------------------------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *seconds)
{
	qsort(seconds, ROUNDS, sizeof(*seconds), by_value);
	return seconds[ROUNDS / 2];
}

static double lists_gb_s(bool later, uint64_t piece)
{
	struct device_pair pairs[BLOCKS];
	double seconds[ROUNDS];
	struct pair p;

	pair_open(&p, BLOCKS * piece, later);
	spread(pairs, p.side[0].range, p.side[1].range, piece);
	copy(&p.side[1], pairs, BLOCKS, piece, DEVICE_ACROSS);
	for (int r = 0; r < ROUNDS; r++) {
		const double began = now_s();

		copy(&p.side[1], pairs, BLOCKS, piece, DEVICE_ACROSS);
		seconds[r] = now_s() - began;
	}
	pair_close(&p);
	return (double)(BLOCKS * piece) / median(seconds) * 1e-9;
}

static double peer_gb_s(uint64_t piece)
{
	void *memory[2], *stream;
	double seconds[ROUNDS];

	for (int i = 0; i < 2; i++)
		CHECK(cuda.set_device(i) == 0 && cuda.allocate(&memory[i], BLOCKS * piece) == 0);
	CHECK(cuda.stream_create(&stream) == 0);
	for (int r = -1; r < ROUNDS; r++) {
		const double began = now_s();

		for (uint32_t i = 0; i < BLOCKS; i++)
			CHECK(cuda.copy_peer((char *)memory[1] + i * 37 % BLOCKS * piece, 1, (char *)memory[0] + i * piece, 0, piece, stream) == 0);
		CHECK(cuda.stream_synchronize(stream) == 0);
		if (r >= 0)
			seconds[r] = now_s() - began;
	}
	CHECK(cuda.stream_destroy(stream) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(cuda.set_device(i) == 0 && cuda.release(memory[i]) == 0);
	return (double)(BLOCKS * piece) / median(seconds) * 1e-9;
}

static void row(bool json, const char *what, uint64_t piece, double value, double baseline)
{
	if (json)
		printf("{\"bench\":\"two_gpus\",\"case\":\"%s, %d pieces of %llu KiB / cudaMemcpyPeer\",\"value\":%.3f,\"unit\":\"GB/s\","
		       "\"baseline\":%.3f,\"ratio\":%.4f}\n", what, BLOCKS, (unsigned long long)piece / 1024, value, baseline, value / baseline);
	else
		printf("%-42s %9.2f GB/s, cudaMemcpyPeer %9.2f, ratio %.3f\n", what, value, baseline, value / baseline);
}

static void figures(bool json, uint64_t piece)
{
	int can = 0;
	double far, near;

	CHECK(cuda.can_reach(&can, 1, 0) == 0);
	far = peer_gb_s(piece); /* before access is enabled: it stays so for the process */
	row(json, "GPU to GPU by the driver, not reached", piece, lists_gb_s(true, piece), far);
	if (!can) {
		row(json, "GPU to GPU, none reaches the other", piece, lists_gb_s(false, piece), far);
		return;
	}
	for (int i = 0; i < 2; i++)
		CHECK(cuda.set_device(i) == 0 && cuda.enable(!i, 0) == 0);
	near = peer_gb_s(piece);
	row(json, "GPU to GPU, reached", piece, lists_gb_s(false, piece), near);
}

int main(int argc, char **argv)
{
	bool json = false, quick = false;
	const char *words;

	for (int i = 1; i < argc; i++) {
		json = json || !strcmp(argv[i], "--json");
		quick = quick || !strcmp(argv[i], "--quick");
	}
	ops = rig_load(&words);
	if (!ops || ops->count() < 2) {
		fprintf(stderr, "two_gpus: skipped, %s\n", ops ? "there is one GPU" : words);
		return 77;
	}
	if (argc == 2 && !strcmp(argv[1], "refused")) {
		test_refused();
		return 0;
	}
	load_runtime();
	test_across(true);
	test_across(false);
	figures(json, quick ? PIECE_QUICK : PIECE);
	return 0;
}
