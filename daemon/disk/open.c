/* What a start finds of the disk tier, and which part of that it may trust. The catalog is opened first, then each disk
 * of the options.
 *
 * A disk that cannot be used is *out* (tier->out), with the reason, until the next start: its blocks are missing, but
 * the daemon starts. The start is refused only where a person must decide: a folder that another process uses, a copy
 * of another disk, and fewer disks than options.disks_required.
 *
 * A delete cannot write tombstones to a disk that is missing (it failed, it is out, or the options do not name it). So
 * the catalog *bans* such a disk, at the latest with the commit that the delete waits for; when the disk is opened
 * again, its slabs are wiped first. A ban names the disk's id; for a disk that is out also its folder, since its id may
 * not be known. The other disks note the ids too, in case the catalog is lost before the disk comes back. If a run
 * deleted nothing, it lifts the bans of disks that are out at its end (tier_pardon).
 *
 * If the catalog knows a disk in a folder and the folder has no disk.id, the disk is out as well: it is not mounted,
 * and a new disk would be made on the file system of the mount point.
 */
#include "daemon/disk/open.h"

#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/rate.h"
#include "daemon/block/values.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/threads/await.h"
#include "store/catalog/catalog.h"
#include "store/catalog/record.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	QUEUE_PER_DEPTH = 64,
	BAN_KEY_BYTES = 12,
	READ_US_PER_MIB = 500,         /* of a disk that has not been read yet: 2 GB/s */
	COMMIT_WAITS = 100,            /* for the catalog, of so long each: */
	COMMIT_WAIT_US = 100 * 1000,
};

static _Thread_local char why_text[1024];

static enum status __attribute__((format(printf, 2, 3))) refuse(enum status s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why_text, sizeof(why_text), format, args);
	va_end(args);
	return s;
}

/* ---- bans ---- */

static void key_of(const char word[4], uint64_t number, uint8_t key[BAN_KEY_BYTES])
{
	memcpy(key, word, 4);
	memcpy(key + 4, &number, sizeof(number));
}

static bool noted(struct catalog *catalog, const char word[4], uint64_t number)
{
	uint8_t key[BAN_KEY_BYTES], value[8];
	size_t n = sizeof(value);

	key_of(word, number, key);
	return catalog_get(catalog, CATALOG_META, key, sizeof(key), value, &n) == STATUS_OK;
}

/* Queues a note in the catalog about a disk. False: the catalog's queue is full. */
static bool note(struct catalog *catalog, const char word[4], uint64_t number)
{
	uint8_t key[BAN_KEY_BYTES];

	key_of(word, number, key);
	return catalog_put(catalog, CATALOG_META, key, sizeof(key), "1", 1) == STATUS_OK;
}

static void unnote(struct catalog *catalog, const char word[4], uint64_t number)
{
	uint8_t key[BAN_KEY_BYTES];

	key_of(word, number, key);
	catalog_drop(catalog, CATALOG_META, key, sizeof(key));
}

#define WIPE_ID "wipe"     /* a disk, by its id */
#define WIPE_FOLDER "away" /* what lies in a folder, by the name's hash */

/* FNV-1a of a folder's name. */
static uint64_t folder_hash(const char *folder)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (; *folder; folder++)
		h = (h ^ (uint8_t)*folder) * 0x100000001b3ull;
	return h;
}

bool unit_ban(struct tier *t, const struct unit *u)
{
	return note(t->catalog, WIPE_ID, u->id);
}

/* Has the catalog forget a disk of which nothing is left. */
static void disk_forget(struct catalog *catalog, uint64_t id)
{
	const struct disk_record d = { .disk_id = id, .folder = "-" };
	struct record r;

	unnote(catalog, WIPE_ID, id);
	if (!disk_record_encode(&d, &r))
		catalog_drop(catalog, CATALOG_SLABS, r.key, r.key_bytes);
}

/* ---- one disk ---- */

struct unit *unit_configured(struct tier *t, uint32_t configured)
{
	for (uint32_t i = 0; i < t->unit_count; i++)
		if (t->units[i].configured == configured)
			return &t->units[i];
	return NULL;
}

static void thread_begin(void *arg)
{
	(void)arg;
	cache_thread_enter();
}

static void thread_end(void *arg)
{
	(void)arg;
	cache_thread_leave();
}

