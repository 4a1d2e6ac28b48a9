/* Slabs and their slots.
 *
 * A slab has one bit for each slot. A class lists its slabs with free slots; the first is used up before the next is
 * touched, so that the others may become empty and be dropped. A take begins at the slab's hint: no word of bits below
 * it has a free slot.
 *
 * Files are made and deleted under `grow`, outside the mutex that all functions take.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/slab/private.h"
#include "store/clock.h"
#include "store/slot.h"
#include "store/crash_point.h"
#include "store/shortage.h"

static bool bit_get(const uint64_t *bits, uint32_t i)
{
	return bits[i / 64] >> (i % 64) & 1;
}

static void bit_set(uint64_t *bits, uint32_t i)
{
	bits[i / 64] |= 1ull << (i % 64);
}

static void bit_clear(uint64_t *bits, uint32_t i)
{
	bits[i / 64] &= ~(1ull << (i % 64));
}

static uint32_t words(uint32_t slots)
{
	return slots / 64 + (slots % 64 > 0);
}

bool disk_slot_taken(const struct slab *s, uint32_t slot)
{
	return slot < s->file.slots && bit_get(s->taken, slot);
}

/* ---- the lists; mutex held ---- */

static void list_append(struct slab *s)
{
	struct disk_class *c = s->class;

	s->prev = c->last;
	s->next = NULL;
	if (c->last)
		c->last->next = s;
	else
		c->first = s;
	c->last = s;
	c->free += s->file.slots - s->used;
	s->listed = true;
}

static void list_remove(struct slab *s)
{
	struct disk_class *c = s->class;

	if (s->prev)
		s->prev->next = s->next;
	else
		c->first = s->next;
	if (s->next)
		s->next->prev = s->prev;
	else
		c->last = s->prev;
	s->prev = s->next = NULL;
	c->free -= s->file.slots - s->used;
	s->listed = false;
}

static void list_settle(struct slab *s)
{
	bool wanted = !s->closed && s->used < s->file.slots;

	if (wanted && !s->listed)
		list_append(s);
	else if (!wanted && s->listed)
		list_remove(s);
}

static struct disk_class *class_find(const struct disk *d, uint64_t slot_bytes)
{
	struct disk_class *c = d->classes;

	while (c && c->slot_bytes != slot_bytes)
		c = c->next;
	return c;
}

static struct disk_class *class_get(struct disk *d, uint64_t slot_bytes)
{
	struct disk_class *c = class_find(d, slot_bytes);

	if (c)
		return c;
	c = calloc(1, sizeof(*c));
	if (c) {
		c->slot_bytes = slot_bytes;
		c->next = d->classes;
		d->classes = c;
	}
	return c;
}

