/* A GPU's memory and the host memory that it reaches: see store/device.h and device_memory.h.
 *
 * All calls run in the device's primary context, the one that CUDA's runtime uses; it is pushed for the length of a
 * call. The thread's capture mode is relaxed meanwhile, so that a graph that is being captured elsewhere in the process
 * does not forbid the calls.
 *
 * Memory comes from cuMemCreate, exportable as a descriptor, and is mapped where the caller wants it inside a reserved
 * range. A list keeps the known ranges, extents and host memory, for checks and for the end. The process's other open
 * GPUs get access to memory that one GPU makes, where they reach it (NVLink, PCIe): then copies across go straight.
 * Else the driver takes them through host memory.
 */
#include "kernels/cuda/device_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

static thread_local char words[200];

/* Host memory is registered once a process, whatever devices use it. */
struct registration {
	struct registration *next;
	void *memory;
	uint64_t bytes;
	bool write;
	uint32_t users;
};
static pthread_mutex_t registered_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct registration *registrations;

static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER; /* before a device's own */
static struct device *open_devices;

device_entered::device_entered(struct device *d) : driver(d->driver)
{
	result = driver->cuCtxPushCurrent(d->context);
	driver->cuThreadExchangeStreamCaptureMode(&mode);
}

device_entered::~device_entered()
{
	CUcontext popped;

	driver->cuThreadExchangeStreamCaptureMode(&mode);
	if (result == CUDA_SUCCESS)
		driver->cuCtxPopCurrent(&popped);
}

static enum status refuse(enum status s, const char **why, const char *sentence)
{
	*why = sentence;
	return s;
}

/* An unknown error is also what the driver says of a descriptor that is none: a context that has failed says so
 * again. */
static bool answers(const struct device *d)
{
	const CUresult r = d->zeroing ? d->driver->cuStreamQuery(d->zeroing) : CUDA_ERROR_UNKNOWN;

	return r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY;
}

enum status device_failed(struct device *d, CUresult r, const char *what, const char **why)
{
	const char *text = "unknown error";

	d->driver->cuGetErrorString(r, &text);
	snprintf(words, sizeof words, "%s: %s", what, text);
	*why = words;
	if (r == CUDA_ERROR_UNKNOWN && answers(d))
		return STATUS_INTERNAL;
	if (cuda_error_sticks(r))
		d->lost = true;
	return cuda_error_status(r);
}

/* Every call begins with it. */
static enum status may_call(struct device *d, const device_entered &entered, const char **why)
{
	if (!d->lost && entered.result == CUDA_SUCCESS)
		return STATUS_OK;
	if (!d->lost)
		device_failed(d, entered.result, "the GPU's context is gone", why);
	else
		*why = "the GPU is lost";
	d->lost = true;
	return STATUS_UNAVAILABLE;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static uint32_t count(void)
{
	const struct cuda_driver *driver = cuda_driver();
	int n = 0;

	if (!driver || driver->cuDeviceGetCount(&n) != CUDA_SUCCESS || n < 0)
		return 0;
	return (uint32_t)(n < DEVICES_MAX ? n : (int)DEVICES_MAX);
}

static enum status uuid(uint32_t ordinal, uint8_t out[DEVICE_UUID_BYTES], const char **why)
{
	const struct cuda_driver *driver = cuda_driver();
	const char *text = "unknown error";
	CUdevice number;
	CUuuid is;
	CUresult r;

