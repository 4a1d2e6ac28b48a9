/* The channel, and the threads that drive calls on it. The calling thread drives a synchronous call with a pluck queue
 * of its own, taken from a pool. The background thread drives asynchronous calls with the shared queue. A stream is
 * driven by its reader. The code of a single call is in transport/grpc_call.c.
 *
 * Threads. rpc->lock guards the lists of calls and idle queues. A call belongs to the thread that drives it. Other
 * threads call only client_call_cancel, under rpc->lock, while the call is on a list. While the background thread has
 * no calls it sleeps on a condition and not in gRPC. In gRPC it would poll the connection: then every synchronous call
 * would be answered through it, a thread switch later.
 */
#include "client/transport/grpc.h"

#include "client/value/clock.h"
#include "client/transport/grpc_call.h"
#include "client/transport/limits.h"

#include <grpc/grpc_security.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUES_IDLE_MAX = 32, BACKGROUND_CALLS_MAX = 4096, TLS_LOOK_S = 2 };
enum { KEPT_BYTES = 16 << 20 };

struct client_rpc {
	struct client_endpoint at;
	grpc_channel *channel;
	void *handles[CLIENT_METHOD_COUNT];
	pthread_mutex_t lock;
	pthread_cond_t changed; /* calls, background_calls or closing */
	uint64_t busy_poll_us;
	struct client_rpc_call *calls, *streams;
	grpc_completion_queue *idle[QUEUES_IDLE_MAX];
	unsigned idle_count;
	bool closing;
	grpc_completion_queue *background_queue; /* NULL until the first asynchronous call */
	pthread_t background;
	unsigned background_calls;
};

static atomic_uint channels; /* of the process */

/* ---- channel ------------------------------------------------------------------------------------------------------ */

/* gRPC's own watch of the files (1.51 marks it experimental; its form is the same in every Debian with a C core of that
 * number) keeps what it has while they do not fit each other. */
static grpc_channel_credentials *credentials_create(const struct client_tls *tls)
{
	grpc_tls_certificate_provider *provider;
	grpc_tls_credentials_options *options;

	if (!tls->on)
		return grpc_insecure_credentials_create();
	provider = grpc_tls_certificate_provider_file_watcher_create(tls->key, tls->cert, tls->ca, TLS_LOOK_S);
	options = grpc_tls_credentials_options_create();
	grpc_tls_credentials_options_set_certificate_provider(options, provider);
	grpc_tls_credentials_options_watch_root_certs(options);
	grpc_tls_credentials_options_watch_identity_key_cert_pairs(options);
	grpc_tls_certificate_provider_release(provider);
	return grpc_tls_credentials_create(options);
}

static grpc_channel *channel_create(const char *target, const struct client_tls *tls)
{
	char agent[64];
	grpc_arg options[] = {
		/* By it the daemon knows a library that reads its sessions: the first version's has no name. */
		{GRPC_ARG_STRING, GRPC_ARG_PRIMARY_USER_AGENT_STRING, {.string = agent}},
		{GRPC_ARG_INTEGER, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, {.integer = CLIENT_MESSAGE_MAX}},
		/* The connection is this client's own, and a daemon that comes back is found soon. */
		{GRPC_ARG_INTEGER, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, {.integer = 1}},
		{GRPC_ARG_INTEGER, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, {.integer = 100}},
		/* How long a new connection may wait for the daemon's first word: a call has its own time, and a machine
		 * may have no processor for the daemon for seconds. */
		{GRPC_ARG_INTEGER, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, {.integer = 20000}},
		{GRPC_ARG_INTEGER, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, {.integer = 1000}},
		/* A block by stream comes in few, large pieces. */
		{GRPC_ARG_INTEGER, GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, {.integer = 4 << 20}},
		{GRPC_ARG_INTEGER, GRPC_ARG_HTTP2_MAX_FRAME_SIZE, {.integer = 1 << 20}},
		{GRPC_ARG_INTEGER, GRPC_ARG_TCP_READ_CHUNK_SIZE, {.integer = 256 << 10}},
		/* A local daemon is never behind a proxy, whatever the environment says. */
		{GRPC_ARG_INTEGER, GRPC_ARG_ENABLE_HTTP_PROXY, {.integer = 0}},
		{GRPC_ARG_INTEGER, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, {.integer = 1}},
		{GRPC_ARG_INTEGER, GRPC_ARG_ENABLE_RETRIES, {.integer = 0}},
		{GRPC_ARG_INTEGER, GRPC_ARG_ENABLE_CHANNELZ, {.integer = 0}},
		{GRPC_ARG_INTEGER, GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, {.integer = 0}},
		{GRPC_ARG_INTEGER, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, {.integer = 0}},
		/* The last, of TLS alone: what the daemon's certificate is to be for. */
		{GRPC_ARG_STRING, GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, {.string = (char *)tls->name}},
	};
	grpc_channel_args args = {sizeof(options) / sizeof(options[0]) - !tls->on, options};
	grpc_channel_credentials *credentials = credentials_create(tls);
	grpc_channel *channel;

	snprintf(agent, sizeof(agent), "libterrace/%s", terrace_version());
	channel = grpc_channel_create(target, credentials, &args);
	grpc_channel_credentials_release(credentials);
	return channel;
}

