/* The note of the run that used the disk last: 32 bytes, written in place. If the note is incomplete, missing or
 * another disk's, the run is not known; that costs the owner a scan and nothing else.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/slab/private.h"
#include "store/slot.h"
#include "store/shortage.h"

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
	const size_t got = disk_folder_read(&d->folder, "run", &r, sizeof(r));

	return got == sizeof(r) && r.magic == RUN_MAGIC && r.disk_id == d->folder.id && r.crc == record_crc(&r) ? r.run : 0;
}

enum status disk_run_set(struct disk *d, uint64_t run)
{
	struct run_record r = { .magic = RUN_MAGIC, .disk_id = d->folder.id, .run = run };
	char why[160], words[SHORTAGE_WORDS_MAX];
	int error;

	r.crc = record_crc(&r);
	if (disk_folder_write(&d->folder, "run", 0, &r, sizeof(r)) == 0 && disk_folder_sync(&d->folder) == 0)
		return STATUS_OK;
	error = unlinkat(d->folder.fd, "run", 0) == 0 || errno == ENOENT ? disk_folder_sync(&d->folder) : errno;
	if (error == 0)
		return STATUS_OK;
	snprintf(why, sizeof(why), "the run that uses it cannot be noted: %s", shortage_words(error, words, sizeof(words)));
	disk_quarantine(d, why);
	return STATUS_UNAVAILABLE;
}
