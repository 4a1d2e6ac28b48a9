/* Any bytes as a catalog's file. The proof of its pages must not read beside them; and what it finds
 * sound, LMDB must be able to walk and to write, to its last page. Each record of it is decoded as
 * what its table should hold. */
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "store/catalog/record.h"
#include "store/catalog/file.h"
#include "store/catalog/pages.h"
#include "tests/held_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64];

static void folder_remove(void)
{
	static const char *const names[] = { "data.mdb", "lock.mdb" };
	char path[PATH_MAX];

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		unlink(path);
	}
	rmdir(folder);
}

static void file_write(const uint8_t *data, size_t size)
{
	char path[PATH_MAX];
	int fd;

	if (folder[0] == 0) {
		if (!held_folder_make(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", folder, sizeof(folder)))
			abort();
		atexit(folder_remove);
	}
	snprintf(path, sizeof(path), "%s/data.mdb", folder);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	close(fd);
}

static void decode(enum catalog_table t, const MDB_val *k, const void *value, size_t n)
{
	struct layout_record layout;
	struct block_record block;
	struct boot_record boot;
	struct disk_record disk;
	struct record again;

	switch (t) {
	case CATALOG_BLOCKS:
		if (block_record_decode(k->mv_data, k->mv_size, value, n, &block) != STATUS_OK)
			break;
		if (*(const uint8_t *)value != BLOCK_RECORD_VERSION)
			break; /* of a version that is no longer written */
		/* What decodes has one form only. */
		if (block_record_encode(&block, &again) != STATUS_OK || again.key_bytes != k->mv_size ||
		    again.value_bytes != n || memcmp(again.key, k->mv_data, k->mv_size) != 0 ||
		    memcmp(again.value, value, n) != 0)
			abort();
		break;
	case CATALOG_LAYOUTS:
		layout_record_decode(k->mv_data, k->mv_size, value, n, &layout);
		break;
	case CATALOG_SLABS:
		disk_record_decode(k->mv_data, k->mv_size, value, n, &disk);
		break;
	default:
		boot_record_decode(k->mv_data, k->mv_size, value, n, &boot);
	}
}

static void walk(struct catalog_file *f, MDB_txn *txn, enum catalog_table t)
{
	MDB_cursor *cursor;
	MDB_val key, value;
	size_t n;

	if (mdb_cursor_open(txn, f->dbi[t], &cursor) != MDB_SUCCESS)
		abort();
	while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == MDB_SUCCESS) {
		if (catalog_record_check(f->version, t, &key, &value, &n) == STATUS_OK)
			decode(t, &key, value.mv_data, n);
		/* Checksums hide what a record may say. */
		decode(t, &key, value.mv_data, value.mv_size);
	}
	mdb_cursor_close(cursor);
}

static void write_all(struct catalog_file *f, unsigned round)
{
	uint8_t key[12] = "key         ", value[300];
	MDB_val k = { sizeof(key), key }, v = { sizeof(value), value };
	MDB_txn *txn;

	memset(value, 'v', sizeof(value));
	if (mdb_txn_begin(f->env, NULL, 0, &txn) != MDB_SUCCESS)
		return;
	for (unsigned i = 0; i < 40; i++) {
		key[i % sizeof(key)] = (uint8_t)(i * 37 + round);
		mdb_put(txn, f->dbi[i % CATALOG_TABLES], &k, &v, 0);
	}
	for (int t = 0; round == 1 && t < CATALOG_TABLES; t++)
		mdb_drop(txn, f->dbi[t], 0);
	mdb_txn_commit(txn);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct catalog_file f;
	MDB_txn *txn;

	if (catalog_pages_problem(data, size) != NULL || size < 8192 || data[20] != 1)
		return 0;
	file_write(data, size);
	if (catalog_file_open(folder, 4 << 20, &f) != MDB_SUCCESS)
		return 0;
	if (mdb_txn_begin(f.env, NULL, MDB_RDONLY, &txn) == MDB_SUCCESS) {
		for (int t = 0; t < CATALOG_TABLES; t++)
			walk(&f, txn, (enum catalog_table)t);
		mdb_txn_abort(txn);
	}
	for (unsigned round = 0; round < 4; round++)
		write_all(&f, round);
	catalog_file_close(&f);
	return 0;
}
