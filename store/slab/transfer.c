/* Reads, writes and syncs: from a place to an offset in a file, and from the ring's outcome to the disk's health.
 *
 * A sync goes to every slab that was written since the last one, SYNC_WIDTH at a time, in rounds: a caller that comes
 * while a round runs takes part in the next one, since the running one may have passed its slab already.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/slab/private.h"
#include "store/clock.h"
#include "store/slot.h"
#include "store/crash_point.h"

enum { SYNC_WIDTH = 8 };

/* ---- reads and writes ---- */

/* Mutex held. */
static void requests_add(struct disk *d, struct disk_request *q)
{
	q->prev = NULL;
	q->next = d->requests;
	if (d->requests)
		d->requests->prev = q;
	d->requests = q;
}

static void requests_remove(struct disk *d, struct disk_request *q)
{
	if (q->prev)
		q->prev->next = q->next;
	else
		d->requests = q->next;
	if (q->next)
		q->next->prev = q->prev;
}

/* Draws conclusions about the disk from the outcome of a request; mutex held. */
static void judge(struct disk *d, const struct disk_request *q, struct slab *s)
{
	bool write = q->ring.op == RING_WRITE;

	if (q->ring.status == STATUS_OK) {
		if (write)
			s->dirty = true;
		if (write && q->ring.bytes > SLOT_HEADER_BYTES && d->health.shortage_in_write) /* a tombstone has its room */
			d->health.shortage[0] = 0;
	} else if (q->ring.status == STATUS_EXHAUSTED && write) {
		disk_full_write(d, q->ring.error, q->place.slab);
	} else if (q->ring.status != STATUS_CANCELLED) {
		disk_failed(d, q->ring.error, write ? "writing" : "reading", q->place.slab);
	}
}

static void transfer_done(struct ring_request *r)
{
	struct disk_request *q = (struct disk_request *)r;
	struct disk *d = q->disk;
	struct slab *s;

	CRASH_POINT("transfer_done");
	pthread_mutex_lock(&d->mutex);
	if (d->left_behind) {
		pthread_mutex_unlock(&d->mutex);
		return;
	}
	s = disk_slab_find(d, q->place.slab); /* transfers keep it */
	requests_remove(d, q);
	judge(d, q, s);
	s->under_way--;
	atomic_fetch_add_explicit(&d->telling, 1, memory_order_relaxed);
	pthread_mutex_unlock(&d->mutex);
	q->done(q);
	atomic_fetch_sub_explicit(&d->telling, 1, memory_order_release);
}

/* Whether a request may begin; mutex held. */
static enum status admit(struct disk *d, const struct disk_request *q, bool patient, bool tombstone)
{
	const struct slab *s = disk_slab_find(d, q->place.slab);
	bool write = q->ring.op == RING_WRITE;

	if (d->health.quarantined)
		return STATUS_UNAVAILABLE;
	if (!s || q->place.slot >= s->file.slots || (write && !disk_slot_taken(s, q->place.slot)))
		return STATUS_STALE;
	if (q->ring.bytes == 0 || q->ring.bytes % SLOT_HEADER_BYTES != 0 || q->ring.bytes > s->file.slot_bytes ||
	    (uintptr_t)q->ring.at % SLOT_HEADER_BYTES != 0)
		return STATUS_INVALID;
	if (q->ring.priority != RING_URGENT && !patient && disk_is_slow(d)) {
		d->health.refused_slow++;
		return STATUS_BUSY;
	}
	if (write && !tombstone && d->health.write_until_us > 0 && clock_us() < d->health.write_until_us)
		return STATUS_EXHAUSTED;
	return STATUS_OK;
}

/* Submits a request; q->ring has op, priority, buffer, bytes and at already. */
static enum status submit(struct disk *d, struct disk_place p, struct disk_request *q, bool patient,
			  bool tombstone)
{
	enum status status;
	struct slab *s;

	q->disk = d;
	q->place = p;
	q->ring.done = transfer_done;
	pthread_mutex_lock(&d->mutex);
	status = admit(d, q, patient, tombstone);
	if (status == STATUS_OK) {
		s = disk_slab_find(d, p.slab);
		q->ring.file = s->ring_file;
		q->ring.offset = DISK_SLAB_HEADER_BYTES + p.slot * s->file.slot_bytes;
		status = ring_submit(d->ring, &q->ring);
		/* Its completion waits for the mutex. */
		if (status == STATUS_OK) {
			s->under_way++;
			requests_add(d, q);
		}
	}
	pthread_mutex_unlock(&d->mutex);
	return status;
}