static enum ring_engine engine_of(enum cache_io io)
{
	return io == CACHE_IO_URING ? RING_URING : io == CACHE_IO_THREADS ? RING_THREADS : RING_AUTO;
}

static struct ring_options ring_of(const struct cache_options *o)
{
	return (struct ring_options){ .engine = engine_of(o->io),
				      .depth = o->disk_depth,
				      .queue_max = o->disk_depth * QUEUE_PER_DEPTH,
				      .thread_begin = thread_begin,
				      .thread_end = thread_end,
				      .calls = o->io_calls };
}

static enum status unit_open(struct cache *c, struct unit *u, bool must_exist)
{
	const struct cache_options *all = &c->options;
	const struct cache_disk_options *o = u->options;
	const struct disk_options disk = {
		.folder = o->folder,
		.must_exist = must_exist,
		.budget_bytes = o->bytes,
		.slab_bytes = disk_slab_bytes(o->bytes, all->slab_bytes, all->slab_files),
		.slow_us = all->disk_slow_ms * 1000ull,
		.ring = ring_of(all),
	};
	enum status s = disk_open(&disk, &u->disk, why_text, sizeof(why_text));
	struct disk_view v;

	if (s)
		return s;
	u->id = disk_id(u->disk);
	disk_look(u->disk, &v);
	u->wiped_id = v.wiped_id;
	if (u->wiped_id)
		disk_forget(c->tier->catalog, u->wiped_id);
	return STATUS_OK;
}

static void unit_close(struct unit *u)
{
	disk_close(u->disk);
	u->disk = NULL;
}

/* Wipes a banned disk, and opens it again under a new id. */
static enum status unit_wipe(struct cache *c, struct unit *u)
{
	const uint64_t id = u->id;
	enum status s;

	disk_quarantine(u->disk, "blocks may have been deleted while this disk was not in use");
	unit_close(u);
	s = unit_open(c, u, true);
	if (!s && u->id == id) {
		unit_close(u);
		return refuse(STATUS_IO, "%s: the disk was not in use for a while and cannot be wiped", u->options->folder);
	}
	return s;
}

/* Refuses a folder that is a copy of another: what is deleted would get a tombstone in one of them alone. */
static enum status refuse_twin(const struct tier *t, const struct unit *u)
{
	for (const struct unit *o = t->units; o < u; o++)
		if (o->id == u->id)
			return refuse(STATUS_INVALID, "%s: it has the same disk.id as %s, of which it is a copy: empty one of them", u->options->folder,
				      o->options->folder);
	return STATUS_OK;
}

static bool unit_used(const struct unit *u)
{
	struct disk_view v;

	disk_look(u->disk, &v);
	return v.slabs > 0;
}

static bool is_banned(const struct cache *c, const struct unit *u)
{
	struct catalog *catalog = c->tier->catalog;

	if (noted(catalog, WIPE_ID, u->id))
		return true;
	return (c->options.distrust_disks || noted(catalog, WIPE_FOLDER, folder_hash(u->options->folder))) && unit_used(u);
}

/* ---- those that are out ---- */

/* Whether the kernel refuses the ring that disk_io demands. It then does so to every disk. */
static bool is_of_ring(const struct cache *c)
{
	const struct ring_options o = ring_of(&c->options);
	struct ring *ring = NULL;
	enum status s = c->options.io == CACHE_IO_URING ? ring_create(&o, &ring) : STATUS_OK;

	ring_destroy_by(ring, UINT64_MAX);
	return s == STATUS_UNSUPPORTED;
}

/* What to do about a disk that cannot be used; NULL: the disk is not the cause, and the daemon must not start. */
static const char *remedy_of(const struct cache *c, enum status s)
{
	switch (s) {
	case STATUS_NOT_FOUND:
		return "mount it and restart the daemon; if the disk is a new one, put an empty file named disk.id there first";
	case STATUS_CORRUPT:
		return "restore disk.id, or empty the folder but for an empty file named disk.id, which gives the disk's blocks up; then restart the daemon";
	case STATUS_UNSUPPORTED:
		return is_of_ring(c) ? NULL : "run the newer version, or empty the folder but for an empty file named disk.id; then restart the daemon";
	case STATUS_IO:
		return "mend the reason and restart the daemon, which takes the disk up again, or take it out of disks";
	default:
		return NULL;
	}
}

/* Leaves a disk out that could not be used, after status s and its sentence in why_text. OK: the daemon goes on without
 * the disk. */
