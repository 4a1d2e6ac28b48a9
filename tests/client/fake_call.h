/* One call that the fake daemon serves, on a thread of its own. Between its files. */
#ifndef TERRACE_TESTS_CLIENT_FAKE_CALL_H
#define TERRACE_TESTS_CLIENT_FAKE_CALL_H

#include "tests/client/fake.h"

struct fake_call {
	struct fake *fake;
	grpc_call *call;
	grpc_call_details details;
	grpc_metadata_array metadata;
	grpc_completion_queue *queue;
	char method[32];
	bool greeted;
};

/* The next message of the client, joined, to be freed; NULL at the end. */
uint8_t *fake_receive(struct fake_call *c, size_t *bytes);
void fake_send_bytes(struct fake_call *c, const void *bytes, size_t size);
void fake_send_message(struct fake_call *c, const ProtobufCMessage *message);
/* The call's status. */
void fake_end(struct fake_call *c, grpc_status_code code, const char *words);
/* Never answers: waits for the client to give up. */
void fake_stall(struct fake_call *c);
/* A unary reply, with the faults, and the end. */
void fake_answer(struct fake_call *c, ProtobufCMessage *reply);

/* What the daemon does for a call; the first message is here. With the fake's lock held. */
void fake_call_dispatch(struct fake_call *c, const uint8_t *bytes, size_t size);

#endif
