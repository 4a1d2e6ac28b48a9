/* grpc.health.v1: SERVING until a drain begins, NOT_SERVING from then on. Admin goes on serving while the
 * daemon drains. */
#include "daemon/block/lock.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "health.pb-c.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving;
#define SERVING(word) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##word

static serving service_state(const struct rpc_call *c, const char *service)
{
	if (!strcmp(service, "terrace.v1.Admin"))
		return SERVING(SERVING);
	if (*service && strcmp(service, "terrace.v1.Cache"))
		return SERVING(SERVICE_UNKNOWN);
	return cache_draining(rpc_cache(c)) ? SERVING(NOT_SERVING) : SERVING(SERVING);
}

enum status rpc_health_check(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Grpc__Health__V1__HealthCheckRequest *q = (const Grpc__Health__V1__HealthCheckRequest *)request;
	Grpc__Health__V1__HealthCheckResponse *r = rpc_take(c, sizeof *r);
	serving state = service_state(c, q->service);

	if (!r)
		return rpc_too_big(c);
	if (state == SERVING(SERVICE_UNKNOWN))
		return rpc_fail(c, STATUS_NOT_FOUND, "service: unknown service");
	grpc__health__v1__health_check_response__init(r);
	r->status = state;
	*reply = &r->base;
	return STATUS_OK;
}

struct health_watch {
	const char *service; /* in the call's arena */
	serving sent;        /* UNKNOWN: nothing yet */
	uint8_t packed[16];
};

static enum status health_open(struct rpc_call *c, const ProtobufCMessage *request)
{
	struct health_watch *w = calloc(1, sizeof *w);

	if (!w)
		return rpc_too_big(c);
	w->service = ((const Grpc__Health__V1__HealthCheckRequest *)request)->service;
	c->stream = w;
	return STATUS_OK;
}

/* Sends the state when it has changed. The server wakes every endless stream when draining begins or ends. */
static enum rpc_next health_next(struct rpc_call *c, bool worker, struct rpc_out *out, enum status *failure)
{
	struct health_watch *w = c->stream;
	Grpc__Health__V1__HealthCheckResponse m = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;

	(void)worker;
	(void)failure;
	m.status = service_state(c, w->service);
	if (m.status == w->sent)
		return RPC_NEXT_WAIT;
	w->sent = m.status;
	*out = (struct rpc_out){ .head = w->packed,
				 .head_bytes = grpc__health__v1__health_check_response__pack(&m, w->packed) };
	return RPC_NEXT_MESSAGE;
}

static void health_close(struct rpc_call *c)
{
	free(c->stream);
}

const struct rpc_server_stream rpc_health_watch = {
	.open = health_open,
	.next = health_next,
	.close = health_close,
	.endless = true,
};
