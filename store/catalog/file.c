/* The catalog's file: making, opening, migrating. */
#include "store/catalog/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/slot.h"
#include "store/crash_point.h"
#include "store/shortage.h"

enum { MIGRATE_RECORDS = 50000, FILE_BYTES_LEAST = 1 << 20, PROBE_PAGE = 4096, PROBE_PAGES = 16, LOCK_BYTES = 64 << 10 };

const char *const catalog_table_name[CATALOG_TABLES] = { "blocks", "edges", "layouts", "tenants", "slabs", "meta" };

enum status catalog_file_status(int code)
{
	switch (code) {
	case MDB_SUCCESS:
		return STATUS_OK;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
	case MDB_MAP_FULL:
	case MDB_READERS_FULL:
		return STATUS_EXHAUSTED;
	case MDB_CORRUPTED:
	case MDB_PAGE_NOTFOUND:
	case MDB_INVALID:
	case MDB_VERSION_MISMATCH:
		return STATUS_CORRUPT;
	default:
		return STATUS_IO;
	}
}

static int path_in(const char *folder, const char *name, char path[PATH_MAX])
{
	int n = snprintf(path, PATH_MAX, "%s/%s", folder, name);

	return n > 0 && n < PATH_MAX ? 0 : ENAMETOOLONG;
}

/* Whether data.mdb is as large as the limit on file sizes allows. */
static bool is_limited(const char *folder)
{
	struct rlimit limit;
	char path[PATH_MAX];
	struct stat st;

	return !getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && !path_in(folder, "data.mdb", path) && !stat(path, &st) &&
	       (uint64_t)st.st_size + PROBE_PAGE > limit.rlim_cur;
}

static int probe(int fd)
{
	static const char bytes[PROBE_PAGE] = "not zeroes, which a file system may leave out";

	for (int i = 0; i < PROBE_PAGES; i++) {
		const ssize_t n = write(fd, bytes, sizeof(bytes));

		if (n < 0)
			return errno;
	}
	return fsync(fd) ? errno : 0;
}

int catalog_file_cut_short(const char *folder)
{
	char path[PATH_MAX];
	int fd, error;

	if (is_limited(folder))
		return EFBIG;
	if (path_in(folder, "probe", path))
		return EIO;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	error = fd < 0 ? errno : probe(fd);
	if (fd >= 0) {
		unlink(path);
		close(fd);
	}
	return shortage_is(error) || error == EROFS ? error : EIO;
}

const char *catalog_file_words(int code, char *text, size_t bytes)
{
	if (code > 0)
		return shortage_words(code, text, bytes);
	if (code == MDB_MAP_FULL)
		snprintf(text, bytes, "it is as large as it may be: store fewer or larger blocks on the disks");
	else
		snprintf(text, bytes, "%s", mdb_strerror(code));
	return text;
}

uint32_t catalog_record_crc(enum catalog_table t, const MDB_val *key, const void *value, size_t value_bytes)
{
	uint8_t number = (uint8_t)t;
	uint32_t crc = slot_crc32c(0, &number, 1);

	crc = slot_crc32c(crc, key->mv_data, key->mv_size);
	return slot_crc32c(crc, value, value_bytes);
}

enum status catalog_record_check(uint32_t version, enum catalog_table t, const MDB_val *key, const MDB_val *value,
				 size_t *value_bytes)
{
	size_t tail = version == 1 ? 0 : CATALOG_CRC_BYTES, n;
	uint32_t crc;

	if (key->mv_size < 1 || key->mv_size > CATALOG_KEY_MAX || value->mv_size < tail ||
	    value->mv_size - tail > CATALOG_VALUE_MAX)
		return STATUS_CORRUPT;
	n = value->mv_size - tail;
	if (tail != 0) {
		memcpy(&crc, (const uint8_t *)value->mv_data + n, sizeof(crc));
		if (crc != catalog_record_crc(t, key, value->mv_data, n))
			return STATUS_CORRUPT;
	}
	*value_bytes = n;
	return STATUS_OK;
}

