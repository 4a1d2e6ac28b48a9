/* Lists of copies on a GPU: see store/device.h and device_memory.h.
 *
 * Each direction has a stream and a thread. The thread puts up to DEVICE_LISTS_MAX lists into the stream
 * (device_issue.cu), each with an event behind it, and polls for the end of the oldest: without a pause around the time
 * when it is expected, else every POLL_US. A caller whose list has few copies puts it in itself while the stream's turn
 * is free: to wake the thread takes longer than that.
 *
 * If a list could only be begun in part, the device is lost: it is not known what the GPU wrote. There are two
 * exceptions: a list across GPUs that the driver refuses, and one for whose rest the driver has no memory. Such a list
 * only fails, when the part that was begun has ended, and no GPU is lost.
 *
 * Other processes may have filled the GPU by the time of its first copy: so streams and events are made when the device
 * is opened. If nothing of a list can be begun for want of memory, it is given back to its caller or, from the queue,
 * tried again for some seconds.
 */
#include "kernels/cuda/device_memory.h"

#include <cerrno>
#include <ctime>
#include <initializer_list>
#include <sys/prctl.h>

namespace
{

constexpr long POLL_US = 50, SLEEP_US_MAX = 500;
constexpr uint64_t SPIN_US = 50, SPIN_AFTER_US = 150, SPIN_MORE_US = 500; /* before and after an end that is expected;
									   * of a long list */
constexpr uint64_t BYTES_A_US = 56000, BYTES_A_US_ACROSS = 400000; /* of a bus, at most; between GPUs */
constexpr uint64_t KERNEL_LATE_US = 500;  /* a kernel's list that takes so much longer than three times its time had to
					   * wait for its turns, */
constexpr uint64_t KERNEL_REST_US = 5000000; /* and for so long lists go by the engines; twice as long each time that
					      * this is so again, up to */
constexpr uint64_t KERNEL_REST_MAX_US = 40000000;
constexpr uint64_t KERNEL_DOUBT_US = 60000000; /* and so much longer go lists for which a stream waits part by part:
					        * other lists try the kernel first */
constexpr uint32_t OWN_PAIRS = 2048, OWN_COPIES = 256; /* the most pairs of a list that its calling thread examines; the
						        * most copies of one that it begins itself */
constexpr uint64_t STARVED_US = 5000000; /* a driver without memory for so long has none for what is in the queue */
constexpr long STARVED_POLL_US = 1000;
/* As next to nothing as rows can be, and for each way its own. */
constexpr uint32_t READY_ROWS = 2, READY_BYTES = DEVICE_COPY_ALIGN, READY_PITCH = 64, READY_WAY = READY_ROWS * READY_PITCH;

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

uint64_t lane_clock_us()
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- the lane's thread ------------------------------------------------------------------------------------------- */

/* Of the copying alone. */
uint64_t batch_us(const struct device_lane *l, const struct device_batch *f)
{
	return f->bytes / (l->way == DEVICE_ACROSS ? BYTES_A_US_ACROSS : BYTES_A_US);
}

/* The oldest list has the GPU from now on: when its end is to be expected; mutex held. */
void oldest_expect(struct device_lane *l)
{
	struct device_batch *f = &l->batches[l->oldest];

	f->expected_us = lane_clock_us() + batch_us(l, f);
}

/* Whether a list fails alone when the driver says this of a part of it. */
bool fails_alone(const struct device_lane *l, CUresult r)
{
	return r == CUDA_ERROR_OUT_OF_MEMORY || (l->way == DEVICE_ACROSS && r != CUDA_SUCCESS && !cuda_error_sticks(r));
}

/* Without the mutex, by the issuer; it is held when this returns. False: the driver has no memory for it, and nothing
 * was begun. */
bool list_begin(struct device_lane *l, struct device_batch *f, struct device_copy *c)
{
	struct device *d = l->device;
	const CUresult r = device_list_issue(l, f, c);
	const bool nothing = r == CUDA_ERROR_OUT_OF_MEMORY && !l->begun;
	const CUresult recorded = nothing ? CUDA_SUCCESS : d->driver->cuEventRecord(f->ended, l->stream);
	const char *why;

	f->list = c;
	f->failed = STATUS_OK;
	if (recorded == CUDA_SUCCESS && fails_alone(l, r)) {
		f->failed = cuda_error_status(r);
	} else if (r != CUDA_SUCCESS || recorded != CUDA_SUCCESS) {
		device_failed(d, r != CUDA_SUCCESS ? r : recorded, "a copy", &why);
		d->lost = true;
		f->failed = STATUS_UNAVAILABLE;
	}
	pthread_mutex_lock(&d->mutex);
	if (nothing)
		return false;
	l->starved_until_us = 0;
	l->failing = f->failed != STATUS_OK;
	f->bytes = c->count * c->parts * c->part_bytes;
	if (l->count++ == 0)
		oldest_expect(l);
	return true;
}

/* The lane's next free batch, for the thread that has set `issuing`; mutex held. */
struct device_batch *issue_begin(struct device_lane *l)
{
	const uint64_t now = lane_clock_us();

