/* Sessions: opened over layouts, or joined by token. The daemon's answer is checked against what this build would
 * compute.
 */
#include "client/session/session.h"

#include "client/session/connect.h"
#include "client/driver/gpu.h"
#include "client/memory/attachment.h"
#include "client/memory/mapping.h"
#include "client/transport/local_calls.h"
#include "client/value/clock.h"
#include "client/driver/plugin.h"
#include "client/gpu/progress.h"
#include "client/value/keys.h"
#include "client/value/layout.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "proto/layout_message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENGINE_MAX = 64, TENANT_MAX = 64, CLOSE_TIMEOUT_US = 1000000 };

/* ---- checks that every call makes
 * --------------------------------------------------------------------------------- */

enum terrace_status client_session_check(const struct terrace_session *session)
{
	if (!session)
		return client_fail(TERRACE_INVALID, "the session is NULL");
	return client_process_check(session->generation);
}

enum terrace_status client_borrow_check(const struct client_view *view)
{
	if (!view->attachment)
		return client_fail(TERRACE_PRECONDITION, "borrowing is off: %s", view->why_not);
	return TERRACE_OK;
}

enum terrace_status client_view_use_gpu(const struct client_view *view, uint32_t g, uint64_t deadline_us)
{
	struct client_gpu *gpu;
	enum terrace_status status = client_view_use_gpu_unasked(view, g, deadline_us, &gpu);

	if (!status && client_gpu_lost_at_once(gpu))
		status = client_fail(TERRACE_UNAVAILABLE, "the GPU is lost: use host memory; a restart of the daemon takes the GPU back");
	return status;
}

enum terrace_status client_view_use_gpu_unasked(const struct client_view *view, uint32_t g, uint64_t deadline_us, struct client_gpu **gpu)
{
	enum terrace_status status = client_lent_gpu(&view->attachment->memory, g, gpu);

	if (!status && client_gpu_was_lost(*gpu))
		status = client_fail(TERRACE_UNAVAILABLE, "the GPU is lost: use host memory; a restart of the daemon takes the GPU back");
	return status ? status : client_progress_page_open(view->attachment, g, deadline_us);
}

enum terrace_status client_view_status(enum terrace_status status)
{
	return status == TERRACE_NOT_FOUND ? client_fail_in(TERRACE_STALE, "the daemon has no such session any more: "
							    "open it again (terrace_session_reopen)")
					   : status;
}

enum terrace_status client_view_call(const struct client_view *view, const struct client_job *job)
{
	struct client_job again = *job; /* what it has done meanwhile is not done twice */
	enum terrace_status status;

	if (!view->local || !client_local_call(view->local, &again, &status))
		status = client_rpc_call(view->client->rpc, &again);
	return client_view_status(status);
}

enum terrace_status client_epoch_check(const struct client_view *view, uint64_t epoch)
{
	if (epoch == view->epoch)
		return TERRACE_OK;
	return client_fail(TERRACE_STALE, "the daemon has restarted (its epoch is %llu, the session's %llu): "
			   "open the session again (terrace_session_reopen)",
			   (unsigned long long)epoch, (unsigned long long)view->epoch);
}

void client_statuses_late(enum terrace_status *statuses, uint32_t count)
{
	for (uint32_t i = 0; statuses && i < count; i++)
		statuses[i] = TERRACE_DEADLINE;
}

enum terrace_status client_status_of_wire(int number)
{
	return number >= TERRACE_OK && number <= TERRACE_INTERNAL ? (enum terrace_status)number : TERRACE_INTERNAL;
}

/* ---- views
 * -------------------------------------------------------------------------------------------------------- */

void client_view_hold(struct client_view *view)
{
	atomic_fetch_add_explicit(&view->references, 1, memory_order_relaxed);
}

void client_view_drop(struct client_view *view)
{
	if (atomic_fetch_sub_explicit(&view->references, 1, memory_order_acq_rel) != 1)
		return;
	client_local_destroy(view->local);
	if (view->attachment)
		client_fds_drop(view->attachment);
	client_drop(view->client);
	free(view->lent);
	free(view);
}

static struct client_view *view_create(struct terrace_client *client, uint32_t layout_count)
{
	struct client_view *view = calloc(1, sizeof(*view) + layout_count * sizeof(view->layouts[0]));

