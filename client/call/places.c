/* Places: turns extents and offsets of a reply into addresses, of this process and of a GPU.
 *
 * A reply has four parallel arrays with an entry for each (key, layout), keys outer. Neighbours are mostly in one
 * extent. So values that depend on the extent alone are kept from a layout's block before. For another extent the
 * mappings of this handle are tried first; only a new extent is looked up in the table.
 *
 * Slots to be written are made writable, neighbouring slots together. They do not stay writable for long after they
 * were given back (memory/pages.h). A mapping without a writable page for ten seconds is unmapped: the kernel then
 * tells the daemon that this process cannot write there any more. The attachment's lock guards pages. A mapping in use
 * stays mapped while the attachment is not closed.
 */
#include "client/call/places.h"

#include "client/memory/attachment.h"
#include "client/memory/mapping.h"
#include "client/memory/pages.h"
#include "client/memory/turn.h"
#include "client/session/session.h"
#include "client/value/clock.h"
#include "client/value/keys.h"
#include "client/value/status.h"
#include "kernels/format.h"
#include "proto/fdsock.h"

#include <pthread.h>
#include <stdlib.h>

enum {
	DEVICE_SLOT_ALIGN = 256,
	CLOSING_US = 1000, /* a look, while the session goes on putting: to open again takes as long */
	RESTS_MAX = 20, /* looks that find no page writable, before the mapping goes: a new one costs a fault a page */
};

static enum terrace_status place_fail(uint32_t key, const char *what)
{
	return client_fail(TERRACE_INTERNAL, "the daemon's place of key %u %s", key, what);
}

/* Where a layout's last block was, for the next: its mapping (NULL: there was none yet), and what depends on that
 * alone. */
struct spot {
	struct client_mapping *mapping;
	uint64_t align, last; /* offsets are multiples of the one, and at most the other */
	uint8_t *base;        /* of offset 0's block in this process; NULL: on a GPU */
	uint64_t address;     /* the same on the GPU, if there is one */
	uint32_t run;         /* 1 + the run of its last slot, of those to be written; 0: none */
};

/* A reply being read. */
struct reading {
	const struct client_placing *p;
	struct spot spots[CLIENT_LAYOUTS_MAX]; /* a layout each, as many as there are */
};

/* Why the blocks cannot be in such memory; NULL: they can. */
static const char *memory_problem(const struct client_placing *p, const struct client_mapping *m)
{
	if (m->extent == FDSOCK_EXTENT_PROGRESS_PAGE)
		return "is on the progress page";
	if (m->gpu == FDSOCK_NO_GPU)
		return p->gpu >= 0 && !p->host_too ? "is in host memory, not on the GPU" : NULL;
	return p->gpu < 0 || m->gpu != (uint32_t)p->gpu ? "is on another GPU, or on one unasked" : NULL;
}

/* Finds the mapping of an extent. The handle then counts as one use of it. */
static enum terrace_status mapping_of(struct client_places *p, const struct client_placing *g, uint32_t extent,
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
	status = client_fds_map(p->attachment, extent, g->writable, g->deadline_us, out);
	if (status)
		return status;
	p->mappings[p->mapping_count++] = *out;
	if (g->gpu >= 0 && (*out)->gpu == FDSOCK_NO_GPU && !memory_problem(g, *out))
		status = client_fds_register(p->attachment, *out, (uint32_t)g->gpu, g->deadline_us);
	return status;
}

/* Moves the spot to another extent: finds its mapping, and what depends on that alone. */
static enum terrace_status spot_move(struct client_places *p, struct reading *r, uint32_t key, uint32_t l, uint32_t extent)
{
	const struct client_layout *layout = &r->p->view->layouts[l];
	struct client_mapping *m;
	enum terrace_status status = mapping_of(p, r->p, extent, &m);
	const bool host = !status && m->gpu == FDSOCK_NO_GPU;
	const uint64_t header = host ? KV_SLOT_ALIGN : 0, need = header + layout->geometry.block_bytes;
	const char *problem;

	if (status)
		return status;
	problem = memory_problem(r->p, m);
	if (!problem && need > m->bytes)
		problem = "is not inside its extent";
	if (problem)
		return place_fail(key, problem);
	r->spots[l] = (struct spot){.mapping = m,
				    .run = r->spots[l].run,
				    .align = host ? (uint64_t)KV_SLOT_ALIGN : DEVICE_SLOT_ALIGN,
				    .last = m->bytes - need,
				    .base = host ? m->base + header : NULL};
	if (p->addresses)
		r->spots[l].address = (host ? m->registered[p->gpu] : m->device.address) + header;
	return TERRACE_OK;
}

static enum terrace_status runs_grow(struct client_places *p)
{
	const uint32_t capacity = p->run_capacity ? 2 * p->run_capacity : 8;
	struct client_run *grown;

	if (p->run_count < p->run_capacity)
		return TERRACE_OK;
	grown = realloc(p->runs, capacity * sizeof(*grown));
	if (!grown)
		return client_fail(TERRACE_EXHAUSTED, "no memory for a reservation");
	p->run_capacity = capacity;
	p->runs = grown;
	return TERRACE_OK;
}

