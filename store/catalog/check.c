/* The child's work: reading a catalog whose file may have any contents.
 *
 * The file is read to its end first. Then its pages are checked without LMDB (catalog/pages.h). Then LMDB walks every
 * record, and the checksums are compared. The process may die on the way (SIGBUS, an assertion of LMDB) or be killed
 * for taking too long: the parent takes that as damage.
 */
#include "store/catalog/catalog.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/catalog/file.h"
#include "store/catalog/pages.h"

enum verdict { SOUND = 0, DAMAGED = 1, NEWER = 2, UNKNOWN = 3 };

__attribute__((format(printf, 2, 3))) static int say(enum verdict v, const char *form, ...)
{
	va_list args;

	va_start(args, form);
	vfprintf(stderr, form, args);
	va_end(args);
	fputc('\n', stderr);
	return v;
}

/* Reads the file once from front to end. So an unreadable sector is distinguished from wrong bytes, and the pages are
 * read into memory in the order of the disk. */
static int read_through(int fd, const char *path)
{
	static char chunk[1 << 20];
	ssize_t n;

	while ((n = read(fd, chunk, sizeof(chunk))) > 0)
		continue;
	return n == 0 ? SOUND : say(UNKNOWN, "%s: %s", path, strerror(errno));
}

static int check_pages(int fd, const char *path, size_t bytes)
{
	const char *problem;
	void *file;

	if (bytes == 0)
		return say(DAMAGED, "%s: empty", path);
	file = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		return say(UNKNOWN, "%s: %s", path, strerror(errno));
	problem = catalog_pages_problem(file, bytes);
	munmap(file, bytes);
	if (!problem)
		return SOUND;
	return say(problem == catalog_pages_no_memory ? UNKNOWN : DAMAGED, "%s", problem);
}

static int check_file(const char *folder)
{
	char path[PATH_MAX];
	struct stat st;
	int fd, code;

	if (snprintf(path, sizeof(path), "%s/data.mdb", folder) >= (int)sizeof(path))
		return say(UNKNOWN, "catalog: the folder's name is too long");
	fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return say(errno == ELOOP ? DAMAGED : UNKNOWN, "%s: %s", path, strerror(errno));
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		close(fd);
		return say(DAMAGED, "%s: not a regular file", path);
	}
	code = read_through(fd, path);
	if (code == SOUND)
		code = check_pages(fd, path, (size_t)st.st_size);
	close(fd);
	return code;
}

static bool key_rises(const uint8_t *last, size_t last_bytes, const MDB_val *key)
{
	size_t n = last_bytes < key->mv_size ? last_bytes : key->mv_size;
	int order = memcmp(last, key->mv_data, n);

	return order < 0 || (order == 0 && last_bytes < key->mv_size);
}

static int walk_table(MDB_cursor *cursor, enum catalog_table t, uint32_t version, size_t entries)
{
	uint8_t last[CATALOG_KEY_MAX];
	size_t last_bytes = 0, n, seen = 0;
	MDB_val key, value;
	int rc;

	while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == MDB_SUCCESS) {
		if (catalog_record_check(version, t, &key, &value, &n) != STATUS_OK)
			return say(DAMAGED, "catalog: record %zu of table %s is damaged", seen, catalog_table_name[t]);
		if (!key_rises(last, last_bytes, &key))
			return say(DAMAGED, "catalog: the keys of table %s do not rise", catalog_table_name[t]);
		memcpy(last, key.mv_data, key.mv_size);
		last_bytes = key.mv_size;
		if (++seen > entries)
			break;
	}
	if (rc != MDB_SUCCESS && rc != MDB_NOTFOUND)
		return say(DAMAGED, "catalog: table %s: %s", catalog_table_name[t], mdb_strerror(rc));
	if (seen != entries)
		return say(DAMAGED, "catalog: table %s has not as many records as it says", catalog_table_name[t]);
	return SOUND;
}

static int check_table(MDB_txn *txn, MDB_dbi dbi, enum catalog_table t, uint32_t version)
{
	MDB_cursor *cursor;
	MDB_stat stat;
	unsigned flags;
	int code;

	if (mdb_dbi_flags(txn, dbi, &flags) != MDB_SUCCESS || flags != 0 || mdb_stat(txn, dbi, &stat) != MDB_SUCCESS)
		return say(DAMAGED, "catalog: table %s is of another kind", catalog_table_name[t]);
	if (mdb_cursor_open(txn, dbi, &cursor) != MDB_SUCCESS)
		return say(UNKNOWN, "catalog: no memory");
	code = walk_table(cursor, t, version, stat.ms_entries);
	mdb_cursor_close(cursor);
	return code;
}

static int check_all(MDB_txn *txn)
{
	MDB_dbi dbi[CATALOG_TABLES], names;
	MDB_stat stat;
	uint32_t version;
	int code = SOUND, rc = mdb_dbi_open(txn, catalog_table_name[CATALOG_META], 0, &dbi[CATALOG_META]);

	if (rc != MDB_SUCCESS)
		return say(DAMAGED, "catalog: not a catalog, or damaged: no table meta: %s", mdb_strerror(rc));
	if (catalog_format_read(txn, dbi[CATALOG_META], &version) != STATUS_OK)
		return say(DAMAGED, "catalog: the format version is missing or damaged");
	if (version > CATALOG_VERSION)
		return say(NEWER, "catalog: version %u, newer than %u", version, (unsigned)CATALOG_VERSION);
	rc = catalog_tables_open(txn, dbi);
	if (rc != MDB_SUCCESS)
		return say(DAMAGED, "catalog: a table is missing or damaged: %s", mdb_strerror(rc));
	if (mdb_dbi_open(txn, NULL, 0, &names) != MDB_SUCCESS || mdb_stat(txn, names, &stat) != MDB_SUCCESS ||
	    stat.ms_entries != CATALOG_TABLES)
		return say(DAMAGED, "catalog: there are other tables than a catalog has");
	for (int t = 0; t < CATALOG_TABLES && code == SOUND; t++)
		code = check_table(txn, dbi[t], (enum catalog_table)t, version);
	return code;
}

static int check_open(const char *folder)
{
	MDB_env *env;
	MDB_txn *txn;
	int code, rc = mdb_env_create(&env);

	if (rc != MDB_SUCCESS)
		return say(UNKNOWN, "catalog: %s", mdb_strerror(rc));
	mdb_env_set_maxdbs(env, CATALOG_TABLES);
	rc = mdb_env_open(env, folder, MDB_RDONLY | MDB_NOLOCK | MDB_NOTLS, 0600);
	if (rc == MDB_SUCCESS)
		rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn);
	if (rc == MDB_SUCCESS) {
		code = check_all(txn);
		mdb_txn_abort(txn);
	} else if (rc == EACCES || rc == EPERM || rc == EMFILE || rc == ENFILE) {
		code = say(UNKNOWN, "catalog: %s", mdb_strerror(rc));
	} else {
		code = say(DAMAGED, "catalog: LMDB cannot open it: %s", mdb_strerror(rc));
	}
	mdb_env_close(env);
	return code;
}

int catalog_check(const char *folder)
{
	struct rlimit none = { 0, 0 };
	int code;

	/* The process may die of bad data as part of its task, so it leaves no core file. It must not outlive its
	 * parent. */
	setrlimit(RLIMIT_CORE, &none);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	code = check_file(folder);
	return code == SOUND ? check_open(folder) : code;
}
