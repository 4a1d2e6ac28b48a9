/* Lists of checksums on a GPU: see store/device.h and device_memory.h. The kernel is in sums.cu.
 *
 * Only a process that makes the GPU's memory sums it. So its stream and buffers are made with the first extent, before
 * other processes can have filled the GPU. The calling thread puts its list into the stream if one of SUMS_PLACES is
 * free. Otherwise the lane's thread does it, which also polls for the end of the oldest list, every SUMS_POLL_US.
 */
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/sums.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <sys/prctl.h>

namespace
{

constexpr uint32_t SUMS_PLACES = 4; /* lists that the GPU has begun or may begin */
constexpr long SUMS_POLL_US = 20;
constexpr size_t AT_BYTES = DEVICE_SUMS_MAX * sizeof(uint64_t), SUMS_BYTES = DEVICE_SUMS_MAX * sizeof(uint32_t);

/* A list that the GPU has. */
struct sums_batch {
	struct device_sums *list;
	CUevent ended;
	void *host;            /* pinned: addresses, then sums */
	CUdeviceptr device;    /* the same */
};

} // namespace

struct device_sums_lane {
	struct device *device;
	pthread_t thread;
	pthread_cond_t more;
	/* With the device's mutex: */
	bool started, closing, issuing;
	struct device_sums *first, **last; /* the queue */
	uint32_t oldest, count; /* flights in use */
	/* The issuer's, once they are made: */
	CUstream stream;
	sums_batch batches[SUMS_PLACES];
	bool made;
	const char *no_code;   /* why the kernel does not run here; NULL: it does, or it is not known yet */
};

namespace
{

struct timespec sums_after(long us)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += us % 1000000 * 1000;
	t.tv_sec += us / 1000000 + t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	return t;
}

bool sums_past(const struct timespec &t)
{
	const struct timespec now = sums_after(0);

	return now.tv_sec > t.tv_sec || (now.tv_sec == t.tv_sec && now.tv_nsec > t.tv_nsec);
}

/* ---- what lists need --------------------------------------------------------------------------------------------- */

CUresult batch_make(const struct cuda_driver *driver, sums_batch *f)
{
	CUresult r = f->ended ? CUDA_SUCCESS : driver->cuEventCreate(&f->ended, CU_EVENT_DISABLE_TIMING);

	if (r == CUDA_SUCCESS && !f->host)
		r = driver->cuMemHostAlloc(&f->host, AT_BYTES + SUMS_BYTES, 0);
	if (r == CUDA_SUCCESS && !f->device)
		r = driver->cuMemAlloc(&f->device, AT_BYTES + SUMS_BYTES);
	return r;
}

/* In the device's context, by the issuer. What could not be made is tried again with the next list. */
enum status lane_make(struct device_sums_lane *l, const char **why)
{
	const struct cuda_driver *driver = l->device->driver;
	CUresult r = CUDA_SUCCESS;

	*why = l->no_code;
	if (l->made || l->no_code)
		return l->made ? STATUS_OK : STATUS_UNSUPPORTED;
	if (kv_cuda_sums_load(why) != STATUS_OK) {
		l->no_code = *why;
		return STATUS_UNSUPPORTED;
	}
	if (!l->stream)
		r = driver->cuStreamCreateWithPriority(&l->stream, CU_STREAM_NON_BLOCKING, 0);
	for (sums_batch &f : l->batches)
		r = r == CUDA_SUCCESS ? batch_make(driver, &f) : r;
	l->made = r == CUDA_SUCCESS;
	return l->made ? STATUS_OK : device_failed(l->device, r, "no memory for checksums", why);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

enum status launch_said(struct device *d, enum status s, const char **why)
{
	const CUresult r = d->driver->cuStreamQuery(d->zeroing);

	if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
		return device_failed(d, r, "checksums", why);
	*why = "CUDA does not launch the kernel for checksums";
	return s == STATUS_UNSUPPORTED ? s : STATUS_EXHAUSTED; /* its code may have found no memory */
}

/* Without the mutex, in the device's context, by the issuer: the list into the stream. */
enum status list_put(struct device_sums_lane *l, sums_batch *f, struct device_sums *s, const char **why)
{
	const struct cuda_driver *driver = l->device->driver;
	const size_t at_bytes = s->count * sizeof(uint64_t);
	const size_t sums_bytes = (size_t)s->count * s->parts * sizeof(uint32_t);
	const CUdeviceptr host = (CUdeviceptr)(uintptr_t)f->host;
	struct kv_cuda_sums k = {};
	enum status status;
	CUresult r;

