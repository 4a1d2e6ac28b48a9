/* A stream of events: what is stored, removed and moved. Its reader pulls them. */
#include "client/call/watch.h"

#include "client/session/connect.h"
#include "client/value/layout.h"
#include "client/session/session.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "terrace.pb-c.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SAME(name) _Static_assert((int)TERRACE_##name == (int)TERRACE__V1__WATCH_KIND__##name, #name)
SAME(WATCH_STORED);
SAME(WATCH_REMOVED);
SAME(WATCH_MOVED);
SAME(WATCH_RESYNC);
SAME(WATCH_SYNCED);
#undef SAME

/* Bytes of the first version's event, whose keys had at most 32 bytes. */
enum { EVENT_BYTES_FIRST = offsetof(struct terrace_watch_event, whole_key) };

struct terrace_watch {
	unsigned generation;
	struct client_view *view; /* with a reference */
	pthread_mutex_t lock;
	pthread_cond_t idle;      /* `reading` became false */
	bool reading;             /* a thread has the call and the event */
	struct client_rpc_call *call;
	struct terrace_watch_event event; /* the one just read */
	uint64_t passed_over;             /* events that its readers have no room for: they are not counted */
};

/* True if the word is one of those between the plus signs. */
static bool tier_named(const char *tiers, const char *word)
{
	const size_t n = strlen(word);

	for (const char *at = tiers; at; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL)
		if (!strncmp(at, word, n) && (at[n] == '+' || !at[n]))
			return true;
	return false;
}

/* Reads the tiers of an event. An unknown word, which a later daemon may tell, is no tier. */
static enum terrace_state state_read(const char *tiers)
{
	if (tier_named(tiers, "host"))
		return TERRACE_STATE_HOST;
	if (tier_named(tiers, "gpu"))
		return TERRACE_STATE_GPU;
	return tier_named(tiers, "disk") ? TERRACE_STATE_DISK : TERRACE_STATE_ABSENT;
}

static enum terrace_status event_read(uint32_t layouts, struct terrace_watch_event *event,
				      const Terrace__V1__WatchEvent *in)
{
	if ((int)in->kind < TERRACE_WATCH_STORED || (int)in->kind > TERRACE_WATCH_SYNCED)
		return client_fail(TERRACE_INTERNAL, "watch: event kind %d is unknown: "
				   "the daemon is newer than this library", (int)in->kind);
	if (in->key.len > sizeof(event->whole_key) || in->layout >= layouts)
		return client_fail(TERRACE_INTERNAL, "watch: a key of %zu bytes in layout %u", in->key.len, in->layout);
	*event = (struct terrace_watch_event){
		.size = sizeof(*event),
		.epoch = in->epoch,
		.sequence = in->sequence,
		.kind = (enum terrace_watch_kind)in->kind,
		.key_bytes = (uint32_t)in->key.len,
		.layout = in->layout,
		.state = state_read(in->tier),
	};
	if (in->key.len) {
		memcpy(event->key, in->key.data, in->key.len < sizeof(event->key) ? in->key.len : sizeof(event->key));
		memcpy(event->whole_key, in->key.data, in->key.len);
	}
	return TERRACE_OK;
}