	if (view)
		view->lent = calloc(1, sizeof(*view->lent));
	if (!view || !view->lent) {
		free(view);
		client_fail(TERRACE_EXHAUSTED, "no memory for a session");
		return NULL;
	}
	atomic_init(&view->references, 1);
	view->client = client;
	client_hold(client);
	view->layout_count = layout_count;
	return view;
}

/* ---- the daemon's answer
 * ------------------------------------------------------------------------------------------ */

/* The arguments and results of OpenSession and Attach. */
struct opening {
	struct client_view *view; /* with its layouts, or NULL for Attach: made here */
	struct terrace_client *client;
	char fd_socket[128];
};

static enum terrace_status layout_of_wire(const Terrace__V1__Layout *in, struct kv_layout *out)
{
	const char *problem;

	if (!layout_message_read(in, out))
		return client_fail(TERRACE_INTERNAL, "a layout of the daemon has no fingerprint: "
				   "daemon and library are of different versions");
	problem = kv_layout_problem(out);
	if (problem)
		return client_fail(TERRACE_UNSUPPORTED, "a layout of the session: %s", problem);
	return TERRACE_OK;
}

/* Takes the layouts of an attached session from the reply. */
static enum terrace_status attached_layouts(struct opening *o, const Terrace__V1__OpenSessionReply *reply)
{
	if (reply->n_layout_list < 1 || reply->n_layout_list > CLIENT_LAYOUTS_MAX)
		return client_fail(TERRACE_INTERNAL, "the daemon names %zu layouts", reply->n_layout_list);
	o->view = view_create(o->client, (uint32_t)reply->n_layout_list);
	if (!o->view)
		return TERRACE_EXHAUSTED;
	for (uint32_t i = 0; i < o->view->layout_count; i++) {
		struct client_layout *l = &o->view->layouts[i];
		enum terrace_status status = layout_of_wire(reply->layout_list[i], &l->layout);

		if (status)
			return status;
		kv_geometry_of(&l->layout, &l->geometry);
		l->id = kv_layout_id(&l->layout);
	}
	return TERRACE_OK;
}

/* Both sides compute ids and sizes from the layout's fields; a difference means different builds. */
static enum terrace_status layouts_compare(const struct client_view *view, const Terrace__V1__OpenSessionReply *reply)
{
	if (reply->n_layouts != view->layout_count)
		return client_fail(TERRACE_INTERNAL, "the daemon answers with %zu layouts to %u", reply->n_layouts,
				   view->layout_count);
	for (uint32_t i = 0; i < view->layout_count; i++) {
		const struct client_layout *l = &view->layouts[i];
		const Terrace__V1__LayoutReply *r = reply->layouts[i];

		if (r->layout_id != l->id || r->block_bytes != l->geometry.block_bytes)
			return client_fail(TERRACE_UNSUPPORTED, "the daemon computes another layout %u than this library: "
					   "their versions differ", i);
	}
	return TERRACE_OK;
}

/* Whether the session has a unit or rules, which a daemon that is older than these would overlook. */
static bool says_grid(const struct client_view *view)
{
	for (uint32_t i = 0; i < view->layout_count; i++)
		if (view->layouts[i].keep_last || view->layouts[i].partial || view->layouts[i].sparse)
			return true;
	return view->unit || view->unchained;
}

/* Reads the session's unit and rules. attached: the rules are in the reply. */
static enum terrace_status grid_read(struct client_view *view, bool attached,
				     const Terrace__V1__OpenSessionReply *reply)
{
	if (attached && reply->n_rules && reply->n_rules != view->layout_count)
		return client_fail(TERRACE_INTERNAL, "the daemon tells %zu rules of %u layouts", reply->n_rules,
				   view->layout_count);
	for (uint32_t i = 0; attached && i < reply->n_rules; i++) {
		view->layouts[i].keep_last = reply->rules[i]->keep_last;
		view->layouts[i].partial = reply->rules[i]->partial;
		view->layouts[i].sparse = reply->rules[i]->sparse;
	}
	if (says_grid(view) && !reply->prefix_multiple)
		return client_fail(
			TERRACE_UNSUPPORTED,
			"the daemon is older than this library, and knows neither unit_tokens nor "
			"rules: run the terraced that came with the library, or open a session without them");
	view->unit = reply->unit_tokens;
	view->multiple = reply->prefix_multiple ? reply->prefix_multiple : 1;
	for (uint32_t i = 0; i < view->layout_count; i++)
		if (view->layouts[i].layout.block_tokens % client_view_unit(view))
			return client_fail(TERRACE_INTERNAL,
					   "the daemon's unit of %u tokens does not divide layout %u's block",
					   view->unit, i);
	return TERRACE_OK;
}

