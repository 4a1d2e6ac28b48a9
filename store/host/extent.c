/* Extents: memfds with their pages taken, and file locks that tell whether an engine still has them. host/extent.h says
 * how it works.
 *
 * Pages are taken with MADV_POPULATE_WRITE. It reports as an error what a later touch would answer with SIGBUS, and it
 * honours transparent huge pages. Before Linux 5.14 fallocate() does it. A machine short of memory refuses neither
 * call, but starts to kill processes. So /proc/meminfo is read before. (The limit of the daemon's own cgroup is not
 * checked: the operator who sets it also sets the budget.)
 */
#include "store/host/extent.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Extents leave so much of the machine's memory free. */
#define MEMORY_MARGIN_BYTES (64ull << 20)

static enum status translate(int error)
{
	switch (error) {
	case ENOMEM:
	case ENOSPC:
	case EMFILE:
	case ENFILE:
	case ENOLCK:
	case EDQUOT:
	case EFBIG: /* a limit on the size of files */
	case EFAULT: /* MADV_POPULATE_WRITE for "this page would be SIGBUS" */
		return STATUS_EXHAUSTED;
	default:
		return STATUS_IO;
	}
}

/* The kernel's estimate of what can be taken without swapping. False if it does not tell. */
static bool memory_available(uint64_t *bytes)
{
	char text[2048];
	const char *line;
	ssize_t n;
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	line = strstr(text, "MemAvailable:");
	if (!line)
		return false;
	*bytes = strtoull(line + strlen("MemAvailable:"), NULL, 10) << 10;
	return true;
}

/* Makes the pages of the mapping's bytes [from, from + bytes) present. Returns 0 or an errno. */
static int populate(int fd, uint8_t *base, uint64_t from, uint64_t bytes)
{
	while (bytes > 0) {
		if (madvise(base + from, bytes, MADV_POPULATE_WRITE) == 0)
			return 0;
		if (errno == EINVAL)
			break; /* an older kernel */
		if (errno != EINTR)
			return errno;
	}
	while (bytes > 0 && fallocate(fd, 0, (off_t)from, (off_t)bytes) != 0)
		if (errno != EINTR)
			return errno;
	return 0;
}

static int map(struct extent *e, int fd, uint64_t bytes, uint64_t present, bool transparent_huge)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int error;

	if (base == MAP_FAILED)
		return errno;
	/* A refused advice does no harm. Cached keys and values appear neither in core dumps nor in children. */
	if (transparent_huge)
		(void)madvise(base, bytes, MADV_HUGEPAGE);
	(void)madvise(base, bytes, MADV_DONTDUMP);
	(void)madvise(base, bytes, MADV_DONTFORK);
	error = populate(fd, base, 0, present);
	if (error != 0) {
		munmap(base, bytes);
		return error;
	}
	e->base = base;
	return 0;
}

/* One attempt with one page size; 0 or an errno, *e changed only on success. */
static int attempt(struct extent *e, uint64_t bytes, uint64_t present, bool hugetlb, bool transparent_huge)
{
	uint32_t page = hugetlb ? EXTENT_HUGE_PAGE_BYTES : EXTENT_PAGE_BYTES;
	unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd, error;

	if (hugetlb)
		flags |= MFD_HUGETLB | MFD_HUGE_2MB;
	bytes = (bytes + page - 1) / page * page;
	present = present < bytes ? (present + page - 1) / page * page : bytes;
	fd = memfd_create("terrace-extent", flags);
	if (fd < 0)
		return errno;
	if (ftruncate(fd, (off_t)bytes) != 0 || fchmod(fd, S_IRUSR | S_IWUSR) != 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		error = errno;
	else
		error = map(e, fd, bytes, present, transparent_huge);
	if (error != 0) {
		close(fd);
		return error;
	}
	e->fd = fd;
	e->bytes = bytes;
	e->page_bytes = page;
	return 0;
}

/* True if the machine does not have so much memory: then the kernel would kill processes to provide it. */
static bool memory_short(uint64_t bytes)
{
	uint64_t available;

	return memory_available(&available) && available < bytes + MEMORY_MARGIN_BYTES;
}

enum status extent_open(struct extent *e, uint32_t id, uint64_t bytes, bool huge)
{
	return extent_open_part(e, id, bytes, bytes, huge);
}

enum status extent_open_part(struct extent *e, uint32_t id, uint64_t bytes, uint64_t present, bool huge)
{
	int error;

	*e = (struct extent){ .id = id, .fd = -1 };
	if (bytes == 0 || bytes > EXTENT_BYTES_MAX) {
		e->error = EINVAL;
		return STATUS_INVALID;
	}
	if (huge && attempt(e, bytes, present, true, false) == 0)
		return STATUS_OK;
	error = memory_short(present) ? ENOMEM : attempt(e, bytes, present, false, huge);
	e->error = error;
	return error == 0 ? STATUS_OK : translate(error);
}

enum status extent_populate(struct extent *e, uint64_t from, uint64_t bytes)
{
	int error = EINVAL;

	if (from > e->bytes || bytes > e->bytes - from || from % e->page_bytes || bytes % e->page_bytes) {
		e->error = error;
		return STATUS_INVALID;
	}
	/* Huge pages are set aside for the mapping already, so free memory does not matter to them. */
	error = e->page_bytes == EXTENT_PAGE_BYTES && memory_short(bytes) ? ENOMEM : populate(e->fd, e->base, from, bytes);
	e->error = error;
	return error == 0 ? STATUS_OK : translate(error);
}

void extent_close(struct extent *e)
{
	if (!e->base)
		return;
	munmap(e->base, e->bytes);
	close(e->fd);
	e->base = NULL;
	e->fd = -1;
}

static struct flock byte_range(short type, uint64_t first, off_t n)
{
	/* l_pid stays 0, as the kernel demands for open-file-description locks. */
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)first, .l_len = n };
}

/* A read lock, so that the attachment's second description can lock the byte too. Returns 0 or an errno. */
static int byte_lock(int fd, uint64_t byte)
{
	struct flock lock = byte_range(F_RDLCK, byte, 1);

	return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

enum status extent_lend(struct extent *e, uint32_t attachment, bool write, int *fd)
{
	char path[32];
	int lent, error;

	if (attachment < 1 || attachment > EXTENT_ATTACHMENT_MAX) {
		e->error = EINVAL;
		return STATUS_INVALID;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", e->fd);
	lent = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (lent < 0) {
		e->error = error = errno;
		return translate(error);
	}
	error = byte_lock(lent, attachment);
	if (!error && write)
		error = byte_lock(lent, EXTENT_WRITERS + attachment);
	if (error) {
		e->error = error;
		close(lent);
		return error == EAGAIN || error == EACCES ? STATUS_BUSY : translate(error);
	}
	*fd = lent;
	return STATUS_OK;
}

/* Whether a description other than the daemon's own holds a lock in the range. */
static bool range_held(const struct extent *e, uint64_t first, off_t n)
{
	struct flock lock = byte_range(F_WRLCK, first, n);

	return fcntl(e->fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool extent_held(const struct extent *e, uint32_t attachment)
{
	return range_held(e, attachment, 1);
}

bool extent_written(const struct extent *e, uint32_t attachment)
{
	return range_held(e, EXTENT_WRITERS + attachment, 1);
}