static enum status leave_out(struct cache *c, uint32_t configured, enum status s)
{
	const char *remedy = remedy_of(c, s);
	struct disk_out *out = &c->tier->out[c->tier->out_count];

	if (!remedy)
		return s;
	out->configured = configured;
	out->remedy = remedy;
	snprintf(out->why, sizeof(out->why), "%.*s", (int)sizeof(out->why) - 1, why_text);
	c->tier->out_count++;
	return STATUS_OK;
}

/* Closes a unit and leaves its disk out. The units behind it take the numbers before theirs. */
static enum status leave_unit_out(struct cache *c, uint32_t number, enum status s)
{
	struct tier *t = c->tier;
	const uint32_t configured = t->units[number].configured;

	if (t->units[number].disk)
		unit_close(&t->units[number]);
	memmove(&t->units[number], &t->units[number + 1], (--t->unit_count - number) * sizeof(t->units[0]));
	memset(&t->units[t->unit_count], 0, sizeof(t->units[0]));
	for (uint32_t i = number; i < t->unit_count; i++)
		t->units[i].number = i;
	return leave_out(c, configured, s);
}

/* ---- disks that earlier runs had ---- */

struct known {
	const struct cache_options *options;
	bool folder[CACHE_DISKS_MAX]; /* the catalog knows a disk there */
};

static bool on_folder(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct known *known = arg;
	struct disk_record d;

	for (uint32_t i = 0; !disk_record_decode(key, key_bytes, value, value_bytes, &d) && i < known->options->disk_count; i++)
		known->folder[i] |= !strcmp(known->options->disks[i].folder, d.folder);
	return true;
}

struct absent {
	struct cache *cache;
	bool untold;                   /* the catalog did not take a ban */
	uint64_t ids[DISK_ABSENT_MAX]; /* the first of them */
	uint64_t known[DISK_ABSENT_MAX]; /* those that the first disk here knows to be absent already */
	uint32_t count, known_count;
};

static bool id_in(uint64_t id, const uint64_t *ids, uint32_t count)
{
	uint32_t i = 0;

	while (i < count && ids[i] != id)
		i++;
	return i < count;
}

static bool id_of_unit(const struct tier *t, uint64_t id)
{
	for (uint32_t i = 0; i < t->unit_count; i++)
		if (t->units[i].id == id || t->units[i].wiped_id == id)
			return true;
	return false;
}

static bool folder_is_out(const struct cache *c, const char *folder)
{
	for (uint32_t i = 0; i < c->tier->out_count; i++)
		if (!strcmp(c->options.disks[c->tier->out[i].configured].folder, folder))
			return true;
	return false;
}

static bool folder_of_unit(const struct tier *t, const char *folder)
{
	for (uint32_t i = 0; i < t->unit_count; i++)
		if (!strcmp(t->units[i].options->folder, folder))
			return true;
	return false;
}

/* Notes, for the log, a disk that an earlier run had and this one has not. */
static void tell_left(struct tier *t, const char *folder)
{
	const uint32_t i = t->found.left_out_count++;

	if (i >= CACHE_LEFT_OUT_MAX)
		return;
	snprintf(t->found.left_out[i].folder, sizeof(t->found.left_out[i].folder), "%.*s", (int)sizeof(t->found.left_out[i].folder) - 1, folder);
	t->found.left_out[i].why = folder_of_unit(t, folder) ? "its folder has another disk now: it was emptied, or another disk is mounted there" :
					     "an earlier run had it, and disks does not name it now";
}

static bool on_known_disk(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct absent *absent = arg;
	struct tier *t = absent->cache->tier;
	struct disk_record d;

	if (disk_record_decode(key, key_bytes, value, value_bytes, &d))
		return true;
	if (id_of_unit(t, d.disk_id))
		return true;
	if (absent->count < DISK_ABSENT_MAX)
		absent->ids[absent->count++] = d.disk_id;
	if (!folder_is_out(absent->cache, d.folder)) {
		if (!id_in(d.disk_id, absent->known, absent->known_count))
			tell_left(t, d.folder);
	} else if (!noted(t->catalog, WIPE_ID, d.disk_id) && t->pardon_count < CACHE_DISKS_MAX) {
		t->pardon[t->pardon_count++] = d.disk_id;
	}
	absent->untold = !note(t->catalog, WIPE_ID, d.disk_id);
	return !absent->untold;
}

