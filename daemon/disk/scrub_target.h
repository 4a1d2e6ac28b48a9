/* A copy on a disk that is to be read and checked. */
#ifndef TERRACE_DAEMON_DISK_SCRUB_TARGET_H
#define TERRACE_DAEMON_DISK_SCRUB_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "store/slab/disk.h"

struct block;

/* Where the copy of a block was while the lock was held. */
struct scrub_target {
	struct disk *disk;
	struct disk_place place;
	bool known;                    /* header_crc is the CRC of the header there */
	uint32_t header_crc;
};

struct scrub_target scrub_target_of(const struct block *b);

#endif
