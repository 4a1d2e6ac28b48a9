/* See links.h. A call has three batches of gRPC's: what it sends, the message that it waits for, its status. It has
 * ended when gRPC owes it none. Batches are begun under the lock, and none after the stop has begun, so that the queue
 * can be shut down while calls end. */
#include "daemon/peers/links.h"

#include "daemon/block/lock.h"
#include "daemon/directory/name.h"
#include "daemon/members/members.h"
#include "daemon/peers/credentials.h"
#include "daemon/process/log.h"
#include "health.pb-c.h"
#include "store/clock.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum batch { BATCH_SENT, BATCH_RECEIVED, BATCH_STATUS, BATCHES, BATCH_MASK = 3 };
#define LOOK_US 1000000ull
enum { LACK_SETS = 512, LACK_WAYS = 8 };

struct connection {
	struct connection *next;
	char member[MEMBER_NAME_MAX], address[MEMBER_ADDRESS_MAX];
	grpc_channel *channel;
	uint32_t calls;
	uint64_t idle_us;              /* since when it has no call */
	uint64_t heard_us;             /* when something last came over it */
	bool spent;                    /* it gets no new call: it failed, or its certificate is an old one */
};

struct peer_call {
	struct peer_call *prev, *next; /* the ring of all */
	struct peer_links *links;
	struct connection *connection;
	grpc_call *call;
	const char *method;
	struct directory_run run;      /* of the member when it was begun */
	struct peer_call_ops ops;
	void *arg;
	uint64_t began_us;
	unsigned owed;                 /* a bit a batch; the thread's */
	bool cancelled;                /* under the lock */
	bool probe;                    /* of links_probe */
	grpc_byte_buffer *sent, *received;
	grpc_metadata_array initial, trailing;
	grpc_status_code code;
	grpc_slice details;
};
_Static_assert(_Alignof(struct peer_call) > BATCH_MASK, "tags hold the batch in their low bits");

/* A method that a run of a member has said not to have. Only another version has it, which is another run. */
struct lack {
	struct directory_run run;
	const char *method;            /* NULL: a free place */
};

struct peer_links {
	struct peer_links_options options;
	grpc_completion_queue *queue;
	pthread_t thread;
	bool thread_started, joined;
	struct peer_credentials files; /* the thread's */
	uint64_t look_us;

	pthread_mutex_t lock;          /* what follows */
	bool stopping;
	grpc_channel_credentials *credentials; /* NULL: the files have not been usable yet */
	struct connection *connections;
	uint32_t connection_count, call_count;
	struct peer_call calls;        /* its links alone are used */
	struct lack lacks[LACK_SETS][LACK_WAYS]; /* by the node; in a set the newest first */

	atomic_ullong opened, broken, by_status[STATUS_COUNT];
};

/* ---- connections: with the lock ---- */

static grpc_arg int_arg(const char *key, int value)
{
	return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value };
}

static grpc_channel *channel_create(const struct peer_links *l, const char *address)
{
	grpc_arg options[] = {
		{ .type = GRPC_ARG_STRING, .key = (char *)GRPC_ARG_PRIMARY_USER_AGENT_STRING,
		  .value.string = (char *)l->options.agent },
		int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, LINK_MESSAGE_MAX),
		int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, LINK_MESSAGE_MAX),
		int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), /* no pause that an earlier connection has earned */
		int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
		int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
		int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
		int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0),
		int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
	};
	const grpc_channel_args args = { sizeof options / sizeof options[0], options };
	char target[MEMBER_ADDRESS_MAX + 8];

	snprintf(target, sizeof target, "dns:///%s", address);
	return grpc_channel_create(target, l->credentials, &args);
}

/* Closes connections without a call that are spent or have been idle since before idle_us. */
static void close_idle(struct peer_links *l, uint64_t idle_us)
{
	for (struct connection **at = &l->connections; *at;) {
		struct connection *k = *at;

		if (k->calls || (!k->spent && k->idle_us >= idle_us)) {
			at = &k->next;
			continue;
		}
		*at = k->next;
		l->connection_count--;
		grpc_channel_destroy(k->channel);
		free(k);
	}
}