	f->list = s;
	memcpy(f->host, s->at, at_bytes);
	k.at = (const uint64_t *)f->device;
	k.sums = (uint32_t *)(f->device + AT_BYTES);
	k.count = s->count;
	k.parts = s->parts;
	k.part_bytes = s->part_bytes;
	r = driver->cuMemcpyAsync(f->device, host, at_bytes, l->stream);
	if (r == CUDA_SUCCESS)
		r = driver->cuMemsetD8Async(f->device + AT_BYTES, 0, sums_bytes, l->stream);
	status = r == CUDA_SUCCESS ? kv_cuda_sums(&k, l->stream) : STATUS_OK;
	if (status != STATUS_OK)
		return launch_said(l->device, status, why);
	if (r == CUDA_SUCCESS)
		r = driver->cuMemcpyAsync(host + AT_BYTES, f->device + AT_BYTES, sums_bytes, l->stream);
	if (r == CUDA_SUCCESS)
		r = driver->cuEventRecord(f->ended, l->stream);
	return r == CUDA_SUCCESS ? STATUS_OK : device_failed(l->device, r, "checksums", why);
}

/* With the mutex, which it leaves, and the issuer's turn. */
enum status list_issue(struct device_sums_lane *l, struct device_sums *s, const char **why)
{
	sums_batch *f = &l->batches[(l->oldest + l->count) % SUMS_PLACES];
	enum status status;

	l->issuing = true;
	pthread_mutex_unlock(&l->device->mutex);
	status = lane_make(l, why);
	if (status == STATUS_OK)
		status = list_put(l, f, s, why);
	pthread_mutex_lock(&l->device->mutex);
	l->issuing = false;
	l->count += status == STATUS_OK;
	pthread_cond_signal(&l->more);
	return status;
}

/* With the mutex, which it leaves. */
void list_end(struct device_sums_lane *l, struct device_sums *s, enum status status)
{
	pthread_mutex_unlock(&l->device->mutex);
	s->done(s, status);
	pthread_mutex_lock(&l->device->mutex);
}

/* ---- the thread; with the mutex, but for what waits or calls ---------------------------------------------------- */

struct device_sums *sums_pop(struct device_sums_lane *l)
{
	struct device_sums *s = l->first;

	l->first = s->next;
	if (!l->first)
		l->last = &l->first;
	return s;
}

/* False: nothing is to be done with the queue now. */
bool sums_queue_step(struct device_sums_lane *l)
{
	struct device *d = l->device;
	const bool ends = l->closing || d->lost;
	struct device_sums *s;
	enum status status;
	const char *why;

	if (!l->first || l->issuing || (!ends && l->count == SUMS_PLACES))
		return false;
	s = sums_pop(l);
	status = d->lost ? STATUS_UNAVAILABLE : STATUS_CANCELLED;
	if (!ends)
		status = list_issue(l, s, &why);
	if (status != STATUS_OK)
		list_end(l, s, status);
	return true;
}

/* The oldest list has ended so. */
void sums_batch_end(struct device_sums_lane *l, enum status status)
{
	struct device_sums *s = l->batches[l->oldest].list;

	l->oldest = (l->oldest + 1) % SUMS_PLACES;
	l->count--;
	list_end(l, s, status);
}

/* Looks at the oldest list. False: the GPU does not end it, and has had its time. */
bool sums_batches_step(struct device_sums_lane *l, bool overdue)
{
	const sums_batch *f = &l->batches[l->oldest]; /* which is this thread's alone to end */
	const struct timespec until = sums_after(SUMS_POLL_US);
	struct device *d = l->device;
	struct device_sums *s = f->list;
	const char *why;
	CUresult r;

	pthread_mutex_unlock(&d->mutex);
	r = d->driver->cuEventQuery(f->ended);
	if (r == CUDA_SUCCESS)
		memcpy(s->sums, (const char *)f->host + AT_BYTES, (size_t)s->count * s->parts * sizeof *s->sums);
	if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY) {
		device_failed(d, r, "checksums", &why);
		d->lost = true;
	}
	pthread_mutex_lock(&d->mutex);
	if (r != CUDA_ERROR_NOT_READY) {
		sums_batch_end(l, r == CUDA_SUCCESS ? STATUS_OK : STATUS_UNAVAILABLE);
		return true;
	}
	if (overdue)
		sums_batch_end(l, d->lost ? STATUS_UNAVAILABLE : STATUS_CANCELLED);
	else
		pthread_cond_timedwait(&l->more, &d->mutex, &until);
	return !overdue;
}

/* Returns the lane if the GPU did not end its lists, else NULL. */
void *sums_run(void *lane)
{
	struct device_sums_lane *l = (struct device_sums_lane *)lane;
	struct device *d = l->device;
	device_entered entered(d);
	struct timespec by = {};
	bool ends = false, hangs = false;

	prctl(PR_SET_TIMERSLACK, 1000); /* ns */
	pthread_mutex_lock(&d->mutex);
	for (;;) {
		if (!ends && (l->closing || d->lost)) {
			ends = true;
			by = sums_after(DEVICE_CLOSE_WAIT_S * 1000000l);
		}
		if (sums_queue_step(l))
			continue;
		if (l->count > 0)
			hangs = !sums_batches_step(l, ends && sums_past(by)) || hangs;
		else if (l->closing && !l->issuing && !l->first)
			break;
		else
			pthread_cond_wait(&l->more, &d->mutex);
	}
	pthread_mutex_unlock(&d->mutex);
	return hangs ? l : nullptr;
}

