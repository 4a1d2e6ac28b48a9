/* Which run used the disk last: 32 bytes, written in place. Half of them, another disk's, or none say that it is not known, which costs
 * whoever asks a scan and nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/crash_point.h"
#include "store/disk_private.h"

#define RUN_MAGIC 0x314e555244435254ull /* "TRCDRUN1" */

struct run_record {
	uint64_t magic, disk_id, run;
	uint32_t zero;
	uint32_t crc;              /* CRC-32C of what is before it */
};

_Static_assert(sizeof(struct run_record) == 32, "disk format");

static uint32_t record_crc(const struct run_record *r)
{
	return slot_crc32c(0, r, offsetof(struct run_record, crc));
}

uint64_t disk_run(const struct disk *d)
{
	struct run_record r = { .magic = 0 };
	int fd = openat(d->folder.fd, "run", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	ssize_t got;

	if (fd < 0)
		return 0;
	do
		got = pread(fd, &r, sizeof(r), 0);
	while (got < 0 && errno == EINTR);
	close(fd);
	return got == sizeof(r) && r.magic == RUN_MAGIC && r.disk_id == d->folder.id && r.crc == record_crc(&r) ? r.run : 0;
}

/* Returns an errno. */
static int record_write(const struct disk_folder *f, const struct run_record *r)
{
	int fd = openat(f->fd, "run", O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600), error = 0;
	ssize_t put;

	if (fd < 0)
		return errno;
	do
		put = pwrite(fd, r, sizeof(*r), 0);
	while (put < 0 && errno == EINTR);
	CRASH_POINT("run_written");
	if (put != sizeof(*r))
		error = put < 0 ? errno : ENOSPC;
	else if (fsync(fd) != 0)
		error = errno;
	close(fd);
	return error != 0 ? error : disk_folder_sync(f);
}

enum status disk_run_set(struct disk *d, uint64_t run)
{
	struct run_record r = { .magic = RUN_MAGIC, .disk_id = d->folder.id, .run = run };
	char why[96];
	int error;

	r.crc = record_crc(&r);
	if (record_write(&d->folder, &r) == 0)
		return STATUS_OK;
	error = unlinkat(d->folder.fd, "run", 0) == 0 || errno == ENOENT ? disk_folder_sync(&d->folder) : errno;
	if (error == 0)
		return STATUS_OK;
	snprintf(why, sizeof(why), "the run that uses it cannot be noted: %s", strerror(error));
	disk_quarantine(d, why);
	return STATUS_UNAVAILABLE;
}
