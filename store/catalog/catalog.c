/* The catalog: opening, the queue, and the thread that writes the queue in batches.
 *
 * There are two queues: callers append to one while the thread applies the other, in transactions of bounded size. When
 * a transaction fails, the queue stays as it is and is tried again each second; nothing behind it can overtake it.
 * Flushes are entries of the queue. A flush's `done` is called when all entries before it are committed, or at the
 * first failure.
 */
#include "store/catalog/catalog.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store/catalog/guard.h"
#include "store/catalog/inner.h"
#include "store/crash_point.h"
#include "store/shortage.h"

enum {
	CHECK_MS_A_MIB = 50, CHECK_MORE_MS = 3 * 60 * 1000,
	FLUSH_ROOM = 64 << 10,          /* of a queue, for flushes that come when it is full */
	QUEUE_PAGES_KEPT = 4 << 20,     /* pages of an empty queue that are not given back */
	QUEUE_BYTES_LEAST = 64 << 10,
};
#define RETRY_NS 1000000000ull
#define MS_NS 1000000ull

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

/* ---- queueing ---- */

static size_t entry_bytes(size_t data_bytes)
{
	return (data_bytes + 7) & ~(size_t)7;
}

/* Room for an entry at the end of the filling queue, or NULL; mutex held. */
static void *entry_add(struct catalog *c, size_t bytes, size_t extra_room)
{
	struct change_queue *q = c->filling;
	struct change *ch;

	if (c->view.queued_bytes + bytes > c->options.queue_bytes_max + extra_room)
		return NULL;
	ch = (struct change *)(void *)(q->at + q->used);
	if (q->used == 0)
		c->oldest_ns = now_ns();
	q->used += bytes;
	c->view.queued_bytes += bytes;
	ch->bytes = (uint32_t)bytes;
	return ch;
}

static enum status queue_change(struct catalog *c, enum change_what what, enum catalog_table t, const void *key,
				size_t key_bytes, const void *value, size_t value_bytes)
{
	size_t bytes = entry_bytes(sizeof(struct change) + key_bytes + value_bytes + CATALOG_CRC_BYTES);
	enum status s = STATUS_OK;
	struct change *ch;
	bool wake;

	pthread_mutex_lock(&c->mutex);
	wake = c->filling->used == 0;
	ch = entry_add(c, bytes, 0);
	if (!ch) {
		s = c->view.failed == STATUS_OK ? STATUS_EXHAUSTED : STATUS_UNAVAILABLE;
		c->flush_wanted = wake = true;
	} else {
		ch->what = (uint8_t)what;
		ch->table = (uint8_t)t;
		ch->key_bytes = (uint16_t)key_bytes;
		ch->value_bytes = (uint16_t)value_bytes;
		if (key_bytes > 0)
			memcpy(change_data(ch), key, key_bytes);
		if (value_bytes > 0)
			memcpy(change_data(ch) + key_bytes, value, value_bytes);
		/* A half-full queue is large enough for a batch. */
		if (!c->flush_wanted && c->view.queued_bytes > c->options.queue_bytes_max / 2)
			c->flush_wanted = wake = true;
	}
	CRASH_POINT("catalog_queued");
	pthread_mutex_unlock(&c->mutex);
	if (wake)
		pthread_cond_signal(&c->wake);
	return s;
}

static bool key_allowed(enum catalog_table t, const void *key, size_t key_bytes)
{
	MDB_val k = { key_bytes, (void *)(uintptr_t)key };

	return (unsigned)t < CATALOG_TABLES && key_bytes >= 1 && key_bytes <= CATALOG_KEY_MAX &&
	       !catalog_record_own(t, &k);
}

enum status catalog_put(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes, const void *value,
			size_t value_bytes)
{
	if (!key_allowed(t, key, key_bytes) || value_bytes > CATALOG_VALUE_MAX)
		return STATUS_INVALID;
	return queue_change(c, CHANGE_PUT, t, key, key_bytes, value, value_bytes);
}

