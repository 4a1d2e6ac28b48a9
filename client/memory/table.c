/* The table of an attachment's mappings, and the packets that tell the daemon which mappings are gone. */
#include "client/memory/table.h"

#include "client/memory/attachment.h"
#include "client/memory/pages.h"
#include "client/transport/packet.h"

#include <stdlib.h>
#include <string.h>

/* The place of a mapping in the table, or the place where it belongs. */
static uint32_t table_place(const struct client_attachment *a, uint32_t extent, bool writable)
{
	uint32_t from = 0, to = a->count;

	while (from < to) {
		const uint32_t middle = (from + to) / 2;
		const struct client_mapping *m = a->mappings[middle];

		if (m->extent < extent || (m->extent == extent && m->writable < writable))
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

struct client_mapping *client_fds_find(const struct client_attachment *a, uint32_t extent, bool writable)
{
	const uint32_t i = table_place(a, extent, writable);

	return i < a->count && a->mappings[i]->extent == extent && a->mappings[i]->writable == writable ? a->mappings[i] : NULL;
}

static bool table_grow(struct client_attachment *a)
{
	uint32_t capacity = a->capacity ? a->capacity * 2 : 16;
	struct client_mapping **mappings;

	if (a->count < a->capacity)
		return true;
	if (capacity > CLIENT_MAPPINGS_MAX)
		return false;
	mappings = realloc(a->mappings, capacity * sizeof(struct client_mapping *));
	if (!mappings)
		return false;
	a->mappings = mappings;
	a->capacity = capacity;
	return true;
}

struct client_mapping *client_fds_add(struct client_attachment *a, const struct client_mapping *mapping)
{
	struct client_mapping *m = table_grow(a) ? malloc(sizeof(*m)) : NULL, **at;

	if (!m)
		return NULL;
	*m = *mapping;
	at = a->mappings + table_place(a, m->extent, m->writable);
	memmove(at + 1, at, (size_t)(a->mappings + a->count++ - at) * sizeof(*at));
	*at = m;
	return m;
}

void client_table_remove(struct client_attachment *a, struct client_mapping *m)
{
	struct client_mapping **at = a->mappings + table_place(a, m->extent, m->writable);

	a->retiring -= m->retiring;
	memmove(at, at + 1, (size_t)(a->mappings + --a->count - at) * sizeof(*at));
	client_pages_destroy(m->pages);
	free(m->registered);
	free(m);
}

struct fdsock_unmapped client_unmapped_of(uint32_t extent, bool writable)
{
	struct fdsock_unmapped told = {.extent = extent, .write = writable};

	told.head = client_packet_head(FDSOCK_UNMAPPED);
	return told;
}

bool client_table_tell(struct client_attachment *a, uint32_t extent, bool writable)
{
	const struct fdsock_unmapped told = client_unmapped_of(extent, writable);

	return client_packet_send(a->socket, &told, sizeof(told));
}

bool client_fds_tell(struct client_attachment *a, const struct client_mapping *m)
{
	return client_table_tell(a, m->extent, m->writable);
}

bool client_fds_of_driver(const struct client_mapping *m)
{
	return m->gpu != FDSOCK_NO_GPU || m->registered;
}