	if (ordinal >= count())
		return refuse(STATUS_INVALID, why, "there is no such GPU");
	r = driver->cuDeviceGet(&number, (int)ordinal);
	if (r == CUDA_SUCCESS)
		r = driver->cuDeviceGetUuid(&is, number);
	if (r != CUDA_SUCCESS) {
		driver->cuGetErrorString(r, &text);
		snprintf(words, sizeof words, "the GPU does not tell its uuid: %s", text);
		return refuse(cuda_error_status(r), why, words);
	}
	static_assert(sizeof is == DEVICE_UUID_BYTES, "a UUID");
	memcpy(out, &is, sizeof is);
	return STATUS_OK;
}

static bool has(const struct device *d, CUdevice_attribute attribute)
{
	int value = 0;

	return d->driver->cuDeviceGetAttribute(&value, attribute, d->number) == CUDA_SUCCESS && value > 0;
}

static CUmemAllocationProp properties(const struct device *d)
{
	CUmemAllocationProp p = {};

	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = d->number;
	return p;
}

/* What the device can, and what it needs once it is open. */
static enum status examine(struct device *d, const char **why)
{
	const CUmemAllocationProp p = properties(d);
	device_entered entered(d);
	size_t granularity = 0;
	int major = 0;
	CUresult r = entered.result;

