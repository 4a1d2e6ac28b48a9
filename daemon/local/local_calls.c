/* Start, stop and counts of local calls. See local/local_calls.h, and local/engine.h for how it works inside. */
#include "daemon/local/local_calls.h"

#include "daemon/block/quota.h"
#include "daemon/cache.h"
#include "daemon/local/engine.h"
#include "daemon/local/packet.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/part.h"
#include "daemon/process/machine.h"
#include "daemon/rpc/handler.h"
#include "daemon/threads/deadline.h"
#include "daemon/threads/pool.h"
#include "proto/adaptive_poll.h"
#include "store/status.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	SOCKET_REST = 64,        /* of a socket's room, what no packet gets */
	POLLERS_PROCESSORS = 16, /* with fewer, one worker looks for work */
};

/* ---- posts ---- */

/* The eventfd is never read: each write is an event of its own. */
void local_ring(struct local_calls *n)
{
	const uint64_t one = 1;

	if (write(n->post, &one, sizeof one) != sizeof one)
		log_error("local_call_post", LOG_NUM("errno", errno));
}

/* The thread says that it sleeps before it looks at the list for the last time, so one of the two sees the other: all
 * loads and stores of `sleeps` and this exchange have one order. */
void local_post(struct local_connection *k)
{
	struct local_calls *n = k->local;
	struct local_connection *first;

	if (atomic_exchange_explicit(&k->posted, true, memory_order_acq_rel))
		return;
	first = atomic_load_explicit(&n->posted, memory_order_relaxed);
	do
		k->next_posted = first;
	while (!atomic_compare_exchange_weak(&n->posted, &first, k));
	if (!first && atomic_load(&n->sleeps))
		local_ring(n);
}

bool local_watch(struct local_calls *n, int fd, uint32_t events, struct local_key *key, enum local_watched what,
		 struct local_connection *k)
{
	struct epoll_event e = { .events = events, .data.ptr = key };

	key->what = what;
	key->k = k;
	return !epoll_ctl(n->epoll, EPOLL_CTL_ADD, fd, &e);
}

/* ---- the outside ---- */

static enum status prepare(struct local_calls *n)
{
	n->packet = malloc(FDSOCK_CALL_BYTES_MAX);
	n->epoll = epoll_create1(EPOLL_CLOEXEC);
	n->post = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	for (uint32_t m = 1; m < FDSOCK_METHODS_END; m++)
		n->methods[m] = local_call_method((enum fdsock_method)m);
	if (!n->packet)
		return STATUS_EXHAUSTED;
	if (n->epoll < 0 || n->post < 0 || !local_watch(n, n->post, EPOLLIN | EPOLLET, &n->post_key, LOCAL_POST, NULL))
		return STATUS_IO;
	return pthread_create(&n->thread, NULL, local_main, n) ? STATUS_INTERNAL : STATUS_OK;
}

/* Workers that look for the calls that the thread hands over: it then need not wake one. */
static uint32_t pollers_of(const struct config *c)
{
	const uint32_t processors = machine_processors("");

	if (!c->adaptive_poll || c->busy_poll_ms || processors < ADAPTIVE_POLL_PROCESSORS)
		return 0;
	return processors < POLLERS_PROCESSORS ? 1 : 2;
}

enum status local_create(const struct daemon *daemon, struct local_calls **out, char *why, size_t size)
{
	struct local_calls *n = calloc(1, sizeof *n);
	enum status s;

	if (!n)
		return STATUS_EXHAUSTED;
	n->daemon = daemon;
	n->epoll = n->post = -1;
	n->due_us = UINT64_MAX;
	n->all.next = n->all.prev = &n->all;
	pthread_mutex_init(&n->lock, NULL);
	deadline_cond_init(&n->done_changed);
	quota_bound(cache_quota(daemon->cache), QUOTA_LOCAL, daemon->config->connections_max);
	quota_bound(cache_quota(daemon->cache), QUOTA_WORK, daemon->config->queue_max);
	workers_poll(daemon->workers, pollers_of(daemon->config));
	s = prepare(n);
	n->thread_started = s == STATUS_OK;
	if (s == STATUS_OK) {
		*out = n;
	} else {
		snprintf(why, size,
		    "cannot start the thread of local calls: %s: raise the limit of threads (ulimit -u, TasksMax, pids.max)", strerror(errno));
		local_part.destroy(n);
	}
	return s;
}