/* Notes what memory the daemon says that it lends. */
static enum terrace_status lent_read(struct client_view *view, const Terrace__V1__OpenSessionReply *reply)
{
	struct client_lent *lent = view->lent;

	if (reply->n_gpus > DEVICES_MAX)
		return client_fail(TERRACE_INTERNAL, "the daemon names %zu GPUs", reply->n_gpus);
	lent->gpu_count = (uint32_t)reply->n_gpus;
	for (uint32_t g = 0; g < lent->gpu_count; g++) {
		if (reply->gpus[g]->uuid.len != sizeof(lent->gpus[g].uuid))
			return client_fail(TERRACE_INTERNAL, "the uuid of the daemon's GPU %u has %zu bytes", g,
					   reply->gpus[g]->uuid.len);
		memcpy(lent->gpus[g].uuid, reply->gpus[g]->uuid.data, sizeof(lent->gpus[g].uuid));
		lent->gpus[g].bytes = reply->gpus[g]->bytes;
		snprintf(lent->gpus[g].unfit, sizeof(lent->gpus[g].unfit), "%s", reply->gpus[g]->unfit);
	}
	return TERRACE_OK;
}

static enum terrace_status opening_read(struct opening *o, const Terrace__V1__OpenSessionReply *reply)
{
	const bool attached = !o->view;
	enum terrace_status status = attached ? attached_layouts(o, reply) : TERRACE_OK;

	if (!status)
		status = layouts_compare(o->view, reply);
	if (!status)
		status = grid_read(o->view, attached, reply);
	if (!status)
		status = lent_read(o->view, reply);
	if (status)
		return status;
	if (reply->token.len != sizeof(o->view->token.bytes))
		return client_fail(TERRACE_INTERNAL, "the daemon's token has %zu bytes", reply->token.len);
	memcpy(o->view->token.bytes, reply->token.data, sizeof(o->view->token.bytes));
	o->view->id = reply->session;
	o->view->epoch = reply->epoch;
	snprintf(o->fd_socket, sizeof(o->fd_socket), "%s", reply->fd_socket);
	return TERRACE_OK;
}

static enum terrace_status opening_take(void *arg, const struct client_message *message)
{
	Terrace__V1__OpenSessionReply *reply;
	struct client_arena arena;
	enum terrace_status status;

	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__open_session_reply__descriptor, message);
	status = reply ? opening_read(arg, reply) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

/* Opens local calls for an attached view. They go over the same socket. */
static void local_open(struct client_view *view, const char *fd_socket)
{
	const struct client_local_options options = {
		.path = fd_socket,
		.token = view->token.bytes,
		.epoch = view->epoch,
		.session = view->id,
		.known = view->attachment->knows_callers,
		.busy_poll_us = view->client->busy_poll_us,
		.adapts = !view->client->no_adaptive_poll,
	};

	view->local = client_local_create(&view->client->locals, &options);
}

/* Attaches to the daemon's memory if that is wanted and possible. Without it the session still works, by stream. */
static void view_attach(struct client_view *view, const char *fd_socket, uint64_t deadline_us)
{
	struct client_words words;
	const char *why = NULL;

	client_words_keep(&words); /* of the attachment's failure the first lease will say */
	if (view->client->no_borrow)
		why = "the connection was made with no_borrow";
	else if (!*fd_socket)
		why = "the daemon has it switched off";
	else if (client_fds_open(fd_socket, view->token.bytes, view->epoch, view->id, view->lent, deadline_us,
				 &view->attachment))
		why = terrace_error();
	if (why)
		snprintf(view->why_not, sizeof(view->why_not), "%s", why);
	else if (!view->client->no_local_calls)
		local_open(view, fd_socket);
	client_words_back(&words);
}

/* Sends OpenSession or Attach and attaches. On failure o->view is dropped. */
static enum terrace_status opening_run(struct opening *o, enum client_method method, const ProtobufCMessage *request,
				       uint64_t deadline_us)
{
	enum terrace_status status = client_rpc_call(o->client->rpc, &(struct client_job){
									     .method = method,
									     .deadline_us = deadline_us,
									     .first = {.message = request, .last = true},
									     .take = opening_take,
									     .arg = o,
								     });

	if (!status) {
		view_attach(o->view, o->fd_socket, deadline_us);
	} else if (o->view) {
		client_view_drop(o->view);
		o->view = NULL;
	}
	return status;
}

