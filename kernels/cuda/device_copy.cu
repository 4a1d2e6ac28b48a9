/* Lists of copies on a GPU: see store/device.h and device_memory.h.
 *
 * Each way has a stream and a thread. The thread puts up to DEVICE_LISTS_MAX lists into the stream, each with an event behind it, and
 * looks every POLL_US at the oldest; nobody else waits for anything. A part of a list is one batch for the copy engines
 * (cuMemcpyBatchAsync, or a call each where the driver has none), or one launch of the kernel of copy.cu over the list of pairs, which
 * goes to the GPU first; then the progress word is written by the stream. Lists without a word are copied as if they had one part: nobody
 * sees the difference.
 *
 * A list that could only be begun in part makes the device lost: what the GPU wrote is not known.
 */
#include "kernels/cuda/device_memory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace
{

constexpr long POLL_US = 50;
constexpr uint32_t BATCH_MAX = 4096;
/* CTAs that fill the bus, and leave the rest of the GPU to others: see README.md. */
constexpr uint32_t CTAS = 4, CTAS_SMALL = 8, SMALL_BYTES = 16384;

struct timespec after(long us)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += us % 1000000 * 1000;
	t.tv_sec += us / 1000000 + t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	return t;
}

bool is_past(const struct timespec &t)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec > t.tv_sec || (now.tv_sec == t.tv_sec && now.tv_nsec > t.tv_nsec);
}

/* ---- a list into the stream -------------------------------------------------------------------------------------- */

bool batch_room(struct device_lane *l, uint32_t count)
{
	const uint32_t room = count < BATCH_MAX ? count : BATCH_MAX;

	if (l->batch_room >= room)
		return true;
	free(l->from);
	free(l->to);
	free(l->sizes);
	l->from = (CUdeviceptr *)malloc(room * sizeof *l->from);
	l->to = (CUdeviceptr *)malloc(room * sizeof *l->to);
	l->sizes = (size_t *)malloc(room * sizeof *l->sizes);
	l->batch_room = l->from && l->to && l->sizes ? room : 0;
	return l->batch_room > 0;
}

CUresult batch_call(struct device_lane *l, uint32_t count)
{
	struct device *d = l->device;
	CUmemcpyAttributes attributes = {};
	CUresult r = CUDA_ERROR_NOT_SUPPORTED;
	size_t first = 0;

	attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
	if (d->driver->cuMemcpyBatchAsync && !d->no_batch)
		r = d->driver->cuMemcpyBatchAsync(l->to, l->from, l->sizes, count, &attributes, &first, 1, l->stream);
	if (r == CUDA_SUCCESS || cuda_error_sticks(r))
		return r;
	d->no_batch = true; /* refused: one by one from now on */
	r = CUDA_SUCCESS;
	for (uint32_t i = 0; i < count && r == CUDA_SUCCESS; i++)
		r = d->driver->cuMemcpyAsync(l->to[i], l->from[i], l->sizes[i], l->stream);
	return r;
}

/* Bytes [offset, offset + bytes) of every pair, by copy engines. */
CUresult part_by_engines(struct device_lane *l, const struct device_copy *c, uint64_t offset, uint64_t bytes)
{
	CUresult r = CUDA_SUCCESS;

	for (uint32_t at = 0; at < c->count && r == CUDA_SUCCESS; at += l->batch_room) {
		const uint32_t n = c->count - at < l->batch_room ? c->count - at : l->batch_room;

		for (uint32_t i = 0; i < n; i++) {
			l->from[i] = c->pairs[at + i].from + offset;
			l->to[i] = c->pairs[at + i].to + offset;
			l->sizes[i] = bytes;
		}
		r = batch_call(l, n);
	}
	return r;
}

/* The list of pairs to where a kernel finds it. */
CUresult pairs_stage(struct device_lane *l, struct device_flight *f, const struct device_copy *c)
{
	const struct cuda_driver *driver = l->device->driver;
	const size_t room = DEVICE_STAGED_PAIRS * sizeof(struct device_pair);
	CUresult r = CUDA_SUCCESS;

	if (!f->host_pairs)
		r = driver->cuMemHostAlloc((void **)&f->host_pairs, room, 0);
	if (r == CUDA_SUCCESS && !f->pairs)
		r = driver->cuMemAlloc(&f->pairs, room);
	if (r != CUDA_SUCCESS)
		return r;
	memcpy(f->host_pairs, c->pairs, c->count * sizeof *c->pairs);
	return driver->cuMemcpyAsync(f->pairs, (CUdeviceptr)(uintptr_t)f->host_pairs, c->count * sizeof *c->pairs, l->stream);
}

