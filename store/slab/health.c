/* The health of a disk: what a failure means, and what it stops.
 *
 * A disk that has once reported an error which a sound disk does not report is not used again: it is not known any more
 * which of its blocks were written. Lack of memory or of descriptors is the machine's, not the disk's, and fails only
 * the request.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "store/slab/private.h"
#include "store/clock.h"
#include "store/shortage.h"

enum { FULL_US = 1000000, SLOW_LOOK_US = 1000 };

const char *disk_health_name(enum disk_health h)
{
	static const char *const names[] = { "healthy", "full", "slow", "quarantined" };

	return (unsigned)h < sizeof(names) / sizeof(names[0]) ? names[h] : "unknown";
}

static void *leave_marker(void *arg)
{
	struct disk *d = arg;

	disk_folder_mark(&d->folder, d->health.why);
	atomic_store_explicit(&d->health.marked, true, memory_order_release);
	return NULL;
}

/* The marker is written to a disk that may never answer: so not on the ring's thread. */
static void start_marker(struct disk *d)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	d->health.marking = pthread_create(&d->health.marker, NULL, leave_marker, d) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!d->health.marking)
		leave_marker(d);
}

void disk_give_up(struct disk *d, const char *why)
{
	if (d->health.quarantined)
		return;
	d->health.quarantined = true;
	snprintf(d->health.why, sizeof(d->health.why), "%s", why);
	for (struct disk_request *q = d->requests; q; q = q->next)
		ring_cancel(d->ring, &q->ring);
	start_marker(d);
}

void disk_failed(struct disk *d, int error, const char *what, uint32_t slab)
{
	char why[sizeof(d->health.why)], text[64];

	if (error == ENOMEM || error == ENOBUFS || error == EFAULT || error == EMFILE || error == ENFILE)
		return;
	snprintf(why, sizeof(why), "%s slab-%06u: %s", what, slab, strerror_r(error, text, sizeof(text)));
	disk_give_up(d, why);
}

static void full(struct disk *d, uint64_t until, const char *what, int error, uint32_t slab)
{
	char words[SHORTAGE_WORDS_MAX];

	d->health.full_events++;
	d->health.grow_until_us = until;
	snprintf(d->health.shortage, sizeof(d->health.shortage), "%s slab-%06u: %s", what, slab, shortage_words(error, words, sizeof(words)));
	if (!d->health.quarantined)
		memcpy(d->health.why, d->health.shortage, sizeof(d->health.why));
}

void disk_full_grow(struct disk *d, int error, uint32_t slab)
{
	full(d, clock_us() + FULL_US, "making", error, slab);
	d->health.shortage_in_write = false;
}

void disk_full_write(struct disk *d, int error, uint32_t slab)
{
	uint64_t until = clock_us() + FULL_US;

	d->health.write_until_us = until;
	full(d, until, "writing", error, slab);
	d->health.shortage_in_write = true;
}

bool disk_is_slow(struct disk *d)
{
	uint64_t now;

	if (d->options.slow_us == 0)
		return false;
	now = clock_us();
	if (now - d->health.slow_look_us >= SLOW_LOOK_US) {
		struct ring_view v;

		ring_look(d->ring, &v);
		d->health.slow_look_us = now;
		d->health.slow_oldest_us = v.oldest_us;
	}
	return d->health.slow_oldest_us > d->options.slow_us;
}

void disk_note_corrupt(struct disk *d, uint64_t n)
{
	pthread_mutex_lock(&d->mutex);
	d->health.corrupt += n;
	pthread_mutex_unlock(&d->mutex);
}

void disk_quarantine(struct disk *d, const char *why)
{
	pthread_mutex_lock(&d->mutex);
	disk_give_up(d, why);
	pthread_mutex_unlock(&d->mutex);
}

/* Mutex held. */
static void look_health(struct disk *d, struct disk_view *out)
{
	uint64_t now = clock_us();

	if (d->health.quarantined) {
		out->health = DISK_QUARANTINED;
		memcpy(out->why, d->health.why, sizeof(out->why));
	} else if (d->options.slow_us > 0 && out->ring.oldest_us > d->options.slow_us) {
		out->health = DISK_SLOW;
		snprintf(out->why, sizeof(out->why), "the oldest transfer is %llu ms old",
			 (unsigned long long)(out->ring.oldest_us / 1000));
	} else if (now < d->health.grow_until_us || now < d->health.write_until_us) {
		out->health = DISK_FULL;
		memcpy(out->why, d->health.why, sizeof(out->why));
	} else {
		out->health = DISK_HEALTHY;
	}
}

void disk_look(struct disk *d, struct disk_view *out)
{
	memset(out, 0, sizeof(*out));
	ring_look(d->ring, &out->ring);
	snprintf(out->refusal, sizeof(out->refusal), "%s", ring_refusal(d->ring));
	out->folder = d->options.folder;
	out->direct = d->folder.direct;
	out->wiped = d->folder.wiped_id;
	out->wiped_id = d->folder.wiped_id;
	out->marked = atomic_load_explicit(&d->health.marked, memory_order_acquire);
	pthread_mutex_lock(&d->mutex);
	look_health(d, out);
	out->budget_bytes = d->options.budget_bytes;
	out->slab_bytes_used = d->slab_bytes;
	out->slab_bytes = d->options.slab_bytes;
	out->slabs = d->slab_count;
	out->slabs_damaged = d->slabs_damaged;
	out->slots = d->slots;
	out->slots_used = d->slots_used;
	out->space_promised = d->sparse == 0;
	out->corrupt = d->health.corrupt;
	out->refused_slow = d->health.refused_slow;
	out->full_events = d->health.full_events;
	memcpy(out->shortage, d->health.shortage, sizeof(out->shortage));
	pthread_mutex_unlock(&d->mutex);
}