bool catalog_record_own(enum catalog_table t, const MDB_val *key)
{
	return t == CATALOG_META && key->mv_size == CATALOG_FORMAT_KEY_BYTES &&
	       memcmp(key->mv_data, CATALOG_FORMAT_KEY, CATALOG_FORMAT_KEY_BYTES) == 0;
}

int catalog_format_put(MDB_txn *txn, MDB_dbi meta)
{
	uint32_t record[2] = { CATALOG_VERSION, 0 };
	MDB_val key = { CATALOG_FORMAT_KEY_BYTES, CATALOG_FORMAT_KEY }, value = { sizeof(record), record };

	record[1] = catalog_record_crc(CATALOG_META, &key, record, sizeof(record[0]));
	return mdb_put(txn, meta, &key, &value, 0);
}

enum status catalog_format_read(MDB_txn *txn, MDB_dbi meta, uint32_t *version)
{
	MDB_val key = { CATALOG_FORMAT_KEY_BYTES, CATALOG_FORMAT_KEY }, value;
	uint32_t record[2];

	if (mdb_get(txn, meta, &key, &value) != MDB_SUCCESS)
		return STATUS_CORRUPT;
	/* Version 1 is recognised by the record's size: so a flipped bit cannot make a checksum pass for data. */
	if (value.mv_size == sizeof(record[0])) {
		memcpy(record, value.mv_data, sizeof(record[0]));
		if (record[0] != 1)
			return STATUS_CORRUPT;
		*version = 1;
		return STATUS_OK;
	}
	if (value.mv_size != sizeof(record))
		return STATUS_CORRUPT;
	memcpy(record, value.mv_data, sizeof(record));
	if (record[0] < 2 || record[1] != catalog_record_crc(CATALOG_META, &key, record, sizeof(record[0])))
		return STATUS_CORRUPT;
	*version = record[0];
	return STATUS_OK;
}

static int tables_open(MDB_txn *txn, unsigned flags, MDB_dbi dbi[CATALOG_TABLES])
{
	for (int t = 0; t < CATALOG_TABLES; t++) {
		int rc = mdb_dbi_open(txn, catalog_table_name[t], flags, &dbi[t]);

		if (rc != MDB_SUCCESS)
			return rc;
	}
	return MDB_SUCCESS;
}

int catalog_tables_open(MDB_txn *txn, MDB_dbi dbi[CATALOG_TABLES])
{
	return tables_open(txn, 0, dbi);
}

static int env_open(const char *path, unsigned flags, uint64_t map_bytes, MDB_env **out)
{
	MDB_env *env;
	int rc = mdb_env_create(&env);

	if (rc != MDB_SUCCESS)
		return rc;
	rc = mdb_env_set_maxdbs(env, CATALOG_TABLES);
	if (rc == MDB_SUCCESS)
		rc = mdb_env_set_maxreaders(env, CATALOG_READERS_MAX);
	if (rc == MDB_SUCCESS && map_bytes != 0)
		rc = mdb_env_set_mapsize(env, map_bytes);
	if (rc == MDB_SUCCESS)
		rc = mdb_env_open(env, path, flags | MDB_NOTLS, 0600);
	if (rc != MDB_SUCCESS) {
		mdb_env_close(env);
		return rc;
	}
	*out = env;
	return MDB_SUCCESS;
}

