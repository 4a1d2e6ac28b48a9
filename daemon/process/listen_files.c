/* See process/listen_files.h. */
#include "daemon/process/listen_files.h"

#include "daemon/process/config.h"
#include "proto/tls.h"

enum status listen_files_refuse(const struct config *c, enum status s, struct config_errors *errors)
{
	const struct tls_files files = { .cert = c->listen_cert, .key = c->listen_key, .ca = c->listen_ca };
	struct ssl_ctx_st *context;
	char why[TLS_WORDS_MAX];

	if (s || !c->check || !config_listen_tls(c))
		return s;
	context = tls_context(&files, true, why);
	if (!context || !tls_context_in_time(context, files.cert, NULL, why)) {
		config_complain(errors, "listen: %s", why);
		s = STATUS_INVALID;
	}
	if (context)
		tls_context_free(context);
	return s;
}