/* gRPC's threads inherit the signal mask of the thread that makes them; the program's signals are not for them. */
static void signals_block(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
}

/* gRPC's buffers are freed as fast as they are made. Beyond a bound the C library gives freed memory to the kernel,
 * which clears its pages for the next use. The bound rises with the largest block that the program has freed, so such a
 * block is freed here. To set the bound itself (mallopt) is for the program to do. */
static void keep_freed_memory(void)
{
	void *volatile block = malloc(KEPT_BYTES / 2);

	free(block);
}

/* Starts gRPC, if this is the first connection. Its threads last as long as there is one. */
static enum terrace_status start(struct client_rpc *rpc, const char *target)
{
	enum terrace_status status;
	sigset_t before;

	signals_block(&before);
	status = channels ? TERRACE_OK : client_rpc_room();
	if (!status) {
		channels++;
		keep_freed_memory();
		grpc_init();
		rpc->channel = channel_create(target, &rpc->at.tls);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return status;
}

enum terrace_status client_rpc_open(const char *address, uint64_t busy_poll_us, const struct client_tls *tls,
				    struct client_rpc **out)
{
	char target[CLIENT_ADDRESS_MAX];
	enum terrace_status status = client_address_read(address, tls && tls->on, target);
	struct client_rpc *rpc;