/* FOLDER/new.mdb with empty tables, not committed yet. */
static int draft_open(const char *path, uint64_t map_bytes, struct catalog_file *f, MDB_txn **txn)
{
	int rc;

	if (unlink(path) != 0 && errno != ENOENT)
		return errno;
	CRASH_POINT("draft_open");
	rc = env_open(path, MDB_NOSUBDIR | MDB_NOLOCK, map_bytes, &f->env);
	if (rc != MDB_SUCCESS)
		return rc;
	rc = mdb_txn_begin(f->env, NULL, 0, txn);
	if (rc == MDB_SUCCESS) {
		rc = tables_open(*txn, MDB_CREATE, f->dbi);
		if (rc == MDB_SUCCESS)
			rc = catalog_format_put(*txn, f->dbi[CATALOG_META]);
		if (rc == MDB_SUCCESS)
			return MDB_SUCCESS;
		mdb_txn_abort(*txn);
	}
	mdb_env_close(f->env);
	return rc;
}

/* Renames the finished draft to data.mdb. */
static int draft_publish(const char *folder, const char *draft)
{
	char path[PATH_MAX];
	int fd, code = path_in(folder, "data.mdb", path);

	if (code != 0)
		return code;
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	CRASH_POINT("draft_rename");
	if (rename(draft, path) != 0 || fsync(fd) != 0)
		code = errno;
	CRASH_POINT("draft_renamed");
	close(fd);
	return code;
}

int catalog_file_make(const char *folder)
{
	struct catalog_file f;
	char path[PATH_MAX];
	MDB_txn *txn;
	int rc = path_in(folder, "new.mdb", path);

	if (rc == 0)
		rc = draft_open(path, FILE_BYTES_LEAST, &f, &txn);
	if (rc != MDB_SUCCESS)
		return rc;
	rc = mdb_txn_commit(txn);
	mdb_env_close(f.env);
	CRASH_POINT("draft_committed");
	return rc == MDB_SUCCESS ? draft_publish(folder, path) : rc;
}

/* The state of a migration. It uses transactions of bounded size, in a file that no process reads yet. */
struct migration {
	struct catalog_file to;
	MDB_txn *txn;
	uint32_t in_txn;
};

static int migrate_record(struct migration *m, enum catalog_table t, MDB_val *key, const MDB_val *value)
{
	uint8_t record[CATALOG_VALUE_MAX + CATALOG_CRC_BYTES];
	MDB_val out = { 0, record };
	uint32_t crc;
	size_t n;
	int rc;

	if (catalog_record_own(t, key) || catalog_record_check(1, t, key, value, &n) != STATUS_OK)
		return MDB_SUCCESS;
	memcpy(record, value->mv_data, n);
	crc = catalog_record_crc(t, key, record, n);
	memcpy(record + n, &crc, sizeof(crc));
	out.mv_size = n + sizeof(crc);
	/* Meta has its "format" already: its few records cannot all be appended. */
	rc = mdb_put(m->txn, m->to.dbi[t], key, &out, t == CATALOG_META ? 0 : MDB_APPEND);
	if (rc != MDB_SUCCESS || ++m->in_txn < MIGRATE_RECORDS)
		return rc;
	m->in_txn = 0;
	rc = mdb_txn_commit(m->txn);
	m->txn = NULL;
	return rc == MDB_SUCCESS ? mdb_txn_begin(m->to.env, NULL, 0, &m->txn) : rc;
}

static int migrate_table(struct migration *m, enum catalog_table t, MDB_txn *from, MDB_dbi dbi)
{
	MDB_cursor *cursor;
	MDB_val key, value;
	int rc = mdb_cursor_open(from, dbi, &cursor);

	if (rc != MDB_SUCCESS)
		return rc;
	while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == MDB_SUCCESS) {
		rc = migrate_record(m, t, &key, &value);
		if (rc != MDB_SUCCESS)
			break;
	}
	mdb_cursor_close(cursor);
	return rc == MDB_NOTFOUND ? MDB_SUCCESS : rc;
}

