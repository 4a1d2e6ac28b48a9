/* A call of a unary method without a server. */
#ifndef TERRACE_TESTS_DAEMON_RPC_HANDLE_H
#define TERRACE_TESTS_DAEMON_RPC_HANDLE_H

#include "daemon/rpc/call.h"
#include "daemon/rpc/handler.h"

/* Unpacks a request and runs one step of its method, as on a worker: the whole path between bytes and reply. */
static inline enum status call_handle(struct rpc_call *c, const uint8_t *bytes, size_t n, ProtobufCMessage **reply)
{
	ProtobufCMessage *request = NULL;
	enum status s = rpc_call_unpack(c, bytes, n, &request);

	c->worker = true;
	return s == STATUS_OK ? c->method->unary(c, request, reply) : s;
}

#endif
