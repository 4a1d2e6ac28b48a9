/* One channel and one call at a time. Every failure is one line on stderr and an exit code. */
#include "client/ctl/daemon.h"

#include "client/ctl/ctl.h"

#include <stdlib.h>
#include <string.h>

#include "client/ctl/errors.h"
#include "client/transport/decode.h"
#include "client/value/clock.h"
#include "client/transport/address.h"
#include "client/transport/tls.h"

struct reply {
	struct ctl_daemon *daemon;
	const ProtobufCMessageDescriptor *type;
	void *message;
};

int ctl_status_failed(const char *what, enum terrace_status status)
{
	const char *words = terrace_error();

	if (strstr(words, what))
		return ctl_failed_status(status, "%s", words);
	return ctl_failed_status(status, "%s: %s", what, *words ? words : terrace_status_text(status));
}

/* The daemon's address, chosen as terrace_connect chooses it. */
static const char *address_of(const struct ctl_args *args)
{
	const char *address = args->address ? args->address : getenv("TERRACE_ADDRESS");

	return address && *address ? address : CLIENT_ADDRESS_DEFAULT;
}

/* Reads the certificates' paths from the line and the environment. CTL_OK: *tls has them. */
static int tls_of(const struct ctl_args *args, struct client_tls *tls)
{
	const struct client_tls_options given = {args->tls_cert, args->tls_key, args->tls_ca, args->tls_name};

	if (client_tls_read(address_of(args), &given, tls))
		return ctl_usage(args->command, "%s", terrace_error());
	return CTL_OK;
}

int ctl_daemon_check(const struct ctl_args *args)
{
	const char *address = address_of(args);
	char target[CLIENT_ADDRESS_MAX], words[CLIENT_ADDRESS_WORDS_MAX];
	struct client_tls tls;
	int error = tls_of(args, &tls);

	if (error)
		return error;
	if (client_address_read(address, tls.on, target))
		return ctl_usage(args->command, "%s", terrace_error());
	error = client_address_error(address);
	if (!error)
		return CTL_OK;
	client_address_words(address, error, words);
	return ctl_failed_status(TERRACE_UNAVAILABLE, "%s", words);
}

int ctl_daemon_open(const struct ctl_args *args, struct ctl_daemon *d)
{
	enum terrace_status status;
	struct client_tls tls;
	int code;

	d->rpc = NULL;
	d->arena = NULL;
	d->address = address_of(args);
	code = ctl_daemon_check(args);
	if (code)
		return code;
	tls_of(args, &tls);
	status = client_rpc_open(d->address, 0, &tls, &d->rpc);
	return status == TERRACE_OK ? CTL_OK : ctl_status_failed(d->address, status);
}

static void reply_drop(struct ctl_daemon *d)
{
	if (d->arena)
		client_arena_fini(d->arena);
	free(d->arena);
	d->arena = NULL;
}

void ctl_daemon_close(struct ctl_daemon *d)
{
	reply_drop(d);
	if (!d->rpc)
		return;
	client_rpc_close(d->rpc);
	client_rpc_destroy(d->rpc);
	d->rpc = NULL;
}

static enum terrace_status take(void *arg, const struct client_message *message)
{
	struct reply *r = arg;

	r->message = client_wire_unpack(r->daemon->arena, r->type, message);
	return r->message ? TERRACE_OK : TERRACE_INTERNAL;
}

int ctl_daemon_call(struct ctl_daemon *d, enum client_method method, const ProtobufCMessage *request,
		    const ProtobufCMessageDescriptor *type, uint64_t timeout_us, void *reply)
{
	struct reply r = {.daemon = d, .type = type};
	struct client_job job = {
		.method = method,
		.deadline_us = client_deadline_us(timeout_us ? timeout_us : CTL_TIMEOUT_US),
		.first = {.message = request, .last = true},
		.take = take,
		.arg = &r,
	};
	enum terrace_status status;

	reply_drop(d);
	d->arena = malloc(sizeof(*d->arena));
	if (!d->arena)
		return ctl_failed("no memory for the daemon's reply");
	client_arena_init(d->arena);
	status = client_rpc_call(d->rpc, &job);
	if (status != TERRACE_OK)
		return ctl_status_failed(d->address, status);
	if (!r.message)
		return ctl_failed("%s: the daemon sent no reply: is it of another version?", d->address);
	*(void **)reply = r.message;
	return CTL_OK;
}
