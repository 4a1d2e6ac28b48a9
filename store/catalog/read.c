/* Reading the catalog: each call has a snapshot of its own. */
#include "store/catalog/inner.h"

#include <string.h>

/* A read-only transaction, with the map held still until read_end. */
static enum status read_begin(struct catalog *c, MDB_txn **txn)
{
	int rc;

	pthread_rwlock_rdlock(&c->map);
	rc = c->file.env ? mdb_txn_begin(c->file.env, NULL, MDB_RDONLY, txn) : MDB_PANIC;
	if (rc == MDB_SUCCESS)
		return STATUS_OK;
	pthread_rwlock_unlock(&c->map);
	return catalog_file_status(rc);
}

static void read_end(struct catalog *c, MDB_txn *txn)
{
	mdb_txn_abort(txn);
	pthread_rwlock_unlock(&c->map);
}

static enum status get(struct catalog *c, MDB_txn *txn, enum catalog_table t, MDB_val *key, void *value,
		       size_t *value_bytes)
{
	MDB_val found;
	size_t n;
	int rc = mdb_get(txn, c->file.dbi[t], key, &found);

	if (rc == MDB_NOTFOUND)
		return STATUS_MISS;
	if (rc != MDB_SUCCESS)
		return catalog_file_status(rc);
	if (catalog_record_check(c->file.version, t, key, &found, &n) != STATUS_OK)
		return STATUS_CORRUPT;
	if (n > *value_bytes)
		return STATUS_INVALID;
	memcpy(value, found.mv_data, n);
	*value_bytes = n;
	return STATUS_OK;
}

enum status catalog_get(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes, void *value,
			size_t *value_bytes)
{
	MDB_val k = { key_bytes, (void *)(uintptr_t)key };
	enum status s;
	MDB_txn *txn;

	if ((unsigned)t >= CATALOG_TABLES || key_bytes < 1 || key_bytes > CATALOG_KEY_MAX)
		return STATUS_INVALID;
	s = read_begin(c, &txn);
	if (s != STATUS_OK)
		return s;
	s = get(c, txn, t, &k, value, value_bytes);
	read_end(c, txn);
	return s;
}

enum status catalog_walk(struct catalog *c, enum catalog_table t,
			 bool (*visit)(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes),
			 void *arg, uint64_t *damaged)
{
	return catalog_walk_from(c, t, NULL, 0, visit, arg, damaged);
}

enum status catalog_walk_from(struct catalog *c, enum catalog_table t, const void *from, size_t from_bytes,
			      bool (*visit)(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes),
			      void *arg, uint64_t *damaged)
{
	MDB_val key = { from_bytes, (void *)(uintptr_t)from }, value;
	MDB_cursor_op step = from_bytes > 0 ? MDB_SET_RANGE : MDB_NEXT;
	MDB_cursor *cursor = NULL;
	uint64_t bad = 0;
	enum status s;
	MDB_txn *txn;
	size_t n;
	int rc;

	if ((unsigned)t >= CATALOG_TABLES || from_bytes > CATALOG_KEY_MAX)
		return STATUS_INVALID;
	s = read_begin(c, &txn);
	if (s != STATUS_OK)
		return s;
	rc = mdb_cursor_open(txn, c->file.dbi[t], &cursor);
	for (; rc == MDB_SUCCESS && (rc = mdb_cursor_get(cursor, &key, &value, step)) == MDB_SUCCESS; step = MDB_NEXT) {
		if (catalog_record_own(t, &key))
			continue;
		if (catalog_record_check(c->file.version, t, &key, &value, &n) != STATUS_OK)
			bad++;
		else if (!visit(arg, key.mv_data, key.mv_size, value.mv_data, n))
			break;
	}
	if (cursor)
		mdb_cursor_close(cursor);
	read_end(c, txn);
	if (rc != MDB_SUCCESS && rc != MDB_NOTFOUND)
		return catalog_file_status(rc);
	if (damaged)
		*damaged = bad;
	return STATUS_OK;
}

void catalog_look(struct catalog *c, struct catalog_view *out)
{
	pthread_mutex_lock(&c->mutex);
	*out = c->view;
	pthread_mutex_unlock(&c->mutex);
}

void catalog_view_refresh(struct catalog *c)
{
	uint64_t records[CATALOG_TABLES], pages = 0;
	MDB_envinfo info;
	MDB_stat stat;
	MDB_txn *txn;
	bool counted;

	if (!c->file.env) /* it could not be opened again: the writer tries that with each batch */
		return;
	mdb_env_info(c->file.env, &info);
	mdb_env_stat(c->file.env, &stat);
	counted = mdb_txn_begin(c->file.env, NULL, MDB_RDONLY, &txn) == MDB_SUCCESS;
	if (counted) {
		for (int t = 0; t < CATALOG_TABLES; t++) {
			MDB_stat table;

			counted &= mdb_stat(txn, c->file.dbi[t], &table) == MDB_SUCCESS;
			if (!counted)
				break;
			records[t] = table.ms_entries - (t == CATALOG_META);
			pages += table.ms_branch_pages + table.ms_leaf_pages + table.ms_overflow_pages;
		}
		mdb_txn_abort(txn);
	}
	if (counted)
		c->pages = pages;
	pthread_mutex_lock(&c->mutex);
	c->view.map_bytes = info.me_mapsize;
	c->view.used_bytes = (uint64_t)(info.me_last_pgno + 1) * stat.ms_psize;
	if (counted)
		memcpy(c->view.records, records, sizeof(records));
	pthread_mutex_unlock(&c->mutex);
}