static struct connection *connection_find(const struct peer_links *l, const char *member)
{
	struct connection *k = l->connections;

	while (k && (k->spent || strcmp(k->member, member)))
		k = k->next;
	return k;
}

static struct connection *connection_open(struct peer_links *l, const char *member, const char *address)
{
	struct connection *k;

	if (l->connection_count == LINKS_MAX)
		close_idle(l, clock_us());
	k = l->connection_count < LINKS_MAX ? calloc(1, sizeof *k) : NULL;
	if (!k)
		return NULL;
	strcpy(k->member, member);
	strcpy(k->address, address);
	k->channel = channel_create(l, address);
	k->next = l->connections;
	l->connections = k;
	l->connection_count++;
	atomic_fetch_add_explicit(&l->opened, 1, memory_order_relaxed);
	return k;
}

/* The connection for a new call to a member. UNAVAILABLE, EXHAUSTED. */
static enum status connection_take(struct peer_links *l, const char *member, const char *address,
				   struct connection **out)
{
	struct connection *k = connection_find(l, member);

	if (k && strcmp(k->address, address)) {
		k->spent = true;
		k = NULL;
	}
	if (!k && !l->credentials)
		return STATUS_UNAVAILABLE;
	if (!k)
		k = connection_open(l, member, address);
	if (!k || k->calls == LINK_CALLS_MAX)
		return STATUS_EXHAUSTED;
	*out = k;
	return STATUS_OK;
}

/* ---- the members ---- */

static int by_name(const void *name, const void *member)
{
	return strcmp(name, ((const struct member *)member)->name);
}

static bool member_of(const struct peer_links *l, const char *name, char address[MEMBER_ADDRESS_MAX],
		      struct directory_run *run)
{
	const struct members_list *list = members_take(l->options.members);
	const struct member *m = bsearch(name, list->at, list->count, sizeof list->at[0], by_name);
	const bool found = m && !m->self;

	if (found) {
		strcpy(address, m->address);
		memcpy(run->node, m->node, sizeof run->node);
		run->epoch = m->epoch;
	}
	members_drop(list);
	return found;
}

/* ---- methods that members lack ---- */

static struct lack *lack_set(struct peer_links *l, const struct directory_run *run)
{
	uint32_t word;

	memcpy(&word, run->node, sizeof word); /* of a random number */
	return l->lacks[word % LACK_SETS];
}

/* With the lock. */
static bool is_lacking(struct peer_links *l, const struct directory_run *run, const char *method)
{
	const struct lack *set = lack_set(l, run);

	for (int i = 0; i < LACK_WAYS; i++)
		if (set[i].method && directory_run_equal(&set[i].run, run) && !strcmp(set[i].method, method))
			return true;
	return false;
}

/* Returns whether that is new. With the lock. */
static bool lack_note(struct peer_links *l, const struct directory_run *run, const char *method)
{
	struct lack *set = lack_set(l, run);

	if (is_lacking(l, run, method))
		return false;
	memmove(set + 1, set, (LACK_WAYS - 1) * sizeof *set);
	set[0] = (struct lack){ *run, method };
	return true;
}

static bool lacks(struct peer_links *l, const struct directory_run *run, const char *method)
{
	pthread_mutex_lock(&l->lock);
	const bool lacking = is_lacking(l, run, method);

	pthread_mutex_unlock(&l->lock);
	return lacking;
}

/* ---- calls ---- */

static grpc_byte_buffer *pack(const ProtobufCMessage *message)
{
	grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
	grpc_byte_buffer *out;

	protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
	out = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_slice_unref(slice);
	return out;
}

ProtobufCMessage *links_unpack(const ProtobufCMessageDescriptor *type, const grpc_byte_buffer *bytes)
{
	grpc_byte_buffer_reader reader;
	ProtobufCMessage *out;

	if (!bytes || !grpc_byte_buffer_reader_init(&reader, (grpc_byte_buffer *)bytes))
		return NULL;
	grpc_slice all = grpc_byte_buffer_reader_readall(&reader);

	out = protobuf_c_message_unpack(type, NULL, GRPC_SLICE_LENGTH(all), GRPC_SLICE_START_PTR(all));
	grpc_slice_unref(all);
	grpc_byte_buffer_reader_destroy(&reader);
	return out;
}

