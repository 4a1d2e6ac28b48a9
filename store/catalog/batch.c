/* Batches: the front of the queue as one LMDB transaction.
 *
 * Changes are sorted by table and key before they are applied, so that each page is found and copied once. Changes of
 * one key keep their order. Keys beyond the last key of a table are appended. The emptying of a table keeps its place:
 * the changes before it and those behind it are sorted separately.
 */
#include "store/catalog/inner.h"
#include "store/crash_point.h"

#include <stdlib.h>
#include <string.h>

static MDB_val key_of(const struct change *ch)
{
	return (MDB_val){ ch->key_bytes, change_data(ch) };
}

static int order_keys(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
	int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);

	return order != 0 ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static bool same_record(const struct change *a, const struct change *b)
{
	return a->table == b->table && a->key_bytes == b->key_bytes && memcmp(change_data(a), change_data(b), a->key_bytes) == 0;
}

static int order_changes(const void *left, const void *right)
{
	const struct change *a = *(const struct change *const *)left, *b = *(const struct change *const *)right;
	int order = (a->table > b->table) - (a->table < b->table);

	if (order == 0)
		order = order_keys(change_data(a), a->key_bytes, change_data(b), b->key_bytes);
	return order != 0 ? order : (a > b) - (a < b);
}

/* One table's part of a sorted run. */
struct table_run {
	MDB_cursor *cursor;
	enum catalog_table table;
	uint8_t last[CATALOG_KEY_MAX]; /* the table's last key before the run */
	size_t last_bytes;
};

static int table_run_open(struct catalog *c, MDB_txn *txn, enum catalog_table t, struct table_run *run)
{
	MDB_val key, value;
	int rc = mdb_cursor_open(txn, c->file.dbi[t], &run->cursor);

	if (rc != MDB_SUCCESS)
		return rc;
	run->table = t;
	run->last_bytes = 0;
	rc = mdb_cursor_get(run->cursor, &key, &value, MDB_LAST);
	if (rc == MDB_SUCCESS) {
		if (key.mv_size > sizeof(run->last))
			return MDB_CORRUPTED;
		memcpy(run->last, key.mv_data, key.mv_size);
		run->last_bytes = key.mv_size;
	}
	return rc == MDB_NOTFOUND ? MDB_SUCCESS : rc;
}

static int apply_put(struct table_run *run, const struct change *ch)
{
	MDB_val key = key_of(ch), value;
	uint8_t *data = change_data(ch) + ch->key_bytes;
	uint32_t crc = catalog_record_crc(run->table, &key, data, ch->value_bytes);
	bool behind = order_keys(key.mv_data, ch->key_bytes, run->last, run->last_bytes) > 0;

	memcpy(data + ch->value_bytes, &crc, sizeof(crc));
	value = (MDB_val){ ch->value_bytes + sizeof(crc), data };
	return mdb_cursor_put(run->cursor, &key, &value, behind ? MDB_APPEND : 0);
}

static int apply_drop(struct table_run *run, const struct change *ch)
{
	MDB_val key = key_of(ch), value;
	int rc = mdb_cursor_get(run->cursor, &key, &value, MDB_SET);

	if (rc == MDB_NOTFOUND)
		return MDB_SUCCESS;
	return rc == MDB_SUCCESS ? mdb_cursor_del(run->cursor, 0) : rc;
}

static int apply_sorted(struct catalog *c, MDB_txn *txn, size_t n)
{
	struct table_run run = { .cursor = NULL };
	int rc = MDB_SUCCESS;

	qsort(c->order, n, sizeof(c->order[0]), order_changes);
	for (size_t i = 0; i < n && rc == MDB_SUCCESS; i++) {
		const struct change *ch = c->order[i];

		/* Of several changes of one key only the last has an effect. */
		if (i + 1 < n && same_record(ch, c->order[i + 1]))
			continue;
		if (!run.cursor || run.table != ch->table) {
			if (run.cursor)
				mdb_cursor_close(run.cursor);
			run.cursor = NULL;
			rc = table_run_open(c, txn, (enum catalog_table)ch->table, &run);
		}
		if (rc == MDB_SUCCESS)
			rc = ch->what == CHANGE_PUT ? apply_put(&run, ch) : apply_drop(&run, ch);
	}
	if (run.cursor)
		mdb_cursor_close(run.cursor);
	return rc;
}

