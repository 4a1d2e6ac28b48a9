/* A thread of the library for slow calls of a GPU's driver: it maps memory ahead, unmaps memory, and asks whether GPUs
 * are lost. It also reads what the daemon sends while no other thread does, since these tasks mostly follow from that.
 *
 * An unmapping may last until all streams of a GPU are done, and other calls of the driver may last as long as the
 * unmapping. So no other thread that must not be held up makes such a call. That holds for the thread on which streams
 * depend (gpu/stream_thread.h), and for any thread with a lock that that one takes. The thread is started with its
 * first task and sleeps while there is nothing to do.
 */
#ifndef TERRACE_CLIENT_DRIVER_DRIVER_THREAD_H
#define TERRACE_CLIENT_DRIVER_DRIVER_THREAD_H

#include "client/include/terrace.h"

enum { CLIENT_DRIVER_TASK_LATER = -2 };

/* A task, embedded in the struct that it is about. Zeroed memory with `run` set is enough. */
struct client_driver_task {
	struct client_driver_task *next;
	/* Called on the thread. True: the task is over; its struct is freed or belongs to its owner again. False: run
	 * it once more. It is run when `fd` can be read; if fd is -1, some milliseconds later; if fd is
	 * CLIENT_DRIVER_TASK_LATER, at until_us. It may be run earlier too. */
	bool (*run)(struct client_driver_task *task);
	int fd; /* -1 at the start; `run` may set it. It stays open while it is waited for, or a task closes it */
	uint64_t until_us; /* the latest time to run, with an fd or CLIENT_DRIVER_TASK_LATER; 0, as at the start: no
			    * such time */
	bool ran;
};

/* Starts a task. It must not be running already. TERRACE_EXHAUSTED: there is no thread, and the task will not run.
 * Never waits long. */
enum terrace_status client_driver_task_start(struct client_driver_task *task);

/* Starts, or with watch false ends, asking again and again whether the process's GPUs are lost (client_gpu_was_lost).
 * TERRACE_EXHAUSTED: no thread. */
enum terrace_status client_driver_task_watch(bool watch);

/* Runs all tasks that wait, now. */
void client_driver_tasks_wake(void);

/* True while the thread runs a task, which may be in a slow call of a driver. */
bool client_driver_tasks_busy(void);

/* Waits until every task has been run once. */
void client_driver_tasks_settle(uint64_t deadline_us);

/* Starts a detached thread with all signals blocked. False: no thread was available. */
bool client_thread_start(void *(*main)(void *));

#endif
