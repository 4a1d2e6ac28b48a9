/* A thread of the library for what a GPU's driver takes long over: memory is mapped ahead and unmapped there, and GPUs are asked whether
 * they are lost. It also hears what the daemon says while nobody else listens, since that is mostly what it is to do then.
 *
 * Unmapping may last until all of a GPU's streams are done, and other calls of the driver's until the unmapping is. So nobody else who may
 * not stand still does either: not the thread on which streams depend (gpu/stream_thread.h), nor one that holds a lock which that thread takes. It
 * is started with its first task and sleeps while there is nothing to be done. */
#ifndef TERRACE_CLIENT_DRIVER_DRIVER_THREAD_H
#define TERRACE_CLIENT_DRIVER_DRIVER_THREAD_H

#include "client/include/terrace.h"

enum { CLIENT_DRIVER_TASK_LATER = -2 };

/* Embedded in what it is about. Zeroed but for `run` will do. */
struct client_driver_task {
	struct client_driver_task *next;
	/* On the thread. True: it is over, and the struct gone or its owner's again. False: once more, when `fd` can be read or, if that is
	 * -1, some milliseconds later, or, if that is CLIENT_DRIVER_TASK_LATER, at until_us; perhaps earlier, too. */
	bool (*run)(struct client_driver_task *task);
	int fd; /* -1 at the start; run may set it. Open for as long as it is waited for, or closed by a task */
	uint64_t until_us; /* with an fd, or later: run then at the latest; 0, as at the start: no such time */
	bool ran;
};

/* Has the task run; not while it is one already. TERRACE_EXHAUSTED: no thread, and it will not be. Never waits long. */
enum terrace_status client_driver_task_start(struct client_driver_task *task);

/* Has the process's GPUs asked, again and again, whether they are lost (client_gpu_was_lost), or no more. TERRACE_EXHAUSTED: no thread. */
enum terrace_status client_driver_task_watch(bool watch);

/* Has all that wait for something run now. */
void client_driver_tasks_wake(void);

/* True while the thread is at something, which may be a driver's call that lasts. */
bool client_driver_tasks_busy(void);

/* Waits until every task has been run once. */
void client_driver_tasks_settle(uint64_t deadline_us);

/* Starts a thread that nobody joins, with all signals blocked. False: none could be had. */
bool client_thread_start(void *(*main)(void *));

#endif
