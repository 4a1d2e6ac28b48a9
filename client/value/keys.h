/* The keys of a call. */
#ifndef TERRACE_CLIENT_VALUE_KEYS_H
#define TERRACE_CLIENT_VALUE_KEYS_H

#include "client/include/terrace.h"
#include "terrace.pb-c.h"

enum {
	CLIENT_KEYS_MAX = 4096,    /* keys a call */
	CLIENT_KEY_BYTES_MAX = TERRACE_KEY_BYTES_MAX,
	CLIENT_LAYOUTS_MAX = 64,   /* layouts a session */
};

/* TERRACE_OK, or TERRACE_INVALID with words: a call takes 1 to 4096 keys of 1 to TERRACE_KEY_BYTES_MAX bytes. */
enum terrace_status client_keys_check(const struct terrace_keys *keys);

/* Fills a message that points at the keys. */
void client_keys_message(const struct terrace_keys *keys, Terrace__V1__Keys *out);

#endif