/* gRPC refuses a batch only for a mistake of ours, after which the call would never end. */
static void start(struct peer_call *c, enum batch batch, const grpc_op *ops, size_t n)
{
	const grpc_call_error e = grpc_call_start_batch(c->call, ops, n, (char *)c + batch, NULL);

	if (e != GRPC_CALL_OK) {
		log_error("grpc_batch_refused", LOG_NUM("error", e), LOG_NUM("batch", batch));
		abort();
	}
}

static void receive(struct peer_call *c, bool first)
{
	const grpc_op ops[] = {
		{ .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->received },
		{ .op = GRPC_OP_RECV_INITIAL_METADATA,
		  .data.recv_initial_metadata.recv_initial_metadata = &c->initial },
	};

	start(c, BATCH_RECEIVED, ops, first ? 2 : 1);
}

static void start_all(struct peer_call *c)
{
	const grpc_op status = { .op = GRPC_OP_RECV_STATUS_ON_CLIENT,
				 .data.recv_status_on_client = { &c->trailing, &c->code, &c->details, NULL } };
	const grpc_op ops[] = {
		{ .op = GRPC_OP_SEND_INITIAL_METADATA },
		{ .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = c->sent },
		{ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT },
	};

	c->owed = (1u << BATCHES) - 1;
	start(c, BATCH_STATUS, &status, 1);
	start(c, BATCH_SENT, ops, 3);
	receive(c, true);
}

static gpr_timespec time_of(uint64_t until_us)
{
	const uint64_t now = clock_us(), left = until_us > now ? until_us - now : 0;

	return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros((int64_t)left, GPR_TIMESPAN));
}

static void call_free(struct peer_call *c)
{
	grpc_metadata_array_destroy(&c->initial);
	grpc_metadata_array_destroy(&c->trailing);
	grpc_slice_unref(c->details);
	if (c->sent)
		grpc_byte_buffer_destroy(c->sent);
	if (c->received)
		grpc_byte_buffer_destroy(c->received);
	if (c->call)
		grpc_call_unref(c->call);
	free(c);
}

/* Of links_probe. */
static void probe_ended(void *arg, enum status s, const char *why)
{
	(void)arg;
	(void)s;
	(void)why;
}

static const struct peer_call_ops probe_ops = { NULL, probe_ended };

static struct peer_call *call_create(struct peer_links *l, const struct peer_ask *ask)
{
	struct peer_call *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	c->links = l;
	c->method = ask->method;
	c->ops = *ask->ops;
	c->arg = ask->arg;
	c->probe = ask->ops == &probe_ops;
	c->sent = pack(ask->message);
	c->began_us = clock_us();
	c->code = GRPC_STATUS_UNKNOWN;
	c->details = grpc_empty_slice();
	grpc_metadata_array_init(&c->initial);
	grpc_metadata_array_init(&c->trailing);
	return c;
}

/* With the lock: the call begins, and its ends may run as soon as the lock is left. */
static void call_begin(struct peer_links *l, struct peer_call *c, struct connection *k, uint64_t deadline_us)
{
	c->connection = k;
	k->calls++;
	l->call_count++;
	c->next = l->calls.next;
	c->prev = &l->calls;
	c->next->prev = c->prev->next = c;
	c->call = grpc_channel_create_call(k->channel, NULL, GRPC_PROPAGATE_DEFAULTS, l->queue,
					   grpc_slice_from_static_string(c->method), NULL, time_of(deadline_us), NULL);
	start_all(c);
}

static bool is_stopped(struct peer_links *l)
{
	pthread_mutex_lock(&l->lock);
	const bool stopped = l->stopping;

	pthread_mutex_unlock(&l->lock);
	return stopped;
}

enum status links_call(struct peer_links *l, const char *member, const struct peer_ask *ask, struct peer_call **out)
{
	char address[MEMBER_ADDRESS_MAX];
	struct directory_run run;
	struct connection *k;
	struct peer_call *c;
	enum status s;

