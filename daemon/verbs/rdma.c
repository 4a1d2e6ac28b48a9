/* See verbs/rdma.h. The thread alone calls the table, without the lock: a driver may hold it for long. What others see
 * is the view that it has left. */
#include "daemon/verbs/rdma.h"

#include "daemon/process/log.h"
#include "daemon/process/part.h"
#include "daemon/threads/deadline.h"
#include "daemon/verbs/rails.h"
#include "daemon/verbs/table.h"
#include "store/clock.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NO_DEVICE "this machine has no RDMA device: load its driver (rdma link), or set rdma = off"
#define NONE_USABLE "no port of an RDMA device can be used: each one says why"

struct rdma {
	struct rails rails;            /* the thread's */
	struct rdma_view next;         /* the thread's: as it is to be published */
	uint64_t look_us;              /* the thread's: when it looks next */
	pthread_t thread;
	bool serving;
	int wake;                      /* an eventfd: the stop */

	pthread_mutex_t lock;          /* what follows */
	pthread_cond_t changed;
	bool stopping, done;
	struct rdma_view view;
};

const char *rdma_state_text(enum rdma_state s)
{
	static const char *const texts[] = { "starting", "ready", "unavailable" };

	return texts[s];
}

/* ---- the thread ---- */

static void rail_changed(void *arg, const struct rail *rail)
{
	(void)arg;
	if (rail->state == RAIL_USABLE)
		log_info("rdma_port", LOG_TEXT("device", rail->device), LOG_NUM("port", rail->port),
			 LOG_TEXT("state", rail_state_text(rail->state)));
	else
		log_warn("rdma_port", LOG_TEXT("device", rail->device), LOG_NUM("port", rail->port),
			 LOG_TEXT("state", rail_state_text(rail->state)), LOG_TEXT("reason", rail->why),
			 LOG_TEXT("used", "TCP carries other members' blocks"));
}

/* Leaves what the thread knows for others to see. */
static void publish(struct rdma *r)
{
	struct rdma_view *v = &r->next;
	const enum rdma_state before = v->state;
	const char *why = r->rails.why[0] ? r->rails.why : NONE_USABLE;
	bool usable = false;

	v->losses = r->rails.losses;
	v->count = rails_copy(&r->rails, v->rail);
	for (uint32_t i = 0; i < v->count; i++)
		usable |= v->rail[i].state == RAIL_USABLE;
	if (!v->count && !r->rails.why[0])
		why = NO_DEVICE;
	v->state = usable ? RDMA_READY : RDMA_UNAVAILABLE;
	snprintf(v->why, sizeof v->why, "%s", usable ? "" : why);
	if (v->state == RDMA_UNAVAILABLE && before != v->state)
		log_warn("rdma_unavailable", LOG_TEXT("reason", v->why),
			 LOG_TEXT("used", "TCP carries other members' blocks"));
	pthread_mutex_lock(&r->lock);
	r->view = *v;
	pthread_mutex_unlock(&r->lock);
}

/* Waits until a device has an event, the next look is due, or the stop. Takes the events. False: the stop. */
static bool wait_events(struct rdma *r)
{
	struct pollfd fds[VERBS_DEVICES_MAX + 1] = { { .fd = r->wake, .events = POLLIN } };
	struct rail_device *of[VERBS_DEVICES_MAX + 1] = { NULL };
	const uint64_t now = clock_us();
	nfds_t n = 1;

	for (uint32_t i = 0; i < VERBS_DEVICES_MAX; i++) {
		struct rail_device *d = &r->rails.device[i];

		if (!d->open)
			continue;
		fds[n] = (struct pollfd){ .fd = r->rails.ops->event_fd(d->open), .events = POLLIN };
		of[n++] = d;
	}
	if (poll(fds, n, r->look_us > now ? (int)((r->look_us - now) / 1000) + 1 : 0) < 0)
		return true;
	for (nfds_t i = 1; i < n; i++)
		if (fds[i].revents)
			rails_events(&r->rails, of[i], fds[i].revents & ~POLLIN);
	return !fds[0].revents;
}

