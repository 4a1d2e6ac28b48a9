/* Waits for a word, captured in a graph: each launch waits anew, for what a list of copies brings. While a graph is captured in the strictest
 * mode, other threads use the device as ever. */
#include "tests/gpu/gpu.h"

#include <atomic>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cuda/device_memory.h"

enum { BYTES = 1 << 20, SETTLE_US = 30000, LAUNCHES = 3 };

#define DEVICE(call)                                                                                                                 \
	do {                                                                                                                         \
		const char *why = "";                                                                                                \
		if ((call) != STATUS_OK) {                                                                                           \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, why);                                          \
			exit(1);                                                                                                     \
		}                                                                                                                    \
	} while (0)

static const struct device_ops *ops;
static struct device *device;
static uint8_t *host; /* BYTES, then a page of words */
static uint64_t host_address, range, granularity;
static std::atomic<int> ended;

static void end_list(struct device_copy *, enum status s)
{
	ended = s == STATUS_OK ? 1 : -1;
}

/* A list up, with its word, and its end. */
static void copy_up(uint32_t base)
{
	struct device_pair pair = {host_address, range};
	struct device_copy c = {};

	c.pairs = &pair;
	c.count = c.parts = 1;
	c.part_bytes = BYTES;
	c.way = DEVICE_UP;
	c.progress = host_address + BYTES;
	c.progress_base = base;
	c.done = end_list;
	ended = 0;
	DEVICE(ops->copy(device, &c, &why));
	for (int i = 0; i < 100000 && ended == 0; i++)
		usleep(100);
	if (ended != 1) {
		fprintf(stderr, "a list did not end well\n");
		exit(1);
	}
}

/* All that would spoil a capture, were it not for the relaxed mode. */
static void *others_work(void *)
{
	struct device_extent e;
	struct device_info i;
	uint64_t address;
	void *memory = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd;

	DEVICE(ops->info(device, &i, &why));
	DEVICE(ops->extent_make(device, range + granularity, granularity, &e, &fd, &why));
	DEVICE(ops->host_register(device, memory, BYTES, true, &address, &why));
	copy_up(0);
	ops->host_unregister(device, memory);
	ops->extent_drop(device, &e);
	close(fd);
	munmap(memory, BYTES);
	return nullptr;
}

static void open_all()
{
	struct device_info i;
	struct device_extent e;
	int memory = memfd_create("device-graph", 0), fd;

	ops = kv_cuda_device_ops();
	DEVICE(ops->open(0, &device, &why));
	DEVICE(ops->info(device, &i, &why));
	granularity = i.granularity;
	DEVICE(ops->range_reserve(device, 2 * granularity, &range, &why));
	DEVICE(ops->extent_make(device, range, granularity, &e, &fd, &why));
	if (memory < 0 || ftruncate(memory, BYTES + 4096) != 0)
		exit(1);
	host = (uint8_t *)mmap(nullptr, BYTES + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	DEVICE(ops->host_register(device, host, BYTES + 4096, true, &host_address, &why));
}

int main()
{
	volatile uint32_t *word = nullptr;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	pthread_t other;
	bool ok = true;

	open_all();
	word = (volatile uint32_t *)(host + BYTES);
	device_array<uint8_t> seen(BYTES);

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	DEVICE(ops->stream_wait(device, stream, host_address + BYTES, 8, &why));
	if (pthread_create(&other, nullptr, others_work, nullptr) != 0)
		return 1;
	pthread_join(other, nullptr);
	CUDA(cudaMemcpyAsync(seen.data, (void *)range, BYTES, cudaMemcpyDeviceToDevice, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	for (int launch = 0; launch < LAUNCHES; launch++) {
		*word = 0;
		memset(host, 0x20 + launch, BYTES);
		CUDA(cudaGraphLaunch(exec, stream));
		usleep(SETTLE_US);
		const bool waited = cudaStreamQuery(stream) == cudaErrorNotReady;

		copy_up(7);
		CUDA(cudaStreamSynchronize(stream));
		const std::vector<uint8_t> got = seen.get();
		const bool right = memcmp(got.data(), host, BYTES) == 0;

		printf("%-4s launch %d: %s, %s\n", waited && right ? "ok" : "BAD", launch, waited ? "waited" : "did NOT wait",
		       right ? "then saw the copy" : "saw something ELSE");
		ok = ok && waited && right;
	}
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	CUDA(cudaStreamDestroy(stream));
	ops->close(device);
	printf("device_graph: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
