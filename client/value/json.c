/* JSON text: one function walks over a value and checks it; the other functions use it to walk over checked text. */
#include "client/value/json.h"

#include <string.h>

struct walk {
	const char *at, *end;
};

static bool skip_value(struct walk *w, uint32_t depth);

static void skip_space(struct walk *w)
{
	while (w->at < w->end && (*w->at == ' ' || *w->at == '\t' || *w->at == '\n' || *w->at == '\r'))
		w->at++;
}

static bool take(struct walk *w, char c)
{
	if (w->at == w->end || *w->at != c)
		return false;
	w->at++;
	return true;
}

static bool skip_word(struct walk *w, const char *word)
{
	for (; *word; word++)
		if (!take(w, *word))
			return false;
	return true;
}

static bool is_digit(const struct walk *w)
{
	return w->at < w->end && *w->at >= '0' && *w->at <= '9';
}

static bool skip_digits(struct walk *w)
{
	if (!is_digit(w))
		return false;
	while (is_digit(w))
		w->at++;
	return true;
}

static bool skip_number(struct walk *w)
{
	(void)take(w, '-');
	if (!take(w, '0') && !skip_digits(w))
		return false;
	if (take(w, '.') && !skip_digits(w))
		return false;
	if (w->at < w->end && (*w->at == 'e' || *w->at == 'E')) {
		w->at++;
		if (!take(w, '+'))
			(void)take(w, '-');
		return skip_digits(w);
	}
	return true;
}

static bool skip_hex(struct walk *w)
{
	for (int i = 0; i < 4; i++, w->at++)
		if (w->at == w->end || !memchr("0123456789abcdefABCDEF", *w->at, 22))
			return false;
	return true;
}

static bool skip_escape(struct walk *w)
{
	if (w->at == w->end || !memchr("\"\\/bfnrtu", *w->at, 9))
		return false;
	return *w->at++ != 'u' || skip_hex(w);
}

static bool skip_text(struct walk *w)
{
	if (!take(w, '"'))
		return false;
	while (w->at < w->end && *w->at != '"') {
		if ((unsigned char)*w->at < ' ')
			return false;
		if (*w->at++ == '\\' && !skip_escape(w))
			return false;
	}
	return take(w, '"');
}

static bool skip_member(struct walk *w, uint32_t depth, bool named)
{
	if (named) {
		skip_space(w);
		if (!skip_text(w))
			return false;
		skip_space(w);
		if (!take(w, ':'))
			return false;
	}
	return skip_value(w, depth);
}

/* Passes over the members or elements behind the opening bracket. */
static bool skip_members(struct walk *w, uint32_t depth, char closing)
{
	skip_space(w);
	if (take(w, closing))
		return true;
	do {
		if (!skip_member(w, depth, closing == '}'))
			return false;
		skip_space(w);
	} while (take(w, ','));
	return take(w, closing);
}

static bool skip_value(struct walk *w, uint32_t depth)
{
	skip_space(w);
	if (w->at == w->end || depth == JSON_DEPTH_MAX)
		return false;
	switch (*w->at) {
	case '{':
	case '[':
		return skip_members(w, depth + 1, *w->at++ == '{' ? '}' : ']');
	case '"':
		return skip_text(w);
	case 't':
		return skip_word(w, "true");
	case 'f':
		return skip_word(w, "false");
	case 'n':
		return skip_word(w, "null");
	default:
		return skip_number(w);
	}
}

bool json_check(const char *text, size_t bytes, struct json *value, size_t *where)
{
	struct walk w = { text, text + bytes };
	const char *first;
	bool sound;

	skip_space(&w);
	first = w.at;
	sound = skip_value(&w, 0);
	*value = (struct json){ first, (size_t)(w.at - first) };
	if (sound)
		skip_space(&w);
	*where = (size_t)(w.at - text);
	return sound && w.at == w.end;
}

enum json_kind json_kind(struct json value)
{
	switch (value.bytes ? *value.at : 'n') {
	case '{':
		return JSON_OBJECT;
	case '[':
		return JSON_ARRAY;
	case '"':
		return JSON_TEXT;
	case 't':
	case 'f':
		return JSON_BOOL;
	case 'n':
		return JSON_NULL;
	default:
		return JSON_NUMBER;
	}
}

/* The value at the walk's place. The walk goes on behind it. */
static struct json value_at(struct walk *w)
{
	const char *first;

	skip_space(w);
	first = w->at;
	(void)skip_value(w, 0);
	return (struct json){ first, (size_t)(w->at - first) };
}

bool json_element(struct json array, size_t *cursor, struct json *value)
{
	struct walk w = { array.at + *cursor, array.at + array.bytes };

	if (json_kind(array) != JSON_ARRAY)
		return false;
	w.at += *cursor == 0; /* the bracket */
	skip_space(&w);
	(void)take(&w, ',');
	skip_space(&w);
	if (w.at == w.end || *w.at == ']')
		return false;
	*value = value_at(&w);
	*cursor = (size_t)(w.at - array.at);
	return true;
}

bool json_member(struct json object, const char *name, struct json *value)
{
	struct walk w = { object.at + 1, object.at + object.bytes };
	bool found = false;

	if (json_kind(object) != JSON_OBJECT)
		return false;
	for (;;) {
		struct json key, member;

		skip_space(&w);
		(void)take(&w, ',');
		skip_space(&w);
		if (w.at == w.end || *w.at == '}')
			return found;
		key = value_at(&w);
		skip_space(&w);
		(void)take(&w, ':');
		member = value_at(&w);
		if (json_is(key, name)) {
			*value = member;
			found = true;
		}
	}
}

bool json_uint(struct json value, uint64_t most, uint64_t *out)
{
	uint64_t n = 0;

	if (json_kind(value) != JSON_NUMBER)
		return false;
	for (size_t i = 0; i < value.bytes; i++) {
		const unsigned digit = (unsigned)(value.at[i] - '0');

		if (digit > 9 || n > (most - (digit <= most ? digit : most)) / 10)
			return false;
		n = n * 10 + digit;
		if (n > most)
			return false;
	}
	*out = n;
	return true;
}

bool json_bool(struct json value, bool *out)
{
	if (json_kind(value) != JSON_BOOL)
		return false;
	*out = *value.at == 't';
	return true;
}

bool json_text(struct json value, struct json *out)
{
	if (json_kind(value) != JSON_TEXT)
		return false;
	*out = (struct json){ value.at + 1, value.bytes - 2 };
	return true;
}

bool json_is(struct json value, const char *text)
{
	struct json inside;

	return json_text(value, &inside) && inside.bytes == strlen(text) && !memchr(inside.at, '\\', inside.bytes) &&
	       !memcmp(inside.at, text, inside.bytes);
}
