/* Extents of memory: checks what a packet says of an extent, and maps it. */
#include "client/memory/mapping.h"

#include "client/driver/gpu.h"
#include "client/transport/packet.h"
#include "client/value/status.h"
#include "proto/fdsock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_LEAST = 4096, HOLD_BYTES = 4096, RANGES_MAX = 4096 };
#define EXTENT_BYTES_MAX (1ull << 40)
#define RANGE_BYTES_MAX (1ull << 45)

static enum terrace_status extent_fail(const struct fdsock_extent *e, const char *problem)
{
	return client_fail(TERRACE_INTERNAL, "extent %u: %s", e->extent, problem);
}

/* Maps the file of descriptor `i`, out of children's reach. */
static enum terrace_status file_map(const struct client_packet *p, int i, uint64_t bytes, bool writable, uint8_t **out)
{
	void *base = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, p->descriptors[i], 0);
	int error = base == MAP_FAILED ? errno : 0;

	if (!error && madvise(base, bytes, MADV_DONTFORK)) {
		error = errno;
		munmap(base, bytes);
	}
	if (error)
		return client_fail(error == EACCES || error == EPERM ? TERRACE_DENIED : TERRACE_EXHAUSTED,
				   "mapping extent %u: %s", p->body.extent.extent, strerror(error));
	*out = base;
	return TERRACE_OK;
}

/* ---- GPUs
 * ---------------------------------------------------------------------------------------------------------- */

enum terrace_status client_lent_gpu(struct client_lent_memory *memory, uint32_t g, struct client_gpu **out)
{
	enum terrace_status status;
	struct client_gpu *gpu;

	if (!memory->lent.gpu_count)
		return client_fail(TERRACE_UNSUPPORTED, "the daemon lends no GPU's memory: "
				   "it was started without --gpus, or has lost them (terracectl status)");
	if (g >= memory->lent.gpu_count)
		return client_fail(TERRACE_INVALID, "the daemon lends %u GPUs, and none of number %u: "
				   "terrace_session_gpu_of tells them", memory->lent.gpu_count, g);
	gpu = memory->gpus[g];
	if (!gpu) {
		status = client_gpu_open(memory->lent.gpus[g].uuid, &gpu);
		if (status)
			return status;
		memory->gpus[g] = gpu;
	}
	*out = gpu;
	return TERRACE_OK;
}

/* What is wrong with an extent of GPU memory; NULL: nothing. No sum of its numbers wraps. */
static const char *device_problem(const struct client_packet *p, uint64_t granularity)
{
	const struct fdsock_extent *e = &p->body.extent;

	if (!e->bytes || e->bytes > EXTENT_BYTES_MAX || e->bytes % granularity)
		return "its size is not a multiple of the GPU's";
	if (!e->range || e->range > RANGE_BYTES_MAX || e->range % granularity)
		return "its range is not a multiple of the GPU's";
	if (e->at % granularity || e->bytes > e->range || e->at > e->range - e->bytes)
		return "it is not inside its range";
	if (p->descriptors[1] < 0)
		return "no descriptor of its memory came with it";
	return NULL;
}

/* Finds the range of addresses that the extent lies in. The range is reserved with its first extent. */
static enum terrace_status range_of(struct client_lent_memory *memory, const struct client_gpu *gpu,
				    const struct fdsock_extent *e, bool writable, uint64_t *address)
{
	struct client_range *r;
	const char *why = "";
	enum status s;

	for (uint32_t i = 0; i < memory->range_count; i++) {
		r = &memory->ranges[i];
		if (r->id != e->range_id || r->gpu != e->gpu || r->writable != writable)
			continue;
		*address = r->address;
		return r->bytes == e->range ? TERRACE_OK : extent_fail(e, "its range has another size than before");
	}
	if (memory->range_count == RANGES_MAX)
		return extent_fail(e, "there are too many ranges");
	r = realloc(memory->ranges, (memory->range_count + 1) * sizeof(*r));
	if (!r)
		return client_fail(TERRACE_EXHAUSTED, "no memory for a range");
	memory->ranges = r;
	r += memory->range_count;
	*r = (struct client_range){.id = e->range_id, .gpu = e->gpu, .writable = writable, .bytes = e->range};
	s = gpu->ops->range_reserve(gpu->device, r->bytes, &r->address, &why);
	if (s != STATUS_OK)
		return client_gpu_fail(s, "no address space on the GPU", why);
	memory->range_count++;
	*address = r->address;
	return TERRACE_OK;
}

static enum terrace_status device_prepare(struct client_lent_memory *memory, const struct client_packet *p,
				       struct client_mapping *m)
{
	const struct fdsock_extent *e = &p->body.extent;
	struct client_gpu *gpu;
	uint64_t address = 0;
	enum terrace_status status;
	const char *problem;

	if (e->gpu >= memory->lent.gpu_count)
		return extent_fail(e, "it is of no GPU of the session");
	status = client_lent_gpu(memory, e->gpu, &gpu);
	if (status)
		return status;
	problem = device_problem(p, gpu->granularity);
	if (!problem)
		problem = client_packet_file_problem(p, 0, HOLD_BYTES);
	if (problem)
		return extent_fail(e, problem);
	status = range_of(memory, gpu, e, m->writable, &address);
	if (!status)
		status = file_map(p, 0, HOLD_BYTES, false, &m->base);
	m->range_id = e->range_id;
	m->at = e->at;
	m->device.address = address + e->at;
	return status;
}

