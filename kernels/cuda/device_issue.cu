/* Lists of copies into their stream: see device_copy.cu, which owns the streams and waits for what is put in here.
 *
 * A list goes by the copy engines or by the kernel of copy.cu. The engines cost the GPU's other users nothing, whatever runs there, but they
 * take long over each call: so pairs at equal distances, as neighbours in memory mostly are, go as the rows of one 2D copy, and
 * parts go several at a time, the first alone, then twice as many each time, until a call has CALL_BYTES. The kernel takes pieces of any
 * size as they come; but where another process has the GPU busy it gets the GPU in turns with it, and both are slow. So it
 * is for lists whose pieces are small and lie apart, and not while one of them has been seen to wait for its turns.
 *
 * Lists without a word have one part: nobody sees the difference.
 */
#include "kernels/cuda/device_memory.h"

#include <cstdlib>
#include <cstring>

namespace
{

constexpr uint64_t CALL_BYTES = 2 << 20;   /* 40 us of a bus, ten times what a call takes besides */
constexpr uint32_t BATCH_MIN = 4;          /* fewer copies are a call each: a batch costs more */
constexpr uint32_t SORT_MAX = 512;         /* pairs: longer lists are taken as they are, sorting would take longer than copying */
constexpr uint32_t LAYERED = 4;            /* calls to a part, about, for which a list in parts must have as many bytes */
/* CTAs that fill the bus, and leave the rest of the GPU to others: see README.md. */
constexpr uint32_t CTAS = 4, CTAS_SMALL = 8, SMALL_BYTES = 16384;

uint32_t parts_of(const struct device_copy *c)
{
	return c->progress ? c->parts : 1;
}

uint64_t part_bytes_of(const struct device_copy *c)
{
	return c->progress ? c->part_bytes : c->parts * c->part_bytes;
}

CUresult tell(struct device_lane *l, const struct device_copy *c, uint32_t parts)
{
	if (!c->progress)
		return CUDA_SUCCESS;
	return l->device->driver->cuStreamWriteValue32(l->stream, c->progress, c->progress_base + parts, CU_STREAM_WRITE_VALUE_DEFAULT);
}

/* ---- copy engines ------------------------------------------------------------------------------------------------ */

/* What a call of the list's said. */
CUresult said(struct device_lane *l, CUresult r)
{
	l->begun = l->begun || r == CUDA_SUCCESS;
	return r;
}

/* Copy i of the batch by itself. Across from a GPU that this one does not reach it is the driver's, through host memory. */
CUresult single_call(struct device_lane *l, uint32_t i)
{
	struct device *d = l->device;
	const CUcontext owner = l->way == DEVICE_ACROSS ? device_owner_afar(d, l->from[i]) : nullptr;

	if (owner)
		return said(l, d->driver->cuMemcpyPeerAsync(l->to[i], d->context, l->from[i], owner, l->sizes[i], l->stream));
	return said(l, d->driver->cuMemcpyAsync(l->to[i], l->from[i], l->sizes[i], l->stream));
}

/* Whether the GPU reaches all that the batch reads. */
bool in_reach(struct device_lane *l, uint32_t count)
{
	for (uint32_t i = 0; l->way == DEVICE_ACROSS && i < count; i++)
		if (device_owner_afar(l->device, l->from[i]))
			return false;
	return true;
}

/* The copies that have been gathered: l->from, to and sizes, all of one size. */
CUresult batch_call(struct device_lane *l)
{
	struct device *d = l->device;
	const uint32_t count = l->gathered;
	const bool batch = count > BATCH_MIN && d->driver->cuMemcpyBatchAsync && !l->no_batch && in_reach(l, count);
	CUmemcpyAttributes attributes = {};
	CUresult r = CUDA_ERROR_NOT_SUPPORTED;
	size_t first = 0;

	l->gathered = 0;
	attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
	if (batch)
		r = said(l, d->driver->cuMemcpyBatchAsync(l->to, l->from, l->sizes, count, &attributes, &first, 1, l->stream));
	if (r == CUDA_SUCCESS || cuda_error_sticks(r))
		return r;
	l->no_batch = l->no_batch || (batch && r != CUDA_ERROR_OUT_OF_MEMORY); /* refused: one by one from now on */
	r = CUDA_SUCCESS;
	for (uint32_t i = 0; i < count && r == CUDA_SUCCESS; i++)
		r = single_call(l, i);
	return r;
}

CUresult gather(struct device_lane *l, uint64_t from, uint64_t to, uint64_t bytes)
{
	l->from[l->gathered] = from;
	l->to[l->gathered] = to;
	l->sizes[l->gathered++] = bytes;
	return l->gathered < DEVICE_BATCH ? CUDA_SUCCESS : batch_call(l);
}

/* Bytes [offset, offset + bytes) of the pairs of a run, which a call takes if there are several. */
CUresult rows_call(struct device_lane *l, const struct device_run *run, uint64_t offset, uint64_t bytes)
{
	CUDA_MEMCPY2D rows = {};
	CUresult r = CUDA_SUCCESS;

	rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
	rows.srcDevice = run->from + offset;
	rows.dstDevice = run->to + offset;
	rows.srcPitch = run->from_step;
	rows.dstPitch = run->to_step;
	rows.WidthInBytes = bytes;
	rows.Height = run->rows;
	if (run->rows > 1 && !l->no_rows && (l->way != DEVICE_ACROSS || !device_owner_afar(l->device, run->from))) {
		r = said(l, l->device->driver->cuMemcpy2DAsync(&rows, l->stream));
		if (r == CUDA_SUCCESS || cuda_error_sticks(r))
			return r;
		l->no_rows = r != CUDA_ERROR_OUT_OF_MEMORY; /* refused: one by one from now on */
	}
	r = CUDA_SUCCESS;
	for (uint32_t i = 0; i < run->rows && r == CUDA_SUCCESS; i++)
		r = gather(l, rows.srcDevice + i * run->from_step, rows.dstDevice + i * run->to_step, bytes);
	return r;
}

/* How many parts to a call, when the first have been copied. */
uint32_t parts_a_call(const struct device_lane *l, const struct device_copy *c)
{
	const uint64_t part = c->count * part_bytes_of(c), most = (CALL_BYTES * l->runs + part - 1) / part;

	return most < parts_of(c) ? (uint32_t)most : parts_of(c);
}

/* Parts of the call after one of n parts that ended before part `at`. */
uint32_t parts_next(uint32_t at, uint32_t most)
{
	return at < most ? at : most;
}

CUresult list_by_engines(struct device_lane *l, const struct device_copy *c)
{
	const uint32_t parts = parts_of(c), most = parts_a_call(l, c);
	const uint64_t bytes = part_bytes_of(c);
	CUresult r = CUDA_SUCCESS;

	for (uint32_t at = 0, n = 1; at < parts && r == CUDA_SUCCESS; at += n, n = parts_next(at, most)) {
		n = n < parts - at ? n : parts - at;
		for (uint32_t i = 0; i < l->runs && r == CUDA_SUCCESS; i++)
			r = rows_call(l, &l->run[i], at * bytes, n * bytes);
		if (r == CUDA_SUCCESS && l->gathered)
			r = batch_call(l);
		if (r == CUDA_SUCCESS)
			r = tell(l, c, at + n);
	}
	l->gathered = 0;
	return r;
}

/* ---- pairs at equal distances ------------------------------------------------------------------------------------ */

bool room_for(struct device_lane *l, uint32_t count)
{
	if (l->room >= count)
		return true;
	free(l->sorted);
	free(l->run);
	l->sorted = (struct device_pair *)malloc(count * sizeof *l->sorted);
	l->run = (struct device_run *)malloc(count * sizeof *l->run);
	l->room = l->sorted && l->run ? count : 0;
	return l->room > 0;
}

int by_source(const void *a, const void *b)
{
	const uint64_t x = ((const struct device_pair *)a)->from, y = ((const struct device_pair *)b)->from;

	return x < y ? -1 : x > y;
}

/* The list's pairs, by rising source if it is short. */
const struct device_pair *sorted_pairs(struct device_lane *l, const struct device_copy *c)
{
	uint32_t i = 1;

	while (i < c->count && c->pairs[i - 1].from < c->pairs[i].from)
		i++;
	if (i == c->count || c->count > SORT_MAX)
		return c->pairs;
	memcpy(l->sorted, c->pairs, c->count * sizeof *c->pairs);
	qsort(l->sorted, c->count, sizeof *l->sorted, by_source);
	return l->sorted;
}

/* Where the last address was. */
struct place {
	uint64_t begin = 0, end = 0;