	if (is_stopped(l)) /* the list of members may not be there any more */
		return STATUS_CANCELLED;
	if (!member_of(l, member, address, &run))
		return STATUS_UNAVAILABLE;
	if (ask->ops != &probe_ops && l->options.avoided(l->options.arg, &run))
		return STATUS_UNAVAILABLE;
	if (lacks(l, &run, ask->method))
		return STATUS_UNSUPPORTED;
	c = call_create(l, ask);
	if (!c)
		return STATUS_EXHAUSTED;
	c->run = run;
	pthread_mutex_lock(&l->lock);
	s = l->stopping ? STATUS_CANCELLED : l->call_count == LINKS_CALLS_MAX ? STATUS_EXHAUSTED :
	    connection_take(l, member, address, &k);
	if (s == STATUS_OK) {
		*out = c;
		call_begin(l, c, k, ask->deadline_us);
	}
	pthread_mutex_unlock(&l->lock);
	if (s != STATUS_OK)
		call_free(c);
	return s;
}

enum status links_probe(struct peer_links *l, const char *member, uint64_t deadline_us)
{
	Grpc__Health__V1__HealthCheckRequest ask = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	struct peer_call *call;

	return links_call(l, member, &(struct peer_ask){ .method = "/grpc.health.v1.Health/Check", .message = &ask.base,
							 .deadline_us = deadline_us, .ops = &probe_ops }, &call);
}

void links_cancel(struct peer_call *c)
{
	struct peer_links *l = c->links;

	pthread_mutex_lock(&l->lock);
	c->cancelled = true;
	grpc_call_cancel(c->call, NULL);
	pthread_mutex_unlock(&l->lock);
}

/* ---- ends: the thread ---- */

static enum status status_of(grpc_status_code code)
{
	switch (code) {
	case GRPC_STATUS_OK: return STATUS_OK;
	case GRPC_STATUS_CANCELLED: return STATUS_CANCELLED;
	case GRPC_STATUS_INVALID_ARGUMENT: return STATUS_INVALID;
	case GRPC_STATUS_DEADLINE_EXCEEDED: return STATUS_DEADLINE;
	case GRPC_STATUS_NOT_FOUND: return STATUS_NOT_FOUND;
	case GRPC_STATUS_ALREADY_EXISTS: return STATUS_EXISTS;
	case GRPC_STATUS_UNAUTHENTICATED:
	case GRPC_STATUS_PERMISSION_DENIED: return STATUS_DENIED;
	case GRPC_STATUS_RESOURCE_EXHAUSTED: return STATUS_EXHAUSTED;
	case GRPC_STATUS_FAILED_PRECONDITION: return STATUS_PRECONDITION;
	case GRPC_STATUS_UNIMPLEMENTED: return STATUS_UNSUPPORTED;
	case GRPC_STATUS_UNAVAILABLE: return STATUS_UNAVAILABLE;
	default: return STATUS_INTERNAL;
	}
}

/* The daemon's own word for it, which gRPC has fewer of; without one gRPC's. */
static enum status status_read(const struct peer_call *c)
{
	for (size_t i = 0; c->code != GRPC_STATUS_OK && i < c->trailing.count; i++) {
		const grpc_metadata *m = &c->trailing.metadata[i];

		for (int s = 1; !grpc_slice_str_cmp(m->key, "terrace-status") && s < STATUS_COUNT; s++)
			if (!grpc_slice_str_cmp(m->value, status_name((enum status)s)))
				return (enum status)s;
	}
	return status_of(c->code);
}

static void why_write(const struct peer_call *c, enum status s, char why[LINK_WHY_MAX])
{
	const size_t n = GRPC_SLICE_LENGTH(c->details);

	snprintf(why, LINK_WHY_MAX, "%s at %s: %s: %.*s", c->connection->member, c->connection->address, c->method,
		 (int)(n ? n : strlen(status_text(s))),
		 n ? (const char *)GRPC_SLICE_START_PTR(c->details) : status_text(s));
	for (char *at = why; *at; at++)
		if ((unsigned char)*at < ' ' || (unsigned char)*at >= 0x7f)
			*at = '?'; /* it quotes what came over the network */
}

