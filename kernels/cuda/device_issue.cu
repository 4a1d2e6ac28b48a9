/* Puts lists of copies into their stream. device_copy.cu owns the streams and waits for what is put in here.
 *
 * A list goes by the copy engines, by the kernel of copy.cu, or by both.
 *
 * Copy engines cost the GPU's other users nothing, whatever runs there, but each call takes long. So pairs at equal
 * distances, as most neighbours in memory are, go as the rows of one 2D copy, and others as batches. Parts go several
 * at a time: the first alone, then twice as many each time, until a call has CALL_BYTES, and the last ones by twos.
 *
 * The kernel takes pieces of any size. Where another process keeps the GPU busy, the kernel gets the GPU only in turns
 * with it, and both are slow. So the kernel serves lists whose pieces are small and not neighbours, until one of its
 * lists has been seen to wait for its turns. After that, a list that no stream waits for part by part tries the kernel
 * first. The kernel alone does not fill the bus, whose packets are smaller for it than for an engine. So of a long list
 * without parts the engines copy a share meanwhile, in a second stream, as much as they can begin in the time.
 *
 * A list without a progress word is treated as one part, since its parts cannot be seen.
 */
#include "kernels/cuda/device_memory.h"

#include <cstdlib>
#include <cstring>

namespace
{

constexpr uint64_t CALL_BYTES = 2 << 20;   /* 40 us of a bus, ten times what a call takes besides */
constexpr uint32_t BATCH_MIN = 4;          /* fewer copies are a call each: a batch costs more */
constexpr uint32_t BATCH_FIRST = 32;       /* copies of a list's first call, which they wait for; DEVICE_BATCH is this
					    * times a power of 2 */
constexpr uint32_t ROWS_MIN = 8;           /* fewer rows go with a batch: between calls the engine stands still */
constexpr uint32_t ROWS_MIN_FIRST = 3;     /* of a list's first part, which is there the sooner the less the CPU is
					    * asked for */
constexpr uint32_t PARTS_LAST = 2;         /* of a list's last call, if it has as many at all */
constexpr uint32_t SORT_MAX = 512;         /* pairs: longer lists are taken as they are, sorting would take longer than
					    * copying, and their first so many tell whether all are for the kernel */
constexpr uint32_t RUNS_FEW = 16;          /* of a list as it comes */
constexpr uint32_t LAYERED = 4;            /* calls to a part, about, for which a list in parts must have as many
					    * bytes */
/* CTAs that fill the bus with pieces of 16 KiB and more, and leave the rest of the GPU to others; smaller pieces take
 * twice as many. */
constexpr uint32_t CTAS = 4, CTAS_SMALL = 8, SMALL_BYTES = 16384;
/* How many in a hundred are the engines' of pieces below 16 KiB, below 32, below 64 and of larger ones, in a list of so
 * many bytes. */
constexpr uint64_t BESIDE_LEAST = 8 << 20, BESIDE_FROM = 16 << 10;
constexpr uint32_t BESIDE_SIZES = 3, BESIDE_ALL = 100;
constexpr uint32_t BESIDE_UP[BESIDE_SIZES + 1] = {0, 30, 40, BESIDE_ALL}, BESIDE_DOWN[BESIDE_SIZES + 1] = {0, 20, 30, 30};

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

/* Copy i of the batch by itself. Across from a GPU that this one does not reach it is the driver's, through host
 * memory. */
CUresult single_call(struct device_lane *l, uint32_t i)
{
	struct device *d = l->device;
	const CUcontext owner = l->way == DEVICE_ACROSS ? device_owner_afar(d, l->from[i]) : nullptr;

	if (owner)
		return said(l, d->driver->cuMemcpyPeerAsync(l->to[i], d->context, l->from[i], owner, l->sizes[i], l->into));
	return said(l, d->driver->cuMemcpyAsync(l->to[i], l->from[i], l->sizes[i], l->into));
}

/* Whether the GPU reaches all that the batch reads. */
bool in_reach(struct device_lane *l, uint32_t count)
{
	for (uint32_t i = 0; l->way == DEVICE_ACROSS && i < count; i++)
		if (device_owner_afar(l->device, l->from[i]))
			return false;
	return true;
}

bool has_batch(const struct device_lane *l)
{
	return l->device->driver->cuMemcpyBatchAsync && !l->no_batch;
}

/* The copies that have been gathered: l->from, to and sizes, all of one size. */
CUresult batch_call(struct device_lane *l)
{
	struct device *d = l->device;
	const uint32_t count = l->gathered;
	const bool batch = count > BATCH_MIN && has_batch(l) && in_reach(l, count);
	CUmemcpyAttributes attributes = {};
	CUresult r = CUDA_ERROR_NOT_SUPPORTED;
	size_t first = 0;

	l->gathered = 0;
	if (l->gather_most < DEVICE_BATCH)
		l->gather_most *= 2;
	attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
	if (batch)
		r = said(l, d->driver->cuMemcpyBatchAsync(l->to, l->from, l->sizes, count, &attributes, &first, 1, l->into));
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
	return l->gathered < l->gather_most ? CUDA_SUCCESS : batch_call(l);
}

/* Whether a run is better a call of its own than a part of a batch. */
bool is_long(const struct device_lane *l, const struct device_run *run, bool first = false)
{
	return run->rows >= (!has_batch(l) ? 2 : first ? ROWS_MIN_FIRST : ROWS_MIN);
}

/* Bytes [offset, offset + bytes) of the pairs of a run, which a call takes if there are several. */
CUresult rows_call(struct device_lane *l, const struct device_run *run, uint64_t offset, uint64_t bytes, bool first)
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
	if (is_long(l, run, first) && !l->no_rows && (l->way != DEVICE_ACROSS || !device_owner_afar(l->device, run->from))) {
		r = said(l, l->device->driver->cuMemcpy2DAsync(&rows, l->into));
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

/* Parts of the call that begins with part `at`: as many as were before it, and towards the end half of those that are
 * left, so that what is done with them when they are there does not all come behind the last. */
uint32_t parts_next(const struct device_copy *c, uint32_t at, uint32_t most)
{
	const uint32_t left = parts_of(c) - at, half = left / 2 > PARTS_LAST ? left / 2 : PARTS_LAST;
	uint32_t n = at ? at : 1;

	n = n < most ? n : most;
	n = n < half ? n : half;
	return n < left ? n : left;
}

CUresult list_by_engines(struct device_lane *l, const struct device_copy *c)
{
	const uint32_t parts = parts_of(c), most = parts_a_call(l, c);
	const uint64_t bytes = part_bytes_of(c);
	CUresult r = CUDA_SUCCESS;

	for (uint32_t at = 0, n; at < parts && r == CUDA_SUCCESS; at += n) {
		n = parts_next(c, at, most);
		for (uint32_t i = 0; i < l->runs && r == CUDA_SUCCESS; i++)
			r = rows_call(l, &l->run[i], at * bytes, n * bytes, parts > 1 && !at);
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

void runs_among(struct device_lane *l, const struct device_copy *c, const struct device_pair *pairs, uint32_t count)
{
	const uint64_t bytes = c->parts * c->part_bytes;
	struct place from, to;

	l->runs = 0;
	l->looked = count;
	for (uint32_t i = 0; i < count; i++) {
		const bool from_here = from.same(l->device, pairs[i].from), to_here = to.same(l->device, pairs[i].to);

		if (i && from_here && to_here && continues(&l->run[l->runs - 1], &pairs[i], bytes))
			l->run[l->runs - 1].rows++;
		else
			l->run[l->runs++] = {pairs[i].from, pairs[i].to, 0, 0, 1};
	}
}

/* Whether run b continues a, as rows of one copy. */
bool joins(struct device_lane *l, const struct device_run *a, const struct device_run *b, uint64_t bytes)
{
	struct device_run end = *a;
	const struct device_pair next = {b->from, b->to};
	struct place from, to;

	if (!continues(&end, &next, bytes) || (b->rows > 1 && (b->from_step != end.from_step || b->to_step != end.to_step)))
		return false;
	from.same(l->device, a->from);
	to.same(l->device, a->to);
	return from.same(l->device, b->from) && to.same(l->device, b->to);
}

/* Few runs, in the order of their sources; those that continue others are one with them. */
void runs_join(struct device_lane *l, uint64_t bytes)
{
	uint32_t kept = 0;

	for (uint32_t i = 1; i < l->runs; i++) {
		const struct device_run run = l->run[i];
		uint32_t at = i;

		for (; at && l->run[at - 1].from > run.from; at--)
			l->run[at] = l->run[at - 1];
		l->run[at] = run;
	}
	for (uint32_t i = 1; i < l->runs; i++) {
		struct device_run *last = &l->run[kept];

		if (joins(l, last, &l->run[i], bytes)) {
			last->from_step = l->run[i].from - (last->from + (last->rows - 1) * last->from_step);
			last->to_step = l->run[i].to - (last->to + (last->rows - 1) * last->to_step);
			last->rows += l->run[i].rows;
		} else {
			l->run[++kept] = l->run[i];
		}
	}
	l->runs = kept + 1;
}

/* False: no memory. Sorting pairs takes longer than a first part may wait, so few runs are taken as they come. */
bool runs_find(struct device_lane *l, const struct device_copy *c)
{
	const struct device_pair *pairs;

	if (!room_for(l, c->count))
		return false;
	runs_among(l, c, c->pairs, c->count);
	if (l->runs <= RUNS_FEW) {
		runs_join(l, c->parts * c->part_bytes);
		return true;
	}
	pairs = sorted_pairs(l, c);
	if (pairs == c->pairs)
		return true;
	runs_among(l, c, pairs, c->count);
	if (l->runs == c->count) /* nothing is gained by another order */
		runs_among(l, c, c->pairs, c->count);
	return true;
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* The list of pairs, and the counts of its parts, to where a kernel finds them. */
CUresult pairs_stage(struct device_lane *l, struct device_batch *f, const struct device_copy *c)
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
	r = driver->cuMemcpyAsync(f->pairs, (CUdeviceptr)(uintptr_t)f->host_pairs, c->count * sizeof *c->pairs + counts, l->ahead);
	if (r == CUDA_SUCCESS && (driver->cuEventRecord(l->staged, l->ahead) != CUDA_SUCCESS ||
				  driver->cuStreamWaitEvent(l->stream, l->staged, 0) != CUDA_SUCCESS))
		return CUDA_ERROR_LAUNCH_FAILED;
	return r;
}

/* A launch that CUDA refuses while the stream lives has left nothing in it. CUDA loads a kernel's code with the first
 * launch, and a GPU that others have filled has no memory for that: the engines need none. */
CUresult launch_refused(struct device_lane *l)
{
	const CUresult r = l->device->driver->cuStreamQuery(l->stream);

	return r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_LAUNCH_FAILED;
}

/* All of it by one launch, which writes the progress itself: the GPU would pause between launches, and a stream of
 * another process that waits for the word would only see it when they have all been made. */
CUresult list_by_kernel(struct device_lane *l, struct device_batch *f, const struct device_copy *c)
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

/* ---- both at once ------------------------------------------------------------------------------------------------ */

/* How many of the list's pairs the engines take beside the kernel. */
uint32_t pairs_beside(const struct device_lane *l, const struct device_copy *c)
{
	const uint64_t bytes = part_bytes_of(c);
	const uint32_t *percent = l->way == DEVICE_UP ? BESIDE_UP : BESIDE_DOWN;
	uint32_t size = 0;

	if (c->progress || !has_batch(l) || l->device->engine_bytes == UINT64_MAX || c->count * bytes < BESIDE_LEAST)
		return 0;
	while (size < BESIDE_SIZES && bytes >= (uint64_t)BESIDE_FROM << size)
		size++;
	return (uint32_t)((uint64_t)c->count * percent[size] / BESIDE_ALL);
}

/* The first pairs by the engines, in a stream beside the list's. What is begun of them is waited for in this one,
 * whatever comes. */
CUresult pairs_by_engines(struct device_lane *l, const struct device_copy *c, uint32_t count)
{
	const struct cuda_driver *driver = l->device->driver;
	const uint64_t bytes = part_bytes_of(c);
	CUresult r = CUDA_SUCCESS;

	l->into = l->beside;
	for (uint32_t i = 0; i < count && r == CUDA_SUCCESS; i++)
		r = gather(l, c->pairs[i].from, c->pairs[i].to, bytes);
	if (r == CUDA_SUCCESS && l->gathered)
		r = batch_call(l);
	l->gathered = 0;
	l->into = l->stream;
	if (driver->cuEventRecord(l->joined, l->beside) != CUDA_SUCCESS || driver->cuStreamWaitEvent(l->stream, l->joined, 0) != CUDA_SUCCESS)
		return CUDA_ERROR_LAUNCH_FAILED;
	return r;
}

CUresult list_by_both(struct device_lane *l, struct device_batch *f, const struct device_copy *c, uint32_t beside)
{
	const struct cuda_driver *driver = l->device->driver;
	struct device_copy rest = *c;
	CUresult r = driver->cuEventRecord(l->forked, l->stream);

	rest.pairs += beside;
	rest.count -= beside;
	if (r == CUDA_SUCCESS)
		r = driver->cuStreamWaitEvent(l->beside, l->forked, 0);
	if (r == CUDA_SUCCESS)
		r = list_by_kernel(l, f, &rest);
	l->begun = r == CUDA_SUCCESS;
	return l->begun ? pairs_by_engines(l, c, beside) : r;
}

bool wants_kernel(const struct device_lane *l, const struct device_copy *c)
{
	const struct device *d = l->device;
	const uint64_t a_run = l->looked * c->parts * c->part_bytes / l->runs / (parts_of(c) > 1 ? LAYERED : 1);

	return d->kernels && !l->kernel_rests && !(l->kernel_doubted && c->progress) && l->way != DEVICE_ACROSS && a_run < d->engine_bytes && c->count <= DEVICE_STAGED_PAIRS &&
	       pairs_beside(l, c) < c->count && (!c->progress || KV_COPY_COUNTS + c->parts <= DEVICE_STAGED_COUNTS);
}

/* Whether the list goes by the kernel; l->runs are its runs if it does not. False: no memory. */
bool engine_choose(struct device_lane *l, const struct device_copy *c, bool *kernel)
{
	*kernel = false;
	if (c->count > SORT_MAX) {
		if (!room_for(l, SORT_MAX))
			return false;
		runs_among(l, c, c->pairs, SORT_MAX);
		*kernel = wants_kernel(l, c);
		if (*kernel)
			return true;
	}
	if (!runs_find(l, c))
		return false;
	*kernel = wants_kernel(l, c);
	return true;
}

CUresult list_by_kernel_or_both(struct device_lane *l, struct device_batch *f, const struct device_copy *c)
{
	const uint32_t beside = pairs_beside(l, c);

	if (beside)
		return list_by_both(l, f, c, beside);
	return list_by_kernel(l, f, c);
}

} // namespace

uint64_t device_list_copies(struct device_lane *l, const struct device_copy *c)
{
	uint64_t calls = 0, copies = 0;

	l->found = engine_choose(l, c, &l->by_kernel) ? c : nullptr;
	if (!l->found)
		return 1;
	if (l->by_kernel)
		return 1 + pairs_beside(l, c);
	for (uint32_t i = 0; i < l->runs; i++)
		copies += is_long(l, &l->run[i]) ? 1 : l->run[i].rows;
	for (uint32_t at = 0, most = parts_a_call(l, c); at < parts_of(c); at += parts_next(c, at, most))
		calls++;
	return calls * copies;
}

CUresult device_list_issue(struct device_lane *l, struct device_batch *f, const struct device_copy *c)
{
	const bool found = l->found == c || engine_choose(l, c, &l->by_kernel);
	CUresult r;

	l->found = nullptr;
	l->begun = false;
	l->into = l->stream;
	l->gather_most = l->way == DEVICE_ACROSS ? (uint32_t)DEVICE_BATCH : BATCH_FIRST; /* so fast a bus would wait
											  * more often than once */
	if (!found)
		return CUDA_ERROR_OUT_OF_MEMORY;
	f->by_kernel = l->by_kernel;
	r = f->by_kernel ? list_by_kernel_or_both(l, f, c) : CUDA_ERROR_OUT_OF_MEMORY;
	if (r != CUDA_ERROR_OUT_OF_MEMORY) /* then without */
		return r;
	if (f->by_kernel && !runs_find(l, c))
		return CUDA_ERROR_OUT_OF_MEMORY;
	f->by_kernel = false;
	return list_by_engines(l, c);
}

void device_issue_free(struct device_lane *l)
{
	free(l->sorted);
	free(l->run);
}
