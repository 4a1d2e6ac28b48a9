/* See host/range.h. */
#include "store/host/range.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static enum status room_for_one(struct host_range *r)
{
	uint32_t room = r->room ? 2 * r->room : 16;
	struct host_place *more;

	if (r->count < r->room)
		return STATUS_OK;
	more = realloc(r->places, room * sizeof(*more));
	if (!more)
		return STATUS_EXHAUSTED;
	r->places = more;
	r->room = room;
	return STATUS_OK;
}

enum status host_range_take(struct host_range *r, uint64_t bytes, uint64_t *at)
{
	uint64_t free_at = 0;
	uint32_t i = 0;

	while (i < r->count && r->places[i].at - free_at < bytes) {
		free_at = r->places[i].at + r->places[i].bytes;
		i++;
	}
	if (r->bytes - free_at < bytes || room_for_one(r) != STATUS_OK)
		return STATUS_EXHAUSTED;
	memmove(&r->places[i + 1], &r->places[i], (r->count - i) * sizeof(r->places[0]));
	r->places[i] = (struct host_place){ free_at, bytes };
	r->count++;
	*at = free_at;
	return STATUS_OK;
}

void host_range_give(struct host_range *r, uint64_t at)
{
	for (uint32_t i = 0; i < r->count; i++) {
		if (r->places[i].at == at) {
			r->count--;
			memmove(&r->places[i], &r->places[i + 1], (r->count - i) * sizeof(r->places[0]));
			return;
		}
	}
	assert(!"a place was given back that is not taken");
}

void host_range_fini(struct host_range *r)
{
	free(r->places);
	r->places = NULL;
	r->count = r->room = 0;
}