/* Whether the slot stands behind the run. Slots may lie up to a sixteenth further apart than they are large: what is
 * between neighbours belongs to the first. */
static bool run_goes_on(const struct client_run *run, const struct client_run *slot)
{
	const uint64_t end = run->offset + run->bytes;

	return run->mapping == slot->mapping && slot->offset >= end && slot->offset - end <= slot->bytes / 16;
}

/* Adds a slot that is to be writable, to the last run of its layout if it stands behind that. */
static enum terrace_status run_add(struct client_places *p, struct spot *spot, const struct client_run *slot)
{
	struct client_run *last = spot->run ? &p->runs[spot->run - 1] : NULL;
	enum terrace_status status;

	if (last && run_goes_on(last, slot)) {
		last->bytes = slot->offset + slot->bytes - last->offset;
		return TERRACE_OK;
	}
	status = runs_grow(p);
	if (status)
		return status;
	p->runs[p->run_count] = *slot;
	spot->run = ++p->run_count;
	return TERRACE_OK;
}

static enum terrace_status run_open(struct client_attachment *a, const struct client_run *run)
{
	struct client_mapping *m = run->mapping;
	enum terrace_status status = TERRACE_OK;

	if (!m->guarded)
		return TERRACE_OK;
	pthread_mutex_lock(&a->lock);
	if (a->closed)
		status = client_fail(TERRACE_CANCELLED, "the session is closed: open another one");
	else if (!m->pages && !(m->pages = client_pages_create(m->base, m->bytes, m->page_bytes)))
		status = client_fail(TERRACE_EXHAUSTED, "no memory to keep another mapping of the daemon's memory");
	if (!status)
		status = client_pages_open(m->pages, run->offset, run->bytes);
	if (!status)
		m->rests = 0;
	pthread_mutex_unlock(&a->lock);
	return status;
}

static void run_close(struct client_attachment *a, const struct client_run *run)
{
	struct client_mapping *m = run->mapping;

	if (!m->guarded)
		return;
	pthread_mutex_lock(&a->lock);
	if (!a->closed) { /* else it is gone already */
		client_pages_leave(m->pages, run->offset, run->bytes);
		if (!a->tends)
			client_pages_rest(m->pages, CLIENT_REST_NOW, 0);
	}
	pthread_mutex_unlock(&a->lock);
}

static enum terrace_status runs_open(struct client_places *p)
{
	enum terrace_status status = TERRACE_OK;

	for (; p->run_writable < p->run_count && !status; p->run_writable += !status)
		status = run_open(p->attachment, &p->runs[p->run_writable]);
	return status;
}

/* Reads one entry of the reply's arrays. If its extent is none, the block is NULL. */
static enum terrace_status place_one(struct client_places *p, struct reading *r, uint32_t key, uint32_t l)
{
	const struct client_placing *g = r->p;
	const size_t i = (size_t)key * p->layouts + l;
	const uint32_t extent = g->reply->extent[i], tokens = g->reply->tokens[i];
	const uint64_t offset = g->reply->offset[i];
	struct spot *spot = &r->spots[l];

	if (extent == FDSOCK_EXTENT_NONE)
		return TERRACE_OK;
	if (!spot->mapping || spot->mapping->extent != extent) {
		enum terrace_status status = spot_move(p, r, key, l, extent);

		if (status)
			return status;
	}
	if (offset & (spot->align - 1) || offset > spot->last)
		return place_fail(key, "is not inside its extent");
	if (spot->base)
		p->blocks[i] = spot->base + offset;
	if (spot->base && g->writable) {
		const struct client_run slot = {spot->mapping, offset, g->view->layouts[l].geometry.need_bytes};
		enum terrace_status status = run_add(p, spot, &slot);

		if (status)
			return status;
	}
	if (p->addresses)
		p->addresses[i] = spot->address + offset;
	if (!g->writable && (tokens < 1 || tokens > g->view->layouts[l].layout.block_tokens))
		return place_fail(key, "has a wrong number of tokens");
	if (!p->tokens[key] || tokens < p->tokens[key])
		p->tokens[key] = tokens;
	return TERRACE_OK;
}

/* Reads a key's blocks: all layouts have one, or none has. Windowed layouts may lack it, and any layout of a session
 * with units or rules. */
static enum terrace_status place_key(struct client_places *p, struct reading *r, uint32_t key)
{
	uint32_t present = 0, missing = 0;

	for (uint32_t l = 0; l < p->layouts; l++) {
		enum terrace_status status = place_one(p, r, key, l);

		if (status)
			return status;
		if (r->p->reply->extent[(size_t)key * p->layouts + l] != FDSOCK_EXTENT_NONE)
			present++;
		else if (r->p->writable || !r->p->view->layouts[l].layout.window)
			missing++;
	}
	if (missing && !r->p->view->unit && (present || !r->p->sparse))
		return place_fail(key, "lacks a layout");
	return TERRACE_OK;
}

