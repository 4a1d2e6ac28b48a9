/* The thread; see gpu/stream_thread.h.
 *
 * The function that a stream calls only notes that the stream has arrived: it marks a token and wakes the thread. The
 * token is shared with the task, since a lost GPU may call late or never. While there are tasks the thread also looks
 * by itself every few milliseconds, for things that do not wake it: lost GPUs (which the thread of
 * driver/driver_thread.h asks), deadlines, and words of progress pages.
 */
#include "client/gpu/stream_thread.h"

#include "client/driver/driver_thread.h"
#include "client/driver/gpu.h"
#include "client/memory/attachment.h"
#include "client/value/clock.h"
#include "client/value/inside.h"
#include "client/value/status.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOK_MS = 10 };

/* Kept for the life of the process, and used again: the call of a lost GPU's stream may come at any time, or never. */
struct after_token {
	struct after_token *next_made, *next_free;
	atomic_uint references; /* the task's and the stream's */
	atomic_bool reached;
};

struct watched {
	struct watched *next;
	struct client_attachment *attachment; /* with a reference */
	bool (*look)(struct client_attachment *attachment);
};

static struct {
	pthread_once_t once;
	bool works;
	int wake; /* an eventfd */
	pthread_mutex_t lock; /* guards what follows; never held while a GPU's function is called */
	struct client_after *tasks; /* that the thread has not seen yet */
	struct watched *progress_pages; /* the same */
	struct after_token *made, *free;
} after = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void wake(void)
{
	const uint64_t one = 1;

	while (write(after.wake, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* ---- tokens
 * -------------------------------------------------------------------------------------------------------- */

static struct after_token *token_take(void)
{
	struct after_token *token;

	pthread_mutex_lock(&after.lock);
	token = after.free;
	if (token) {
		after.free = token->next_free;
	} else {
		token = malloc(sizeof(*token));
		if (token) {
			token->next_made = after.made;
			after.made = token;
		}
	}
	pthread_mutex_unlock(&after.lock);
	if (token) {
		atomic_init(&token->references, 2);
		atomic_init(&token->reached, false);
	}
	return token;
}

static void token_give(struct after_token *token)
{
	pthread_mutex_lock(&after.lock);
	token->next_free = after.free;
	after.free = token;
	pthread_mutex_unlock(&after.lock);
}

static void token_drop(struct after_token *token)
{
	if (atomic_fetch_sub_explicit(&token->references, 1, memory_order_acq_rel) == 1)
		token_give(token);
}

/* ---- the thread's side
 * --------------------------------------------------------------------------------------------- */

/* Looks whether the stream has reached the task's point, is late or given up. True: the task is over. */
static bool task_look(struct client_after *t, uint64_t now)
{
	bool reached = atomic_load_explicit(&t->token->reached, memory_order_acquire), lost = !reached && client_gpu_was_lost(t->gpu);
	struct client_attachment *attachment = t->attachment;

	if (reached || lost) {
		token_drop(t->token);
		t->run(t, lost);
		client_fds_stream_end(attachment);
		client_fds_drop(attachment);
		return true;
	}
	if (t->late && (now >= t->late_us || t->given_up(t))) {
		void (*late)(struct client_after *after, enum terrace_status status) = t->late;

		t->late = NULL;
		late(t, now >= t->late_us ? TERRACE_DEADLINE : TERRACE_CANCELLED);
	}
	return false;
}

static void tasks_look(struct client_after **tasks)
{
	uint64_t now = client_now_us();

	while (*tasks) {
		struct client_after *t = *tasks, *next = t->next;

		if (task_look(t, now))
			*tasks = next;
		else
			tasks = &t->next;
	}
}

static void progress_pages_look(struct watched **progress_pages)
{
	while (*progress_pages) {
		struct watched *w = *progress_pages;

		if (w->look(w->attachment)) {
			progress_pages = &w->next;
			continue;
		}
		*progress_pages = w->next;
		client_fds_drop(w->attachment);
		free(w);
	}
}

/* Takes over new tasks and progress pages. */
static void tasks_take(struct client_after **tasks, struct watched **progress_pages)
{
	pthread_mutex_lock(&after.lock);
	while (after.tasks) {
		struct client_after *t = after.tasks;

		after.tasks = t->next;
		t->next = *tasks;
		*tasks = t;
	}
	while (after.progress_pages) {
		struct watched *w = after.progress_pages;

		after.progress_pages = w->next;
		w->next = *progress_pages;
		*progress_pages = w;
	}
	pthread_mutex_unlock(&after.lock);
}

static void *after_main(void *arg)
{
	struct client_after *tasks = NULL;
	struct watched *progress_pages = NULL;
	bool busy = false;

	(void)arg;
	client_after_enter();
	for (;;) {
		struct pollfd woken = {.fd = after.wake, .events = POLLIN};
		uint64_t times;

		if (poll(&woken, 1, busy ? LOOK_MS : -1) > 0 && read(after.wake, &times, sizeof(times)) < 0)
			continue;
		tasks_take(&tasks, &progress_pages);
		if (busy != (tasks || progress_pages)) {
			busy = !busy;
			client_driver_task_watch(busy);
		}
		tasks_look(&tasks);
		progress_pages_look(&progress_pages);
	}
	return NULL;
}

/* ---- the others'
 * --------------------------------------------------------------------------------------------------- */

static void start_once(void)
{
	after.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	after.works = after.wake >= 0 && !client_driver_task_watch(false) && client_thread_start(after_main);
}

static enum terrace_status start(void)
{
	pthread_once(&after.once, start_once);
	return after.works ? TERRACE_OK : client_fail(TERRACE_EXHAUSTED, "no thread to wait for the GPU: "
						      "this process may have no more (ulimit -u)");
}

static void reached(void *arg)
{
	struct after_token *token = arg;

	atomic_store_explicit(&token->reached, true, memory_order_release);
	token_drop(token);
	wake();
}

enum terrace_status client_after_start(struct client_after *t, struct client_attachment *a, struct client_gpu *gpu,
				       void *stream)
{
	enum terrace_status status = start();
	const char *why = "";
	enum status s;

	if (status)
		return status;
	t->token = token_take();
	if (!t->token)
		return client_fail(TERRACE_EXHAUSTED, "no memory to wait for the GPU");
	if (!client_fds_stream_begin(a)) {
		token_give(t->token);
		return client_fail(TERRACE_CANCELLED, "the session is closed: open another one");
	}
	s = gpu->ops->stream_then(gpu->device, stream, reached, t->token, &why);
	if (s != STATUS_OK) {
		client_fds_stream_end(a);
		token_give(t->token);
		return client_gpu_fail(s, "the stream takes no call", why);
	}
	client_fds_hold(a);
	t->attachment = a;
	t->gpu = gpu;
	pthread_mutex_lock(&after.lock);
	t->next = after.tasks;
	after.tasks = t;
	pthread_mutex_unlock(&after.lock);
	wake();
	return TERRACE_OK;
}

enum terrace_status client_after_watch(struct client_attachment *a, bool (*look)(struct client_attachment *attachment))
{
	enum terrace_status status = start();
	struct watched *w = status ? NULL : malloc(sizeof(*w));

	if (status)
		return status;
	if (!w)
		return client_fail(TERRACE_EXHAUSTED, "no memory to watch the progress page");
	client_fds_hold(a);
	w->attachment = a;
	w->look = look;
	pthread_mutex_lock(&after.lock);
	w->next = after.progress_pages;
	after.progress_pages = w;
	pthread_mutex_unlock(&after.lock);
	wake();
	return TERRACE_OK;
}