	if (!has(d, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
	    !has(d, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
		return refuse(STATUS_UNSUPPORTED, why, "the GPU or its driver cannot share memory by descriptors");
	if (r == CUDA_SUCCESS)
		r = d->driver->cuMemGetAllocationGranularity(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (r == CUDA_SUCCESS)
		r = d->driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d->number);
	if (r == CUDA_SUCCESS)
		r = d->driver->cuStreamCreateWithPriority(&d->zeroing, CU_STREAM_NON_BLOCKING, 0);
	if (r == CUDA_SUCCESS)
		r = device_copy_open(d);
	if (r != CUDA_SUCCESS)
		return device_failed(d, r, "the GPU cannot be used", why);
	d->granularity = granularity;
	d->kernels = major >= 9 && major < 12 && kv_cuda_copy_load(&d->no_kernel) == STATUS_OK; /* code_is_portable: it copies in bulk */
	d->read_only_host = has(d, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
	return STATUS_OK;
}

static void lanes_init(struct device *d)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	for (uint32_t i = 0; i < DEVICE_WAYS; i++) {
		d->lanes[i].device = d;
		d->lanes[i].way = (enum device_way)i;
		d->lanes[i].last = &d->lanes[i].first;
		pthread_cond_init(&d->lanes[i].more, &attr);
	}
	pthread_condattr_destroy(&attr);
}

static void streams_free(struct device *d)
{
	device_entered entered(d);

	device_copy_free(d);
	device_sums_free(d);
	if (d->zeroing)
		d->driver->cuStreamDestroy(d->zeroing);
}

static void device_free(struct device *d)
{
	for (uint32_t i = 0; i < DEVICE_WAYS; i++)
		pthread_cond_destroy(&d->lanes[i].more);
	pthread_mutex_destroy(&d->mutex);
	device_spans_free(&d->spans);
	delete d;
}

static enum status open_device(uint32_t ordinal, struct device **out, const char **why)
{
	struct device *d;
	enum status s;
	CUresult r;

	if (ordinal >= count())
		return refuse(STATUS_INVALID, why, "there is no such GPU");
	d = new (std::nothrow) device();
	if (!d)
		return refuse(STATUS_EXHAUSTED, why, "no memory");
	d->driver = cuda_driver();
	d->engine_bytes = DEVICE_ENGINE_BYTES;
	pthread_mutex_init(&d->mutex, nullptr);
	lanes_init(d);
	r = d->driver->cuDeviceGet(&d->number, (int)ordinal);
	if (r == CUDA_SUCCESS)
		r = d->driver->cuDevicePrimaryCtxRetain(&d->context, d->number);
	if (r != CUDA_SUCCESS) {
		s = device_failed(d, r, "the GPU cannot be opened", why);
		device_free(d);
		return s;
	}
	s = examine(d, why);
	if (s != STATUS_OK) {
		streams_free(d);
		d->driver->cuDevicePrimaryCtxRelease(d->number);
		device_free(d);
		return s;
	}
	pthread_mutex_lock(&open_mutex);
	d->next_open = open_devices;
	open_devices = d;
	pthread_mutex_unlock(&open_mutex);
	*out = d;
	return STATUS_OK;
}

static enum status info(struct device *d, struct device_info *out, const char **why)
{
	device_entered entered(d);
	struct device_info i = {};
	size_t free_bytes = 0, bytes = 0;
	enum status s = may_call(d, entered, why);
	CUuuid is;
	CUresult r;

	if (s != STATUS_OK)
		return s;
	r = d->driver->cuMemGetInfo(&free_bytes, &bytes);
	if (r == CUDA_SUCCESS)
		r = d->driver->cuDeviceGetUuid(&is, d->number);
	if (r == CUDA_SUCCESS)
		r = d->driver->cuDeviceGetName(i.name, sizeof i.name, d->number);
	if (r != CUDA_SUCCESS)
		return device_failed(d, r, "the GPU does not tell of itself", why);
	memcpy(i.uuid, &is, sizeof i.uuid);
	i.bytes = bytes;
	i.free_bytes = free_bytes;
	i.granularity = d->granularity;
	snprintf(i.no_kernel, sizeof i.no_kernel, "%s", d->no_kernel ? d->no_kernel : "");
	*out = i;
	return STATUS_OK;
}

static bool is_lost(struct device *d)
{
	device_entered entered(d);
	const char *why;
	CUresult r;

	if (may_call(d, entered, &why) != STATUS_OK)
		return true;
	r = d->driver->cuStreamQuery(d->zeroing);
	if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
		device_failed(d, r, "the GPU does not answer", &why);
	return d->lost;
}

/* ---- the list of regions ----------------------------------------------------------------------------------------- */

enum region_sort { SORT_RANGE, SORT_EXTENT, SORT_HOST };

static enum region_sort sort_of(const struct device_region *r)
{
	return r->kind == device_region::REGION_RANGE ? SORT_RANGE : r->kind == device_region::REGION_HOST ? SORT_HOST : SORT_EXTENT;
}

static struct device_span span_of(const struct device_region *r)
{
	const uint64_t at = sort_of(r) == SORT_HOST ? r->address : r->at;

	return {at, at + r->bytes, sort_of(r) == SORT_HOST};
}

static struct device_region *region_add(struct device *d, const struct device_region &as)
{
	struct device_region *r = new (std::nothrow) device_region(as);

	if (!r)
		return nullptr;
	pthread_mutex_lock(&d->mutex);
	const bool added = sort_of(r) == SORT_RANGE || device_spans_add(&d->spans, span_of(r));

	if (added) {
		r->next = d->regions;
		d->regions = r;
	}
	pthread_mutex_unlock(&d->mutex);
	if (added)
		return r;
	delete r;
	return nullptr;
}

/* Takes the region of this sort that begins there out of the list. */
static struct device_region *region_take(struct device *d, uint64_t at, enum region_sort sort)
{
	struct device_region *r = nullptr;

	pthread_mutex_lock(&d->mutex);
	for (struct device_region **place = &d->regions; *place; place = &(*place)->next) {
		if ((*place)->at == at && sort_of(*place) == sort) {
			r = *place;
			*place = r->next;
			if (sort != SORT_RANGE)
				device_spans_remove(&d->spans, span_of(r));
			break;
		}
	}
	pthread_mutex_unlock(&d->mutex);
	return r;
}

static bool overlaps(const struct device_region *r, uint64_t at, uint64_t bytes)
{
	return at < r->at + r->bytes && r->at < at + bytes;
}

/* Whether an extent may be put there: inside a range, beside the others. */
static bool place_free(struct device *d, uint64_t at, uint64_t bytes)
{
	bool in_range = false, taken = false;

	pthread_mutex_lock(&d->mutex);
	for (const struct device_region *r = d->regions; r; r = r->next) {
		if (sort_of(r) == SORT_RANGE)
			in_range = in_range || (at >= r->at && bytes <= r->bytes && at - r->at <= r->bytes - bytes);
		else if (sort_of(r) == SORT_EXTENT)
			taken = taken || overlaps(r, at, bytes);
	}
	pthread_mutex_unlock(&d->mutex);
	return in_range && !taken;
}

void device_place(struct device *d, uint64_t address, uint64_t *begin, uint64_t *end)
{
	pthread_mutex_lock(&d->mutex);
	const struct device_span span = device_spans_find(&d->spans, address);

	pthread_mutex_unlock(&d->mutex);
	*begin = span.begin;
	*end = span.end;
}

void device_extent_place(struct device *d, uint64_t address, uint64_t *begin, uint64_t *end)
{
	pthread_mutex_lock(&d->mutex);
	const struct device_span span = device_spans_find(&d->spans, address);

	pthread_mutex_unlock(&d->mutex);
	*begin = span.host ? 0 : span.begin;
	*end = span.host ? 0 : span.end;
}

static bool whole(const struct device *d, uint64_t bytes)
{
	return bytes > 0 && bytes % d->granularity == 0;
}

/* ---- ranges and extents ------------------------------------------------------------------------------------------ */

static enum status range_reserve(struct device *d, uint64_t bytes, uint64_t *address, const char **why)
{
	device_entered entered(d);
	struct device_region range = {};
	enum status s = may_call(d, entered, why);
	CUdeviceptr at;
	CUresult r;

	if (s != STATUS_OK)
		return s;
	if (!whole(d, bytes))
		return refuse(STATUS_INVALID, why, "a range is a multiple of the granularity");
	r = d->driver->cuMemAddressReserve(&at, bytes, 0, 0, 0);
	if (r != CUDA_SUCCESS)
		return device_failed(d, r, "no address space on the GPU", why);
	range.kind = device_region::REGION_RANGE;
	range.at = at;
	range.bytes = bytes;
	if (!region_add(d, range)) {
		d->driver->cuMemAddressFree(at, bytes);
		return refuse(STATUS_EXHAUSTED, why, "no memory");
	}
	*address = at;
	return STATUS_OK;
}

/* Gives a region that is in no list any more back to the driver. A lost device's is only forgotten. */
static void region_end(struct device *d, struct device_region *r)
{
	switch (sort_of(r)) {
	case SORT_RANGE:
		d->driver->cuMemAddressFree(r->at, r->bytes);
		break;
	case SORT_EXTENT:
		d->driver->cuMemUnmap(r->at, r->bytes);
		d->driver->cuMemRelease(r->handle);
		break;
	case SORT_HOST:
		break;
	}
	delete r;
}

static void range_free(struct device *d, uint64_t address, uint64_t bytes)
{
	device_entered entered(d);
	struct device_region *r = region_take(d, address, SORT_RANGE);

	(void)bytes;
	if (r)
		region_end(d, r);
}

/* Lets the other open GPUs reach what is made here: those that can, a bit each. */
static uint32_t extent_share(struct device *d, uint64_t at, uint64_t bytes)
{
	CUmemAccessDesc access = {};
	uint32_t reached_by = 0;

	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	pthread_mutex_lock(&open_mutex);
	for (const struct device *other = open_devices; other; other = other->next_open) {
		int can = 0;

		if (other->number == d->number || d->driver->cuDeviceCanAccessPeer(&can, other->number, d->number) != CUDA_SUCCESS || !can)
			continue;
		access.location.id = other->number;
		if (d->driver->cuMemSetAccess(at, bytes, &access, 1) == CUDA_SUCCESS)
			reached_by |= 1u << other->number;
	}
	pthread_mutex_unlock(&open_mutex);
	return reached_by;
}

CUcontext device_owner_afar(struct device *d, uint64_t address)
{
	CUcontext owner = nullptr;

	pthread_mutex_lock(&open_mutex);
	for (struct device *other = open_devices; other; other = other->next_open) {
		if (other->number == d->number)
			continue;
		pthread_mutex_lock(&other->mutex);
		for (const struct device_region *r = other->regions; r; r = r->next)
			if (r->kind == device_region::REGION_MADE && overlaps(r, address, 1) && !(r->reached_by & 1u << d->number))
				owner = other->context;
		pthread_mutex_unlock(&other->mutex);
	}
	pthread_mutex_unlock(&open_mutex);
	return owner;
}

static bool reaches(struct device *d, struct device *other)
{
	int can = 0;

	return other->number != d->number && d->driver->cuDeviceCanAccessPeer(&can, d->number, other->number) == CUDA_SUCCESS && can;
}

/* Maps a handle, which stays the caller's on failure. */
static enum status extent_map(struct device *d, CUmemGenericAllocationHandle handle, uint64_t at, uint64_t bytes, bool write,
			      bool made, struct device_extent *out, const char **why)
{
	CUmemAccessDesc access = {};
	struct device_region region = {}, *added;
	CUresult r;

	if (at % d->granularity != 0 || !place_free(d, at, bytes))
		return refuse(STATUS_INVALID, why, "an extent goes into a range, beside the others");
	r = d->driver->cuMemMap(at, bytes, 0, handle, 0);
	if (r != CUDA_SUCCESS) {
		const enum status s = device_failed(d, r, "memory of the GPU cannot be mapped", why);

		return s == STATUS_UNSUPPORTED ? STATUS_INVALID : s; /* what it says of less memory than that */
	}
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = d->number;
	access.flags = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
	r = d->driver->cuMemSetAccess(at, bytes, &access, 1);
	region.kind = made ? device_region::REGION_MADE : device_region::REGION_IMPORTED;
	region.at = at;
	region.bytes = bytes;
	region.handle = handle;
	region.reached_by = made && r == CUDA_SUCCESS ? extent_share(d, at, bytes) : 0;
	added = r == CUDA_SUCCESS ? region_add(d, region) : nullptr;
	if (!added) {
		d->driver->cuMemUnmap(at, bytes);
		return r == CUDA_SUCCESS ? refuse(STATUS_EXHAUSTED, why, "no memory")
					 : device_failed(d, r, "memory of the GPU cannot be given its access rights", why);
	}
	out->address = at;
	out->bytes = bytes;
	out->handle = added;
	return STATUS_OK;
}

static void extent_drop(struct device *d, const struct device_extent *e)
{
	device_entered entered(d);
	struct device_region *r = region_take(d, e->address, SORT_EXTENT);

	if (r)
		region_end(d, r);
}

/* A descriptor for it, and zeroes in it. */
static enum status extent_finish(struct device *d, const struct device_extent *e, CUmemGenericAllocationHandle handle, int *fd,
				 const char **why)
{
	int exported = -1;
	CUresult r = d->driver->cuMemExportToShareableHandle(&exported, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

	if (r == CUDA_SUCCESS)
		r = d->driver->cuMemsetD8Async(e->address, 0, e->bytes, d->zeroing);
	if (r == CUDA_SUCCESS)
		r = d->driver->cuStreamSynchronize(d->zeroing);
	if (r == CUDA_SUCCESS && fcntl(exported, F_SETFD, FD_CLOEXEC) != 0)
		r = CUDA_ERROR_OPERATING_SYSTEM;
	if (r == CUDA_SUCCESS) {
		*fd = exported;
		return STATUS_OK;
	}
	if (exported >= 0)
		close(exported);
	return device_failed(d, r, "memory of the GPU cannot be shared or cleared", why);
}

static enum status extent_make(struct device *d, uint64_t at, uint64_t bytes, struct device_extent *out, int *fd, const char **why)
{
	const CUmemAllocationProp p = properties(d);
	device_entered entered(d);
	CUmemGenericAllocationHandle handle;
	struct device_extent e;
	enum status s = may_call(d, entered, why);
	CUresult r;

	if (s != STATUS_OK)
		return s;
	if (!whole(d, bytes))
		return refuse(STATUS_INVALID, why, "an extent is a multiple of the granularity");
	r = d->driver->cuMemCreate(&handle, bytes, &p, 0);
	if (r != CUDA_SUCCESS)
		return device_failed(d, r, "no memory on the GPU", why);
	s = extent_map(d, handle, at, bytes, true, true, &e, why);
	if (s != STATUS_OK) {
		d->driver->cuMemRelease(handle);
		return s;
	}
	s = extent_finish(d, &e, handle, fd, why);
	if (s == STATUS_OK)
		*out = e;
	else
		extent_drop(d, &e);
	device_sums_prepare(d);
	return s;
}

static enum status extent_import(struct device *d, int fd, uint64_t at, uint64_t bytes, bool write, struct device_extent *out,
				 const char **why)
{
	device_entered entered(d);
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp p = {};
	enum status s = may_call(d, entered, why);
	CUresult r;

	if (s != STATUS_OK)
		return s;
	if (!whole(d, bytes))
		return refuse(STATUS_INVALID, why, "an extent is a multiple of the granularity");
	r = d->driver->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r != CUDA_SUCCESS) {
		s = device_failed(d, r, "the descriptor cannot be imported", why);
		return s == STATUS_EXHAUSTED || s == STATUS_UNAVAILABLE ? s : STATUS_INVALID;
	}
	r = d->driver->cuMemGetAllocationPropertiesFromHandle(&p, handle);
	if (r != CUDA_SUCCESS)
		s = device_failed(d, r, "the descriptor's memory does not tell of itself", why);
	else if (p.location.type != CU_MEM_LOCATION_TYPE_DEVICE || p.location.id != d->number)
		s = refuse(STATUS_INVALID, why, "the descriptor is of another GPU's memory");
	else
		s = extent_map(d, handle, at, bytes, write, false, out, why);
	if (s != STATUS_OK)
		d->driver->cuMemRelease(handle);
	return s;
}

/* ---- host memory ------------------------------------------------------------------------------------------------- */

/* The driver's part of a registration; under registered_mutex, in a context. */
static enum status pin(struct device *d, void *memory, uint64_t bytes, bool write, const char **why)
{
	unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	struct registration *g;
	CUresult r;

	for (g = registrations; g; g = g->next) {
		if (g->memory == memory && g->bytes == bytes && g->write == write) {
			g->users++;
			return STATUS_OK;
		}
	}
	if (!write && d->read_only_host)
		flags |= CU_MEMHOSTREGISTER_READ_ONLY;
	g = new (std::nothrow) registration{registrations, memory, bytes, write, 1};
	if (!g)
		return refuse(STATUS_EXHAUSTED, why, "no memory");
	r = d->driver->cuMemHostRegister(memory, bytes, flags);
	if (r != CUDA_SUCCESS) {
		delete g;
		return device_failed(d, r, "host memory cannot be pinned", why);
	}
	registrations = g;
	return STATUS_OK;
}

static void unpin(struct device *d, void *memory)
{
	pthread_mutex_lock(&registered_mutex);
	for (struct registration **at = &registrations; *at; at = &(*at)->next) {
		struct registration *g = *at;

		if (g->memory == memory) {
			if (--g->users == 0) {
				*at = g->next;
				d->driver->cuMemHostUnregister(memory);
				delete g;
			}
			break;
		}
	}
	pthread_mutex_unlock(&registered_mutex);
}

static bool is_registered(struct device *d, uint64_t at, uint64_t bytes)
{
	bool found = false;

	pthread_mutex_lock(&d->mutex);
	for (const struct device_region *r = d->regions; r; r = r->next)
		found = found || (sort_of(r) == SORT_HOST && overlaps(r, at, bytes));
	pthread_mutex_unlock(&d->mutex);
	return found;
}

static enum status host_register(struct device *d, void *memory, uint64_t bytes, bool write, uint64_t *address, const char **why)
{
	device_entered entered(d);
	struct device_region region = {};
	enum status s = may_call(d, entered, why);
	CUdeviceptr at;
	CUresult r;

	if (s != STATUS_OK)
		return s;
	if (!memory || bytes == 0 || (uintptr_t)memory % (uintptr_t)sysconf(_SC_PAGESIZE) != 0 ||
	    is_registered(d, (uintptr_t)memory, bytes))
		return refuse(STATUS_INVALID, why, "no host memory, or registered already");
	pthread_mutex_lock(&registered_mutex);
	s = pin(d, memory, bytes, write, why);
	pthread_mutex_unlock(&registered_mutex);
	if (s != STATUS_OK)
		return s;
	region.kind = device_region::REGION_HOST;
	region.at = (uintptr_t)memory;
	region.bytes = bytes;
	r = d->driver->cuMemHostGetDevicePointer(&at, memory, 0);
	region.address = at;
	if (r != CUDA_SUCCESS || !region_add(d, region)) {
		unpin(d, memory);
		return r == CUDA_SUCCESS ? refuse(STATUS_EXHAUSTED, why, "no memory")
					 : device_failed(d, r, "pinned host memory has no address on the GPU", why);
	}
	*address = at;
	return STATUS_OK;
}

static void host_unregister(struct device *d, void *memory)
{
	device_entered entered(d);
	struct device_region *r = region_take(d, (uintptr_t)memory, SORT_HOST);

	if (!r)
		return;
	unpin(d, memory);
	region_end(d, r);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static void regions_end(struct device *d)
{
	for (int ranges = 0; ranges < 2; ranges++) { /* what is in them goes before them */
		struct device_region **at = &d->regions;

		while (*at) {
			struct device_region *r = *at;

			if (ranges == 0 && sort_of(r) == SORT_RANGE) {
				at = &r->next;
				continue;
			}
			*at = r->next;
			if (sort_of(r) == SORT_HOST)
				unpin(d, (void *)(uintptr_t)r->at);
			region_end(d, r);
		}
	}
}

/* A GPU that does not end its copies keeps what they touch, and the context. */
static void close_device(struct device *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&open_mutex);
	for (struct device **at = &open_devices; *at; at = &(*at)->next_open) {
		if (*at == d) {
			*at = d->next_open;
			break;
		}
	}
	pthread_mutex_unlock(&open_mutex);
	const bool copied = device_copy_end(d), summed = device_sums_end(d);

	if (!copied || !summed)
		return;
	{
		device_entered entered(d);

		regions_end(d);
	}
	streams_free(d);
	d->driver->cuDevicePrimaryCtxRelease(d->number);
	device_free(d);
}

/* ---- streams, which are the caller's and of its context ---------------------------------------------------------- */

static enum status stream_wait(struct device *d, void *stream, uint64_t word, uint32_t value, const char **why)
{
	CUresult r;

	if (d->lost)
		return refuse(STATUS_UNAVAILABLE, why, "the GPU is lost");
	if (word % 4 != 0)
		return refuse(STATUS_INVALID, why, "a word is aligned");
	r = d->driver->cuStreamWaitValue32((CUstream)stream, word, value, CU_STREAM_WAIT_VALUE_GEQ);
	return r == CUDA_SUCCESS ? STATUS_OK : device_failed(d, r, "the stream cannot wait", why);
}

static enum status stream_then(struct device *d, void *stream, void (*call)(void *arg), void *arg, const char **why)
{
	CUresult r;

	if (d->lost)
		return refuse(STATUS_UNAVAILABLE, why, "the GPU is lost");
	r = d->driver->cuLaunchHostFunc((CUstream)stream, call, arg);
	return r == CUDA_SUCCESS ? STATUS_OK : device_failed(d, r, "the stream cannot tell", why);
}

extern "C" void kv_cuda_device_engine_bytes(struct device *d, uint64_t bytes)
{
	d->engine_bytes = bytes;
}

extern "C" const struct device_ops *kv_cuda_device_ops(void)
{
	static const struct device_ops table = {
		DEVICE_OPS_VERSION, sizeof(struct device_ops), count, uuid, open_device, close_device, info, is_lost, reaches,
		range_reserve, range_free, extent_make, extent_import, extent_drop, host_register, host_unregister, device_copy_begin,
		device_copy_ready, device_sums_begin, stream_wait, stream_then,
	};

	return &table;
}
