/* terracectl drain: a call that may take long. Its deadline follows from its options. */
#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/output.h"
#include "client/ctl/values.h"
#include "terrace.pb-c.h"

enum { OPTION_WAIT, OPTION_UNDO };

static int print_drained(const struct ctl_args *args, bool undo, const Terrace__V1__DrainReply *reply)
{
	struct json_t *tree = out_object();

	out_put_text(tree, "state", undo ? "serving" : "draining");
	out_put_bool(tree, "drained", reply->drained);
	out_put_uint(tree, "sessions", reply->sessions);
	out_put_uint(tree, "leases", reply->leases);
	out_put_uint(tree, "reservations", reply->reservations);
	out_put_bool(tree, "hands_on", reply->hands_on);
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	return undo || reply->drained ? CTL_OK : CTL_NO;
}

int ctl_run_drain(const struct ctl_args *args)
{
	Terrace__V1__DrainRequest request = TERRACE__V1__DRAIN_REQUEST__INIT;
	Terrace__V1__DrainReply *reply;
	const char *wait = args->value[OPTION_WAIT];
	uint64_t wait_us = 0;
	struct ctl_daemon d;
	int code;

	if (wait && !ctl_parse_seconds(wait, &wait_us))
		return ctl_usage(args->command,
				 "drain: --wait %s: not a number of seconds above 0, at most 86400", wait);
	request.undo = args->value[OPTION_UNDO] != NULL;
	if (wait && request.undo)
		return ctl_usage(args->command, "drain: --wait or --undo, not both");
	request.wait_ms = (wait_us + 999) / 1000;
	code = ctl_daemon_open(args, &d);
	if (!code)
		code = ctl_daemon_call(
			&d, CLIENT_ADMIN_DRAIN, &request.base, &terrace__v1__drain_reply__descriptor,
			args->timeout_us ? args->timeout_us : wait_us + CTL_TIMEOUT_US, &reply);
	if (!code)
		code = print_drained(args, request.undo, reply);
	ctl_daemon_close(&d);
	return code;
}