	/* Whether this one is there too. */
	bool same(struct device *d, uint64_t address)
	{
		if (address >= begin && address < end)
			return true;
		device_place(d, address, &begin, &end);
		return false;
	}
};

/* Whether p continues the run. Rows of one copy lie in one piece of memory. */
bool continues(struct device_run *run, const struct device_pair *p, uint64_t bytes)
{
	const struct device_pair last = {run->from + (run->rows - 1) * run->from_step, run->to + (run->rows - 1) * run->to_step};
	const uint64_t from_step = p->from - last.from, to_step = p->to - last.to;

	if (from_step < bytes || to_step < bytes || from_step > DEVICE_PITCH_MAX || to_step > DEVICE_PITCH_MAX)
		return false;
	if (run->rows == 1) {
		run->from_step = from_step;
		run->to_step = to_step;
	}
	return run->from_step == from_step && run->to_step == to_step;
}

void runs_among(struct device_lane *l, const struct device_copy *c, const struct device_pair *pairs)
{
	const uint64_t bytes = c->parts * c->part_bytes;
	struct place from, to;

	l->runs = 0;
	for (uint32_t i = 0; i < c->count; i++) {
		const bool from_here = from.same(l->device, pairs[i].from), to_here = to.same(l->device, pairs[i].to);

		if (i && from_here && to_here && continues(&l->run[l->runs - 1], &pairs[i], bytes))
			l->run[l->runs - 1].rows++;
		else
			l->run[l->runs++] = {pairs[i].from, pairs[i].to, 0, 0, 1};
	}
}

/* False: no memory. */
bool runs_find(struct device_lane *l, const struct device_copy *c)
{
	const struct device_pair *pairs;

	if (!room_for(l, c->count))
		return false;
	pairs = sorted_pairs(l, c);
	runs_among(l, c, pairs);
	if (l->runs == c->count && pairs != c->pairs) /* nothing is gained by another order */
		runs_among(l, c, c->pairs);
	return true;
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* The list of pairs, and the counts of its parts, to where a kernel finds them. */
CUresult pairs_stage(struct device_lane *l, struct device_flight *f, const struct device_copy *c)
{
	const struct cuda_driver *driver = l->device->driver;
	const size_t room = DEVICE_STAGED_PAIRS * sizeof(struct device_pair) + DEVICE_STAGED_COUNTS * sizeof(uint32_t);
	const size_t counts = c->progress ? (KV_COPY_COUNTS + c->parts) * sizeof(uint32_t) : 0;
	CUresult r = CUDA_SUCCESS;

	if (!f->host_pairs)
		r = driver->cuMemHostAlloc((void **)&f->host_pairs, room, 0);
	if (r == CUDA_SUCCESS && !f->pairs)
		r = driver->cuMemAlloc(&f->pairs, room);
	if (r != CUDA_SUCCESS)
		return r;
	memcpy(f->host_pairs, c->pairs, c->count * sizeof *c->pairs);
	memset(f->host_pairs + c->count, 0, counts);
	return driver->cuMemcpyAsync(f->pairs, (CUdeviceptr)(uintptr_t)f->host_pairs, c->count * sizeof *c->pairs + counts, l->stream);
}

/* A launch that CUDA refuses while the stream lives has left nothing in it. CUDA loads a kernel's code with the first launch, and a GPU that
 * others have filled has no memory for that: the engines need none. */
CUresult launch_refused(struct device_lane *l)
{
	const CUresult r = l->device->driver->cuStreamQuery(l->stream);

	return r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_LAUNCH_FAILED;
}

/* All of it by one launch, which writes the progress itself: the GPU would pause between launches, and a stream of another process that
 * waits for the word would only see it when they have all been made. */
CUresult list_by_kernel(struct device_lane *l, struct device_flight *f, const struct device_copy *c)
{
	const struct device *d = l->device;
	struct kv_cuda_pairs k = {};
	CUresult r = pairs_stage(l, f, c);

	if (r == CUDA_SUCCESS && !f->first)
		r = d->driver->cuEventCreate(&f->first, CU_EVENT_DEFAULT);
	if (r == CUDA_SUCCESS && !f->last)
		r = d->driver->cuEventCreate(&f->last, CU_EVENT_DEFAULT);
	if (r != CUDA_SUCCESS)
		return r;
	k.pairs = (const struct device_pair *)f->pairs;
	k.count = c->count;
	k.parts = parts_of(c);
	k.part_bytes = part_bytes_of(c);
	k.ctas = k.part_bytes < SMALL_BYTES ? CTAS_SMALL : CTAS;
	if (c->progress) {
		k.counts = (uint32_t *)(k.pairs + c->count);
		k.word = (uint32_t *)c->progress;
		k.base = c->progress_base;
	}
	if (d->driver->cuEventRecord(f->first, l->stream) != CUDA_SUCCESS)
		return CUDA_ERROR_LAUNCH_FAILED;
	if (kv_cuda_copy_pairs(&k, l->stream) != STATUS_OK)
		return launch_refused(l);
	return d->driver->cuEventRecord(f->last, l->stream) == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

bool wants_kernel(const struct device_lane *l, const struct device_copy *c)
{
	const struct device *d = l->device;
	const uint64_t a_run = c->count * c->parts * c->part_bytes / l->runs / (parts_of(c) > 1 ? LAYERED : 1);

	return d->kernels && !l->kernel_rests && l->way != DEVICE_ACROSS && a_run < d->engine_bytes && c->count <= DEVICE_STAGED_PAIRS &&
	       (!c->progress || KV_COPY_COUNTS + c->parts <= DEVICE_STAGED_COUNTS);
}

} // namespace

uint64_t device_list_copies(struct device_lane *l, const struct device_copy *c)
{
	uint64_t calls = 0;

	l->found = runs_find(l, c) ? c : nullptr;
	if (!l->found || wants_kernel(l, c))
		return 1;
	for (uint32_t at = 0, n = 1, most = parts_a_call(l, c); at < parts_of(c); at += n, n = parts_next(at, most))
		calls += l->runs;
	return calls;
}

CUresult device_list_issue(struct device_lane *l, struct device_flight *f, const struct device_copy *c)
{
	const bool found = l->found == c || runs_find(l, c);
	CUresult r;

	l->found = nullptr;
	l->begun = false;
	if (!found)
		return CUDA_ERROR_OUT_OF_MEMORY;
	f->by_kernel = wants_kernel(l, c);
	r = f->by_kernel ? list_by_kernel(l, f, c) : CUDA_ERROR_OUT_OF_MEMORY;
	if (r != CUDA_ERROR_OUT_OF_MEMORY) /* then without */
		return r;
	f->by_kernel = false;
	return list_by_engines(l, c);
}

void device_issue_free(struct device_lane *l)
{
	free(l->sorted);
	free(l->run);
}
