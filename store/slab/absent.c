/* The list of disks that were not in use while this one was: a file with a checksum, replaced as a whole. Older
 * versions do not know the file and leave it alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "store/slab/private.h"
#include "store/slot.h"

#define ABSENT_MAGIC 0x3153424144435254ull /* "TRCDABS1" */

struct absent_record {
	uint64_t magic;
	uint32_t count;
	uint32_t crc;              /* CRC-32C of the `count` ids */
	uint64_t ids[DISK_ABSENT_MAX];
};

_Static_assert(sizeof(struct absent_record) == 16 + 8 * DISK_ABSENT_MAX, "disk format");

static size_t record_bytes(uint32_t count)
{
	return offsetof(struct absent_record, ids) + count * sizeof(uint64_t);
}

uint32_t disk_absent(const struct disk *d, uint64_t ids[DISK_ABSENT_MAX])
{
	struct absent_record r = { .magic = 0 };
	const size_t got = disk_folder_read(&d->folder, "absent", &r, sizeof(r));

	if (got < record_bytes(0) || r.magic != ABSENT_MAGIC || r.count > DISK_ABSENT_MAX ||
	    got != record_bytes(r.count) || r.crc != slot_crc32c(0, r.ids, r.count * sizeof(r.ids[0])))
		return 0;
	memcpy(ids, r.ids, r.count * sizeof(ids[0]));
	return r.count;
}

/* Returns an errno. */
static int record_write(const struct disk_folder *f, const struct absent_record *r)
{
	int error = disk_folder_write(f, "absent.new", O_TRUNC, r, record_bytes(r->count));

	if (error == 0 && renameat(f->fd, "absent.new", f->fd, "absent") != 0)
		error = errno;
	return error != 0 ? error : disk_folder_sync(f);
}

enum status disk_absent_set(struct disk *d, const uint64_t *ids, uint32_t count)
{
	struct absent_record r = { .magic = ABSENT_MAGIC, .count = count < DISK_ABSENT_MAX ? count : DISK_ABSENT_MAX };

	memcpy(r.ids, ids, r.count * sizeof(ids[0]));
	r.crc = slot_crc32c(0, r.ids, r.count * sizeof(r.ids[0]));
	return record_write(&d->folder, &r) ? STATUS_IO : STATUS_OK;
}