	l->issuing = true;
	l->kernel_rests = now < l->rest_until_us;
	l->kernel_doubted = now < l->doubt_until_us;
	return &l->batches[(l->oldest + l->count) % DEVICE_LISTS_MAX];
}

/* Whether a kernel's list that has ended had to wait for the GPU: see device_issue.cu. */
bool kernel_waited(const struct device_lane *l, const struct device_batch *f)
{
	float ms = 0;

	return l->device->driver->cuEventElapsedTime(&ms, f->first, f->last) == CUDA_SUCCESS &&
	       ms * 1000 > (float)(KERNEL_LATE_US + 3 * batch_us(l, f));
}

/* A kernel's list has ended; mutex held. What was in the stream before it was told to rest says nothing new. */
void kernel_judge(struct device_lane *l, bool waited)
{
	const uint64_t now = lane_clock_us();

	if (now < l->rest_until_us)
		return;
	if (!waited) {
		l->rest_us = l->doubt_until_us = 0;
		return;
	}
	l->rest_us = l->rest_us ? 2 * l->rest_us : KERNEL_REST_US;
	if (l->rest_us > KERNEL_REST_MAX_US)
		l->rest_us = KERNEL_REST_MAX_US;
	l->rest_until_us = now + l->rest_us;
	l->doubt_until_us = l->rest_until_us + KERNEL_DOUBT_US;
}

/* Tells the end of the oldest list. */
void batch_end(struct device_lane *l, enum status s)
{
	struct device_batch *f = &l->batches[l->oldest];
	struct device_copy *c = f->list;

	const bool failed = f->failed != STATUS_OK;

	if (failed)
		s = f->failed;
	const bool by_kernel = s == STATUS_OK && f->by_kernel, waited = by_kernel && kernel_waited(l, f);

	pthread_mutex_lock(&l->device->mutex);
	if (by_kernel)
		kernel_judge(l, waited);
	l->oldest = (l->oldest + 1) % DEVICE_LISTS_MAX;
	if (--l->count > 0)
		oldest_expect(l);
	pthread_mutex_unlock(&l->device->mutex);
	c->done(c, s);
	if (!failed)
		return;
	pthread_mutex_lock(&l->device->mutex);
	l->failing = false;
	pthread_mutex_unlock(&l->device->mutex);
}

/* Whether the oldest list has come to its end; if so that is told. */
bool oldest_ended(struct device_lane *l)
{
	struct device *d = l->device;
	struct device_batch *f = &l->batches[l->oldest];
	const CUresult r = d->driver->cuEventQuery(f->ended);
	const char *why;

	if (r == CUDA_ERROR_NOT_READY)
		return false;
	if (r != CUDA_SUCCESS) {
		device_failed(d, r, "a copy", &why);
		d->lost = true;
	}
	batch_end(l, r == CUDA_SUCCESS ? STATUS_OK : STATUS_UNAVAILABLE);
	return true;
}

/* ---- the queue; mutex held, but while a list is put in ----------------------------------------------------------- */

void queue_push(struct device_lane *l, struct device_copy *c)
{
	c->next = nullptr;
	*l->last = c;
	l->last = &c->next;
	pthread_cond_signal(&l->more);
}

/* Before those that came meanwhile. */
void queue_push_front(struct device_lane *l, struct device_copy *c)
{
	c->next = l->first;
	l->first = c;
	if (!c->next)
		l->last = &c->next;
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

/* The queue's next list found no memory. True once it is to find none any more. */
bool starves(struct device_lane *l)
{
	const uint64_t now = lane_clock_us();

	if (!l->starved_until_us)
		l->starved_until_us = now + STARVED_US;
	return now >= l->starved_until_us;
}

void list_fail(struct device_lane *l, struct device_copy *c, enum status s)
{
	pthread_mutex_unlock(&l->device->mutex);
	c->done(c, s);
	pthread_mutex_lock(&l->device->mutex);
}

/* What is to be done next with the queue. False: nothing is, now. */
bool queue_step(struct device_lane *l)
{
	struct device *d = l->device;
	const bool ends = d->closing || d->lost;
	bool begun;
	struct device_copy *c = ends || (l->count < DEVICE_LISTS_MAX && !l->issuing && !l->failing) ? queue_pop(l) : nullptr;
	/* read before the mutex is let go: a list that is begun is never cancelled */
	const enum status s = d->lost ? STATUS_UNAVAILABLE : STATUS_CANCELLED;

	if (!c)
		return false;
	if (ends) {
		list_fail(l, c, s);
		return true;
	}

	struct device_batch *f = issue_begin(l);

	pthread_mutex_unlock(&d->mutex);
	begun = list_begin(l, f, c);
	l->issuing = false;
	if (begun)
		return true;
	if (!starves(l)) {
		queue_push_front(l, c);
		return false;
	}
	if (!l->first) /* the next to come has its own time */
		l->starved_until_us = 0;
	l->failing = true;
	list_fail(l, c, STATUS_EXHAUSTED);
	l->failing = false;
	return true;
}

/* The list is put in by the caller's thread, if it takes few copies; else queued. EXHAUSTED: it is the caller's
 * again. */
enum status own_step(struct device_lane *l, struct device_copy *c)
{
	struct device *d = l->device;
	struct device_batch *f = issue_begin(l);
	bool few, begun = true;

	pthread_mutex_unlock(&d->mutex);
	few = device_list_copies(l, c) <= OWN_COPIES;
	if (few) {
		device_entered entered(d);

		begun = list_begin(l, f, c);
	} else {
		pthread_mutex_lock(&d->mutex);
		queue_push_front(l, c);
	}
	l->issuing = false;
	pthread_cond_signal(&l->more);
	return begun ? STATUS_OK : STATUS_EXHAUSTED;
}

bool may_own(const struct device_lane *l, const struct device_copy *c)
{
	return !l->issuing && !l->failing && !l->first && l->count < DEVICE_LISTS_MAX && c->count <= OWN_PAIRS && !l->device->lost;
}

/* What lists are copied from and to when nothing is to be copied. Without it lists come as they come. */
void ready_open(struct device *d)
{
	if (d->driver->cuMemHostAlloc(&d->ready_host, READY_WAY * DEVICE_WAYS, 0) != CUDA_SUCCESS)
		d->ready_host = nullptr;
	else if (d->driver->cuMemAlloc(&d->ready_device, READY_WAY * DEVICE_WAYS) != CUDA_SUCCESS)
		d->ready_device = 0;
}

void ready_free(struct device *d)
{
	if (d->ready_device)
		d->driver->cuMemFree(d->ready_device);
	if (d->ready_host)
		d->driver->cuMemFreeHost(d->ready_host);
}

/* Two rows through the lane's stream, whose end is reported to no caller. */
void ready_rows(struct device_lane *l)
{
	struct device *d = l->device;
	const CUdeviceptr host = (CUdeviceptr)(uintptr_t)d->ready_host + l->way * READY_WAY, device = d->ready_device + l->way * READY_WAY;
	CUDA_MEMCPY2D rows = {};

	rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
	rows.srcDevice = l->way == DEVICE_UP ? host : device;
	rows.dstDevice = l->way == DEVICE_UP ? device : host;
	rows.srcPitch = rows.dstPitch = READY_PITCH;
	rows.WidthInBytes = READY_BYTES;
	rows.Height = READY_ROWS;
	d->driver->cuMemcpy2DAsync(&rows, l->stream);
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

/* Until the oldest list's end is worth another look; mutex held. */
void end_wait(struct device_lane *l)
{
	const struct device_batch *f = &l->batches[l->oldest];
	const uint64_t now = lane_clock_us(), expected = f->expected_us, share = batch_us(l, f) / 4;
	long us = POLL_US;

	if (now + SPIN_US > expected && now < expected + SPIN_AFTER_US + (share < SPIN_MORE_US ? share : SPIN_MORE_US))
		return;
	if (now + SPIN_US < expected && expected - SPIN_US - now > POLL_US)
		us = expected - SPIN_US - now < SLEEP_US_MAX ? (long)(expected - SPIN_US - now) : SLEEP_US_MAX;
	if (l->first && l->count == DEVICE_LISTS_MAX) {
		const struct timespec pause = {0, us * 1000};

		pthread_mutex_unlock(&l->device->mutex);
		nanosleep(&pause, nullptr);
		pthread_mutex_lock(&l->device->mutex);
	} else {
		const struct timespec until = after(us);

		pthread_cond_timedwait(&l->more, &l->device->mutex, &until);
	}
}

/* Looks at what the GPU has; the mutex is held but while it does. False: the GPU does not end it. */
bool batches_step(struct device_lane *l)
{
	struct device *d = l->device;
	const bool overdue = is_overdue(l);
	bool ended;

	pthread_mutex_unlock(&d->mutex);
	ended = oldest_ended(l);
	if (!ended && overdue)
		batch_end(l, d->lost ? STATUS_UNAVAILABLE : STATUS_CANCELLED);
	pthread_mutex_lock(&d->mutex);
	if (!ended && !overdue)
		end_wait(l);
	return ended || !overdue;
}

/* Its streams and events; what there is of them. */
void lane_free(struct device_lane *l)
{
	const struct cuda_driver *driver = l->device->driver;

	for (CUstream s : {l->stream, l->beside, l->ahead})
		if (s)
			driver->cuStreamDestroy(s);
	for (struct device_batch &f : l->batches) {
		if (f.first)
			driver->cuEventDestroy(f.first);
		if (f.last)
			driver->cuEventDestroy(f.last);
		if (f.ended)
			driver->cuEventDestroy(f.ended);
		if (f.pairs)
			driver->cuMemFree(f.pairs);
		if (f.host_pairs)
			driver->cuMemFreeHost(f.host_pairs);
	}
	for (CUevent e : {l->forked, l->joined, l->staged})
		if (e)
			driver->cuEventDestroy(e);
	device_issue_free(l);
}

/* Until there is something to be done; mutex held. */
void lane_wait(struct device_lane *l)
{
	const struct timespec until = after(STARVED_POLL_US);

	if (l->first)
		pthread_cond_timedwait(&l->more, &l->device->mutex, &until);
	else
		pthread_cond_wait(&l->more, &l->device->mutex);
}

/* Returns l if the GPU did not end its copies, else NULL. */
void *lane_run(void *lane)
{
	struct device_lane *l = (struct device_lane *)lane;
	struct device *d = l->device;
	device_entered entered(d);
	bool hangs = false;

	prctl(PR_SET_TIMERSLACK, 1000); /* ns: 50 us, the default, are a list's time */
	pthread_mutex_lock(&d->mutex);
	for (;;) {
		if (queue_step(l))
			continue;
		if (l->count > 0)
			hangs = !batches_step(l) || hangs;
		else if (d->closing && !l->issuing && !l->first) /* a list may have come back to the queue since it was
								  * looked at */
			break;
		else
			lane_wait(l);
	}
	pthread_mutex_unlock(&d->mutex);
	return hangs ? l : nullptr;
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

CUresult device_copy_open(struct device *d)
{
	CUresult r = CUDA_SUCCESS;

	for (struct device_lane &l : d->lanes) {
		for (CUstream *stream : {&l.stream, &l.beside, &l.ahead})
			if (r == CUDA_SUCCESS && (stream == &l.stream || l.way != DEVICE_ACROSS))
				r = d->driver->cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, 0);
		for (CUevent *event : {&l.forked, &l.joined, &l.staged})
			if (r == CUDA_SUCCESS && l.way != DEVICE_ACROSS)
				r = d->driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
		for (struct device_batch &f : l.batches)
			if (r == CUDA_SUCCESS)
				r = d->driver->cuEventCreate(&f.ended, CU_EVENT_DISABLE_TIMING);
	}
	if (r == CUDA_SUCCESS)
		ready_open(d);
	return r;
}

void device_copy_free(struct device *d)
{
	for (struct device_lane &l : d->lanes)
		lane_free(&l);
	ready_free(d);
}

void device_copy_ready(struct device *d, enum device_way way)
{
	struct device_lane *l = &d->lanes[way];
	bool idle;

	if (!d->ready_device || way == DEVICE_ACROSS || !d->driver->cuMemcpy2DAsync)
		return;
	pthread_mutex_lock(&d->mutex);
	idle = !l->issuing && !l->failing && !l->first && l->count == 0 && !l->no_rows && !d->lost && !d->closing;
	if (idle)
		l->issuing = true;
	pthread_mutex_unlock(&d->mutex);
	if (!idle)
		return;
	{
		device_entered entered(d);

		ready_rows(l);
	}
	pthread_mutex_lock(&d->mutex);
	l->issuing = false;
	if (l->first)
		pthread_cond_signal(&l->more);
	pthread_mutex_unlock(&d->mutex);
}

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
	} else if (may_own(l, c)) {
		s = own_step(l, c);
		*why = "no memory of the driver's for a copy";
	} else {
		queue_push(l, c);
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
