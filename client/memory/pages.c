/* Writable pages; see memory/pages.h.
 *
 * For the kernel each run of writable pages is a mapping of its own, and by default a process may have 65530 of them.
 * So pages are opened and closed in pieces of 2 MiB where slots are scattered and the runs of all of the process's
 * memory have become many. A session that opens many runs in a short time, each some microseconds, also opens pieces.
 */
#include "client/memory/pages.h"

#include "client/value/clock.h"
#include "client/value/status.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	BORDERS_MANY = 8192, /* between writable pages and others, in all memory: from there on by pieces */
	RUNS_MANY = 64,      /* opened between two calls of client_pages_rest() */
	PIECE_BYTES = 2 << 20,
	RESTS = 3, /* calls that find a page unused before it is closed: the first comes at any time after its use */
};

/* A page's state: */
enum { CLOSED = 0, OPEN = 1 }; /* and OPEN + n: unused at so many calls */

struct client_pages {
	uint8_t *base;
	uint32_t page_bytes, count, open;
	uint32_t opened; /* runs, since the last call of client_pages_rest() */
	uint32_t quiet; /* calls of client_pages_rest() in a row, RESTS at most, since a use has begun or ended */
	int borders;
	uint16_t *users; /* [count] */
	uint8_t *state;  /* [count] */
};

static atomic_int borders;

struct client_pages *client_pages_create(uint8_t *base, uint64_t bytes, uint32_t page_bytes)
{
	const uint64_t count = bytes / page_bytes;
	struct client_pages *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->base = base;
	p->page_bytes = page_bytes;
	p->count = (uint32_t)count;
	p->users = calloc(count, sizeof(*p->users));
	p->state = calloc(count, sizeof(*p->state));
	if (p->users && p->state)
		return p;
	client_pages_destroy(p);
	return NULL;
}

void client_pages_destroy(struct client_pages *p)
{
	if (!p)
		return;
	atomic_fetch_sub(&borders, p->borders);
	free(p->users);
	free(p->state);
	free(p);
}

/* Whether page i and the one before it differ. */
static int border(const struct client_pages *p, uint32_t i)
{
	return i > 0 && i < p->count && !p->state[i - 1] != !p->state[i];
}

static void mark(struct client_pages *p, uint32_t i, uint8_t state)
{
	const int before = border(p, i) + border(p, i + 1);

	p->open += !p->state[i];
	p->open -= !state;
	p->state[i] = state;
	p->borders += border(p, i) + border(p, i + 1) - before;
}

/* Changes the protection of pages from .. to - 1, in the kernel and in the record. 0 or an errno. */
static int run_set(struct client_pages *p, uint32_t from, uint32_t to, bool writable)
{
	const int before = p->borders, may = writable ? PROT_READ | PROT_WRITE : PROT_READ;

	if (mprotect(p->base + (size_t)from * p->page_bytes, (size_t)(to - from) * p->page_bytes, may))
		return errno;
	for (uint32_t i = from; i < to; i++)
		if (!p->state[i] == writable)
			mark(p, i, writable ? OPEN : CLOSED);
	atomic_fetch_add(&borders, p->borders - before);
	return 0;
}

static uint32_t page_behind(const struct client_pages *p, uint64_t offset)
{
	return (uint32_t)((offset + p->page_bytes - 1) / p->page_bytes);
}

/* The number of pages that are opened or closed together. */
static uint32_t unit(const struct client_pages *p)
{
	const bool many = atomic_load(&borders) > BORDERS_MANY || p->opened > RUNS_MANY;

	return many && p->page_bytes < PIECE_BYTES ? PIECE_BYTES / p->page_bytes : 1;
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static enum terrace_status run_open(struct client_pages *p, uint32_t from, uint32_t to)
{
	const uint32_t u = unit(p);
	const int error = run_set(p, from / u * u, lesser((to + u - 1) / u * u, p->count), true);

	p->opened++;
	if (!error)
		return TERRACE_OK;
	return client_fail(error == EACCES ? TERRACE_DENIED : TERRACE_EXHAUSTED, "making reserved slots writable: %s%s",
			   strerror(error),
			   error == ENOMEM ? ": this process has too many mappings: raise vm.max_map_count" : "");
}

enum terrace_status client_pages_open(struct client_pages *p, uint64_t offset, uint64_t bytes)
{
	const uint32_t first = (uint32_t)(offset / p->page_bytes), end = page_behind(p, offset + bytes);
	enum terrace_status status = TERRACE_OK;

	p->quiet = 0;
	for (uint32_t i = first; i < end; i++)
		if (p->users[i] == UINT16_MAX)
			return client_fail(TERRACE_EXHAUSTED, "too many reservations in one page of memory: "
					   "commit or abort some");
	for (uint32_t i = first, to; i < end && !status; i = to) {
		for (to = i + 1; to < end && !p->state[to] == !p->state[i]; to++)
			continue;
		if (!p->state[i])
			status = run_open(p, i, to);
	}
	for (uint32_t i = first; i < end && !status; i++) {
		p->users[i]++;
		p->state[i] = OPEN;
	}
	return status;
}

void client_pages_leave(struct client_pages *p, uint64_t offset, uint64_t bytes)
{
	const uint32_t end = page_behind(p, offset + bytes);

	p->quiet = 0;
	for (uint32_t i = (uint32_t)(offset / p->page_bytes); i < end; i++)
		p->users[i]--;
}

/* Notes that one more call has found the page unused. */
static void page_rest(struct client_pages *p, uint32_t i, enum client_rest how)
{
	if (!p->state[i] || p->users[i])
		return;
	if (how == CLIENT_REST_NOW)
		p->state[i] = OPEN + RESTS;
	else if (p->state[i] < OPEN + RESTS)
		p->state[i]++;
}

static bool may_close(const struct client_pages *p, uint32_t i)
{
	return p->state[i] == OPEN + RESTS && !p->users[i];
}

/* Closes a run of pages, in pieces where writable pages stay beside it, as a border comes about there. What the kernel
 * cannot close now, since it would have to divide a mapping, is tried again. */
static void run_close(struct client_pages *p, uint32_t from, uint32_t to)
{
	const uint32_t u = unit(p);

	if (from > 0 && !border(p, from))
		from = (from + u - 1) / u * u;
	if (to < p->count && !border(p, to))
		to = to / u * u;
	if (from < to)
		run_set(p, from, to, false);
}

/* Whether more pages may be closed now. */
static bool may_go_on(const struct client_pages *p, enum client_rest how, uint64_t until_us)
{
	return how == CLIENT_REST_NOW || p->quiet == RESTS || client_now_us() < until_us;
}

bool client_pages_rest(struct client_pages *p, enum client_rest how, uint64_t until_us)
{
	p->quiet += p->quiet < RESTS;
	p->opened = 0;
	for (uint32_t i = 0; i < p->count && p->open; i++)
		page_rest(p, i, how);
	for (uint32_t i = 0, to; i < p->count && p->open; i = to) {
		for (to = i; to < p->count && may_close(p, to); to++)
			continue;
		if (to == i)
			to++;
		else if (may_go_on(p, how, until_us))
			run_close(p, i, to);
		else
			break;
	}
	return p->open;
}