/* ---- opening
 * ------------------------------------------------------------------------------------------------------ */

static enum terrace_status view_open(struct client_view *view, const struct terrace_session *session, uint64_t deadline_us)
{
	Terrace__V1__OpenSessionRequest request = TERRACE__V1__OPEN_SESSION_REQUEST__INIT;
	Terrace__V1__Layout layouts[CLIENT_LAYOUTS_MAX], *pointers[CLIENT_LAYOUTS_MAX];
	Terrace__V1__LayoutRule rules[CLIENT_LAYOUTS_MAX], *rule_pointers[CLIENT_LAYOUTS_MAX];
	struct opening opening = {.view = view, .client = view->client};

	for (uint32_t i = 0; i < view->layout_count; i++) {
		layout_message_write(&view->layouts[i].layout, &layouts[i]);
		pointers[i] = &layouts[i];
	}
	request.tenant = session->tenant;
	request.engine = session->engine;
	request.gpu_write_back = session->gpu_write_back;
	request.local_only = session->local_only;
	request.tokens_per_second = session->tokens_per_second;
	request.unchained_keys = view->unchained;
	request.unit_tokens = view->unit;
	for (uint32_t i = 0; i < view->layout_count; i++) {
		terrace__v1__layout_rule__init(&rules[i]);
		rules[i].keep_last = view->layouts[i].keep_last;
		rules[i].partial = view->layouts[i].partial;
		rules[i].sparse = view->layouts[i].sparse;
		rule_pointers[i] = &rules[i];
	}
	request.rules = rule_pointers;
	request.n_rules = says_grid(view) ? view->layout_count : 0;
	request.layouts = pointers;
	request.n_layouts = view->layout_count;
	return opening_run(&opening, CLIENT_OPEN_SESSION, &request.base, deadline_us);
}

/* The caller's layouts stand `layouts->size` bytes apart: its version of the struct may be another. */
static enum terrace_status layouts_read(struct client_view *view, const struct terrace_layout *layouts)
{
	for (uint32_t i = 0; i < view->layout_count; i++) {
		const uint8_t *at = (const uint8_t *)layouts + i * layouts->size;
		struct client_layout *l = &view->layouts[i];
		const char *problem = client_layout_read((const struct terrace_layout *)at, &l->layout);

		if (problem)
			return client_fail(TERRACE_INVALID, "layout %u: %s", i, problem);
		if (!view->unit && l->layout.block_tokens != view->layouts[0].layout.block_tokens)
			return client_fail(TERRACE_INVALID,
					   "layout %u: block_tokens differs from layout 0's: say unit_tokens, the "
					   "tokens of a key, or open a session for each",
					   i);
		kv_geometry_of(&l->layout, &l->geometry);
		l->id = kv_layout_id(&l->layout);
	}
	return TERRACE_OK;
}

/* The caller's rules stand `rules->size` bytes apart, as the layouts do. */
static enum terrace_status rules_read(struct client_view *view, const struct terrace_layout_rule *rules)
{
	for (uint32_t i = 0; rules && i < view->layout_count; i++) {
		const uint8_t *at = (const uint8_t *)rules + i * rules->size;
		struct client_layout *l = &view->layouts[i];
		struct terrace_layout_rule r;

		if (!client_options_copy(&r, sizeof(r), at, sizeof(r)))
			return client_fail(TERRACE_INVALID, "rule %u: its size is not set: begin a rule with "
					   "TERRACE_LAYOUT_RULE_INIT", i);
		l->keep_last = r.keep_last;
		l->partial = r.partial;
		l->sparse = r.sparse;
	}
	return TERRACE_OK;
}

/* A session that wants attention on a GPU gets layouts that there are kernels for. */
static enum terrace_status layouts_attend(const struct client_view *view)
{
	for (uint32_t i = 0; i < view->layout_count; i++) {
		enum terrace_status status = client_cuda_attends(&view->layouts[i].layout);

		if (status)
			return status;
	}
	return TERRACE_OK;
}

static struct terrace_session *session_create(const char *tenant, const char *engine, bool owner)
{
	struct terrace_session *session = calloc(1, sizeof(*session));
	const size_t engine_bytes = strnlen(engine, ENGINE_MAX);

