/* The small calls: delete, touch, report. */
#include "client/call/report.h"

#include "client/session/connect.h"
#include "client/session/session.h"
#include "client/value/keys.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "terrace.pb-c.h"

#define SAME(name) _Static_assert((int)TERRACE_##name == (int)TERRACE__V1__EVENT__##name, #name)
SAME(EVENT_NONE);
SAME(EVENT_TURN_END);
SAME(EVENT_TOOL_CALL);
SAME(EVENT_SESSION_END);
#undef SAME

static enum terrace_status keys_begin(struct terrace_session *session, const struct terrace_keys *keys,
				      const struct terrace_call_options *options, const char *name,
				      Terrace__V1__Keys *names)
{
	enum terrace_status status = client_session_check(session);
	uint32_t first = 0;

	if (!status)
		status = client_keys_check(keys);
	if (!status)
		status = client_call_options(options, &first);
	if (status)
		return client_fail_in(status, name);
	client_keys_message_from(keys, first, names);
	return TERRACE_OK;
}

static enum terrace_status simple_call(struct terrace_session *session, enum client_method method,
				       const ProtobufCMessage *request, uint64_t timeout_us,
				       enum terrace_status (*take)(void *, const struct client_message *), void *arg)
{
	return client_view_call(session->view, &(struct client_job){
						       .method = method,
						       .deadline_us = client_call_deadline(session->view->client, timeout_us),
						       .first = {.message = request, .last = true},
						       .take = take,
						       .arg = arg,
					       });
}

enum terrace_status client_delete_read(struct client_deleting *g, const struct client_message *message)
{
	enum terrace_status status = TERRACE_INTERNAL, failed = TERRACE_OK;
	Terrace__V1__DeleteReply *reply;
	struct client_arena arena;

	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__delete_reply__descriptor, message);
	if (reply)
		status = reply->n_status == g->count ? TERRACE_OK
						     : client_fail(TERRACE_INTERNAL,
								   "the daemon answers %u keys with %zu statuses", g->count,
								   reply->n_status);
	for (uint32_t i = 0; !status && i < g->count; i++) {
		const enum terrace_status one = client_status_of_wire((int)reply->status[i]);

		if (g->statuses)
			g->statuses[i] = one;
		if (!failed && one != TERRACE_MISS)
			failed = one;
	}
	g->answered = !status;
	if (!status && failed)
		status = client_fail(
			failed, "delete: %s",
			reply->reason && *reply->reason
				? reply->reason
				: "a disk did not answer in time: a restart may bring blocks back: delete them again");
	client_arena_fini(&arena);
	return status;
}

static enum terrace_status delete_take(void *arg, const struct client_message *message)
{
	return client_delete_read(arg, message);
}

enum terrace_status terrace_delete(struct terrace_session *session, const struct terrace_keys *keys, uint64_t timeout_us,
				   enum terrace_status *statuses)
{
	Terrace__V1__DeleteRequest request = TERRACE__V1__DELETE_REQUEST__INIT;
	struct client_deleting deleting = {.statuses = statuses};
	Terrace__V1__Keys names;
	enum terrace_status status = keys_begin(session, keys, NULL, "delete", &names);

	if (status)
		return status;
	deleting.count = keys->count;
	request.session = session->view->id;
	request.keys = &names;
	request.in_part = true;
	status = simple_call(session, CLIENT_DELETE, &request.base, timeout_us, delete_take, &deleting);
	if (status == TERRACE_DEADLINE && !deleting.answered)
		client_statuses_late(statuses, keys->count);
	return status;
}

/* The replies of touch and report say nothing that the caller is told. */
enum terrace_status terrace_touch_with(struct terrace_session *session, const struct terrace_keys *keys,
				       const struct terrace_call_options *options, uint64_t timeout_us)
{
	Terrace__V1__TouchRequest request = TERRACE__V1__TOUCH_REQUEST__INIT;
	Terrace__V1__Keys names;
	enum terrace_status status = keys_begin(session, keys, options, "touch", &names);

	if (status)
		return status;
	request.session = session->view->id;
	request.keys = &names;
	return simple_call(session, CLIENT_TOUCH, &request.base, timeout_us, NULL, NULL);
}

enum terrace_status terrace_touch(struct terrace_session *session, const struct terrace_keys *keys, uint64_t timeout_us)
{
	return terrace_touch_with(session, keys, NULL, timeout_us);
}

enum terrace_status terrace_report_with(struct terrace_session *session, const struct terrace_keys *keys,
					const struct terrace_call_options *options, enum terrace_event event,
					int32_t priority, uint64_t ttl_ms, uint64_t timeout_us)
{
	Terrace__V1__ReportRequest request = TERRACE__V1__REPORT_REQUEST__INIT;
	Terrace__V1__Keys names;
	enum terrace_status status = keys_begin(session, keys, options, "report", &names);

	if (status)
		return status;
	if ((int)event < TERRACE_EVENT_NONE || (int)event > TERRACE_EVENT_SESSION_END)
		return client_fail(TERRACE_INVALID, "report: event %d is not one of enum terrace_event", (int)event);
	request.session = session->view->id;
	request.keys = &names;
	request.event = (Terrace__V1__Event)event;
	request.priority = priority;
	request.ttl_ms = ttl_ms;
	return simple_call(session, CLIENT_REPORT, &request.base, timeout_us, NULL, NULL);
}

enum terrace_status terrace_report(struct terrace_session *session, const struct terrace_keys *keys,
				   enum terrace_event event, int32_t priority, uint64_t ttl_ms, uint64_t timeout_us)
{
	return terrace_report_with(session, keys, NULL, event, priority, ttl_ms, timeout_us);
}