enum terrace_status client_watch_read(uint32_t layouts, struct terrace_watch_event *event,
				      const struct client_message *message)
{
	Terrace__V1__WatchEvent *in;
	struct client_arena arena;
	enum terrace_status status;

	client_arena_init(&arena);
	in = client_wire_unpack(&arena, &terrace__v1__watch_event__descriptor, message);
	status = in ? event_read(layouts, event, in) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

static enum terrace_status watch_take(void *arg, const struct client_message *message)
{
	struct terrace_watch *watch = arg;

	return client_watch_read(watch->view->layout_count, &watch->event, message);
}

static void locks_init(struct terrace_watch *watch)
{
	pthread_condattr_t attributes;

	pthread_mutex_init(&watch->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&watch->idle, &attributes);
	pthread_condattr_destroy(&attributes);
}

enum terrace_status terrace_watch_open(struct terrace_session *session, bool from_now, struct terrace_watch **out)
{
	Terrace__V1__WatchRequest request = TERRACE__V1__WATCH_REQUEST__INIT;
	enum terrace_status status = client_session_check(session);
	struct terrace_watch *watch;

	if (!status && !out)
		status = client_fail(TERRACE_INVALID, "the pointer for the watch is NULL");
	if (status)
		return client_fail_in(status, "watch_open");
	watch = calloc(1, sizeof(*watch));
	if (!watch)
		return client_fail(TERRACE_EXHAUSTED, "watch_open: no memory");
	watch->generation = session->generation;
	watch->view = session->view;
	request.session = session->view->id;
	request.from_now = from_now;
	request.key_bytes_max = TERRACE_KEY_BYTES_MAX;
	status = client_rpc_stream_open(session->view->client->rpc,
					&(struct client_job){
						.method = CLIENT_WATCH,
						.first = {.message = &request.base, .last = true},
						.take = watch_take,
						.arg = watch,
					},
					&watch->call);
	if (status) {
		free(watch);
		return client_fail_in(status, "watch_open");
	}
	client_view_hold(watch->view);
	locks_init(watch);
	*out = watch;
	return TERRACE_OK;
}

/* Lets one reader read at a time. The others wait, each until its own deadline. */
static enum terrace_status read_begin(struct terrace_watch *watch, uint64_t deadline_us)
{
	struct timespec until = {(time_t)(deadline_us / 1000000), (long)(deadline_us % 1000000 * 1000)};
	enum terrace_status status = TERRACE_OK;

	pthread_mutex_lock(&watch->lock);
	while (!status && watch->reading)
		if (pthread_cond_timedwait(&watch->idle, &watch->lock, &until) == ETIMEDOUT && watch->reading)
			status = client_fail(TERRACE_DEADLINE, "watch_next: another thread is reading: a watch has one reader");
	if (!status)
		watch->reading = true;
	pthread_mutex_unlock(&watch->lock);
	return status;
}

static void read_end(struct terrace_watch *watch)
{
	pthread_mutex_lock(&watch->lock);
	watch->reading = false;
	pthread_cond_signal(&watch->idle);
	pthread_mutex_unlock(&watch->lock);
}

/* Whether the caller's event has room for the key. A caller of an earlier version has room in `key` alone. */
static bool has_room(const struct terrace_watch_event *caller, const struct terrace_watch_event *event)
{
	return event->key_bytes <= sizeof(event->key) || caller->size >= EVENT_BYTES_FIRST + sizeof(event->whole_key);
}

static enum terrace_status read_one(struct terrace_watch *watch, uint64_t deadline_us,
				    struct terrace_watch_event *event)
{
	enum terrace_status status = client_rpc_stream_next(watch->call, deadline_us);

	while (!status && !has_room(event, &watch->event)) {
		watch->passed_over++;
		status = client_rpc_stream_next(watch->call, deadline_us);
	}
	if (status)
		return status;
	watch->event.sequence -= watch->passed_over;
	client_options_give(event, &watch->event, sizeof(watch->event), EVENT_BYTES_FIRST);
	return TERRACE_OK;
}

enum terrace_status terrace_watch_next(struct terrace_watch *watch, uint64_t timeout_us,
				       struct terrace_watch_event *event)
{
	struct terrace_watch_event sized;
	uint64_t deadline_us;
	enum terrace_status status;

	if (!watch || !event)
		return client_fail(TERRACE_INVALID, "watch_next: an argument is NULL");
	if (!client_options_copy(&sized, sizeof(sized), event, EVENT_BYTES_FIRST))
		return client_fail(TERRACE_INVALID, "watch_next: the event's size is not set: begin it with TERRACE_WATCH_EVENT_INIT");
	status = client_process_check(watch->generation);
	if (status)
		return client_fail_in(status, "watch_next");
	deadline_us = client_call_deadline(watch->view->client, timeout_us);
	status = read_begin(watch, deadline_us);
	if (status)
		return status;
	status = read_one(watch, deadline_us, event);
	read_end(watch);
	return client_view_status(status);
}

void terrace_watch_close(struct terrace_watch *watch)
{
	if (!watch || client_forked(watch->generation))
		return;
	client_rpc_stream_close(watch->call);
	pthread_cond_destroy(&watch->idle);
	pthread_mutex_destroy(&watch->lock);
	client_view_drop(watch->view);
	free(watch);
}
