/* The scan: reads every header of a disk, in the order of the files.
 *
 * A window of SCAN_WIDTH header reads moves over the slots: reads are begun at its front, and the oldest one is waited
 * for and shown. Places are walked by number, so that slabs may be added and removed meanwhile.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/slab/private.h"
#include "store/slot.h"

enum { SCAN_WIDTH = 64, SCAN_PAUSE_US = 1000 };

struct scan_cell {
	struct disk_request request; /* first */
	struct scan *scan;
	uint64_t slot_bytes;
	bool done;
};

struct scan {
	struct disk *disk;
	pthread_mutex_t mutex;     /* guards `done` of the cells */
	pthread_cond_t progress;
	struct slot_header *pages; /* one a cell */
	uint64_t damaged;
	/* Where the next read goes: */
	struct disk_slab_view slab; /* slab.slab 0: before the first */
	uint32_t slot;
	bool ended;
	uint32_t first, count;     /* cells begun, from the oldest on, in a circle */
	struct scan_cell cells[SCAN_WIDTH];
};

static void header_read(struct disk_request *q)
{
	struct scan_cell *c = (struct scan_cell *)q;
	struct scan *s = c->scan;

	pthread_mutex_lock(&s->mutex);
	c->done = true;
	pthread_cond_signal(&s->progress);
	pthread_mutex_unlock(&s->mutex);
}

/* Moves to the next slab when this one is at its end; false: that was the last. */
static bool next_place(struct scan *s)
{
	while (!s->ended && s->slot == s->slab.slots) {
		s->ended = !disk_slab_next(s->disk, s->slab.slab, &s->slab);
		s->slot = 0;
	}
	return !s->ended;
}

/* Begins reads until the window is full. OK also when the ring has no room but something is under way. */
static enum status begin_reads(struct scan *s)
{
	while (s->count < SCAN_WIDTH && next_place(s)) {
		uint32_t i = (s->first + s->count) % SCAN_WIDTH;
		struct scan_cell *c = &s->cells[i];
		struct disk_place p = { .slab = s->slab.slab, .slot = s->slot };
		enum status status;

		c->scan = s;
		c->slot_bytes = s->slab.slot_bytes;
		c->done = false;
		c->request.done = header_read;
		status = disk_read_patient(s->disk, p, &s->pages[i], SLOT_HEADER_BYTES, &c->request);
		/* The reads under way will show why no more can begin. */
		if ((status == STATUS_EXHAUSTED || status == STATUS_UNAVAILABLE) && s->count > 0)
			return STATUS_OK;
		if (status == STATUS_EXHAUSTED) {
			usleep(SCAN_PAUSE_US);
		} else if (status == STATUS_STALE) { /* dropped meanwhile */
			s->slot = s->slab.slots;
		} else if (status != STATUS_OK) {
			return status;
		} else {
			s->slot++;
			s->count++;
		}
	}
	return STATUS_OK;
}

static struct scan_cell *wait_oldest(struct scan *s)
{
	struct scan_cell *c = &s->cells[s->first];

	pthread_mutex_lock(&s->mutex);
	while (!c->done)
		pthread_cond_wait(&s->progress, &s->mutex);
	pthread_mutex_unlock(&s->mutex);
	s->first = (s->first + 1) % SCAN_WIDTH;
	s->count--;
	return c;
}

static bool never_written(const struct slot_header *h)
{
	const uint8_t *at = (const uint8_t *)h;

	return at[0] == 0 && memcmp(at, at + 1, sizeof(*h) - 1) == 0;
}

static bool is_sound(const struct slot_header *h, uint64_t slot_bytes)
{
	return slot_header_problem(h) == NULL && SLOT_HEADER_BYTES + h->block_bytes <= slot_bytes;
}

/* Shows the visitor one header that was read. */
static enum status show(struct scan *s, const struct scan_cell *c,
			bool (*visit)(void *arg, struct disk_place p, uint64_t slot_bytes,
				      const struct slot_header *h),
			void *arg)
{
	struct slot_header *h = &s->pages[c - s->cells];

	if (c->request.ring.status != STATUS_OK)
		return c->request.ring.status == STATUS_CANCELLED ? STATUS_UNAVAILABLE : STATUS_IO;
	slot_header_renew(h);
	if (!is_sound(h, c->slot_bytes)) {
		s->damaged += !never_written(h);
		h = NULL;
	}
	return visit(arg, c->request.place, c->slot_bytes, h) ? STATUS_OK : STATUS_CANCELLED;
}

static struct scan *scan_new(struct disk *d)
{
	struct scan *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->pages = aligned_alloc(SLOT_HEADER_BYTES, SCAN_WIDTH * sizeof(*s->pages));
	if (!s->pages) {
		free(s);
		return NULL;
	}
	s->disk = d;
	pthread_mutex_init(&s->mutex, NULL);
	pthread_cond_init(&s->progress, NULL);
	return s;
}

/* Takes back the reads that still wait, and waits for the others. */
static void scan_free(struct scan *s)
{
	for (uint32_t i = 0; i < s->count; i++)
		ring_cancel(s->disk->ring, &s->cells[(s->first + i) % SCAN_WIDTH].request.ring);
	while (s->count > 0)
		wait_oldest(s);
	pthread_cond_destroy(&s->progress);
	pthread_mutex_destroy(&s->mutex);
	free(s->pages);
	free(s);
}

enum status disk_scan(struct disk *d,
		      bool (*visit)(void *arg, struct disk_place p, uint64_t slot_bytes,
				    const struct slot_header *h),
		      void *arg, uint64_t *damaged)
{
	struct scan *s = scan_new(d);
	enum status status;

	if (damaged)
		*damaged = 0;
	if (!s)
		return STATUS_EXHAUSTED;
	do {
		status = begin_reads(s);
		if (status == STATUS_OK && s->count > 0)
			status = show(s, wait_oldest(s), visit, arg);
	} while (status == STATUS_OK && s->count > 0);
	if (damaged)
		*damaged = s->damaged;
	scan_free(s);
	return status;
}
