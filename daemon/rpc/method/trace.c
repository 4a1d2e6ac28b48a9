/* TraceStart and TraceStop: a recording goes to a new file of the daemon's own folder; a client names it, but not where
 * it is. */
#include "daemon/advice/trace.h"
#include "daemon/block/views.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/shortage.h"
#include "store/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 64 };

static bool name_good(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

	return n && n <= NAME_MAX_BYTES && !name[n] && name[0] != '.';
}

static enum status not_made(struct rpc_call *c, const char *path, int error)
{
	char words[SHORTAGE_WORDS_MAX];

	return rpc_fail(c, error == EEXIST ? STATUS_EXISTS : shortage_is(error) ? STATUS_EXHAUSTED : STATUS_IO, "%s: %s", path,
			shortage_words(error, words, sizeof words));
}

static enum status file_make(struct rpc_call *c, const char *name, char *path, size_t room, int *fd)
{
	snprintf(path, room, "%s/traces", c->daemon->config->data_dir);
	if (mkdir(path, 0700) && errno != EEXIST)
		return not_made(c, path, errno);
	snprintf(path, room, "%s/traces/%s", c->daemon->config->data_dir, name);
	*fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (*fd < 0)
		return not_made(c, path, errno);
	return STATUS_OK;
}

enum status rpc_trace_start(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__TraceStartRequest *q = (const Terrace__V1__TraceStartRequest *)request;
	const size_t room = CONFIG_TEXT_MAX + NAME_MAX_BYTES + 16;
	Terrace__V1__TraceStartReply *r = rpc_take(c, sizeof *r);
	char *path = rpc_take(c, room);
	const char *why = NULL;
	enum status s;
	int fd = -1;

	if (!r || !path)
		return rpc_too_big(c);
	if (!name_good(q->name))
		return rpc_fail(c, STATUS_INVALID, "name: 1 to 64 letters, digits, '.', '_' or '-', the first no '.'");
	s = file_make(c, q->name, path, room, &fd);
	if (s != STATUS_OK)
		return s;
	s = cache_trace_start(rpc_cache(c), fd, q->max_bytes, &why);
	if (s != STATUS_OK) {
		close(fd);
		unlink(path);
		return s == STATUS_BUSY ? rpc_fail(c, STATUS_PRECONDITION, "%s", why) : rpc_fail_why(c, s, why);
	}
	log_info("trace_started", LOG_TEXT("file", path));
	terrace__v1__trace_start_reply__init(r);
	r->path = path;
	*reply = &r->base;
	return STATUS_OK;
}

/* The status and sentence of a trace whose file is not complete. What was written before stays in it. */
static enum status not_whole(struct rpc_call *c, enum status s, const struct cache_trace_result *result, const char *why)
{
	char words[SHORTAGE_WORDS_MAX];

	if (s == STATUS_NOT_FOUND || !result->error)
		return rpc_fail_why(c, s, why);
	return rpc_fail(c, s, "the trace in %s/traces could not be written in full: %s", c->daemon->config->data_dir,
			shortage_words(result->error, words, sizeof words));
}

enum status rpc_trace_stop(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	Terrace__V1__TraceStopReply *r = rpc_take(c, sizeof *r);
	struct cache_trace_result result = { .error = 0 };
	const char *why = NULL;
	enum status s;

	(void)request;
	if (!r)
		return rpc_too_big(c);
	s = cache_trace_stop(rpc_cache(c), &result, &why);
	if (s != STATUS_OK)
		return not_whole(c, s, &result, why);
	log_info("trace_stopped", LOG_NUM("requests", result.requests), LOG_NUM("dropped", result.dropped), LOG_NUM("bytes", result.bytes));
	terrace__v1__trace_stop_reply__init(r);
	r->requests = result.requests;
	r->blocks = result.blocks;
	r->bytes = result.bytes;
	r->dropped = result.dropped;
	*reply = &r->base;
	return STATUS_OK;
}
