/* Start, stop and counts of the gRPC server. See rpc/server.h, and rpc/engine.h for how it works inside. */
#include "daemon/rpc/server.h"

#include "daemon/block/quota.h"
#include "daemon/cache.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/part.h"
#include "daemon/process/rights.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/engine.h"
#include "daemon/rpc/handler.h"
#include "daemon/rpc/listen.h"
#include "daemon/rpc/peers.h"
#include "daemon/rpc/roles.h"
#include "daemon/rpc/tls.h"
#include "daemon/secrets/secrets.h"
#include "daemon/threads/deadline.h"
#include "store/status.h"

#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	METADATA_BYTES_MAX = 16 * 1024,
	STREAMS_MAX = 100,             /* calls at a time of one connection; more wait in the client */
	IDLE_MS = 300000,              /* a connection without a call for so long is closed: its client connects anew */
	READS_MAX = 32,                /* requests that are being received, each of which may be as large as a message */
	REPLY_BYTES_MAX = 64 << 20,    /* of replies that have not left yet */
	LIBRARY_BYTES_LEAST = 64 << 20, /* of the library's buffers: so much, and */
	LIBRARY_MESSAGES = 16,         /* as many of the largest messages */
	KEPT_BYTES = 16 << 20,         /* of freed memory in a heap, of which threads share some */
};

/* gRPC's buffers, and the copies of blocks on their way to clients, are freed as fast as they are made. Without this
 * the C library gives their pages back to the kernel each time, which clears them for the next use. */
static void keep_freed_memory(void)
{
	mallopt(M_MMAP_THRESHOLD, KEPT_BYTES / 2);
	mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
}

static void log_from_grpc(gpr_log_func_args *a)
{
	if (a->severity == GPR_LOG_SEVERITY_ERROR)
		log_warn("grpc", LOG_TEXT("message", a->message));
	else
		log_debug("grpc", LOG_TEXT("message", a->message));
}

static grpc_arg int_arg(const char *key, uint64_t value)
{
	return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = (int)value };
}

/* Makes gRPC's server. The library's buffers get a bound of their own: for what clients send and do not finish, and for
 * what they ask for and do not read. */
static grpc_server *make_server(const struct config *config)
{
	grpc_resource_quota *quota = grpc_resource_quota_create("terraced");
	grpc_arg args[] = {
		int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, config->message_bytes_max),
		int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, config->message_bytes_max),
		int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, config->calls_max < STREAMS_MAX ? config->calls_max : STREAMS_MAX),
		int_arg(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES_MAX),
		int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 60000),
		int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000),
		int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
		int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000),
		int_arg(GRPC_ARG_MAX_CONNECTION_IDLE_MS, IDLE_MS),
		{ .type = GRPC_ARG_POINTER, .key = (char *)GRPC_ARG_RESOURCE_QUOTA,
		  .value.pointer = { quota, grpc_resource_quota_arg_vtable() } },
		int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
	};
	grpc_channel_args list = { sizeof args / sizeof args[0], args };
	grpc_server *server;

	grpc_resource_quota_resize(quota, LIBRARY_BYTES_LEAST + LIBRARY_MESSAGES * config->message_bytes_max);
	server = grpc_server_create(&list, NULL);
	grpc_resource_quota_unref(quota);
	return server;
}

