/* Grows the arrays by doubling; names are found through an open-addressed table that is never more than
 * half full. */
#include "eviction/trace.h"

#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/policy.h"

enum { REPORT_LOOKS = 1 << 14 };

struct name {
	uint64_t id;
	uint32_t number; /* + 1; 0: free */
};

struct trace_names {
	uint64_t slots;  /* a power of two */
	struct name name[];
};

static struct trace_names *names_create(uint64_t slots)
{
	struct trace_names *n = calloc(1, sizeof(*n) + slots * sizeof(n->name[0]));

	if (n)
		n->slots = slots;
	return n;
}

static struct name *names_at(struct trace_names *n, uint64_t id)
{
	uint64_t at = hash_mix(id) & (n->slots - 1);

	while (n->name[at].number && n->name[at].id != id)
		at = (at + 1) & (n->slots - 1);
	return &n->name[at];
}

static bool names_grow(struct trace *t)
{
	struct trace_names *old = t->names, *n;

	if (old && 2 * ((uint64_t)t->unique + 1) <= old->slots)
		return true;
	n = names_create(old ? 2 * old->slots : 1024);
	if (!n)
		return false;
	for (uint64_t i = 0; old && i < old->slots; i++)
		if (old->name[i].number)
			*names_at(n, old->name[i].id) = old->name[i];
	free(old);
	t->names = n;
	return true;
}

static bool grow(void **array, uint64_t *max, uint64_t needed, size_t size)
{
	uint64_t larger = *max ? *max : 1024;
	void *moved;

	if (needed <= *max)
		return true;
	while (larger < needed)
		larger *= 2;
	moved = realloc(*array, larger * size);
	if (!moved)
		return false;
	*array = moved;
	*max = larger;
	return true;
}

void trace_init(struct trace *t, uint32_t block_tokens)
{
	*t = (struct trace){ .block_tokens = block_tokens };
}

void trace_fini(struct trace *t)
{
	free(t->requests);
	free(t->blocks);
	free(t->names);
	trace_init(t, 0);
}

/* After a failure the names numbered so far stay in the table, but get their numbers again next time. */
static enum status number_blocks(struct trace *t, const uint64_t *ids, uint32_t count, uint32_t *out)
{
	for (uint32_t i = 0; i < count; i++) {
		struct name *name;

		if (t->unique == UINT32_MAX - 1 || !names_grow(t))
			return STATUS_EXHAUSTED;
		name = names_at(t->names, ids[i]);
		if (!name->number)
			*name = (struct name){ ids[i], ++t->unique };
		out[i] = name->number - 1;
	}
	return STATUS_OK;
}

/* Finds the chain of a report: a request that asked for its block had the whole chain. */
static void find_reported(const struct trace *t, uint64_t last, struct trace_request *r)
{
	const uint32_t number = t->names ? names_at(t->names, last)->number : 0;

	for (uint32_t i = t->request_count, looked = 0; number && i-- > 0 && looked < REPORT_LOOKS; looked++) {
		const struct trace_request *q = &t->requests[i];

		for (uint32_t b = !r->session || r->session == q->session ? q->count : 0; b-- > 0;)
			if (t->blocks[q->first + b] == number - 1) {
				r->first = q->first;
				r->about = b + 1;
				return;
			}
	}
}

enum status trace_add(struct trace *t, const struct trace_request *r, const uint64_t *ids, uint32_t count)
{
	uint32_t full = r->tokens / t->block_tokens;
	uint64_t max = t->request_max;
	struct trace_request *added;
	enum status s;

	if (t->request_count && r->time_us < t->requests[t->request_count - 1].time_us)
		return STATUS_INVALID;
	if (full > count)
		full = count;
	if (t->request_count == UINT32_MAX / 2 ||
	    !grow((void **)&t->requests, &max, (uint64_t)t->request_count + 1, sizeof(t->requests[0])))
		return STATUS_EXHAUSTED;
	t->request_max = (uint32_t)max;
	if (!grow((void **)&t->blocks, &t->block_max, t->block_count + full, sizeof(t->blocks[0])))
		return STATUS_EXHAUSTED;
	s = full ? number_blocks(t, ids, full, t->blocks + t->block_count) : STATUS_OK;
	if (s)
		return s;
	added = &t->requests[t->request_count++];
	*added = *r;
	added->first = t->block_count;
	added->count = full;
	added->about = 0;
	if (count && !r->tokens && r->hint)
		find_reported(t, ids[0], added);
	t->block_count += full;
	return STATUS_OK;
}

static bool is_report(const struct trace_request *r)
{
	return !r->tokens && r->hint;
}

/* last[i]: whether request i is the last to hold its deepest block. */
static bool *last_of_chains(const struct trace *t)
{
	bool *last = calloc(t->request_count + 1, sizeof(*last));
	bool *seen = calloc((uint64_t)t->unique + 1, sizeof(*seen));

	for (uint32_t i = t->request_count; last && seen && i-- > 0;) {
		const struct trace_request *r = &t->requests[i];

		last[i] = r->count == 0 || !seen[t->blocks[r->first + r->count - 1]];
		for (uint32_t b = 0; b < r->count; b++)
			seen[t->blocks[r->first + b]] = true;
	}
	if (!seen) {
		free(last);
		last = NULL;
	}
	free(seen);
	return last;
}

/* Where requests name sessions, last[] says the session's last instead. */
static bool last_of_sessions(const struct trace *t, bool *last)
{
	struct trace_names *seen;
	uint64_t slots = 16;

	while (slots < 2 * ((uint64_t)t->request_count + 1))
		slots *= 2;
	seen = names_create(slots);
	if (!seen)
		return false;
	for (uint32_t i = t->request_count; i-- > 0;) {
		struct name *name;

		if (!t->requests[i].session || is_report(&t->requests[i]))
			continue;
		name = names_at(seen, t->requests[i].session);
		last[i] = !name->number;
		*name = (struct name){ t->requests[i].session, 1 };
	}
	free(seen);
	return true;
}

enum status trace_hint_end(struct trace *t, double recall, double false_rate)
{
	bool *last = last_of_chains(t);
	uint64_t random = 1;

	if (!last || !last_of_sessions(t, last)) {
		free(last);
		return STATUS_EXHAUSTED;
	}
	for (uint32_t i = 0; i < t->request_count; i++) {
		double draw = (double)(hash_mix(random++) >> 11) / 9007199254740992.0;

		if (!is_report(&t->requests[i]) && draw < (last[i] ? recall : false_rate))
			t->requests[i].hint = POLICY_HINT_END;
	}
	free(last);
	return STATUS_OK;
}
