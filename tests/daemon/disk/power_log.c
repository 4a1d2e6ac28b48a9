/* See daemon/disk/power_log.h. */
#include "tests/daemon/disk/power_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITES = 2048, BYTES_MAX = 16384, PATH = 160 };

/* A file, whatever its name. An inode number may be used again, but by a file that was born later. */
struct file {
	uint64_t inode;
	int64_t born_s;
	uint32_t born_ns;
};

struct replaced {
	char path[PATH];               /* "": it is durable */
	struct file file;
	off_t offset;
	uint32_t bytes;
	_Alignas(4096) uint8_t was[BYTES_MAX];
};

struct power_log {
	uint64_t next, first;          /* a ring */
	struct replaced at[WRITES];
};

static struct power_log *used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct power_log *power_log_make(void)
{
	struct power_log *l = mmap(NULL, sizeof(*l), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return l == MAP_FAILED ? NULL : l;
}

static bool path_of(int fd, char path[PATH])
{
	char link[32];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, PATH - 1);
	path[n > 0 ? n : 0] = 0;
	return n > 0 && n < PATH - 1;
}

static bool file_of(int fd, struct file *out)
{
	struct statx x;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &x))
		return false;
	*out = (struct file){ .inode = x.stx_ino };
	if (x.stx_mask & STATX_BTIME) {
		out->born_s = x.stx_btime.tv_sec;
		out->born_ns = x.stx_btime.tv_nsec;
	}
	return true;
}

static bool is_same(const struct file *a, const struct file *b)
{
	return a->inode == b->inode && a->born_s == b->born_s && a->born_ns == b->born_ns;
}

/* It is in the log before it is done: a process may be killed at any moment. */
static ssize_t write_noted(int fd, const void *at, size_t bytes, off_t offset)
{
	struct replaced *r;
	ssize_t n = -1;

	pthread_mutex_lock(&lock);
	if (used->next - used->first == WRITES)
		used->first++;
	r = &used->at[used->next % WRITES];
	errno = EIO;
	if (bytes <= BYTES_MAX && path_of(fd, r->path) && file_of(fd, &r->file) &&
	    pread(fd, r->was, bytes, offset) == (ssize_t)bytes) {
		r->offset = offset;
		r->bytes = (uint32_t)bytes;
		__atomic_store_n(&used->next, used->next + 1, __ATOMIC_SEQ_CST);
		n = pwrite(fd, at, bytes, offset);
	}
	pthread_mutex_unlock(&lock);
	return n;
}

/* Of what was written before it was called. */
static int sync_noted(int fd)
{
	char path[PATH];
	uint64_t end;
	int failed;

	pthread_mutex_lock(&lock);
	end = used->next;
	pthread_mutex_unlock(&lock);
	failed = fdatasync(fd);
	if (failed || !path_of(fd, path))
		return failed;
	pthread_mutex_lock(&lock);
	for (uint64_t i = used->first; i < end; i++)
		if (!strcmp(used->at[i % WRITES].path, path))
			used->at[i % WRITES].path[0] = 0;
	pthread_mutex_unlock(&lock);
	return 0;
}

void power_log_use(struct power_log *l, struct ring_calls *calls)
{
	used = l;
	calls->pwrite = write_noted;
	calls->fdatasync = sync_noted;
}

uint32_t power_log_cut(struct power_log *l)
{
	uint32_t n = 0;

	for (; l->next > l->first; l->next--) {
		const struct replaced *r = &l->at[(l->next - 1) % WRITES];
		int fd = r->path[0] ? open(r->path, O_WRONLY | O_CLOEXEC) : -1;
		struct file now;

		if (fd < 0)
			continue;
		/* After a wipe another file may have the name, and what the old one held does not come back in it. */
		if (file_of(fd, &now) && is_same(&now, &r->file))
			n += pwrite(fd, r->was, r->bytes, r->offset) == (ssize_t)r->bytes;
		close(fd);
	}
	power_log_forget(l);
	return n;
}

void power_log_forget(struct power_log *l)
{
	l->next = l->first = 0;
}