	if (status)
		return status;
	rpc = calloc(1, sizeof(*rpc));
	if (!rpc)
		return client_fail(TERRACE_EXHAUSTED, "no memory for a connection");
	snprintf(rpc->at.address, sizeof(rpc->at.address), "%s", address);
	rpc->busy_poll_us = busy_poll_us;
	if (tls)
		rpc->at.tls = *tls;
	client_tls_last_init(&rpc->at.tls_last);
	pthread_mutex_init(&rpc->lock, NULL);
	pthread_cond_init(&rpc->changed, NULL);
	status = start(rpc, target);
	if (status) {
		client_rpc_destroy(rpc);
		return status;
	}
	for (int i = 0; i < CLIENT_METHOD_COUNT; i++)
		rpc->handles[i] = grpc_channel_register_call(rpc->channel, client_call_path((enum client_method)i), NULL, NULL);
	*out = rpc;
	return TERRACE_OK;
}

const char *client_rpc_address(const struct client_rpc *rpc)
{
	return rpc->at.address;
}

const struct client_tls *client_rpc_tls(const struct client_rpc *rpc)
{
	return &rpc->at.tls;
}

bool client_rpc_connected(struct client_rpc *rpc)
{
	return grpc_channel_check_connectivity_state(rpc->channel, 0) == GRPC_CHANNEL_READY;
}

static void queue_destroy(grpc_completion_queue *queue, bool plucked)
{
	gpr_timespec never = gpr_inf_future(GPR_CLOCK_REALTIME);

	grpc_completion_queue_shutdown(queue);
	if (plucked)
		while (grpc_completion_queue_pluck(queue, NULL, never, NULL).type != GRPC_QUEUE_SHUTDOWN)
			;
	else
		while (grpc_completion_queue_next(queue, never, NULL).type != GRPC_QUEUE_SHUTDOWN)
			;
	grpc_completion_queue_destroy(queue);
}

void client_rpc_close(struct client_rpc *rpc)
{
	bool background;

	pthread_mutex_lock(&rpc->lock);
	rpc->closing = true;
	for (struct client_rpc_call *c = rpc->calls; c; c = c->next)
		client_call_cancel(c);
	for (struct client_rpc_call *c = rpc->streams; c; c = c->next)
		client_call_cancel(c);
	while (rpc->calls)
		pthread_cond_wait(&rpc->changed, &rpc->lock);
	background = rpc->background_queue != NULL;
	pthread_cond_broadcast(&rpc->changed);
	pthread_mutex_unlock(&rpc->lock);

	if (background) {
		pthread_join(rpc->background, NULL);
		queue_destroy(rpc->background_queue, false);
	}
	while (rpc->idle_count)
		queue_destroy(rpc->idle[--rpc->idle_count], true);
	grpc_channel_destroy(rpc->channel);
	grpc_shutdown();
	channels--;
}

void client_rpc_destroy(struct client_rpc *rpc)
{
	pthread_cond_destroy(&rpc->changed);
	pthread_mutex_destroy(&rpc->lock);
	client_tls_last_fini(&rpc->at.tls_last);
	free(rpc);
}

/* ---- lists of calls ----------------------------------------------------------------------------------------------- */

/* With rpc->lock held. */
static void call_link(struct client_rpc_call *c, struct client_rpc_call **list)
{
	c->next = *list;
	c->link = list;
	if (c->next)
		c->next->link = &c->next;
	*list = c;
}

static void call_unlink(struct client_rpc_call *c)
{
	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
}

/* Makes a call and puts it on a list, on which a close finds it. With rpc->lock held. */
static enum terrace_status call_begin(struct client_rpc_call *c, struct client_rpc *rpc, const struct client_job *job,
				      grpc_completion_queue *queue, struct client_rpc_call **list)
{
	enum terrace_status status = client_call_init(c, rpc, &rpc->at, job, rpc->channel,
						       rpc->handles[job->method], queue);

	if (!status)
		call_link(c, list);
	return status;
}

static enum terrace_status closing_fail(void)
{
	return client_fail(TERRACE_PRECONDITION, "the client is disconnected: connect another one");
}

/* ---- synchronous calls -------------------------------------------------------------------------------------------- */

static enum terrace_status sync_begin(struct client_rpc *rpc, const struct client_job *job, struct client_rpc_call *c)
{
	grpc_completion_queue *queue = NULL;
	enum terrace_status status;

