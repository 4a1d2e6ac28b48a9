/* Readers of the catalog in other processes: a backup by mdb_copy, an operator with mdb_stat.
 *
 * LMDB reuses no page that a reader may still see. A killed reader leaves its place in the table of readers, and pages
 * that changed since then are not reused. So its place is cleared here. A live reader is left alone. It is reported
 * when it has seen the same state for long and the file has grown meanwhile. LMDB tells which state (a transaction's
 * number) a reader sees, but not since when. So the numbers of the last looks are kept: a reader is at least as old as
 * the first look that found a newer state than its own.
 */
#include "store/catalog/inner.h"

#include <stdio.h>
#include <unistd.h>

/* Of the readers in other processes, the one with the oldest state. */
struct oldest {
	int pid; /* 0: none */
	size_t state;
};

/* A line of mdb_reader_list: pid, thread, number; "-" for one that reads nothing now. */
static int on_reader(const char *line, void *arg)
{
	struct oldest *o = arg;
	size_t thread, state;
	int pid;

	if (sscanf(line, "%d %zx %zu", &pid, &thread, &state) == 3 && pid != getpid() && (!o->pid || state < o->state))
		*o = (struct oldest){ pid, state };
	return 0;
}

/* The first look that found a newer state, or NULL. */
static const struct catalog_look_at *outdated(const struct catalog_readers *r, size_t state)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (r->looks[i].state > state)
			return &r->looks[i];
	return NULL;
}

static void note(struct catalog_readers *r, uint64_t now, size_t state, uint64_t used)
{
	if (r->count > 0 && now - r->looks[r->count - 1].ns < r->old_ns / (CATALOG_LOOKS_KEPT - 2))
		return;
	if (r->count == CATALOG_LOOKS_KEPT) {
		r->count--;
		for (uint32_t i = 0; i < r->count; i++)
			r->looks[i] = r->looks[i + 1];
	}
	r->looks[r->count++] = (struct catalog_look_at){ now, state, used };
}

static void tell(struct catalog *c, uint64_t now, int cleared, uint64_t used)
{
	const struct catalog_readers *r = &c->readers;
	const bool old = r->pid != 0 && now - r->since.ns >= r->old_ns;

	pthread_mutex_lock(&c->mutex);
	c->view.readers_cleared += cleared > 0 ? (uint64_t)cleared : 0;
	c->view.reader_pid = old ? r->pid : 0;
	c->view.reader_us = old ? (now - r->since.ns) / 1000 : 0;
	c->view.reader_grown_bytes = old && used > r->since.used ? used - r->since.used : 0;
	pthread_mutex_unlock(&c->mutex);
}

void catalog_readers_look(struct catalog *c, uint64_t now)
{
	struct catalog_readers *r = &c->readers;
	struct oldest o = { .pid = 0 };
	const struct catalog_look_at *since;
	MDB_envinfo info;
	MDB_stat stat;
	int cleared = 0;

	r->due_ns = now + r->every_ns;
	if (!c->file.env)
		return;
	mdb_reader_check(c->file.env, &cleared);
	mdb_reader_list(c->file.env, on_reader, &o);
	mdb_env_info(c->file.env, &info);
	mdb_env_stat(c->file.env, &stat);
	const uint64_t used = (uint64_t)(info.me_last_pgno + 1) * stat.ms_psize;

	note(r, now, info.me_last_txnid, used);
	since = o.pid ? outdated(r, o.state) : NULL;
	if (since && (r->pid != o.pid || r->state != o.state))
		r->since = *since;
	r->pid = since ? o.pid : 0;
	r->state = o.state;
	tell(c, now, cleared, used);
}
