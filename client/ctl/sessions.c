/* See sessions.h. */
#include "client/ctl/sessions.h"

#include <stdlib.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/layouts.h"
#include "client/value/layout.h"
#include "kernels/format.h"
#include "proto/layout_message.h"

/* Reads a row's layout. False: this library does not make such a layout, as it is of another version. */
static bool layout_read(const Terrace__V1__LayoutRow *row, struct terrace_layout *out)
{
	struct kv_layout kv;

	if (!row->layout || !layout_message_read(row->layout, &kv) || kv_layout_problem(&kv) || kv_layout_id(&kv) != row->layout_id)
		return false;
	client_layout_write(&kv, out);
	return true;
}

/* The daemon has a row for each tenant that has the layout. */
static bool is_repeated(const Terrace__V1__LayoutsReply *reply, size_t row)
{
	size_t i = 0;

	while (reply->rows[i]->layout_id != reply->rows[row]->layout_id)
		i++;
	return i < row;
}

static int ask_layouts(const struct ctl_args *args, struct ctl_sessions *s)
{
	Terrace__V1__LayoutsRequest request = TERRACE__V1__LAYOUTS_REQUEST__INIT;
	Terrace__V1__LayoutsReply *reply;
	struct ctl_daemon d;
	int code = ctl_daemon_open(args, &d);

	if (!code)
		code = ctl_daemon_call(&d, CLIENT_ADMIN_LAYOUTS, &request.base, &terrace__v1__layouts_reply__descriptor,
				       args->timeout_us, &reply);
	for (size_t i = 0; !code && i < reply->n_rows && i < CTL_LAYOUTS_KNOWN_MAX; i++) {
		if (is_repeated(reply, i))
			continue;
		if (layout_read(reply->rows[i], &s->layouts[s->layout_count]))
			s->layout_count++;
		else
			ctl_failed("layout %016llx: it is of another version, and is passed over: a terracectl of the daemon's version reaches it",
				   (unsigned long long)reply->rows[i]->layout_id);
	}
	ctl_daemon_close(&d);
	return code;
}

enum terrace_status ctl_client_connect(const struct ctl_args *args, struct terrace_client **out)
{
	struct terrace_connect_options options = TERRACE_CONNECT_OPTIONS_INIT;

	options.address = args->address;
	options.timeout_us = args->timeout_us ? args->timeout_us : CTL_TIMEOUT_US;
	options.no_borrow = true;
	options.tls_cert = args->tls_cert;
	options.tls_key = args->tls_key;
	options.tls_ca = args->tls_ca;
	options.tls_name = args->tls_name;
	return terrace_connect(&options, out);
}

int ctl_sessions_open(const struct ctl_args *args, const char *file, uint64_t timeout_us, struct ctl_sessions *s)
{
	enum terrace_status status;
	int code;

	*s = (struct ctl_sessions){.args = args, .together = file != NULL};
	s->timeout_us = args->timeout_us ? args->timeout_us : timeout_us;
	s->layouts = file ? NULL : calloc(CTL_LAYOUTS_KNOWN_MAX, sizeof(*s->layouts));
	if (!file && !s->layouts)
		return ctl_failed("layouts: no memory for them");
	code = file ? layouts_load(file, &s->file) : ask_layouts(args, s);
	if (file)
		s->layout_count = s->file.count;
	if (!code)
		code = ctl_daemon_check(args);
	if (code)
		return code;
	status = ctl_client_connect(args, &s->client);
	return status == TERRACE_OK ? CTL_OK : ctl_status_failed(args->command->name, status);
}

void ctl_sessions_close(struct ctl_sessions *s)
{
	terrace_disconnect(s->client);
	free(s->layouts);
	*s = (struct ctl_sessions){.args = s->args};
}

/* Opens the next session: of the file, or of layout i. *id: the layout's; 0 for a session of the file. */
static enum terrace_status next_session(struct ctl_sessions *s, uint32_t i, struct terrace_session **session,
					uint64_t *id)
{
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;
	struct kv_layout kv;

	*session = NULL;
	*id = 0;
	if (s->together)
		return layouts_session(s->client, &s->file, session);
	*id = client_layout_read(&s->layouts[i], &kv) ? 0 : kv_layout_id(&kv);
	options.engine = "terracectl";
	return terrace_session_open(s->client, &s->layouts[i], 1, &options, session);
}

int ctl_sessions_each(struct ctl_sessions *s,
		      int (*each)(void *arg, struct ctl_sessions *s, struct terrace_session *session, uint64_t id), void *arg)
{
	const uint32_t step = s->together ? s->layout_count : 1;
	int code = CTL_OK;

	for (uint32_t i = 0; i < s->layout_count && !code; i += step) {
		struct terrace_session *session;
		uint64_t id;
		enum terrace_status status = next_session(s, i, &session, &id);

		if (status)
			return ctl_status_failed(s->args->command->name, status);
		code = each(arg, s, session, id);
		terrace_session_close(session);
	}
	return code;
}