enum status catalog_drop(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes)
{
	if (!key_allowed(t, key, key_bytes))
		return STATUS_INVALID;
	return queue_change(c, CHANGE_DROP, t, key, key_bytes, NULL, 0);
}

enum status catalog_empty(struct catalog *c, enum catalog_table t)
{
	if ((unsigned)t >= CATALOG_TABLES)
		return STATUS_INVALID;
	return queue_change(c, CHANGE_EMPTY, t, NULL, 0, NULL, 0);
}

enum status catalog_flush(struct catalog *c, void (*done)(void *arg, enum status s), void *arg)
{
	enum status s = STATUS_OK;
	struct change_flush *f;

	pthread_mutex_lock(&c->mutex);
	f = entry_add(c, sizeof(*f), FLUSH_ROOM);
	if (!f) {
		s = c->view.failed == STATUS_OK ? STATUS_EXHAUSTED : STATUS_UNAVAILABLE;
	} else {
		f->head.what = CHANGE_FLUSH;
		f->done = done;
		f->arg = arg;
		f->next = NULL;
		if (c->filling->last)
			c->filling->last->next = f;
		else
			c->filling->first = f;
		c->filling->last = f;
	}
	CRASH_POINT("catalog_flush_queued");
	c->flush_wanted = true;
	pthread_mutex_unlock(&c->mutex);
	pthread_cond_signal(&c->wake);
	return s;
}

/* ---- the thread ---- */

/* Takes the flushes before `to` from a queue's list. The list of the filling queue: mutex held. */
static struct change_flush *flushes_take(struct change_queue *q, size_t to)
{
	struct change_flush *first = q->first, *f = NULL;

	while (q->first && (size_t)((uint8_t *)q->first - q->at) < to) {
		f = q->first;
		q->first = f->next;
	}
	if (!q->first)
		q->last = NULL;
	if (!f)
		return NULL;
	f->next = NULL;
	return first;
}

static void flushes_tell(struct change_flush *f, enum status s)
{
	while (f) {
		/* The call of done may let the thread reuse the queue in which the entry lies. */
		struct change_flush now = *f;

		CRASH_POINT("catalog_tell");
		now.done(now.arg, s);
		f = now.next;
	}
}

static void batch_failed(struct catalog *c, int code)
{
	char words[SHORTAGE_WORDS_MAX];
	struct change_flush *waiting;
	enum status s;

	if (code == EIO)
		code = catalog_file_cut_short(c->folder);
	catalog_file_words(code, words, sizeof(words));
	s = catalog_file_status(code) == STATUS_EXHAUSTED ? STATUS_EXHAUSTED : STATUS_IO;
	pthread_mutex_lock(&c->mutex);
	c->view.failed = s;
	snprintf(c->view.why, sizeof(c->view.why), "the catalog in %.200s cannot be written: %s; it is tried again each second", c->folder, words);
	waiting = flushes_take(c->filling, SIZE_MAX);
	pthread_mutex_unlock(&c->mutex);
	flushes_tell(flushes_take(c->draining, SIZE_MAX), s);
	flushes_tell(waiting, s);
}

static void batch_done(struct catalog *c, size_t to, uint64_t changes, uint64_t us)
{
	struct change_queue *q = c->draining;
	struct change_flush *told = flushes_take(q, to);

	pthread_mutex_lock(&c->mutex);
	c->view.failed = STATUS_OK;
	c->view.why[0] = 0;
	c->view.batches++;
	c->view.changes += changes;
	c->view.queued_bytes -= to - q->applied;
	if (us > c->view.commit_us_max)
		c->view.commit_us_max = us;
	pthread_mutex_unlock(&c->mutex);
	CRASH_POINT("catalog_batch_done");
	q->applied = to;
	catalog_view_refresh(c);
	flushes_tell(told, STATUS_OK);
}

