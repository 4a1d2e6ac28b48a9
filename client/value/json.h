/* A strict reader of JSON text (RFC 8259) for small documents such as a model's config.json: it finds members and
 * builds no tree. A text is checked as a whole first (json_check); the other functions take values that lie in a
 * checked text.
 *
 * Threads: pure functions. Nothing is allocated. */
#ifndef TERRACE_CLIENT_VALUE_JSON_H
#define TERRACE_CLIENT_VALUE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_DEPTH_MAX = 32 };

/* One value, from its first byte to its last. */
struct json {
	const char *at;
	size_t bytes;
};

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_TEXT, JSON_ARRAY, JSON_OBJECT };

/* True if the text is one value, nested at most JSON_DEPTH_MAX deep, with nothing but white space around it. Else
 * *where is the offset of the first byte that cannot be there. */
bool json_check(const char *text, size_t bytes, struct json *value, size_t *where);

enum json_kind json_kind(struct json value);
/* The member of an object; if several have that name, the last. False: there is none, or the value is no object. */
bool json_member(struct json object, const char *name, struct json *value);
/* The next element of an array; *cursor is 0 at first. False: there is no more, or the value is no array. */
bool json_element(struct json array, size_t *cursor, struct json *value);
/* An integer of 0 to `most`, written without a fraction or an exponent. */
bool json_uint(struct json value, uint64_t most, uint64_t *out);
bool json_bool(struct json value, bool *out);
/* Whether the value is this text; texts with escapes are equal to none. */
bool json_is(struct json value, const char *text);
/* The text's bytes between its quotes, unchanged. False: it is no text. */
bool json_text(struct json value, struct json *out);

#endif