static void fill(struct disk_request *q, enum ring_op op, const void *at, uint32_t bytes, uint32_t buffer,
		 enum ring_priority priority)
{
	q->ring.op = op;
	q->ring.at = (void *)(uintptr_t)at;
	q->ring.bytes = bytes;
	q->ring.buffer = buffer;
	q->ring.priority = priority;
}

enum status disk_read(struct disk *d, struct disk_place p, void *at, uint32_t bytes, uint32_t buffer,
		      enum ring_priority priority, struct disk_request *q)
{
	CRASH_POINT("read_submit");
	fill(q, RING_READ, at, bytes, buffer, priority);
	return submit(d, p, q, false, false);
}

enum status disk_read_patient(struct disk *d, struct disk_place p, void *at, uint32_t bytes,
			      struct disk_request *q)
{
	fill(q, RING_READ, at, bytes, RING_NONE, RING_IDLE);
	return submit(d, p, q, true, false);
}

enum status disk_write(struct disk *d, struct disk_place p, const void *at, uint32_t bytes, uint32_t buffer,
		       enum ring_priority priority, struct disk_request *q)
{
	CRASH_POINT("write_submit");
	fill(q, RING_WRITE, at, bytes, buffer, priority);
	return submit(d, p, q, false, false);
}

enum status disk_tombstone(struct disk *d, struct disk_place p, const void *page, struct disk_request *q)
{
	CRASH_POINT("tombstone_submit");
	fill(q, RING_WRITE, page, SLOT_HEADER_BYTES, RING_NONE, RING_URGENT);
	return submit(d, p, q, false, true);
}

bool disk_promote(struct disk *d, struct disk_request *q, enum ring_priority priority)
{
	return q->ring.op != RING_SYNC && ring_promote(d->ring, &q->ring, priority);
}

void disk_withdraw(struct disk *d, struct disk_request *q)
{
	if (q->ring.op != RING_SYNC)
		ring_cancel(d->ring, &q->ring);
}

enum status disk_buffer_add(struct disk *d, void *base, uint64_t bytes, uint32_t *buffer)
{
	return ring_buffer_add(d->ring, base, bytes, buffer);
}

void disk_buffer_remove(struct disk *d, uint32_t buffer)
{
	ring_buffer_remove(d->ring, buffer);
}

/* ---- syncs; mutex held but in completions ---- */

static void sync_done(struct disk *d, struct slab *s, const struct ring_request *r);

static void slab_sync_done(struct ring_request *r)
{
	struct slab *s = (struct slab *)((char *)r - offsetof(struct slab, sync));

	CRASH_POINT("sync_slab");
	sync_done(s->disk, s, r);
}

static void idle_sync_done(struct ring_request *r)
{
	CRASH_POINT("sync_idle");
	sync_done((struct disk *)((char *)r - offsetof(struct disk, sync.idle)), NULL, r);
}

static enum status sync_submit(struct disk *d, struct ring_request *r, uint32_t file,
			       void (*done)(struct ring_request *r))
{
	enum status s;

	*r = (struct ring_request){
		.op = RING_SYNC, .priority = RING_URGENT, .file = file, .buffer = RING_NONE, .done = done,
	};
	s = ring_submit(d->ring, r);
	if (s == STATUS_OK)
		d->sync.under_way++;
	return s;
}

/* Gives slabs of the round to the ring while there is room. A full ring is a failure only if no sync is under way: the
 * end of one tries again. */
static void sync_advance(struct disk *d)
{
	struct slab *s;

	while (d->sync.status == STATUS_OK && d->sync.under_way < SYNC_WIDTH && (s = d->sync.first) != NULL) {
		enum status status = d->health.quarantined ? STATUS_UNAVAILABLE :
							     sync_submit(d, &s->sync, s->ring_file, slab_sync_done);

		if (status == STATUS_EXHAUSTED && d->sync.under_way > 0)
			return;
		if (status != STATUS_OK) {
			d->sync.status = status;
			return;
		}
		s->dirty = false;
		d->sync.first = s->sync_next;
	}
}