static bool register_methods(struct rpc_server *s)
{
	for (uint32_t m = 0; m < rpc_methods_count; m++) {
		if (rpc_methods[m].cluster && !s->daemon->config->cluster[0])
			continue;
		/* A request is read when its call has been admitted: gRPC would read those of all its streams at once,
		 * and wait for ever for the rest of one. */
		s->registered[m] = grpc_server_register_method(s->server, rpc_methods[m].path, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
		if (!s->registered[m])
			return false;
	}
	return true;
}

/* Hands a connection to gRPC, on the listener's thread. */
static void take(void *server, int fd)
{
	struct rpc_server *s = server;

	grpc_server_add_channel_from_fd(s->server, fd, s->open);
}

static enum status make_calls(struct rpc_server *s, uint64_t calls_max)
{
	size_t n = calls_max + SPARE_CALLS;

	for (uint32_t m = 0; m <= rpc_methods_count; m++)
		n += posts_wanted(m);
	s->calls = calloc(n, sizeof *s->calls);
	s->registered = calloc(rpc_methods_count, sizeof *s->registered);
	s->posted = calloc(rpc_methods_count + 1, sizeof *s->posted);
	s->stats = calloc(rpc_methods_count + 1, sizeof *s->stats);
	s->needed = calloc(rpc_methods_count + 1, sizeof *s->needed);
	if (!s->calls || !s->registered || !s->posted || !s->stats || !s->needed || rpc_roles_init(&s->roles, s->daemon->config))
		return STATUS_EXHAUSTED;
	for (uint32_t m = 0; m < rpc_methods_count; m++)
		s->needed[m] = right_role(rpc_methods[m].name);
	for (size_t i = n; i--;) {
		struct wire_call *w = &s->calls[i];

		w->server = s;
		w->work.run = rpc_step_work;
		grpc_metadata_array_init(&w->metadata);
		grpc_call_details_init(&w->details);
		w->next = s->pool;
		s->pool = w;
	}
	s->live.next = s->live.prev = &s->live;
	return STATUS_OK;
}

static void free_server(struct rpc_server *s)
{
	for (struct wire_call *w = s->pool; w; w = w->next)
		grpc_metadata_array_destroy(&w->metadata);
	pthread_cond_destroy(&s->done_changed);
	pthread_mutex_destroy(&s->lock);
	rpc_listen_destroy(s->listener);
	rpc_tls_destroy(s->tls); /* what gRPC said last leaves here */
	rpc_peers_destroy(s->peers);
	if (s->open)
		grpc_server_credentials_release(s->open);
	free(s->calls);
	free(s->registered);
	free(s->posted);
	free(s->needed);
	rpc_roles_fini(&s->roles);
	free(s->stats);
	free(s);
	grpc_shutdown();
}

/* Ends a server whose thread has not been started: there is no thread to wait for. */
static void undo_server(struct rpc_server *s)
{
	rpc_listen_stop(s->listener);
	if (s->server) {
		grpc_server_shutdown_and_notify(s->server, s->queue, s);
		grpc_completion_queue_next(s->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
		grpc_server_destroy(s->server);
	}
	if (s->queue) {
		grpc_completion_queue_shutdown(s->queue);
		grpc_completion_queue_next(s->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
		grpc_completion_queue_destroy(s->queue);
	}
	free_server(s);
}

static void calls_stop(void *part, uint64_t grace_us)
{
	struct rpc_server *s = part;

	pthread_mutex_lock(&s->lock);
	bool begun = s->stop_begun;

	s->stopping = s->stop_begun = true;
	s->cancel_at_us = daemon_now_us() + grace_us;
	pthread_mutex_unlock(&s->lock);
	if (begun)
		return;
	rpc_listen_stop(s->listener);
	grpc_server_shutdown_and_notify(s->server, s->queue, s);
}

static bool calls_wait(void *part, uint64_t wait_us)
{
	struct rpc_server *s = part;

	return deadline_wait(&s->done_changed, &s->lock, &s->done, wait_us);
}

static void destroy(void *part)
{
	struct rpc_server *s = part;

	if (s->thread_started)
		pthread_join(s->thread, NULL);
	grpc_completion_queue_destroy(s->queue);
	free_server(s);
}

static void secrets_stats(const struct secrets *s, cache_stat_fn *emit, void *arg)
{
	static const char help[] = "times that secrets were read anew since their files had changed";
	struct secrets_figures f;

	if (!s)
		return;
	secrets_figures(s, &f);
	emit(arg, "terrace_secret_reloads_total", "result=done", (double)f.reloads, true, help);
	emit(arg, "terrace_secret_reloads_total", "result=failed", (double)f.failures, true, help);
	emit(arg, "terrace_secrets_stale", "", f.stale, false,
	     "files of secrets that cannot be used as they are now: the secret before is in use");
}

static void stats(void *part, cache_stat_fn *emit, void *arg)
{
	struct rpc_server *s = part;

	emit(arg, "terrace_rpc_calls", "", atomic_load_explicit(&s->live_gauge, memory_order_relaxed), false,
	     "calls under way");
	emit(arg, "terrace_rpc_calls_max", "", (double)s->daemon->config->calls_max, false, "bound of that");
	rpc_listen_stats(s->listener, emit, arg);
	rpc_peers_stats(s->peers, emit, arg);
	rpc_tls_stats(s->tls, emit, arg);
	secrets_stats(s->daemon->secrets, emit, arg);
	for (uint32_t m = 0; m <= rpc_methods_count; m++) {
		const char *name = m < rpc_methods_count ? rpc_methods[m].name : "unknown";

		method_times_emit(&s->stats[m], name, "", emit, arg);
	}
	way_times_emit(&s->times, "", emit, arg);
}

const struct part_ops rpc_part = {
	.name = "rpc",
	.calls_stop = calls_stop,
	.calls_wait = calls_wait,
	.destroy = destroy,
	.stats = stats,
};

static void quota_bounds(const struct daemon *d)
{
	struct quota *q = cache_quota(d->cache);

	quota_bound(q, QUOTA_CALLS, d->config->calls_max);
	quota_bound(q, QUOTA_STREAMS, d->config->calls_max / 2);
	quota_bound(q, QUOTA_LASTING, d->config->calls_max / 4);
	quota_bound(q, QUOTA_READS, READS_MAX);
	quota_bound(q, QUOTA_REPLY_BYTES, REPLY_BYTES_MAX);
	quota_bound(q, QUOTA_WORK, d->config->queue_max);
}

static enum status start_tls(struct rpc_server *s, const struct config *c, char *why, size_t size)
{
	const struct rpc_tls_options o = { { c->listen_cert, c->listen_key, c->listen_ca }, c->tenants, c->peers };

	return c->listen[0] && config_listen_tls(c) ? rpc_tls_create(&o, &s->tls, why, size) : STATUS_OK;
}

/* Makes the parts in the order in which they need each other. undo_server frees what exists up to the start of gRPC's
 * server; after that a thread may run, and destroy has to stop it. */
enum status rpc_server_create(struct daemon *d, char *why, size_t size)
{
	struct rpc_server *s = calloc(1, sizeof *s);
	enum status status;

	if (!s)
		return STATUS_EXHAUSTED;
	keep_freed_memory();
	gpr_set_log_function(log_from_grpc);
	grpc_init();
	s->daemon = d;
	quota_bounds(d);
	pthread_mutex_init(&s->lock, NULL);
	deadline_cond_init(&s->done_changed);
	status = make_calls(s, d->config->calls_max);
	if (status != STATUS_OK) {
		snprintf(why, size, "no memory for %llu calls: set a smaller calls_max", (unsigned long long)d->config->calls_max);
		undo_server(s);
		return status;
	}
	s->open = grpc_insecure_server_credentials_create();
	s->server = make_server(d->config);
	s->queue = grpc_completion_queue_create_for_next(NULL);
	grpc_server_register_completion_queue(s->server, s->queue, NULL);
	status = STATUS_INTERNAL;
	if (register_methods(s))
		status = rpc_peers_create(cache_quota(d->cache), d->config->connections_max, &s->peers);
	if (status == STATUS_OK)
		status = rpc_listen_create(d->config, &s->listener, why, size);
	if (status == STATUS_OK)
		status = start_tls(s, d->config, why, size);
	if (status != STATUS_OK) {
		undo_server(s);
		return status;
	}
	grpc_server_start(s->server);
	d->rpc = s;
	daemon_add(d, &rpc_part, s);
	const struct rpc_listen_parts parts = { .peers = s->peers, .roles = &s->roles, .tls = s->tls };

	s->thread_started = !pthread_create(&s->thread, NULL, rpc_loop_main, s);
	if (s->thread_started && rpc_listen_start(s->listener, &parts, RPC_SILENT_US, take, s) == STATUS_OK)
		return STATUS_OK;
	d->rpc = NULL;
	d->part_count--;
	snprintf(why, size, "cannot start the threads of gRPC: raise the limit of threads (ulimit -u, TasksMax, pids.max)");
	if (s->thread_started) {
		calls_stop(s, 0);
		destroy(s);
	} else {
		undo_server(s);
	}
	return STATUS_INTERNAL;
}

int rpc_server_port(const struct rpc_server *s)
{
	return rpc_listen_port(s->listener);
}
