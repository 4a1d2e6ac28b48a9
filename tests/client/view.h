/* A client without a daemon, for what decodes replies: a session's view with one mapped extent and a broken socket, and a reader for
 * each kind of reply that checks what the decoder let through. Used by the test of the decoders and by their fuzz target; a broken
 * promise aborts. */
#ifndef TERRACE_TESTS_CLIENT_VIEW_H
#define TERRACE_TESTS_CLIENT_VIEW_H

#include "client/call/commit.h"
#include "client/call/lease.h"
#include "client/call/lookup.h"
#include "client/call/report.h"
#include "client/call/reserve.h"
#include "client/call/stream.h"
#include "client/call/watch.h"
#include "client/session/connect.h"
#include "client/memory/attachment.h"
#include "client/memory/mapping.h"
#include "client/session/session.h"
#include "client/transport/decode.h"
#include "kernels/format.h"
#include "proto/fdsock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define VIEW_MUST(x)                                                                                                   \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			fprintf(stderr, "view: %s does not hold\n", #x);                                               \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

enum { VIEW_KEYS = 3, VIEW_EXTENT_BYTES = 1 << 20, VIEW_EPOCH = 5, VIEW_DECODERS = 8, VIEW_SEGMENTS = 512 };

struct view_rig {
	struct terrace_client *client;
	struct client_view *view;
	uint8_t *block; /* one of the layout's blocks, for Get */
};

/* A message cut into segments, some of them empty. */
struct view_cut {
	struct client_segment segments[VIEW_SEGMENTS];
	struct client_message message;
};

/* Pieces of `piece` bytes; size / piece at most 300. */
static inline const struct client_message *view_cut(struct view_cut *c, const uint8_t *bytes, size_t size, size_t piece)
{
	size_t n = 0;

	for (size_t at = 0; at < size; at += piece) {
		c->segments[n++] = (struct client_segment){bytes + at, size - at < piece ? size - at : piece};
		if (n % 3 == 1)
			c->segments[n++] = (struct client_segment){bytes, 0};
	}
	c->message = (struct client_message){c->segments, n, size};
	return &c->message;
}

/* An attachment with extent 1 mapped to read and to write. */
static inline struct client_attachment *view_attachment(void)
{
	struct client_attachment *a = calloc(1, sizeof(*a));

	atomic_init(&a->references, 1);
	a->socket = -1;
	a->broken = true;
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->idle, NULL);
	a->mappings = calloc(4, sizeof(struct client_mapping *));
	a->capacity = 4;
	for (int i = 0; i < 2; i++) {
		struct client_mapping *m = calloc(1, sizeof(*m));

		*m = (struct client_mapping){.extent = 1, .writable = i, .bytes = VIEW_EXTENT_BYTES, .gpu = FDSOCK_NO_GPU};
		m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		VIEW_MUST(m->base != MAP_FAILED);
		a->mappings[a->count++] = m;
	}
	return a;
}

static inline void view_open(struct view_rig *r)
{
	struct client_layout *l;

	r->client = calloc(1, sizeof(*r->client));
	atomic_init(&r->client->references, 2);
	VIEW_MUST(client_rpc_open("unix:/nonexistent/socket", 0, NULL, &r->client->rpc) == TERRACE_OK);
	r->view = calloc(1, sizeof(*r->view) + sizeof(r->view->layouts[0]));
	atomic_init(&r->view->references, 1);
	r->view->client = r->client;
	r->view->epoch = VIEW_EPOCH;
	r->view->layout_count = 1;
	l = &r->view->layouts[0];
	l->layout = (struct kv_layout){
		.layers = 1, .heads = 1, .total_heads = 1, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16,
		.k_format = KV_FP8, .v_format = KV_FP8, .rotation_version = KV_ROTATION_VERSION,
		.codebook_version = KV_CODEBOOK_VERSION, .layout_version = KV_LAYOUT_VERSION,
	};
	VIEW_MUST(!kv_layout_problem(&l->layout));
	kv_geometry_of(&l->layout, &l->geometry);
	l->id = kv_layout_id(&l->layout);
	r->view->attachment = view_attachment();
	r->block = calloc(1, l->geometry.block_bytes);
}

/* After a reply has been read and its handles ended, nothing is left in use. */
static inline void view_check(const struct view_rig *r)
{
	for (uint32_t i = 0; i < r->view->attachment->count; i++)
		VIEW_MUST(r->view->attachment->mappings[i]->uses == 0);
	VIEW_MUST(atomic_load(&r->view->attachment->references) == 1);
}

static inline void view_close(struct view_rig *r)
{
	client_rpc_close(r->client->rpc);
	view_check(r);
	VIEW_MUST(atomic_load(&r->view->references) == 1);
	client_view_drop(r->view);
	client_drop(r->client);
	free(r->block);
}

