/* See driver/driver_thread.h. */
#include "client/driver/driver_thread.h"

#include "client/value/clock.h"
#include "client/driver/gpu.h"
#include "client/value/status.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOK_MS = 10, HEARD_MAX = 64 };

static struct {
	pthread_once_t once;
	bool works;
	int bell; /* an eventfd */
	atomic_bool busy;
	pthread_mutex_t lock; /* guards what follows; never held while a task runs */
	pthread_cond_t ran; /* by CLOCK_MONOTONIC */
	struct client_driver_task *first, **last; /* that the thread has not seen yet */
	uint32_t fresh;       /* that have not been run */
	bool watched;         /* GPUs are asked */
} tasks = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER, .last = &tasks.first};

static _Thread_local bool inside;

bool client_thread_start(void *(*main)(void *))
{
	pthread_attr_t attributes;
	sigset_t all, old;
	pthread_t thread;
	bool started;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	started = pthread_create(&thread, &attributes, main, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attributes);
	return started;
}

/* ---- the thread's side
 * --------------------------------------------------------------------------------------------- */

/* The lesser of two times; -1 stands for none. */
static int sooner(int ms, int other_ms)
{
	return ms < 0 || (other_ms >= 0 && other_ms < ms) ? other_ms : ms;
}

/* Waits until the bell is rung, a task's descriptor can be read, or a task is due. If there are too many descriptors to
 * wait for, the others are looked at now and then. */
static void wait_for(const struct client_driver_task *todo, bool watched)
{
	struct pollfd heard[1 + HEARD_MAX] = {{.fd = tasks.bell, .events = POLLIN}};
	int ms = watched ? LOOK_MS : -1;
	uint64_t times;
	nfds_t n = 1;

	for (; todo; todo = todo->next) {
		const bool hears = todo->fd >= 0 && n <= HEARD_MAX, soon = !hears &&
		    todo->fd != CLIENT_DRIVER_TASK_LATER;

		if (hears)
			heard[n++] = (struct pollfd){.fd = todo->fd, .events = POLLIN};
		ms = sooner(ms, soon ? LOOK_MS : todo->until_us ? client_left_ms(todo->until_us) : -1);
	}
	tasks.busy = false;
	poll(heard, n, ms);
	tasks.busy = true;
	if (heard[0].revents)
		while (read(tasks.bell, &times, sizeof(times)) < 0 && errno == EINTR)
			;
}

/* Waits for something to do, and puts new tasks behind those that are to be run again. True: the GPUs are to be
 * asked. */
static bool tasks_take(struct client_driver_task **todo, bool watched)
{
	wait_for(*todo, watched);
	pthread_mutex_lock(&tasks.lock);
	while (*todo)
		todo = &(*todo)->next;
	*todo = tasks.first;
	tasks.first = NULL;
	tasks.last = &tasks.first;
	watched = tasks.watched;
	pthread_mutex_unlock(&tasks.lock);
	return watched;
}

static void fresh_ran(void)
{
	pthread_mutex_lock(&tasks.lock);
	tasks.fresh--;
	pthread_cond_broadcast(&tasks.ran);
	pthread_mutex_unlock(&tasks.lock);
}

static void tasks_run(struct client_driver_task **todo)
{
	while (*todo) {
		struct client_driver_task *e = *todo, *next = e->next;
		bool fresh = !e->ran;

		e->ran = true;
		if (e->run(e))
			*todo = next;
		else
			todo = &e->next;
		if (fresh)
			fresh_ran();
	}
}

static void *tasks_main(void *arg)
{
	struct client_driver_task *todo = NULL;
	bool watched = false;

	(void)arg;
	inside = true;
	for (;;) {
		watched = tasks_take(&todo, watched);
		tasks_run(&todo);
		if (watched)
			client_gpus_ask();
	}
	return NULL;
}

/* ---- the others'
 * --------------------------------------------------------------------------------------------------- */

void client_driver_tasks_wake(void)
{
	const uint64_t one = 1;

	while (write(tasks.bell, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static void start_once(void)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&tasks.ran, &attributes);
	pthread_condattr_destroy(&attributes);
	tasks.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	tasks.works = tasks.bell >= 0 && client_thread_start(tasks_main);
}

static enum terrace_status start(void)
{
	pthread_once(&tasks.once, start_once);
	return tasks.works ? TERRACE_OK : client_fail(TERRACE_EXHAUSTED, "no thread to wait for the GPU's driver: "
							"this process may have no more (ulimit -u)");
}

enum terrace_status client_driver_task_start(struct client_driver_task *e)
{
	enum terrace_status status = start();

	if (status)
		return status;
	e->next = NULL;
	e->fd = -1;
	e->until_us = 0;
	e->ran = false;
	pthread_mutex_lock(&tasks.lock);
	*tasks.last = e;
	tasks.last = &e->next;
	tasks.fresh++;
	pthread_mutex_unlock(&tasks.lock);
	client_driver_tasks_wake();
	return TERRACE_OK;
}

enum terrace_status client_driver_task_watch(bool watch)
{
	enum terrace_status status = start();

	if (status)
		return status;
	pthread_mutex_lock(&tasks.lock);
	tasks.watched = watch;
	pthread_mutex_unlock(&tasks.lock);
	client_driver_tasks_wake();
	return TERRACE_OK;
}

bool client_driver_tasks_busy(void)
{
	return tasks.busy;
}

void client_driver_tasks_settle(uint64_t deadline_us)
{
	struct timespec until = client_time_of(deadline_us);
	int waited = 0;

	pthread_mutex_lock(&tasks.lock);
	while (tasks.fresh && !inside && waited != ETIMEDOUT)
		waited = pthread_cond_timedwait(&tasks.ran, &tasks.lock, &until);
	pthread_mutex_unlock(&tasks.lock);
}