/* ---- host memory
 * --------------------------------------------------------------------------------------------------- */

static enum terrace_status host_make(const struct client_packet *p, struct client_mapping *m)
{
	const struct fdsock_extent *e = &p->body.extent;
	const char *problem = NULL;

	if (e->page_bytes < PAGE_LEAST || e->page_bytes & (e->page_bytes - 1))
		problem = "its page size is not a power of two";
	else if (!e->bytes || e->bytes > EXTENT_BYTES_MAX || e->bytes % e->page_bytes)
		problem = "its size is not a multiple of its page size";
	else
		problem = client_packet_file_problem(p, 0, e->bytes);
	m->guarded = m->writable && e->extent != FDSOCK_EXTENT_PROGRESS_PAGE;
	m->page_bytes = e->page_bytes;
	return problem ? extent_fail(e, problem) : file_map(p, 0, e->bytes, m->writable && !m->guarded, &m->base);
}

enum terrace_status client_mapping_register(struct client_lent_memory *memory, struct client_mapping *m, uint32_t g)
{
	struct client_gpu *gpu;
	enum terrace_status status = client_lent_gpu(memory, g, &gpu);
	const char *why = "";
	uint64_t address;
	enum status s;

	if (status)
		return status;
	if (!m->registered)
		m->registered = calloc(DEVICES_MAX, sizeof(*m->registered));
	if (!m->registered)
		return client_fail(TERRACE_EXHAUSTED, "no memory for a mapping");
	if (m->registered[g])
		return TERRACE_OK;
	gpu->lasting++;
	s = gpu->ops->host_register(gpu->device, m->base, m->bytes, m->writable, &address, &why);
	gpu->lasting--;
	if (s != STATUS_OK)
		return client_gpu_fail(s, "cannot register the daemon's host memory with the GPU", why);
	m->registered[g] = address;
	return TERRACE_OK;
}

/* ---- both
 * ---------------------------------------------------------------------------------------------------------- */

enum terrace_status client_mapping_prepare(struct client_lent_memory *memory, const struct client_packet *p,
					   struct client_mapping *m)
{
	const struct fdsock_extent *e = &p->body.extent;
	enum terrace_status status;

	if (e->status)
		return client_fail(client_packet_status(e->status), "extent %u: the daemon does not hand it out: %s: lease again", e->extent,
				   terrace_status_text(client_packet_status(e->status)));
	if (p->lost)
		return client_fail(TERRACE_EXHAUSTED, "extent %u: this process can have no more descriptors: "
				   "raise its limit (ulimit -n)", e->extent);
	m->gpu = e->gpu;
	m->bytes = e->bytes;
	status = e->gpu == FDSOCK_NO_GPU ? host_make(p, m) : device_prepare(memory, p, m);
	return status;
}

enum terrace_status client_mapping_import(struct client_lent_memory *memory, const struct client_packet *p,
					  struct client_mapping *m)
{
	struct client_gpu *gpu;
	const char *why = "";
	enum status s;

	if (m->gpu == FDSOCK_NO_GPU)
		return TERRACE_OK;
	gpu = memory->gpus[m->gpu];
	gpu->lasting++;
	s = gpu->ops->extent_import(gpu->device, p->descriptors[1], m->device.address, m->bytes, m->writable, &m->device, &why);
	gpu->lasting--;
	if (s == STATUS_OK)
		return TERRACE_OK;
	return s == STATUS_INVALID ? extent_fail(&p->body.extent, why) : client_gpu_fail(s, "cannot import the GPU's memory", why);
}

void client_mapping_forget(struct client_mapping *m)
{
	munmap(m->base, m->gpu == FDSOCK_NO_GPU ? m->bytes : HOLD_BYTES);
	m->base = NULL;
}

static void host_unregister(struct client_gpu *gpu, void *base)
{
	gpu->lasting++;
	gpu->ops->host_unregister(gpu->device, base);
	gpu->lasting--;
}

static void extent_drop(struct client_gpu *gpu, const struct device_extent *e)
{
	gpu->lasting++;
	gpu->ops->extent_drop(gpu->device, e);
	gpu->lasting--;
}

void client_mapping_drop(struct client_lent_memory *memory, const struct client_mapping *m)
{
	for (uint32_t g = 0; m->registered && g < DEVICES_MAX; g++)
		if (m->registered[g])
			host_unregister(memory->gpus[g], m->base);
	if (m->gpu != FDSOCK_NO_GPU)
		extent_drop(memory->gpus[m->gpu], &m->device);
	/* The hold last: it tells the daemon that the memory is out of reach. */
	munmap(m->base, m->gpu == FDSOCK_NO_GPU ? m->bytes : HOLD_BYTES);
}

void client_lent_memory_fini(struct client_lent_memory *memory)
{
	for (uint32_t i = 0; i < memory->range_count; i++) {
		const struct client_range *r = &memory->ranges[i];

		memory->gpus[r->gpu]->ops->range_free(memory->gpus[r->gpu]->device, r->address, r->bytes);
	}
	free(memory->ranges);
	memory->ranges = NULL;
	memory->range_count = 0;
}