CUresult part_by_kernel(struct device_lane *l, const struct device_flight *f, const struct device_copy *c, uint64_t offset,
			uint64_t bytes)
{
	const enum status s = kv_cuda_copy_pairs((const struct device_pair *)f->pairs, c->count, offset, bytes,
						 bytes < SMALL_BYTES ? CTAS_SMALL : CTAS, l->stream);

	return s == STATUS_OK ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

bool wants_kernel(const struct device_lane *l, const struct device_copy *c, uint64_t bytes)
{
	const struct device *d = l->device;

	return d->kernels && l->way != DEVICE_ACROSS && bytes < d->engine_bytes && c->count <= DEVICE_STAGED_PAIRS;
}

CUresult list_issue(struct device_lane *l, struct device_flight *f, const struct device_copy *c)
{
	const uint32_t parts = c->progress ? c->parts : 1;
	const uint64_t bytes = c->progress ? c->part_bytes : c->parts * c->part_bytes;
	bool kernel = wants_kernel(l, c, bytes);
	CUresult r = CUDA_SUCCESS;

	if (kernel) {
		r = pairs_stage(l, f, c);
		if (r == CUDA_ERROR_OUT_OF_MEMORY) { /* then without */
			kernel = false;
			r = CUDA_SUCCESS;
		}
	}
	if (!kernel && !batch_room(l, c->count))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (uint32_t p = 0; p < parts && r == CUDA_SUCCESS; p++) {
		r = kernel ? part_by_kernel(l, f, c, p * bytes, bytes) : part_by_engines(l, c, p * bytes, bytes);
		if (r == CUDA_SUCCESS && c->progress)
			r = l->device->driver->cuStreamWriteValue32(l->stream, c->progress, c->progress_base + p + 1,
								    CU_STREAM_WRITE_VALUE_DEFAULT);
	}
	return r;
}

/* ---- the lane's thread ------------------------------------------------------------------------------------------- */

void list_begin(struct device_lane *l, struct device_copy *c)
{
	struct device *d = l->device;
	struct device_flight *f = &l->flights[(l->oldest + l->count) % DEVICE_LISTS_MAX];
	CUresult r = CUDA_SUCCESS, recorded = CUDA_SUCCESS;
	const char *why;

	if (!l->stream)
		r = d->driver->cuStreamCreateWithPriority(&l->stream, CU_STREAM_NON_BLOCKING, 0);
	if (r == CUDA_SUCCESS && !f->ended)
		r = d->driver->cuEventCreate(&f->ended, CU_EVENT_DISABLE_TIMING);
	if (r == CUDA_SUCCESS)
		r = list_issue(l, f, c);
	if (f->ended)
		recorded = d->driver->cuEventRecord(f->ended, l->stream);
	f->list = c;
	f->failed = STATUS_OK;
	if (r != CUDA_SUCCESS || recorded != CUDA_SUCCESS) {
		device_failed(d, r != CUDA_SUCCESS ? r : recorded, "a copy", &why);
		d->lost = true;
		f->failed = STATUS_UNAVAILABLE;
	}
	l->count++;
}

/* Tells the end of the oldest list. */
void flight_end(struct device_lane *l, enum status s)
{
	struct device_flight *f = &l->flights[l->oldest];
	struct device_copy *c = f->list;

	l->oldest = (l->oldest + 1) % DEVICE_LISTS_MAX;
	l->count--;
	c->done(c, f->failed != STATUS_OK ? f->failed : s);
}

/* Whether the oldest list has come to its end; if so that is told. */
bool oldest_ended(struct device_lane *l)
{
	struct device *d = l->device;
	struct device_flight *f = &l->flights[l->oldest];
	const CUresult r = f->ended ? d->driver->cuEventQuery(f->ended) : CUDA_ERROR_UNKNOWN;
	const char *why;

	if (r == CUDA_ERROR_NOT_READY)
		return false;
	if (r != CUDA_SUCCESS) {
		device_failed(d, r, "a copy", &why);
		d->lost = true;
	}
	flight_end(l, r == CUDA_SUCCESS ? STATUS_OK : STATUS_UNAVAILABLE);
	return true;
}

struct device_copy *queue_pop(struct device_lane *l)
{
	struct device_copy *c = l->first;

	if (c) {
		l->first = c->next;
		if (!l->first)
			l->last = &l->first;
	}
	return c;
}

/* What is to be done next with the queue; the mutex is held but while it is done. False: nothing is. */
bool queue_step(struct device_lane *l)
{
	struct device *d = l->device;
	const bool ends = d->closing || d->lost;
	struct device_copy *c = ends || l->count < DEVICE_LISTS_MAX ? queue_pop(l) : nullptr;
	/* read before the mutex is let go: a list that is begun is never cancelled */
	const enum status s = d->lost ? STATUS_UNAVAILABLE : STATUS_CANCELLED;

	if (!c)
		return false;
	pthread_mutex_unlock(&d->mutex);
	if (ends)
		c->done(c, s);
	else
		list_begin(l, c);
	pthread_mutex_lock(&d->mutex);
	return true;
}

/* Past the time that the GPU has for what it has begun, when the device is closed or lost; mutex held. */
bool is_overdue(struct device_lane *l)
{
	struct device *d = l->device;

	if (d->lost && !l->gave_up) {
		l->gave_up = true;
		l->lost_by = after(DEVICE_CLOSE_WAIT_S * 1000000l);
	}
	return (d->closing && is_past(d->close_by)) || (d->lost && is_past(l->lost_by));
}

/* Looks at what the GPU has; the mutex is held but while it does. False: the GPU does not end it. */
bool flights_step(struct device_lane *l)
{
	struct device *d = l->device;
	const bool overdue = is_overdue(l);
	bool ended;

	pthread_mutex_unlock(&d->mutex);
	ended = oldest_ended(l);
	if (!ended && overdue)
		flight_end(l, d->lost ? STATUS_UNAVAILABLE : STATUS_CANCELLED);
	pthread_mutex_lock(&d->mutex);
	if (!ended && !overdue && !l->first) {
		const struct timespec until = after(POLL_US);

		pthread_cond_timedwait(&l->more, &d->mutex, &until);
	} else if (!ended && !overdue && l->count == DEVICE_LISTS_MAX) {
		const struct timespec pause = {0, POLL_US * 1000};

		pthread_mutex_unlock(&d->mutex);
		nanosleep(&pause, nullptr);
		pthread_mutex_lock(&d->mutex);
	}
	return ended || !overdue;
}

void lane_free(struct device_lane *l)
{
	const struct cuda_driver *driver = l->device->driver;

	for (struct device_flight &f : l->flights) {
		if (f.ended)
			driver->cuEventDestroy(f.ended);
		if (f.pairs)
			driver->cuMemFree(f.pairs);
		if (f.host_pairs)
			driver->cuMemFreeHost(f.host_pairs);
	}
	if (l->stream)
		driver->cuStreamDestroy(l->stream);
	free(l->from);
	free(l->to);
	free(l->sizes);
}

/* Returns l if the GPU did not end its copies, else NULL. */
void *lane_run(void *lane)
{
	struct device_lane *l = (struct device_lane *)lane;
	struct device *d = l->device;
	device_entered entered(d);
	bool hangs = false;

	pthread_mutex_lock(&d->mutex);
	for (;;) {
		if (queue_step(l))
			continue;
		if (l->count > 0)
			hangs = !flights_step(l) || hangs;
		else if (d->closing)
			break;
		else
			pthread_cond_wait(&l->more, &d->mutex);
	}
	pthread_mutex_unlock(&d->mutex);
	if (hangs)
		return l;
	lane_free(l);
	return nullptr;
}

const char *list_problem(const struct device_copy *c)
{
	if (c->count == 0 || c->parts == 0 || c->part_bytes == 0 || c->part_bytes % DEVICE_COPY_ALIGN != 0 ||
	    c->part_bytes > UINT64_MAX / c->parts || (unsigned int)c->way >= DEVICE_WAYS || c->progress % 4 != 0)
		return "a list of copies with numbers that are not allowed";
	for (uint32_t i = 0; i < c->count; i++)
		if ((c->pairs[i].from | c->pairs[i].to) % DEVICE_COPY_ALIGN != 0)
			return "a copy from or to an address that is not aligned";
	return nullptr;
}

} // namespace