/* Whether the queue has only flushes left, which need no transaction. */
static bool only_flushes(const struct change_queue *q)
{
	for (size_t at = q->applied; at < q->used;) {
		const struct change *ch = (const struct change *)(const void *)(q->at + at);

		if (ch->what != CHANGE_FLUSH)
			return false;
		at += ch->bytes;
	}
	return true;
}

/* Applies the draining queue to its end: true, or false at the first failure. */
static bool drain(struct catalog *c)
{
	struct change_queue *q = c->draining;

	while (q->applied < q->used) {
		uint64_t begun = now_ns(), changes = 0;
		size_t to = q->used;
		int rc = only_flushes(q) ? MDB_SUCCESS : catalog_batch_apply(c, q, &to, &changes);

		if (rc != MDB_SUCCESS) {
			batch_failed(c, rc);
			return false;
		}
		CRASH_POINT("catalog_committed");
		batch_done(c, to, changes, (now_ns() - begun) / 1000);
	}
	if (q->used > QUEUE_PAGES_KEPT)
		madvise(q->at + QUEUE_PAGES_KEPT, q->used - QUEUE_PAGES_KEPT, MADV_DONTNEED);
	q->used = q->applied = 0;
	return true;
}

/* Sleeps until a batch or a look at the readers is due; mutex held. */
static void wait_due(struct catalog *c)
{
	while (!c->closing && !c->flush_wanted) {
		const uint64_t batch = c->oldest_ns + c->options.batch_ms * MS_NS, look = c->readers.due_ns;
		const uint64_t due = c->filling->used > 0 && batch < look ? batch : look;
		const struct timespec ts = { (time_t)(due / 1000000000ull), (long)(due % 1000000000ull) };

		if (now_ns() >= due)
			return;
		pthread_cond_timedwait(&c->wake, &c->mutex, &ts);
	}
}

/* Sleeps until a failed batch is to be tried again; mutex held. */
static void wait_retry(struct catalog *c)
{
	uint64_t due = now_ns() + RETRY_NS;
	struct timespec ts = { (time_t)(due / 1000000000ull), (long)(due % 1000000000ull) };

	while (!c->closing && now_ns() < due)
		pthread_cond_timedwait(&c->wake, &c->mutex, &ts);
}

static void queues_swap(struct catalog *c)
{
	struct change_queue *full = c->filling;

	CRASH_POINT("catalog_swap");
	c->filling = c->draining;
	c->draining = full;
	c->flush_wanted = false;
}

static void *run(void *arg)
{
	struct catalog *c = arg;
	bool sound = true, last;

	do {
		pthread_mutex_lock(&c->mutex);
		if (sound)
			wait_due(c);
		else
			wait_retry(c);
		last = c->closing;
		if (c->draining->used == 0)
			queues_swap(c);
		pthread_mutex_unlock(&c->mutex);
		if (now_ns() >= c->readers.due_ns)
			catalog_readers_look(c, now_ns());
		sound = drain(c);
		/* Changes from before the closing may be in both queues. */
		if (last && sound) {
			pthread_mutex_lock(&c->mutex);
			last = c->filling->used == 0;
			pthread_mutex_unlock(&c->mutex);
		}
	} while (!last);
	pthread_mutex_lock(&c->mutex);
	c->ended = true;
	pthread_cond_broadcast(&c->wake);
	pthread_mutex_unlock(&c->mutex);
	return NULL;
}

/* ---- opening ---- */

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
	return value != 0 ? value : otherwise;
}