/* Takes the slabs out of the round that a failed round did not reach. They are still dirty. */
static void sync_release(struct disk *d)
{
	struct slab *s;

	while ((s = d->sync.first) != NULL) {
		d->sync.first = s->sync_next;
		s->syncing = false;
	}
}

/* Begins a round for the requests in `later`. Not OK: no sync is under way, and the requests are still in `later`. */
static enum status sync_begin(struct disk *d)
{
	d->sync.status = STATUS_OK;
	d->sync.error = 0;
	for (uint32_t i = d->slab_count; i > 0; i--) {
		struct slab *s = d->slabs[i - 1];

		if (!s->dirty)
			continue;
		s->syncing = true;
		s->sync_next = d->sync.first;
		d->sync.first = s;
	}
	if (d->sync.first)
		sync_advance(d);
	else if (d->health.quarantined)
		d->sync.status = STATUS_UNAVAILABLE;
	else
		d->sync.status = sync_submit(d, &d->sync.idle, d->id_file, idle_sync_done);
	if (d->sync.under_way == 0) {
		sync_release(d);
		return d->sync.status;
	}
	CRASH_POINT("sync_begin");
	d->sync.running = true;
	d->sync.now = d->sync.later;
	d->sync.later = NULL;
	return STATUS_OK;
}

/* Calls `done` of the requests in the list, without the mutex. A request that was accepted gets CANCELLED if the disk
 * was quarantined or closed afterwards. */
static void sync_tell(struct disk_request *q, enum status status, int error)
{
	CRASH_POINT("sync_tell");
	if (status == STATUS_UNAVAILABLE)
		status = STATUS_CANCELLED;
	while (q) {
		struct disk_request *next = q->next;

		q->ring.status = status;
		q->ring.error = error;
		q->done(q);
		q = next;
	}
}

/* Ends the round, begins the next, calls `done` of the requests. Called with the mutex, returns without it. */
static void sync_end(struct disk *d)
{
	struct disk_request *now = d->sync.now, *later = NULL;
	enum status status = d->sync.status, next = STATUS_OK;
	int error = d->sync.error;

	sync_release(d);
	d->sync.now = NULL;
	d->sync.running = false;
	if (d->sync.later)
		next = sync_begin(d);
	if (next != STATUS_OK) {
		later = d->sync.later;
		d->sync.later = NULL;
	}
	atomic_fetch_add_explicit(&d->telling, 1, memory_order_relaxed);
	pthread_mutex_unlock(&d->mutex);
	sync_tell(now, status, error);
	sync_tell(later, next, 0);
	atomic_fetch_sub_explicit(&d->telling, 1, memory_order_release);
}

static void sync_done(struct disk *d, struct slab *s, const struct ring_request *r)
{
	pthread_mutex_lock(&d->mutex);
	if (d->left_behind) {
		pthread_mutex_unlock(&d->mutex);
		return;
	}
	d->sync.under_way--;
	if (s) {
		s->syncing = false;
		if (r->status != STATUS_OK)
			s->dirty = true;
	}
	if (r->status != STATUS_OK && r->status != STATUS_CANCELLED) {
		char why[100], text[64];

		snprintf(why, sizeof(why), "syncing slab-%06u: %s", s ? s->file.number : 0,
			 strerror_r(r->error, text, sizeof(text)));
		disk_give_up(d, why);
	}
	if (r->status != STATUS_OK && d->sync.status == STATUS_OK) {
		d->sync.status = r->status;
		d->sync.error = r->error;
	}
	sync_advance(d);
	if (d->sync.under_way == 0)
		sync_end(d);
	else
		pthread_mutex_unlock(&d->mutex);
}

enum status disk_sync(struct disk *d, struct disk_request *q)
{
	enum status status = STATUS_OK;

	q->disk = d;
	q->place = (struct disk_place){ 0 };
	q->ring.op = RING_SYNC;
	pthread_mutex_lock(&d->mutex);
	if (d->health.quarantined) {
		status = STATUS_UNAVAILABLE;
	} else {
		q->next = d->sync.later;
		d->sync.later = q;
		if (!d->sync.running && (status = sync_begin(d)) != STATUS_OK)
			d->sync.later = NULL;
	}
	pthread_mutex_unlock(&d->mutex);
	return status;
}
