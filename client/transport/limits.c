/* See transport/limits.h. Another thread may take the room that was found here. But a process that has no room mostly
 * has had none for long.
 */
#include "client/transport/limits.h"

#include "client/value/status.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* gRPC 1.51 ends the process without four descriptors (and has no connection without a fifth), and starts four threads,
 * one more a core, of 2 to 32, and another when it has work. */
enum { DESCRIPTORS = 6, THREADS = 6, CORES_LEAST = 2, CORES_MOST = 32 };

static int descriptors_lack(void)
{
	int fds[DESCRIPTORS], n = 0, error = 0;

	while (n < DESCRIPTORS && !error) {
		fds[n] = eventfd(0, EFD_CLOEXEC);
		if (fds[n] < 0)
			error = errno;
		else
			n++;
	}
	while (n)
		close(fds[--n]);
	return error;
}

static void *wait_main(void *gate)
{
	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	return NULL;
}

/* Why the process cannot have the threads that gRPC needs: an errno; 0: it can. It starts all of them at once, and each
 * waits until the gate is opened. */
static int threads_lack(void)
{
	const long cores = sysconf(_SC_NPROCESSORS_CONF);
	const int want = THREADS + (int)(cores < CORES_LEAST ? CORES_LEAST : cores > CORES_MOST ? CORES_MOST : cores);
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_t threads[THREADS + CORES_MOST];
	int n = 0, error = 0;

	pthread_mutex_lock(&gate);
	while (n < want && !error) {
		error = pthread_create(&threads[n], NULL, wait_main, &gate);
		n += !error;
	}
	pthread_mutex_unlock(&gate);
	while (n)
		pthread_join(threads[--n], NULL);
	pthread_mutex_destroy(&gate);
	return error;
}

enum terrace_status client_rpc_room(void)
{
	int error = descriptors_lack();

	if (error)
		return client_fail(TERRACE_EXHAUSTED, "no descriptors for gRPC: %s: raise the limit (ulimit -n)", strerror(error));
	error = threads_lack();
	return error ? client_fail(TERRACE_EXHAUSTED, "no threads for gRPC: %s: "
				   "raise the limit (ulimit -u, or the cgroup's pids.max)", strerror(error)) : TERRACE_OK;
}
