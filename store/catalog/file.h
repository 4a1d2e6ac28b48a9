/* The catalog's file: its contents, and how a file is made, opened and brought up from version 1. Private to
 * store/catalog.
 *
 * It has seven LMDB databases without flags: the main one names the six tables. A record of version 2 and later is the
 * owner's value with a CRC-32C behind it, little-endian, over the table's number (a byte), the key and the value. The
 * record "format" of the table meta is the version (32 bits) in the same form. Every later version keeps that form, so
 * that a newer file can be told from a damaged one. Version 1 has no CRC anywhere.
 *
 * A new file is written whole as FOLDER/new.mdb and then renamed: so a data.mdb that exists was once complete.
 *
 * Functions return what LMDB returns: 0, an errno, or an MDB_ code; catalog_file_status translates.
 */
#ifndef TERRACE_STORE_CATALOG_FILE_H
#define TERRACE_STORE_CATALOG_FILE_H

#include <lmdb.h>

#include "store/catalog/catalog.h"

#define CATALOG_FORMAT_KEY "format"
enum {
	CATALOG_FORMAT_KEY_BYTES = sizeof(CATALOG_FORMAT_KEY) - 1,
	CATALOG_CRC_BYTES = 4,
	CATALOG_READERS_MAX = 510,
};

struct catalog_file {
	MDB_env *env;
	MDB_dbi dbi[CATALOG_TABLES];
	uint32_t version;
};

extern const char *const catalog_table_name[CATALOG_TABLES];

/* The checksum that stands behind a value. */
uint32_t catalog_record_crc(enum catalog_table t, const MDB_val *key, const void *value, size_t value_bytes);

/* Checks a record. OK, with the size of the owner's value. CORRUPT: it is too short or too long for a record of
 * `version`, or its checksum is wrong. */
enum status catalog_record_check(uint32_t version, enum catalog_table t, const MDB_val *key, const MDB_val *value,
				 size_t *value_bytes);

/* Whether the record is the catalog's own ("format"), which its owner never sees. */
bool catalog_record_own(enum catalog_table t, const MDB_val *key);

/* Puts the record "format" for CATALOG_VERSION. */
int catalog_format_put(MDB_txn *txn, MDB_dbi meta);

/* The version in the table meta. OK, or CORRUPT: there is none or it is not sound. */
enum status catalog_format_read(MDB_txn *txn, MDB_dbi meta, uint32_t *version);

/* Opens the six tables; they must exist. The caller ends the transaction. */
int catalog_tables_open(MDB_txn *txn, MDB_dbi dbi[CATALOG_TABLES]);

/* Makes an empty catalog, in the place of any data.mdb. */
int catalog_file_make(const char *folder);

/* Rewrites a sound file of version 1 as CATALOG_VERSION. Records with longer values than are allowed are left out. */
int catalog_file_migrate(const char *folder);

/* Raises an open file of version 2 to CATALOG_VERSION. An older daemon refuses it from then on. */
int catalog_file_raise(struct catalog_file *f);

/* Opens a file that has been checked, for writing, and clears stale readers. map_bytes: the least size of the map; a
 * larger file has a larger map. */
int catalog_file_open(const char *folder, uint64_t map_bytes, struct catalog_file *out);
void catalog_file_close(struct catalog_file *f);

/* The status for a code. EXHAUSTED: no room on the disk or in the map, or no place for a reader. CORRUPT: LMDB met data
 * that it does not understand. IO: anything else. */
enum status catalog_file_status(int code);

/* LMDB returns EIO for a write that was cut short, whatever the cause. This finds the cause by a probe now (it writes
 * and removes a small file): the errno of the shortage, else EIO. */
int catalog_file_cut_short(const char *folder);

/* Writes a sentence for people: the cause, and what to do about it. Returns text. */
const char *catalog_file_words(int code, char *text, size_t bytes);

#endif
