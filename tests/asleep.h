/* Whether the other threads of this process sleep, as the kernel tells it: for tests that something waits rather than asks again and again. Time
 * of the processor would tell it too, but that is a matter of the machine. */
#ifndef TERRACE_TESTS_ASLEEP_H
#define TERRACE_TESTS_ASLEEP_H

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ASLEEP_THREADS = 64, ASLEEP_LOOKS = 5 };

struct asleep {
	int stat[ASLEEP_THREADS]; /* open files of /proc, so that it can be looked at when there are no descriptors any more */
	int count;
};

/* Of the threads that there are now. */
static inline void asleep_begin(struct asleep *a)
{
	DIR *tasks = opendir("/proc/self/task");
	char path[64];

	a->count = 0;
	for (struct dirent *e; tasks && (e = readdir(tasks));) {
		if (e->d_name[0] == '.' || atoi(e->d_name) == gettid() || a->count == ASLEEP_THREADS)
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%.16s/stat", e->d_name);
		a->stat[a->count] = open(path, O_RDONLY | O_CLOEXEC);
		a->count += a->stat[a->count] >= 0;
	}
	if (tasks)
		closedir(tasks);
}

/* One that has ended sleeps, too. */
static inline bool asleep_now(const struct asleep *a)
{
	char text[256];

	for (int i = 0; i < a->count; i++) {
		const ssize_t n = pread(a->stat[i], text, sizeof(text) - 1, 0);
		const char *state;

		text[n > 0 ? n : 0] = '\0';
		state = strrchr(text, ')');
		if (state && state[2] != 'S' && state[2] != 'Z' && state[2] != 'X')
			return false;
	}
	return true;
}

/* Waits until all were found asleep at several looks one after the other: one that goes round and round never is. False: not within so many ms. */
static inline bool asleep_within(const struct asleep *a, int ms)
{
	int looks = 0;

	for (int i = 0; i < ms && looks < ASLEEP_LOOKS; i++) {
		usleep(1000);
		looks = asleep_now(a) ? looks + 1 : 0;
	}
	return looks == ASLEEP_LOOKS;
}

static inline void asleep_end(struct asleep *a)
{
	while (a->count)
		close(a->stat[--a->count]);
}

#endif