/* The disks in use note the absent ones too, as the catalog may be lost. They keep what they knew, except disks that
 * are back and were wiped. A disk that cannot write the note leaves it to the others and the catalog. */
static void note_absent(const struct unit *u, const struct absent *absent)
{
	uint64_t known[DISK_ABSENT_MAX], ids[2 * DISK_ABSENT_MAX];
	const uint32_t before = disk_absent(u->disk, known);
	uint32_t count = 0;

	for (uint32_t i = 0; i < absent->count; i++)
		ids[count++] = absent->ids[i];
	for (uint32_t i = 0; i < before; i++)
		if (!id_of_unit(absent->cache->tier, known[i]) && !id_in(known[i], ids, count))
			ids[count++] = known[i];
	if (count != before || memcmp(ids, known, count * sizeof(ids[0])) != 0)
		disk_absent_set(u->disk, ids, count);
}

/* Whether a disk has noted that it was in use while this one was not. */
static bool noted_absent(const struct tier *t, const struct unit *u)
{
	uint64_t ids[DISK_ABSENT_MAX];

	for (uint32_t i = 0; i < t->unit_count; i++)
		if (&t->units[i] != u && id_in(u->id, ids, disk_absent(t->units[i].disk, ids)))
			return true;
	return false;
}

/* Takes from the disks whose bans may be lifted those that another disk has noted as absent. Their bans must stay. */
static void pardon_none_of(struct tier *t, const struct unit *u)
{
	uint64_t ids[DISK_ABSENT_MAX];
	const uint32_t count = disk_absent(u->disk, ids);
	uint32_t kept = 0;

	for (uint32_t i = 0; i < t->pardon_count; i++)
		if (!id_in(t->pardon[i], ids, count))
			t->pardon[kept++] = t->pardon[i];
	t->pardon_count = kept;
}

static bool folders_ban(struct cache *c)
{
	struct tier *t = c->tier;
	bool told = true;

	t->pardon_folders = true;
	for (uint32_t i = 0; i < t->out_count; i++) {
		const uint64_t folder = folder_hash(c->options.disks[t->out[i].configured].folder);

		t->pardon_folders &= !noted(t->catalog, WIPE_FOLDER, folder);
		told &= note(t->catalog, WIPE_FOLDER, folder);
	}
	return told;
}

/* Bans the disks that earlier runs had and this one has not. */
static enum status ban_absent(struct cache *c)
{
	struct absent absent = { .cache = c };
	struct tier *t = c->tier;
	enum status s;

	absent.known_count = t->unit_count ? disk_absent(t->units[0].disk, absent.known) : 0;
	s = catalog_walk(t->catalog, CATALOG_SLABS, on_known_disk, &absent, NULL);
	for (uint32_t i = 0; i < t->unit_count && !s; i++) {
		pardon_none_of(t, &t->units[i]);
		note_absent(&t->units[i], &absent);
	}
	if (s)
		return refuse(s, "%s: cannot tell which disks are absent", status_text(s));
	if (absent.untold || !folders_ban(c))
		return refuse(STATUS_EXHAUSTED, "the catalog does not take which disks are absent: their blocks might be believed later");
	return STATUS_OK;
}

/* ---- taking bans back ---- */

static void pardon_on(struct tier *t, const struct unit *u)
{
	uint64_t ids[DISK_ABSENT_MAX];
	const uint32_t count = disk_absent(u->disk, ids);
	uint32_t left = 0;

	for (uint32_t i = 0; i < count; i++)
		if (!id_in(ids[i], t->pardon, t->pardon_count))
			ids[left++] = ids[i];
	if (left != count)
		disk_absent_set(u->disk, ids, left);
}

void tier_pardon(struct cache *c)
{
	struct tier *t = c->tier;
	bool deleted;

	cache_lock(c);
	deleted = t->deleted;
	cache_unlock(c);
	if (deleted || c->options.distrust_disks)
		return;
	for (uint32_t i = 0; t->pardon_count && i < t->unit_count; i++)
		pardon_on(t, &t->units[i]);
	for (uint32_t i = 0; i < t->pardon_count; i++)
		unnote(t->catalog, WIPE_ID, t->pardon[i]);
	for (uint32_t i = 0; t->pardon_folders && i < t->out_count; i++)
		unnote(t->catalog, WIPE_FOLDER, folder_hash(c->options.disks[t->out[i].configured].folder));
}

/* ---- all of them ---- */

