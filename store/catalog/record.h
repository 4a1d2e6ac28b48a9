/* The records of the catalog's tables: the binary form of a block, and of other facts that a restart needs. */
#ifndef TERRACE_STORE_CATALOG_RECORD_H
#define TERRACE_STORE_CATALOG_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "store/slot.h"
#include "store/status.h"

enum {
	BLOCK_RECORD_VERSION = 2, /* version 1 is decoded too: the same form, with keys and parents of at most 32
				   * bytes */
	LAYOUT_RECORD_VERSION = 1, TENANT_RECORD_VERSION = 1, DISK_RECORD_VERSION = 1,
	BOOT_RECORD_VERSION = 1,
	BLOCK_RECORD_ROLE_MAX = 127,
	RECORD_FOLDER_MAX = 1024,
	RECORD_KEY_MAX = 12 + SLOT_KEY_MAX,    /* the largest key of these records */
	RECORD_VALUE_MAX = 8 + RECORD_FOLDER_MAX, /* the largest value of these records */
};

/* The encoded form of any record. */
struct record {
	size_t key_bytes, value_bytes;
	uint8_t key[RECORD_KEY_MAX];
	uint8_t value[RECORD_VALUE_MAX];
};

/* One copy of a block on a disk. */
struct block_record {
	uint64_t layout_id;
	uint32_t tenant;               /* number of the table tenants */
	uint8_t key_bytes;             /* 1 .. SLOT_KEY_MAX */
	uint8_t key[SLOT_KEY_MAX];     /* zeroes behind the end, after decoding */

	uint64_t disk_id;
	uint32_t slab, slot;           /* slab from 1 */
	uint64_t generation;           /* from 1 */
	uint64_t slot_bytes;           /* multiple of 4096, more than SLOT_HEADER_BYTES, at most SLOT_BYTES_MAX */
	uint64_t stored_unix_ms;
	uint64_t position;
	uint32_t tokens;               /* from 1 */
	uint32_t turn;
	uint8_t role;                  /* 0 .. BLOCK_RECORD_ROLE_MAX */
	bool flushed;                  /* a Flush has acknowledged the block; stored as the top bit of the role's byte,
				        * which earlier versions do not use */
	uint8_t parent_bytes;          /* 0 .. SLOT_KEY_MAX; 0: the first of its chain */
	uint8_t parent[SLOT_KEY_MAX];  /* zeroes behind the end, after decoding */
};
enum status block_record_encode(const struct block_record *b, struct record *out);
/* The key of the record alone, as catalog_drop and catalog_get need it. Of *b it reads layout_id, tenant and the
 * key. */
enum status block_record_key(const struct block_record *b, uint8_t key[RECORD_KEY_MAX], size_t *key_bytes);
enum status block_record_decode(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
				struct block_record *out);

/* What the owner needs to recognise a layout; the bytes are the owner's. */
struct layout_record {
	uint64_t layout_id;
	uint64_t slot_bytes;           /* as above */
	uint32_t layout_bytes;         /* 0 .. SLOT_LAYOUT_MAX */
	uint8_t layout[SLOT_LAYOUT_MAX];
};
enum status layout_record_encode(const struct layout_record *l, struct record *out);
enum status layout_record_decode(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
				 struct layout_record *out);

/* The folder where a disk was last seen, for people; the disk's own id identifies it. */
struct disk_record {
	uint64_t disk_id;
	char folder[RECORD_FOLDER_MAX + 1]; /* 1 .. RECORD_FOLDER_MAX bytes */
};
enum status disk_record_encode(const struct disk_record *d, struct record *out);
enum status disk_record_decode(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
			       struct disk_record *out);

/* Numbers that each start increases. */
struct boot_record {
	uint64_t boots;                /* starts so far, from 1 */
	uint64_t generation_reserved;  /* no generation above it has been given out */
	uint64_t epoch;                /* the epoch of the last start */
};
enum status boot_record_encode(const struct boot_record *b, struct record *out);
enum status boot_record_decode(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
			       struct boot_record *out);

#endif