/* The place of the first slab with a number of at least `number`. */
static uint32_t slab_place(const struct disk *d, uint32_t number)
{
	uint32_t low = 0, high = d->slab_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (d->slabs[middle]->file.number < number)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct slab *disk_slab_find(const struct disk *d, uint32_t number)
{
	uint32_t place = slab_place(d, number);

	return place < d->slab_count && d->slabs[place]->file.number == number ? d->slabs[place] : NULL;
}

/* ---- the totals; mutex held ---- */

static void empty_note(struct slab *s, bool is)
{
	const uint32_t one = is ? 1 : -1u;

	s->class->empty += one;
	s->disk->empty += one;
}

static void slab_count(struct slab *s, bool is)
{
	const uint64_t one = is ? 1 : -1ull;

	s->disk->slots += one * s->file.slots;
	s->disk->slots_used += one * s->used;
	s->disk->sparse += (uint32_t)one * s->file.sparse;
	if (s->used == 0)
		empty_note(s, is);
}

/* ---- slabs come and go ---- */

static void slab_free(struct slab *s)
{
	free(s->taken);
	free(s->marked);
	free(s);
}

static struct slab *slab_new(struct disk *d, const struct disk_slab_file *file, bool found)
{
	struct slab *s = calloc(1, sizeof(*s));
	uint32_t n = words(file->slots);

	if (!s)
		return NULL;
	s->disk = d;
	s->file = *file;
	s->taken = calloc(n, sizeof(*s->taken));
	s->marked = found ? calloc(n, sizeof(*s->marked)) : NULL;
	if (!s->taken || (found && !s->marked)) {
		slab_free(s);
		return NULL;
	}
	if (found) {
		s->dirty = true; /* a run that was killed may have left it so */
		memset(s->taken, 0xff, n * sizeof(*s->taken));
		s->used = file->slots;
		s->hint = n;
	}
	return s;
}

enum status disk_slab_adopt(struct disk *d, const struct disk_slab_file *file, bool found)
{
	struct slab *s = slab_new(d, file, found);
	enum status status;

	if (!s)
		return STATUS_EXHAUSTED;
	status = ring_file_add(d->ring, file->fd, &s->ring_file);
	if (status != STATUS_OK) {
		slab_free(s);
		return status;
	}
	pthread_mutex_lock(&d->mutex);
	s->class = class_get(d, file->slot_bytes);
	if (s->class) {
		assert(d->slab_count == 0 || d->slabs[d->slab_count - 1]->file.number < file->number);
		d->slabs[d->slab_count++] = s;
		slab_count(s, true);
		list_settle(s);
	}
	pthread_mutex_unlock(&d->mutex);
	if (s->class)
		return STATUS_OK;
	ring_file_remove(d->ring, s->ring_file);
	slab_free(s);
	return STATUS_EXHAUSTED;
}

void disk_slabs_free(struct disk *d)
{
	struct disk_class *c;

	for (uint32_t i = 0; i < d->slab_count; i++) {
		close(d->slabs[i]->file.fd);
		slab_free(d->slabs[i]);
	}
	d->slab_count = 0;
	while ((c = d->classes) != NULL) {
		d->classes = c->next;
		free(c);
	}
}

/* The number of slots in the next slab of that size; 0: not even one fits. Mutex held. */
static uint32_t plan_slots(const struct disk *d, uint64_t slot_bytes)
{
	uint64_t budget = d->options.budget_bytes, left = budget > d->slab_bytes ? budget - d->slab_bytes : 0;
	uint64_t wished = d->options.slab_bytes, least = DISK_SLAB_HEADER_BYTES + slot_bytes, bytes;

	if (least > left)
		return 0;
	bytes = wished < least ? least : wished;
	if (bytes > left)
		bytes = left;
	bytes = (bytes - DISK_SLAB_HEADER_BYTES) / slot_bytes;
	return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

/* Notes a failure to make a slab and returns its status. Mutex held. */
static enum status grow_failed(struct disk *d, int error, uint32_t slab)
{
	if (shortage_is(error)) {
		disk_full_grow(d, error, slab);
		return STATUS_EXHAUSTED;
	}
	if (error == EMFILE || error == ENFILE || error == ENOMEM)
		return STATUS_EXHAUSTED;
	disk_failed(d, error, "making", slab);
	return STATUS_IO;
}

/* Plans up to `count` slabs and takes their bytes from the budget. Returns how many it planned. Mutex held. */
static uint32_t slabs_plan(struct disk *d, uint64_t slot_bytes, uint32_t count, struct disk_slab_file *files)
{
	uint32_t n = 0, slots;

	while (n < count && d->slab_count + n < DISK_SLABS_MAX && d->last_number < UINT32_MAX &&
	       (slots = plan_slots(d, slot_bytes)) > 0) {
		files[n++] = (struct disk_slab_file){
			.number = ++d->last_number, .slots = slots, .slot_bytes = slot_bytes, .fd = -1,
		};
		d->slab_bytes += DISK_SLAB_HEADER_BYTES + slots * slot_bytes;
	}
	return n;
}

/* Gives back the bytes of slabs that were planned and not made; the folder may have files of them. Mutex held. */
static void slabs_unplan(struct disk *d, const struct disk_slab_file *files, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		d->slab_bytes -= DISK_SLAB_HEADER_BYTES + files[i].slots * files[i].slot_bytes;
}

/* Adopts files that were made, and removes those that cannot be adopted. OK: at least one was adopted; *adopted is
 * their number. */
static enum status slabs_adopt(struct disk *d, struct disk_slab_file *files, uint32_t count, uint32_t *adopted, int *error)
{
	enum status s = STATUS_OK;

	*adopted = 0;
	while (*adopted < count && (s = disk_slab_adopt(d, &files[*adopted], false)) == STATUS_OK)
		++*adopted;
	for (uint32_t i = count; i > *adopted; i--) {
		const int e = disk_slab_file_remove(&d->folder, &files[i - 1], files[i - 1].number == d->last_number);

		*error = e != 0 ? e : *error;
	}
	return *adopted > 0 ? STATUS_OK : s;
}

/* Makes up to `count` slabs; grow held. OK: at least one was made. */
static enum status slabs_make(struct disk *d, uint64_t slot_bytes, uint32_t count)
{
	struct disk_slab_file files[DISK_SLABS_AT_ONCE];
	uint32_t n, made = 0, adopted = 0;
	enum status s = STATUS_OK;
	int error;

	pthread_mutex_lock(&d->mutex);
	n = slabs_plan(d, slot_bytes, count, files);
	pthread_mutex_unlock(&d->mutex);
	CRASH_POINT("slab_number");
	error = disk_slab_files_make(&d->folder, files, n, &made);
	if (error == 0) {
		CRASH_POINT("slab_made");
		s = slabs_adopt(d, files, made, &adopted, &error);
	}
	CRASH_POINT("slab_adopted");
	pthread_mutex_lock(&d->mutex);
	slabs_unplan(d, files + adopted, n - adopted);
	if (error != 0)
		s = grow_failed(d, error, files[adopted].number);
	else if (s == STATUS_OK)
		d->health.shortage[0] = 0;
	pthread_mutex_unlock(&d->mutex);
	return s;
}

static bool size_sound(uint64_t slot_bytes)
{
	return slot_bytes > 0 && slot_bytes % SLOT_HEADER_BYTES == 0 && slot_bytes <= SLOT_BYTES_MAX;
}

/* Whether a slab is to be made. OK: yes. EXISTS: no, free_least slots are free. Mutex held. */
static enum status may_grow(struct disk *d, uint64_t slot_bytes, uint64_t free_least)
{
	const struct disk_class *c = class_find(d, slot_bytes);

	if (d->health.quarantined)
		return STATUS_UNAVAILABLE;
	if (c && c->free >= free_least)
		return STATUS_EXISTS;
	if (d->slab_count == DISK_SLABS_MAX || d->last_number == UINT32_MAX)
		return STATUS_EXHAUSTED;
	if (clock_us() < d->health.grow_until_us)
		return STATUS_EXHAUSTED;
	return plan_slots(d, slot_bytes) > 0 ? STATUS_OK : STATUS_EXHAUSTED;
}

enum status disk_slabs_prepare(struct disk *d, uint64_t slot_bytes, uint32_t most, uint64_t free_least)
{
	const uint32_t count = most < 1 ? 1 : most < DISK_SLABS_AT_ONCE ? most : DISK_SLABS_AT_ONCE;
	enum status s;

	if (!size_sound(slot_bytes))
		return STATUS_INVALID;
	pthread_mutex_lock(&d->grow);
	pthread_mutex_lock(&d->mutex);
	s = may_grow(d, slot_bytes, free_least ? free_least : 1);
	pthread_mutex_unlock(&d->mutex);
	if (s == STATUS_OK)
		s = slabs_make(d, slot_bytes, count);
	pthread_mutex_unlock(&d->grow);
	return s == STATUS_EXISTS ? STATUS_OK : s;
}

enum status disk_slab_prepare(struct disk *d, uint64_t slot_bytes)
{
	return disk_slabs_prepare(d, slot_bytes, 1, 1);
}

/* Takes a slab out of the tables, so that no search finds it; mutex held. */
static void slab_unlink(struct disk *d, struct slab *s)
{
	uint32_t place = slab_place(d, s->file.number);

	s->closed = true;
	list_settle(s);
	slab_count(s, false);
	memmove(&d->slabs[place], &d->slabs[place + 1], (d->slab_count - place - 1) * sizeof(*d->slabs));
	d->slab_count--;
}

/* Deletes an unlinked slab; grow held. */
static enum status slab_delete(struct disk *d, struct slab *s)
{
	int error;

	CRASH_POINT("slab_delete");
	ring_file_remove(d->ring, s->ring_file);
	error = disk_slab_file_remove(&d->folder, &s->file, s->file.number == d->last_number);
	pthread_mutex_lock(&d->mutex);
	if (error == 0)
		d->slab_bytes -= s->file.bytes;
	else
		disk_failed(d, error, "deleting", s->file.number);
	pthread_mutex_unlock(&d->mutex);
	CRASH_POINT("slab_deleted");
	slab_free(s);
	return error == 0 ? STATUS_OK : STATUS_IO;
}

static bool is_idle(const struct slab *s)
{
	return s->under_way == 0 && !s->syncing;
}

enum status disk_slab_drop(struct disk *d, uint32_t slab)
{
	enum status status = STATUS_OK;
	struct slab *s;

	pthread_mutex_lock(&d->grow);
	pthread_mutex_lock(&d->mutex);
	s = disk_slab_find(d, slab);
	if (d->health.quarantined)
		status = STATUS_UNAVAILABLE;
	else if (!s)
		status = STATUS_STALE;
	else if (!is_idle(s))
		status = STATUS_BUSY;
	else
		slab_unlink(d, s);
	pthread_mutex_unlock(&d->mutex);
	if (status == STATUS_OK)
		status = slab_delete(d, s);
	pthread_mutex_unlock(&d->grow);
	return status;
}

/* Mutex held. */
static struct slab *free_slab(const struct disk *d, uint64_t but_slot_bytes)
{
	for (uint32_t i = 0; i < d->slab_count; i++) {
		struct slab *s = d->slabs[i];

		if (s->used == 0 && s->file.slot_bytes != but_slot_bytes && is_idle(s))
			return s;
	}
	return NULL;
}

enum status disk_slab_drop_free(struct disk *d, uint64_t but_slot_bytes)
{
	enum status status = STATUS_MISS;
	struct slab *s = NULL;

	pthread_mutex_lock(&d->grow);
	pthread_mutex_lock(&d->mutex);
	if (d->health.quarantined)
		status = STATUS_UNAVAILABLE;
	else
		s = free_slab(d, but_slot_bytes);
	if (s)
		slab_unlink(d, s);
	pthread_mutex_unlock(&d->mutex);
	if (s)
		status = slab_delete(d, s);
	pthread_mutex_unlock(&d->grow);
	return status;
}

void disk_slab_close(struct disk *d, uint32_t slab, bool closed)
{
	struct slab *s;

	pthread_mutex_lock(&d->mutex);
	s = disk_slab_find(d, slab);
	if (s) {
		CRASH_POINT("slab_close");
		s->closed = closed;
		list_settle(s);
	}
	pthread_mutex_unlock(&d->mutex);
}

bool disk_slab_next(struct disk *d, uint32_t after, struct disk_slab_view *out)
{
	uint32_t place;
	bool found;

	if (after == UINT32_MAX)
		return false;
	pthread_mutex_lock(&d->mutex);
	place = slab_place(d, after + 1);
	found = place < d->slab_count;
	if (found) {
		const struct slab *s = d->slabs[place];

		*out = (struct disk_slab_view){
			.slab = s->file.number,
			.slots = s->file.slots,
			.used = s->used,
			.slot_bytes = s->file.slot_bytes,
			.file_bytes = s->file.bytes,
			.closed = s->closed,
		};
	}
	pthread_mutex_unlock(&d->mutex);
	return found;
}

void disk_slab_skip(struct disk *d, uint32_t slab)
{
	pthread_mutex_lock(&d->mutex);
	if (d->last_number < slab)
		d->last_number = slab;
	pthread_mutex_unlock(&d->mutex);
}

const char *disk_slab_problem(struct disk *d, uint32_t slab)
{
	struct disk_slab_file file = { .number = slab, .fd = -1 };
	const char *problem = NULL;
	int error;
	bool used;

	pthread_mutex_lock(&d->mutex);
	used = disk_slab_find(d, slab);
	pthread_mutex_unlock(&d->mutex);
	if (used)
		return NULL;
	error = disk_slab_file_open(&d->folder, &file, &problem);
	if (file.fd >= 0)
		close(file.fd);
	if (error)
		return error == ENOENT ? "is missing" : "cannot be opened";
	return problem ? problem : "is one more than can be used";
}

/* ---- slots ---- */

/* Takes the lowest free slot of a slab that has one; mutex held. */
static uint32_t slot_pop(struct slab *s)
{
	uint32_t slot;

	while (s->taken[s->hint] == UINT64_MAX)
		s->hint++;
	slot = s->hint * 64 + (uint32_t)__builtin_ctzll(~s->taken[s->hint]);
	assert(slot < s->file.slots);
	CRASH_POINT("slot_take");
	bit_set(s->taken, slot);
	if (s->marked)
		bit_set(s->marked, slot);
	if (s->used++ == 0)
		empty_note(s, false);
	s->disk->slots_used++;
	s->class->free -= s->listed;
	list_settle(s);
	return slot;
}

static void slot_push(struct slab *s, uint32_t slot)
{
	CRASH_POINT("slot_give");
	bit_clear(s->taken, slot);
	if (s->marked)
		bit_clear(s->marked, slot);
	if (slot / 64 < s->hint)
		s->hint = slot / 64;
	if (--s->used == 0)
		empty_note(s, true);
	s->disk->slots_used--;
	s->class->free += s->listed;
	list_settle(s);
}

enum status disk_slot_take(struct disk *d, uint64_t slot_bytes, struct disk_place *out)
{
	enum status status = STATUS_MISS;
	struct disk_class *c;

	if (!size_sound(slot_bytes))
		return STATUS_INVALID;
	pthread_mutex_lock(&d->mutex);
	c = class_find(d, slot_bytes);
	if (d->health.quarantined) {
		status = STATUS_UNAVAILABLE;
	} else if (d->health.write_until_us > 0 && clock_us() < d->health.write_until_us) {
		status = STATUS_EXHAUSTED;
	} else if (c && c->first) {
		struct slab *s = c->first;

		*out = (struct disk_place){ .slab = s->file.number, .slot = slot_pop(s) };
		status = STATUS_OK;
	}
	pthread_mutex_unlock(&d->mutex);
	return status;
}

void disk_slot_give(struct disk *d, struct disk_place p)
{
	struct slab *s;
	bool taken;

	pthread_mutex_lock(&d->mutex);
	s = disk_slab_find(d, p.slab);
	taken = s && disk_slot_taken(s, p.slot);
	assert((!s || taken) && "a slot was given back that is not taken"); /* its slab may be dropped */
	if (taken)
		slot_push(s, p.slot);
	pthread_mutex_unlock(&d->mutex);
}

/* Mutex held. */
static enum disk_room room_of(struct disk *d, uint64_t slot_bytes)
{
	const struct disk_class *c = class_find(d, slot_bytes);
	const uint64_t now = clock_us();

	if (d->health.quarantined || now < d->health.write_until_us)
		return DISK_ROOM_NONE;
	if (c && c->first)
		return DISK_ROOM_SLOT;
	if (now < d->health.grow_until_us || d->last_number == UINT32_MAX)
		return DISK_ROOM_NONE;
	if (d->empty > (c ? c->empty : 0))
		return DISK_ROOM_SLAB;
	return d->slab_count < DISK_SLABS_MAX && plan_slots(d, slot_bytes) > 0 ? DISK_ROOM_SLAB : DISK_ROOM_NONE;
}

enum disk_room disk_room(struct disk *d, uint64_t slot_bytes, uint64_t *free_slots)
{
	const struct disk_class *c;
	enum disk_room room;

	*free_slots = 0;
	if (!size_sound(slot_bytes))
		return DISK_ROOM_NONE;
	pthread_mutex_lock(&d->mutex);
	c = class_find(d, slot_bytes);
	room = room_of(d, slot_bytes);
	*free_slots = c ? c->free : 0;
	pthread_mutex_unlock(&d->mutex);
	return room;
}

enum status disk_slot_mark(struct disk *d, struct disk_place p, uint64_t bytes)
{
	enum status status = STATUS_STALE;
	struct slab *s;

	pthread_mutex_lock(&d->mutex);
	s = disk_slab_find(d, p.slab);
	if (s && s->marked && s->file.slot_bytes >= bytes && disk_slot_taken(s, p.slot)) {
		status = bit_get(s->marked, p.slot) ? STATUS_EXISTS : STATUS_OK;
		CRASH_POINT("slot_mark");
		bit_set(s->marked, p.slot);
	}
	pthread_mutex_unlock(&d->mutex);
	return status;
}

/* Mutex held. */
static void free_unmarked(struct slab *s)
{
	uint32_t used = 0;

	for (uint32_t i = 0; i < words(s->file.slots); i++)
		used += (uint32_t)__builtin_popcountll(s->marked[i]);
	/* Bits behind the last slot stay taken. */
	for (uint32_t i = 0; i < s->file.slots; i++)
		if (!bit_get(s->marked, i))
			bit_clear(s->taken, i);
	CRASH_POINT("slots_free");
	free(s->marked);
	s->marked = NULL;
	slab_count(s, false);
	if (s->listed) /* slots were given back before: the list counts what is free */
		list_remove(s);
	s->used = used;
	slab_count(s, true);
	s->hint = 0;
	list_settle(s);
}

void disk_slot_free_unmarked(struct disk *d)
{
	pthread_mutex_lock(&d->mutex);
	for (uint32_t i = 0; i < d->slab_count; i++)
		if (d->slabs[i]->marked)
			free_unmarked(d->slabs[i]);
	pthread_mutex_unlock(&d->mutex);
}
