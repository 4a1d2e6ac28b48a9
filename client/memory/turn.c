/* The turn of an attachment: one thread at a time talks with the daemon or unmaps; see turn.h.
 *
 * A mapping that is not needed any more is marked. It is unmapped after its last use has ended: at the end of a turn,
 * or by a task where a GPU's driver has a part in it.
 */
#include "client/memory/turn.h"

#include "client/memory/attachment.h"
#include "client/memory/table.h"
#include "client/value/clock.h"
#include "client/value/status.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

/* Waits until the flag, which the lock guards, is false, or until the deadline. */
bool client_fds_await_down(struct client_attachment *a, const bool *flag, uint64_t deadline_us)
{
	struct timespec until = client_time_of(deadline_us);
	int waited = 0;

	a->waiting++;
	while (*flag && !a->closed && waited != ETIMEDOUT)
		waited = pthread_cond_timedwait(&a->idle, &a->lock, &until);
	a->waiting--;
	return !*flag || a->closed;
}

enum terrace_status client_fds_talk_begin(struct client_attachment *a, uint64_t deadline_us)
{
	if (!client_fds_await_down(a, &a->talking, deadline_us))
		return client_fail(TERRACE_DEADLINE, "another thread's mapping took all of the call's time: give it more");
	if (a->closed)
		return client_fail(TERRACE_CANCELLED, "the session is closed: open another one");
	if (a->broken)
		return client_fail(TERRACE_UNAVAILABLE, "the daemon's fd socket is closed: "
				   "the daemon has restarted or is stopping: open the session again (terrace_session_reopen)");
	a->talking = true;
	return TERRACE_OK;
}

/* ---- what is of no more use ---- */

static bool is_over(const struct client_mapping *m)
{
	return m->retiring && !m->uses;
}

/* The next mapping that is to be unmapped, or told of, and with which this thread may do that. NULL: there is none. */
static struct client_mapping *sweep_next(struct client_attachment *a, bool by_driver)
{
	for (uint32_t i = 0; i < a->count && a->retiring && !a->closed; i++)
		if (is_over(a->mappings[i]) &&
		    (by_driver || !a->mappings[i]->base || !client_fds_of_driver(a->mappings[i])))
			return a->mappings[i];
	return NULL;
}

/* Unmaps what is to be unmapped and tells the daemon. With the turn to talk; the lock is let go meanwhile. A mapping
 * stays in the table until the daemon could be told, except that on a broken socket there may be no daemon to tell.
 * False: the socket is full, and the rest is for later. */
static bool turn_sweep(struct client_attachment *a, bool by_driver)
{
	struct client_mapping *m;

	while ((m = sweep_next(a, by_driver)) != NULL) {
		struct client_mapping dropped = *m;

		m->base = NULL;
		if (dropped.base) {
			pthread_mutex_unlock(&a->lock);
			client_mapping_drop(&a->memory, &dropped);
			pthread_mutex_lock(&a->lock);
		}
		if (!client_fds_tell(a, m) && !a->broken)
			return false;
		client_table_remove(a, m);
	}
	return true;
}

void client_fds_sweep_here(struct client_attachment *a)
{
	turn_sweep(a, false);
}

static bool sweeping_run(struct client_driver_task *task);

/* Has a task unmap what only a driver can unmap. Without a thread for the task it is done here. */
static void sweep_ask(struct client_attachment *a)
{
	struct client_mapping *m = NULL;

	for (uint32_t i = 0; i < a->count && a->retiring && !m && !a->closed && !a->sweep_asked; i++)
		if (is_over(a->mappings[i]) && a->mappings[i]->base && client_fds_of_driver(a->mappings[i]))
			m = a->mappings[i];
	if (!m)
		return;
	client_fds_hold(a);
	a->sweep_asked = true;
	a->sweeping.run = sweeping_run;
	if (!client_driver_task_start(&a->sweeping))
		return;
	a->sweep_asked = false;
	atomic_fetch_sub_explicit(&a->references, 1, memory_order_relaxed); /* the caller has one */
	a->talking = true;
	turn_sweep(a, true);
	a->talking = false;
	pthread_cond_broadcast(&a->idle);
}

void client_fds_talk_end(struct client_attachment *a, bool broken)
{
	a->broken |= broken;
	turn_sweep(a, false);
	a->talking = false;
	pthread_cond_broadcast(&a->idle);
	sweep_ask(a);
	client_fds_end(a);
}

bool client_fds_unswept(const struct client_attachment *a)
{
	bool over = false;

	for (uint32_t i = 0; i < a->count && a->retiring && !a->closed && !over; i++)
		over = is_over(a->mappings[i]);
	return over;
}

void client_fds_sweep(struct client_attachment *a)
{
	if (a->talking || !client_fds_unswept(a))
		return;
	a->talking = true;
	client_fds_talk_end(a, false);
}

/* Runs the task that unmaps. If the daemon reads nothing, it is tried again by and by, which keeps the lock free for
 * others. */
static bool sweeping_run(struct client_driver_task *task)
{
	struct client_attachment *a = (struct client_attachment *)((char *)task - offsetof(struct client_attachment, sweeping));
	bool over = true;

	pthread_mutex_lock(&a->lock);
	a->sweep_asked = false;
	if (!a->talking && !a->closed) {
		a->talking = true;
		over = turn_sweep(a, true);
		a->sweep_asked = !over;
		a->talking = false;
		pthread_cond_broadcast(&a->idle);
		client_fds_end(a);
	}
	pthread_mutex_unlock(&a->lock);
	if (over)
		client_fds_drop(a);
	return over;
}

void client_fds_retire(struct client_attachment *a, struct client_mapping *m)
{
	a->retiring += !m->retiring;
	m->retiring = true;
}
