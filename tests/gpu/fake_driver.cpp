/* CUDA's driver (kernels/cuda/driver.h) over the host's memory, so that device_memory.cu and device_copy.cu, compiled as C++, can be run by
 * the tests of every device's table where there is no GPU. What a GPU does is not shown by it; what the code around the driver does is.
 * Addresses are marked as in tests/sim/device.h; streams are those of tests/sim/stream.h, so the simulated runtime goes with it.
 * FAKE_DRIVER_LOST=N: the GPU is lost at the N-th copy. FAKE_DRIVER_BATCH=no: there is no cuMemcpyBatchAsync; refused: it says no.
 * FAKE_DRIVER_MAJOR: the compute capability; with less than 9, or 12 and more, there is no copy kernel.
 * FAKE_DRIVER_DEVICES: how many GPUs there are; memory of one is for those others that have been given access to it, and a copy that touches
 * what its context's GPU has no access to is refused, but for cuMemcpyPeerAsync. FAKE_DRIVER_PEERS=no: none reaches another; refused: the
 * driver does not copy between them either. FAKE_DRIVER_ROWS=refused: no 2D copies. FAKE_DRIVER_KERNEL=refused: the kernel is
 * not launched; none: its code is not loaded.
 * FAKE_DRIVER_LATE_MS: how long every list took, by its events.
 * fake_driver.h has what is asked of it in between. */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/sums.h"
#include "tests/gpu/fake_driver.h"
extern "C" {
#include "tests/sim/stream.h"
}

static const uint64_t MARK = (uint64_t)1 << 62, GRANULE = 2 << 20, TOTAL = 64 << 20;

enum { DEVICES_MOST = 4 };
static char context_of[DEVICES_MOST]; /* a GPU's context is its address here */
static thread_local std::vector<CUcontext> contexts; /* pushed */
static std::atomic<bool> gone;
static std::atomic<long> copies;
static std::atomic<uint64_t> used;
static std::atomic<int64_t> copies_left(FAKE_DRIVER_ALWAYS), things_left(FAKE_DRIVER_ALWAYS);
static std::atomic<uint32_t> copier;
static std::mutex mutex; /* guards the next */
static std::map<void *, uint64_t> pinned;
static std::map<CUdeviceptr, std::pair<uint64_t, std::set<int>>> reached; /* what is mapped: its size, and by which GPUs it may be touched */

struct fake_memory {
	int fd, device;
	uint64_t bytes;
	bool made;
};

static uint8_t *memory_at(CUdeviceptr p)
{
	return (uint8_t *)(p & ~(CUdeviceptr)MARK);
}