	if (!session)
		return NULL;
	session->tenant = strdup(tenant);
	session->engine = calloc(1, engine_bytes + 1);
	if (session->engine)
		memcpy(session->engine, engine, engine_bytes);
	session->owner = owner;
	if (session->tenant && session->engine)
		return session;
	free(session->tenant);
	free(session->engine);
	free(session);
	return NULL;
}

static void session_free(struct terrace_session *session)
{
	free(session->tenant);
	free(session->engine);
	free(session);
}

static enum terrace_status open_check(const struct terrace_client *client, const struct terrace_layout *layouts,
				      uint32_t count, struct terrace_session **out)
{
	if (!client || !layouts || !out)
		return client_fail(TERRACE_INVALID, "an argument is NULL");
	if (count < 1 || count > CLIENT_LAYOUTS_MAX)
		return client_fail(TERRACE_INVALID, "%u layouts, not 1 to %d", count, CLIENT_LAYOUTS_MAX);
	return client_process_check(client->generation);
}

enum terrace_status terrace_session_open(struct terrace_client *client, const struct terrace_layout *layouts,
					 uint32_t count, const struct terrace_session_options *options,
					 struct terrace_session **out)
{
	struct terrace_session_options o = TERRACE_SESSION_OPTIONS_INIT;
	enum terrace_status status = open_check(client, layouts, count, out);
	struct terrace_session *session;
	struct client_view *view;

	if (status)
		return client_fail_in(status, "session_open");
	if (options && !client_options_copy(&o, sizeof(o), options, sizeof(o)))
		return client_fail(TERRACE_INVALID, "session_open: the options' size is not set: "
				   "begin them with TERRACE_SESSION_OPTIONS_INIT");
	if (o.tenant && strlen(o.tenant) > TENANT_MAX)
		return client_fail(TERRACE_INVALID, "session_open: the tenant's name is longer than the %d bytes that it may "
				   "have", TENANT_MAX);
	session = session_create(o.tenant ? o.tenant : "", o.engine ? o.engine : program_invocation_short_name, true);
	view = session ? view_create(client, count) : NULL;
	if (!view) {
		if (session)
			session_free(session);
		return client_fail(TERRACE_EXHAUSTED, "session_open: no memory");
	}
	session->generation = client->generation;
	session->view = view;
	session->gpu_write_back = o.gpu_write_back;
	session->local_only = o.local_only;
	session->tokens_per_second = o.tokens_per_second;
	view->unit = o.unit_tokens;
	view->unchained = o.unchained_keys;
	status = layouts_read(view, layouts);
	if (!status)
		status = rules_read(view, o.rules);
	if (!status && o.gpu)
		status = layouts_attend(view);
	if (status)
		client_view_drop(view);
	else
		status = view_open(view, session, client_call_deadline(client, 0));
	if (status) {
		session_free(session);
		return client_fail_in(status, "session_open");
	}
	*out = session;
	return TERRACE_OK;
}

static enum terrace_status view_join(struct terrace_client *client, const struct terrace_token *token,
				     uint64_t deadline_us, struct client_view **view)
{
	Terrace__V1__AttachRequest request = TERRACE__V1__ATTACH_REQUEST__INIT;
	struct opening opening = {.client = client};
	enum terrace_status status;

	request.token = CLIENT_BINARY(token->bytes, sizeof(token->bytes));
	status = opening_run(&opening, CLIENT_ATTACH, &request.base, deadline_us);
	if (!status)
		*view = opening.view;
	return status;
}

enum terrace_status terrace_session_attach(struct terrace_client *client, const struct terrace_token *token,
					   struct terrace_session **out)
{
	struct terrace_session *session;
	enum terrace_status status;

	if (!client || !token || !out)
		return client_fail(TERRACE_INVALID, "session_attach: an argument is NULL");
	status = client_process_check(client->generation);
	if (status)
		return client_fail_in(status, "session_attach");
	session = session_create("", "", false);
	if (!session)
		return client_fail(TERRACE_EXHAUSTED, "session_attach: no memory");
	session->generation = client->generation;
	status = view_join(client, token, client_call_deadline(client, 0), &session->view);
	if (status) {
		session_free(session);
		return client_fail_in(status, "session_attach");
	}
	*out = session;
	return TERRACE_OK;
}

/* ---- a GPU made ready
 * ---------------------------------------------------------------------------------------------- */

