/* The keys of a call: checks, options that speak of them, and their form in a message. */
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

/* Reads the options of a call about its keys. options NULL: the defaults. TERRACE_INVALID: the size of the options is
 * not set. */
enum terrace_status client_call_options(const struct terrace_call_options *options, uint32_t *first_position);

/* Fills a message that points at the keys. */
void client_keys_message(const struct terrace_keys *keys, Terrace__V1__Keys *out);
/* As client_keys_message, for keys that begin at that position. */
void client_keys_message_from(const struct terrace_keys *keys, uint32_t first_position, Terrace__V1__Keys *out);

#endif