/* The connection does not work any more, as far as this call can tell. */
static bool is_broken(const struct peer_call *c, enum status s)
{
	return s == STATUS_UNAVAILABLE || (s == STATUS_DEADLINE && c->connection->heard_us < c->began_us);
}

static void call_end(struct peer_links *l, struct peer_call *c)
{
	struct connection *k = c->connection;
	char why[LINK_WHY_MAX];
	enum status s = status_read(c);

	pthread_mutex_lock(&l->lock);
	const bool cancelled = c->cancelled || l->stopping;

	if (cancelled && s != STATUS_OK)
		s = STATUS_CANCELLED;
	if (!k->spent && is_broken(c, s)) {
		k->spent = true;
		atomic_fetch_add_explicit(&l->broken, 1, memory_order_relaxed);
	}
	why_write(c, s, why);
	const bool is_older = s == STATUS_UNSUPPORTED && !c->probe && lack_note(l, &c->run, c->method);

	c->prev->next = c->next;
	c->next->prev = c->prev;
	l->call_count--;
	k->idle_us = clock_us();
	if (!--k->calls && k->spent)
		close_idle(l, 0);
	pthread_mutex_unlock(&l->lock);
	atomic_fetch_add_explicit(&l->by_status[s], 1, memory_order_relaxed);
	if (is_older)
		log_warn("member_older", LOG_TEXT("reason", why), LOG_TEXT("used", "other members, for that method"),
			 LOG_TEXT("remedy", "upgrade the member's daemon"));
	/* A probe in vain says nothing new; one that is not understood was answered. */
	if (!cancelled && (!c->probe || s == STATUS_OK || s == STATUS_UNSUPPORTED))
		l->options.told(l->options.arg, &c->run, s);
	c->ops.ended(c->arg, s, s == STATUS_OK ? "" : why);
	call_free(c);
}

/* A message has come, or there are no more. Returns whether another one has been asked for. */
static bool came(struct peer_links *l, struct peer_call *c)
{
	bool more;

	if (!c->received)
		return false;
	if (c->ops.message)
		c->ops.message(c->arg, c->received);
	grpc_byte_buffer_destroy(c->received);
	c->received = NULL;
	pthread_mutex_lock(&l->lock);
	c->connection->heard_us = clock_us();
	more = !l->stopping && !c->cancelled;
	if (more)
		receive(c, false);
	pthread_mutex_unlock(&l->lock);
	return more;
}

static void take_event(struct peer_links *l, void *tag)
{
	const enum batch batch = (uintptr_t)tag & BATCH_MASK;
	struct peer_call *c = (struct peer_call *)((char *)tag - batch);

	/* What the thread that began the call wrote is seen from here on: it began the batches with the lock. */
	pthread_mutex_lock(&l->lock);
	pthread_mutex_unlock(&l->lock);
	if (batch != BATCH_RECEIVED || !came(l, c))
		c->owed &= ~(1u << batch);
	if (!c->owed)
		call_end(l, c);
}

/* With the lock: new connections show the new certificate. */
static void take_credentials(struct peer_links *l, grpc_channel_credentials *fresh)
{
	if (l->credentials)
		grpc_channel_credentials_release(l->credentials);
	l->credentials = fresh;
	for (struct connection *k = l->connections; k; k = k->next)
		k->spent = true;
}

/* At the files, and at connections that have been idle for long. */
static void look(struct peer_links *l, uint64_t now)
{
	if (now < l->look_us)
		return;
	grpc_channel_credentials *fresh = credentials_look(&l->files);

	l->look_us = now + LOOK_US;
	pthread_mutex_lock(&l->lock);
	if (fresh)
		take_credentials(l, fresh);
	close_idle(l, now > LINK_IDLE_US ? now - LINK_IDLE_US : 0);
	pthread_mutex_unlock(&l->lock);
}

static void *links_main(void *arg)
{
	struct peer_links *l = arg;
	grpc_event event;

	cache_thread_enter();
	do {
		event = grpc_completion_queue_next(l->queue, time_of(l->look_us), NULL);
		if (event.type == GRPC_OP_COMPLETE)
			take_event(l, event.tag);
		look(l, clock_us());
	} while (event.type != GRPC_QUEUE_SHUTDOWN);
	cache_thread_leave();
	return NULL;
}

