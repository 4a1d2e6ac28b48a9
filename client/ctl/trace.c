/* terracectl trace: starts a recording, waits, ends it. */
#include <signal.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/output.h"
#include "client/ctl/values.h"
#include "terrace.pb-c.h"

enum { OPTION_SECONDS, OPTION_MAX };
#define RECORD_US (60ull * 1000000)
#define STOP_TIMEOUT_US (30ull * 1000000)

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
	(void)signal;
	interrupted = 1;
}

/* Waits until the time is up, or until a signal asks for the end. */
static void wait_us(uint64_t us)
{
	struct sigaction action = {.sa_handler = interrupt};
	struct timespec left = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	while (!interrupted && nanosleep(&left, &left))
		;
}

static int stop(const struct ctl_args *args, struct ctl_daemon *d, struct json_t *tree)
{
	Terrace__V1__TraceStopRequest request = TERRACE__V1__TRACE_STOP_REQUEST__INIT;
	Terrace__V1__TraceStopReply *reply;
	int code = ctl_daemon_call(d, CLIENT_ADMIN_TRACE_STOP, &request.base, &terrace__v1__trace_stop_reply__descriptor,
				   args->timeout_us ? args->timeout_us : STOP_TIMEOUT_US, &reply);

	if (code) {
		out_free(tree);
		return code;
	}
	out_put_uint(tree, "requests", reply->requests);
	out_put_uint(tree, "blocks", reply->blocks);
	out_put_uint(tree, "bytes", reply->bytes);
	out_put_uint(tree, "dropped", reply->dropped);
	return out_print(tree, args->json, false) ? CTL_OK : CTL_FAILED;
}

static int record(const struct ctl_args *args, struct ctl_daemon *d, uint64_t for_us, uint64_t max_bytes)
{
	Terrace__V1__TraceStartRequest request = TERRACE__V1__TRACE_START_REQUEST__INIT;
	Terrace__V1__TraceStartReply *reply;
	struct json_t *tree;
	int code;

	request.name = args->words[1];
	request.max_bytes = max_bytes;
	code = ctl_daemon_call(d, CLIENT_ADMIN_TRACE_START, &request.base, &terrace__v1__trace_start_reply__descriptor,
			       args->timeout_us, &reply);
	if (code)
		return code;
	tree = out_object();
	out_put_text(tree, "path", reply->path);
	wait_us(for_us);
	return stop(args, d, tree);
}

int ctl_run_trace(const struct ctl_args *args)
{
	const char *seconds = args->value[OPTION_SECONDS], *max = args->value[OPTION_MAX];
	bool recording = !strcmp(args->words[0], "record");
	uint64_t for_us = RECORD_US, max_bytes = 0;
	struct ctl_daemon d;
	int code;

	if (!recording && strcmp(args->words[0], "stop"))
		return ctl_usage(args->command, "trace: 'record' or 'stop', not '%s'", args->words[0]);
	if (args->word_count != (recording ? 2 : 1))
		return ctl_usage(args->command, recording ? "trace record: it takes one name, that of the new file; the name is missing, or there are "
							    "several" : "trace stop: it takes no name");
	if (seconds && !ctl_parse_seconds(seconds, &for_us))
		return ctl_usage(args->command, "trace: --seconds %s: not a number of seconds above 0, at most 86400", seconds);
	if (max && (!ctl_parse_bytes(max, &max_bytes) || !max_bytes))
		return ctl_usage(args->command, "trace: --max %s: not a number of bytes above 0, as 64MiB", max);
	code = ctl_daemon_open(args, &d);
	if (!code)
		code = recording ? record(args, &d, for_us, max_bytes) : stop(args, &d, out_object());
	ctl_daemon_close(&d);
	return code;
}
