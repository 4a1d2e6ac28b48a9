/* Lists of copies between host memory and the GPU by the table of store/device.h: how much of the bus they fill, by the copy engines and
 * by the kernel, and how soon the first layer of a list is there, also by the driver's calls alone. The ceiling is one copy of the same memory
 * in the same run. */
#include "tests/gpu/bench.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/device_memory.h"

namespace
{

constexpr uint64_t BYTES = (uint64_t)1 << 30;
constexpr uint32_t ROUNDS = 5, LISTS = 4; /* at the same time, at least */
const uint64_t ENGINES_ONLY = 0, KERNEL_ONLY = UINT64_MAX, AS_IS = DEVICE_ENGINE_BYTES;

#define DEVICE(call)                                                                                                                 \
	do {                                                                                                                         \
		const char *why = "";                                                                                                \
		if ((call) != STATUS_OK) {                                                                                           \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, why);                                          \
			exit(1);                                                                                                     \
		}                                                                                                                    \
	} while (0)

double now_us()
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

struct counted {
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
	uint32_t left = 0;
};

void end_list(struct device_copy *c, enum status s)
{
	struct counted *n = (struct counted *)c->arg;

	if (s != STATUS_OK) {
		fprintf(stderr, "a list ended with status %d\n", s);
		exit(1);
	}
	pthread_mutex_lock(&n->mutex);
	if (--n->left == 0)
		pthread_cond_signal(&n->ended);
	pthread_mutex_unlock(&n->mutex);
}

void await(struct counted *n)
{
	pthread_mutex_lock(&n->mutex);
	while (n->left > 0)
		pthread_cond_wait(&n->ended, &n->mutex);
	pthread_mutex_unlock(&n->mutex);
}

/* A device with 1 GiB, and as much host memory with a page of words behind it. */
struct world {
	const struct device_ops *ops = kv_cuda_device_ops();
	struct device *device = nullptr;
	struct device_extent extent = {};
	uint64_t range = 0, host_address = 0;
	uint8_t *host = nullptr;
	int fd = -1;