static int apply_empty(struct catalog *c, MDB_txn *txn, enum catalog_table t)
{
	int rc = mdb_drop(txn, c->file.dbi[t], 0);

	CRASH_POINT("catalog_empty");
	return rc == MDB_SUCCESS && t == CATALOG_META ? catalog_format_put(txn, c->file.dbi[t]) : rc;
}

static int apply(struct catalog *c, MDB_txn *txn, struct change_queue *q, size_t *to, uint64_t *changes)
{
	uint64_t most = c->pages <= CATALOG_BATCH_MOST_PAGES ? CATALOG_BATCH_MOST : CATALOG_BATCH_CHANGES, done = 0;
	size_t at = q->applied, n = 0;
	int rc = MDB_SUCCESS;

	while (rc == MDB_SUCCESS && at < q->used && done < most &&
	       at - q->applied < CATALOG_BATCH_BYTES) {
		const struct change *ch = (const struct change *)(const void *)(q->at + at);

		at += ch->bytes;
		done += ch->what != CHANGE_FLUSH;
		if (ch->what == CHANGE_EMPTY) {
			rc = apply_sorted(c, txn, n);
			n = 0;
			if (rc == MDB_SUCCESS)
				rc = apply_empty(c, txn, (enum catalog_table)ch->table);
		} else if (ch->what != CHANGE_FLUSH) {
			c->order[n++] = ch;
		}
	}
	if (rc == MDB_SUCCESS)
		rc = apply_sorted(c, txn, n);
	*to = at;
	*changes = done;
	return rc;
}

static int apply_once(struct catalog *c, struct change_queue *q, size_t *to, uint64_t *changes)
{
	MDB_txn *txn;
	int rc;

	if (!c->file.env)
		return MDB_PANIC;
	rc = mdb_txn_begin(c->file.env, NULL, 0, &txn);
	if (rc != MDB_SUCCESS)
		return rc;
	CRASH_POINT("catalog_begin");
	rc = apply(c, txn, q, to, changes);
	CRASH_POINT("catalog_applied");
	if (rc == MDB_SUCCESS)
		return mdb_txn_commit(txn);
	mdb_txn_abort(txn);
	return rc;
}

int catalog_batch_apply(struct catalog *c, struct change_queue *q, size_t *to, uint64_t *changes)
{
	bool reopened = false;
	int rc;

	for (;;) {
		rc = apply_once(c, q, to, changes);
		if (rc == MDB_MAP_FULL) {
			rc = catalog_map_grow(c);
		} else if (rc == MDB_PANIC && !reopened) {
			reopened = true;
			rc = catalog_map_reopen(c);
		} else {
			return rc;
		}
		if (rc != MDB_SUCCESS)
			return rc;
	}
}

int catalog_map_grow(struct catalog *c)
{
	MDB_envinfo info;
	uint64_t bytes;
	int rc;

	mdb_env_info(c->file.env, &info);
	bytes = info.me_mapsize;
	if (bytes >= c->options.map_bytes_max)
		return MDB_MAP_FULL;
	bytes = bytes > c->options.map_bytes_max / 2 ? c->options.map_bytes_max : 2 * bytes;
	CRASH_POINT("catalog_grow");
	pthread_rwlock_wrlock(&c->map);
	rc = mdb_env_set_mapsize(c->file.env, bytes);
	if (rc != MDB_SUCCESS) { /* LMDB has unmapped the file, and readers would not know. If it cannot be opened
				  * either, there is none until a batch can */
		catalog_file_close(&c->file);
		(void)catalog_file_open(c->folder, info.me_mapsize, &c->file);
	}
	pthread_rwlock_unlock(&c->map);
	if (rc == MDB_SUCCESS) {
		pthread_mutex_lock(&c->mutex);
		c->view.map_grown++;
		pthread_mutex_unlock(&c->mutex);
	}
	return rc;
}

int catalog_map_reopen(struct catalog *c)
{
	int rc;

	pthread_rwlock_wrlock(&c->map);
	catalog_file_close(&c->file);
	rc = catalog_file_open(c->folder, c->options.map_bytes, &c->file);
	pthread_rwlock_unlock(&c->map);
	return rc;
}