static int migrate_tables(struct migration *m, MDB_env *from)
{
	MDB_dbi dbi[CATALOG_TABLES];
	MDB_txn *txn;
	int rc = mdb_txn_begin(from, NULL, MDB_RDONLY, &txn);

	if (rc != MDB_SUCCESS)
		return rc;
	rc = catalog_tables_open(txn, dbi);
	for (int t = 0; t < CATALOG_TABLES && rc == MDB_SUCCESS; t++)
		rc = migrate_table(m, (enum catalog_table)t, txn, dbi[t]);
	mdb_txn_abort(txn);
	return rc;
}

int catalog_file_migrate(const char *folder)
{
	struct migration m = { 0 };
	char draft[PATH_MAX];
	MDB_env *from;
	MDB_envinfo info;
	int rc = path_in(folder, "new.mdb", draft);

	if (rc == 0)
		rc = env_open(folder, MDB_RDONLY | MDB_NOLOCK, 0, &from);
	if (rc != MDB_SUCCESS)
		return rc;
	mdb_env_info(from, &info);
	/* The new file needs four more bytes a record and has full pages: twice the old size is enough. */
	rc = draft_open(draft, 2 * (uint64_t)(info.me_last_pgno + 1) * 4096 + FILE_BYTES_LEAST, &m.to, &m.txn);
	if (rc == MDB_SUCCESS) {
		rc = migrate_tables(&m, from);
		if (rc == MDB_SUCCESS)
			rc = mdb_txn_commit(m.txn);
		else if (m.txn)
			mdb_txn_abort(m.txn);
		mdb_env_close(m.to.env);
	}
	mdb_env_close(from);
	return rc == MDB_SUCCESS ? draft_publish(folder, draft) : rc;
}

int catalog_file_raise(struct catalog_file *f)
{
	MDB_txn *txn;
	int rc = mdb_txn_begin(f->env, NULL, 0, &txn);

	if (rc != MDB_SUCCESS)
		return rc;
	rc = catalog_format_put(txn, f->dbi[CATALOG_META]);
	if (rc != MDB_SUCCESS) {
		mdb_txn_abort(txn);
		return rc;
	}
	rc = mdb_txn_commit(txn);
	if (rc == MDB_SUCCESS)
		f->version = CATALOG_VERSION;
	return rc;
}

/* LMDB maps lock.mdb and writes to it: a page that finds no room on a full file system would end the process with
 * SIGBUS. */
static int lock_file_fill(const char *folder)
{
	char path[PATH_MAX];
	int fd, rc = path_in(folder, "lock.mdb", path);

	if (rc != 0)
		return rc;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno;
	do
		rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, LOCK_BYTES) ? errno : 0;
	while (rc == EINTR);
	close(fd);
	return shortage_is(rc) ? rc : 0; /* else the file system has no such call */
}

int catalog_file_open(const char *folder, uint64_t map_bytes, struct catalog_file *out)
{
	struct catalog_file f = { 0 };
	MDB_txn *txn;
	int dead, rc = lock_file_fill(folder);

	if (rc == 0)
		rc = env_open(folder, 0, map_bytes, &f.env);
	if (rc != MDB_SUCCESS)
		return rc;
	mdb_reader_check(f.env, &dead);
	rc = mdb_txn_begin(f.env, NULL, 0, &txn);
	if (rc != MDB_SUCCESS)
		goto fail;
	rc = catalog_tables_open(txn, f.dbi);
	if (rc == MDB_SUCCESS && catalog_format_read(txn, f.dbi[CATALOG_META], &f.version) != STATUS_OK)
		rc = MDB_CORRUPTED;
	if (rc != MDB_SUCCESS) {
		mdb_txn_abort(txn);
		goto fail;
	}
	/* Handles of tables outlive only a transaction that is committed. */
	rc = mdb_txn_commit(txn);
	if (rc != MDB_SUCCESS)
		goto fail;
	*out = f;
	return MDB_SUCCESS;
fail:
	mdb_env_close(f.env);
	return rc;
}

void catalog_file_close(struct catalog_file *f)
{
	if (f->env)
		mdb_env_close(f->env);
	f->env = NULL;
}