	explicit world(uint64_t engine_bytes)
	{
		random_source r(7);
		int memory = memfd_create("bench", 0);

		DEVICE(ops->open(0, &device, &why));
		kv_cuda_device_engine_bytes(device, engine_bytes);
		DEVICE(ops->range_reserve(device, BYTES, &range, &why));
		DEVICE(ops->extent_make(device, range, BYTES, &extent, &fd, &why));
		if (memory < 0 || ftruncate(memory, (off_t)(BYTES + 4096)) != 0)
			exit(1);
		host = (uint8_t *)mmap(nullptr, BYTES + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
		::close(memory);
		for (uint64_t i = 0; i < BYTES / 8; i++)
			((uint64_t *)host)[i] = r.next();
		DEVICE(ops->host_register(device, host, BYTES + 4096, true, &host_address, &why));
	}
	world(const world &) = delete;
	world &operator=(const world &) = delete;
	~world()
	{
		ops->close(device);
		munmap(host, BYTES + 4096);
		::close(fd);
	}
};

/* Pairs of pieces in an order of chance on either side. */
std::vector<device_pair> shuffled(const world &w, uint64_t piece, uint64_t total, bool up)
{
	std::vector<device_pair> pairs(total / piece);
	random_source r(piece);

	for (size_t i = 0; i < pairs.size(); i++)
		pairs[i] = {w.host_address + i * piece, w.range + i * piece};
	for (size_t i = pairs.size(); i > 1; i--) {
		std::swap(pairs[i - 1].to, pairs[r.next() % i].to);
		std::swap(pairs[i - 1].from, pairs[r.next() % i].from);
	}
	if (!up)
		for (device_pair &p : pairs)
			std::swap(p.from, p.to);
	return pairs;
}

/* GB/s of one copy of everything. */
double plain_copy(const world &w, bool up, cudaStream_t stream)
{
	cudaEvent_t begin, end;
	std::vector<float> times;

	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (uint32_t i = 0; i < ROUNDS + 1; i++) {
		float ms;

		CUDA(cudaEventRecord(begin, stream));
		CUDA(cudaMemcpyAsync((void *)(up ? w.range : w.host_address), (void *)(up ? w.host_address : w.range), BYTES,
				     cudaMemcpyDefault, stream));
		CUDA(cudaEventRecord(end, stream));
		CUDA(cudaEventSynchronize(end));
		CUDA(cudaEventElapsedTime(&ms, begin, end));
		if (i > 0)
			times.push_back(ms);
	}
	CUDA(cudaEventDestroy(begin));
	CUDA(cudaEventDestroy(end));
	return (double)BYTES / (median(times) * 1e6);
}

/* GB/s of lists of pieces, all begun at once. */
double lists_rate(const world &w, uint64_t piece, bool up)
{
	const std::vector<device_pair> pairs = shuffled(w, piece, BYTES, up);
	const size_t most = std::min((size_t)DEVICE_STAGED_PAIRS, (pairs.size() + LISTS - 1) / LISTS);
	std::vector<device_copy> lists((pairs.size() + most - 1) / most);
	std::vector<float> times;
	struct counted n;

	for (uint32_t round = 0; round < ROUNDS + 1; round++) {
		const double begin = now_us();

		n.left = (uint32_t)lists.size();
		for (size_t i = 0; i < lists.size(); i++) {
			device_copy &c = lists[i];

			c = {};
			c.pairs = &pairs[i * most];
			c.count = (uint32_t)std::min(most, pairs.size() - i * most);
			c.parts = 1;
			c.part_bytes = piece;
			c.way = up ? DEVICE_UP : DEVICE_DOWN;
			c.done = end_list;
			c.arg = &n;
			DEVICE(w.ops->copy(w.device, &c, &why));
		}
		await(&n);
		if (round > 0)
			times.push_back((float)(now_us() - begin));
	}
	return (double)(pairs.size() * piece) / (median(times) * 1e3);
}

/* A prefix of blocks of `layers` layers, one part a layer: microseconds until the word says that the first is there, and all. */
void layers_times(const world &w, uint32_t blocks, uint32_t layers, uint64_t layer_bytes, double *first_us, double *all_us)
{
	const std::vector<device_pair> pairs = shuffled(w, layers * layer_bytes, blocks * layers * layer_bytes, true);
	const volatile uint32_t *word = (const volatile uint32_t *)(w.host + BYTES);
	std::vector<float> first, all;
	struct device_copy c = {};
	struct counted n;

	for (uint32_t round = 0; round < ROUNDS + 1; round++) {
		const double begin = now_us();
		double seen;

		c.pairs = pairs.data();
		c.count = blocks;
		c.parts = layers;
		c.part_bytes = layer_bytes;
		c.way = DEVICE_UP;
		c.progress = w.host_address + BYTES;
		c.progress_base = *word;
		c.done = end_list;
		c.arg = &n;
		n.left = 1;
		const uint32_t base = c.progress_base;

		DEVICE(w.ops->copy(w.device, &c, &why));
		while (*word == base)
			;
		seen = now_us();
		while (*word != base + layers)
			;
		if (round > 0) {
			first.push_back((float)(seen - begin));
			all.push_back((float)(now_us() - begin));
		}
		await(&n);
	}
	*first_us = median(first);
	*all_us = median(all);
}

/* ---- the first layer of blocks that lie at equal distances, as a daemon's do ---- */

constexpr uint32_t FIRST_BLOCKS = 128, FIRST_LAYERS = 32, FIRST_ROUNDS = 15;
constexpr uint64_t FIRST_LAYER_BYTES = 17 << 10, FIRST_BLOCK_BYTES = FIRST_LAYERS * FIRST_LAYER_BYTES, FIRST_HOST_STEP = FIRST_BLOCK_BYTES + 4096;
constexpr long FIRST_IDLE_NS = 5000000; /* between calls: as one sees them that come now and then */

/* Rows of a run, on the host and on the GPU. */
struct run_of_rows {
	uint64_t host, gpu;
	uint32_t rows;
};

/* So many runs, a block's place left out between them. */
std::vector<run_of_rows> runs_of(const struct world &w, uint32_t count)
{
	std::vector<run_of_rows> runs;

	for (uint32_t i = 0, at = 0; i < count; i++) {
		const uint32_t rows = (FIRST_BLOCKS - at) / (count - i);

		runs.push_back({w.host_address + (at + i) * FIRST_HOST_STEP, w.range + (at + i) * FIRST_BLOCK_BYTES, rows});
		at += rows;
	}
	return runs;
}

void idle()
{
	const struct timespec pause = {0, FIRST_IDLE_NS};

	nanosleep(&pause, nullptr);
}

/* Until the word is this, from then on. */
float word_us(const struct world &w, uint32_t value, double begin)
{
	const volatile uint32_t *word = (const volatile uint32_t *)(w.host + BYTES);

	while ((int32_t)(*word - value) < 0)
		;
	return (float)(now_us() - begin);
}

/* The runs' first layers by a call each. */
void rows_by_calls(const std::vector<run_of_rows> &runs, cudaStream_t stream)
{
	for (const run_of_rows &r : runs)
		CUDA(cudaMemcpy2DAsync((void *)r.gpu, FIRST_BLOCK_BYTES, (void *)r.host, FIRST_HOST_STEP, FIRST_LAYER_BYTES, r.rows, cudaMemcpyDefault, stream));
}

/* By one call. False: the driver has none such. */
bool rows_by_batch(const std::vector<run_of_rows> &runs, cudaStream_t stream)
{
	std::vector<cudaMemcpy3DBatchOp> ops(runs.size());

	for (size_t i = 0; i < runs.size(); i++) {
		ops[i].src.type = ops[i].dst.type = cudaMemcpyOperandTypePointer;
		ops[i].src.op.ptr = {(void *)runs[i].host, FIRST_HOST_STEP, runs[i].rows, {cudaMemLocationTypeHost, 0}};
		ops[i].dst.op.ptr = {(void *)runs[i].gpu, FIRST_BLOCK_BYTES, runs[i].rows, {cudaMemLocationTypeDevice, 0}};
		ops[i].extent = {FIRST_LAYER_BYTES, runs[i].rows, 1};
		ops[i].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
		ops[i].flags = 0;
	}
	return cudaMemcpy3DBatchAsync(ops.size(), ops.data(), 0, stream) == cudaSuccess;
}

/* What the driver itself takes for a first layer: until the calls are made, and until the word says that it is there. */
void report_first_calls(const struct world &w, uint32_t count, bool batch, cudaStream_t stream)
{
	const std::vector<run_of_rows> runs = runs_of(w, count);
	std::vector<float> made, there;
	bool is = true;

	for (uint32_t round = 0; round < FIRST_ROUNDS + 1 && is; round++) {
		const uint32_t next = *(const volatile uint32_t *)(w.host + BYTES) + 1;

		idle();
		const double begin = now_us();

		if (batch)
			is = rows_by_batch(runs, stream);
		else
			rows_by_calls(runs, stream);
		if (w.device->driver->cuStreamWriteValue32(stream, w.host_address + BYTES, next, CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS)
			exit(1);
		made.push_back((float)(now_us() - begin));
		there.push_back(word_us(w, next, begin));
		CUDA(cudaStreamSynchronize(stream));
	}
	if (is)
		printf("{\"bench\":\"device_first_calls\",\"by\":\"%s\",\"runs\":%u,\"made_us\":%.0f,\"there_us\":%.0f}\n",
		       batch ? "a 3D batch" : "2D copies", count, median(made), median(there));
	else
		cudaGetLastError();
}

void report_first(cudaStream_t stream)
{
	world w(AS_IS);

	for (uint32_t count : {1u, 4u, 10u, 20u}) {
		report_first_calls(w, count, false, stream);
		report_first_calls(w, count, true, stream);
	}
}

void report_engine(const char *engine, uint64_t engine_bytes, cudaStream_t stream)
{
	static const uint64_t pieces[] = {4096, 16384, 32768, 65536, 128 << 10, 600 << 10, 2 << 20};
	static const struct {
		uint32_t blocks, layers;
		uint64_t layer_bytes;
	} prefixes[] = {{64, 32, 4096}, {512, 32, 4096}, {64, 32, 16384}, {512, 32, 16384}, {64, 80, 65536}, {128, 8, 600 << 10}};
	world w(engine_bytes);

	for (int up = 1; up >= 0; up--) {
		const double ceiling = plain_copy(w, up, stream);

		printf("{\"bench\":\"device_ceiling\",\"way\":\"%s\",\"gbs\":%.1f}\n", up ? "up" : "down", ceiling);
		for (uint64_t piece : pieces) {
			const double rate = lists_rate(w, piece, up), share = rate / ceiling, target = piece < 16384 ? .8 : .95;

			printf("{\"bench\":\"device_lists\",\"way\":\"%s\",\"engine\":\"%s\",\"bytes\":%llu,\"gbs\":%.1f,"
			       "\"share\":%.3f,\"target\":%.2f,\"met\":%s}\n",
			       up ? "up" : "down", engine, (unsigned long long)piece, rate, share, target,
			       share >= target ? "true" : "false");
		}
	}
	for (const auto &p : prefixes) {
		double first, all;

		layers_times(w, p.blocks, p.layers, p.layer_bytes, &first, &all);
		printf("{\"bench\":\"device_layers\",\"engine\":\"%s\",\"blocks\":%u,\"layers\":%u,\"layer_bytes\":%llu,"
		       "\"first_us\":%.0f,\"all_us\":%.0f,\"gbs\":%.1f,\"bound_us\":%.0f,\"met\":%s}\n",
		       engine, p.blocks, p.layers, (unsigned long long)p.layer_bytes, first, all,
		       (double)p.blocks * p.layers * (double)p.layer_bytes / (all * 1e3), all / p.layers + 200,
		       first <= all / p.layers + 200 ? "true" : "false");
	}
}

} // namespace

void bench_device(cudaStream_t stream)
{
	report_engine("as it is", AS_IS, stream);
	report_engine("copy engines", ENGINES_ONLY, stream);
	report_engine("kernel", KERNEL_ONLY, stream);
	report_first(stream);
}
