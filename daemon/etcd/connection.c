/* The client and its connection, of which there is one at a time. See daemon/etcd/engine.h. */
#include "daemon/etcd/engine.h"

#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEM_MAX = 1 << 20 };

/* ---- the client ---- */

static void endpoints_read(struct etcd *e)
{
	for (const char *at = e->options.endpoints; *at && e->endpoint_count < ETCD_ENDPOINTS_MAX;) {
		const size_t n = strcspn(at, ",");

		snprintf(e->endpoints[e->endpoint_count++], ETCD_HOST_MAX, "%.*s", (int)n, at);
		at += n + (at[n] == ',');
	}
}

struct etcd *etcd_create(const struct etcd_options *options)
{
	struct etcd *e = calloc(1, sizeof *e);

	if (!e)
		return NULL;
	e->options = *options;
	endpoints_read(e);
	grpc_init();
	e->queue = grpc_completion_queue_create_for_next(NULL);
	return e;
}

void etcd_destroy(struct etcd *e)
{
	if (!e)
		return;
	etcd_disconnect(e);
	grpc_completion_queue_shutdown(e->queue);
	while (grpc_completion_queue_next(e->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
	       GRPC_QUEUE_SHUTDOWN)
		;
	grpc_completion_queue_destroy(e->queue);
	grpc_shutdown();
	explicit_bzero(e->token, sizeof e->token);
	free(e);
}

uint32_t etcd_endpoint_count(const struct etcd *e)
{
	return e->endpoint_count;
}

const char *etcd_endpoint(const struct etcd *e)
{
	return e->endpoint;
}

const char *etcd_why(const struct etcd *e)
{
	return e->why;
}

/* ---- the connection ---- */

static grpc_arg int_arg(const char *key, int value)
{
	return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value };
}

/* Makes credentials of the three files. NULL: `why` has words. */
static grpc_channel_credentials *tls_create(const struct etcd_options *o, char *why, size_t size)
{
	size_t n;
	char *ca = file_read(o->ca, PEM_MAX, &n, why, size);
	char *cert = ca && o->cert && *o->cert ? file_read(o->cert, PEM_MAX, &n, why, size) : NULL;
	char *key = cert ? file_read(o->key, PEM_MAX, &n, why, size) : NULL;
	const bool wants_pair = o->cert && *o->cert;
	grpc_ssl_pem_key_cert_pair pair = { .private_key = key, .cert_chain = cert };
	grpc_channel_credentials *out = NULL;

	if (ca && (key || !wants_pair)) {
		out = grpc_ssl_credentials_create(ca, key ? &pair : NULL, NULL, NULL);
		if (!out)
			snprintf(why, size, "%.200s: no certificates that TLS can use", o->ca);
	}
	if (key)
		explicit_bzero(key, strlen(key));
	free(key);
	free(cert);
	free(ca);
	return out;
}

static enum status channel_create(struct etcd *e)
{
	const bool tls = e->options.ca && *e->options.ca;
	grpc_arg options[] = {
		{ .type = GRPC_ARG_STRING, .key = (char *)GRPC_ARG_PRIMARY_USER_AGENT_STRING,
		  .value.string = (char *)e->options.agent },
		int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, ETCD_MESSAGE_MAX),
		/* A connection of this client's own, and none of the pauses that an earlier one has earned. */
		int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
		int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
		int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
		int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
		int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0),
	};
	const grpc_channel_args args = { sizeof options / sizeof options[0], options };
	char words[ETCD_WHY_MAX / 2], target[ETCD_HOST_MAX + 8];
	grpc_channel_credentials *credentials =
		tls ? tls_create(&e->options, words, sizeof words) : grpc_insecure_credentials_create();

	if (!credentials)
		return engine_fail(e, STATUS_UNAVAILABLE, "%s", words);
	snprintf(target, sizeof target, "dns:///%s", e->endpoint);
	e->channel = grpc_channel_create(target, credentials, &args);
	grpc_channel_credentials_release(credentials);
	return e->channel ? STATUS_OK : engine_fail(e, STATUS_INTERNAL, "gRPC makes no channel");
}

enum status etcd_connect(struct etcd *e)
{
	etcd_disconnect(e);
	strcpy(e->endpoint, e->endpoints[e->next]);
	e->next = (e->next + 1) % e->endpoint_count;
	const enum status s = channel_create(e);

	return s == STATUS_OK && e->options.user && *e->options.user ? etcd_authenticate(e) : s;
}

void etcd_disconnect(struct etcd *e)
{
	watch_close(e);
	if (e->channel)
		grpc_channel_destroy(e->channel);
	e->channel = NULL;
	explicit_bzero(e->token, sizeof e->token);
}
