/* A file system that fails on order: passes the files of one folder through, and breaks what it is told
 * to.
 *
 *     faultfs FOLDER MOUNTPOINT        in the foreground, until it is unmounted (fusermount3 -u MOUNTPOINT)
 *
 * Orders are lines written to MOUNTPOINT/ctl, "NAME COUNT": the next COUNT operations fail, -1 all, 0
 * none:
 *
 *     eio_read  eio_write  eio_sync    EIO
 *     enospc                           writes and allocations fail with ENOSPC
 *     delay_ms                         not a count: each read, write and sync lasts so much longer
 *     no_fallocate                     allocations are not supported
 *
 * Only what a data folder needs is there: files in one folder, no links, no attributes. Each request
 * has a thread of its own, so that a delay delays only its own request.
 */
#define FUSE_USE_VERSION 31
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static int base;           /* the folder */
static atomic_long eio_read, eio_write, eio_sync, enospc, no_fallocate, delay_ms;

static const struct {
	const char *name;
	atomic_long *value;
} orders[] = {
	{ "eio_read", &eio_read }, { "eio_write", &eio_write },       { "eio_sync", &eio_sync },
	{ "enospc", &enospc },     { "no_fallocate", &no_fallocate }, { "delay_ms", &delay_ms },
};

/* Whether this operation is one that is to fail. */
static bool strikes(atomic_long *count)
{
	long n = atomic_load(count);

	while (n > 0)
		if (atomic_compare_exchange_weak(count, &n, n - 1))
			return true;
	return n < 0;
}

static void linger(void)
{
	long ms = atomic_load(&delay_ms);

	if (ms > 0)
		usleep((useconds_t)ms * 1000);
}

static bool is_ctl(const char *path)
{
	return strcmp(path, "/ctl") == 0;
}

/* The name below the folder. */
static const char *below(const char *path)
{
	return path[1] ? path + 1 : ".";
}

static int take_order(const char *text, size_t bytes)
{
	char line[64] = { 0 }, name[32];
	long value;

	if (bytes >= sizeof(line))
		return -EINVAL;
	memcpy(line, text, bytes);
	if (sscanf(line, "%31s %ld", name, &value) != 2)
		return -EINVAL;
	for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		if (strcmp(orders[i].name, name) == 0) {
			atomic_store(orders[i].value, value);
			return (int)bytes;
		}
	}
	return -EINVAL;
}

static int fault_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	(void)fi;
	if (is_ctl(path)) {
		memset(st, 0, sizeof(*st));
		st->st_mode = S_IFREG | 0600;
		st->st_nlink = 1;
		return 0;
	}
	return fstatat(base, below(path), st, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : -errno;
}

static int fault_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset,
			 struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
	int fd = openat(base, below(path), O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	(void)offset;
	(void)fi;
	(void)flags;
	if (!dir)
		return -errno;
	while ((e = readdir(dir)) != NULL)
		if (fill(buffer, e->d_name, NULL, 0, 0) != 0)
			break;
	closedir(dir);
	return 0;
}

/* The kernel's cache stays out of it: every read and write comes here. */
static int open_below(const char *path, int flags, mode_t mode, struct fuse_file_info *fi)
{
	int fd;

	fi->direct_io = 1;
	fi->fh = UINT64_MAX;
	if (is_ctl(path))
		return 0;
	fd = openat(base, below(path), flags & ~(O_NOFOLLOW | O_DIRECT), mode);
	if (fd < 0)
		return -errno;
	fi->fh = (uint64_t)fd;
	return 0;
}

static int fault_open(const char *path, struct fuse_file_info *fi)
{
	return open_below(path, fi->flags & ~(O_CREAT | O_EXCL), 0, fi);
}

static int fault_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	return open_below(path, fi->flags | O_CREAT, mode, fi);
}

static int fault_release(const char *path, struct fuse_file_info *fi)
{
	if (!is_ctl(path))
		close((int)fi->fh);
	return 0;
}

static int fault_read(const char *path, char *to, size_t bytes, off_t offset, struct fuse_file_info *fi)
{
	ssize_t n;

	if (is_ctl(path))
		return 0;
	linger();
	if (strikes(&eio_read))
		return -EIO;
	n = pread((int)fi->fh, to, bytes, offset);
	return n < 0 ? -errno : (int)n;
}

static int fault_write(const char *path, const char *from, size_t bytes, off_t offset, struct fuse_file_info *fi)
{
	ssize_t n;

	if (is_ctl(path))
		return take_order(from, bytes);
	linger();
	if (strikes(&eio_write))
		return -EIO;
	if (strikes(&enospc))
		return -ENOSPC;
	n = pwrite((int)fi->fh, from, bytes, offset);
	return n < 0 ? -errno : (int)n;
}

static int fault_fsync(const char *path, int data_only, struct fuse_file_info *fi)
{
	(void)data_only;
	if (is_ctl(path))
		return 0;
	linger();
	if (strikes(&eio_sync))
		return -EIO;
	return fsync((int)fi->fh) == 0 ? 0 : -errno;
}

static int fault_truncate(const char *path, off_t bytes, struct fuse_file_info *fi)
{
	int fd, error;

	if (is_ctl(path))
		return 0;
	if (fi)
		return ftruncate((int)fi->fh, bytes) == 0 ? 0 : -errno;
	fd = openat(base, below(path), O_WRONLY);
	if (fd < 0)
		return -errno;
	error = ftruncate(fd, bytes) == 0 ? 0 : -errno;
	close(fd);
	return error;
}

static int fault_fallocate(const char *path, int mode, off_t offset, off_t bytes, struct fuse_file_info *fi)
{
	(void)path;
	if (strikes(&no_fallocate))
		return -EOPNOTSUPP;
	if (strikes(&enospc))
		return -ENOSPC;
	return fallocate((int)fi->fh, mode, offset, bytes) == 0 ? 0 : -errno;
}

static int fault_unlink(const char *path)
{
	return unlinkat(base, below(path), 0) == 0 ? 0 : -errno;
}

static int fault_rename(const char *from, const char *to, unsigned int flags)
{
	if (flags != 0)
		return -EINVAL;
	return renameat(base, below(from), base, below(to)) == 0 ? 0 : -errno;
}

static int fault_mkdir(const char *path, mode_t mode)
{
	return mkdirat(base, below(path), mode) == 0 ? 0 : -errno;
}

static int fault_rmdir(const char *path)
{
	return unlinkat(base, below(path), AT_REMOVEDIR) == 0 ? 0 : -errno;
}

static const struct fuse_operations operations = {
	.getattr = fault_getattr,
	.readdir = fault_readdir,
	.open = fault_open,
	.create = fault_create,
	.release = fault_release,
	.read = fault_read,
	.write = fault_write,
	.fsync = fault_fsync,
	.truncate = fault_truncate,
	.fallocate = fault_fallocate,
	.unlink = fault_unlink,
	.rename = fault_rename,
	.mkdir = fault_mkdir,
	.rmdir = fault_rmdir,
};

int main(int argc, char **argv)
{
	char foreground[] = "-f";

	if (argc != 3 || (base = open(argv[1], O_RDONLY | O_DIRECTORY)) < 0) {
		fprintf(stderr, "usage: faultfs FOLDER MOUNTPOINT\n");
		return 2;
	}
	char *arguments[] = { argv[0], foreground, argv[2], NULL };

	prctl(PR_SET_PDEATHSIG, SIGTERM); /* a test that is killed leaves no mount behind */
	return fuse_main(3, arguments, &operations, NULL);
}