enum status local_admit(struct local_calls *n, struct quota_holder *holder)
{
	const char *why = "";
	enum status s;

	if (!n || atomic_load(&n->stopping))
		return STATUS_EXHAUSTED;
	s = quota_take(holder, QUOTA_LOCAL, 1, &why);
	if (s)
		log_debug("local_call_refused", LOG_TEXT("reason", why));
	return s;
}

/* The most bytes that one packet to the peer may have. */
static size_t room_of(int fd)
{
	int bytes = 0;
	socklen_t size = sizeof bytes;

	if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size) || bytes < 2 * SOCKET_REST)
		return 0;
	return bytes - SOCKET_REST < FDSOCK_CALL_BYTES_MAX ? (size_t)bytes - SOCKET_REST : FDSOCK_CALL_BYTES_MAX;
}

static void refuse(struct local_calls *n, int fd, int pidfd, struct quota_holder *holder)
{
	atomic_fetch_add_explicit(&n->refused_memory, 1, memory_order_relaxed);
	quota_give(holder, QUOTA_LOCAL, 1);
	close(fd);
	close(pidfd);
}

void local_take(struct local_calls *n, int fd, int pidfd, struct quota_holder *holder, uint64_t session)
{
	struct local_connection *k = calloc(1, sizeof *k);

	if (!k) {
		refuse(n, fd, pidfd, holder);
		return;
	}
	k->local = n;
	k->fd = fd;
	k->pidfd = pidfd;
	k->session = session;
	k->holder = quota_join_again(holder);
	k->room = room_of(fd);
	k->state = LOCAL_NEW;
	k->work.run = local_work;
	atomic_fetch_add_explicit(&n->connections, 1, memory_order_relaxed);
	local_post(k);
}

void local_free(struct local_connection *k)
{
	quota_give(k->holder, QUOTA_LOCAL, 1);
	quota_leave(k->holder);
	atomic_fetch_sub_explicit(&k->local->connections, 1, memory_order_relaxed);
	free(k);
}

static void calls_stop(void *part, uint64_t grace_us)
{
	struct local_calls *n = part;

	atomic_store(&n->cancel_at_us, daemon_now_us() + grace_us);
	atomic_store(&n->stopping, true);
	local_ring(n);
}

static bool calls_wait(void *part, uint64_t wait_us)
{
	struct local_calls *n = part;

	return deadline_wait(&n->done_changed, &n->lock, &n->done, wait_us);
}

/* Closes connections that the local socket handed over after the thread had ended. */
static void close_posted(struct local_calls *n)
{
	for (struct local_connection *k = atomic_load(&n->posted), *next; k; k = next) {
		next = k->next_posted;
		close(k->fd);
		close(k->pidfd);
		local_free(k);
	}
}

static void destroy(void *part)
{
	struct local_calls *n = part;

	if (n->thread_started) {
		calls_stop(n, 0);
		pthread_join(n->thread, NULL);
	}
	close_posted(n);
	if (n->epoll >= 0)
		close(n->epoll);
	if (n->post >= 0)
		close(n->post);
	pthread_cond_destroy(&n->done_changed);
	pthread_mutex_destroy(&n->lock);
	free(n->packet);
	free(n);
}

static void stats(void *part, cache_stat_fn *emit, void *arg)
{
	struct local_calls *n = part;

	emit(arg, "terrace_local_connections", "", atomic_load(&n->connections), false, "connections for local calls");
	emit(arg, "terrace_local_connections_max", "", (double)n->daemon->config->connections_max, false,
	    "bound of that");
	emit(arg, "terrace_local_calls", "", atomic_load(&n->calls), false, "local calls under way");
	emit(arg, "terrace_local_refused_total", "reason=memory", (double)atomic_load(&n->refused_memory), true,
	     "connections for local calls that were not made: there was no memory");
	emit(arg, "terrace_local_by_grpc_total", "", (double)atomic_load(&n->by_grpc), true,
	     "local calls sent to gRPC, since their replies might be too long for a packet");
	for (uint32_t m = 1; m < FDSOCK_METHODS_END; m++)
		method_times_emit(&n->stats[m], n->methods[m]->name, ",way=local", emit, arg);
	way_times_emit(&n->times, ",way=local", emit, arg);
}

const struct part_ops local_part = {
	.name = "local_calls",
	.calls_stop = calls_stop,
	.calls_wait = calls_wait,
	.destroy = destroy,
	.stats = stats,
};