static inline enum terrace_status view_read_lookup(struct view_rig *r, const struct client_message *m)
{
	uint8_t states[VIEW_KEYS];
	struct client_lookup lookup = {.view = r->view, .count = VIEW_KEYS, .states = states};
	enum terrace_status status = client_lookup_read(&lookup, m);

	VIEW_MUST(status || lookup.prefix <= VIEW_KEYS);
	return status;
}

/* Reads over a leased block: inside the mapping, or this crashes. */
static inline void view_touch(const struct view_rig *r, const struct terrace_lease *lease)
{
	uint64_t bytes = r->view->layouts[0].geometry.block_bytes;

	for (uint32_t i = 0; i < terrace_lease_count(lease); i++) {
		const volatile uint8_t *b = terrace_lease_block(lease, i, 0);

		for (uint64_t k = 0; b && k < bytes; k += 100)
			(void)b[k];
		if (b)
			(void)b[bytes - 1];
		VIEW_MUST(terrace_lease_tokens(lease, i) <= 16);
	}
}

static inline enum terrace_status view_read_lease(struct view_rig *r, const struct client_message *m)
{
	struct client_leasing leasing = {.view = r->view, .count = VIEW_KEYS, .gpu = -1};
	enum terrace_status status = client_lease_read(&leasing, m);

	if (!status) {
		view_touch(r, leasing.lease);
		terrace_release(leasing.lease);
	}
	return status;
}

static inline enum terrace_status view_read_reserve(struct view_rig *r, const struct client_message *m)
{
	struct client_reserving reserving = {.view = r->view, .count = VIEW_KEYS, .gpu = -1};
	enum terrace_status status = client_reserve_read(&reserving, m);

	for (uint32_t i = 0; !status && i < VIEW_KEYS; i++)
		if (terrace_reservation_block(reserving.reservation, i, 0))
			memset(terrace_reservation_block(reserving.reservation, i, 0), 1,
			       r->view->layouts[0].geometry.block_bytes);
	if (!status)
		client_reservation_free(reserving.reservation);
	return status;
}

/* Key 1 of 3 has no slot. */
static inline enum terrace_status view_read_commit(struct view_rig *r, const struct client_message *m)
{
	uint64_t ids[VIEW_KEYS] = {1, 0, 2};
	enum terrace_status statuses[VIEW_KEYS] = {TERRACE_OK}, status;
	struct terrace_reservation reservation = {.view = r->view, .count = VIEW_KEYS, .ids = ids, .statuses = statuses,
						  .places = {.gpu = -1}};
	struct client_committing committing = {.reservation = &reservation, .items = 2, .want_lease = true};

	status = client_commit_read(&committing, m);
	VIEW_MUST(!status || !committing.lease);
	if (committing.lease) {
		VIEW_MUST(terrace_lease_count(committing.lease) == VIEW_KEYS);
		VIEW_MUST(!terrace_lease_block(committing.lease, 1, 0));
		view_touch(r, committing.lease);
	}
	terrace_release(committing.lease);
	return status;
}

static inline enum terrace_status view_read_put(struct view_rig *r, const struct client_message *m)
{
	struct client_putting putting = {.view = r->view};

	return client_put_read(&putting, m);
}

static inline enum terrace_status view_read_get(struct view_rig *r, const struct client_message *m)
{
	struct client_getting getting = {.view = r->view,
					 .block_bytes = r->view->layouts[0].geometry.block_bytes,
					 .block_tokens = 16,
					 .block = r->block};
	enum terrace_status status = client_get_read(&getting, m);

	VIEW_MUST(getting.got <= getting.block_bytes);
	if (!status)
		status = client_get_check(&getting);
	VIEW_MUST(status || (getting.tokens >= 1 && getting.tokens <= 16));
	return status;
}

static inline enum terrace_status view_read_delete(struct view_rig *r, const struct client_message *m)
{
	enum terrace_status statuses[VIEW_KEYS] = {TERRACE_OK}, status;

	(void)r;
	status = client_delete_read(&(struct client_deleting){VIEW_KEYS, statuses}, m);
	for (int i = 0; i < VIEW_KEYS; i++)
		VIEW_MUST((int)statuses[i] >= TERRACE_OK && (int)statuses[i] <= TERRACE_INTERNAL);
	return status;
}

static inline enum terrace_status view_read_watch(struct view_rig *r, const struct client_message *m)
{
	struct terrace_watch_event event;
	enum terrace_status status = client_watch_read(r->view->layout_count, &event, m);

	VIEW_MUST(status || (event.key_bytes <= TERRACE_KEY_BYTES_MAX && event.layout == 0));
	return status;
}

static enum terrace_status (*const view_decoders[VIEW_DECODERS])(struct view_rig *r, const struct client_message *m) = {
	view_read_lookup, view_read_lease, view_read_reserve, view_read_commit,
	view_read_put,    view_read_get,   view_read_delete,  view_read_watch,
};

#endif