static enum terrace_status gpu_ready(const struct client_view *view, uint32_t g, uint32_t uses, uint64_t deadline_us)
{
	static const struct {
		enum terrace_gpu_use bit;
		enum client_use use;
	} known[] = {
		{TERRACE_GPU_LEASES, CLIENT_USE_LEASE},
		{TERRACE_GPU_RESERVATIONS, CLIENT_USE_RESERVE},
		{TERRACE_GPU_HOST_BLOCKS, CLIENT_USE_HOST},
	};
	enum terrace_status status;
	uint32_t unknown = uses;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		unknown &= ~(uint32_t)known[i].bit;
	if (!uses || unknown)
		return client_fail(TERRACE_INVALID, "uses 0x%x are none, or not known: give TERRACE_GPU_LEASES and the like", uses);
	if (uses != TERRACE_GPU_HOST_BLOCKS && g < view->lent->gpu_count && view->lent->gpus[g].unfit[0])
		return client_fail(TERRACE_INVALID, "%s", view->lent->gpus[g].unfit);
	status = client_borrow_check(view);
	if (!status)
		status = client_view_use_gpu(view, g, deadline_us);
	if (status)
		return status;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (uses & known[i].bit)
			client_fds_use(view->attachment, known[i].use, g);
	return client_fds_use_await(view->attachment, deadline_us);
}

enum terrace_status terrace_session_gpu_ready(struct terrace_session *session, uint32_t g, uint32_t uses, uint64_t timeout_us)
{
	enum terrace_status status = client_session_check(session);
	struct client_view *view;

	if (!status) {
		view = session->view;
		client_view_hold(view); /* a close of the session ends it, and does not wait for it */
		status = gpu_ready(view, g, uses, client_call_deadline(view->client, timeout_us));
		client_view_drop(view);
	}
	return status ? client_fail_in(status, "session_gpu_ready") : TERRACE_OK;
}

/* ---- closing and opening again
 * ------------------------------------------------------------------------------------ */

/* Tells the daemon that a session has ended. A daemon that does not hear it finds out by itself. */
static void view_end(struct client_view *view)
{
	Terrace__V1__CloseSessionRequest request = TERRACE__V1__CLOSE_SESSION_REQUEST__INIT;
	struct client_words words;

	client_words_keep(&words);
	request.session = view->id;
	client_rpc_call(view->client->rpc, &(struct client_job){
						   .method = CLIENT_CLOSE_SESSION,
						   .deadline_us = client_deadline_us(CLOSE_TIMEOUT_US),
						   .first = {.message = &request.base, .last = true},
					   });
	client_words_back(&words);
}

void terrace_session_close(struct terrace_session *session)
{
	if (!session || client_forked(session->generation))
		return;
	if (session->view->attachment)
		client_fds_close(session->view->attachment);
	client_local_close(session->view->local);
	if (session->owner)
		view_end(session->view);
	client_view_drop(session->view);
	session_free(session);
}

/* Opens the session anew, with a daemon that opens sessions. One that drains before a restart answers but opens none:
 * the next one is waited for. */
static enum terrace_status view_reopen(const struct terrace_session *session, const struct client_view *old, uint64_t deadline_us,
				       struct client_view **view)
{
	enum terrace_status status;

	do {
		status = client_await_daemon(old->client, deadline_us);
		if (status)
			return status;
		*view = view_create(old->client, old->layout_count);
		if (!*view)
			return TERRACE_EXHAUSTED;
		memcpy((*view)->layouts, old->layouts, old->layout_count * sizeof(old->layouts[0]));
		(*view)->unit = old->unit;
		(*view)->unchained = old->unchained;
		status = view_open(*view, session, deadline_us);
	} while (status == TERRACE_UNAVAILABLE && client_ask_again(deadline_us));
	return status;
}

enum terrace_status terrace_session_reopen(struct terrace_session *session, uint64_t timeout_us)
{
	enum terrace_status status = client_session_check(session);
	struct client_view *old, *view = NULL;
	uint64_t deadline_us;

	if (status)
		return client_fail_in(status, "session_reopen");
	if (!session->owner)
		return client_fail(TERRACE_PRECONDITION, "session_reopen: an attached session is reopened by the process "
				   "that opened it; attach with its new token");
	old = session->view;
	deadline_us = client_call_deadline(old->client, timeout_us);
	status = view_reopen(session, old, deadline_us, &view);
	if (status)
		return client_fail_in(status, "session_reopen");
	session->view = view;
	client_local_close(old->local);
	if (view->epoch == old->epoch)
		view_end(old); /* the daemon has lived on: do not leave it with two sessions */
	client_view_drop(old);
	return TERRACE_OK;
}
