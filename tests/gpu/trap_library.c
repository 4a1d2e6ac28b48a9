/* A library for LD_PRELOAD that loses a program's first GPU when the test wants it: once the file TRAP_FILE exists (trap.h). What it did, or
 * could not, it says on stderr. A program that has not loaded CUDA's driver by then has no GPU to lose. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/trap.h"

enum { LOOK_NS = 1000000 };

static void *wait_and_spring(void *file)
{
	const char *wrong;

	while (access(file, F_OK))
		nanosleep(&(struct timespec){ .tv_nsec = LOOK_NS }, NULL);
	if (!dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW))
		return NULL;
	wrong = trap_ready(0);
	if (!wrong)
		wrong = trap_spring();
	fprintf(stderr, "trap: %s\n", wrong ? wrong : "sprung");
	return NULL;
}

/* The thread takes none of the program's signals. */
__attribute__((constructor)) static void begin(void)
{
	char *file = getenv("TRAP_FILE");
	sigset_t all, before;
	pthread_t thread;

	if (!file)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (!pthread_create(&thread, NULL, wait_and_spring, file))
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}
