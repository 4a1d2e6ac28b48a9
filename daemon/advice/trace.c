/* The recorder of traces: requests as text that terrace-replay reads (eviction/replay/read.h), without anything of a
 * prompt. Blocks and conversations are named by salted hashes; the salt is random, and forgotten with the recording.
 *
 * A call leaves its request in the recorder's mailbox, which is bounded and never waits; a thread writes it to the
 * file. Requests for which there was no room, in the mailbox or in the file, are counted, and a comment in the file
 * says how many. A report (the end of a turn, a tool call) is a line of no tokens that carries the hint and the last
 * block of its chain, by which a replay knows the chain and tells its policy the same.
 */
#include "daemon/advice/trace.h"

#include "daemon/advice/advice.h"
#include "daemon/advice/mailbox.h"
#include "daemon/advice/request.h"
#include "daemon/block/by_id.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/threads/deadline.h"
#include "eviction/hash.h"
#include "store/index.h"
#include "store/shortage.h"
#include "store/status.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
	MAIL_WORDS = 1 << 17,
	HEAD_WORDS = 4,
	NUMBER_BYTES = 21,             /* with its blank */
	LINE_BYTES = (CACHE_KEYS_MAX + 6) * NUMBER_BYTES,
	LOOK_MS = 20,
	CLOSE_MS = 10 * 1000,
};

/* Belongs to its thread, except the mailbox and the fields that `lock` guards. A thread that is in the kernel with a
 * file cannot be ended. If it does not return in time, it is left there, together with this struct. */
struct trace_recorder {
	struct mailbox mail;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake, over;
	bool stop, ended, left;        /* `lock`; left: its thread closes and frees it */
	int fd;
	atomic_int failed;             /* errno: no more is written */
	uint64_t salt, start_us, bytes_max;
	uint32_t block_tokens;         /* of the first request; 0: none has come */
	uint64_t dropped_told;         /* by a comment */
	struct cache_trace_result done;
	char line[LINE_BYTES];
};

void trace_note(struct cache *c, const struct request *r)
{
	struct trace_recorder *t = c->advice->recorder;
	const bool report = r->kind == REQUEST_REPORT;
	uint32_t first = report ? r->count - 1 : 0, tokens = request_unit(r);
	struct letter l;

	if (!mailbox_begin(&t->mail, HEAD_WORDS + r->count - first, &l))
		return;
	letter_write(&t->mail, &l, 0, c->now_us);
	letter_write(&t->mail, &l, 1, r->conversation);
	letter_write(&t->mail, &l, 2, (uint64_t)r->hint << 32 | tokens);
	letter_write(&t->mail, &l, 3, report);
	for (uint32_t i = first; i < r->count; i++)
		letter_write(&t->mail, &l, HEAD_WORDS + i - first, policy_id(r->name[i], r->pool[0]->layout_id));
	mailbox_send(&t->mail, &l);
}

/* ---- the thread ---- */

static void put(struct trace_recorder *t, const char *bytes, size_t n)
{
	while (n && !t->failed) {
		ssize_t put = write(t->fd, bytes, n);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0) {
			t->failed = put < 0 ? errno : EIO;
			return;
		}
		bytes += put;
		n -= (size_t)put;
		t->done.bytes += (uint64_t)put;
	}
}

static size_t number(char *at, uint64_t n)
{
	char digits[NUMBER_BYTES];
	size_t k = 0;

	do
		digits[k++] = (char)('0' + n % 10);
	while (n /= 10);
	for (size_t i = 0; i < k; i++)
		at[i] = digits[k - 1 - i];
	at[k] = ' ';
	return k + 1;
}

static uint64_t salted(const struct trace_recorder *t, uint64_t n)
{
	uint64_t h = hash_mix(n ^ t->salt);

	return h ? h : 1;
}

/* Writes the file's first line. Its counts are written again at the end, in the same room. */
static int head(const struct trace_recorder *t, char out[64])
{
	return snprintf(out, 64, "# terrace-trace %u %09" PRIu64 " %09" PRIu64 "\n", t->block_tokens,
			t->done.requests % 1000000000, t->done.blocks % 1000000000);
}

static void comment(struct trace_recorder *t)
{
	uint64_t dropped = t->done.dropped + atomic_load(&t->mail.dropped);
	char line[64];

	if (dropped == t->dropped_told)
		return;
	t->dropped_told = dropped;
	put(t, line, (size_t)snprintf(line, sizeof(line), "# %" PRIu64 " requests were dropped up to here\n", dropped));
}

/* Whether the request goes into this file. */
static bool accepts(struct trace_recorder *t, uint32_t block_tokens, size_t bytes)
{
	char line[64];

	if (t->failed || (t->block_tokens && t->block_tokens != block_tokens) ||
	    (t->bytes_max && t->done.bytes + bytes + sizeof(line) > t->bytes_max))
		return false;
	if (!t->block_tokens) {
		t->block_tokens = block_tokens;
		put(t, line, (size_t)head(t, line));
	}
	return true;
}

static void record(struct trace_recorder *t, const struct letter *l)
{
	uint64_t us = letter_read(&t->mail, l, 0), rest = letter_read(&t->mail, l, 2);
	uint32_t block_tokens = (uint32_t)rest, count = l->words - HEAD_WORDS;
	bool report = letter_read(&t->mail, l, 3);
	char *at = t->line;

	if (!accepts(t, block_tokens, (size_t)(count + 6) * NUMBER_BYTES)) {
		t->done.dropped++;
		return;
	}
	comment(t);
	at += number(at, us > t->start_us ? (us - t->start_us) / 1000 : 0);
	at += number(at, report ? 0 : (uint64_t)count * block_tokens);
	at += number(at, salted(t, letter_read(&t->mail, l, 1)));
	at += number(at, rest >> 32);
	at += number(at, count);
	for (uint32_t i = 0; i < count; i++)
		at += number(at, salted(t, letter_read(&t->mail, l, HEAD_WORDS + i)));
	at[-1] = '\n';
	put(t, t->line, (size_t)(at - t->line));
	t->done.requests += !report;
	t->done.blocks += report ? 0 : count;
}

