/* The catalog's file: what is in it, how one is made, opened and brought up from version 1. Private to
 * store/catalog*.c.
 *
 * Seven LMDB databases without flags: the six tables, named in the main one. A record of version 2 is
 * the owner's value with a CRC-32C behind it, little-endian, over the table's number (a byte), the key
 * and the value. The record "format" of the table meta is the version (32 bits) in the same form; that
 * form is kept by every later version, so that a newer file can be told from a damaged one. Version 1
 * has no CRC anywhere.
 *
 * A new file is written as FOLDER/new.mdb, whole, and then renamed: a file that is there was finished
 * once.
 *
 * Functions return what LMDB returns: 0, an errno, or an MDB_ code; catalog_file_status translates. */
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

/* OK with the size of the owner's value, or CORRUPT: too short or too long for a record of `version`,
 * or its checksum. */
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

/* An empty catalog, in the place of whatever data.mdb there is. */
int catalog_file_make(const char *folder);

/* Rewrites a sound file of version 1 as CATALOG_VERSION. Records longer than a value may be are left
 * behind. */
int catalog_file_migrate(const char *folder);

/* Makes an open file of version 2 one of CATALOG_VERSION: an older daemon refuses it from then on. */
int catalog_file_raise(struct catalog_file *f);

/* Opens a file that has been checked, for writing, and clears stale readers. map_bytes: at least; the
 * file's size counts. */
int catalog_file_open(const char *folder, uint64_t map_bytes, struct catalog_file *out);
void catalog_file_close(struct catalog_file *f);

/* EXHAUSTED: no room on the disk or in the map, or no reader's place. CORRUPT: LMDB met what it does not
 * understand. IO: the rest. */
enum status catalog_file_status(int code);

/* LMDB says EIO of a write that was cut short, whatever cut it. The errno of the shortage that did, as a probe finds it now (a small file, written
 * and removed), else EIO. */
int catalog_file_cut_short(const char *folder);

/* For people: the cause, and what to do about it. Returns text. */
const char *catalog_file_words(int code, char *text, size_t bytes);

#endif