static CUresult may_go_on()
{
	if (gone)
		return CUDA_ERROR_LAUNCH_FAILED;
	return contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static int current_device()
{
	return contexts.empty() ? -1 : (int)((char *)contexts.back() - context_of);
}

/* Host memory is everybody's. */
static bool may_touch(CUdeviceptr p)
{
	std::lock_guard<std::mutex> lock(mutex);
	auto after = reached.upper_bound(p);

	if (after == reached.begin() || (--after)->first + after->second.first <= p)
		return true;
	return after->second.second.count(current_device()) > 0;
}

/* ---- what tests ask ---------------------------------------------------------------------------------------------- */

#define ASKED extern "C" __attribute__((visibility("default")))

ASKED void fake_driver_memory(int64_t more_copies, int64_t things)
{
	copies_left = more_copies;
	things_left = things;
}

ASKED uint32_t fake_driver_copier(void)
{
	return copier;
}

static std::atomic<uint32_t> kernels, late_ms, rows_calls;

ASKED uint32_t fake_driver_kernels(void)
{
	return kernels;
}

ASKED uint32_t fake_driver_rows(void)
{
	return rows_calls;
}

ASKED void fake_driver_late(uint32_t ms)
{
	late_ms = ms;
}

/* Whether there is memory for one more. */
static bool one_of(std::atomic<int64_t> &left)
{
	int64_t n = left;

	while (n > 0 && !left.compare_exchange_weak(n, n - 1))
		;
	return n != 0;
}

/* Every call that copies begins with it. */
static CUresult copy_may_begin()
{
	if (!one_of(copies_left))
		return CUDA_ERROR_OUT_OF_MEMORY;
	copier = (uint32_t)gettid();
	return CUDA_SUCCESS;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static enum status work_run(void *arg, bool failed)
{
	std::function<void()> *work = (std::function<void()> *)arg;

	if (!failed && !gone)
		(*work)();
	delete work;
	return STATUS_OK;
}

static CUresult put(CUstream stream, std::function<void()> work)
{
	std::function<void()> *w = new std::function<void()>(std::move(work));

	if (gone || !sim_stream_put((struct sim_stream *)stream, work_run, w)) {
		delete w;
		return gone ? CUDA_ERROR_LAUNCH_FAILED : CUDA_ERROR_INVALID_HANDLE;
	}
	return CUDA_SUCCESS;
}

static void copied(uint8_t *to, const uint8_t *from, size_t bytes)
{
	static const char *const lost = getenv("FAKE_DRIVER_LOST");

	if (lost && ++copies >= atol(lost))
		gone = true;
	else
		memcpy(to, from, bytes);
}

static CUresult stream_create(CUstream *out, unsigned int, int)
{
	if (!one_of(things_left))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = (CUstream)sim_stream_create();
	return may_go_on();
}

static CUresult stream_destroy(CUstream s)
{
	sim_stream_destroy((struct sim_stream *)s);
	return may_go_on();
}

static CUresult stream_query(CUstream)
{
	return may_go_on();
}

static CUresult stream_synchronize(CUstream s)
{
	sim_stream_synchronize((struct sim_stream *)s);
	return may_go_on();
}

static CUresult copy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
	if (!may_touch(to) || !may_touch(from))
		return CUDA_ERROR_INVALID_VALUE;
	if (copy_may_begin() != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return put(s, [=] { copied(memory_at(to), memory_at(from), bytes); });
}

/* Rows as one, in no order. */
static CUresult copy_2d_async(const CUDA_MEMCPY2D *c, CUstream s)
{
	const CUDA_MEMCPY2D rows = *c;
	const char *how = getenv("FAKE_DRIVER_ROWS");

	if (rows.srcMemoryType != CU_MEMORYTYPE_UNIFIED || rows.dstMemoryType != CU_MEMORYTYPE_UNIFIED || rows.WidthInBytes > rows.srcPitch ||
	    rows.WidthInBytes > rows.dstPitch || (how && strcmp(how, "refused") == 0))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < rows.Height; i++)
		if (!may_touch(rows.srcDevice + i * rows.srcPitch) || !may_touch(rows.dstDevice + i * rows.dstPitch))
			return CUDA_ERROR_INVALID_VALUE;
	if (copy_may_begin() != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rows_calls++;
	return put(s, [=] {
		for (size_t i = rows.Height; i-- > 0;)
			copied(memory_at(rows.dstDevice + i * rows.dstPitch), memory_at(rows.srcDevice + i * rows.srcPitch), rows.WidthInBytes);
	});
}

static bool peers_say(const char *what)
{
	const char *how = getenv("FAKE_DRIVER_PEERS");

	return how && strcmp(how, what) == 0;
}

static CUresult copy_peer_async(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream s)
{
	if (peers_say("refused") || to_context == from_context || to_context != contexts.back())
		return CUDA_ERROR_INVALID_VALUE;
	if (copy_may_begin() != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return put(s, [=] { copied(memory_at(to), memory_at(from), bytes); });
}

static CUresult batch_async(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n, CUmemcpyAttributes *, size_t *first, size_t attributes,
			    CUstream s)
{
	std::vector<CUdeviceptr> t(to, to + n), f(from, from + n);
	std::vector<size_t> b(bytes, bytes + n);
	const char *how = getenv("FAKE_DRIVER_BATCH");

	if (attributes != 1 || *first != 0 || (how && strcmp(how, "refused") == 0))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n; i++)
		if (!may_touch(t[i]) || !may_touch(f[i]))
			return CUDA_ERROR_INVALID_VALUE;
	if (copy_may_begin() != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return put(s, [=] {
		for (size_t i = n; i-- > 0;) /* a batch has no order */
			copied(memory_at(t[i]), memory_at(f[i]), b[i]);
	});
}

static CUresult memset_async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream s)
{
	return put(s, [=] { memset(memory_at(to), value, bytes); });
}

static CUresult write_value(CUstream s, CUdeviceptr word, cuuint32_t value, unsigned int)
{
	return put(s, [=] { ((std::atomic<uint32_t> *)memory_at(word))->store(value, std::memory_order_release); });
}

static CUresult wait_value(CUstream s, CUdeviceptr word, cuuint32_t value, unsigned int flags)
{
	if (flags != CU_STREAM_WAIT_VALUE_GEQ)
		return CUDA_ERROR_INVALID_VALUE;
	return put(s, [=] {
		while (!gone && (int32_t)(((std::atomic<uint32_t> *)memory_at(word))->load(std::memory_order_acquire) - value) < 0)
			usleep(50);
	});
}

static CUresult host_func(CUstream s, CUhostFn call, void *arg)
{
	return put(s, [=] { call(arg); });
}

extern "C" enum status kv_cuda_copy_load(const char **why)
{
	const char *how = getenv("FAKE_DRIVER_KERNEL");

	if (!how || strcmp(how, "none") != 0)
		return STATUS_OK;
	*why = "no code of the kernel's";
	return STATUS_INTERNAL;
}

extern "C" enum status kv_cuda_sums_load(const char **why)
{
	return kv_cuda_copy_load(why);
}

static std::vector<uint32_t> crc32c_table()
{
	std::vector<uint32_t> table(256);

	for (uint32_t i = 0; i < 256; i++) {
		table[i] = i;
		for (int bit = 0; bit < 8; bit++)
			table[i] = table[i] & 1 ? (table[i] >> 1) ^ 0x82f63b78u : table[i] >> 1;
	}
	return table;
}

static uint32_t crc32c(const uint8_t *at, uint64_t bytes)
{
	static const std::vector<uint32_t> table = crc32c_table();
	uint32_t r = UINT32_MAX;

	for (uint64_t i = 0; i < bytes; i++)
		r = (r >> 8) ^ table[(r ^ at[i]) & 255];
	return ~r;
}

extern "C" enum status kv_cuda_sums(const struct kv_cuda_sums *given, struct CUstream_st *s)
{
	const struct kv_cuda_sums k = *given;
	const char *how = getenv("FAKE_DRIVER_KERNEL");

	if (how && strcmp(how, "refused") == 0)
		return STATUS_INTERNAL;
	return put(s, [k] {
		const uint64_t *at = (const uint64_t *)memory_at((CUdeviceptr)k.at);
		uint32_t *sums = (uint32_t *)memory_at((CUdeviceptr)k.sums);

		for (uint32_t i = 0; i < k.count * k.parts && !gone; i++)
			sums[i] ^= crc32c(memory_at(at[i / k.parts]) + i % k.parts * k.part_bytes, k.part_bytes);
	}) == CUDA_SUCCESS ? STATUS_OK : STATUS_INTERNAL;
}

extern "C" enum status kv_cuda_copy_pairs(const struct kv_cuda_pairs *given, struct CUstream_st *s)
{
	const struct kv_cuda_pairs k = *given;
	const char *how = getenv("FAKE_DRIVER_KERNEL");

	if (how && strcmp(how, "refused") == 0)
		return STATUS_INTERNAL;
	if (how && strcmp(how, "none") == 0)
		abort();
	kernels++;
	CUresult r = put(s, [k] {
		const struct device_pair *p = (const struct device_pair *)memory_at((CUdeviceptr)k.pairs);
		const uint32_t *counts = k.counts ? (const uint32_t *)memory_at((CUdeviceptr)k.counts) : nullptr;

		for (uint32_t i = 0; counts && i < KV_COPY_COUNTS + k.parts; i++)
			if (counts[i] != 0)
				abort();
		for (uint32_t part = 0; part < k.parts; part++) {
			const uint64_t at = part * k.part_bytes;

			for (uint32_t i = 0; i < k.count && !gone; i++)
				copied(memory_at(p[i].to) + at, memory_at(p[i].from) + at, k.part_bytes);
			if (counts && !gone)
				((std::atomic<uint32_t> *)memory_at((CUdeviceptr)k.word))->store(k.base + part + 1, std::memory_order_release);
		}
	});

	return r == CUDA_SUCCESS && k.ctas > 0 ? STATUS_OK : STATUS_INTERNAL;
}

struct fake_event {
	std::atomic<uint64_t> recorded, reached; /* how often it was put into a stream, and which of them has come; the last that a stream touches */
};

static CUresult event_create(CUevent *out, unsigned int)
{
	if (!one_of(things_left))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = (CUevent) new fake_event();
	return may_go_on();
}

static CUresult event_record(CUevent event, CUstream s)
{
	fake_event *e = (fake_event *)event;
	CUresult r;

	const uint64_t number = ++e->recorded;

	r = put(s, [=] { e->reached = number; });
	if (r != CUDA_SUCCESS)
		e->reached = number;
	return r;
}

/* For the newest record before this. */
static CUresult wait_event(CUstream s, CUevent event, unsigned int)
{
	fake_event *e = (fake_event *)event;
	const uint64_t number = e->recorded;

	return put(s, [=] {
		while (!gone && e->reached < number)
			usleep(50);
	});
}

static CUresult event_query(CUevent event)
{
	if (gone)
		return CUDA_ERROR_LAUNCH_FAILED;
	return ((fake_event *)event)->reached < ((fake_event *)event)->recorded ? CUDA_ERROR_NOT_READY : may_go_on();
}

static CUresult event_elapsed(float *ms, CUevent, CUevent)
{
	const char *late = getenv("FAKE_DRIVER_LATE_MS");

	*ms = late ? (float)atof(late) : (float)late_ms;
	return may_go_on();
}

static CUresult event_destroy(CUevent event)
{
	delete (fake_event *)event;
	return CUDA_SUCCESS;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static CUresult address_reserve(CUdeviceptr *out, size_t bytes, size_t, CUdeviceptr, unsigned long long)
{
	uint8_t *at = (uint8_t *)mmap(nullptr, bytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t begin = ((uint64_t)at + GRANULE - 1) / GRANULE * GRANULE;

	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	munmap(at, begin - (uint64_t)at);
	munmap((void *)(begin + bytes), (uint64_t)at + GRANULE - begin);
	*out = begin | MARK;
	return may_go_on();
}

static CUresult address_free(CUdeviceptr at, size_t bytes)
{
	return munmap(memory_at(at), bytes) == 0 ? may_go_on() : CUDA_ERROR_INVALID_VALUE;
}

static CUresult memory_create(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *p, unsigned long long)
{
	int fd;

	if (p->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || bytes % GRANULE != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (used + bytes > TOTAL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fd = memfd_create(("fake-gpu-" + std::to_string(p->location.id)).c_str(), 0);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	used += bytes;
	*out = (CUmemGenericAllocationHandle) new fake_memory{fd, p->location.id, bytes, true};
	return may_go_on();
}

static CUresult memory_release(CUmemGenericAllocationHandle handle)
{
	fake_memory *m = (fake_memory *)handle;

	if (m->made)
		used -= m->bytes;
	close(m->fd);
	delete m;
	return may_go_on();
}

static CUresult memory_map(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long)
{
	fake_memory *m = (fake_memory *)handle;

	if (bytes != m->bytes)
		return CUDA_ERROR_NOT_SUPPORTED; /* as a real one does */
	if (mmap(memory_at(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED)
		return CUDA_ERROR_MAP_FAILED;
	madvise(memory_at(at), bytes, MADV_DONTFORK);
	std::lock_guard<std::mutex> lock(mutex);

	reached[at] = {bytes, {}};
	return may_go_on();
}

static CUresult memory_unmap(CUdeviceptr at, size_t bytes)
{
	{
		std::lock_guard<std::mutex> lock(mutex);

		reached.erase(at);
	}
	mmap(memory_at(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	return may_go_on();
}

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *a, size_t)
{
	std::lock_guard<std::mutex> lock(mutex);

	mprotect(memory_at(at), bytes, a->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : PROT_READ);
	reached[at].second.insert(a->location.id);
	return may_go_on();
}

static CUresult export_handle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType, unsigned long long)
{
	*(int *)out = dup(((fake_memory *)handle)->fd);
	return *(int *)out >= 0 ? may_go_on() : CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult import_handle(CUmemGenericAllocationHandle *out, void *fd, CUmemAllocationHandleType)
{
	char path[64], name[64] = "";
	struct stat st;

	snprintf(path, sizeof path, "/proc/self/fd/%d", (int)(intptr_t)fd);
	if (readlink(path, name, sizeof name - 1) < 0 || strncmp(name, "/memfd:fake-gpu-", 16) != 0 || fstat((int)(intptr_t)fd, &st) != 0)
		return CUDA_ERROR_UNKNOWN; /* as a real one does */
	*out = (CUmemGenericAllocationHandle) new fake_memory{dup((int)(intptr_t)fd), atoi(name + 16), (uint64_t)st.st_size, false};
	return may_go_on();
}

static CUresult properties_of(CUmemAllocationProp *p, CUmemGenericAllocationHandle handle)
{
	p->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p->location.id = ((fake_memory *)handle)->device;
	return may_go_on();
}

static CUresult host_register(void *memory, size_t bytes, unsigned int)
{
	std::lock_guard<std::mutex> lock(mutex);

	if (msync(memory, bytes, MS_ASYNC) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (pinned.count(memory))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	pinned[memory] = bytes;
	return may_go_on();
}

static CUresult host_unregister(void *memory)
{
	std::lock_guard<std::mutex> lock(mutex);

	return pinned.erase(memory) ? may_go_on() : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

static CUresult host_pointer(CUdeviceptr *out, void *memory, unsigned int)
{
	*out = (CUdeviceptr)(uintptr_t)memory | MARK;
	return may_go_on();
}

static CUresult host_alloc(void **out, size_t bytes, unsigned int)
{
	if (!one_of(things_left))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = malloc(bytes);
	return may_go_on();
}

static CUresult host_free(void *memory)
{
	free(memory);
	return may_go_on();
}

static CUresult allocate(CUdeviceptr *out, size_t bytes)
{
	if (!one_of(things_left))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = (CUdeviceptr)(uintptr_t)malloc(bytes) | MARK;
	return may_go_on();
}

static CUresult release(CUdeviceptr at)
{
	free(memory_at(at));
	return may_go_on();
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

static CUresult init(unsigned int)
{
	return CUDA_SUCCESS;
}

static CUresult error_string(CUresult r, const char **out)
{
	*out = r == CUDA_ERROR_LAUNCH_FAILED ? "the fake GPU is lost" : "a fake error";
	return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *out, int ordinal)
{
	*out = ordinal;
	return CUDA_SUCCESS;
}

static CUresult device_count(int *out)
{
	const char *devices = getenv("FAKE_DRIVER_DEVICES");

	*out = devices ? atoi(devices) : 1;
	return *out > DEVICES_MOST ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult can_access_peer(int *out, CUdevice, CUdevice)
{
	*out = !peers_say("no") && !peers_say("refused");
	return CUDA_SUCCESS;
}

static CUresult device_name(char *out, int room, CUdevice)
{
	snprintf(out, (size_t)room, "a fake GPU");
	return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *out, CUdevice device)
{
	memcpy(out->bytes, "a-fake-gpu-uuid", 16);
	out->bytes[15] = (char)device;
	return CUDA_SUCCESS;
}

static CUresult attribute(int *out, CUdevice_attribute a, CUdevice)
{
	const char *major = getenv("FAKE_DRIVER_MAJOR");

	*out = a == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? (major ? atoi(major) : 9) : 1;
	return CUDA_SUCCESS;
}

static CUresult context_retain(CUcontext *out, CUdevice device)
{
	*out = (CUcontext)(context_of + device);
	return CUDA_SUCCESS;
}

static CUresult context_release(CUdevice)
{
	return CUDA_SUCCESS;
}

static CUresult context_push(CUcontext context)
{
	contexts.push_back(context);
	return CUDA_SUCCESS;
}

static CUresult context_pop(CUcontext *)
{
	if (contexts.empty())
		return CUDA_ERROR_INVALID_CONTEXT;
	contexts.pop_back();
	return CUDA_SUCCESS;
}

static CUresult capture_mode(CUstreamCaptureMode *mode)
{
	static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;

	std::swap(*mode, current);
	return CUDA_SUCCESS;
}

static CUresult memory_info(size_t *free_bytes, size_t *bytes)
{
	*bytes = TOTAL;
	*free_bytes = TOTAL - used;
	return may_go_on();
}

static CUresult granularity(size_t *out, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)
{
	*out = GRANULE;
	return may_go_on();
}

static struct cuda_driver make(void)
{
	const char *how = getenv("FAKE_DRIVER_BATCH");
	struct cuda_driver d = {
		init, error_string, device_get, device_count, device_name, device_uuid, attribute, can_access_peer, context_retain, context_release,
		context_push, context_pop, capture_mode, memory_info, granularity, address_reserve, address_free, memory_create,
		memory_release, memory_map, memory_unmap, set_access, export_handle, import_handle, properties_of, host_register,
		host_unregister, host_pointer, host_alloc, host_free, allocate, release, copy_async, copy_2d_async, copy_peer_async, memset_async, stream_create,
		stream_destroy, stream_query, wait_event, stream_synchronize, write_value, wait_value, host_func, event_create, event_record,
		event_elapsed, event_query, event_destroy, batch_async,
	};

	if (how && strcmp(how, "no") == 0)
		d.cuMemcpyBatchAsync = nullptr;
	return d;
}

const struct cuda_driver *cuda_driver(void)
{
	static const struct cuda_driver driver = make();

	return &driver;
}

bool cuda_error_sticks(CUresult r)
{
	return r == CUDA_ERROR_LAUNCH_FAILED || r == CUDA_ERROR_UNKNOWN;
}

enum status cuda_error_status(CUresult r)
{
	switch (r) {
	case CUDA_SUCCESS:
		return STATUS_OK;
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_OPERATING_SYSTEM:
		return STATUS_EXHAUSTED;
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
		return STATUS_INVALID;
	case CUDA_ERROR_NOT_SUPPORTED:
		return STATUS_UNSUPPORTED;
	default:
		return cuda_error_sticks(r) ? STATUS_UNAVAILABLE : STATUS_INTERNAL;
	}
}

extern "C" __attribute__((visibility("default"))) const struct device_ops *terrace_device_ops(void)
{
	return kv_cuda_device_ops();
}
