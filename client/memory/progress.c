/* Boards and promises; see memory/progress.h. The words are written by the daemon's GPU, read by this process's, and looked at here. */
#include "client/memory/progress.h"

#include "client/gpu/stream_thread.h"
#include "client/value/clock.h"
#include "client/memory/attachment.h"
#include "client/value/status.h"

#include <stddef.h>

enum { PROMISE_WAIT_US = 30 * 1000000 }; /* what copies may take: all of a GPU's memory is filled from the host in a few seconds */

void client_board_init(struct client_board *board)
{
	pthread_mutex_init(&board->lock, NULL);
}

void client_board_fini(struct client_board *board)
{
	pthread_mutex_destroy(&board->lock);
}

enum terrace_status client_board_open(struct client_attachment *a, uint32_t g, uint64_t deadline_us)
{
	struct client_mapping *m;
	enum terrace_status status;
	bool first;

	pthread_mutex_lock(&a->board.lock);
	m = a->board.mapping;
	pthread_mutex_unlock(&a->board.lock);
	if (!m) {
		status = client_fds_map(a, FDSOCK_EXTENT_BOARD, true, deadline_us, &m);
		if (status)
			return client_fail_in(status, "the board");
		if (m->gpu != FDSOCK_NO_GPU || m->bytes < FDSOCK_BOARD_WORDS * sizeof(uint32_t)) {
			client_fds_unmap(a, m);
			return client_fail(TERRACE_INTERNAL, "the daemon's board is no page of host memory: "
					   "daemon and library are of different versions");
		}
		pthread_mutex_lock(&a->board.lock);
		first = !a->board.mapping;
		a->board.mapping = m;
		pthread_mutex_unlock(&a->board.lock);
		if (!first)
			client_fds_unmap(a, m); /* another thread was faster: one use is enough */
	}
	return client_fds_register(a, m, g, deadline_us);
}

/* ---- words --------------------------------------------------------------------------------------------------------- */

static _Atomic uint32_t *word_of(const struct client_board *board, const struct client_promise *p)
{
	return (_Atomic uint32_t *)board->mapping->base + p->word;
}

/* Copies that the daemon promised did not come, and words are reached without them: it has lost the GPU, or the driver had no memory for
 * them. Once so, always so: the daemon makes this attachment no other promise for that GPU. */
static bool failed(const struct client_board *board, const struct client_promise *p)
{
	return atomic_load_explicit(word_of(board, p) + FDSOCK_BOARD_FAILED, memory_order_acquire) != 0;
}

static bool word_reached(const _Atomic uint32_t *word, uint32_t value)
{
	return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - value) >= 0;
}

/* No stream waits for it. Acquires what was written before the word. */
static bool reached(const struct client_board *board, const struct client_promise *p)
{
	const _Atomic uint32_t *word = word_of(board, p);

	return word_reached(word, p->base + p->layers) && (!p->summed || word_reached(word + FDSOCK_BOARD_SUMMED, p->base + p->layers));
}

static bool kept(const struct client_board *board, const struct client_promise *p)
{
	return reached(board, p) && !failed(board, p);
}

static void promise_break(struct client_promise *p, enum terrace_status why)
{
	int none = 0;

	atomic_compare_exchange_strong(&p->broken, &none, (int)why);
}

static void promise_link(struct client_board *b, struct client_promise *p)
{
	b->watched = true;
	p->next = b->promises;
	p->link = &b->promises;
	if (p->next)
		p->next->link = &p->next;
	b->promises = p;
}

static void promise_unlink(struct client_promise *p)
{
	*p->link = p->next;
	if (p->next)
		p->next->link = p->link;
	p->link = NULL;
}

/* ---- promises ------------------------------------------------------------------------------------------------------ */

enum terrace_status client_board_promise(struct client_attachment *a, uint32_t g, struct client_promise *p)
{
	struct client_board *b = &a->board;
	enum terrace_status status = client_lent_gpu(&a->memory, g, &p->gpu);

	if (status)
		return status;
	if (p->word >= (p->summed ? FDSOCK_BOARD_SUMMED : FDSOCK_BOARD_FAILED))
		return client_fail(TERRACE_INTERNAL, "the daemon's board has no word %u: "
				   "daemon and library are of different versions", p->word);
	p->until_us = client_deadline_us(PROMISE_WAIT_US);
	pthread_mutex_lock(&b->lock);
	if (b->closed) {
		pthread_mutex_unlock(&b->lock);
		return client_fail(TERRACE_CANCELLED, "the session is closed: open another one");
	}
	if (kept(b, p)) {
		pthread_mutex_unlock(&b->lock);
		return TERRACE_OK;
	}
	/* With the lock: no other promise relies on a watch that does not come about. */
	status = b->watched ? TERRACE_OK : client_after_watch(a);
	if (!status)
		promise_link(b, p);
	pthread_mutex_unlock(&b->lock);
	return status;
}