/* ---- what is asked for ------------------------------------------------------------------------------------------- */

const char *sums_problem(struct device *d, const struct device_sums *s)
{
	uint64_t begin = 0, end = 0;

	if (s->count == 0 || s->parts == 0 || s->part_bytes == 0 || s->part_bytes > DEVICE_SUMS_PART_MAX ||
	    s->parts > DEVICE_SUMS_MAX || s->count > DEVICE_SUMS_MAX / s->parts)
		return "a list of checksums with numbers that are not allowed";
	for (uint32_t i = 0; i < s->count; i++) {
		if (s->at[i] < begin || s->at[i] >= end)
			device_extent_place(d, s->at[i], &begin, &end);
		if (s->at[i] % DEVICE_COPY_ALIGN != 0 || s->at[i] < begin || s->at[i] >= end ||
		    end - s->at[i] < s->parts * s->part_bytes)
			return "a checksum of what is not one extent's, or not aligned";
	}
	return nullptr;
}

struct device_sums_lane *lane_create(struct device *d)
{
	struct device_sums_lane *l = new (std::nothrow) device_sums_lane();
	pthread_condattr_t attr;

	if (!l)
		return nullptr;
	l->device = d;
	l->last = &l->first;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&l->more, &attr);
	pthread_condattr_destroy(&attr);
	return l;
}

/* CUDA loads a kernel when it is first launched, which takes some hundred microseconds: a first list, whose result is
 * dropped, does that before a block waits for it. By the issuer; the list's bytes are the last place's own buffer. */
void lane_warm(struct device_sums_lane *l)
{
	sums_batch *f = &l->batches[SUMS_PLACES - 1];
	uint64_t at = f->device;
	struct device_sums s = {};
	const char *why;

	s.at = &at;
	s.count = 1;
	s.parts = 1;
	s.part_bytes = DEVICE_COPY_ALIGN;
	list_put(l, f, &s, &why); /* a failure is said to the next list */
	f->list = nullptr;
}

/* With the mutex: the lane, and its thread. False: no memory. */
bool lane_start(struct device *d)
{
	if (!d->sums)
		d->sums = lane_create(d);
	if (d->sums && !d->sums->started)
		d->sums->started = pthread_create(&d->sums->thread, nullptr, sums_run, d->sums) == 0;
	return d->sums && d->sums->started;
}

} // namespace

void device_sums_prepare(struct device *d)
{
	struct device_sums_lane *l = nullptr;
	const char *why;

	pthread_mutex_lock(&d->mutex);
	if (!d->sums && lane_start(d)) {
		l = d->sums;
		l->issuing = true;
	}
	pthread_mutex_unlock(&d->mutex);
	if (!l)
		return;
	if (lane_make(l, &why) == STATUS_OK)
		lane_warm(l);
	pthread_mutex_lock(&d->mutex);
	l->issuing = false;
	pthread_cond_signal(&l->more);
	pthread_mutex_unlock(&d->mutex);
}

enum status device_sums_begin(struct device *d, struct device_sums *s, const char **why)
{
	enum status status = STATUS_OK;
	struct device_sums_lane *l;

	*why = d->lost ? "the GPU is lost" : sums_problem(d, s);
	if (*why)
		return d->lost ? STATUS_UNAVAILABLE : STATUS_INVALID;
	device_entered entered(d);

	pthread_mutex_lock(&d->mutex);
	l = lane_start(d) ? d->sums : nullptr;
	if (!l) {
		*why = "no thread, or no memory";
		status = STATUS_EXHAUSTED;
	} else if (l->closing) {
		*why = "the GPU is being closed";
		status = STATUS_UNAVAILABLE;
	} else if (!l->issuing && !l->first && l->count < SUMS_PLACES) {
		status = list_issue(l, s, why);
	} else {
		s->next = nullptr;
		*l->last = s;
		l->last = &s->next;
		pthread_cond_signal(&l->more);
	}
	pthread_mutex_unlock(&d->mutex);
	return status;
}

bool device_sums_end(struct device *d)
{
	struct device_sums_lane *l = d->sums;
	void *hangs = nullptr;

	if (!l)
		return true;
	pthread_mutex_lock(&d->mutex);
	l->closing = true;
	pthread_cond_signal(&l->more);
	pthread_mutex_unlock(&d->mutex);
	if (l->started)
		pthread_join(l->thread, &hangs);
	return !hangs;
}

void device_sums_free(struct device *d)
{
	struct device_sums_lane *l = d->sums;

	if (!l)
		return;
	if (l->stream)
		d->driver->cuStreamDestroy(l->stream);
	for (sums_batch &f : l->batches) {
		if (f.ended)
			d->driver->cuEventDestroy(f.ended);
		if (f.device)
			d->driver->cuMemFree(f.device);
		if (f.host)
			d->driver->cuMemFreeHost(f.host);
	}
	pthread_cond_destroy(&l->more);
	delete l;
	d->sums = nullptr;
}