	pthread_mutex_lock(&rpc->lock);
	if (rpc->closing) {
		pthread_mutex_unlock(&rpc->lock);
		return closing_fail();
	}
	queue = rpc->idle_count ? rpc->idle[--rpc->idle_count] : grpc_completion_queue_create_for_pluck(NULL);
	status = call_begin(c, rpc, job, queue, &rpc->calls);
	if (status && rpc->idle_count < QUEUES_IDLE_MAX) {
		rpc->idle[rpc->idle_count++] = queue;
		queue = NULL;
	}
	pthread_mutex_unlock(&rpc->lock);
	if (status && queue)
		queue_destroy(queue, true);
	c->queue = queue;
	return status;
}

static void sync_end(struct client_rpc *rpc, struct client_rpc_call *c)
{
	grpc_completion_queue *queue = c->queue;

	pthread_mutex_lock(&rpc->lock);
	call_unlink(c);
	client_call_fini(c);
	if (rpc->idle_count < QUEUES_IDLE_MAX) {
		rpc->idle[rpc->idle_count++] = queue;
		queue = NULL;
	}
	if (queue)
		queue_destroy(queue, true);
	if (rpc->closing)
		pthread_cond_broadcast(&rpc->changed);
	pthread_mutex_unlock(&rpc->lock);
}

/* The call's next event; no deadline here: gRPC ends the batch at the call's. */
static grpc_event sync_pluck(const struct client_rpc *rpc, struct client_rpc_call *c)
{
	const uint64_t until_us = rpc->busy_poll_us ? client_now_us() + rpc->busy_poll_us : 0;

	while (rpc->busy_poll_us) {
		/* any later time is rounded up to the next millisecond */
		grpc_event event = grpc_completion_queue_pluck(c->queue, c, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);

		if (event.type != GRPC_QUEUE_TIMEOUT)
			return event;
		if (client_now_us() >= until_us)
			break;
	}
	return grpc_completion_queue_pluck(c->queue, c, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

enum terrace_status client_rpc_call(struct client_rpc *rpc, const struct client_job *job)
{
	struct client_rpc_call c;
	enum terrace_status status = sync_begin(rpc, job, &c);
	grpc_event event;
	bool more;

	if (status)
		return status;
	more = client_call_send(&c, &job->first);
	if (job->meanwhile)
		job->meanwhile(job->arg);
	for (; more; more = client_call_step(&c, event.success)) {
		event = sync_pluck(rpc, &c);
		TAG_ACQUIRE(&c);
	}
	status = client_call_status(&c);
	sync_end(rpc, &c);
	return status;
}

/* ---- asynchronous calls ------------------------------------------------------------------------------------------- */

static void background_event(struct client_rpc *rpc, struct client_rpc_call *c, bool success)
{
	TAG_ACQUIRE(c);
	if (client_call_step(c, success))
		return;
	/* Still on the list, so that a close waits for `done` too. */
	c->done(c->job.arg, client_call_status(c));
	pthread_mutex_lock(&rpc->lock);
	call_unlink(c);
	client_call_fini(c);
	rpc->background_calls--;
	if (rpc->closing)
		pthread_cond_broadcast(&rpc->changed);
	pthread_mutex_unlock(&rpc->lock);
	free(c);
}

static void *background_main(void *arg)
{
	struct client_rpc *rpc = arg;
	grpc_event event;
	bool stop;

	for (;;) {
		pthread_mutex_lock(&rpc->lock);
		while (!rpc->background_calls && !rpc->closing)
			pthread_cond_wait(&rpc->changed, &rpc->lock);
		stop = !rpc->background_calls;
		pthread_mutex_unlock(&rpc->lock);
		if (stop)
			return NULL;
		/* A call is under way, so an event comes, at its deadline at the latest. */
		event = grpc_completion_queue_next(rpc->background_queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
		if (event.type == GRPC_OP_COMPLETE)
			background_event(rpc, event.tag, event.success);
	}
}

/* With rpc->lock held. */
static enum terrace_status background_begin(struct client_rpc *rpc)
{
	sigset_t before;
	int error;

	if (rpc->background_queue)
		return TERRACE_OK;
	rpc->background_queue = grpc_completion_queue_create_for_next(NULL);
	signals_block(&before);
	error = pthread_create(&rpc->background, NULL, background_main, rpc);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error)
		return TERRACE_OK;
	queue_destroy(rpc->background_queue, false);
	rpc->background_queue = NULL;
	return client_fail(TERRACE_EXHAUSTED, "no thread for asynchronous calls: %s: raise the limit (ulimit -u)", strerror(error));
}

enum terrace_status client_rpc_start(struct client_rpc *rpc, const struct client_job *job,
				     void (*done)(void *arg, enum terrace_status status), struct client_rpc_call **call)
{
	struct client_rpc_call *c = malloc(sizeof(*c));
	enum terrace_status status;

	if (!c)
		return client_fail(TERRACE_EXHAUSTED, "no memory for a call");
	pthread_mutex_lock(&rpc->lock);
	status = rpc->closing ? closing_fail() : background_begin(rpc);
	if (!status && rpc->background_calls == BACKGROUND_CALLS_MAX)
		status = client_fail(TERRACE_EXHAUSTED, "%d asynchronous calls are under way, and there are no more: "
				     "finish some first", BACKGROUND_CALLS_MAX);
	if (!status)
		status = call_begin(c, rpc, job, rpc->background_queue, &rpc->calls);
	if (!status) {
		c->done = done;
		*call = c;
		rpc->background_calls++;
		pthread_cond_broadcast(&rpc->changed);
		/* Under the lock, so that a close that cancels finds a call with a batch. */
		if (!client_call_send(c, &job->first)) {
			rpc->background_calls--;
			call_unlink(c);
			client_call_fini(c);
			status = client_fail(TERRACE_INTERNAL, "gRPC refused a batch: a mistake of this library");
		}
	}
	pthread_mutex_unlock(&rpc->lock);
	if (status)
		free(c);
	return status;
}

void client_rpc_cancel(struct client_rpc_call *call)
{
	client_call_cancel(call);
}

bool client_rpc_in_background(struct client_rpc *rpc)
{
	bool inside;

	pthread_mutex_lock(&rpc->lock);
	inside = rpc->background_queue && pthread_equal(rpc->background, pthread_self());
	pthread_mutex_unlock(&rpc->lock);
	return inside;
}

/* ---- streams ------------------------------------------------------------------------------------------------------ */

enum terrace_status client_rpc_stream_open(struct client_rpc *rpc, const struct client_job *job,
					   struct client_rpc_call **call)
{
	struct client_rpc_call *c = malloc(sizeof(*c));
	grpc_completion_queue *queue;
	enum terrace_status status;

	if (!c)
		return client_fail(TERRACE_EXHAUSTED, "no memory for a call");
	pthread_mutex_lock(&rpc->lock);
	status = rpc->closing ? closing_fail() : TERRACE_OK;
	if (!status) {
		grpc_init(); /* the stream's own hold on the library: it may be closed after the client */
		queue = grpc_completion_queue_create_for_pluck(NULL);
		status = call_begin(c, rpc, job, queue, &rpc->streams);
		c->queue = queue;
		if (status) {
			queue_destroy(queue, true);
			grpc_shutdown();
		}
	}
	if (!status)
		c->pending = client_call_send(c, &job->first);
	pthread_mutex_unlock(&rpc->lock);
	if (status)
		free(c);
	else
		*call = c;
	return status;
}

enum terrace_status client_rpc_stream_next(struct client_rpc_call *c, uint64_t deadline_us)
{
	enum terrace_status status;
	grpc_event event;

	while (c->pending) {
		event = grpc_completion_queue_pluck(c->queue, c, client_call_time(deadline_us), NULL);
		if (event.type == GRPC_QUEUE_TIMEOUT)
			return client_fail(TERRACE_DEADLINE, "no event came in the call's time");
		TAG_ACQUIRE(c);
		if (c->phase == CALL_RECEIVING && c->received) {
			client_call_take(c);
			status = c->taken ? client_fail(c->taken, "%s", c->error) : TERRACE_OK;
			if (c->taken)
				client_call_cancel(c);
			c->pending = c->taken ? client_call_await_status(c) : client_call_receive(c);
			return status;
		}
		c->pending = client_call_step(c, event.success);
	}
	status = client_call_status(c);
	return status ? status : client_fail(TERRACE_UNAVAILABLE, "the stream has ended: open another one");
}

void client_rpc_stream_close(struct client_rpc_call *c)
{
	struct client_rpc *rpc = c->rpc;

	client_call_cancel(c);
	while (c->pending) {
		grpc_event event = grpc_completion_queue_pluck(c->queue, c, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);

		TAG_ACQUIRE(c);
		if (!c->taken)
			c->taken = TERRACE_CANCELLED; /* what still comes is dropped */
		c->pending = client_call_step(c, event.success);
	}
	pthread_mutex_lock(&rpc->lock);
	call_unlink(c);
	pthread_mutex_unlock(&rpc->lock);
	client_call_fini(c);
	queue_destroy(c->queue, true);
	free(c);
	grpc_shutdown();
}