static void drain(struct trace_recorder *t)
{
	struct letter l;

	while (mailbox_next(&t->mail, &l)) {
		record(t, &l);
		mailbox_free(&t->mail, &l);
	}
}

static void finish(struct trace_recorder *t)
{
	char line[64];
	int n;

	drain(t);
	if (!t->block_tokens)
		return;
	comment(t);
	n = head(t, line);
	/* A pipe keeps the zeros it got. */
	errno = EIO;
	if (!t->failed && pwrite(t->fd, line, (size_t)n, 0) != n && errno != ESPIPE)
		t->failed = errno;
}

static void recorder_free(struct trace_recorder *t)
{
	mailbox_fini(&t->mail);
	pthread_cond_destroy(&t->over);
	pthread_cond_destroy(&t->wake);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

/* Whether the recorder has ended, so that no thread waits for it any more. */
static bool record_ended(struct trace_recorder *t)
{
	bool left;

	pthread_mutex_lock(&t->lock);
	t->ended = true;
	left = t->left;
	pthread_cond_signal(&t->over);
	pthread_mutex_unlock(&t->lock);
	return left;
}

static void *record_main(void *arg)
{
	struct trace_recorder *t = arg;
	struct timespec until;

	pthread_mutex_lock(&t->lock);
	while (!t->stop) {
		pthread_mutex_unlock(&t->lock);
		drain(t);
		pthread_mutex_lock(&t->lock);
		until = deadline_in(LOOK_MS * 1000);
		if (!t->stop)
			pthread_cond_timedwait(&t->wake, &t->lock, &until);
	}
	pthread_mutex_unlock(&t->lock);
	finish(t);
	if (record_ended(t)) {
		close(t->fd);
		recorder_free(t);
	}
	return NULL;
}

/* ---- start and stop ---- */

static struct trace_recorder *recorder_create(int fd, uint64_t bytes_max)
{
	struct trace_recorder *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->fd = fd;
	t->bytes_max = bytes_max;
	pthread_mutex_init(&t->lock, NULL);
	deadline_cond_init(&t->wake);
	deadline_cond_init(&t->over);
	if (mailbox_init(&t->mail, MAIL_WORDS) && getrandom(&t->salt, sizeof(t->salt), 0) == sizeof(t->salt))
		return t;
	recorder_free(t);
	return NULL;
}

enum status cache_trace_start(struct cache *c, int fd, uint64_t bytes_max, const char **why)
{
	struct trace_recorder *t = recorder_create(fd, bytes_max);
	enum status s = STATUS_OK;

	*why = "no memory for the recorder";
	if (!t)
		return STATUS_EXHAUSTED;
	*why = "cannot start the recorder's thread";
	index_read_lock();
	cache_lock(c);
	observe_requests_due(c, READ_ALL); /* what was asked before is not of this trace */
	if (c->advice->recorder) {
		s = STATUS_BUSY;
		*why = "a trace is being recorded already";
	} else if (pthread_create(&t->thread, NULL, record_main, t)) {
		s = STATUS_EXHAUSTED;
	} else {
		t->start_us = c->now_us; /* read only when there are letters */
		c->advice->recorder = t;
	}
	cache_unlock(c);
	index_read_unlock();
	if (s)
		recorder_free(t);
	return s;
}

/* Ends the recorder. False: its thread is left behind with it. */
static bool recorder_ends(struct trace_recorder *t, uint64_t wait_us)
{
	const struct timespec until = deadline_in(wait_us);
	pthread_t thread = t->thread;
	bool ended;

	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_cond_signal(&t->wake);
	while (!t->ended && !pthread_cond_timedwait(&t->over, &t->lock, &until))
		continue;
	ended = t->ended;
	t->left = !ended;
	pthread_mutex_unlock(&t->lock);
	if (ended)
		pthread_join(thread, NULL);
	else
		pthread_detach(thread);
	return ended;
}

enum status cache_trace_stop(struct cache *c, struct cache_trace_result *out, const char **why)
{
	struct trace_recorder *t;
	enum status s;

	index_read_lock();
	cache_lock(c);
	if (c->advice->recorder)
		observe_requests_due(c, READ_ALL);
	t = c->advice->recorder;
	c->advice->recorder = NULL;
	cache_unlock(c);
	index_read_unlock();
	*why = "no trace is being recorded";
	if (!t)
		return STATUS_NOT_FOUND;
	*why = "the trace could not be written in full";
	*out = (struct cache_trace_result){ .requests = 0 };
	if (!recorder_ends(t, (c->options.disk_close_ms ? c->options.disk_close_ms : CLOSE_MS) * 1000ull))
		return STATUS_IO;
	*out = t->done;
	out->error = t->failed;
	if (close(t->fd) && !out->error)
		out->error = errno;
	s = !out->error ? STATUS_OK : shortage_is(out->error) ? STATUS_EXHAUSTED : STATUS_IO;
	out->dropped += atomic_load(&t->mail.dropped);
	recorder_free(t);
	return s;
}

int cache_trace_error(struct cache *c)
{
	int error;

	cache_lock(c);
	error = c->advice->recorder ? c->advice->recorder->failed : 0;
	cache_unlock(c);
	return error;
}