void client_board_forget(struct client_board *b, struct client_promise *p)
{
	pthread_mutex_lock(&b->lock);
	if (p->link)
		promise_unlink(p);
	pthread_mutex_unlock(&b->lock);
}

uint64_t client_board_address(struct client_attachment *a, const struct client_promise *p, uint32_t g)
{
	return a->board.mapping->registered[g] + p->word * sizeof(uint32_t);
}

uint64_t client_board_sums_address(struct client_attachment *a, const struct client_promise *p, uint32_t layer, uint32_t g)
{
	if (!p->summed || word_reached(word_of(&a->board, p) + FDSOCK_BOARD_SUMMED, p->base + layer + 1))
		return 0;
	return client_board_address(a, p, g) + FDSOCK_BOARD_SUMMED * sizeof(uint32_t);
}

/* Takes kept ones off the list. */
static void promises_sift(struct client_board *b)
{
	for (struct client_promise *p = b->promises, *next; p; p = next) {
		next = p->next;
		if (!p->broken && kept(b, p))
			promise_unlink(p);
	}
}

/* Not back: where the one word has not come this far, the other may be further, for promises behind this one. */
static void word_move(_Atomic uint32_t *word, uint32_t value)
{
	if (!word_reached(word, value))
		atomic_store_explicit(word, value, memory_order_release);
}

/* Moves the words on to what broken promises wait for. On the way there a word passes what others wait for, whose copies come no
 * later: all of these are broken before any word moves. Broken ones stay on the list: a copy that was thought lost could move its
 * word back. */
static void words_move(struct client_board *b)
{
	for (struct client_promise *p = b->promises; p; p = p->next)
		for (struct client_promise *q = b->promises; p->broken && q; q = q->next)
			if (q->word == p->word && (int32_t)(p->base + p->layers - q->base - q->layers) >= 0)
				promise_break(q, (enum terrace_status)p->broken);
	for (struct client_promise *p = b->promises; p; p = p->next)
		if (p->broken) {
			if (p->summed)
				word_move(word_of(b, p) + FDSOCK_BOARD_SUMMED, p->base + p->layers);
			word_move(word_of(b, p), p->base + p->layers);
		}
}

bool client_board_close(struct client_board *b)
{
	bool broken;

	pthread_mutex_lock(&b->lock);
	b->closed = true;
	if (b->promises)
		promises_sift(b);
	for (struct client_promise *p = b->promises; p; p = p->next)
		promise_break(p, TERRACE_CANCELLED);
	words_move(b);
	broken = b->promises != NULL;
	while (b->promises)
		promise_unlink(b->promises);
	pthread_mutex_unlock(&b->lock);
	return broken;
}

bool client_board_closed(struct client_board *b)
{
	bool closed;

	pthread_mutex_lock(&b->lock);
	closed = b->closed;
	pthread_mutex_unlock(&b->lock);
	return closed;
}

bool client_board_kept(struct client_board *b, const struct client_promise *p)
{
	bool yes;

	pthread_mutex_lock(&b->lock);
	yes = !b->closed && !p->broken && (!p->link || kept(b, p));
	pthread_mutex_unlock(&b->lock);
	return yes;
}

/* With the lock. */
static void look(struct client_board *b, bool gone, uint64_t now)
{
	promises_sift(b);
	for (struct client_promise *p = b->promises; p; p = p->next) {
		if (gone)
			promise_break(p, TERRACE_STALE);
		else if (now > p->until_us || client_gpu_was_lost(p->gpu) || failed(b, p))
			promise_break(p, TERRACE_UNAVAILABLE);
	}
	words_move(b);
}

bool client_board_watch(struct client_attachment *a)
{
	bool gone = client_fds_gone(a), more;
	struct client_board *b = &a->board;

	pthread_mutex_lock(&b->lock);
	look(b, gone, client_now_us());
	more = b->promises != NULL;
	b->watched = more;
	pthread_mutex_unlock(&b->lock);
	return more;
}

enum terrace_status client_board_state(struct client_attachment *a, struct client_promise *p)
{
	enum terrace_status broken;
	bool listed, gone;

	if (!p->layers)
		return TERRACE_OK;
	gone = client_fds_gone(a);
	pthread_mutex_lock(&a->board.lock);
	look(&a->board, gone, client_now_us());
	broken = (enum terrace_status)atomic_load(&p->broken);
	listed = p->link; /* what is off the list was kept, or the session is closed */
	pthread_mutex_unlock(&a->board.lock);
	switch (broken) {
	case TERRACE_OK:
		return listed ? client_fail(TERRACE_BUSY, "copies to the GPU are under way: wait for them, or ask again") : TERRACE_OK;
	case TERRACE_STALE:
		return client_fail(broken, "the daemon ended before the copies to the GPU were complete: open the session and lease again");
	case TERRACE_CANCELLED:
		return client_fail(broken, "the session was closed before the copies to the GPU were complete: release leases first");
	default:
		return client_fail(broken, "the GPU was lost, or its copies failed, were wrong or took too long: "
				   "compute those blocks (the daemon's log says which it was)");
	}
}
