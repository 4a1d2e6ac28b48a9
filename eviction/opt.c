/* Belady's optimum over a trace. A max-heap orders the present blocks by the request that next asks for them, the
 * deepest first among equals. The heap is lazy: an entry whose block has been used since, or has left, is dropped when
 * it comes to the top.
 */
#include <stdlib.h>

#include "eviction/replay.h"

struct entry {
	uint32_t next;     /* request; UINT32_MAX: never */
	uint32_t position;
	uint32_t block;
};

struct opt {
	const struct trace *trace;
	struct entry *heap;
	uint64_t entries, entries_max;
	uint32_t *next;    /* [block]: when it is used again, while it is there; 0: it is not */
	uint32_t *later;   /* [index in trace->blocks]: the next request with that block */
	uint64_t used;
};

static bool after(const struct entry *a, const struct entry *b)
{
	return a->next != b->next ? a->next > b->next : a->position > b->position;
}

static bool push(struct opt *o, struct entry e)
{
	uint64_t at = o->entries;

	if (o->entries == o->entries_max) {
		uint64_t max = o->entries_max ? 2 * o->entries_max : 4096;
		struct entry *heap = realloc(o->heap, max * sizeof(*heap));

		if (!heap)
			return false;
		o->heap = heap;
		o->entries_max = max;
	}
	o->entries++;
	for (; at > 0 && after(&e, &o->heap[(at - 1) / 2]); at = (at - 1) / 2)
		o->heap[at] = o->heap[(at - 1) / 2];
	o->heap[at] = e;
	return true;
}

static void pop(struct opt *o)
{
	struct entry e = o->heap[--o->entries];
	uint64_t at = 0, child;

	while ((child = 2 * at + 1) < o->entries) {
		if (child + 1 < o->entries && after(&o->heap[child + 1], &o->heap[child]))
			child++;
		if (!after(&o->heap[child], &e))
			break;
		o->heap[at] = o->heap[child];
		at = child;
	}
	if (o->entries)
		o->heap[at] = e;
}

/* The present block whose next use is furthest away. A pinned block's new entry is pushed only after its request, so
 * its old one is stale and it is not found. */
static struct entry *furthest(struct opt *o)
{
	while (o->entries && o->next[o->heap[0].block] != o->heap[0].next)
		pop(o);
	return o->entries ? &o->heap[0] : NULL;
}

static bool prepare(struct opt *o, const struct trace *t)
{
	uint32_t *last = malloc(((uint64_t)t->unique + 1) * sizeof(*last));

	o->trace = t;
	o->next = calloc((uint64_t)t->unique + 1, sizeof(*o->next));
	o->later = malloc((t->block_count + 1) * sizeof(*o->later));
	if (!last || !o->next || !o->later) {
		free(last);
		return false;
	}
	for (uint32_t b = 0; b < t->unique; b++)
		last[b] = UINT32_MAX;
	for (uint32_t i = t->request_count; i-- > 0;) {
		const struct trace_request *r = &t->requests[i];

		for (uint64_t at = r->first + r->count; at-- > r->first;)
			o->later[at] = last[t->blocks[at]];
		for (uint64_t at = r->first; at < r->first + r->count; at++)
			last[t->blocks[at]] = i;
	}
	free(last);
	return true;
}

static uint32_t hits(const struct opt *o, const struct trace_request *r)
{
	uint32_t n = 0;

	while (n < r->count && o->next[o->trace->blocks[r->first + n]])
		n++;
	return n;
}

/* Serves the blocks of a request from its head on. Decisions go into next[] at once, and into the heap in the end. */
static bool serve(struct opt *o, const struct trace_request *r, uint64_t capacity, bool bypass,
		  struct replay_result *out)
{
	const uint32_t *blocks = o->trace->blocks + r->first;
	const uint32_t *later = o->later + r->first;
	uint32_t kept = 0;

	/* Present blocks get their new time first. That makes their entries stale and so pins them. */
	for (uint32_t i = 0; i < r->count; i++)
		if (o->next[blocks[i]])
			o->next[blocks[i]] = later[i];
	for (; kept < r->count; kept++) {
		struct entry *e;

		if (o->next[blocks[kept]])
			continue;
		if (o->used == capacity) {
			e = furthest(o);
			if (!e || (bypass && e->next <= later[kept]))
				break;
			o->next[e->block] = 0;
			pop(o);
			o->used--;
			out->evicted++;
		} else if (bypass && later[kept] == UINT32_MAX) {
			break;
		}
		o->used++;
		o->next[blocks[kept]] = later[kept];
	}
	out->refused += r->count - kept;
	for (uint32_t i = 0; i < r->count; i++)
		if (o->next[blocks[i]] && !push(o, (struct entry){ later[i], i, blocks[i] }))
			return false;
	return true;
}

enum status replay_opt(const struct trace *t, bool bypass, const struct replay_options *options,
		       struct replay_result *out)
{
	uint32_t to = options->to ? options->to : t->request_count;
	struct replay_result result = { 0 };
	struct opt o = { 0 };
	enum status s = STATUS_EXHAUSTED;

	if (options->capacity == 0)
		return STATUS_INVALID;
	if (!prepare(&o, t))
		goto done;
	for (uint32_t i = 0; i < t->request_count; i++) {
		const struct trace_request *r = &t->requests[i];

		if (i >= options->from && i < to)
			replay_count(&result, t, r, hits(&o, r), options->growth);
		if (!serve(&o, r, options->capacity, bypass, &result))
			goto done;
	}
	*out = result;
	s = STATUS_OK;
done:
	free(o.heap);
	free(o.next);
	free(o.later);
	return s;
}