/* ---- start and stop ---- */

enum status links_create(const struct peer_links_options *o, struct peer_links **out)
{
	struct peer_links *l = calloc(1, sizeof *l);

	if (!l)
		return STATUS_EXHAUSTED;
	grpc_init();
	l->options = *o;
	pthread_mutex_init(&l->lock, NULL);
	l->calls.next = l->calls.prev = &l->calls;
	l->queue = grpc_completion_queue_create_for_next(NULL);
	l->files.files = *o->files;
	l->credentials = credentials_look(&l->files);
	l->look_us = clock_us() + LOOK_US;
	l->thread_started = !pthread_create(&l->thread, NULL, links_main, l);
	if (!l->thread_started) {
		links_destroy(l);
		return STATUS_INTERNAL;
	}
	*out = l;
	return STATUS_OK;
}

void links_stop(struct peer_links *l)
{
	pthread_mutex_lock(&l->lock);
	const bool begun = l->stopping;

	l->stopping = true;
	for (struct peer_call *c = l->calls.next; c != &l->calls; c = c->next)
		grpc_call_cancel(c->call, NULL);
	if (!begun)
		grpc_completion_queue_shutdown(l->queue);
	pthread_mutex_unlock(&l->lock);
	if (l->thread_started && !l->joined)
		pthread_join(l->thread, NULL);
	l->joined = true;
}

void links_destroy(struct peer_links *l)
{
	if (!l)
		return;
	links_stop(l);
	while (!l->thread_started &&
	       grpc_completion_queue_next(l->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
		       GRPC_QUEUE_SHUTDOWN)
		;
	close_idle(l, UINT64_MAX);
	if (l->credentials)
		grpc_channel_credentials_release(l->credentials);
	grpc_completion_queue_destroy(l->queue);
	pthread_mutex_destroy(&l->lock);
	grpc_shutdown();
	free(l);
}

/* ---- figures ---- */

const char *link_state_text(enum link_state s)
{
	static const char *const words[] = { "none", "connecting", "connected", "broken" };

	return words[s];
}

enum link_state links_state(struct peer_links *l, const char *member, uint32_t *calls)
{
	static const enum link_state states[] = { [GRPC_CHANNEL_IDLE] = LINK_CONNECTING,
						  [GRPC_CHANNEL_CONNECTING] = LINK_CONNECTING,
						  [GRPC_CHANNEL_READY] = LINK_CONNECTED,
						  [GRPC_CHANNEL_TRANSIENT_FAILURE] = LINK_BROKEN,
						  [GRPC_CHANNEL_SHUTDOWN] = LINK_BROKEN };
	enum link_state out = LINK_NONE;

	pthread_mutex_lock(&l->lock);
	const struct connection *k = connection_find(l, member);

	*calls = k ? k->calls : 0;
	if (k)
		out = states[grpc_channel_check_connectivity_state(k->channel, 0)];
	pthread_mutex_unlock(&l->lock);
	return out;
}

void links_stats(struct peer_links *l, cache_stat_fn *emit, void *arg)
{
	char labels[48];

	pthread_mutex_lock(&l->lock);
	const uint32_t connections = l->connection_count, calls = l->call_count;

	pthread_mutex_unlock(&l->lock);
	emit(arg, "terrace_peers_connections", "", connections, false, "connections to members, made by this daemon");
	emit(arg, "terrace_peers_calls", "", calls, false, "calls to members that are under way");
	emit(arg, "terrace_peers_connections_opened_total", "", (double)atomic_load(&l->opened), true,
	     "connections to members that were begun");
	emit(arg, "terrace_peers_connections_broken_total", "", (double)atomic_load(&l->broken), true,
	     "connections to members on which a call came to nothing");
	for (int i = 0; i < STATUS_COUNT; i++) {
		const unsigned long long n = atomic_load_explicit(&l->by_status[i], memory_order_relaxed);

		snprintf(labels, sizeof labels, "status=%s", status_name((enum status)i));
		if (n)
			emit(arg, "terrace_peers_calls_total", labels, (double)n, true,
			     "calls to members that have ended");
	}
}
