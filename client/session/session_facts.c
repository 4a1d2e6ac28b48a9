/* Answers questions about a session from what the process knows, without the daemon. */
#include "client/driver/gpu.h"
#include "client/memory/lent.h"
#include "client/value/layout.h"
#include "client/session/session.h"
#include "client/value/status.h"

#include <string.h>

void terrace_session_token(const struct terrace_session *session, struct terrace_token *token)
{
	*token = session->view->token;
}

uint64_t terrace_session_epoch(const struct terrace_session *session)
{
	return session->view->epoch;
}

bool terrace_session_borrows(const struct terrace_session *session)
{
	return session->view->attachment != NULL;
}

uint32_t terrace_session_layout_count(const struct terrace_session *session)
{
	return session->view->layout_count;
}

enum terrace_status terrace_session_layout(const struct terrace_session *session, uint32_t l,
					   struct terrace_layout *layout)
{
	struct terrace_layout out;

	if (!session || !layout || l >= session->view->layout_count)
		return client_fail(TERRACE_INVALID, "session_layout: the session has no layout of that number");
	client_layout_write(&session->view->layouts[l].layout, &out);
	if (!client_options_give(layout, &out, sizeof(out), CLIENT_LAYOUT_LEAST))
		return client_fail(TERRACE_INVALID, "session_layout: the layout's size is not set: begin it with TERRACE_LAYOUT_INIT");
	return TERRACE_OK;
}

uint32_t terrace_session_unit(const struct terrace_session *session)
{
	return client_view_unit(session->view);
}

uint32_t terrace_session_prefix_multiple(const struct terrace_session *session)
{
	return session->view->multiple;
}

enum terrace_status terrace_session_rule(const struct terrace_session *session, uint32_t l,
					 struct terrace_layout_rule *rule)
{
	struct terrace_layout_rule out = TERRACE_LAYOUT_RULE_INIT;
	const struct client_layout *layout;

	if (!session || !rule || l >= session->view->layout_count)
		return client_fail(TERRACE_INVALID, "session_rule: the session has no layout of that number");
	layout = &session->view->layouts[l];
	out.keep_last = layout->keep_last;
	out.partial = layout->partial;
	out.sparse = layout->sparse;
	if (!client_options_give(rule, &out, sizeof(out), sizeof(out)))
		return client_fail(TERRACE_INVALID,
				   "session_rule: the rule's size is not set: begin it with TERRACE_LAYOUT_RULE_INIT");
	return TERRACE_OK;
}

uint32_t terrace_session_gpu_count(const struct terrace_session *session)
{
	return session->view->lent->gpu_count;
}

enum terrace_status terrace_session_gpu(const struct terrace_session *session, uint32_t g, struct terrace_gpu_info *info)
{
	struct terrace_gpu_info out = {.size = sizeof(out)};
	const struct client_lent *lent;

	if (!session || !info || g >= session->view->lent->gpu_count)
		return client_fail(TERRACE_INVALID, "session_gpu: the daemon lends no GPU of that number");
	lent = session->view->lent;
	memcpy(out.uuid, lent->gpus[g].uuid, sizeof(out.uuid));
	out.bytes = lent->gpus[g].bytes;
	if (!client_options_give(info, &out, sizeof(out), sizeof(out)))
		return client_fail(TERRACE_INVALID, "session_gpu: the info's size is not set: begin it with TERRACE_GPU_INFO_INIT");
	return TERRACE_OK;
}

enum terrace_status terrace_session_gpu_of(const struct terrace_session *session, uint32_t ordinal, int32_t *g)
{
	enum terrace_status status = client_session_check(session);
	const struct client_lent *lent;
	uint8_t uuid[DEVICE_UUID_BYTES];

	if (!status && !g)
		status = client_fail(TERRACE_INVALID, "the pointer for the result is NULL");
	if (!status)
		status = client_gpu_uuid(ordinal, uuid);
	if (status)
		return client_fail_in(status, "session_gpu_of");
	lent = session->view->lent;
	for (uint32_t i = 0; i < lent->gpu_count; i++) {
		if (memcmp(lent->gpus[i].uuid, uuid, sizeof(uuid)) != 0)
			continue;
		*g = (int32_t)i;
		return TERRACE_OK;
	}
	return client_fail(TERRACE_NOT_FOUND, "session_gpu_of: the daemon lends no memory of this process's GPU %u: "
			   "it takes it with --gpus", ordinal);
}
