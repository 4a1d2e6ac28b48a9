/* What the tests of the client against the fake daemon share: the fake, a connection, a session over one or two layouts, and keys. */
#ifndef TERRACE_TESTS_CLIENT_RIG_H
#define TERRACE_TESTS_CLIENT_RIG_H

#include "tests/client/fake.h"

#include <check.h>

/* The time that calls have here is a net: tests that are about a deadline give their own. */
enum { CLIENT_RIG_KEYS = 4, KEY_BYTES = 16, CLIENT_RIG_TIMEOUT_US = 30000000 };

extern struct fake fake;
extern struct terrace_client *client;
extern struct terrace_session *session;
extern struct terrace_layout layouts[2];
extern uint8_t bytes[CLIENT_RIG_KEYS * KEY_BYTES]; /* the keys: 16 times 'a', 'b', ... */

/* Sets a field of the fake's. */
#define FAULT(field, value)                                                                                            \
	do {                                                                                                           \
		pthread_mutex_lock(&fake.lock);                                                                        \
		fake.field = (value);                                                                                  \
		pthread_mutex_unlock(&fake.lock);                                                                      \
	} while (0)

/* Starts the fake, and a session over the first `count` layouts: the fake's, and one that is larger. */
void client_rig_open(uint32_t count);
void client_rig_close(void);

#endif