static enum terrace_status places_fill(struct client_places *p, const struct client_placing *g)
{
	const Terrace__V1__Places *reply = g->reply;
	struct reading reading = {.p = g};
	size_t entries = (size_t)p->keys * p->layouts;

	if (!reply || reply->n_extent != entries || reply->n_offset != entries || reply->n_tokens != entries)
		return client_fail(TERRACE_INTERNAL, "the daemon's places are not %zu", entries);
	p->blocks = calloc(entries ? entries : 1, sizeof(*p->blocks));
	p->tokens = calloc(p->keys ? p->keys : 1, sizeof(*p->tokens));
	p->addresses = p->gpu >= 0 ? calloc(entries ? entries : 1, sizeof(*p->addresses)) : NULL;
	if (!p->blocks || !p->tokens || (p->gpu >= 0 && !p->addresses))
		return client_fail(TERRACE_EXHAUSTED, "no memory for a lease");
	for (uint32_t key = 0; key < p->keys; key++) {
		enum terrace_status status = g->wanted && !g->wanted[key] ? TERRACE_OK : place_key(p, &reading, key);

		if (status)
			return status;
	}
	return runs_open(p);
}

enum terrace_status client_places_init(struct client_places *places, const struct client_placing *placing)
{
	const struct client_view *view = placing->view;
	enum terrace_status status;

	*places = (struct client_places){.attachment = view->attachment,
					 .keys = placing->keys,
					 .layouts = view->layout_count,
					 .first = placing->first,
					 .gpu = placing->gpu};
	client_fds_hold(places->attachment);
	status = places_fill(places, placing);
	if (status)
		client_places_fini(places);
	return status;
}

void client_places_fini(struct client_places *places)
{
	if (!places->attachment)
		return;
	for (uint32_t i = 0; i < places->run_writable; i++)
		run_close(places->attachment, &places->runs[i]);
	for (uint32_t i = 0; i < places->mapping_count; i++)
		client_fds_unmap(places->attachment, places->mappings[i]);
	client_fds_drop(places->attachment);
	free(places->mappings);
	free(places->runs);
	free(places->blocks);
	free(places->addresses);
	free(places->tokens);
	*places = (struct client_places){0};
}

/* ---- what was written; with the attachment's lock ---- */

/* Closes pages of a mapping that no reservation uses, and unmaps a mapping that rests for long. A mapping in the table
 * may be unmapped already, and wait for the daemon to be told. */
static void mapping_tend(struct client_attachment *a, struct client_mapping *m, uint64_t until_us)
{
	if (client_pages_rest(m->pages, CLIENT_REST_A_SECOND, until_us) || m->uses)
		m->rests = 0;
	else if (m->rests++ == RESTS_MAX)
		client_fds_retire(a, m);
}

/* Closes pages of all mappings that no reservation uses. True: there are writable mappings. */
static bool tend(struct client_attachment *a)
{
	const uint64_t until_us = client_deadline_us(CLOSING_US);
	bool any = false;

	for (uint32_t i = 0; i < a->count; i++) {
		struct client_mapping *m = a->mappings[i];

		if (!m->pages || !m->base || m->retiring)
			continue;
		mapping_tend(a, m, until_us);
		any = true;
	}
	client_fds_sweep(a);
	return any;
}

bool client_places_tend(struct client_attachment *a, bool *closed)
{
	bool more;

	pthread_mutex_lock(&a->lock);
	*closed = a->closed;
	more = !a->closed && tend(a);
	a->tends = more;
	pthread_mutex_unlock(&a->lock);
	return more;
}

enum terrace_status client_places_addresses(const struct client_places *places, uint32_t layout, uint64_t *addresses)
{
	if (places->gpu < 0)
		return client_fail(TERRACE_PRECONDITION, "addresses: the lease was not made for a GPU: set gpu in terrace_lease_options");
	if (layout >= places->layouts || !addresses)
		return client_fail(TERRACE_INVALID, "addresses: the session has no layout %u, or the pointer for them is NULL", layout);
	for (uint32_t i = 0; i < places->keys; i++)
		addresses[i] = places->addresses[(size_t)i * places->layouts + layout];
	return TERRACE_OK;
}

uint32_t client_places_tokens(const struct client_places *p, const struct client_view *view, uint32_t key,
			      uint32_t layout)
{
	const uint32_t unit = client_view_unit(view);
	size_t i;

	if (key >= p->keys || layout >= p->layouts)
		return 0;
	i = (size_t)key * p->layouts + layout;
	if (!p->blocks[i] && !(p->addresses && p->addresses[i]))
		return 0;
	if (!client_view_chained(view))
		return p->tokens[key];
	return (uint32_t)(((uint64_t)p->first + key) % (view->layouts[layout].layout.block_tokens / unit) + 1) * unit;
}

void *client_places_block(const struct client_places *places, uint32_t key, uint32_t layout)
{
	if (key >= places->keys || layout >= places->layouts)
		return NULL;
	return places->blocks[(size_t)key * places->layouts + layout];
}
