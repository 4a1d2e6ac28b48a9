/* Opens and closes a disk. slab/private.h says of which parts a disk consists. */
#include "store/slab/disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/clock.h"
#include "store/slab/private.h"
#include "store/slot.h"
#include "store/crash_point.h"
#include "store/shortage.h"

enum { NAP_NS = 1000 * 1000 };

uint64_t disk_slab_bytes(uint64_t budget_bytes, uint64_t most_bytes, uint32_t files)
{
	const uint64_t share = budget_bytes / DISK_SLABS_WISHED, many = files ? files : DISK_SLABS_ENOUGH;
	const uint64_t least = budget_bytes / many + (budget_bytes % many > 0);
	uint64_t bytes = share < DISK_SLAB_BYTES_LEAST ? DISK_SLAB_BYTES_LEAST : share;

	if (most_bytes && bytes > most_bytes)
		bytes = most_bytes;
	if (bytes < least)
		bytes = least;
	return bytes < budget_bytes ? bytes : budget_bytes;
}

static bool options_sound(const struct disk_options *o)
{
	uint64_t least = DISK_SLAB_HEADER_BYTES + SLOT_HEADER_BYTES;

	return o->folder && o->folder[0] && o->budget_bytes >= least && o->slab_bytes >= least &&
	       o->slab_bytes <= o->budget_bytes;
}

/* Loads one slab file that was found at open: adopts it as a slab, or counts it as damaged. */
static enum status load_slab(struct disk *d, uint32_t number, char *why, size_t why_bytes)
{
	struct disk_slab_file file = { .number = number, .fd = -1 };
	const char *problem = NULL;
	enum status s = STATUS_EXHAUSTED;
	char text[SHORTAGE_WORDS_MAX];
	int error = disk_slab_file_open(&d->folder, &file, &problem);

	if (error != 0) {
		snprintf(why, why_bytes, "%s/slab-%06u.trc: %s", d->folder.path, number,
			 shortage_words(error, text, sizeof(text)));
		return error == EMFILE || error == ENFILE || error == ENOMEM ? STATUS_EXHAUSTED : STATUS_IO;
	}
	CRASH_POINT("disk_slab_load");
	d->slab_bytes += file.bytes;
	if (!problem && d->slab_count < DISK_SLABS_MAX) {
		s = disk_slab_adopt(d, &file, true);
		if (s == STATUS_OK)
			return s;
		snprintf(why, why_bytes, "%s/slab-%06u.trc: %s", d->folder.path, number, status_text(s));
	} else {
		d->slabs_damaged++;
		s = STATUS_OK;
	}
	if (file.fd >= 0)
		close(file.fd);
	return s;
}

static enum status load_slabs(struct disk *d, char *why, size_t why_bytes)
{
	uint32_t *numbers, count;
	enum status s = STATUS_OK;
	int error = disk_folder_slabs(&d->folder, &numbers, &count, &d->last_number);

	if (error != 0) {
		snprintf(why, why_bytes, "%s: the folder cannot be read", d->folder.path);
		return STATUS_IO;
	}
	for (uint32_t i = 0; i < count && s == STATUS_OK; i++)
		s = load_slab(d, numbers[i], why, why_bytes);
	free(numbers);
	return s;
}

static enum status disk_begin(struct disk *d, char *why, size_t why_bytes)
{
	enum status s = disk_folder_open(&d->folder, d->options.folder, d->options.must_exist, why, why_bytes);

	if (s != STATUS_OK)
		return s;
	CRASH_POINT("disk_folder_open");
	s = ring_create(&d->options.ring, &d->ring);
	if (s == STATUS_OK)
		s = ring_file_add(d->ring, d->folder.sync_fd, &d->id_file);
	if (s != STATUS_OK) {
		snprintf(why, why_bytes, "%s: the ring: %s", d->folder.path,
			 s == STATUS_UNSUPPORTED ? ring_refusal(NULL) : status_text(s));
		return s;
	}
	return load_slabs(d, why, why_bytes);
}

