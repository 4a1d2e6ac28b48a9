/* The words of a progress page, and the promises that wait for them; see progress_page.h. The daemon's GPU writes the
 * words, this process's GPU reads them, and this file reads them too.
 */
#include "client/memory/progress_page.h"

#include "client/memory/mapping.h"
#include "proto/fdsock.h"

#include <stddef.h>

void client_progress_page_init(struct client_progress_page *progress_page)
{
	pthread_mutex_init(&progress_page->lock, NULL);
}

void client_progress_page_fini(struct client_progress_page *progress_page)
{
	pthread_mutex_destroy(&progress_page->lock);
}

/* ---- words
 * --------------------------------------------------------------------------------------------------------- */

static _Atomic uint32_t *word_of(const struct client_progress_page *progress_page, const struct client_promise *p)
{
	return (_Atomic uint32_t *)progress_page->mapping->base + p->word;
}

/* Copies that the daemon promised did not come, and words are reached without them: it has lost the GPU, or the driver
 * had no memory for them. Once so, always so: the daemon makes this attachment no other promise for that GPU. */
static bool failed(const struct client_progress_page *progress_page, const struct client_promise *p)
{
	return atomic_load_explicit(word_of(progress_page, p) + FDSOCK_PROGRESS_PAGE_FAILED, memory_order_acquire) != 0;
}

static bool word_reached(const _Atomic uint32_t *word, uint32_t value)
{
	return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - value) >= 0;
}

/* Whether the promise's copies and checksums have come, so that no stream waits for it. Acquires what was written
 * before the word. */
static bool reached(const struct client_progress_page *progress_page, const struct client_promise *p)
{
	const _Atomic uint32_t *word = word_of(progress_page, p);

	return word_reached(word, p->base + p->layers) && (!p->summed ||
	    word_reached(word + FDSOCK_PROGRESS_PAGE_SUMMED, p->base + p->layers));
}

static bool kept(const struct client_progress_page *progress_page, const struct client_promise *p)
{
	return reached(progress_page, p) && !failed(progress_page, p);
}

static void promise_break(struct client_promise *p, enum terrace_status why)
{
	int none = 0;

	atomic_compare_exchange_strong(&p->broken, &none, (int)why);
}

void client_promise_link(struct client_progress_page *b, struct client_promise *p)
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

/* ---- promises ---- */

bool client_progress_page_reached(const struct client_progress_page *progress_page, const struct client_promise *p)
{
	return kept(progress_page, p);
}

void client_progress_page_forget(struct client_progress_page *b, struct client_promise *p)
{
	pthread_mutex_lock(&b->lock);
	if (p->link)
		promise_unlink(p);
	pthread_mutex_unlock(&b->lock);
}

uint64_t client_progress_page_address(const struct client_progress_page *progress_page, const struct client_promise *p,
				      uint32_t g)
{
	return progress_page->mapping->registered[g] + p->word * sizeof(uint32_t);
}

uint64_t client_progress_page_sums_address(const struct client_progress_page *progress_page,
				   const struct client_promise *p, uint32_t layer,
				   uint32_t g)
{
	if (!p->summed || word_reached(word_of(progress_page, p) + FDSOCK_PROGRESS_PAGE_SUMMED, p->base + layer + 1))
		return 0;
	return client_progress_page_address(progress_page, p, g) + FDSOCK_PROGRESS_PAGE_SUMMED * sizeof(uint32_t);
}

/* Takes promises that are kept off the list. */
static void promises_sift(struct client_progress_page *b)
{
	for (struct client_promise *p = b->promises, *next; p; p = next) {
		next = p->next;
		if (!p->broken && kept(b, p))
			promise_unlink(p);
	}
}

/* Moves a word on to the value, and never back. Where one word has not come this far, the other may be further, for
 * later promises. */
static void word_move(_Atomic uint32_t *word, uint32_t value)
{
	if (!word_reached(word, value))
		atomic_store_explicit(word, value, memory_order_release);
}

/* Moves the words on to what broken promises wait for. On the way there a word passes what others wait for, whose
 * copies come no later: all of these are broken before any word moves. Broken ones stay on the list: a copy that was
 * thought lost could move its word back. */
static void words_move(struct client_progress_page *b)
{
	for (struct client_promise *p = b->promises; p; p = p->next)
		for (struct client_promise *q = b->promises; p->broken && q; q = q->next)
			if (q->word == p->word && (int32_t)(p->base + p->layers - q->base - q->layers) >= 0)
				promise_break(q, (enum terrace_status)p->broken);
	for (struct client_promise *p = b->promises; p; p = p->next)
		if (p->broken) {
			if (p->summed)
				word_move(word_of(b, p) + FDSOCK_PROGRESS_PAGE_SUMMED, p->base + p->layers);
			word_move(word_of(b, p), p->base + p->layers);
		}
}

bool client_progress_page_close(struct client_progress_page *b)
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

bool client_progress_page_closed(struct client_progress_page *b)
{
	bool closed;

	pthread_mutex_lock(&b->lock);
	closed = b->closed;
	pthread_mutex_unlock(&b->lock);
	return closed;
}

bool client_progress_page_kept(struct client_progress_page *b, const struct client_promise *p)
{
	bool yes;

	pthread_mutex_lock(&b->lock);
	yes = !b->closed && !p->broken && (!p->link || kept(b, p));
	pthread_mutex_unlock(&b->lock);
	return yes;
}

bool client_progress_page_look(struct client_progress_page *b,
		       enum terrace_status (*broken_by)(const struct client_promise *p, void *arg), void *arg)
{
	promises_sift(b);
	for (struct client_promise *p = b->promises; p; p = p->next) {
		enum terrace_status why = broken_by(p, arg);

		if (!why && failed(b, p))
			why = TERRACE_UNAVAILABLE;
		if (why)
			promise_break(p, why);
	}
	words_move(b);
	return b->promises != NULL;
}