static void *reserve(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

static size_t queue_room(const struct catalog *c)
{
	return c->options.queue_bytes_max + FLUSH_ROOM;
}

static void fini(struct catalog *c)
{
	catalog_file_close(&c->file);
	for (int i = 0; i < 2; i++)
		if (c->queues[i].at)
			munmap(c->queues[i].at, queue_room(c));
	free(c->order);
	free(c->folder);
	pthread_cond_destroy(&c->wake);
	pthread_mutex_destroy(&c->mutex);
	pthread_rwlock_destroy(&c->map);
	if (c->lock_fd >= 0)
		close(c->lock_fd);
	free(c);
}

static struct catalog *create(const struct catalog_options *o)
{
	struct catalog *c = calloc(1, sizeof(*c));
	pthread_condattr_t clock;

	if (!c)
		return NULL;
	c->lock_fd = -1;
	c->options = *o;
	c->options.map_bytes = or_default(o->map_bytes, 64ull << 20);
	c->options.map_bytes_max = or_default(o->map_bytes_max, 64ull << 30);
	c->options.queue_bytes_max = entry_bytes(or_default(o->queue_bytes_max, 64ull << 20));
	if (c->options.queue_bytes_max < QUEUE_BYTES_LEAST)
		c->options.queue_bytes_max = QUEUE_BYTES_LEAST;
	c->options.batch_ms = (uint32_t)or_default(o->batch_ms, 100);
	c->options.check_timeout_ms = (uint32_t)or_default(o->check_timeout_ms, 60000);
	c->readers.every_ns = or_default(o->reader_look_ms, 60000) * MS_NS;
	c->readers.old_ns = or_default(o->reader_old_ms, 600000) * MS_NS;
	c->readers.due_ns = now_ns() + c->readers.every_ns;
	pthread_rwlock_init(&c->map, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&c->wake, &clock);
	pthread_condattr_destroy(&clock);
	pthread_mutex_init(&c->mutex, NULL);
	c->filling = &c->queues[0];
	c->draining = &c->queues[1];
	c->folder = strdup(o->folder);
	c->order = malloc(CATALOG_BATCH_MOST * sizeof(c->order[0]));
	c->queues[0].at = reserve(queue_room(c));
	c->queues[1].at = reserve(queue_room(c));
	c->options.folder = c->folder;
	if (c->folder && c->order && c->queues[0].at && c->queues[1].at)
		return c;
	fini(c);
	return NULL;
}

/* The time for the child: a file of gigabytes that is not cached takes a slow disk minutes. */
static uint32_t check_ms(const struct catalog *c)
{
	char path[PATH_MAX];
	struct stat st;

	if (snprintf(path, sizeof(path), "%s/data.mdb", c->folder) >= (int)sizeof(path) || stat(path, &st) || st.st_size < 0)
		return c->options.check_timeout_ms;
	const uint64_t more = (uint64_t)(st.st_size >> 20) * CHECK_MS_A_MIB;

	return c->options.check_timeout_ms + (uint32_t)(more < CHECK_MORE_MS ? more : CHECK_MORE_MS);
}

static const char *open_words(const struct catalog *c, int code, char *words, size_t bytes)
{
	return catalog_file_words(code == EIO ? catalog_file_cut_short(c->folder) : code, words, bytes);
}

/* Checks the file if there is one. Puts a damaged one aside, and makes a new one where none is left. */
static enum status settle(struct catalog *c, enum catalog_state *state, char *why, size_t why_bytes)
{
	enum status s = catalog_guard_present(c->folder, why, why_bytes);
	char aside[160], words[SHORTAGE_WORDS_MAX];
	int rc;

	if (s == STATUS_IO)
		return s;
	*state = CATALOG_FRESH;
	if (s == STATUS_OK) {
		switch (catalog_guard_check(c->folder, c->options.child, check_ms(c), why, why_bytes)) {
		case CATALOG_SOUND:
			*state = CATALOG_FOUND;
			return STATUS_OK;
		case CATALOG_NEWER:
			return STATUS_UNSUPPORTED;
		case CATALOG_UNKNOWN:
			return STATUS_IO;
		case CATALOG_UNSOUND:
			break;
		}
		*state = CATALOG_DAMAGED;
		s = catalog_guard_put_aside(c->folder, aside, sizeof(aside));
		if (s != STATUS_OK) {
			snprintf(why, why_bytes, "%s", aside);
			return s;
		}
	}
	CRASH_POINT("catalog_make");
	rc = catalog_file_make(c->folder);
	if (rc == MDB_SUCCESS)
		return STATUS_OK;
	snprintf(why, why_bytes, "catalog %s: cannot make a file: %s", c->folder, open_words(c, rc, words, sizeof(words)));
	return STATUS_IO;
}

static enum status map(struct catalog *c, char *why, size_t why_bytes)
{
	char words[SHORTAGE_WORDS_MAX];
	int rc = catalog_file_open(c->folder, c->options.map_bytes, &c->file);

	if (rc == MDB_SUCCESS && c->file.version == 1) {
		catalog_file_close(&c->file);
		rc = catalog_file_migrate(c->folder);
		if (rc == MDB_SUCCESS)
			rc = catalog_file_open(c->folder, c->options.map_bytes, &c->file);
	}
	if (rc == MDB_SUCCESS && c->file.version < CATALOG_VERSION) {
		rc = catalog_file_raise(&c->file);
		if (rc != MDB_SUCCESS)
			catalog_file_close(&c->file);
	}
	if (rc == MDB_SUCCESS)
		return STATUS_OK;
	snprintf(why, why_bytes, "catalog %s: cannot open it: %s", c->folder, open_words(c, rc, words, sizeof(words)));
	return STATUS_IO;
}

enum status catalog_open(const struct catalog_options *o, struct catalog **out, enum catalog_state *state, char *why,
			 size_t why_bytes)
{
	struct catalog *c = create(o);
	enum catalog_state found;
	enum status s;

	why[0] = 0;
	if (!c) {
		snprintf(why, why_bytes, "catalog: no memory");
		return STATUS_EXHAUSTED;
	}
	s = catalog_guard_lock(c->folder, &c->lock_fd, why, why_bytes);
	if (s == STATUS_OK)
		s = settle(c, &found, why, why_bytes);
	if (s == STATUS_OK)
		s = map(c, why, why_bytes);
	if (s == STATUS_OK) {
		CRASH_POINT("catalog_opened");
		catalog_view_refresh(c);
		if (pthread_create(&c->thread, NULL, run, c) != 0) {
			snprintf(why, why_bytes, "catalog: no thread");
			s = STATUS_EXHAUSTED;
		}
	}
	if (s != STATUS_OK) {
		fini(c);
		return s;
	}
	*out = c;
	*state = found;
	return STATUS_OK;
}

void catalog_close(struct catalog *c)
{
	catalog_close_by(c, UINT64_MAX);
}

/* Waits until the thread has ended. True: it has, in time. */
static bool thread_ends(struct catalog *c, uint64_t wait_us)
{
	const uint64_t now = now_ns(), until = wait_us < (UINT64_MAX - now) / 1000 ? now + wait_us * 1000 : UINT64_MAX;
	const struct timespec ts = { (time_t)(until / 1000000000ull), (long)(until % 1000000000ull) };
	bool ended;

	pthread_mutex_lock(&c->mutex);
	while (!c->ended && now_ns() < until)
		pthread_cond_timedwait(&c->wake, &c->mutex, &ts);
	ended = c->ended;
	pthread_mutex_unlock(&c->mutex);
	if (ended)
		return !pthread_join(c->thread, NULL);
	pthread_detach(c->thread);
	return false;
}

bool catalog_close_by(struct catalog *c, uint64_t wait_us)
{
	if (!c)
		return true;
	pthread_mutex_lock(&c->mutex);
	c->closing = true;
	pthread_mutex_unlock(&c->mutex);
	pthread_cond_signal(&c->wake);
	CRASH_POINT("catalog_close");
	if (!thread_ends(c, wait_us))
		return false;
	fini(c);
	return true;
}
