/* See client/rig.h. */
#include "tests/client/rig.h"

#include <string.h>

struct fake fake;
struct terrace_client *client;
struct terrace_session *session;
struct terrace_layout layouts[2];
uint8_t bytes[CLIENT_RIG_KEYS * KEY_BYTES];

void client_rig_open(uint32_t count)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;

	fake_start(&fake);
	o.address = fake.address;
	o.timeout_us = CLIENT_RIG_TIMEOUT_US;
	ck_assert_int_eq(terrace_connect(&o, &client), TERRACE_OK);
	layouts[0] = layouts[1] = fake_layout();
	layouts[1].first_layer = 2;
	layouts[1].k_format = TERRACE_FORMAT_FP16;
	ck_assert_msg(!terrace_session_open(client, layouts, count, NULL, &session), "%s", terrace_error());
	for (int i = 0; i < CLIENT_RIG_KEYS; i++)
		memset(bytes + i * KEY_BYTES, 'a' + i, KEY_BYTES);
}

void client_rig_close(void)
{
	terrace_session_close(session);
	terrace_disconnect(client);
	fake_stop(&fake);
}
