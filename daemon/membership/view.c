/* See daemon/membership/view.h. */
#include "daemon/membership/view.h"

#include <stdlib.h>
#include <string.h>

bool view_init(struct view *v)
{
	memset(v, 0, sizeof *v);
	v->at = malloc(MEMBERS_MAX * sizeof *v->at);
	v->until_us = calloc(MEMBERS_MAX, sizeof *v->until_us);
	v->seen = calloc(MEMBERS_MAX, sizeof *v->seen);
	return v->at && v->until_us && v->seen;
}

void view_fini(struct view *v)
{
	free(v->at);
	free(v->until_us);
	free(v->seen);
}

/* The index of the member of that name, or where it belongs. */
static uint32_t place_of(const struct view *v, const char *name, bool *found)
{
	uint32_t low = 0, high = v->count;

	*found = false;
	while (low < high) {
		const uint32_t middle = (low + high) / 2;
		const int order = strcmp(v->at[middle].name, name);

		if (!order) {
			*found = true;
			return middle;
		}
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Moves all members from index `from` on to index `to` on. */
static void shift(struct view *v, uint32_t to, uint32_t from)
{
	const size_t n = v->count - from;

	memmove(v->at + to, v->at + from, n * sizeof *v->at);
	memmove(v->until_us + to, v->until_us + from, n * sizeof *v->until_us);
	memmove(v->seen + to, v->seen + from, n * sizeof *v->seen);
}

bool view_put(struct view *v, const struct member *m, uint64_t now_us)
{
	bool found;
	const uint32_t i = place_of(v, m->name, &found);
	const uint64_t since_us = found && v->at[i].epoch == m->epoch ? v->at[i].since_us : now_us;

	if (!found && v->count == MEMBERS_MAX)
		return false;
	if (!found) {
		shift(v, i + 1, i);
		v->count++;
	}
	v->at[i] = *m;
	v->at[i].since_us = since_us;
	v->at[i].absent = false;
	v->seen[i] = true;
	v->changed = true;
	return true;
}

static void remove_at(struct view *v, uint32_t i)
{
	shift(v, i, i + 1);
	v->count--;
	v->changed = true;
}

void view_remove(struct view *v, const char *name)
{
	bool found;
	const uint32_t i = place_of(v, name, &found);

	if (found)
		remove_at(v, i);
}

void view_read_begin(struct view *v)
{
	memset(v->seen, 0, MEMBERS_MAX * sizeof *v->seen);
}

void view_read_end(struct view *v, uint64_t until_us)
{
	for (uint32_t i = v->count; i--;) {
		if (v->seen[i])
			continue;
		if (v->at[i].absent)
			continue; /* its time began when it was first missed */
		if (!until_us) {
			remove_at(v, i);
		} else {
			v->at[i].absent = true;
			v->until_us[i] = until_us;
			v->changed = true;
		}
	}
}

uint64_t view_forget(struct view *v, uint64_t now_us)
{
	uint64_t due_us = UINT64_MAX;

	for (uint32_t i = v->count; i--;) {
		if (!v->at[i].absent)
			continue;
		if (v->until_us[i] <= now_us)
			remove_at(v, i);
		else if (v->until_us[i] < due_us)
			due_us = v->until_us[i];
	}
	return due_us;
}