enum status disk_open(const struct disk_options *o, struct disk **out, char *why, size_t why_bytes)
{
	struct disk *d;
	enum status s;

	if (!options_sound(o)) {
		snprintf(why, why_bytes, "a folder, a budget and slabs of at least 8 KiB and at most the budget are needed");
		return STATUS_INVALID;
	}
	d = calloc(1, sizeof(*d));
	if (!d) {
		snprintf(why, why_bytes, "%s: no memory", o->folder);
		return STATUS_EXHAUSTED;
	}
	d->options = *o;
	d->folder.fd = d->folder.id_fd = d->folder.sync_fd = -1;
	pthread_mutex_init(&d->grow, NULL);
	pthread_mutex_init(&d->mutex, NULL);
	d->options.folder = strdup(o->folder);
	d->slabs = calloc(DISK_SLABS_MAX, sizeof(struct slab *));
	if (d->options.folder && d->slabs) {
		s = disk_begin(d, why, why_bytes);
	} else {
		snprintf(why, why_bytes, "%s: no memory", o->folder);
		s = STATUS_EXHAUSTED;
	}
	if (s == STATUS_OK)
		*out = d;
	else
		disk_close(d);
	return s;
}

/* Disks that were left behind. The list keeps their memory reachable, since the kernel may still write to it. */
static struct disk *left_behind;
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;

void disk_leave(struct disk *d)
{
	pthread_mutex_lock(&d->mutex);
	d->left_behind = true;
	pthread_mutex_unlock(&d->mutex);
	while (atomic_load_explicit(&d->telling, memory_order_acquire))
		nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
	pthread_mutex_lock(&left_lock);
	d->left_next = left_behind;
	left_behind = d;
	pthread_mutex_unlock(&left_lock);
}

static uint64_t left_us(uint64_t until_us)
{
	const uint64_t now = clock_us();

	if (until_us == UINT64_MAX)
		return UINT64_MAX; /* for ever */
	return until_us > now ? until_us - now : 0;
}

/* Waits until no thread makes or deletes a slab. */
static bool slabs_rest(struct disk *d, uint64_t until_us)
{
	while (pthread_mutex_trylock(&d->grow)) {
		if (clock_us() >= until_us)
			return false;
		nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
	}
	pthread_mutex_unlock(&d->grow);
	return true;
}

/* Waits for the thread that writes the marker, on a disk that may never answer. True: it has ended. */
static bool marker_ends(struct disk *d, uint64_t until_us)
{
	if (!d->health.marking)
		return true;
	while (!atomic_load_explicit(&d->health.marked, memory_order_acquire)) {
		if (clock_us() >= until_us) {
			pthread_detach(d->health.marker);
			return false;
		}
		nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
	}
	pthread_join(d->health.marker, NULL);
	return true;
}

void disk_close(struct disk *d)
{
	disk_close_by(d, UINT64_MAX);
}

bool disk_close_by(struct disk *d, uint64_t wait_us)
{
	const uint64_t now = clock_us(), until_us = wait_us < UINT64_MAX - now ? now + wait_us : UINT64_MAX;
	bool ended;

	if (!d)
		return true;
	CRASH_POINT("disk_close");
	if (!slabs_rest(d, until_us)) {
		disk_leave(d);
		return false;
	}
	ended = ring_destroy_by(d->ring, left_us(until_us));
	if (ended)
		d->ring = NULL;
	if (!marker_ends(d, until_us) || !ended) {
		disk_leave(d);
		return false;
	}
	disk_slabs_free(d);
	disk_folder_close(&d->folder);
	free(d->slabs);
	free((char *)(uintptr_t)d->options.folder);
	pthread_mutex_destroy(&d->mutex);
	pthread_mutex_destroy(&d->grow);
	free(d);
	return true;
}

uint64_t disk_id(const struct disk *d)
{
	return d->folder.id;
}