static void *rdma_main(void *arg)
{
	struct rdma *r = arg;

	do {
		if (clock_us() >= r->look_us) {
			rails_look(&r->rails);
			r->look_us = clock_us() + RDMA_LOOK_US;
		}
		publish(r);
	} while (wait_events(r));
	rails_close(&r->rails);
	pthread_mutex_lock(&r->lock);
	r->done = true;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* ---- the part ---- */

enum status rdma_create(const struct verbs_ops *ops, const char *no_ops, struct rdma **out, const char **why)
{
	struct rdma *r = calloc(1, sizeof *r);

	*why = "no memory or no file descriptor: raise LimitNOFILE (ulimit -n), or set rdma = off";
	if (!r)
		return STATUS_EXHAUSTED;
	r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->wake < 0) {
		free(r);
		return STATUS_EXHAUSTED;
	}
	r->rails.ops = ops;
	r->rails.changed = rail_changed;
	pthread_mutex_init(&r->lock, NULL);
	deadline_cond_init(&r->changed);
	if (!ops) {
		r->view.state = RDMA_UNAVAILABLE;
		snprintf(r->view.why, sizeof r->view.why, "%s", no_ops);
		log_warn("rdma_unavailable", LOG_TEXT("reason", no_ops),
			 LOG_TEXT("used", "TCP carries other members' blocks"));
	}
	*out = r;
	return STATUS_OK;
}

void rdma_serve(struct rdma *r)
{
	if (!r || !r->rails.ops)
		return;
	r->serving = !pthread_create(&r->thread, NULL, rdma_main, r);
	if (r->serving)
		return;
	pthread_mutex_lock(&r->lock);
	r->view.state = RDMA_UNAVAILABLE;
	snprintf(r->view.why, sizeof r->view.why,
		 "no thread could be started: raise the limit of threads (ulimit -u, TasksMax, pids.max), and start "
		 "the daemon again");
	pthread_mutex_unlock(&r->lock);
	log_warn("rdma_unavailable", LOG_TEXT("reason", r->view.why));
}

static bool threads_stop(void *part, uint64_t wait_us)
{
	struct rdma *r = part;

	if (!r->serving)
		return true;
	eventfd_write(r->wake, 1);
	return deadline_wait(&r->changed, &r->lock, &r->done, wait_us);
}

static void destroy(void *part)
{
	struct rdma *r = part;

	if (r->serving) {
		threads_stop(r, UINT64_MAX);
		pthread_join(r->thread, NULL);
	}
	close(r->wake);
	pthread_cond_destroy(&r->changed);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

void rdma_look_at(struct rdma *r, struct rdma_view *out)
{
	pthread_mutex_lock(&r->lock);
	*out = r->view;
	pthread_mutex_unlock(&r->lock);
}

static void stats(void *part, cache_stat_fn *emit, void *arg)
{
	struct rdma_view *v = malloc(sizeof *v);
	char labels[VERBS_NAME_MAX + 32];

	if (!v)
		return;
	rdma_look_at(part, v);
	snprintf(labels, sizeof labels, "state=%s", rdma_state_text(v->state));
	emit(arg, "terrace_rdma_info", labels, 1, false, "starting, ready (a port is usable) or unavailable");
	emit(arg, "terrace_rdma_device_losses_total", "", (double)v->losses, true,
	     "times that an RDMA device in use has failed or gone");
	for (uint32_t i = 0; i < v->count; i++) {
		snprintf(labels, sizeof labels, "device=%s,port=%u", v->rail[i].device, v->rail[i].port);
		emit(arg, "terrace_rdma_port_usable", labels, v->rail[i].state == RAIL_USABLE, false,
		     "1: blocks can go by that port of an RDMA device");
	}
	free(v);
}

const struct part_ops rdma_part = {
	.name = "rdma",
	.hangs = "a call to an RDMA device's driver does not end",
	.threads_stop = threads_stop,
	.destroy = destroy,
	.stats = stats,
};
