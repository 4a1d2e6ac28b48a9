/* Places: from extents and offsets of a reply to addresses.
 *
 * A reply has four parallel arrays, an entry a (key, layout), keys outer. Neighbours mostly lie in one extent, so the mapping
 * of the entry before is tried first, then those of this handle; only a new extent goes to the table. */
#include "client/places.h"

#include "client/status.h"
#include "proto/fdsock.h"

#include <stdlib.h>

static enum terrace_status place_fail(uint32_t key, const char *what)
{
	return client_fail(TERRACE_INTERNAL, "the daemon's place of key %u %s", key, what);
}

/* The mapping of an extent, which this handle then counts as used once. */
static enum terrace_status mapping_of(struct client_places *p, uint32_t extent, bool writable, uint64_t deadline_us,
				      struct client_mapping **out)
{
	enum terrace_status status;
	struct client_mapping **grown;

	for (uint32_t i = 0; i < p->mapping_count; i++)
		if (p->mappings[i]->extent == extent) {
			*out = p->mappings[i];
			return TERRACE_OK;
		}
	grown = realloc(p->mappings, (p->mapping_count + 1) * sizeof(struct client_mapping *));
	if (!grown)
		return client_fail(TERRACE_EXHAUSTED, "no memory for a lease");
	p->mappings = grown;
	status = client_fds_map(p->attachment, extent, writable, deadline_us, out);
	if (!status)
		p->mappings[p->mapping_count++] = *out;
	return status;
}

struct placing {
	const struct client_view *view;
	const Terrace__V1__Places *reply;
	const uint8_t *wanted;
	bool sparse, writable;
	uint64_t deadline_us;
	struct client_mapping *last;
};

/* One entry of the arrays. An extent of none leaves the block NULL. */
static enum terrace_status place_one(struct client_places *p, struct placing *g, uint32_t key, uint32_t l)
{
	const struct client_layout *layout = &g->view->layouts[l];
	size_t i = (size_t)key * p->layouts + l;
	uint32_t extent = g->reply->extent[i], tokens = g->reply->tokens[i];
	uint64_t offset = g->reply->offset[i], need = KV_SLOT_ALIGN + layout->geometry.block_bytes;
	enum terrace_status status;

	if (extent == FDSOCK_EXTENT_NONE)
		return TERRACE_OK;
	if (!g->last || g->last->extent != extent) {
		status = mapping_of(p, extent, g->writable, g->deadline_us, &g->last);
		if (status)
			return status;
	}
	if (offset % KV_SLOT_ALIGN || need > g->last->bytes || offset > g->last->bytes - need)
		return place_fail(key, "is not inside its extent");
	if (!g->writable && (tokens < 1 || tokens > layout->layout.block_tokens))
		return place_fail(key, "has a wrong number of tokens");
	p->blocks[i] = g->last->base + offset + KV_SLOT_ALIGN;
	if (!p->tokens[key] || tokens < p->tokens[key])
		p->tokens[key] = tokens;
	return TERRACE_OK;
}

/* A key's blocks: in all layouts, or in none of them; windowed layouts may lack it. */
static enum terrace_status place_key(struct client_places *p, struct placing *g, uint32_t key)
{
	uint32_t present = 0, missing = 0;

	for (uint32_t l = 0; l < p->layouts; l++) {
		enum terrace_status status = place_one(p, g, key, l);

		if (status)
			return status;
		if (p->blocks[(size_t)key * p->layouts + l])
			present++;
		else if (g->writable || !g->view->layouts[l].layout.window)
			missing++;
	}
	if (missing && (present || !g->sparse))
		return place_fail(key, "lacks a layout");
	return TERRACE_OK;
}

static enum terrace_status places_fill(struct client_places *p, struct placing *g)
{
	const Terrace__V1__Places *reply = g->reply;
	size_t entries = (size_t)p->keys * p->layouts;

	if (!reply || reply->n_extent != entries || reply->n_offset != entries || reply->n_tokens != entries)
		return client_fail(TERRACE_INTERNAL, "the daemon's places are not %zu", entries);
	p->blocks = calloc(entries ? entries : 1, sizeof(*p->blocks));
	p->tokens = calloc(p->keys ? p->keys : 1, sizeof(*p->tokens));
	if (!p->blocks || !p->tokens)
		return client_fail(TERRACE_EXHAUSTED, "no memory for a lease");
	for (uint32_t key = 0; key < p->keys; key++) {
		enum terrace_status status = g->wanted && !g->wanted[key] ? TERRACE_OK : place_key(p, g, key);

		if (status)
			return status;
	}
	return TERRACE_OK;
}

enum terrace_status client_places_init(struct client_places *places, const struct client_view *view,
				       const Terrace__V1__Places *reply, uint32_t keys, const uint8_t *wanted, bool sparse,
				       bool writable, uint64_t deadline_us)
{
	struct placing placing = {
		.view = view,
		.reply = reply,
		.wanted = wanted,
		.sparse = sparse,
		.writable = writable,
		.deadline_us = deadline_us,
	};
	enum terrace_status status;

	*places = (struct client_places){
		.attachment = view->attachment, .keys = keys, .layouts = view->layout_count};
	client_fds_hold(places->attachment);
	status = places_fill(places, &placing);
	if (status)
		client_places_fini(places);
	return status;
}

void client_places_fini(struct client_places *places)
{
	if (!places->attachment)
		return;
	for (uint32_t i = 0; i < places->mapping_count; i++)
		client_fds_unmap(places->attachment, places->mappings[i]);
	client_fds_drop(places->attachment);
	free(places->mappings);
	free(places->blocks);
	free(places->tokens);
	*places = (struct client_places){0};
}

void *client_places_block(const struct client_places *places, uint32_t key, uint32_t layout)
{
	if (key >= places->keys || layout >= places->layouts)
		return NULL;
	return places->blocks[(size_t)key * places->layouts + layout];
}