static enum status unit_take(struct cache *c, uint32_t configured, bool must_exist)
{
	struct tier *t = c->tier;
	struct unit *u = &t->units[t->unit_count];
	enum status s;

	u->number = t->unit_count++;
	u->configured = configured;
	u->options = &c->options.disks[configured];
	u->written = 1;
	rate_init(&u->reads, READ_US_PER_MIB);
	s = unit_open(c, u, must_exist);
	if (!s && is_banned(c, u))
		s = unit_wipe(c, u);
	if (s)
		return leave_unit_out(c, u->number, s);
	if (noted(t->catalog, WIPE_FOLDER, folder_hash(u->options->folder)))
		unnote(t->catalog, WIPE_FOLDER, folder_hash(u->options->folder));
	return refuse_twin(t, u);
}

/* Whether there are as many disks as options.disks_required wants. */
static enum status enough(const struct cache *c)
{
	const enum cache_disks_required required = c->options.disks_required;
	const struct tier *t = c->tier;

	if (!t->out_count || required == CACHE_REQUIRE_NONE || (required == CACHE_REQUIRE_ONE && t->unit_count))
		return STATUS_OK;
	return refuse(STATUS_UNAVAILABLE, "%s: %u of %u disks cannot be used: disk %u: %s",
		      required == CACHE_REQUIRE_ALL ? "require_disks is all" : "require_disks is one", t->out_count, c->options.disk_count,
		      t->out[0].configured, t->out[0].why);
}

static enum status disks_open(struct cache *c)
{
	struct known known = { .options = &c->options };
	struct tier *t = c->tier;
	enum status s = catalog_walk(t->catalog, CATALOG_SLABS, on_folder, &known, NULL);

	if (s)
		return refuse(s, "%s: cannot tell which folders have a disk", status_text(s));
	for (uint32_t i = 0; i < c->options.disk_count && !s; i++)
		s = unit_take(c, i, known.folder[i]);
	for (uint32_t i = 0; i < t->unit_count && !s;) {
		enum status wiped = noted_absent(t, &t->units[i]) ? unit_wipe(c, &t->units[i]) : STATUS_OK;

		if (wiped)
			s = leave_unit_out(c, i, wiped);
		else
			i++;
	}
	if (!s)
		s = enough(c);
	return s ? s : ban_absent(c);
}

/* A commit that is waited for. */
struct commit {
	struct await done;
	enum status status;
};

static void commit_let_go(struct commit *m)
{
	if (await_let_go(&m->done))
		free(m);
}

static void committed(void *arg, enum status s)
{
	struct commit *m = arg;

	m->status = s;
	await_answer(&m->done);
	commit_let_go(m);
}

enum status tier_commit(struct tier *t, bool (*goes_on)(const void *arg), const void *arg)
{
	struct commit *m = calloc(1, sizeof(*m));
	enum status s;

	if (!m)
		return STATUS_EXHAUSTED;
	await_init(&m->done);
	s = catalog_flush(t->catalog, committed, m);
	if (s)
		commit_let_go(m); /* the catalog's hold */
	for (int i = 0; !s && i < COMMIT_WAITS && (!goes_on || goes_on(arg)); i++)
		if (await_came(&m->done, COMMIT_WAIT_US)) {
			s = m->status;
			commit_let_go(m);
			return s;
		}
	commit_let_go(m);
	return s ? s : STATUS_DEADLINE;
}

/* The catalog is opened first: its check needs a process without other threads, and a disk starts some. */
enum status tier_open(struct cache *c, const char **why)
{
	const struct catalog_options catalog = { .folder = c->options.catalog_folder, .child = c->options.catalog_child };
	struct tier *t = c->tier;
	enum catalog_state state = CATALOG_FOUND;
	enum status s = catalog_open(&catalog, &t->catalog, &state, why_text, sizeof(why_text));

	*why = why_text;
	t->catalog_state = (uint8_t)state;
	if (s)
		return s;
	snprintf(t->catalog_why, sizeof(t->catalog_why), "%.*s", (int)sizeof(t->catalog_why) - 1, why_text);
	s = disks_open(c);
	/* The caller forgets why it set distrust_disks once this has returned. */
	if (!s && c->options.distrust_disks && t->out_count && tier_commit(t, NULL, NULL))
		s = refuse(STATUS_IO, "the catalog does not commit which disks are to be wiped when they come back");
	return s;
}