enum status device_copy_begin(struct device *d, struct device_copy *c, const char **why)
{
	enum status s = STATUS_OK;
	struct device_lane *l;

	*why = d->lost ? "the GPU is lost" : list_problem(c);
	if (*why)
		return d->lost ? STATUS_UNAVAILABLE : STATUS_INVALID;
	l = &d->lanes[c->way];
	pthread_mutex_lock(&d->mutex);
	if (!l->started && !d->closing)
		l->started = pthread_create(&l->thread, nullptr, lane_run, l) == 0;
	if (d->closing) {
		*why = "the GPU is being closed";
		s = STATUS_UNAVAILABLE;
	} else if (!l->started) {
		*why = "no thread";
		s = STATUS_EXHAUSTED;
	} else {
		c->next = nullptr;
		*l->last = c;
		l->last = &c->next;
		pthread_cond_signal(&l->more);
	}
	pthread_mutex_unlock(&d->mutex);
	return s;
}

bool device_copy_end(struct device *d)
{
	bool ended = true;

	pthread_mutex_lock(&d->mutex);
	d->closing = true;
	d->close_by = after(DEVICE_CLOSE_WAIT_S * 1000000l);
	for (struct device_lane &l : d->lanes)
		pthread_cond_signal(&l.more);
	pthread_mutex_unlock(&d->mutex);
	for (struct device_lane &l : d->lanes) {
		void *hangs = nullptr;

		if (l.started)
			pthread_join(l.thread, &hangs);
		ended = ended && !hangs;
	}
	return ended;
}
